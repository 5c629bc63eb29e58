//! What a step measures besides its metrics, where that is asked for: the norms of each parameter,
//! of its gradient and of its update.
//!
//! It is a program of its own, which takes the step too. All other steps run the program that a run
//! without these measurements has.

use hlo::{AxisSet, DType, Graph, LeafSpec, Reduction, Tensor, Tree};

use super::train::step_as_observed;
use super::{DeclaredStep, StepError};
use crate::observe::HistogramBuckets;
use crate::optim::squared_norms;

/// What a step measures besides its metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepDiagnostics {
    /// [`LAYER_NORMS`](super::LAYER_NORMS).
    pub layers: bool,
    /// [`LAYER_COUNTS`](super::LAYER_COUNTS).
    pub histograms: bool,
    /// [`PART_SQUARES`](super::PART_SQUARES), where the batch has [parts](super::BatchParts).
    pub noise: bool,
}

/// [`trace_step`](super::trace_step) with what it measures besides: `layer_norms`, `[3, rows]`, the
/// norms of all parameters before the update, of their gradients before clipping, and of their
/// updates, each of the whole parameter, in the order of the leaves and of the rows in each;
/// `layer_counts`, i32 `[rows, buckets]`, of the parameters before the update, in the same order;
/// and `part_squares`, a scalar, from gradients before clipping.
///
/// # Errors
/// As [`trace_step`](super::trace_step).
pub fn trace_observed_step(
    step: &DeclaredStep<'_>,
    diagnostics: StepDiagnostics,
) -> Result<Graph, StepError> {
    step.finish(step_as_observed(step, diagnostics)?)
}

/// The norms of the rows of all leaves: `[trees, rows]`, of dtype f32 or wider.
pub(super) fn norms_of_rows<'g>(
    trees: &[&Tree<Tensor<'g>>],
    specs: &Tree<LeafSpec>,
) -> Option<Tensor<'g>> {
    let leaves = trees.iter().flat_map(|tree| tree.iter());
    let squares = leaves.filter_map(|(path, leaf)| {
        let spec = specs.get(path)?;
        let leaf = leaf.vary(spec.sharding.varying());
        Some((spec.sharding.varying(), in_all_rows(squared_norms(leaf, spec.num_stacked), spec)))
    });
    let all = sums_over_pieces(squares.collect())?;
    Some(all.sqrt().reshape(&[trees.len(), all.num_elements() / trees.len()]))
}

/// Most values of a row that a replica counts: of larger ones, evenly spaced samples.
const MAX_COUNTED: usize = 1 << 16;

/// How many values of each row of all leaves are in each of the [`HistogramBuckets`]: i32
/// `[rows, buckets]`.
pub(super) fn counts_of_rows<'g>(
    params: &Tree<Tensor<'g>>,
    specs: &Tree<LeafSpec>,
) -> Option<Tensor<'g>> {
    let counts = params.iter().filter_map(|(path, leaf)| {
        let spec = specs.get(path)?;
        Some((spec.sharding.varying(), in_all_rows(counts(*leaf, spec.num_stacked), spec)))
    });
    sums_over_pieces(counts.collect())
}

/// `[stack sizes, buckets]`: the counts of the piece that this replica has of each row.
fn counts(leaf: Tensor<'_>, num_stacked: usize) -> Tensor<'_> {
    let shape = leaf.shape();
    let (stacked, row) = shape.split_at(num_stacked);
    let (num_rows, size) = (stacked.iter().product::<usize>(), row.iter().product::<usize>());
    let rows = leaf.convert(DType::F32).reshape(&[num_rows, size]);
    let stride = size.div_ceil(MAX_COUNTED).max(1);
    let values = rows.slice(&[0, 0], &[num_rows, size], &[1, stride]);
    let (offset, last) = (HistogramBuckets::OFFSET, HistogramBuckets::NUM_POSITIVE as f64);
    let size = values.abs().log() * (2.0 / std::f64::consts::LN_2) + offset;
    let size = size.clamp(0.0, last).convert(DType::I32);
    let bucket = values.less(0.0).select(size.full_like(0.0) - size, size) + last;
    let dims = [num_rows, bucket.dim(1), HistogramBuckets::COUNT];
    let each = bucket.broadcast_in_dim(&dims, &[0, 1]);
    let buckets = leaf.tracer().iota(DType::I32, &dims, 2).vary(each.varying());
    let counts = each.equal(buckets).convert(DType::I32).reduce_sum(&[1]);
    counts.reshape(&[stacked, &[HistogramBuckets::COUNT]].concat())
}

/// What a replica has of each of its rows, `[stack sizes, ..]`, as all rows, `[rows, ..]`. A stage
/// has 0 for the rows of others.
fn in_all_rows<'g>(of_rows: Tensor<'g>, spec: &LeafSpec) -> Tensor<'g> {
    let (sizes, shape) = (spec.stack_sizes(), of_rows.shape());
    let (own, rest) = shape.split_at(spec.num_stacked);
    let whole = match (sizes, own) {
        ([chunks, stages, blocks], [_, own_stages, _]) if own_stages < stages => {
            let (t, axes) = (of_rows.tracer(), spec.sharding.dims()[1]);
            let dims = [sizes, rest].concat();
            let kept: Vec<_> = [0].into_iter().chain(2..dims.len()).collect();
            let own = of_rows.reshape(&[&[*chunks, *blocks], rest].concat());
            let own = own.broadcast_in_dim(&dims, &kept);
            let stage = t.replica_id(axes).broadcast_in_dim(&dims, &[]);
            let is_own = t.iota(stage.dtype(), &dims, 1).vary(axes).equal(stage);
            is_own.vary(own.varying()).select(own, own.full_like(0.0))
        }
        _ => of_rows,
    };
    whole.reshape(&[&[spec.num_rows()], rest].concat())
}

/// The sums of each tensor over the replicas along its axes, one after the other along dim 0: in
/// one collective for all that have the same axes.
fn sums_over_pieces<'g>(mut pieces: Vec<(AxisSet, Tensor<'g>)>) -> Option<Tensor<'g>> {
    let mut groups: Vec<AxisSet> = vec![];
    for (axes, _) in &pieces {
        if !axes.is_empty() && !groups.contains(axes) {
            groups.push(*axes);
        }
    }
    for axes in groups {
        let places: Vec<_> = (0..pieces.len()).filter(|place| pieces[*place].0 == axes).collect();
        let alike: Vec<_> = places.iter().map(|place| pieces[*place].1).collect();
        let Some(first) = alike.first() else { continue };
        let sums = first.tracer().all_reduce(&alike, Reduction::Sum, axes);
        for (place, sum) in places.into_iter().zip(sums) {
            pieces[place].1 = sum;
        }
    }
    let sums: Vec<_> = pieces.into_iter().map(|(_, sum)| sum).collect();
    sums.split_first().map(|(first, others)| first.concatenate(others, 0))
}
