//! How a step is distributed over the mesh. Belongs to the trace phase.
//!
//! | file | contents |
//! |---|---|
//! | `layout.rs` | which dims of a parameter are cut: decided by [`ParallelPlan::layout`] alone |
//! | `gather.rs` | the forms of a parameter in a step, from which the collectives of its gradient follow |
//! | `sync.rs` | how the gradients of the replicas are summed |
//! | `pipeline.rs` | which stage of a pipeline runs which microbatch at which tick |
//! | `report.rs` | what a replica holds of the state, and why |
//!
//! `tests/training/meshes.rs` trains each model on each mesh and compares it with one replica;
//! `tests/training/zero.rs` counts the bytes of each stage. `docs/parallelism.md` says what each
//! stage costs.

mod gather;
mod layout;
mod pipeline;
mod report;
mod sync;

pub use gather::{GatherAt, UseDTypes};
pub use layout::{ParallelPlan, ParamLayout, WhyWhole};
pub use pipeline::{PipelinePlan, PipelineSchedule, StagePass, TickPhase};
pub use report::{LeafTotals, ParamReport, ShardingReport};
pub use sync::{PlainSum, Synchronize};
