//! What a step measures besides its metrics, where that is asked for: the norms of each parameter,
//! of its gradient and of its update.
//!
//! It is a program of its own, which takes the step too. All other steps run the program that a run
//! without these measurements has.

use hlo::{AxisSet, Graph, LeafSpec, Reduction, Tensor, Tree};

use super::train::step_as_observed;
use super::{DeclaredStep, StepError};
use crate::optim::squared_norms;

/// What a step measures besides its metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepDiagnostics {
    /// [`LAYER_NORMS`](super::LAYER_NORMS).
    pub layers: bool,
    /// [`PART_SQUARES`](super::PART_SQUARES), where the batch has [parts](super::BatchParts).
    pub noise: bool,
}

/// [`trace_step`](super::trace_step) with what it measures besides: `layer_norms`, `[3, rows]`, the
/// norms of all parameters before the update, of their gradients before clipping, and of their
/// updates, each of the whole parameter, in the order of the leaves and of the rows in each; and
/// `part_squares`, a scalar, from gradients before clipping.
///
/// # Errors
/// As [`trace_step`](super::trace_step).
pub fn trace_observed_step(
    step: &DeclaredStep<'_>,
    diagnostics: StepDiagnostics,
) -> Result<Graph, StepError> {
    step.finish(step_as_observed(step, diagnostics)?)
}

/// The norms of the rows of all leaves: `[trees, rows]`, of dtype f32 or wider. Pieces that several
/// replicas hold are summed in one collective for all leaves that are cut alike.
pub(super) fn norms_of_rows<'g>(
    trees: &[&Tree<Tensor<'g>>],
    specs: &Tree<LeafSpec>,
) -> Option<Tensor<'g>> {
    let leaves = trees.iter().flat_map(|tree| tree.iter());
    let of_leaf = |(path, leaf): (&str, &Tensor<'g>)| {
        let spec = specs.get(path)?;
        Some((spec.sharding.varying(), squares_of_rows(*leaf, spec)))
    };
    let mut squares: Vec<(AxisSet, Tensor<'g>)> = leaves.filter_map(of_leaf).collect();
    let mut groups: Vec<AxisSet> = vec![];
    for (axes, _) in &squares {
        if !axes.is_empty() && !groups.contains(axes) {
            groups.push(*axes);
        }
    }
    for axes in groups {
        let places: Vec<_> = (0..squares.len()).filter(|place| squares[*place].0 == axes).collect();
        let pieces: Vec<_> = places.iter().map(|place| squares[*place].1).collect();
        let Some(first) = pieces.first() else { continue };
        let sums = first.tracer().all_reduce(&pieces, Reduction::Sum, axes);
        for (place, sum) in places.into_iter().zip(sums) {
            squares[place].1 = sum;
        }
    }
    let squares: Vec<_> = squares.into_iter().map(|(_, squares)| squares).collect();
    let (first, others) = squares.split_first()?;
    let all = first.concatenate(others, 0);
    Some(all.sqrt().reshape(&[trees.len(), all.num_elements() / trees.len()]))
}

/// The squared norms of a leaf's rows, `[rows]`, of the piece that this replica has. A stage has 0
/// for the rows of others.
fn squares_of_rows<'g>(leaf: Tensor<'g>, spec: &LeafSpec) -> Tensor<'g> {
    let squares = squared_norms(leaf.vary(spec.sharding.varying()), spec.num_stacked);
    let (sizes, own) = (spec.stack_sizes(), squares.shape());
    let whole = match (sizes, &own[..]) {
        ([chunks, stages, blocks], [_, own_stages, _]) if own_stages < stages => {
            let (t, axes) = (squares.tracer(), spec.sharding.dims()[1]);
            let own = squares.reshape(&[*chunks, *blocks]).broadcast_in_dim(sizes, &[0, 2]);
            let stage = t.replica_id(axes).broadcast_in_dim(sizes, &[]);
            let is_own = t.iota(stage.dtype(), sizes, 1).vary(axes).equal(stage);
            is_own.vary(own.varying()).select(own, own.full_like(0.0))
        }
        _ => squares,
    };
    whole.reshape(&[spec.num_rows()])
}
