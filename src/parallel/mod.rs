//! How a step is distributed over the mesh. Belongs to the trace phase.

mod policy;
mod report;
mod stacks;

pub use policy::{Policy, Replicated, Zero};
pub use report::{ParamReport, ShardingReport, Total, WhyWhole};
pub use stacks::reduce_whole_stacks;
