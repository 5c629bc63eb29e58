//! Policies: how the batch is split, how parameters are sharded, and when they are gathered.

mod replicated;
mod zero;

use std::fmt;

use hlo::{AxisSet, DType, Mesh, Sharding, Tensor};

pub use replicated::Replicated;
pub use zero::{WhyWhole, Zero, ZeroStage};

/// The element types in which a layer uses a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UseDTypes {
    /// Element type of the tensor that the layer gets.
    pub used_in: DType,
    /// Element type to which its values may be rounded before that, and in which they are therefore
    /// gathered.
    pub rounded_to: DType,
}

/// How a step is distributed over the mesh.
///
/// A parameter has four forms: in the *state*, sharded by [`Self::place`]; in a *step*
/// ([`Self::for_step`], once, before the microbatches), where gradients are accumulated in this
/// form; in a *microbatch* ([`Self::for_microbatch`]); and at a *use* by a layer
/// ([`Self::for_use`], wherever the model requests the parameter, including in the body of a scan
/// or remat). The gradient's collectives are the vector-Jacobian products of the last three
/// functions, so no model can omit them.
pub trait Policy: fmt::Debug + Send + Sync {
    /// The axes over which the batch is split.
    fn batch_axes(&self) -> AxisSet;

    /// The sharding of the parameter at `path`, with these global dims, and of its optimizer state.
    /// It must be the same for all blocks of a stack. Parameters that are stored as the rows of one
    /// leaf have one: `dims` are those of a row, and `path` has a `*` in place of the block's
    /// index.
    fn place(&self, path: &str, dims: &[usize], mesh: &Mesh) -> Sharding;

    /// The tensor of a step, from the one in the state: a parameter, or the stack of the
    /// parameters of all scanned blocks, sharded as `sharding` says. Its type varies over
    /// [`Self::batch_axes`].
    fn for_step<'g>(&self, in_state: Tensor<'g>, sharding: &Sharding) -> Tensor<'g>;

    /// The whole parameter, rounded as its use allows, if it is computed once per step and without
    /// a gradient. [`Self::for_microbatch`] then takes only the gradient from the step's tensor,
    /// and only the value from this one.
    fn once_per_step<'g>(
        &self,
        _in_state: Tensor<'g>,
        _sharding: &Sharding,
        _dtypes: UseDTypes,
    ) -> Option<Tensor<'g>> {
        None
    }

    /// The tensor of a microbatch, from that of the step: the same tensor by default.
    fn for_microbatch<'g>(
        &self,
        in_step: Tensor<'g>,
        _once_per_step: Option<Tensor<'g>>,
        _sharding: &Sharding,
        _dtypes: UseDTypes,
    ) -> Tensor<'g> {
        in_step
    }

    /// The whole parameter, from the tensor of the microbatch: the same tensor, unless the policy
    /// gathers at use.
    fn for_use<'g>(
        &self,
        in_microbatch: Tensor<'g>,
        _sharding: &Sharding,
        _dtypes: UseDTypes,
    ) -> Tensor<'g> {
        in_microbatch
    }

    /// `true` if [`Self::for_use`] gathers.
    fn gathers_at_use(&self) -> bool {
        false
    }
}
