//! StableHLO text of ops as calls of kernels of the process.

use super::host_collective::array;
use super::{RegionContext, custom_call};
use crate::{DType, DotDims, Node};

/// The target of the custom calls by which [`super::HostCalls`] leaves ops to the process.
pub const HOST_KERNEL_TARGET: &str = "lockstep_kernel";

/// The version of the kernels' results: raised with every change of a kernel that changes bits, so that the programs that call it differ, and
/// with them their fingerprints.
pub const HOST_KERNELS_VERSION: usize = 1;

/// Products of fewer floating-point operations are left to XLA: a call would take as long as the product.
const MIN_DOT_FLOPS: usize = 1 << 18;

/// `true` if a kernel computes the product: of floats, large enough, and contracting dims that are neighbours in both operands, in the
/// same order, so that they are one dim of a matrix.
pub(super) fn has_dot(context: &RegionContext<'_>, node: &Node, dims: &DotDims) -> bool {
    let ty = |i: usize| context.graph.ty(node.operands[i]);
    let are_neighbours = |dims: &[usize]| dims.windows(2).all(|pair| pair[1] == pair[0] + 1);
    let contracted = dims.lhs_contracting.iter().map(|dim| ty(0).dims[*dim]);
    let terms = contracted.fold(2, usize::saturating_mul);
    let flops = context.graph.ty(node.result()).num_elements().saturating_mul(terms);
    matches!(ty(0).dtype, DType::F32 | DType::F64 | DType::Bf16)
        && are_neighbours(&dims.lhs_contracting)
        && are_neighbours(&dims.rhs_contracting)
        && flops >= MIN_DOT_FLOPS
}

/// The call for a product, without the `=` and what precedes it. `result` is the result type in the text.
pub(super) fn dot_general(
    context: &RegionContext<'_>,
    node: &Node,
    dims: &DotDims,
    result: &str,
) -> String {
    let attributes = format!(
        "{{kind = \"dot_general\", version = {HOST_KERNELS_VERSION} : i64, lhs_batch = {}, rhs_batch = {}, lhs_contracting = {}, \
         rhs_contracting = {}}}",
        array(&dims.lhs_batch),
        array(&dims.rhs_batch),
        array(&dims.lhs_contracting),
        array(&dims.rhs_contracting),
    );
    custom_call::host_call(context, node, HOST_KERNEL_TARGET, &attributes, false, result)
}

/// Sums of fewer elements are left to XLA.
const MIN_SUM: usize = 1 << 16;

/// Sums of fewer columns are left to XLA: a kernel adds rows as vectors.
const MIN_COLUMNS: usize = 16;

/// `true` if a kernel computes the sum: over the leading dims of a large tensor of f32 or f64.
pub(super) fn has_sum(context: &RegionContext<'_>, node: &Node, dims: &[usize]) -> bool {
    let (x, y) = (context.graph.ty(node.operands[0]), context.graph.ty(node.result()));
    matches!(x.dtype, DType::F32 | DType::F64)
        && dims.iter().copied().eq(0..dims.len())
        && x.num_elements() >= MIN_SUM
        && y.num_elements() >= MIN_COLUMNS
}

/// The call for a sum over the leading dims, without the `=` and what precedes it.
pub(super) fn sum(context: &RegionContext<'_>, node: &Node) -> String {
    let attributes = format!("{{kind = \"sum\", version = {HOST_KERNELS_VERSION} : i64}}");
    let results = context.types(node.results());
    custom_call::host_call(context, node, HOST_KERNEL_TARGET, &attributes, false, &results)
}
