//! How a step is distributed over the mesh. Belongs to the trace phase.

mod policy;
mod report;

pub use policy::{Policy, Replicated, UseDTypes, WhyWhole, Zero, ZeroStage};
pub use report::{LeafTotals, ParamReport, ShardingReport};
