//! Euclidean norms of leaves and of whole trees.

use hlo::{Reduction, Tensor, Tree};

/// `sum x^2` of a leaf: a scalar, in f32 or wider whatever the leaf's dtype. The pieces of a sharded leaf
/// are summed over the axes that its type names, so that any number of replicas finds the same norm.
pub fn squared_norm(leaf: Tensor<'_>) -> Tensor<'_> {
    let wide = leaf.convert(leaf.dtype().accumulation());
    let local = (wide * wide).sum();
    let axes = leaf.varying();
    if axes.is_empty() { local } else { local.all_reduce(Reduction::Sum, axes) }
}

/// `sqrt(sum x^2)` of a leaf, as [`squared_norm`].
pub fn norm(leaf: Tensor<'_>) -> Tensor<'_> {
    squared_norm(leaf).sqrt()
}

/// The norm of all leaves together, as [`squared_norm`]; none for a tree without leaves.
pub fn global_norm<'g>(leaves: &Tree<Tensor<'g>>) -> Option<Tensor<'g>> {
    let squares = leaves.values().map(|leaf| squared_norm(*leaf));
    squares.reduce(|sum, square| sum + square.convert(sum.dtype())).map(Tensor::sqrt)
}

/// `norm / by`, and 1 where either is 0.
pub(super) fn ratio<'g>(norm: Tensor<'g>, by: Tensor<'g>) -> Tensor<'g> {
    let both = norm.greater(0.0).and(by.greater(0.0));
    let one = norm.full_like(1.0);
    // Divides by 1 where the result is not taken.
    both.select(norm / both.select(by, one), one)
}
