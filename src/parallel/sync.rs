//! The sum of the gradients over the replicas.

use std::fmt;

use hlo::{Axis, AxisSet, DType, LeafSpec, OnOtherMesh, Reduction, Tensor};

use super::ParallelPlan;

/// How the gradients of the replicas become their sum.
///
/// What a scheme keeps from step to step, such as the error of what it rounded, are leaves of the
/// state: a step that is not finite leaves them as they were, checkpoints hold them, and on another
/// mesh they start as [`OnOtherMesh`] says.
pub trait Synchronize: fmt::Debug + Send + Sync {
    /// What is kept for a parameter, by kind; nothing by default. It starts as zeros.
    fn comm(&self, _param: &LeafSpec, _plan: &ParallelPlan) -> Vec<(&'static str, LeafSpec)> {
        vec![]
    }

    /// How the sums differ from those of the gradients, if they differ by more than the rounding of
    /// their own dtype.
    fn approximation(&self) -> Option<String> {
        None
    }

    /// The sum over the replicas along `axes` of `local`, the gradient on each of them, which has
    /// the type of the parameter's shard but varies over `axes` too; and the next values of what is
    /// kept, from those before, both in the order of [`Self::comm`].
    fn sum<'g>(
        &self,
        local: Tensor<'g>,
        axes: AxisSet,
        comm: &[Tensor<'g>],
    ) -> (Tensor<'g>, Vec<Tensor<'g>>);
}

/// One all_reduce for each parameter, in its dtype.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainSum;

impl Synchronize for PlainSum {
    #[track_caller]
    fn sum<'g>(
        &self,
        local: Tensor<'g>,
        axes: AxisSet,
        _comm: &[Tensor<'g>],
    ) -> (Tensor<'g>, Vec<Tensor<'g>>) {
        (plain_sum(local, axes), vec![])
    }
}

#[track_caller]
pub(super) fn plain_sum(local: Tensor<'_>, axes: AxisSet) -> Tensor<'_> {
    local.all_reduce(Reduction::Sum, axes)
}

/// Gradients with fewer elements on a replica are summed in full: they are few bytes.
pub(super) const MIN_COMPRESSED: usize = 1024;

/// The number of elements that a replica holds of a parameter.
pub(super) fn num_local_elements(param: &LeafSpec, plan: &ParallelPlan) -> usize {
    param.local_type(&plan.mesh).map_or(0, |local| local.num_elements())
}

/// The kind of leaf that holds what replicas have not sent yet.
pub(super) const RESIDUAL: &str = "residual";

/// What each replica along `data` has not sent yet of its gradients of a parameter: the error
/// feedback of Karimireddy, Rebjock, Stich and Jaggi, "Error feedback fixes SignSGD and other
/// gradient compression schemes" (2019).
pub(super) fn residual(param: &LeafSpec, plan: &ParallelPlan) -> LeafSpec {
    param.of_each_replica(&plan.mesh, Axis::Data, OnOtherMesh::SumThenSplit)
}

/// A sum over `data` with error feedback, and in full over the other axes, where gradients are
/// small or links are fast. `send` gives the sum of what replicas send of the tensor that it gets,
/// and what this replica has not sent of it.
#[track_caller]
pub(super) fn sum_with_feedback<'g>(
    local: Tensor<'g>,
    axes: AxisSet,
    residual: Tensor<'g>,
    send: impl FnOnce(Tensor<'g>) -> (Tensor<'g>, Tensor<'g>),
) -> (Tensor<'g>, Tensor<'g>) {
    let local = sum_over_others(local, axes);
    let (sum, kept) = send(local + residual.reshape(&local.shape()));
    (sum, kept.reshape(&residual.shape()))
}

/// Pieces `[p, ..]`, one for each of the `p` replicas along `data`: the same, with `own`, `[1, ..]`
/// or `[..]`, added to the piece of this replica.
#[track_caller]
pub(super) fn add_to_own_piece<'g>(pieces: Tensor<'g>, own: Tensor<'g>) -> Tensor<'g> {
    let dims = pieces.shape();
    let own = own.reshape(&[&[1], &dims[1..]].concat());
    let own = own.broadcast_in_dim(&dims, &(0..dims.len()).collect::<Vec<_>>());
    pieces + is_own_piece(&own).select(own, own.full_like(0.0))
}

/// Where in pieces `[p, ..]`, like `pieces`, that of this replica along `data` is.
#[track_caller]
pub(super) fn is_own_piece<'g>(pieces: &Tensor<'g>) -> Tensor<'g> {
    let t = pieces.tracer();
    let replicas = t.iota(DType::U32, &pieces.shape(), 0);
    let is_own = replicas.vary(Axis::Data).equal(t.replica_id(Axis::Data));
    is_own.vary(pieces.varying())
}

/// The sum in full over the axes other than `data`.
#[track_caller]
pub(super) fn sum_over_others(local: Tensor<'_>, axes: AxisSet) -> Tensor<'_> {
    let others = axes.minus(Axis::Data.into());
    if others.is_empty() { local } else { plain_sum(local, others) }
}

/// Parts of more replicas are added by one reduction, which a backend may order as it likes.
const MAX_IN_ORDER: usize = 64;

/// The sum over the replicas of what they sent, in their order: `term` makes a replica's term of
/// its pieces of `parts`, which are cut along `dim`.
#[track_caller]
pub(super) fn sum_in_order<'g, const N: usize>(
    parts: [Tensor<'g>; N],
    dim: usize,
    term: impl Fn([Tensor<'g>; N]) -> Tensor<'g>,
) -> Tensor<'g> {
    let group_size = parts[0].dim(dim);
    if group_size > MAX_IN_ORDER {
        return term(parts).reduce_sum(&[dim]);
    }
    let of = |replica| term(parts.map(|part| part.slice_dim(dim, replica, replica + 1)));
    let sum = (1..group_size).fold(of(0), |sum, replica| sum + of(replica));
    let dims = [&sum.shape()[..dim], &sum.shape()[dim + 1..]].concat();
    sum.reshape(&dims)
}
