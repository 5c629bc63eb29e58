//! The graph of evaluation.

use hlo::{DType, Graph, Reduction, TensorType, Tracer, trace};

use models::{Batch, Scope, Tally};

use super::{DeclaredStep, SCORES, SUMS, StateSection, StepError, WEIGHT};

/// The layout of the sums of an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvalSums {
    /// Names of the model's metrics.
    pub metrics: Vec<&'static str>,
    /// What follows the metrics.
    pub tally: TallyKind,
    /// `true` if F1 and Matthews' correlation are metrics.
    pub reports_f1: bool,
}

/// Which [`Tally`] an evaluation has, and of how many classes, labels or values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TallyKind {
    /// None.
    #[default]
    None,
    /// [`Tally::Classes`].
    Classes(usize),
    /// [`Tally::Labels`].
    Labels(usize),
    /// [`Tally::Values`].
    Values(usize),
}

impl TallyKind {
    /// Number of elements.
    pub fn num_elements(self) -> usize {
        match self {
            Self::None => 0,
            Self::Classes(num_classes) => num_classes * num_classes,
            Self::Labels(num_labels) => 3 * num_labels,
            Self::Values(num_values) => 4 * num_values,
        }
    }

    fn of(tally: Option<Tally<'_>>) -> Self {
        match tally {
            None => Self::None,
            Some(Tally::Classes(sums)) => Self::Classes(sums.dim(1)),
            Some(Tally::Labels(sums)) => Self::Labels(sums.dim(1)),
            Some(Tally::Values(sums)) => Self::Values(sums.dim(1)),
        }
    }
}

impl EvalSums {
    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        2 + self.metrics.len() + self.tally.num_elements()
    }
}

/// Sums over an evaluation batch: params, model_state, batch, batch.weight -> sums.
///
/// `batch.weight` is f32 `[b]`, 0 for padding. `sums` is a vector of the parameters' dtype, the
/// same on every replica: the global sums of the loss, of the weights, of each of the model's
/// metrics, and its tally, as is returned. The host adds up the sums of all batches and
/// divides once.
///
/// # Errors
/// If the model does not trace.
pub fn trace_eval(step: &DeclaredStep<'_>) -> Result<(Graph, EvalSums), StepError> {
    let (graph, sums) = eval_as_traced(step)?;
    Ok((step.finish(graph)?, sums))
}

/// [`trace_eval`] before the graph is simplified.
pub(super) fn eval_as_traced(step: &DeclaredStep<'_>) -> Result<(Graph, EvalSums), StepError> {
    let spec = &step.spec;
    let axes = spec.plan.batch_axes();
    let mut found = EvalSums::default();
    let graph = trace(spec.plan.mesh, |t| {
        let (scope, fields) = inputs(step, t);
        let ty = TensorType::new(DType::F32, &[spec.microbatch]).varying(axes);
        let weight = t.input(WEIGHT, ty).convert(spec.precision.params);
        let loss = spec.model.loss(&scope, &Batch { weight, ..fields });
        found = EvalSums {
            metrics: loss.metrics.iter().map(|(name, _)| *name).collect(),
            tally: TallyKind::of(loss.tally),
            reports_f1: loss.reports_f1,
        };
        let metrics = loss.metrics.iter().map(|(_, sum)| *sum);
        let sums: Vec<_> = [loss.sum, loss.weight]
            .into_iter()
            .chain(metrics)
            .chain(loss.tally.map(Tally::sums))
            .map(|sum| sum.convert(spec.precision.params).vary(axes))
            .map(|sum| sum.reshape(&[sum.ty().num_elements()]))
            .collect();
        let sums = sums[0].concatenate(&sums[1..], 0);
        t.output(SUMS, sums.all_reduce(Reduction::Sum, axes));
    })?;
    Ok((graph, found))
}

/// The scores of a batch: params, model_state, batch -> scores.
///
/// `scores` is f32 `[b, num_outputs]` on each replica, of its own examples. `None` if the model
/// has none; see [`models::Model::scores`].
///
/// # Errors
/// If the model does not trace.
pub fn trace_scores(step: &DeclaredStep<'_>) -> Result<Option<Graph>, StepError> {
    let spec = &step.spec;
    let mut is_there = true;
    let graph = trace(spec.plan.mesh, |t| {
        let (scope, batch) = inputs(step, t);
        match spec.model.scores(&scope, &batch) {
            Some(scores_bc) => {
                let axes = spec.plan.batch_axes();
                t.output_varying(SCORES, scores_bc.convert(DType::F32).vary(axes), axes);
            }
            None => is_there = false,
        }
    })?;
    is_there.then(|| step.finish(graph)).transpose()
}

/// The model's parameters in evaluation mode, and a batch with examples that all count.
fn inputs<'g>(step: &DeclaredStep<'_>, t: &'g Tracer) -> (Scope<'g>, Batch<'g>) {
    let step = &step.with_exact_gathers();
    let spec = &step.spec;
    let axes = spec.plan.batch_axes();
    let leaf = |section: StateSection| {
        let types = section.leaves(step.types());
        types.map(|path, ty| t.input(section.path(path), ty.clone()))
    };
    let params = step.params_in_microbatch(&step.params_in_step(&leaf(StateSection::Params)));
    let model_state = leaf(StateSection::ModelState).map(|_, mean| mean.vary(axes));
    let batch = spec.batch_inputs(t, spec.microbatch);
    let scope = Scope::bind(t, spec.precision, params, None)
        .with_param_use(step.at_use())
        .with_options(spec.layer_options())
        .with_model_state(model_state);
    (scope, batch)
}
