//! Layers and architectures, written for one device.
//!
//! A layer is a function of a [`Scope`], which hands it its parameters, and of tensors. It knows nothing
//! of replicas: batches and parameters arrive so that ordinary maths on them is right on any number
//! of them. Only [`layers::batch_norm`] knows, whose groups of examples may lie on several. A model turns a batch into a [`Loss`], which is sums, never means.

use hlo::DType;

mod architecture;
mod foreign;
pub mod gpt;
pub mod layers;
pub mod loss;
pub mod mlp;
pub mod resnet;
mod scope;
mod stack;

pub use architecture::{Architecture, InvalidValue, MAX_LAYERS, MAX_SIZE, ModelConfig};
pub use foreign::{ForeignFormat, Layout};
pub use loss::{Batch, Loss};
pub use scope::{Initializer, Parameter, Precision, RunningMean, Scope, Training};
pub use stack::{Stack, stack};

/// A model: declares its parameters in the scope, and computes the loss of a batch.
///
/// Implemented by every function and closure of this shape.
pub trait Model {
    /// The loss of the examples in `batch`.
    fn loss<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g>;

    /// Does the model take examples whose field `x` is of this dtype and these dims, and that are of so many
    /// classes? To be asked before it is traced, which fails deep inside it if not.
    ///
    /// # Errors
    /// What it takes instead.
    fn check_example(
        &self,
        _dtype: DType,
        _dims: &[usize],
        _num_classes: usize,
    ) -> Result<(), Misfit> {
        Ok(())
    }
}

/// Examples that a model does not take. `takes` says what it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// Numbers for tokens, or the other way round.
    Kind {
        /// What it takes.
        takes: String,
    },
    /// Dims.
    Dims {
        /// What it takes.
        takes: String,
    },
    /// More classes than it has.
    Classes {
        /// What it takes.
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
