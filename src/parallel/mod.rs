//! How a step is distributed over the mesh. Belongs to the trace phase.

mod policy;
mod stacks;

pub use policy::{Policy, Replicated, Stage, Zero};
pub use stacks::reduce_whole_stacks;
