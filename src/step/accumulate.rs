//! Accumulation: the microbatches of a replica's part of the batch, and the sums over them.

use hlo::random::Key;
use hlo::{AxisSet, DType, Tensor, TensorType, Tree, grad};
use models::{Batch, Scope, Training};

use super::batch_parts::square_by_weight;
use super::declare::StepParam;
use super::inputs::StepInputs;
use super::{BatchParts, DeclaredStep, StateSection};

/// Sums over examples of this replica.
pub(super) struct Sums<'g> {
    pub loss: Tensor<'g>,
    pub weight: Tensor<'g>,
    /// Gradients of `loss` with respect to the parameters in the step, before the reduction that is
    /// the VJP of [`ParallelPlan::for_step`](crate::parallel::ParallelPlan::for_step). None if they
    /// are not asked for.
    pub gradients: Vec<Tensor<'g>>,
    /// The observations of each running mean, added up over microbatches that are not surplus.
    pub observed: Vec<Tensor<'g>>,
    /// The squared norms of the gradients of each microbatch, divided by their weights, where the
    /// parts of the batch that are measured are microbatches.
    pub squares: Option<Tensor<'g>>,
}

impl<'g> Sums<'g> {
    fn values(&self) -> impl Iterator<Item = Tensor<'g>> {
        let Self { loss, weight, gradients, observed, squares } = self;
        [*loss, *weight].into_iter().chain(gradients.iter().chain(observed).chain(squares).copied())
    }

    /// As many sums as in `self`, of these values.
    fn with<'b>(&self, values: &[Tensor<'b>]) -> Sums<'b> {
        let (gradients, rest) = values[2..].split_at(self.gradients.len());
        let (observed, squares) = rest.split_at(self.observed.len());
        let (gradients, observed) = (gradients.to_vec(), observed.to_vec());
        let squares = squares.first().copied();
        Sums { loss: values[0], weight: values[1], gradients, observed, squares }
    }
}

/// How the microbatches are run and their sums added up.
pub(super) trait Accumulate {
    /// The sums over a replica's part of the batch, from the parameters in the step. `is_training`
    /// asks for gradients.
    fn sums<'g>(
        &self,
        step: &DeclaredStep<'_>,
        inputs: &StepInputs<'g>,
        params: &Tree<StepParam<'g>>,
        is_training: bool,
    ) -> Sums<'g>;
}

/// One microbatch after the other, each through all layers.
pub(super) struct Sequential;

impl Accumulate for Sequential {
    fn sums<'g>(
        &self,
        step: &DeclaredStep<'_>,
        inputs: &StepInputs<'g>,
        params: &Tree<StepParam<'g>>,
        is_training: bool,
    ) -> Sums<'g> {
        let spec = &step.spec;
        let StepInputs { batch, training, .. } = inputs;
        let model_state = StateSection::ModelState.leaves(&inputs.state).map(|_, mean| mean.ty());
        if spec.num_microbatches == 1 {
            return microbatch(step, params, &model_state, batch, *training, is_training);
        }
        let start = Carry::start(step, inputs, params, &model_state, is_training);
        let of_all = inputs.step.tracer().fori_loop(
            spec.num_microbatches as u32,
            &start.values(),
            |index, carried| {
                let carry = start.with(carried);
                let params = params.iter().zip(&carry.params);
                let params =
                    params.map(|((path, param), value)| (path.to_owned(), param.in_loop(*value)));
                let params = params.collect();
                let first_example = carry.first_example + index * spec.microbatch as f64;
                let training = spec.training(Key::from_words(carry.key), first_example);
                let fields = carry.fields.map(|_, x| x.index_leading(index));
                let weight = spec.weights(index.tracer(), || first_example);
                let batch = Batch { fields, weight };
                let more = microbatch(step, &params, &model_state, &batch, training, is_training);
                let square = carry
                    .sums
                    .squares
                    .map(|_| square_by_weight(step, &more.gradients, more.weight, AxisSet::EMPTY));
                let more = Sums { squares: square, ..more };
                let sums: Vec<_> =
                    carry.sums.values().zip(more.values()).map(|(sum, more)| sum + more).collect();
                Carry { sums: carry.sums.with(&sums), ..carry }.values()
            },
        );
        start.with(&of_all).sums
    }
}

/// What the loop over microbatches carries: the sums, and unchanged the values from outside that
/// its body needs.
struct Carry<'g> {
    sums: Sums<'g>,
    /// What [`StepParam::in_loop`] takes.
    params: Vec<Tensor<'g>>,
    key: [Tensor<'g>; 2],
    first_example: Tensor<'g>,
    /// The fields of the batch, cut into microbatches: `[num_microbatches, microbatch, ..]`.
    fields: Tree<Tensor<'g>>,
}

impl<'g> Carry<'g> {
    fn start(
        step: &DeclaredStep<'_>,
        inputs: &StepInputs<'g>,
        params: &Tree<StepParam<'g>>,
        model_state: &Tree<TensorType>,
        is_training: bool,
    ) -> Self {
        let (spec, t) = (&step.spec, inputs.step.tracer());
        let none = t.scalar(spec.precision.params, 0.0);
        let zero_like = |param: &StepParam<'g>| {
            let x = param.tensor;
            t.full(x.dtype(), &x.shape(), 0.0)
        };
        let gradients = match is_training {
            true => params.values().map(zero_like).collect(),
            false => vec![],
        };
        let observed = model_state.values().map(|ty| t.full(ty.dtype, &ty.dims, 0.0)).collect();
        let has_squares = is_training && matches!(inputs.parts, Some(BatchParts::Microbatches(_)));
        let squares = has_squares.then(|| none.convert(none.dtype().accumulation()));
        Self {
            sums: Sums { loss: none, weight: none, gradients, observed, squares },
            params: params.values().map(|p| p.once_per_step.unwrap_or(p.tensor)).collect(),
            key: inputs.training.key.words(),
            first_example: inputs.first_example,
            fields: spec.microbatches(&inputs.batch.fields),
        }
    }

    fn values(&self) -> Vec<Tensor<'g>> {
        let Self { sums, params, key, first_example, fields } = self;
        let rest = params.iter().chain(key).chain([first_example]).chain(fields.values());
        sums.values().chain(rest.copied()).collect()
    }

    /// Another carry of the same structure.
    fn with<'b>(&self, values: &[Tensor<'b>]) -> Carry<'b> {
        let (sums, rest) = values.split_at(self.sums.values().count());
        let (params, rest) = rest.split_at(self.params.len());
        let fields = self.fields.paths().map(str::to_owned).zip(rest[3..].iter().copied());
        Carry {
            sums: self.sums.with(sums),
            params: params.to_vec(),
            key: [rest[0], rest[1]],
            first_example: rest[2],
            fields: fields.collect(),
        }
    }
}

/// The sums of one microbatch.
fn microbatch<'g>(
    step: &DeclaredStep<'_>,
    params: &Tree<StepParam<'g>>,
    model_state: &Tree<TensorType>,
    batch: &Batch<'g>,
    training: Training<'g>,
    is_training: bool,
) -> Sums<'g> {
    let (t, spec) = (batch.weight.tracer(), &step.spec);
    let scope = Scope::bind(t, spec.precision, step.params_in_microbatch(params), Some(training))
        .with_param_use(step.at_use())
        .with_options(spec.layer_options());
    let loss = spec.model.loss(&scope, batch);
    if spec.has_surplus() && !loss.weight.is_computed_from(batch.weight) {
        let message = "the loss must count each example by its weight in the batch: with \
                       train.microbatch, replicas run some microbatches with weight 0";
        loss.weight.reject("loss", message);
    }
    // A constant weight counts this replica's examples.
    let weight = match loss.weight.is_gradient_free() {
        true => loss.weight.vary(loss.sum.varying()),
        false => loss.weight,
    };
    if weight.varying() != loss.sum.varying() {
        let message = "the sum of the losses and the sum of the weights must vary over the same \
                       axes: both are sums over this replica's examples, or both over the global \
                       batch";
        weight.reject("loss", message);
    }
    let dtype = spec.precision.params;
    let wrt: Vec<_> = params.values().map(|param| param.tensor).collect();
    let (of_loss, of_weight) = (loss.sum.convert(dtype), weight.convert(dtype));
    let gradients = if is_training { grad(loss.sum, &wrt) } else { vec![] };
    let observed = scope.observed();
    // Of a surplus microbatch nothing counts.
    let counted = |observed: Tensor<'g>| match spec.has_surplus() {
        true => {
            observed
                * batch.weight.index_leading(t.scalar(DType::U32, 0.0)).convert(observed.dtype())
        }
        false => observed,
    };
    let observed = model_state.iter().map(|(path, ty)| {
        observed.get(path).copied().map(counted).unwrap_or_else(|| {
            let missing = t.full(ty.dtype, &ty.dims, 0.0);
            missing.reject("observe", format!("training does not observe `{path}`"));
            missing
        })
    });
    let observed = observed.collect();
    Sums { loss: of_loss, weight: of_weight, gradients, observed, squares: None }
}
