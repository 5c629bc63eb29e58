//! How a step is distributed over the mesh. Belongs to the trace phase.
//!
//! `tests/training/meshes.rs` trains each model on each mesh and compares it with one replica;
//! `tests/training/zero.rs` counts the bytes of each stage. `docs/parallelism.md` says what each
//! stage costs.

mod policy;
mod report;

pub use policy::{Policy, Replicated, UseDTypes, WhyWhole, Zero, ZeroStage};
pub use report::{LeafTotals, ParamReport, ShardingReport};
