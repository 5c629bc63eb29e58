//! Ahead-of-time compilation: compiling the exact step for a TPU slice or a GPU cluster without the
//! hardware, and predicting its memory and time.
//!
//! A [`Target`] names a chip and how many are connected how. [`compile`] does no lowering: it takes
//! the step's program as `train` would build it for that many replicas, runs the chip's own
//! compiler in a child process ([`worker`]), and reads memory and schedule from the result.
//! [`cost`] predicts times.

mod advice;
mod backups;
mod chips;
mod collective;
mod compile;
pub mod cost;
pub mod flags;
mod hlo_proto;
mod instruction;
mod lifetimes;
mod listing;
mod memory;
mod ordering;
mod report;
mod row;
mod scaling;
mod schedule;
mod slices;
mod target;
pub mod worker;

pub use advice::{Knobs, MemoryAdvice, Suggestion, candidates};
pub use backups::{BackupRow, BackupSimulation};
pub use chips::{CHIPS, Calibration, Chip, Family, GpuArchitecture, GpuSpec, TpuSpec};
pub use collective::{Collective, CollectivePhase, CollectiveSum};
pub use compile::{ByLine, DUMPED, Error, Step, compile, scatter_line};
pub use instruction::{Instruction, instructions};
pub use memory::{Memory, gib};
pub use ordering::unordered_collectives;
pub use report::{AttentionForm, CompileReport, ScatterForm};
pub use row::Row;
pub use scaling::{AllReduce, Measured, ScalingPrediction, Scenario, sizes};
pub use schedule::gathered_bytes;
pub use target::{Arrangement, Target, TargetError};
