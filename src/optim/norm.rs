//! Euclidean norms of leaves and of whole trees.

use hlo::{Reduction, Tensor, Tree};

/// `sum x^2` of a leaf: a scalar of dtype f32 or wider. The sum includes all shards of a sharded leaf, so the
/// norm does not depend on the number of replicas.
pub fn squared_norm(leaf: Tensor<'_>) -> Tensor<'_> {
    let wide = leaf.convert(leaf.dtype().accumulation());
    let local = (wide * wide).sum();
    let axes = leaf.varying();
    if axes.is_empty() { local } else { local.all_reduce(Reduction::Sum, axes) }
}

/// `sqrt(sum x^2)` of a leaf; see [`squared_norm`].
pub fn norm(leaf: Tensor<'_>) -> Tensor<'_> {
    squared_norm(leaf).sqrt()
}

/// The norm of all leaves together; see [`squared_norm`]. `None` for an empty tree.
pub fn global_norm<'g>(leaves: &Tree<Tensor<'g>>) -> Option<Tensor<'g>> {
    let squares = leaves.values().map(|leaf| squared_norm(*leaf));
    squares.reduce(|sum, square| sum + square.convert(sum.dtype())).map(Tensor::sqrt)
}

/// `norm / by`, or 1 if either is 0.
pub(super) fn ratio<'g>(norm: Tensor<'g>, by: Tensor<'g>) -> Tensor<'g> {
    let both = norm.greater(0.0).and(by.greater(0.0));
    let one = norm.full_like(1.0);
    // Divides by 1 where the result is discarded, to avoid a division by 0.
    both.select(norm / both.select(by, one), one)
}
