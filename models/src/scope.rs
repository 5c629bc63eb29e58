//! `Scope`: how a layer declares its parameters.

use std::cell::RefCell;
use std::rc::Rc;

use hlo::random::Key;
use hlo::{ActivationRows, Axis, AxisSet, DType, Tensor, TensorType, Tracer, Tree};

use crate::parameter::{Initializer, Parameter, Precision, RunningMean, TensorUse};

/// Values that a model has in training but not in evaluation.
#[derive(Clone, Copy, Debug)]
pub struct Training<'g> {
    /// Key of this step's random numbers, from which [`Scope::random_key`] derives each layer's
    /// own.
    pub key: Key<'g>,
    /// Global index of this replica's first example: a u32 scalar.
    pub first_example: Tensor<'g>,
    /// Number of examples on this replica.
    pub num_examples: usize,
    /// The axes over which the batch is split. Replicas along them hold its examples in order.
    pub batch_axes: AxisSet,
}

/// A function that is applied to a parameter where a model uses it, including in the body of a scan
/// or remat. With it, parameters that are sharded can be gathered at their use.
pub trait ParamUse {
    /// The whole parameter at `path`, from the tensor that the scope holds. It is converted to
    /// [`Parameter::used_in`] if it is not in that dtype yet. In the body of a scan it is the
    /// parameter of one block, and the path has a `*` in place of the block's index.
    fn apply<'g>(&self, path: &str, bound: Tensor<'g>, parameter: &Parameter) -> Tensor<'g>;
}

/// The kernels that compute attention where they can; elsewhere it is written as ops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttentionKernels {
    /// None.
    #[default]
    None,
    /// The kernels of the process, in f32 and f64, for programs that run where the process has
    /// kernels ([`hlo::HostCalls::kernels`]).
    Host,
    /// The kernels of cuDNN, in f16 and bf16, for the CUDA backend: heads of at most 128 columns, a
    /// multiple of 8, without padding and dropout.
    Cudnn,
}

/// How layers compute what they compute: the same for all layers of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerOptions {
    /// The kernels for attention. The interpreter does not evaluate them.
    pub attention: AttentionKernels,
    /// What replicas along the axis `tensor` have of the rows of activations.
    pub rows: ActivationRows,
    /// Number of chunks of blocks that each stage along the axis `pipeline` has.
    pub pipeline_chunks: usize,
}

impl Default for LayerOptions {
    fn default() -> Self {
        Self { attention: AttentionKernels::None, rows: ActivationRows::Whole, pipeline_chunks: 1 }
    }
}

/// A position in the tree of parameters, and the source of their values. Layers declare their
/// parameters through it.
///
/// ```
/// use hlo::{AxisSet, DType, Mesh, trace};
/// use models::{Initializer, Precision, Scope};
///
/// trace(Mesh::SINGLE, |t| {
///     let scope = Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY);
///     let weight = scope.at("head").param("weight", &[10, 64], Initializer::Zeros);
///     assert_eq!(weight.dims(), [10, 64]);
///     assert!(scope.parameters().get("head.weight").is_some());
/// })?;
/// # Ok::<(), hlo::Error>(())
/// ```
#[derive(Clone)]
pub struct Scope<'g> {
    shared: Rc<Shared<'g>>,
    prefix: String,
    stream: Stream<'g>,
    param_use: Option<UseBelow>,
    options: LayerOptions,
    tensor: TensorUse,
}

/// A [`ParamUse`] for a scope with its root below the root of the tree of parameters.
#[derive(Clone)]
pub(crate) struct UseBelow {
    at_use: Rc<dyn ParamUse>,
    /// Path of the scope's root.
    root: String,
}

/// The position that a scope's random numbers are derived from.
#[derive(Clone, Default)]
struct Stream<'g> {
    /// The enclosing stacks, outermost first: path relative to the previous one, and index of the
    /// block.
    blocks: Vec<(String, Tensor<'g>)>,
    /// The path relative to the innermost stack.
    path: String,
}

struct Shared<'g> {
    tracer: &'g Tracer,
    precision: Precision,
    source: Source<'g>,
    declared: RefCell<Tree<Parameter>>,
    running_means: RefCell<Tree<RunningMean>>,
    model_state: RefCell<Tree<Tensor<'g>>>,
    observed: RefCell<Tree<Tensor<'g>>>,
    training: Option<Training<'g>>,
}

/// Where the values of parameters come from.
enum Source<'g> {
    /// Each becomes an input of the graph.
    Declare { varying: AxisSet },
    /// The parameters are given.
    Bind(Tree<Tensor<'g>>),
}

impl<'g> Scope<'g> {
    /// A scope in which every parameter becomes an input of the graph, to discover a model's
    /// parameters. Their types vary over `varying`, the axes over which the batch varies.
    pub fn declare(tracer: &'g Tracer, precision: Precision, varying: AxisSet) -> Self {
        Self::new(tracer, precision, Source::Declare { varying }, None)
    }

    /// A scope in which parameters have the given values, for evaluation if `training` is `None`.
    pub fn bind(
        tracer: &'g Tracer,
        precision: Precision,
        values: Tree<Tensor<'g>>,
        training: Option<Training<'g>>,
    ) -> Self {
        Self::new(tracer, precision, Source::Bind(values), training)
    }

    fn new(
        tracer: &'g Tracer,
        precision: Precision,
        source: Source<'g>,
        training: Option<Training<'g>>,
    ) -> Self {
        let shared = Shared {
            tracer,
            precision,
            source,
            declared: RefCell::default(),
            running_means: RefCell::default(),
            model_state: RefCell::default(),
            observed: RefCell::default(),
            training,
        };
        let shared = Rc::new(shared);
        let stream = Stream::default();
        Self {
            shared,
            prefix: String::new(),
            stream,
            param_use: None,
            options: LayerOptions::default(),
            tensor: TensorUse::Replicated,
        }
    }

    /// The same scope with other options of layers.
    #[must_use]
    pub fn with_options(self, options: LayerOptions) -> Self {
        Self { options, ..self }
    }

    /// The options of layers.
    pub fn options(&self) -> LayerOptions {
        self.options
    }

    /// The same scope with parameters of which each replica along `tensor` has a piece of `dim`.
    /// They are whole on a mesh without this axis, and with context parallelism.
    #[must_use]
    pub fn cut(&self, dim: usize) -> Self {
        match self.options.rows {
            ActivationRows::Whole | ActivationRows::CutBetweenLayers => {
                self.with_tensor_use(TensorUse::Cut(dim))
            }
            ActivationRows::CutThroughout => self.varying(),
        }
    }

    /// The same scope with whole parameters for a region in which activations differ along
    /// `tensor`.
    #[must_use]
    pub fn varying(&self) -> Self {
        self.with_tensor_use(TensorUse::Varying)
    }

    /// The scope of parameters with a vector or number for each entry of a vocabulary, along dim 0.
    /// Each replica along `tensor` gets as many of them; the last may get some of zeros, which
    /// stand for nothing.
    pub(crate) fn of_vocabulary(&self) -> Self {
        self.with_tensor_use(TensorUse::CutAndPadded(0))
    }

    fn with_tensor_use(&self, tensor: TensorUse) -> Self {
        let is_cut = self.num_tensor_replicas() > 1;
        Self { tensor: if is_cut { tensor } else { TensorUse::Replicated }, ..self.clone() }
    }

    /// The number of replicas along `tensor`.
    pub fn num_tensor_replicas(&self) -> usize {
        self.tracer().mesh().size(Axis::Tensor)
    }

    /// The trace that this scope is part of.
    pub fn tracer(&self) -> &'g Tracer {
        self.shared.tracer
    }

    /// The same scope, which applies `at_use` to each parameter where a model uses it.
    #[must_use]
    pub fn with_param_use(self, at_use: Rc<dyn ParamUse>) -> Self {
        Self { param_use: Some(UseBelow { at_use, root: String::new() }), ..self }
    }

    /// The [`ParamUse`] of this scope, for a separate scope with its root here.
    pub(crate) fn child_param_use(&self) -> Option<UseBelow> {
        let UseBelow { at_use, root } = self.param_use.as_ref()?;
        Some(UseBelow { at_use: at_use.clone(), root: join(root, &self.prefix) })
    }

    /// The same scope, with the result of [`Self::child_param_use`].
    #[must_use]
    pub(crate) fn with_param_use_below(self, param_use: Option<UseBelow>) -> Self {
        Self { param_use, ..self }
    }

    /// [`Self::declare`] in training mode.
    pub(crate) fn declare_in_training(
        tracer: &'g Tracer,
        precision: Precision,
        varying: AxisSet,
        training: Training<'g>,
    ) -> Self {
        Self::new(tracer, precision, Source::Declare { varying }, Some(training))
    }

    /// The same scope with values for the running means, for evaluation.
    #[must_use]
    pub fn with_model_state(self, model_state: Tree<Tensor<'g>>) -> Self {
        *self.shared.model_state.borrow_mut() = model_state;
        self
    }

    /// Declares the running mean `name` and returns its value, for evaluation. Training
    /// [observes](Self::observe) it.
    #[track_caller]
    pub fn running_mean(
        &self,
        name: &str,
        dims: &[usize],
        start: f64,
        momentum: f64,
    ) -> Tensor<'g> {
        let (dims, dtype) = (dims.to_vec(), self.shared.precision.params);
        self.declare_mean(name, RunningMean { dims, dtype, start, momentum, num_stacked: 0 })
    }

    /// Declares the running mean `name` and returns its value, for evaluation.
    #[track_caller]
    pub(crate) fn declare_mean(&self, name: &str, mean: RunningMean) -> Tensor<'g> {
        let path = self.path(name);
        let Shared { tracer, source, declared, running_means, model_state, .. } = &*self.shared;
        let (dims, dtype, start) = (&mean.dims.clone(), mean.dtype, mean.start);
        let before = running_means.borrow_mut().insert(path.clone(), mean).is_some();
        let before = before || declared.borrow().get(&path).is_some();
        let value = match source {
            Source::Bind(_) => model_state.borrow().get(&path).copied(),
            Source::Declare { varying } => Some(tracer.full(dtype, dims, start).vary(*varying)),
        };
        let value = value.unwrap_or_else(|| {
            let missing = tracer.full(dtype, dims, start);
            missing.reject("running_mean", format!("there is no value for `{path}`"));
            missing
        });
        if before {
            value.reject("running_mean", format!("`{path}` is declared twice"));
        }
        value
    }

    /// In training: records this replica's observation of the running mean `name`.
    #[track_caller]
    pub fn observe(&self, name: &str, value: Tensor<'g>) {
        let path = self.path(name);
        let before = self.shared.observed.borrow_mut().insert(path.clone(), value);
        if before.is_some() {
            value.reject("observe", format!("`{path}` is observed twice"));
        }
    }

    /// The running means declared so far, in order.
    pub fn running_means(&self) -> Tree<RunningMean> {
        self.shared.running_means.borrow().clone()
    }

    /// The observations of running means so far.
    pub fn observed(&self) -> Tree<Tensor<'g>> {
        self.shared.observed.borrow().clone()
    }

    /// The child scope `name`.
    #[must_use]
    pub fn at(&self, name: impl std::fmt::Display) -> Self {
        let name = name.to_string();
        let stream = Stream { path: join(&self.stream.path, &name), ..self.stream.clone() };
        Self { prefix: self.path(&name), stream, ..self.clone() }
    }

    /// The scope of block `index` of a stack with this scope. Its random numbers are derived from
    /// the index as a number (a u32 scalar), not as part of the path, so that they are the same
    /// with the counter of a loop.
    pub(crate) fn block(&self, index: usize) -> Self {
        let number = self.shared.tracer.scalar(DType::U32, index as f64);
        let mut blocks = self.stream.blocks.clone();
        blocks.push((self.stream.path.clone(), number));
        let stream = Stream { blocks, path: String::new() };
        Self { prefix: self.path(&index.to_string()), stream, ..self.clone() }
    }

    /// In training: the key for random numbers called `name`, derived from (seed, step, path).
    /// `None` in evaluation.
    #[track_caller]
    pub fn random_key(&self, name: &str) -> Option<Key<'g>> {
        let start = self.training()?.key;
        let of_block = |key: Key<'g>, (path, index): &(String, Tensor<'g>)| {
            key.fold_in_path(path).fold_in(*index)
        };
        let key = self.stream.blocks.iter().fold(start, of_block);
        Some(key.fold_in_path(&join(&self.stream.path, name)))
    }

    /// This scope's path followed by `name`.
    pub fn path(&self, name: &str) -> String {
        join(&self.prefix, name)
    }

    /// Declares the parameter `name` with its global dims, and returns it whole, in the compute
    /// dtype.
    #[track_caller]
    pub fn param(&self, name: &str, dims: &[usize], initializer: Initializer) -> Tensor<'g> {
        let Precision { compute, .. } = self.shared.precision;
        self.used_param(name, dims, initializer, compute, compute)
    }

    /// Like [`Self::param`], but in the dtype of parameters, for layers that convert the values
    /// they read to the compute dtype themselves, so that gradients are summed in the dtype of
    /// parameters. The values may already be rounded.
    #[track_caller]
    pub fn param_to_round(
        &self,
        name: &str,
        dims: &[usize],
        initializer: Initializer,
    ) -> Tensor<'g> {
        let Precision { params, compute } = self.shared.precision;
        self.used_param(name, dims, initializer, params, compute)
    }

    /// Like [`Self::param`], but in the dtype of parameters, for layers such as norms.
    #[track_caller]
    pub fn param_full_precision(
        &self,
        name: &str,
        dims: &[usize],
        initializer: Initializer,
    ) -> Tensor<'g> {
        let Precision { params, .. } = self.shared.precision;
        self.used_param(name, dims, initializer, params, params)
    }

    #[track_caller]
    fn used_param(
        &self,
        name: &str,
        dims: &[usize],
        initializer: Initializer,
        used_in: DType,
        rounded_to: DType,
    ) -> Tensor<'g> {
        let path = self.path(name);
        let parameter = Parameter {
            dims: dims.to_vec(),
            dtype: self.shared.precision.params,
            initializer,
            used_in,
            rounded_to,
            num_stacked: 0,
            is_pipelined: false,
            tensor: self.tensor,
        };
        let bound = self.bound_param(name, parameter.clone());
        let whole = match &self.param_use {
            Some(UseBelow { at_use, root }) => at_use.apply(&join(root, &path), bound, &parameter),
            None => bound,
        };
        if whole.shape() != parameter.local_dims(&self.tracer().mesh()) {
            let message = format!("`{path}` is declared with dims {:?}", parameter.dims);
            whole.reject("param", message);
        }
        whole.convert(parameter.used_in)
    }

    /// Declares a parameter and returns the tensor that the scope holds for it, before
    /// [`ParamUse::apply`].
    #[track_caller]
    pub(crate) fn bound_param(&self, name: &str, parameter: Parameter) -> Tensor<'g> {
        let path = self.path(name);
        let Shared { tracer, source, declared, .. } = &*self.shared;
        let num_pieces = self.num_tensor_replicas();
        let ty = TensorType::new(parameter.dtype, &parameter.local_dims(&tracer.mesh()));
        if let TensorUse::Cut(dim) = parameter.tensor
            && let size = parameter.dims[parameter.num_stacked + dim]
            && !size.is_multiple_of(num_pieces)
        {
            let message =
                format!("mesh.tensor = {num_pieces} does not divide dim {dim} of `{path}`, {size}");
            tracer.scalar(ty.dtype, 0.0).reject("param", message);
        }
        let tensor = match source {
            Source::Bind(values) => values.get(&path).copied(),
            Source::Declare { varying } => {
                Some(tracer.input(path.clone(), ty.clone().varying(*varying | parameter.varying())))
            }
        };
        let before = declared.borrow_mut().insert(path.clone(), parameter).is_some();
        let before = before || self.shared.running_means.borrow().get(&path).is_some();
        match tensor {
            Some(tensor) => {
                if before {
                    tensor.reject("param", format!("`{path}` is declared twice"));
                }
                tensor
            }
            None => {
                let missing = tracer.full(ty.dtype, &ty.dims, 0.0);
                missing.reject("param", format!("there is no value for the parameter `{path}`"));
                missing
            }
        }
    }

    /// The parameters declared so far, in order.
    pub fn parameters(&self) -> Tree<Parameter> {
        self.shared.declared.borrow().clone()
    }

    /// The dtypes of parameters and of computation.
    pub fn precision(&self) -> Precision {
        self.shared.precision
    }

    /// The values that exist only in training; `None` in evaluation.
    pub fn training(&self) -> Option<Training<'g>> {
        self.shared.training
    }
}

/// `path.name`, without the dot if either is empty.
fn join(path: &str, name: &str) -> String {
    match (path, name) {
        ("", below) => below.to_owned(),
        (above, "") => above.to_owned(),
        (above, below) => format!("{above}.{below}"),
    }
}
