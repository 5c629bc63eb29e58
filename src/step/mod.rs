//! The step: loss, gradient, accumulation and update as one graph. Belongs to the trace phase.
//!
//! ```text
//! init:    seed                                       -> state
//! step:    state, seed, batch, learning_rate          -> state, metrics, replica_loss
//! eval:    params, model_state, batch, batch.weight   -> sums
//! scores:  params, model_state, batch                 -> scores
//! proof:   state                                      -> fingerprints, their minimum and maximum
//! forward: params, model_state, x                     -> y
//! ```
//! `state` is `params.*`, `model_state.*`, `opt_state.*`, `comm.*`, `step` and `num_skipped`, under
//! the same paths in all graphs, in checkpoints and in messages. [`StepSpec::declare`] determines
//! them, [`Signature`] orders them.

mod accumulate;
mod batch_parts;
mod declare;
mod eval;
mod finite;
mod forward;
mod gather;
mod init;
mod inputs;
mod local;
mod metrics;
mod observed;
mod pipeline;
mod proof;
mod repeat;
mod section;
mod signature;
mod train;

use hlo::{Graph, passes, rewrites, verify};

use crate::optim::InvalidPattern;

pub use batch_parts::BatchParts;
pub use declare::{BatchField, DeclaredStep, StepSpec};
pub use eval::{EvalSums, TallyKind, trace_eval, trace_scores};
pub use finite::{first_nonfinite, recompute_if};
pub use forward::{Forward, trace_forward};
pub use gather::trace_gather;
pub use init::trace_init;
pub use local::LocalSteps;
pub use metrics::{
    COMPUTED_METRICS, ComputedMetric, GRAD_NORM, METRICS, NONFINITE_LEAF, OfReplicas,
    metrics_of_replicas,
};
pub use observed::{StepDiagnostics, trace_observed_step};
pub use proof::trace_proof;
pub use repeat::repeat_step;
pub use section::StateSection;
pub use signature::{
    AWAITED, BATCH, FINGERPRINTS, GATHERED, IN_TIME, LATE, LATE_SHARDS, LAYER_COUNTS, LAYER_NORMS,
    LEARNING_RATE, MAX, METRICS_OUTPUT, MIN, NUM_SKIPPED, ON_TIME, PART_SQUARES, REPLICA_LOSS,
    Results, SCORES, SEED, STEP, SUMS, Signature, SignatureError, WEIGHT, ema_path,
};
pub use train::{trace_grad, trace_loss, trace_probe, trace_step};

/// Why a step cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The operands of an op do not fit.
    #[error("the model does not trace: {0}")]
    Trace(#[from] hlo::Error),
    /// The graph would lose lockstep or breaks another invariant.
    #[error("the step is rejected: {0}")]
    Verify(#[from] hlo::VerifyError),
    /// The optimizer does not fit the model.
    #[error(transparent)]
    Optimizer(#[from] InvalidPattern),
    /// Replicas that take local steps would wait for each other in each of them.
    #[error(
        "with sync.every above 1 replicas along mesh.data do not communicate between outer steps, \
         but a layer of the model does: batch norm over examples of several replicas; set \
         model.batch_norm_group so that a group is on one replica, or sync.every = 1"
    )]
    LocalCollective,
    /// A parameter cannot be sharded as its layout requires.
    #[error("the parameter `{path}` cannot be sharded: {source}")]
    Shard {
        /// Its path.
        path: String,
        /// The dim that does not divide evenly.
        source: hlo::UnevenShard,
    },
}

/// Traces and verifies the programs of a run. They are not simplified, which takes most of the time
/// of tracing them and cannot fail.
///
/// # Errors
/// If the model does not trace, or the optimizer or the mesh does not fit it.
pub fn check_programs(step: &DeclaredStep<'_>) -> Result<(), StepError> {
    verify(&train::step_as_traced(step)?)?;
    verify(&init::init_as_traced(step)?)?;
    verify(&eval::eval_as_traced(step)?.0)?;
    verify(&proof::proof_as_traced(step.mesh(), step.leaves())?)?;
    Ok(())
}

/// Verifies a traced graph and removes dead nodes.
fn finish(graph: Graph) -> Result<Graph, StepError> {
    verify(&graph)?;
    // The marks go first: they would keep common subexpressions apart.
    let graph = passes::simplify(&rewrites::without_block_boundaries(&graph));
    debug_assert_eq!(verify(&graph), Ok(()));
    Ok(graph)
}

impl DeclaredStep<'_> {
    /// [`finish`] of a graph that runs the model: where parameters are gathered at their use, their
    /// gathers are timed by the model's blocks.
    fn finish(&self, graph: Graph) -> Result<Graph, StepError> {
        if !self.spec.plan.gathers_at_use() {
            return finish(graph);
        }
        verify(&graph)?;
        let graph = rewrites::tie_gathers(&passes::simplify(&graph));
        debug_assert_eq!(verify(&graph), Ok(()));
        Ok(graph)
    }
}
