//! Euclidean norms of leaves and of whole trees.

use hlo::{AxisSet, LeafSpec, Reduction, Tensor, Tree};

/// `sum x^2` of each row of a leaf with this many stacked dims: `[stack sizes]`, a scalar for none,
/// of dtype f32 or wider. Of the piece that this replica has.
pub(crate) fn squared_norms(leaf: Tensor<'_>, num_stacked: usize) -> Tensor<'_> {
    let wide = leaf.convert(leaf.dtype().accumulation());
    (wide * wide).reduce_sum(&(num_stacked..leaf.rank()).collect::<Vec<_>>())
}

/// [`squared_norms`] where each replica along `axes` has a piece of the rows. The sum includes all
/// pieces, so the norm does not depend on the number of replicas.
fn whole_squared_norms(leaf: Tensor<'_>, num_stacked: usize, axes: AxisSet) -> Tensor<'_> {
    let local = squared_norms(leaf, num_stacked);
    if axes.is_empty() { local } else { local.all_reduce(Reduction::Sum, axes) }
}

/// The norm of each parameter that a leaf holds: a scalar, or `[stack sizes]` for a stacked leaf;
/// for stages, those of this stage.
pub(super) fn param_norm<'g>(leaf: Tensor<'g>, spec: &LeafSpec) -> Tensor<'g> {
    let stages = spec.sharding.dims()[..spec.num_stacked].iter();
    let stages = stages.fold(AxisSet::EMPTY, |all, axes| all | *axes);
    whole_squared_norms(leaf, spec.num_stacked, spec.sharding.varying().minus(stages)).sqrt()
}

/// The norm of all leaves together, a scalar of dtype f32 or wider; `None` for an empty tree. The
/// pieces that replicas have of a leaf are those of its specification, or else those along which
/// its tensor varies.
pub fn global_norm<'g>(leaves: &Tree<Tensor<'g>>, specs: &Tree<LeafSpec>) -> Option<Tensor<'g>> {
    let squares = leaves.iter().map(|(path, leaf)| {
        let cut = specs.get(path).map_or(leaf.varying(), |spec| spec.sharding.varying());
        whole_squared_norms(*leaf, 0, cut)
    });
    squares.reduce(|sum, square| sum + square.convert(sum.dtype())).map(Tensor::sqrt)
}

/// `norm / by`, or 1 if either is 0; elementwise.
pub(super) fn ratio<'g>(norm: Tensor<'g>, by: Tensor<'g>) -> Tensor<'g> {
    let both = norm.greater(0.0).and(by.greater(0.0));
    let one = norm.full_like(1.0);
    // Divides by 1 where the result is discarded, to avoid a division by 0.
    both.select(norm / both.select(by, one), one)
}
