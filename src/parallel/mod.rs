//! How a step is distributed over the mesh. Belongs to the trace phase.
//!
//! | file | contents |
//! |---|---|
//! | `layout.rs` | which dims of a parameter are cut: decided by [`ParallelPlan::layout`] alone |
//! | `gather.rs` | the forms of a parameter in a step, from which the collectives of its gradient follow |
//! | `sync.rs` | how the gradients of the replicas are summed |
//! | `narrow.rs`, `quantized.rs` | sums that send fewer bits than they add |
//! | `top_k.rs`, `power_sgd.rs` | sums that send a part of the gradients, and the rest later |
//! | `pipeline.rs` | which stage of a pipeline runs which microbatch at which tick |
//! | `report.rs` | what a replica holds of the state, and why |
//!
//! `tests/training/meshes.rs` trains each model on each mesh and compares it with one replica;
//! `tests/training/zero.rs` counts the bytes of each stage. `docs/parallelism.md` says what each
//! stage costs.

mod gather;
mod layout;
mod narrow;
mod pipeline;
mod power_sgd;
mod quantized;
mod report;
mod sync;
#[cfg(test)]
mod tests;
mod top_k;

pub use gather::{GatherAt, UseDTypes};
pub use layout::{ParallelPlan, ParamLayout, WhyWhole};
pub use narrow::NarrowSum;
pub use pipeline::{PipelinePlan, PipelineSchedule, StagePass, TickPhase};
pub use power_sgd::PowerSgdSum;
pub use quantized::QuantizedSum;
pub use report::{LeafTotals, ParamReport, ShardingReport};
pub use sync::{PlainSum, Synchronize};
pub use top_k::{LocalMomentum, TopKSum};
