//! Hardware that is not here: compiling the exact step for a TPU slice or a GPU cluster, and predicting
//! what it takes.
//!
//! A [`Target`] names chips and their arrangement. [`compile`] lowers nothing by itself: it takes the step's
//! graph as `train` would build it for as many replicas, has the chip's own compiler compile it in a child
//! process ([`worker`]), and reads memory and schedule from what comes back. [`cost`] predicts times.

mod chips;
mod compile;
pub mod cost;
pub mod flags;
mod hlo_proto;
mod instruction;
mod listing;
mod memory;
mod report;
mod scaling;
mod schedule;
mod target;
pub mod worker;

pub use chips::{CHIPS, Chip, Family, GpuSpec, TpuSpec};
pub use compile::{Error, Step, compile};
pub use instruction::{Instruction, instructions};
pub use memory::{Knobs, Memory};
pub use report::Report;
pub use scaling::{AllReduce, Measured, Row, ScalingPrediction, sizes};
pub use schedule::Collective;
pub use target::{Arrangement, Target, TargetError};
