//! How a step is distributed over the mesh. Belongs to the trace phase.

mod policy;

pub use policy::{Policy, Replicated, Zero};
