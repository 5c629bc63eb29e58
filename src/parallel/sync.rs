//! The sum of the gradients over the replicas.

use std::fmt;

use hlo::{AxisSet, LeafSpec, Reduction, Tensor};

use super::ParallelPlan;

/// How the gradients of the replicas become their sum.
///
/// What a scheme keeps from step to step, such as the error of what it rounded, is a leaf of the
/// state: a step that is not finite leaves it as it was, checkpoints hold it, and on another mesh
/// it starts as [`hlo::OnOtherMesh`] says.
pub trait Synchronize: fmt::Debug + Send + Sync {
    /// What is kept for a parameter; nothing by default. It starts as zeros.
    fn comm(&self, _param: &LeafSpec, _plan: &ParallelPlan) -> Option<LeafSpec> {
        None
    }

    /// The sum over the replicas along `axes` of `local`, the gradient on each of them, which has
    /// the type of the parameter's shard but varies over `axes` too; and the next value of what is
    /// kept, from the one before.
    fn sum<'g>(
        &self,
        local: Tensor<'g>,
        axes: AxisSet,
        comm: Option<Tensor<'g>>,
    ) -> (Tensor<'g>, Option<Tensor<'g>>);
}

/// One all_reduce for each parameter, in its dtype.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainSum;

impl Synchronize for PlainSum {
    fn sum<'g>(
        &self,
        local: Tensor<'g>,
        axes: AxisSet,
        comm: Option<Tensor<'g>>,
    ) -> (Tensor<'g>, Option<Tensor<'g>>) {
        (local.all_reduce(Reduction::Sum, axes), comm)
    }
}
