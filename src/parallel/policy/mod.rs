//! Policies: how the batch is split, how parameters are sharded, and when they are gathered.

mod replicated;
mod zero;

use std::fmt;

use hlo::{AxisSet, Mesh, Sharding, Tensor};

pub use replicated::Replicated;
pub use zero::Zero;

/// How a step is distributed over the mesh.
///
/// A parameter has three forms: *kept* in the state, sharded by [`Self::place`]; *held* for one step
/// ([`Self::for_step`], once, before the microbatches); and *used* by a layer ([`Self::for_use`], wherever the
/// model requests the parameter, including in the body of a scan or remat). The gradient's collectives are the
/// vector-Jacobian products of the last two, so no model or policy can omit them.
pub trait Policy: fmt::Debug + Send + Sync {
    /// The axes over which the batch is split.
    fn batch_axes(&self) -> AxisSet;

    /// The sharding of the parameter at `path`, with these global dims, and of its optimizer state. Parameters that are
    /// stored as the rows of one leaf have one sharding: `dims` are those of a row, and `path` has a `*` in place of the
    /// block's index.
    fn place(&self, path: &str, dims: &[usize], mesh: &Mesh) -> Sharding;

    /// The tensor that a step holds, from the one kept in the state: a parameter, or the stack of the parameters of all
    /// scanned blocks, sharded as `sharding` says. Its type varies over [`Self::batch_axes`].
    fn for_step<'g>(&self, kept: Tensor<'g>, sharding: &Sharding) -> Tensor<'g>;

    /// The whole parameter, from the tensor that the step holds: the same tensor unless the policy gathers at use.
    fn for_use<'g>(&self, held: Tensor<'g>, _sharding: &Sharding) -> Tensor<'g> {
        held
    }
}
