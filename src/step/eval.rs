//! The graph of evaluation.

use hlo::{AxisSet, Graph, Reduction, TensorType, Tree, trace};
use models::{Batch, Scope};

use super::{MODEL_STATE, PARAMS, StepError, StepSpec, finish};

/// Sums over an evaluation batch: params, model_state, batch, batch.weight -> sums.
///
/// `batch.weight` is f32 `[b]` beside the fields, 0 for padding. `sums` holds the global sums of the loss, of
/// the weights, and of each of the model's metrics, whose names are returned, as a vector of the
/// parameters' dtype, the same on every replica. The host adds up the batches and divides once.
///
/// # Errors
/// A model that does not trace.
pub fn trace_eval(spec: &StepSpec<'_>) -> Result<(Graph, Vec<&'static str>), StepError> {
    let state = spec.state_types()?;
    let mut types = state.subtree(PARAMS).prefixed(PARAMS);
    types.extend(state.subtree(MODEL_STATE).prefixed(MODEL_STATE));
    let mut names = vec![];
    let graph = trace(spec.mesh, |t| {
        let state = types.map(|path, ty| t.input(path, ty.clone()));
        let params: Tree<_> = state.subtree(PARAMS).map(|_, param| spec.policy.hand_out(*param));
        let model_state = state.subtree(MODEL_STATE).map(|_, mean| spec.policy.hand_out(*mean));
        let Batch { fields, .. } = spec.batch_inputs(t, spec.microbatch);
        let axes: AxisSet = spec.policy.batch_axes();
        let ty = TensorType::new(hlo::DType::F32, &[spec.microbatch]).varying(axes);
        let weight = t.input("batch.weight", ty).convert(spec.precision.params);
        let scope = Scope::bind(t, spec.precision, params, None).with_model_state(model_state);
        let loss = spec.model.loss(&scope, &Batch { fields, weight });
        names = loss.metrics.iter().map(|(name, _)| *name).collect();
        let metrics = loss.metrics.iter().map(|(_, sum)| *sum);
        let sums: Vec<_> = [loss.sum, loss.weight]
            .into_iter()
            .chain(metrics)
            .map(|sum| sum.convert(spec.precision.params).vary(axes).reshape(&[1]))
            .collect();
        let sums = sums[0].concatenate(&sums[1..], 0);
        t.output("sums", sums.all_reduce(Reduction::Sum, axes));
    })?;
    Ok((finish(graph)?, names))
}
