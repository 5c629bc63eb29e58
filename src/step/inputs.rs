//! The inputs of the graphs of training.

use hlo::random::Key;
use hlo::{DType, Tensor, TensorType, Tracer, Tree};
use models::{Batch, Training};

use super::{BatchParts, DeclaredStep, NUM_SKIPPED, ON_TIME, SEED, STEP, StateSection, local};

/// The inputs shared by loss, gradient and step.
pub(super) struct StepInputs<'g> {
    /// The leaves of the state.
    pub leaves: Tree<Tensor<'g>>,
    /// The leaves that the step reads: of a replica's own in a run with local steps.
    pub state: Tree<Tensor<'g>>,
    pub step: Tensor<'g>,
    pub num_skipped: Tensor<'g>,
    pub batch: Batch<'g>,
    /// Index, in the global batch, of the first example of this replica's first microbatch: a u32
    /// scalar, beyond the end of the batch if that microbatch is surplus.
    pub first_example: Tensor<'g>,
    /// In steps in which batches may be late: see [`ON_TIME`], a u32 scalar.
    pub on_time: Option<Tensor<'g>>,
    pub training: Training<'g>,
    /// The parts of the batch whose gradients are measured.
    pub parts: Option<BatchParts>,
}

impl<'g> StepInputs<'g> {
    pub fn new(t: &'g Tracer, declared: &DeclaredStep<'_>, types: &Tree<TensorType>) -> Self {
        let spec = &declared.spec;
        let leaves = types.map(|path, ty| t.input(path, ty.clone()));
        let state = match spec.local_steps {
            None => leaves.clone(),
            Some(_) => local::begin(declared, &leaves),
        };
        let (step, num_skipped) = (state[STEP], state[NUM_SKIPPED]);
        let seed = t.input(SEED, TensorType::new(DType::U32, &[2]));
        let mut batch = spec.batch_inputs(t, spec.batch_per_replica());
        let shard = t.replica_id(spec.plan.batch_axes());
        let first_example = shard * spec.batch_per_replica() as f64;
        let on_time = spec.skips_late.then(|| {
            let ty = TensorType::new(DType::U32, &[]).varying(spec.plan.batch_axes());
            t.input(ON_TIME, ty)
        });
        let first_example = match on_time {
            Some(on_time) => {
                let end = first_example.full_like(spec.end_of_batch());
                on_time.greater(0.0).select(first_example, end)
            }
            None => first_example,
        };
        // With several microbatches, each has weights of its own.
        if spec.num_microbatches == 1 && spec.has_surplus() {
            batch.weight = spec.weights(t, || first_example);
        }
        let training = spec.training(Key::from_seed(seed).fold_in(step), first_example);
        let parts = None;
        Self { first_example, on_time, training, parts, leaves, state, step, num_skipped, batch }
    }

    pub fn params(&self) -> Tree<Tensor<'g>> {
        StateSection::Params.leaves(&self.state)
    }
}
