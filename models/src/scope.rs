//! `Scope`: how a layer declares its parameters.

use std::cell::RefCell;
use std::rc::Rc;

use hlo::random::{GlobalSlice, Key};
use hlo::{AxisSet, DType, Tensor, TensorType, Tracer, Tree};

/// How a parameter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initializer {
    /// All zeros.
    Zeros,
    /// All ones.
    Ones,
    /// Normal with mean 0 and this standard deviation.
    Normal {
        /// Standard deviation.
        std: f64,
    },
    /// Uniform in `[-limit, limit)`.
    Uniform {
        /// Half the width.
        limit: f64,
    },
}

impl Initializer {
    /// Normal with standard deviation `sqrt(2 / fan_in)`, which keeps the variance of activations
    /// through ReLU. He, Zhang, Ren and Sun, "Delving deep into rectifiers" (2015), section 2.2.
    pub fn he_normal(fan_in: usize) -> Self {
        Initializer::Normal { std: (2.0 / fan_in as f64).sqrt() }
    }

    /// Normal with standard deviation `sqrt(1 / fan_in)`. LeCun, Bottou, Orr and Müller, "Efficient
    /// backprop" (1998), section 4.6.
    pub fn lecun_normal(fan_in: usize) -> Self {
        Initializer::Normal { std: (1.0 / fan_in as f64).sqrt() }
    }

    /// Do values depend on the key?
    pub fn is_random(self) -> bool {
        matches!(self, Initializer::Normal { .. } | Initializer::Uniform { .. })
    }

    /// The values of the slice's elements, under the parameter's own key; under keys side by side, those of as many
    /// parameters, which then are dim 0.
    #[track_caller]
    pub fn draw<'g>(self, key: Key<'g>, slice: &GlobalSlice<'g>, dtype: DType) -> Tensor<'g> {
        let streams = key.words()[0];
        let full = |value| {
            let dims = [&streams.shape(), slice.dims()].concat();
            streams.tracer().full(dtype, &dims, value)
        };
        match self {
            Initializer::Zeros => full(0.0),
            Initializer::Ones => full(1.0),
            Initializer::Normal { std } => key.normal(slice, dtype) * std,
            Initializer::Uniform { limit } => (key.uniform(slice, dtype) * 2.0 - 1.0) * limit,
        }
    }
}

/// What a layer says of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Global dims.
    pub dims: Vec<usize>,
    /// Element type in which it is kept.
    pub dtype: DType,
    /// How it starts.
    pub initializer: Initializer,
}

/// A statistic that training observes and evaluation uses: a part of the model state. Each step moves it
/// by `momentum * (observed - mean)`, where `observed` is the mean over replicas and microbatches.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningMean {
    /// Dims, the same on every replica.
    pub dims: Vec<usize>,
    /// Element type: that of parameters.
    pub dtype: DType,
    /// The value that all elements start with.
    pub start: f64,
    /// How much of it a step replaces, 0 to 1.
    pub momentum: f64,
}

/// What is there in training and not in evaluation.
#[derive(Clone, Copy, Debug)]
pub struct Training<'g> {
    /// Key of this step's random numbers: [`Scope::random_key`] makes each layer's own of it.
    pub key: Key<'g>,
    /// Global index of this replica's first example: a u32 scalar.
    pub first_example: Tensor<'g>,
    /// Number of examples here.
    pub num_examples: usize,
    /// The axes over which the batch is cut: its examples lie on their replicas in order.
    pub batch_axes: AxisSet,
}

/// In which dtypes a model keeps its parameters and computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    /// Of parameters, and with them of gradients, optimizer state, losses and metrics.
    pub params: DType,
    /// Of activations and matrix products. Sums are accumulated in f32 or wider all the same.
    pub compute: DType,
}

impl Precision {
    /// Everything in one dtype.
    pub const fn uniform(dtype: DType) -> Self {
        Self { params: dtype, compute: dtype }
    }
}

/// A place in the tree of parameters, and where their values come from.
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
}

/// Which random numbers a scope draws.
#[derive(Clone, Default)]
struct Stream<'g> {
    /// The stacks that it is in, from the outermost: path behind the one before, and index of the block.
    blocks: Vec<(String, Tensor<'g>)>,
    /// The path behind those.
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

/// Where the tensors to compute with come from.
enum Source<'g> {
    /// They become inputs of the graph.
    Declare { varying: AxisSet },
    /// They are given.
    Bind(Tree<Tensor<'g>>),
}

impl<'g> Scope<'g> {
    /// A scope in which every parameter becomes an input of the graph, to find out what they are. They
    /// are typed as handed out over `varying`, the axes over which the batch varies.
    pub fn declare(tracer: &'g Tracer, precision: Precision, varying: AxisSet) -> Self {
        Self::new(tracer, precision, Source::Declare { varying }, None)
    }

    /// A scope in which parameters have the given values, for evaluation or for `training`.
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
        Self { shared: Rc::new(shared), prefix: String::new(), stream: Stream::default() }
    }

    /// [`Self::declare`] for what a layer does in training.
    pub(crate) fn declare_in_training(
        tracer: &'g Tracer,
        precision: Precision,
        varying: AxisSet,
        training: Training<'g>,
    ) -> Self {
        Self::new(tracer, precision, Source::Declare { varying }, Some(training))
    }

    /// The same scope with values for the running means: for evaluation.
    #[must_use]
    pub fn with_model_state(self, model_state: Tree<Tensor<'g>>) -> Self {
        *self.shared.model_state.borrow_mut() = model_state;
        self
    }

    /// The running mean `name` of this scope: for evaluation. Training [observes](Self::observe) it.
    #[track_caller]
    pub fn running_mean(
        &self,
        name: &str,
        dims: &[usize],
        start: f64,
        momentum: f64,
    ) -> Tensor<'g> {
        let path = self.path(name);
        let Shared { tracer, precision, source, declared, running_means, model_state, .. } =
            &*self.shared;
        let dtype = precision.params;
        let mean = RunningMean { dims: dims.to_vec(), dtype, start, momentum };
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

    /// In training: what this replica's examples say of the running mean `name`.
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

    /// What has been observed so far.
    pub fn observed(&self) -> Tree<Tensor<'g>> {
        self.shared.observed.borrow().clone()
    }

    /// The scope below, under `name`.
    #[must_use]
    pub fn at(&self, name: impl std::fmt::Display) -> Self {
        let name = name.to_string();
        let stream = Stream { path: join(&self.stream.path, &name), ..self.stream.clone() };
        Self { shared: self.shared.clone(), prefix: self.path(&name), stream }
    }

    /// The scope of block `index` of a stack that has this scope. Its random numbers follow from the
    /// index as a number (a u32 scalar) and not as a part of the path, so that a loop's counter gives the
    /// same.
    pub(crate) fn block(&self, index: usize) -> Self {
        let number = self.shared.tracer.scalar(DType::U32, index as f64);
        let mut blocks = self.stream.blocks.clone();
        blocks.push((self.stream.path.clone(), number));
        let stream = Stream { blocks, path: String::new() };
        Self { shared: self.shared.clone(), prefix: self.path(&index.to_string()), stream }
    }

    /// In training: the key of `name`'s random numbers, which follow from (seed, step, path).
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

    /// The parameter `name` of this scope, declared by its global dims, as the tensor to compute with: in
    /// the compute dtype.
    #[track_caller]
    pub fn param(&self, name: &str, dims: &[usize], initializer: Initializer) -> Tensor<'g> {
        self.param_in_full(name, dims, initializer).convert(self.shared.precision.compute)
    }

    /// [`Self::param`] in the dtype that it is kept in: for norms and the like.
    #[track_caller]
    pub fn param_in_full(
        &self,
        name: &str,
        dims: &[usize],
        initializer: Initializer,
    ) -> Tensor<'g> {
        let path = self.path(name);
        let Shared { tracer, precision, source, declared, .. } = &*self.shared;
        let dtype = precision.params;
        let parameter = Parameter { dims: dims.to_vec(), dtype, initializer };
        let tensor = match source {
            Source::Bind(values) => values.get(&path).copied(),
            Source::Declare { varying } => {
                let ty = TensorType::new(dtype, dims).varying(*varying);
                Some(tracer.input(path.clone(), ty))
            }
        };
        let before = declared.borrow_mut().insert(path.clone(), parameter).is_some();
        let before = before || self.shared.running_means.borrow().get(&path).is_some();
        match tensor {
            Some(tensor) if !before => {
                if tensor.shape() != dims {
                    tensor.reject("param", format!("`{path}` is declared with dims {dims:?}"));
                }
                tensor
            }
            Some(tensor) => {
                tensor.reject("param", format!("`{path}` is declared twice"));
                tensor
            }
            None => {
                let missing = tracer.full(dtype, dims, 0.0);
                missing.reject("param", format!("there is no value for the parameter `{path}`"));
                missing
            }
        }
    }

    /// What has been declared so far, in order.
    pub fn parameters(&self) -> Tree<Parameter> {
        self.shared.declared.borrow().clone()
    }

    /// The dtypes of parameters and of computation.
    pub fn precision(&self) -> Precision {
        self.shared.precision
    }

    /// What is there in training only.
    pub fn training(&self) -> Option<Training<'g>> {
        self.shared.training
    }
}

/// A path and what is below it.
fn join(path: &str, name: &str) -> String {
    match (path, name) {
        ("", below) => below.to_owned(),
        (above, "") => above.to_owned(),
        (above, below) => format!("{above}.{below}"),
    }
}
