//! The cost model: predicted time of a step on absent hardware.
//!
//! * Collectives: latency per hop and time per byte (alpha and beta), by algorithm
//!   ([`Algorithm`]) on a described [`Fabric`].
//! * Collectives within one process: caches and memory instead of wires ([`InProcess`]).
//! * Compute: a roofline. Matmuls take the longer of the time for their FLOPs and for their bytes, everything
//!   else the time for its bytes ([`Work::seconds`]).
//! * Overlap: gradients are reduced one after another as they become final ([`Timeline`]), or as scheduled in
//!   the compiled program.
//!
//! It predicts what the hardware allows; congestion, stragglers and input pipelines are not modelled.

mod collective;
mod fabric;
mod in_process;
mod roofline;
mod timeline;

pub use collective::{Algorithm, all_gather, all_reduce, reduce_scatter};
pub use fabric::{Fabric, Group, Wire};
pub use in_process::InProcess;
pub use roofline::Work;
pub use timeline::{StepTime, Timeline};
