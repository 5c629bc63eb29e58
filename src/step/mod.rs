//! The step: loss, gradient, accumulation and update as one graph. Belongs to the trace phase.
//!
//! ```text
//! init:    seed                                       -> state
//! step:    state, seed, batch, learning_rate          -> state, metrics, replica_loss
//! eval:    params, model_state, batch, batch.weight   -> sums
//! proof:   state                                      -> fingerprints, their minimum and maximum
//! forward: params, model_state, x                     -> y
//! ```
//! `state` is `params.*`, `model_state.*`, `opt_state.*`, `step` and `num_skipped`, under the same paths in all graphs, in
//! checkpoints and in messages.

mod eval;
mod finite;
mod forward;
mod proof;
mod repeat;
mod train;

use hlo::random::{GlobalSlice, Key};
use hlo::{Axis, DType, Graph, Mesh, Tensor, TensorType, Tracer, Tree, trace, verify};
use models::{Batch, Model, Parameter, Precision, RunningMean, Scope, Training};

use crate::config::OnNonfinite;
use crate::optim::{EMA, Transformation, UnmatchedPattern};
use crate::parallel::{Policy, reduce_whole_stacks};

pub use eval::trace_eval;
pub use finite::{again_if, first_nonfinite};
pub use forward::{Forward, trace_forward};
pub use proof::{held_alike, trace_proof};
pub use repeat::repeat_step;
pub use train::{METRICS, trace_grad, trace_loss, trace_step};

/// A field of the batch: its name, and dtype and dims of one example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchField {
    /// Name, as models ask for it.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dims of one example.
    pub dims: Vec<usize>,
}

/// Everything that decides what a step is.
#[derive(Clone, Copy)]
pub struct StepSpec<'a> {
    /// The model, written for one device.
    pub model: &'a dyn Model,
    /// The fields of a batch.
    pub fields: &'a [BatchField],
    /// The replicas.
    pub mesh: Mesh,
    /// Examples of one forward and backward pass on one replica.
    pub microbatch: usize,
    /// Passes whose gradients are summed before the all_reduce.
    pub num_microbatches: usize,
    /// Element types of parameters and computation.
    pub precision: Precision,
    /// The update rule.
    pub optimizer: &'a dyn Transformation,
    /// How the step is spread.
    pub policy: Policy,
    /// What happens where the loss, a gradient or the next state is not finite.
    pub on_nonfinite: OnNonfinite,
}

/// A step that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// An op whose operands do not fit.
    #[error("the model does not trace: {0}")]
    Trace(#[from] hlo::Error),
    /// A graph that would lose lockstep, or another broken invariant.
    #[error("the step is rejected: {0}")]
    Verify(#[from] hlo::VerifyError),
    /// An optimizer that does not fit the model.
    #[error(transparent)]
    Optimizer(#[from] UnmatchedPattern),
    /// A parameter that cannot be cut as the policy asks.
    #[error("the parameter `{path}` cannot be sharded: {source}")]
    Shard {
        /// Its path.
        path: String,
        /// Which dim.
        source: hlo::UnevenShard,
    },
}

/// Name of the input that holds the seed: u32 `[2]`, high word first.
pub const SEED: &str = "seed";
/// Prefix of the names of the inputs that hold the batch, a field each.
pub const BATCH: &str = "batch.";
/// Name of the input that holds the learning rate: f32 scalar.
pub const LEARNING_RATE: &str = "learning_rate";
/// Prefix of the parameters' paths in the state.
pub const PARAMS: &str = "params";
/// Prefix of the paths in the state of what training observes and evaluation uses: running means.
pub const MODEL_STATE: &str = "model_state";
/// Prefix of the optimizer state's paths in the state.
pub const OPT_STATE: &str = "opt_state";
/// Path of the number of steps taken, in the state: u32 scalar.
pub const STEP: &str = "step";
/// Path of the number of updates skipped as not finite, in the state: u32 scalar.
pub const NUM_SKIPPED: &str = "num_skipped";

impl StepSpec<'_> {
    /// Examples of one step on one replica.
    pub fn batch_per_replica(&self) -> usize {
        self.microbatch * self.num_microbatches
    }

    /// The model's parameters, in the order in which it declares them.
    ///
    /// # Errors
    /// A model that does not trace.
    pub fn parameters(&self) -> Result<Tree<Parameter>, StepError> {
        Ok(self.declarations()?.0)
    }

    /// What the model declares, in order: parameters and running means.
    fn declarations(&self) -> Result<(Tree<Parameter>, Tree<RunningMean>), StepError> {
        let mut declared = (Tree::new(), Tree::new());
        trace(self.mesh, |t| {
            let scope = Scope::declare(t, self.precision, self.policy.batch_axes());
            self.model.loss(&scope, &self.batch_inputs(t, self.microbatch));
            declared = (scope.parameters(), scope.running_means());
        })?;
        Ok(declared)
    }

    /// Type of every leaf of the state, on one replica.
    ///
    /// # Errors
    /// As [`Self::parameters`].
    pub fn state_types(&self) -> Result<Tree<TensorType>, StepError> {
        let (parameters, running_means) = self.declarations()?;
        self.types_of(&parameters, &running_means)
    }

    /// The state of a model that declares these.
    fn types_of(
        &self,
        parameters: &Tree<Parameter>,
        running_means: &Tree<RunningMean>,
    ) -> Result<Tree<TensorType>, StepError> {
        let params = self.param_types(parameters)?;
        self.optimizer.check(&params)?;
        let opt_state = self.optimizer.init(&params);
        let mut state = params.prefixed(PARAMS);
        let model_state = running_means.map(|_, mean| TensorType::new(mean.dtype, &mean.dims));
        state.extend(model_state.prefixed(MODEL_STATE));
        state.extend(opt_state.prefixed(OPT_STATE));
        for counter in [STEP, NUM_SKIPPED] {
            state.insert(counter, TensorType::new(DType::U32, &[]));
        }
        Ok(state)
    }

    fn param_types(&self, parameters: &Tree<Parameter>) -> Result<Tree<TensorType>, StepError> {
        let local = |path: &str, parameter: &Parameter| -> Result<TensorType, StepError> {
            let sharding = self.policy.param_sharding(parameter.dims.len());
            let dims = sharding
                .local_shape(&parameter.dims, &self.mesh)
                .map_err(|source| StepError::Shard { path: path.to_owned(), source })?;
            Ok(TensorType::new(parameter.dtype, &dims).varying(sharding.varying()))
        };
        parameters.iter().map(|(path, p)| Ok((path.to_owned(), local(path, p)?))).collect()
    }

    /// The fields of a batch of `size` examples a replica, as inputs `batch.NAME`.
    fn batch_inputs<'g>(&self, t: &'g Tracer, size: usize) -> Batch<'g> {
        let fields = self.fields.iter().map(|field| {
            let dims = [&[size], &field.dims[..]].concat();
            let ty = TensorType::new(field.dtype, &dims).varying(self.policy.batch_axes());
            let x = t.input(format!("{BATCH}{}", field.name), ty);
            (field.name.clone(), self.in_compute_dtype(x))
        });
        Batch { fields: fields.collect(), weight: self.ones(t, size) }
    }

    /// Float fields in the compute dtype.
    fn in_compute_dtype<'g>(&self, x: Tensor<'g>) -> Tensor<'g> {
        if x.dtype().is_float() { x.convert(self.precision.compute) } else { x }
    }

    /// The weight of each of `size` examples that all count.
    fn ones<'g>(&self, t: &'g Tracer, size: usize) -> Tensor<'g> {
        t.full(self.precision.params, &[size], 1.0).vary(self.policy.batch_axes())
    }
}

/// The program that makes the state from the seed, on every replica by itself: identical without a
/// broadcast, since the numbers follow from the seed and the elements' global indices.
///
/// # Errors
/// A model that does not trace.
pub fn trace_init(spec: &StepSpec<'_>) -> Result<Graph, StepError> {
    let (parameters, running_means) = spec.declarations()?;
    let types = spec.types_of(&parameters, &running_means)?;
    let running_means = running_means.prefixed(MODEL_STATE);
    finish(trace(spec.mesh, |t| {
        let key = Key::from_seed(t.input(SEED, TensorType::new(DType::U32, &[2])));
        let drawn = draw(key, &parameters, |dims| {
            let slice = GlobalSlice::shard(t, dims, &spec.policy.param_sharding(dims.len()));
            slice.unwrap_or_else(|_| unreachable!("their types were cut before"))
        });
        for (path, ty) in types.iter() {
            // The running mean of a parameter starts as the parameter.
            let prefixes = [format!("{PARAMS}."), format!("{OPT_STATE}.{EMA}.")];
            let name = prefixes.iter().find_map(|prefix| path.strip_prefix(prefix.as_str()));
            let start = name.and_then(|name| drawn.get(name).copied()).unwrap_or_else(|| {
                let start = running_means.get(path).map_or(0.0, |mean| mean.start);
                t.full(ty.dtype, &ty.dims, start)
            });
            t.output_varying(path, start, ty.varying);
        }
    })?)
}

/// The first values of all parameters. Those of the same kind are drawn as one, since each draw is a large program to
/// compile: of ResNet-20's 20 kernels alone 9 s on XLA's CPU backend, of their 7 kinds 1.
fn draw<'a, 'g>(
    key: Key<'g>,
    parameters: &'a Tree<Parameter>,
    slice: impl Fn(&[usize]) -> GlobalSlice<'g>,
) -> Tree<Tensor<'g>> {
    let mut drawn = Tree::new();
    let mut kinds: Vec<(&'a Parameter, Vec<&'a str>)> = vec![];
    for (name, parameter) in parameters.iter() {
        let Parameter { dims, dtype, initializer } = parameter;
        if !initializer.is_random() {
            drawn.insert(name, initializer.draw(key, &slice(dims), *dtype));
        } else if let Some((_, names)) = kinds.iter_mut().find(|(kind, _)| *kind == parameter) {
            names.push(name);
        } else {
            kinds.push((parameter, vec![name]));
        }
    }
    for (Parameter { dims, dtype, initializer }, names) in kinds {
        let slice = slice(dims);
        let local = slice.dims().to_vec();
        let paths = names.iter().map(|name| format!("{PARAMS}.{name}"));
        let together = initializer.draw(key.fold_in_paths(paths), &slice.as_rows(), *dtype);
        // Fused with what follows, it would be unrolled over a kernel's 3 x 3, and drawn again for each parameter.
        let together = together.fusion_barrier();
        for (index, name) in names.into_iter().enumerate() {
            drawn.insert(name, together.slice_dim(0, index, index + 1).reshape(&local));
        }
    }
    drawn
}

/// Checks a traced graph, removes what nothing needs, and sums the gradients of scanned blocks as stacks.
fn finish(graph: Graph) -> Result<Graph, StepError> {
    verify(&graph)?;
    let graph = reduce_whole_stacks(&hlo::passes::simplify(&graph));
    debug_assert_eq!(verify(&graph), Ok(()));
    Ok(graph)
}

/// What dropout needs to know of this step.
fn training<'g>(spec: &StepSpec<'_>, seed: Tensor<'g>, step: Tensor<'g>) -> Training<'g> {
    let t = seed.tracer();
    let replica = t.replica_id(Axis::Data);
    Training {
        key: Key::from_seed(seed).fold_in(step),
        first_example: replica * spec.batch_per_replica() as f64,
        num_examples: spec.microbatch,
        batch_axes: spec.policy.batch_axes(),
    }
}
