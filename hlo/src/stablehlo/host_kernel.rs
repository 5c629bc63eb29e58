//! StableHLO text of ops as calls of kernels of the process.

use super::host_collective::array;
use super::{RegionContext, custom_call};
use crate::{Convolution, ConvolutionDims, DType, DotDims, Node, Op, Threefry, Window, WindowDim};

/// The target of the custom calls by which [`super::HostCalls`] leaves ops to the process.
pub const HOST_KERNEL_TARGET: &str = "lockstep_kernel";

/// The version of the kernels' results: raised with every change of a kernel that changes bits, so
/// that the programs that call it differ, and with them their fingerprints.
pub const HOST_KERNELS_VERSION: usize = 5;

/// Products of fewer floating-point operations are left to XLA: a call would take as long as the
/// product.
const MIN_DOT_FLOPS: usize = 1 << 18;

/// `true` if a kernel computes the product: of f32 or f64, large enough, and contracting dims that
/// are neighbours in both operands, in the same order, so that they are one dim of a matrix.
/// Products of bf16 are faster in XLA, which uses the processor's instructions for them.
pub(super) fn has_dot(context: &RegionContext<'_>, node: &Node, dims: &DotDims) -> bool {
    let ty = |i: usize| context.graph.ty(node.operands[i]);
    let are_neighbours = |dims: &[usize]| dims.windows(2).all(|pair| pair[1] == pair[0] + 1);
    let contracted = dims.lhs_contracting.iter().map(|dim| ty(0).dims[*dim]);
    let terms = contracted.fold(2, usize::saturating_mul);
    let flops = context.graph.ty(node.result()).num_elements().saturating_mul(terms);
    matches!(ty(0).dtype, DType::F32 | DType::F64)
        && are_neighbours(&dims.lhs_contracting)
        && are_neighbours(&dims.rhs_contracting)
        && flops >= MIN_DOT_FLOPS
}

/// The call for a product, without the `=` and what precedes it. `result` is the result type in the
/// text.
pub(super) fn dot_general(
    context: &RegionContext<'_>,
    node: &Node,
    dims: &DotDims,
    result: &str,
) -> String {
    let attributes = format!(
        "{{kind = \"dot_general\", version = {HOST_KERNELS_VERSION} : i64, lhs_batch = {}, \
         rhs_batch = {}, lhs_contracting = {}, rhs_contracting = {}}}",
        array(&dims.lhs_batch),
        array(&dims.rhs_batch),
        array(&dims.lhs_contracting),
        array(&dims.rhs_contracting),
    );
    custom_call::host_call(context, node, HOST_KERNEL_TARGET, &attributes, false, result)
}

/// The call for random bits, without the `=` and what precedes it.
pub(super) fn threefry(context: &RegionContext<'_>, node: &Node, threefry: &Threefry) -> String {
    let strides: Vec<_> = threefry.strides.iter().map(|stride| *stride as usize).collect();
    let attributes = format!(
        "{{kind = \"threefry\", version = {HOST_KERNELS_VERSION} : i64, dims = {}, strides = {}, \
         num_words = {} : i64}}",
        array(&threefry.dims),
        array(&strides),
        threefry.num_words,
    );
    let results = context.types(node.results());
    custom_call::host_call(context, node, HOST_KERNEL_TARGET, &attributes, false, &results)
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

/// Maxima over windows of fewer elements are left to XLA, but not gradients of padded windows:
/// there XLA's choice among equal elements is not always the first.
const MIN_MAX_POOL: usize = 1 << 14;

/// `true` if a kernel computes the maximum over windows, or its gradient: windows of rows and
/// columns of images NHWC of f32 or f64.
pub(super) fn has_max_pool(context: &RegionContext<'_>, node: &Node, window: &Window) -> bool {
    let x = context.graph.ty(node.operands[0]);
    let one = WindowDim::default();
    let is_padded = window.dims.iter().any(|dim| dim.low != 0 || dim.high != 0);
    let is_padded_gradient = is_padded && matches!(node.op, Op::SelectAndScatter { .. });
    matches!(x.dtype, DType::F32 | DType::F64)
        && x.rank() == 4
        && [0, 3].iter().all(|dim| window.sizes[*dim] == 1 && window.dims[*dim] == one)
        && !window.is_dilated()
        && (x.num_elements() >= MIN_MAX_POOL || is_padded_gradient)
}

/// The call for a maximum over windows, or for its gradient, without the `=` and what precedes it.
pub(super) fn max_pool(context: &RegionContext<'_>, node: &Node, window: &Window) -> String {
    let kind = match node.op {
        Op::SelectAndScatter { .. } => "max_pool_gradient",
        _ => "max_pool",
    };
    let [rows, columns] = [window.dims[1], window.dims[2]];
    let attributes = format!(
        "{{kind = \"{kind}\", version = {HOST_KERNELS_VERSION} : i64, window = {}, stride = {}, \
         low = array<i64: {}, {}>}}",
        array(&window.sizes[1..3]),
        array(&[rows.stride, columns.stride]),
        rows.low,
        columns.low,
    );
    let results = context.types(node.results());
    custom_call::host_call(context, node, HOST_KERNEL_TARGET, &attributes, false, &results)
}

/// Convolutions of fewer elements of output and kernel, multiplied, are left to XLA.
const MIN_CONVOLUTION: usize = 1 << 18;

/// The convolution of images that a kernel computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImageConvolution {
    /// From images NHWC and a kernel in any order to images NHWC. The input may be dilated: then it
    /// is the gradient of one with strides.
    Images,
    /// The gradient of the kernel, in any order, from the input and the cotangent, NHWC.
    KernelGradient,
}

/// The kernel for a convolution, if there is one: with two spatial dims, of f32 or f64, in one
/// group.
pub(super) fn image_convolution(
    context: &RegionContext<'_>,
    node: &Node,
    convolution: &Convolution,
) -> Option<ImageConvolution> {
    let Convolution { dims, window, feature_group_count, batch_group_count } = convolution;
    let ConvolutionDims { lhs, rhs, result } = dims;
    let x = context.graph.ty(node.operands[0]);
    let kernel = context.graph.ty(node.operands[1]).num_elements();
    let is_large =
        context.graph.ty(node.result()).num_elements().saturating_mul(kernel) >= MIN_CONVOLUTION;
    let is_plain = *feature_group_count == 1 && *batch_group_count == 1 && window.len() == 2;
    if !is_large || !is_plain || !matches!(x.dtype, DType::F32 | DType::F64) {
        return None;
    }
    // Batch, feature and spatial dims of NHWC, and the same with batch and feature exchanged.
    let (images, exchanged) = ([0, 3, 1, 2], [3, 0, 1, 2]);
    let all = |is: fn(&WindowDim) -> bool| window.iter().all(is);
    if *lhs == images && *result == images && all(|dim| dim.window_dilation == 1) {
        return Some(ImageConvolution::Images);
    }
    let is_gradient = *lhs == exchanged
        && *rhs == exchanged
        && all(|dim| dim.stride == 1 && dim.base_dilation == 1);
    is_gradient.then_some(ImageConvolution::KernelGradient)
}

/// The call for a convolution, without the `=` and what precedes it. `stride` is that of windows
/// over the input.
pub(super) fn convolution(
    context: &RegionContext<'_>,
    node: &Node,
    convolution: &Convolution,
    kind: ImageConvolution,
) -> String {
    let Convolution { dims, window, .. } = convolution;
    let each = |of: fn(&WindowDim) -> usize| array(&window.iter().map(of).collect::<Vec<_>>());
    // Which dims of the kernel are output features, input features, rows and columns.
    let (name, kernel, stride) = match kind {
        ImageConvolution::Images => ("convolution", dims.rhs.clone(), each(|dim| dim.stride)),
        ImageConvolution::KernelGradient => {
            let [inputs, outputs] = [dims.result[0], dims.result[1]];
            let kernel = [&[outputs, inputs], &dims.result[2..]].concat();
            ("convolution_gradient", kernel, each(|dim| dim.window_dilation))
        }
    };
    let attributes = format!(
        "{{kind = \"{name}\", version = {HOST_KERNELS_VERSION} : i64, kernel = {}, stride = \
         {stride}, low = array<i64: {}, {}>, base_dilation = {}}}",
        array(&kernel),
        window[0].low,
        window[1].low,
        each(|dim| dim.base_dilation),
    );
    let results = context.types(node.results());
    custom_call::host_call(context, node, HOST_KERNEL_TARGET, &attributes, false, &results)
}
