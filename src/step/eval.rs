//! The graph of evaluation.

use hlo::{Graph, Reduction, TensorType, trace};
use models::{Batch, Scope};

use super::{DeclaredStep, MODEL_STATE, PARAMS, SUMS, StepError, WEIGHT};

/// Sums over an evaluation batch: params, model_state, batch, batch.weight -> sums.
///
/// `batch.weight` is f32 `[b]`, 0 for padding. `sums` is a vector of the parameters' dtype, the same on
/// every replica: the global sums of the loss, of the weights, and of each of the model's metrics, whose
/// names are returned. The host adds up the sums of all batches and divides once.
///
/// # Errors
/// If the model does not trace.
pub fn trace_eval(step: &DeclaredStep<'_>) -> Result<(Graph, Vec<&'static str>), StepError> {
    let spec = &step.spec;
    let axes = spec.policy.batch_axes();
    let mut names = vec![];
    let graph = trace(spec.mesh, |t| {
        let leaf = |prefix: &str| {
            let types = step.types().subtree(prefix);
            types.map(|path, ty| t.input(format!("{prefix}.{path}"), ty.clone()))
        };
        let params = step.bound(&step.held(&leaf(PARAMS)));
        let model_state = leaf(MODEL_STATE).map(|_, mean| mean.vary(axes));
        let Batch { fields, .. } = spec.batch_inputs(t, spec.microbatch);
        let ty = TensorType::new(hlo::DType::F32, &[spec.microbatch]).varying(axes);
        let weight = t.input(WEIGHT, ty).convert(spec.precision.params);
        let scope = Scope::bind(t, spec.precision, params, None)
            .with_param_use(step.at_use())
            .with_model_state(model_state);
        let loss = spec.model.loss(&scope, &Batch { fields, weight });
        names = loss.metrics.iter().map(|(name, _)| *name).collect();
        let metrics = loss.metrics.iter().map(|(_, sum)| *sum);
        let sums: Vec<_> = [loss.sum, loss.weight]
            .into_iter()
            .chain(metrics)
            .map(|sum| sum.convert(spec.precision.params).vary(axes).reshape(&[1]))
            .collect();
        let sums = sums[0].concatenate(&sums[1..], 0);
        t.output(SUMS, sums.all_reduce(Reduction::Sum, axes));
    })?;
    Ok((step.finish(graph)?, names))
}
