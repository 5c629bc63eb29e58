//! Declarations of layers: parameters and running means.

use hlo::random::{GlobalSlice, Key};
use hlo::{Axis, AxisSet, DType, LeafSpec, Mesh, Tensor};

/// The dtypes of a model's parameters and computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    /// Dtype of parameters, gradients, optimizer state, losses and metrics.
    pub params: DType,
    /// Dtype of activations and matrix products. Sums are still accumulated in f32 or wider.
    pub compute: DType,
}

impl Precision {
    /// Everything in one dtype.
    pub const fn uniform(dtype: DType) -> Self {
        Self { params: dtype, compute: dtype }
    }
}

/// How a parameter is initialized.
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

    /// `true` if the values depend on the key.
    pub fn is_random(self) -> bool {
        matches!(self, Initializer::Normal { .. } | Initializer::Uniform { .. })
    }

    /// The values of the slice's elements, drawn with the parameter's key. With a vector of keys,
    /// draws as many parameters, stacked along dim 0.
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

/// What a replica along the axis `tensor` has of a parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TensorUse {
    /// All of it. Layers use it where activations are the same on all replicas along the axis.
    #[default]
    Replicated,
    /// All of it. Layers use it where activations differ, so its gradient is summed over the axis.
    Varying,
    /// A piece of this dim, which is one of one block's parameter.
    Cut(usize),
    /// The same, of a dim that the replicas need not divide: pieces have the same size, and the
    /// last end with zeros; see [`LeafSpec::is_padded`].
    CutAndPadded(usize),
}

impl TensorUse {
    /// The dim that is cut.
    pub fn cut_dim(self) -> Option<usize> {
        match self {
            Self::Replicated | Self::Varying => None,
            Self::Cut(dim) | Self::CutAndPadded(dim) => Some(dim),
        }
    }
}

/// A parameter as a layer declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Global dims.
    pub dims: Vec<usize>,
    /// Element type in which it is kept.
    pub dtype: DType,
    /// How it is initialized.
    pub initializer: Initializer,
    /// Element type of the tensor that the layer gets.
    pub used_in: DType,
    /// Element type to which its values may be rounded before the layer gets them.
    pub rounded_to: DType,
    /// Number of leading dims that count the blocks of a scan. If it is not 0, this stands for one
    /// parameter of each block, and its path has a `*` in place of each index. 0 for an ordinary
    /// parameter.
    pub num_stacked: usize,
    /// `true` if the leading dims are those of a pipeline, [`LeafSpec::PIPELINE_DIMS`]: each
    /// replica along the axis `pipeline` has the rows of its own stage.
    pub is_pipelined: bool,
    /// What a replica along the axis `tensor` has of it. [`TensorUse::Replicated`] on a mesh
    /// without this axis.
    pub tensor: TensorUse,
}

impl Parameter {
    /// The dims of what one replica of the mesh has.
    pub(crate) fn local_dims(&self, mesh: &Mesh) -> Vec<usize> {
        let mut dims = self.dims.clone();
        if let Some(dim) = self.tensor.cut_dim() {
            let size = &mut dims[self.num_stacked + dim];
            *size = size.div_ceil(mesh.size(Axis::Tensor));
        }
        if self.is_pipelined {
            dims[1] /= mesh.size(Axis::Pipeline);
        }
        dims
    }

    /// The axes over which replicas have pieces of it, or use it for other activations though they
    /// have the same examples.
    pub(crate) fn varying(&self) -> AxisSet {
        let over_tensor = match self.tensor {
            TensorUse::Replicated => AxisSet::EMPTY,
            TensorUse::Varying | TensorUse::Cut(_) | TensorUse::CutAndPadded(_) => {
                Axis::Tensor.into()
            }
        };
        if self.is_pipelined { over_tensor | Axis::Pipeline.into() } else { over_tensor }
    }

    /// Its leaf in a state, with rows whole on every replica.
    pub fn leaf(&self) -> LeafSpec {
        let is_padded = matches!(self.tensor, TensorUse::CutAndPadded(_));
        let leaf = leaf(self.dtype, &self.dims, self.num_stacked);
        let leaf = LeafSpec { is_padded, ..leaf };
        match (self.is_pipelined, leaf.stack_sizes()) {
            (true, &[chunks, stages, blocks]) => {
                leaf.row().stacked_over_stages([chunks, stages, blocks])
            }
            _ => leaf,
        }
    }
}

/// A statistic that training observes and evaluation uses; part of the model state. Each step adds
/// `momentum * (observed - mean)`, where `observed` is the mean over replicas and microbatches.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningMean {
    /// Dims, the same on every replica.
    pub dims: Vec<usize>,
    /// Element type: that of parameters.
    pub dtype: DType,
    /// Initial value of all elements.
    pub start: f64,
    /// Weight of the new observation in a step, 0 to 1, as in PyTorch.
    pub momentum: f64,
    /// As in [`Parameter::num_stacked`].
    pub num_stacked: usize,
}

impl RunningMean {
    /// Its leaf in a state, whole on every replica.
    pub fn leaf(&self) -> LeafSpec {
        leaf(self.dtype, &self.dims, self.num_stacked)
    }
}

fn leaf(dtype: DType, dims: &[usize], num_stacked: usize) -> LeafSpec {
    let (sizes, row) = dims.split_at(num_stacked);
    LeafSpec::replicated(dtype, row).stacked(sizes)
}
