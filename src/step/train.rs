//! The graphs of training: loss, gradient, step.

use hlo::random::Key;
use hlo::{DType, Graph, Reduction, Tensor, TensorType, Tracer, Tree, grad, trace, vjp};
use models::{Batch, Scope, Training};

use super::declare::StepParam;
use super::finite::{first_nonfinite, recompute_if};
use super::{
    DeclaredStep, LEARNING_RATE, METRICS_OUTPUT, MODEL_STATE, NUM_SKIPPED, OPT_STATE, PARAMS,
    REPLICA_LOSS, SEED, STEP, StepError, StepSpec,
};
use crate::config::OnNonfinite;
use crate::optim::{Context, global_norm};

/// The elements of the step's `metrics` output, in order: `[5]` of the parameters' dtype, the same
/// on every replica. The loss is the mean over the global batch; `num_skipped` counts the updates
/// skipped so far; `nonfinite_leaf` is 1 plus the index of the first leaf of the state with a next
/// value that is not finite, or 0 if all are finite.
pub const METRICS: [&str; 5] = ["loss", "grad_norm", "weight", "num_skipped", "nonfinite_leaf"];

/// The mean loss of a batch: the state without `opt_state`, seed, batch -> loss.
///
/// # Errors
/// If the model does not trace.
pub fn trace_loss(step: &DeclaredStep<'_>) -> Result<Graph, StepError> {
    let (spec, types) = (&step.spec, without_optimizer(step.types()));
    step.finish(trace(spec.mesh, |t| {
        let inputs = Inputs::new(t, spec, &types);
        let sums = accumulate(step, &inputs, false);
        t.output("loss", global(spec, sums.loss) / global(spec, sums.weight));
    })?)
}

/// The gradient of the mean loss of a batch: the state without `opt_state`, seed, batch -> loss,
/// gradients.
///
/// # Errors
/// If the model does not trace or would lose lockstep.
pub fn trace_grad(step: &DeclaredStep<'_>) -> Result<Graph, StepError> {
    let types = without_optimizer(step.types());
    step.finish(trace(step.mesh(), |t| {
        let inputs = Inputs::new(t, &step.spec, &types);
        let gradients = gradients(step, &inputs);
        t.output("loss", gradients.loss);
        for ((path, gradient), param) in gradients.mean.iter().zip(inputs.params().values()) {
            t.output_varying(format!("gradients.{path}"), *gradient, param.varying());
        }
    })?)
}

/// One step of training: state, seed, batch, learning rate -> state, metrics, replica_loss.
///
/// The state's buffers are donated to the next state. If the loss, the norm of the gradients or any
/// value of the next state is not finite, the state is unchanged except for `step` and
/// `num_skipped`. With [`OnNonfinite::Stop`] all later steps leave it unchanged too, so that
/// launches already enqueued have no effect. All replicas decide from the same values, so they
/// decide alike. `replica_loss` is each replica's own mean loss, not reduced: it shows which
/// replica was not finite.
///
/// # Errors
/// If the model does not trace or would lose lockstep.
pub fn trace_step(step: &DeclaredStep<'_>) -> Result<Graph, StepError> {
    step.finish(step_as_traced(step)?)
}

/// [`trace_step`] before the graph is simplified.
pub(super) fn step_as_traced(step: &DeclaredStep<'_>) -> Result<Graph, StepError> {
    let spec = &step.spec;
    Ok(trace(spec.mesh, |t| {
        let inputs = Inputs::new(t, spec, step.types());
        let learning_rate = t.input(LEARNING_RATE, TensorType::new(DType::F32, &[]));
        let gradients = gradients(step, &inputs);
        let Gradients { loss, weight, replica_loss, .. } = gradients;
        let no_parameters = || t.scalar(spec.precision.params, 0.0);
        let grad_norm = global_norm(&gradients.mean).unwrap_or_else(no_parameters);

        let next = next_state(step, &inputs, learning_rate, &gradients);
        let Gradients { totals, mean, scale, .. } = &gradients;
        let next_if = |apply| recompute_if(apply, &next, mean, totals, *scale);
        let is_mean_finite = loss.is_finite().and(grad_norm.is_finite());
        // The test depends on the norm of all gradients. If a leaf were tested as soon as its
        // gradient is known, compilers would overlap the all_reduces with the tests instead of the
        // backward pass. The barriers keep XLA's CPU backend from computing `apply` again for each
        // leaf, from the tests of all leaves.
        let nonfinite_leaf = first_nonfinite(t, &next_if(is_mean_finite)).fusion_barrier();
        let finite = is_mean_finite.and(nonfinite_leaf.equal(0.0));
        let apply = match spec.on_nonfinite {
            OnNonfinite::Skip => finite,
            OnNonfinite::Stop => finite.and(inputs.num_skipped.equal(0.0)),
        };
        let apply = apply.fusion_barrier();
        for (path, next) in next_if(apply).iter() {
            let apply = apply.vary(next.varying());
            t.next_state(path, apply.select(*next, inputs.state[path]));
        }
        let num_skipped = inputs.num_skipped + (!apply).convert(DType::U32);
        t.next_state(STEP, inputs.step + 1.0);
        t.next_state(NUM_SKIPPED, num_skipped);

        let [first, rest @ ..] = [loss, grad_norm, weight, num_skipped, nonfinite_leaf]
            .map(|metric| metric.convert(spec.precision.params).reshape(&[1]));
        t.output(METRICS_OUTPUT, first.concatenate(&rest, 0));
        t.output_varying(REPLICA_LOSS, replica_loss, spec.policy.batch_axes());
    })?)
}

/// The next value of each leaf except the counters.
fn next_state<'g>(
    step: &DeclaredStep<'_>,
    inputs: &Inputs<'g>,
    learning_rate: Tensor<'g>,
    gradients: &Gradients<'g>,
) -> Tree<Tensor<'g>> {
    let params = inputs.params();
    let num_updates = inputs.step - inputs.num_skipped;
    let specs = step.leaves().subtree(PARAMS);
    let context = Context { params: params.clone(), specs, num_updates, learning_rate };
    let mut opt_state = inputs.state.subtree(OPT_STATE);
    let updates = step.spec.optimizer.update(gradients.mean.clone(), &mut opt_state, &context);
    let mut next =
        params.map(|path, param| apply_update(path, *param, updates[path])).prefixed(PARAMS);
    let model_state = inputs.state.subtree(MODEL_STATE);
    let model_state = model_state.map(|path, before| {
        *before + (gradients.observed[path] - *before) * step.running_means[path].momentum
    });
    next.extend(model_state.prefixed(MODEL_STATE));
    next.extend(opt_state.prefixed(OPT_STATE));
    next
}

/// Adds the update to the parameter. An update that varies over more axes than the parameter would
/// break lockstep, so it is rejected here, where the error can name the parameter.
fn apply_update<'g>(path: &str, param: Tensor<'g>, update: Tensor<'g>) -> Tensor<'g> {
    let excess = update.varying().minus(param.varying());
    if !excess.is_empty() {
        let message = format!(
            "`{PARAMS}.{path}` would lose lockstep: its update may differ between replicas over \
             {excess}"
        );
        update.reject("update", message);
    }
    param + update
}

fn without_optimizer(types: &Tree<TensorType>) -> Tree<TensorType> {
    let is_kept = |path: &&str| !path.starts_with(OPT_STATE);
    types.paths().filter(is_kept).map(|path| (path.to_owned(), types[path].clone())).collect()
}

/// The inputs shared by loss, gradient and step.
struct Inputs<'g> {
    state: Tree<Tensor<'g>>,
    step: Tensor<'g>,
    num_skipped: Tensor<'g>,
    batch: Batch<'g>,
    training: Training<'g>,
}

impl<'g> Inputs<'g> {
    fn new(t: &'g Tracer, spec: &StepSpec<'_>, types: &Tree<TensorType>) -> Self {
        let state = types.map(|path, ty| t.input(path, ty.clone()));
        let (step, num_skipped) = (state[STEP], state[NUM_SKIPPED]);
        let seed = t.input(SEED, TensorType::new(DType::U32, &[2]));
        let batch = spec.batch_inputs(t, spec.batch_per_replica());
        let batch_axes = spec.policy.batch_axes();
        let shard = t.replica_id(batch_axes);
        let training = Training {
            key: Key::from_seed(seed).fold_in(step),
            first_example: shard * spec.batch_per_replica() as f64,
            num_examples: spec.microbatch,
            batch_axes,
        };
        Self { training, state, step, num_skipped, batch }
    }

    fn params(&self) -> Tree<Tensor<'g>> {
        self.state.subtree(PARAMS)
    }
}

/// Gradients of the global batch's mean loss, with the loss and related values.
struct Gradients<'g> {
    /// Sums over the global batch, under the parameters' paths.
    totals: Tree<Tensor<'g>>,
    /// `mean = totals * scale`: 1 / the weight of the global batch.
    scale: Tensor<'g>,
    /// The gradients of the mean loss.
    mean: Tree<Tensor<'g>>,
    loss: Tensor<'g>,
    weight: Tensor<'g>,
    /// This replica's own mean loss.
    replica_loss: Tensor<'g>,
    /// Means over replicas and microbatches, under the running means' paths.
    observed: Tree<Tensor<'g>>,
}

fn gradients<'g>(step: &DeclaredStep<'_>, inputs: &Inputs<'g>) -> Gradients<'g> {
    let spec = &step.spec;
    let Sums { loss, weight, step_params, gradients, observed } = accumulate(step, inputs, true);
    // This inserts the reduction of the gradients: `Policy::for_step` gives each replica its copy
    // of a parameter with `vary`, and the VJP of `vary` sums the gradients of the copies.
    let params = inputs.params();
    let state_params: Vec<_> = params.values().copied().collect();
    // Nothing is reduced for a leaf that is not trained.
    let is_trained = |path: &&str| !step.freezes(path);
    let cotangents = params.paths().zip(step_params.into_iter().zip(gradients));
    let cotangents = cotangents.filter(|(path, _)| is_trained(path));
    let cotangents: Vec<_> = cotangents.map(|(_, cotangent)| cotangent).collect();
    let totals = vjp(&cotangents, &state_params);
    let total_weight = global(spec, weight);
    let scale = 1.0 / total_weight;
    let totals = params.paths().zip(totals).map(|(path, total)| {
        let total = spec.optimizer.mask_gradient(path, step.param_leaf(path), total);
        (path.to_owned(), total)
    });
    let totals: Tree<_> = totals.collect();
    Gradients {
        mean: totals.map(|_, total| *total * scale.vary(total.varying())),
        totals,
        scale,
        loss: global(spec, loss) * scale,
        weight: total_weight,
        replica_loss: (loss / weight).vary(spec.policy.batch_axes()),
        observed: observed_everywhere(spec, inputs, &observed),
    }
}

/// Means over replicas and microbatches, from each replica's sums, in one collective for all of
/// them.
fn observed_everywhere<'g>(
    spec: &StepSpec<'_>,
    inputs: &Inputs<'g>,
    sums: &[Tensor<'g>],
) -> Tree<Tensor<'g>> {
    let paths = inputs.state.subtree(MODEL_STATE);
    let Some(first) = sums.first() else { return Tree::new() };
    let axes = spec.policy.batch_axes();
    let sums: Vec<_> = sums.iter().map(|sum| sum.vary(axes)).collect();
    let totals = first.tracer().all_reduce(&sums, Reduction::Sum, axes);
    let count = (spec.mesh.group_size(axes) * spec.num_microbatches) as f64;
    paths.paths().map(str::to_owned).zip(totals.into_iter().map(|total| total / count)).collect()
}

/// The sum over the global batch, from each replica's sum over its part.
fn global<'g>(spec: &StepSpec<'_>, local: Tensor<'g>) -> Tensor<'g> {
    let axes = local.varying().intersection(spec.policy.batch_axes());
    if axes.is_empty() { local } else { local.all_reduce(Reduction::Sum, axes) }
}

/// Sums over a replica's part of the batch.
struct Sums<'g> {
    loss: Tensor<'g>,
    weight: Tensor<'g>,
    /// The tensors that gradients are taken with respect to.
    step_params: Vec<Tensor<'g>>,
    /// Gradients of `loss` with respect to `step_params`, before the reduction that is the VJP of
    /// `Policy::for_step`.
    gradients: Vec<Tensor<'g>>,
    /// The observations of each running mean, added up over microbatches.
    observed: Vec<Tensor<'g>>,
}

/// Runs the microbatches one after the other and adds up their sums.
fn accumulate<'g>(step: &DeclaredStep<'_>, inputs: &Inputs<'g>, differentiate: bool) -> Sums<'g> {
    let spec = &step.spec;
    let Inputs { batch, training, .. } = inputs;
    let t = inputs.step.tracer();
    let params = step.params_in_step(&inputs.params());
    let step_params: Vec<_> = params.values().map(|param| param.tensor).collect();
    let model_state = inputs.state.subtree(MODEL_STATE).map(|_, mean| mean.ty());
    if spec.num_microbatches == 1 {
        let sums = microbatch(step, &params, &model_state, batch, *training, differentiate);
        return Sums::new(&sums, step_params, model_state.len());
    }

    let num_differentiated = if differentiate { step_params.len() } else { 0 };
    let num_sums = 2 + num_differentiated + model_state.len();
    let zero_like = |x: &Tensor<'g>| t.full(x.dtype(), &x.shape(), 0.0);
    let mut carried = vec![t.scalar(spec.precision.params, 0.0); 2];
    carried.extend(step_params[..num_differentiated].iter().map(zero_like));
    carried.extend(model_state.values().map(|ty| t.full(ty.dtype, &ty.dims, 0.0)));
    // The rest is carried unchanged: values from outside that the body needs.
    carried.extend(params.values().map(|param| param.once_per_step.unwrap_or(param.tensor)));
    let [key_high, key_low] = training.key.words();
    carried.extend([key_high, key_low, training.first_example]);
    let cut = |x: &Tensor<'g>| {
        let sizes = [&[spec.num_microbatches, spec.microbatch], &x.shape()[1..]].concat();
        x.reshape(&sizes)
    };
    carried.extend(batch.fields.values().map(cut));

    let results = t.fori_loop(spec.num_microbatches as u32, &carried, |index, carried| {
        let (sums, outer) = carried.split_at(num_sums);
        let (values, rest) = outer.split_at(params.len());
        let params = params.iter().zip(values);
        let params = params.map(|((path, param), value)| (path.to_owned(), param.in_loop(*value)));
        let params = params.collect();
        let [key_high, key_low, first_example] = [rest[0], rest[1], rest[2]];
        let training = Training {
            key: Key::from_words([key_high, key_low]),
            first_example: first_example + index * spec.microbatch as f64,
            num_examples: spec.microbatch,
            batch_axes: spec.policy.batch_axes(),
        };
        let fields = batch.fields.paths().map(str::to_owned).zip(&rest[3..]);
        let fields = fields.map(|(name, x)| (name, x.index_leading(index))).collect();
        let weight = spec.ones(index.tracer(), spec.microbatch);
        let batch = Batch { fields, weight };
        let more = microbatch(step, &params, &model_state, &batch, training, differentiate);
        let next = sums.iter().zip(more).map(|(sum, more)| *sum + more);
        next.chain(outer.iter().copied()).collect()
    });
    Sums::new(&results[..num_sums], step_params, model_state.len())
}

impl<'g> Sums<'g> {
    /// Splits the summed results of [`microbatch`].
    fn new(sums: &[Tensor<'g>], step_params: Vec<Tensor<'g>>, num_observed: usize) -> Self {
        let (gradients, observed) = sums[2..].split_at(sums.len() - 2 - num_observed);
        let (gradients, observed) = (gradients.to_vec(), observed.to_vec());
        Self { loss: sums[0], weight: sums[1], step_params, gradients, observed }
    }
}

/// Loss, weight, gradients if `differentiate`, and observed values of the running means, of one
/// microbatch.
fn microbatch<'g>(
    step: &DeclaredStep<'_>,
    params: &Tree<StepParam<'g>>,
    model_state: &Tree<TensorType>,
    batch: &Batch<'g>,
    training: Training<'g>,
    differentiate: bool,
) -> Vec<Tensor<'g>> {
    let (t, spec) = (batch.weight.tracer(), &step.spec);
    let scope = Scope::bind(t, spec.precision, step.params_in_microbatch(params), Some(training))
        .with_param_use(step.at_use())
        .with_attention(spec.attention);
    let loss = spec.model.loss(&scope, batch);
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
    let mut sums = vec![loss.sum.convert(dtype), weight.convert(dtype)];
    if differentiate {
        let wrt: Vec<_> = params.values().map(|param| param.tensor).collect();
        sums.extend(grad(loss.sum, &wrt));
    }
    let observed = scope.observed();
    sums.extend(model_state.iter().map(|(path, ty)| {
        observed.get(path).copied().unwrap_or_else(|| {
            let missing = t.full(ty.dtype, &ty.dims, 0.0);
            missing.reject("observe", format!("training does not observe `{path}`"));
            missing
        })
    }));
    sums
}
