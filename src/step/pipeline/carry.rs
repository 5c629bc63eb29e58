//! What the ticks of a pipeline read and carry.

use hlo::random::Key;
use hlo::{Axis, Tensor, Tree};
use models::{Batch, Scope, Stages};

use crate::step::DeclaredStep;
use crate::step::declare::StepParam;
use crate::step::inputs::StepInputs;

/// What all ticks read.
#[derive(Clone)]
pub(super) struct TickInputs<'g> {
    /// Parameters of embedding and head, under their paths in the model.
    pub(super) outer: Tree<Tensor<'g>>,
    /// This stage's rows of the parameters of blocks, `[v, n, ..]`.
    pub(super) blocks: Vec<Tensor<'g>>,
    pub(super) key: Key<'g>,
    /// Of the first microbatch; see [`StepInputs::first_example`].
    pub(super) first_example: Tensor<'g>,
    /// The fields of the batch, cut into microbatches: `[num_microbatches, microbatch, ..]`.
    pub(super) fields: Tree<Tensor<'g>>,
}

impl<'g> TickInputs<'g> {
    #[track_caller]
    pub(super) fn new(
        step: &DeclaredStep<'_>,
        inputs: &StepInputs<'g>,
        params: &Tree<StepParam<'g>>,
    ) -> Self {
        let spec = &step.spec;
        let (mut outer, mut blocks) = (Tree::new(), vec![]);
        for (path, param) in params.iter() {
            let value = param.once_per_step.unwrap_or(param.tensor);
            if step.params[path].is_pipelined {
                blocks.push(Stages::of_stage(value));
            } else {
                outer.insert(path, value.vary(Axis::Pipeline));
            }
        }
        // Stages index them by microbatches of their own.
        let of_stages = |x: &Tensor<'g>| x.stop_gradient().vary(Axis::Pipeline);
        Self {
            outer,
            blocks,
            key: inputs.training.key,
            first_example: inputs.first_example,
            fields: spec.microbatches(&inputs.batch.fields).map(|_, x| of_stages(x)),
        }
    }

    pub(super) fn values(&self) -> impl Iterator<Item = Tensor<'g>> {
        let Self { outer, blocks, key, first_example, fields } = self;
        let rest = key.words().into_iter().chain([*first_example]);
        outer.values().chain(blocks).copied().chain(rest).chain(fields.values().copied())
    }

    /// The same with these values.
    pub(super) fn with<'b>(&self, values: &mut impl Iterator<Item = Tensor<'b>>) -> TickInputs<'b> {
        let mut next = || values.next().unwrap_or_else(|| unreachable!("as many as before"));
        TickInputs {
            outer: self.outer.map(|_, _| next()),
            blocks: self.blocks.iter().map(|_| next()).collect(),
            key: Key::from_words([next(), next()]),
            first_example: next(),
            fields: self.fields.map(|_, _| next()),
        }
    }

    /// The examples of a microbatch.
    #[track_caller]
    pub(super) fn batch(&self, step: &DeclaredStep<'_>, microbatch: Tensor<'g>) -> Batch<'g> {
        let fields = self.fields.map(|_, x| x.index_leading(microbatch));
        let first_example = || self.first_example(step, microbatch);
        Batch { fields, weight: step.spec.weights(microbatch.tracer(), first_example) }
    }

    /// Where a microbatch begins in the global batch.
    #[track_caller]
    pub(super) fn first_example(
        &self,
        step: &DeclaredStep<'_>,
        microbatch: Tensor<'g>,
    ) -> Tensor<'g> {
        self.first_example + microbatch * step.spec.microbatch as f64
    }

    /// The scope of embedding and head for a microbatch.
    #[track_caller]
    pub(super) fn scope(&self, step: &DeclaredStep<'_>, microbatch: Tensor<'g>) -> Scope<'g> {
        let spec = &step.spec;
        let training = spec.training(self.key, self.first_example(step, microbatch));
        let t = microbatch.tracer();
        Scope::bind(t, spec.precision, self.outer.clone(), Some(training))
            .with_options(spec.layer_options())
    }
}

/// What the ticks carry.
pub(super) struct Carry<'g> {
    pub(super) given: TickInputs<'g>,
    /// Sums over examples, and over the stages when all are added up.
    pub(super) loss: Tensor<'g>,
    pub(super) weight: Tensor<'g>,
    pub(super) outer_sums: Tree<Tensor<'g>>,
    pub(super) block_sums: Vec<Tensor<'g>>,
    /// What this stage received from the previous one.
    pub(super) x: Tensor<'g>,
    /// Results for the head, `[results, ..]`.
    pub(super) results: Tensor<'g>,
    /// The gradient to send to the previous stage.
    pub(super) of_x: Tensor<'g>,
    /// On the last stage, the gradient of the result of the last block.
    pub(super) of_result: Tensor<'g>,
    /// The residuals of each microbatch that is kept, `[slots, ..]`.
    pub(super) kept: Vec<Tensor<'g>>,
}

impl<'g> Carry<'g> {
    pub(super) fn values(&self) -> Vec<Tensor<'g>> {
        let Self { given, loss, weight, outer_sums, block_sums, .. } = self;
        let rest = [*loss, *weight, self.x, self.results, self.of_x, self.of_result];
        let sums = outer_sums.values().chain(block_sums).chain(&self.kept).copied();
        given.values().chain(rest).chain(sums).collect()
    }

    /// Another carry of the same structure.
    pub(super) fn with<'b>(&self, values: &[Tensor<'b>]) -> Carry<'b> {
        let mut values = values.iter().copied();
        let given = self.given.with(&mut values);
        let mut next = || values.next().unwrap_or_else(|| unreachable!("as many as before"));
        let [loss, weight, x, results, of_x, of_result] = std::array::from_fn(|_| next());
        Carry {
            given,
            loss,
            weight,
            x,
            results,
            of_x,
            of_result,
            outer_sums: self.outer_sums.map(|_, _| next()),
            block_sums: self.block_sums.iter().map(|_| next()).collect(),
            kept: self.kept.iter().map(|_| next()).collect(),
        }
    }
}
