//! Ahead-of-time compilation: compiling the exact step for a TPU slice or a GPU cluster without the
//! hardware, and predicting its memory and time.
//!
//! A [`Target`] names a chip and how many are connected how. [`compile`] does no lowering: it takes
//! the step's program as `train` would build it for that many replicas, runs the chip's own
//! compiler in a child process ([`worker`]), and reads memory and schedule from the result.
//! [`cost`] predicts times.
//!
//! | file | what it has |
//! |---|---|
//! | `target.rs`, `slices.rs` | targets by name, and the slices that Cloud TPU has |
//! | `chips.rs` | the figures of every chip, with their sources |
//! | `flags.rs` | XLA options for each chip, for replicated and for sharded state, with what was tried; `train` sets the same ones when it finds that chip |
//! | `compile.rs`, `worker.rs` | compiling, and the child process: some compilers end theirs |
//! | `hlo_proto.rs`, `instruction.rs`, `listing.rs` | reading the optimised program |
//! | `schedule.rs` | its collectives, and what overlaps them in the order of the schedule |
//! | `collective.rs` | what each collective is for, and their sums |
//! | `pipeline.rs` | what the stages of a pipeline wait, keep and send |
//! | `lifetimes.rs` | how long gathered parameters are in memory |
//! | `ordering.rs` | which collectives are not ordered by data |
//! | `memory.rs`, `advice.rs` | whether the step fits, and what to change if not |
//! | `report.rs`, `scaling.rs`, `row.rs`, `finding.rs`, `remedies.rs`, `resilience.rs` | the results, as the commands print them |
//! | [`cost`] | times, from a described fabric, a roofline, and when each collective can run ([`hlo::transfers`]) |
//!
//! [`device_order`](fn@crate::cluster::device_order) assigns devices to replicas, for `compile` and
//! for `train` alike. The assignment is always sent, because plugins' own defaults differ.

mod advice;
mod chips;
mod collective;
mod compile;
pub mod cost;
mod finding;
pub mod flags;
mod hlo_proto;
mod instruction;
mod lifetimes;
mod listing;
mod memory;
mod ordering;
mod pipeline;
mod remedies;
mod report;
mod resilience;
mod row;
mod scaling;
mod schedule;
mod slices;
mod target;
pub mod worker;

pub use advice::{Knobs, MemoryAdvice, ModelPieces, Suggestion, candidates};
pub use chips::{CHIPS, Calibration, Chip, Family, GpuArchitecture, GpuSpec, TpuSpec};
pub use collective::{Collective, CollectivePhase, CollectiveSum};
pub use compile::{ByLine, DUMPED, Error, Step, compile, scatter_line};
pub use instruction::{Instruction, instructions};
pub use memory::{Memory, gib};
pub use ordering::unordered_collectives;
pub use pipeline::{PipelineReport, SentByStages, StepPipeline};
pub use remedies::{RemedyRow, RemedyTable};
pub use report::{AttentionForm, CompileReport, ScatterForm};
pub use resilience::{DeadLink, SpareRow, SpareTable};
pub use row::{PlannedCollectives, Row};
pub use scaling::{AllReduce, Measured, ScalingPrediction, Scenario, sizes};
pub use schedule::gathered_bytes;
pub use target::{Arrangement, Target, TargetError};
