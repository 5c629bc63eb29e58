//! Layers and architectures, written for one device.
//!
//! A layer is a function of tensors and a [`Scope`], which provides its parameters. It does not
//! know about replicas: the same code is correct on any number of them. The exception is
//! [`layers::batch_norm`]: its groups of examples may span several replicas. A model computes the
//! [`Loss`] of a batch, which consists of sums, never means.

use hlo::{DType, Tensor};

mod architecture;
pub mod encoder;
mod foreign;
pub mod gpt;
pub mod layers;
pub mod loss;
pub mod mlp;
mod model_keys;
mod objective;
mod parameter;
mod pipelined;
pub mod resnet;
mod scope;
mod stack;
mod stages;
mod tensor_parallel;

pub use architecture::ModelConfig;
pub use foreign::{
    Counterpart, ForeignFormat, ForeignTensor, Layout, Library, Tied, TransformersConfig,
};
pub use loss::{Batch, Loss, Tally};
pub use model_keys::{Architecture, InvalidValue, MAX_LAYERS, MAX_SIZE};
pub use objective::{LossFunction, Objective, ValueScale};
pub use parameter::{Initializer, Parameter, Precision, RunningMean, TensorUse};
pub use pipelined::{Embedded, Pipelined};
pub use scope::{AttentionKernels, LayerOptions, ParamUse, Scope, Training};
pub use stack::{Stack, stack, stack_with};
pub use stages::Stages;

/// A model: declares its parameters in the scope, and computes the loss of a batch.
///
/// Implemented by every function and closure with the signature of [`Model::loss`].
pub trait Model {
    /// The loss of the examples in `batch`.
    fn loss<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g>;

    /// The model as equal blocks, if it is made of them.
    fn pipelined(&self) -> Option<&dyn Pipelined> {
        None
    }

    /// What the model predicts for the examples in `batch`, float `[b, num_outputs]`, in evaluation
    /// mode: the scores of each class or label, or values; see [`Objective::scores`]. `None` if its
    /// outputs belong to positions of an example. Labels are not used.
    fn scores<'g>(&self, _scope: &Scope<'g>, _batch: &Batch<'g>) -> Option<Tensor<'g>> {
        None
    }

    /// Checks, before tracing, that the model takes examples with this dtype and these dims
    /// (without the batch dim) in the field `x`, and with labels of `num_classes` classes.
    ///
    /// # Errors
    /// If it does not, with a description of the examples that the model takes.
    fn check_example(
        &self,
        _dtype: DType,
        _dims: &[usize],
        _num_classes: usize,
    ) -> Result<(), Misfit> {
        Ok(())
    }
}

/// Why a model does not take the examples. `takes` describes the examples that it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// Floats in place of tokens, or tokens in place of floats.
    Kind {
        /// The inputs that it takes.
        takes: String,
    },
    /// Wrong dims.
    Dims {
        /// The inputs that it takes.
        takes: String,
    },
    /// More classes than the model has.
    Classes {
        /// The inputs that it takes.
        takes: String,
    },
}

impl<F> Model for F
where
    F: for<'g> Fn(&Scope<'g>, &Batch<'g>) -> Loss<'g>,
{
    fn loss<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
        self(scope, batch)
    }
}
