//! The graphs of training: loss, gradient, step.

use hlo::{DType, Graph, Reduction, Tensor, TensorType, Tree, trace};

use super::accumulate::{Accumulate, Sequential, Sums};
use super::batch_parts::square_by_weight;
use super::declare::StepParam;
use super::finite::{first_nonfinite, recompute_if};
use super::inputs::StepInputs;
use super::metrics::{COMPUTED_METRICS, StepValues};
use super::observed::{StepDiagnostics, counts_of_rows, norms_of_rows};
use super::pipeline::Pipeline;
use super::{
    AWAITED, BatchParts, DeclaredStep, LATE, LATE_SHARDS, LAYER_COUNTS, LAYER_NORMS, LEARNING_RATE,
    METRICS_OUTPUT, NUM_SKIPPED, PART_SQUARES, REPLICA_LOSS, STEP, StateSection, StepError,
    StepSpec, local,
};
use crate::config::OnNonfinite;
use crate::optim::{Context, global_norm};

/// The mean loss of a batch: the state without `opt_state`, seed, batch -> loss.
///
/// # Errors
/// If the model does not trace.
pub fn trace_loss(step: &DeclaredStep<'_>) -> Result<Graph, StepError> {
    let (spec, types) = (&step.spec, without_optimizer(step.types()));
    step.finish(trace(spec.plan.mesh, |t| {
        let inputs = StepInputs::new(t, step, &types);
        let params = step.params_in_step(&inputs.params());
        let sums = Sequential.sums(step, &inputs, &params, false);
        let loss = global(spec, sums.loss) / global(spec, sums.weight);
        t.output_varying("loss", loss, spec.own_axes());
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
        let inputs = StepInputs::new(t, step, &types);
        let gradients = gradients(step, &inputs);
        t.output_varying("loss", gradients.loss, step.spec.own_axes());
        for ((path, gradient), param) in gradients.mean.iter().zip(inputs.params().values()) {
            t.output_varying(format!("gradients.{path}"), *gradient, param.varying());
        }
    })?)
}

/// What devices compute for a microbatch, to measure them: the state without `opt_state`, seed,
/// batch -> probe, a scalar that depends on the loss and on all gradients.
///
/// # Errors
/// As [`trace_grad`].
pub fn trace_probe(step: &DeclaredStep<'_>) -> Result<Graph, StepError> {
    let types = without_optimizer(step.types());
    step.finish(trace(step.mesh(), |t| {
        let inputs = StepInputs::new(t, step, &types);
        let gradients = gradients(step, &inputs);
        let loss = gradients.loss.convert(DType::F32);
        let specs = StateSection::Params.leaves(step.leaves());
        let norm = global_norm(&gradients.mean, &specs);
        let probe = norm.map_or(loss, |norm| loss + norm.convert(DType::F32));
        t.output_varying("probe", probe, step.spec.own_axes());
    })?)
}

/// One step of training: state, seed, batch, learning rate -> state, metrics, replica_loss.
///
/// The state's buffers are donated to the next state. If the loss, the norm of the gradients or any
/// value of the next state is not finite, the state is unchanged except for `step` and
/// `num_skipped`. With [`OnNonfinite::Stop`] all later steps leave it unchanged too, so that
/// launches already enqueued have no effect. All replicas decide from the same values, so they
/// decide alike. `replica_loss` is each replica's own mean loss, not reduced: it shows which
/// replica was not finite. It is 0 on a replica with surplus microbatches only.
///
/// With [`StepSpec::local_steps`] each replica along `data` decides for itself, and `metrics` are
/// its own.
///
/// # Errors
/// If the model does not trace or would lose lockstep, or if replicas that take local steps would
/// wait for each other in each.
pub fn trace_step(step: &DeclaredStep<'_>) -> Result<Graph, StepError> {
    step.finish(step_as_traced(step)?)
}

/// [`trace_step`] before the graph is simplified.
pub(super) fn step_as_traced(step: &DeclaredStep<'_>) -> Result<Graph, StepError> {
    step_as_observed(step, StepDiagnostics::default())
}

/// [`step_as_traced`] with what it measures besides.
pub(super) fn step_as_observed(
    step: &DeclaredStep<'_>,
    diagnostics: StepDiagnostics,
) -> Result<Graph, StepError> {
    let spec = &step.spec;
    let own_axes = spec.own_axes();
    let graph = trace(spec.plan.mesh, |t| {
        let mut inputs = StepInputs::new(t, step, step.types());
        inputs.parts = diagnostics.noise.then(|| spec.batch_parts()).flatten();
        let learning_rate = t.input(LEARNING_RATE, TensorType::new(DType::F32, &[]));
        let gradients = gradients(step, &inputs);
        let Gradients { loss, weight, replica_loss, .. } = gradients;
        let specs = StateSection::Params.leaves(step.leaves());
        let no_parameters = || t.scalar(spec.precision.params, 0.0);
        let grad_norm = global_norm(&gradients.mean, &specs).unwrap_or_else(no_parameters);

        let (next, updates) = next_state(step, &inputs, learning_rate, &gradients);
        let params = inputs.params();
        let norms = || norms_of_rows(&[&params, &gradients.mean, &updates], &specs);
        let layer_norms = diagnostics.layers.then(norms).flatten();
        let counts = || counts_of_rows(&params, &specs);
        let layer_counts = diagnostics.histograms.then(counts).flatten();
        let part_squares = gradients.part_squares;
        let Gradients { totals, mean, scale, .. } = &gradients;
        let next_if = |apply| recompute_if(apply, &next, mean, totals, *scale);
        let is_mean_finite = loss.is_finite().and(grad_norm.is_finite());
        // The test depends on the norm of all gradients. If a leaf were tested as soon as its
        // gradient is known, compilers would overlap the all_reduces with the tests instead of the
        // backward pass. The barriers keep XLA's CPU backend from computing `apply` again for each
        // leaf, from the tests of all leaves.
        let nonfinite_leaf =
            first_nonfinite(t, &next_if(is_mean_finite), own_axes).fusion_barrier();
        let finite = is_mean_finite.and(nonfinite_leaf.equal(0.0));
        let apply = match spec.on_nonfinite {
            OnNonfinite::Skip => finite,
            OnNonfinite::Stop => finite.and(inputs.num_skipped.equal(0.0)),
        };
        // Always true: what is measured of the parameters is read before the next ones are written
        // over them, so that they need no copy.
        let measured = layer_norms.into_iter().chain(layer_counts);
        let apply = measured
            .fold(apply, |apply, measured| apply.and(!measured.sum().fusion_barrier().less(0.0)));
        let apply = apply.fusion_barrier();
        let next = next_if(apply).map(|path, next| {
            let apply = apply.vary(next.varying());
            apply.select(*next, inputs.state[path])
        });
        let num_skipped = inputs.num_skipped + (!apply).convert(DType::U32);
        let (nonfinite_leaf, num_skipped) = match &spec.local_steps {
            None => {
                next.iter().for_each(|(path, next)| t.next_state(path, *next));
                t.next_state(STEP, inputs.step + 1.0);
                t.next_state(NUM_SKIPPED, num_skipped);
                (nonfinite_leaf, num_skipped)
            }
            Some(local_steps) => {
                local::end(step, local_steps, &inputs, &next, (nonfinite_leaf, num_skipped))
            }
        };

        let measured = StepValues { loss, grad_norm, weight, num_skipped, nonfinite_leaf };
        let metrics = COMPUTED_METRICS.iter().map(|computed| (computed.value)(&measured));
        let metrics = metrics.map(|metric| metric.convert(spec.precision.params).reshape(&[1]));
        let metrics: Vec<_> = metrics.collect();
        t.output_varying(METRICS_OUTPUT, metrics[0].concatenate(&metrics[1..], 0), own_axes);
        t.output_varying(REPLICA_LOSS, replica_loss, spec.plan.batch_axes());
        if let Some(on_time) = inputs.on_time {
            t.output(LATE_SHARDS, late_shards(spec, on_time));
        }
        if let Some(norms) = layer_norms {
            t.output(LAYER_NORMS, norms);
        }
        if let Some(counts) = layer_counts {
            t.output(LAYER_COUNTS, counts);
        }
        if let Some(squares) = part_squares {
            t.output(PART_SQUARES, squares);
        }
    })?;
    local::check(&graph, own_axes)?;
    Ok(graph)
}

/// The next value of each leaf except the counters; and the updates of the parameters.
fn next_state<'g>(
    step: &DeclaredStep<'_>,
    inputs: &StepInputs<'g>,
    learning_rate: Tensor<'g>,
    gradients: &Gradients<'g>,
) -> (Tree<Tensor<'g>>, Tree<Tensor<'g>>) {
    let params = inputs.params();
    let num_updates = inputs.step - inputs.num_skipped;
    let specs = StateSection::Params.leaves(step.leaves());
    let context = Context { params: params.clone(), specs, num_updates, learning_rate };
    let mut opt_state = StateSection::OptState.leaves(&inputs.state);
    let updates = step.spec.optimizer.update(gradients.mean.clone(), &mut opt_state, &context);
    let params = params.map(|path, param| apply_update(path, *param, updates[path]));
    let mut next = StateSection::Params.paths(params);
    let model_state = StateSection::ModelState.leaves(&inputs.state);
    let model_state = model_state.map(|path, before| {
        *before + (gradients.observed[path] - *before) * step.running_means[path].momentum
    });
    next.extend(StateSection::ModelState.paths(model_state));
    next.extend(StateSection::OptState.paths(opt_state));
    next.extend(StateSection::Comm.paths(gradients.comm.clone()));
    (next, updates)
}

/// Adds the update to the parameter. An update that varies over more axes than the parameter would
/// break lockstep, so it is rejected here, where the error can name the parameter.
fn apply_update<'g>(path: &str, param: Tensor<'g>, update: Tensor<'g>) -> Tensor<'g> {
    let excess = update.varying().minus(param.varying());
    if !excess.is_empty() {
        let message = format!(
            "`{}` would lose lockstep: its update may differ between replicas over {excess}",
            StateSection::Params.path(path)
        );
        update.reject("update", message);
    }
    param + update
}

fn without_optimizer(types: &Tree<TensorType>) -> Tree<TensorType> {
    let is_kept =
        |path: &&str| !matches!(StateSection::of(path), Some((StateSection::OptState, _)));
    types.paths().filter(is_kept).map(|path| (path.to_owned(), types[path].clone())).collect()
}

/// Gradients of the global batch's mean loss, with the loss and related values.
struct Gradients<'g> {
    /// Sums over the global batch, under the parameters' paths.
    totals: Tree<Tensor<'g>>,
    /// The next values of what their sums keep.
    comm: Tree<Tensor<'g>>,
    /// `mean = totals * scale`: 1 / the weight of the global batch.
    scale: Tensor<'g>,
    /// The gradients of the mean loss.
    mean: Tree<Tensor<'g>>,
    loss: Tensor<'g>,
    weight: Tensor<'g>,
    /// This replica's own mean loss.
    replica_loss: Tensor<'g>,
    /// Means over the microbatches of the global batch, under the running means' paths.
    observed: Tree<Tensor<'g>>,
    /// The mean of the squared norms of the gradients of the parts that are measured.
    part_squares: Option<Tensor<'g>>,
}

fn gradients<'g>(step: &DeclaredStep<'_>, inputs: &StepInputs<'g>) -> Gradients<'g> {
    let spec = &step.spec;
    let in_step = step.params_in_step(&inputs.params());
    let Sums { loss, weight, gradients, observed, squares } = sums(step, inputs, &in_step);
    let squares = match inputs.parts {
        Some(BatchParts::Shards(axes, _)) => {
            let square = square_by_weight(step, &gradients, weight, axes);
            Some(square.all_reduce(Reduction::Sum, axes))
        }
        _ => squares,
    };
    let (totals, comm) =
        inputs.step.tracer().in_backward(|| sum_gradients(step, inputs, gradients));
    let total_weight = global(spec, weight);
    let scale = 1.0 / total_weight;
    let totals =
        totals.map(|path, total| spec.optimizer.mask_gradient(path, step.param_leaf(path), *total));
    Gradients {
        mean: totals.map(|_, total| *total * scale.vary(total.varying())),
        totals,
        comm,
        scale,
        loss: global(spec, loss) * scale,
        weight: total_weight,
        replica_loss: replica_loss(spec, loss, weight).vary(spec.plan.batch_axes()),
        observed: observed_everywhere(spec, inputs, &observed),
        part_squares: squares.map(|squares| squares * scale.convert(squares.dtype())),
    }
}

/// A replica's own mean loss, from its sums; 0 if it has surplus microbatches only.
fn replica_loss<'g>(spec: &StepSpec<'_>, loss: Tensor<'g>, weight: Tensor<'g>) -> Tensor<'g> {
    if !spec.has_idle_shard() {
        return loss / weight;
    }
    let counts = weight.greater(0.0);
    let weight = counts.select(weight, weight.full_like(1.0));
    counts.select(loss / weight, loss.full_like(0.0))
}

/// The sums of this replica's part of the batch.
fn sums<'g>(
    step: &DeclaredStep<'_>,
    inputs: &StepInputs<'g>,
    params: &Tree<StepParam<'g>>,
) -> Sums<'g> {
    let spec = &step.spec;
    match (spec.plan.schedule(spec.num_microbatches), spec.model.pipelined()) {
        (Some(schedule), Some(model)) => {
            Pipeline { model, schedule }.sums(step, inputs, params, true)
        }
        _ => Sequential.sums(step, inputs, params, true),
    }
}

/// The sums of the gradients over all replicas, by the parameters' paths, from those of each
/// replica; and the next values of what [`Synchronize`] keeps.
///
/// [`Synchronize`]: crate::parallel::Synchronize
fn sum_gradients<'g>(
    step: &DeclaredStep<'_>,
    inputs: &StepInputs<'g>,
    gradients: Vec<Tensor<'g>>,
) -> (Tree<Tensor<'g>>, Tree<Tensor<'g>>) {
    let spec = &step.spec;
    let (params, comm) = (inputs.params(), StateSection::Comm.leaves(&inputs.state));
    let (mut totals, mut next_comm) = (vec![], comm.clone());
    // In the order in which a backward pass finds them.
    let with_gradients: Vec<_> = params.iter().zip(gradients).collect();
    for ((path, param), gradient) in with_gradients.into_iter().rev() {
        // Nothing is reduced for a leaf that is not trained.
        if step.freezes(path) {
            totals.push((path.to_owned(), param.full_like(0.0)));
            continue;
        }
        let local = spec.plan.gradient_of_shard(gradient, &step.param_leaf(path).sharding);
        let axes = local.varying().minus(param.varying());
        if axes.is_empty() {
            // A replica's own parameter.
            totals.push((path.to_owned(), local));
            continue;
        }
        let kinds = spec.synchronize.comm(step.param_leaf(path), &spec.plan);
        let kept: Vec<_> = kinds.iter().map(|(kind, _)| format!("{kind}.{path}")).collect();
        let before: Vec<_> = kept.iter().map(|path| comm[&**path]).collect();
        let (total, next) = spec.synchronize.sum(local, axes, &before);
        totals.push((path.to_owned(), total));
        next_comm.extend(kept.into_iter().zip(next).collect::<Tree<_>>());
    }
    (totals.into_iter().rev().collect(), next_comm)
}

/// Means over the microbatches of the global batch, from each replica's sums, in one collective for
/// all of them.
fn observed_everywhere<'g>(
    spec: &StepSpec<'_>,
    inputs: &StepInputs<'g>,
    sums: &[Tensor<'g>],
) -> Tree<Tensor<'g>> {
    let paths = StateSection::ModelState.leaves(&inputs.state);
    let Some(first) = sums.first() else { return Tree::new() };
    let batch_axes = spec.plan.batch_axes();
    let axes = batch_axes.minus(spec.own_axes());
    let sums: Vec<_> = sums.iter().map(|sum| sum.vary(batch_axes)).collect();
    let totals = match axes.is_empty() {
        true => sums,
        false => first.tracer().all_reduce(&sums, Reduction::Sum, axes),
    };
    let mean = |total: Tensor<'g>| match inputs.on_time {
        None => {
            let num_workers = spec.plan.mesh.group_size(spec.own_axes());
            total / (spec.num_global_microbatches / num_workers) as f64
        }
        Some(_) => {
            let rest = inputs.first_example.full_like(spec.end_of_batch());
            let rest =
                (rest - inputs.first_example.minimum(spec.end_of_batch())).convert(total.dtype());
            let own = (rest / spec.microbatch as f64).minimum(spec.num_microbatches as f64);
            total / global(spec, own)
        }
    };
    paths.paths().map(str::to_owned).zip(totals.into_iter().map(mean)).collect()
}

/// What all are told about each shard of the batch: see [`LATE_SHARDS`].
fn late_shards<'g>(spec: &StepSpec<'_>, on_time: Tensor<'g>) -> Tensor<'g> {
    let (t, batch_axes) = (on_time.tracer(), spec.plan.batch_axes());
    let dims = [spec.plan.mesh.num_batch_shards()];
    let is = |found: u32| {
        on_time.equal(f64::from(found)).convert(spec.precision.params).broadcast_in_dim(&dims, &[])
    };
    let each = t.iota(DType::U32, &dims, 0).vary(batch_axes);
    let own = each.equal(t.replica_id(batch_axes).broadcast_in_dim(&dims, &[]));
    global(spec, own.convert(spec.precision.params) * (is(LATE) + is(AWAITED) * 2.0))
}

/// The sum over the global batch, from each replica's sum over its part; of a replica's own part if
/// it trains on its own.
fn global<'g>(spec: &StepSpec<'_>, local: Tensor<'g>) -> Tensor<'g> {
    let batch_axes = spec.plan.batch_axes().minus(spec.own_axes());
    let axes = local.varying().intersection(batch_axes);
    if axes.is_empty() { local } else { local.all_reduce(Reduction::Sum, axes) }
}
