//! The specification of a step, and the parameters and state that follow from it. Both are
//! determined once, before any program is traced.

use std::fmt;
use std::rc::Rc;

use hlo::random::Key;
use hlo::{
    Axis, AxisSet, DType, LeafSpec, Mesh, Sharding, Tensor, TensorType, Tracer, Tree, trace,
};
use models::{
    AttentionKernels, Batch, LayerOptions, Model, ParamUse, Parameter, Precision, RunningMean,
    Scope, TensorUse, Training,
};

use super::{BATCH, LocalSteps, NUM_SKIPPED, STEP, StateSection, StepError, ema_path, local};
use crate::config::OnNonfinite;
use crate::optim::{Mask, Transformation};
use crate::parallel::{ParallelPlan, Synchronize, UseDTypes};

/// A field of the batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchField {
    /// The name that models use.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dims of one example.
    pub dims: Vec<usize>,
}

/// Everything that determines a step.
#[derive(Clone)]
pub struct StepSpec<'a> {
    /// The model, written for one device.
    pub model: &'a dyn Model,
    /// The fields of a batch.
    pub fields: &'a [BatchField],
    /// The replicas, and how the step is distributed over them.
    pub plan: ParallelPlan,
    /// Examples of one forward and backward pass on one replica.
    pub microbatch: usize,
    /// Number of such passes per step on one replica; their gradients are accumulated.
    pub num_microbatches: usize,
    /// Microbatches of the global batch. Passes beyond them are surplus: they have weight 0, and
    /// the examples of the last microbatch.
    pub num_global_microbatches: usize,
    /// Batches may be late: all passes of a replica are surplus where its input
    /// [`ON_TIME`](super::ON_TIME) is [`LATE`](super::LATE).
    pub skips_late: bool,
    /// Element types of parameters and computation.
    pub precision: Precision,
    /// The update rule.
    pub optimizer: &'a dyn Transformation,
    /// The parameters that [`ParallelPlan::gather_dtype`] applies to.
    pub gather_mask: &'a Mask,
    /// How gradients are summed over the replicas.
    pub synchronize: &'a dyn Synchronize,
    /// The steps that replicas along `data` take on their own, if they do.
    pub local_steps: Option<LocalSteps>,
    /// The action when the loss, a gradient or the next state is not finite.
    pub on_nonfinite: OnNonfinite,
    /// The kernels that layers call for attention.
    pub attention: AttentionKernels,
}

/// A step with its parameters, which one trace of the model has discovered. All programs of a run
/// are traced from it.
#[derive(Clone)]
pub struct DeclaredStep<'a> {
    pub(super) spec: StepSpec<'a>,
    pub(super) params: Tree<Parameter>,
    pub(super) running_means: Tree<RunningMean>,
    leaves: Tree<LeafSpec>,
    types: Tree<TensorType>,
}

impl<'a> StepSpec<'a> {
    /// Traces the model to discover its parameters and running means, and determines how they and
    /// the optimizer's state are sharded over the mesh.
    ///
    /// # Errors
    /// If the model does not trace, the optimizer does not fit it, or a leaf cannot be sharded as
    /// the layout requires.
    pub fn declare(self) -> Result<DeclaredStep<'a>, StepError> {
        let (mut params, mut running_means) = (Tree::new(), Tree::new());
        trace(self.plan.mesh, |t| {
            let scope = Scope::declare(t, self.precision, self.plan.batch_axes())
                .with_options(self.layer_options());
            self.model.loss(&scope, &self.batch_inputs(t, self.microbatch));
            (params, running_means) = (scope.parameters(), scope.running_means());
        })?;
        let leaves = self.leaves(&params, &running_means)?;
        let types = local_types(&leaves, &self.plan.mesh)?;
        Ok(DeclaredStep { spec: self, params, running_means, leaves, types })
    }

    /// The leaves of the state, in the order of the programs' inputs.
    fn leaves(
        &self,
        params: &Tree<Parameter>,
        running_means: &Tree<RunningMean>,
    ) -> Result<Tree<LeafSpec>, StepError> {
        let params = params.map(|_, parameter| {
            let leaf = parameter.leaf();
            let row = leaf.row();
            let layout = self.plan.layout(&row.dims, parameter.tensor.cut_dim());
            leaf.with_row_sharding(&layout.sharding(row.dims.len()))
        });
        self.optimizer.check(&params)?;
        self.gather_mask.check(&params)?;
        let mut opt_state = self.optimizer.init(&params);
        let comm = params.iter().flat_map(|(path, param)| {
            let kinds = self.synchronize.comm(param, &self.plan);
            kinds.into_iter().map(move |(kind, leaf)| (format!("{kind}.{path}"), leaf))
        });
        let mut comm: Tree<_> = comm.collect();
        let model_state = running_means.map(|_, mean| mean.leaf());
        if self.local_steps.is_some() {
            comm.extend(local::comm(self, &params, &model_state));
            opt_state = opt_state.map(|_, leaf| local::of_each_replica(self, leaf));
        }
        let mut leaves = StateSection::Params.paths(params);
        leaves.extend(StateSection::ModelState.paths(model_state));
        leaves.extend(StateSection::OptState.paths(opt_state));
        leaves.extend(StateSection::Comm.paths(comm));
        for counter in [STEP, NUM_SKIPPED] {
            leaves.insert(counter, LeafSpec::replicated(DType::U32, &[]));
        }
        Ok(leaves)
    }

    /// The options of the model's layers.
    pub(super) fn layer_options(&self) -> LayerOptions {
        let ParallelPlan { rows, pipeline, .. } = self.plan;
        LayerOptions { attention: self.attention, rows, pipeline_chunks: pipeline.num_chunks }
    }

    /// The axes along which replicas train on their own between outer steps.
    pub(super) fn own_axes(&self) -> AxisSet {
        self.local_steps.map_or(AxisSet::EMPTY, |_| Axis::Data.into())
    }

    /// Examples of one step on one replica.
    pub fn batch_per_replica(&self) -> usize {
        self.microbatch * self.num_microbatches
    }

    /// The fields of a batch of `size` examples per replica, as inputs `batch.NAME`.
    pub(super) fn batch_inputs<'g>(&self, t: &'g Tracer, size: usize) -> Batch<'g> {
        let fields = self.fields.iter().map(|field| {
            let dims = [&[size], &field.dims[..]].concat();
            let ty = TensorType::new(field.dtype, &dims).varying(self.plan.batch_axes());
            let x = t.input(format!("{BATCH}{}", field.name), ty);
            (field.name.clone(), self.in_compute_dtype(x))
        });
        Batch { fields: fields.collect(), weight: self.ones(t, size) }
    }

    /// The fields of a replica's batch, cut into microbatches: `[num_microbatches, microbatch,
    /// ..]`.
    pub(super) fn microbatches<'g>(&self, fields: &Tree<Tensor<'g>>) -> Tree<Tensor<'g>> {
        fields.map(|_, x| {
            let sizes = [&[self.num_microbatches, self.microbatch], &x.shape()[1..]].concat();
            x.reshape(&sizes)
        })
    }

    /// `true` if some passes are surplus, or may be.
    pub(super) fn has_surplus(&self) -> bool {
        self.skips_late
            || self.num_global_microbatches
                < self.num_microbatches * self.plan.mesh.num_batch_shards()
    }

    /// `true` if all passes of some replicas are surplus, or may be.
    pub(super) fn has_idle_shard(&self) -> bool {
        let last_shard = self.plan.mesh.num_batch_shards().saturating_sub(1);
        self.skips_late || self.num_global_microbatches <= self.num_microbatches * last_shard
    }

    /// What layers read in training, for a microbatch from this example of the global batch on;
    /// beyond its end, what they read for the last microbatch.
    pub(super) fn training<'g>(&self, key: Key<'g>, first_example: Tensor<'g>) -> Training<'g> {
        let (num_examples, batch_axes) = (self.microbatch, self.plan.batch_axes());
        let first_example = match self.has_surplus() {
            true => {
                let last = self.num_global_microbatches.saturating_sub(1) * num_examples;
                first_example.minimum(last as f64)
            }
            false => first_example,
        };
        Training { key, first_example, num_examples, batch_axes }
    }

    /// The weights of the examples of a microbatch from this example of the global batch on,
    /// `[microbatch]`: 1, or 0 beyond its end.
    pub(super) fn weights<'g>(
        &self,
        t: &'g Tracer,
        first_example: impl FnOnce() -> Tensor<'g>,
    ) -> Tensor<'g> {
        if !self.has_surplus() {
            return self.ones(t, self.microbatch);
        }
        let counts = first_example().less(self.end_of_batch()).convert(self.precision.params);
        counts.broadcast_in_dim(&[self.microbatch], &[]).vary(self.plan.batch_axes())
    }

    /// The number of examples of the global batch.
    pub(super) fn end_of_batch(&self) -> f64 {
        self.num_global_microbatches as f64 * self.microbatch as f64
    }

    /// Converts float fields to the compute dtype.
    fn in_compute_dtype<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        if x.dtype().is_float() { x.convert(self.precision.compute) } else { x }
    }

    /// Weights of 1 for `size` examples.
    pub(super) fn ones<'g>(&self, t: &'g Tracer, size: usize) -> Tensor<'g> {
        t.full(self.precision.params, &[size], 1.0).vary(self.plan.batch_axes())
    }
}

/// The types of the leaves on one replica of the mesh.
pub(super) fn local_types(
    leaves: &Tree<LeafSpec>,
    mesh: &Mesh,
) -> Result<Tree<TensorType>, StepError> {
    let local_type = |(path, leaf): (&str, &LeafSpec)| match leaf.local_type(mesh) {
        Ok(ty) => Ok((path.to_owned(), ty)),
        Err(source) => Err(StepError::Shard { path: path.to_owned(), source }),
    };
    leaves.iter().map(local_type).collect()
}

impl DeclaredStep<'_> {
    /// The leaves of the state, in the order of the programs' inputs. They are the only definition
    /// of the dtypes, global dims and shardings of the state.
    pub fn leaves(&self) -> &Tree<LeafSpec> {
        &self.leaves
    }

    /// The types of the leaves on one replica.
    pub fn types(&self) -> &Tree<TensorType> {
        &self.types
    }

    /// The model's parameters, in order of declaration.
    pub fn parameters(&self) -> &Tree<Parameter> {
        &self.params
    }

    /// Paths in the state of the leaves that evaluation reads and that files hold row by row, under
    /// their paths in the model: parameters, or their running means if the optimizer keeps them,
    /// and model state. No parameter has the name of a running mean of the model state, because
    /// [`Scope`] rejects it.
    pub fn model_leaves(&self) -> Tree<String> {
        let params = self.params.paths().map(|name| {
            let averaged = ema_path(name);
            let is_averaged = self.leaves.get(&averaged).is_some();
            (name.to_owned(), if is_averaged { averaged } else { StateSection::Params.path(name) })
        });
        let means = self.running_means.paths();
        params
            .chain(means.map(|name| (name.to_owned(), StateSection::ModelState.path(name))))
            .collect()
    }

    /// The names of those inputs of [`super::trace_eval`] that are leaves of the state, in the
    /// order of [`Self::model_leaves`].
    pub fn eval_inputs(&self) -> impl Iterator<Item = String> {
        let params = self.params.paths().map(|name| StateSection::Params.path(name));
        params.chain(self.running_means.paths().map(|name| StateSection::ModelState.path(name)))
    }

    /// The replicas.
    pub fn mesh(&self) -> Mesh {
        self.spec.plan.mesh
    }

    /// The step with parameters as they are in the state, whatever training sends of them.
    pub(super) fn with_exact_gathers(&self) -> Self {
        let plan = self.spec.plan.with_gather_dtype(None);
        Self { spec: StepSpec { plan, ..self.spec.clone() }, ..self.clone() }
    }

    /// The parameters in a step, from those in the state.
    pub(super) fn params_in_step<'g>(&self, state: &Tree<Tensor<'g>>) -> Tree<StepParam<'g>> {
        let plan = self.spec.plan;
        state.map(|path, in_state| {
            let (sharding, dtypes) = self.placed(path);
            let axes = self.used_over(path);
            StepParam {
                tensor: plan.for_step(*in_state, sharding, axes),
                once_per_step: plan.once_per_step(*in_state, sharding, axes, dtypes),
            }
        })
    }

    /// The parameters in a microbatch, from those in the step.
    pub(super) fn params_in_microbatch<'g>(
        &self,
        in_step: &Tree<StepParam<'g>>,
    ) -> Tree<Tensor<'g>> {
        in_step.map(|path, StepParam { tensor, once_per_step }| {
            let (sharding, dtypes) = self.placed(path);
            let param = self.spec.plan.for_microbatch(*tensor, *once_per_step, sharding, dtypes);
            if self.freezes(path) { param.stop_gradient() } else { param }
        })
    }

    /// `true` if the optimizer leaves all of the leaf of the parameter with this path in the model
    /// as it is.
    pub(super) fn freezes(&self, path: &str) -> bool {
        self.spec.optimizer.freezes(path, self.param_leaf(path))
    }

    /// The arguments of [`ParallelPlan`]'s functions for the parameter with this path in the model.
    fn placed(&self, path: &str) -> (&Sharding, UseDTypes) {
        let is_sent_exactly = self.is_sent_exactly(path);
        (&self.param_leaf(path).sharding, use_dtypes(&self.params[path], is_sent_exactly))
    }

    fn is_sent_exactly(&self, path: &str) -> bool {
        !self.spec.gather_mask.includes_all(path, self.param_leaf(path))
    }

    /// The axes along which replicas use a parameter for other activations.
    fn used_over(&self, path: &str) -> AxisSet {
        let batch_axes = self.spec.plan.batch_axes();
        match self.params[path].tensor {
            TensorUse::Varying => batch_axes | Axis::Tensor.into(),
            TensorUse::Replicated | TensorUse::Cut(_) | TensorUse::CutAndPadded(_) => batch_axes,
        }
    }

    /// The leaf of the parameter with this path in the model.
    pub(super) fn param_leaf(&self, path: &str) -> &LeafSpec {
        &self.leaves[&*StateSection::Params.path(path)]
    }

    /// Applies [`ParallelPlan::for_use`] where the model uses a parameter; in a scan, that is a row
    /// of the leaf.
    pub(super) fn at_use(&self) -> Rc<dyn ParamUse> {
        let placed = self
            .params
            .map(|path, _| (self.param_leaf(path).row().sharding, self.is_sent_exactly(path)));
        Rc::new(AtUse { plan: self.spec.plan, placed })
    }
}

/// A parameter in a step; see `parallel/gather.rs`.
#[derive(Clone, Copy)]
pub(super) struct StepParam<'g> {
    /// Gradients are taken with respect to it, and accumulated in its type.
    pub tensor: Tensor<'g>,
    /// The whole parameter, if it is computed once per step. The value of `tensor` is then unused.
    pub once_per_step: Option<Tensor<'g>>,
}

impl StepParam<'_> {
    /// The parameter in the body of a loop that carries `value`: the value that is computed once
    /// per step, or else the tensor.
    pub(super) fn in_loop<'b>(&self, value: Tensor<'b>) -> StepParam<'b> {
        match self.once_per_step {
            None => StepParam { tensor: value, once_per_step: None },
            Some(_) => {
                // Only the type of this tensor matters, so the loop need not carry it.
                let ty = self.tensor.ty();
                let unused = value.tracer().full(ty.dtype, &ty.dims, 0.0).vary(ty.varying);
                StepParam { tensor: unused, once_per_step: Some(value) }
            }
        }
    }
}

impl fmt::Debug for DeclaredStep<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeclaredStep").field("leaves", &self.leaves).finish_non_exhaustive()
    }
}

fn use_dtypes(parameter: &Parameter, is_sent_exactly: bool) -> UseDTypes {
    let Parameter { used_in, rounded_to, .. } = *parameter;
    UseDTypes { used_in, rounded_to, is_sent_exactly }
}

struct AtUse {
    plan: ParallelPlan,
    /// Shardings of parameters, and whether they are sent exactly.
    placed: Tree<(Sharding, bool)>,
}

impl ParamUse for AtUse {
    #[track_caller]
    fn apply<'g>(&self, path: &str, bound: Tensor<'g>, parameter: &Parameter) -> Tensor<'g> {
        match self.placed.get(path) {
            Some((sharding, is_sent_exactly)) => {
                self.plan.for_use(bound, sharding, use_dtypes(parameter, *is_sent_exactly))
            }
            // Not a parameter of the declared model: the scope has no value for it and reports
            // that.
            None => bound,
        }
    }
}
