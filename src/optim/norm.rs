//! Euclidean norms of leaves and of whole trees.

use hlo::{AxisSet, LeafSpec, Reduction, Tensor, Tree};

/// `sum x^2` of a leaf: a scalar of dtype f32 or wider. The sum includes all shards of a sharded
/// leaf, so the norm does not depend on the number of replicas.
fn squared_norm(leaf: Tensor<'_>) -> Tensor<'_> {
    squared_norms(leaf, 0, leaf.varying())
}

/// The same of each row of a leaf with this many stacked dims, `[stack sizes]`, of which each
/// replica along `axes` has a piece.
fn squared_norms(leaf: Tensor<'_>, num_stacked: usize, axes: AxisSet) -> Tensor<'_> {
    let wide = leaf.convert(leaf.dtype().accumulation());
    let local = (wide * wide).reduce_sum(&(num_stacked..leaf.rank()).collect::<Vec<_>>());
    if axes.is_empty() { local } else { local.all_reduce(Reduction::Sum, axes) }
}

/// The norm of each parameter that a leaf holds: a scalar, or `[stack sizes]` for a stacked leaf;
/// for stages, those of this stage.
pub(super) fn param_norm<'g>(leaf: Tensor<'g>, spec: &LeafSpec) -> Tensor<'g> {
    let stages = spec.sharding.dims()[..spec.num_stacked].iter();
    let stages = stages.fold(AxisSet::EMPTY, |all, axes| all | *axes);
    squared_norms(leaf, spec.num_stacked, leaf.varying().minus(stages)).sqrt()
}

/// The norm of all leaves together; see `squared_norm`. `None` for an empty tree.
pub fn global_norm<'g>(leaves: &Tree<Tensor<'g>>) -> Option<Tensor<'g>> {
    let squares = leaves.values().map(|leaf| squared_norm(*leaf));
    squares.reduce(|sum, square| sum + square.convert(sum.dtype())).map(Tensor::sqrt)
}

/// `norm / by`, or 1 if either is 0; elementwise.
pub(super) fn ratio<'g>(norm: Tensor<'g>, by: Tensor<'g>) -> Tensor<'g> {
    let both = norm.greater(0.0).and(by.greater(0.0));
    let one = norm.full_like(1.0);
    // Divides by 1 where the result is discarded, to avoid a division by 0.
    both.select(norm / both.select(by, one), one)
}
