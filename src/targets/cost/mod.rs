//! The cost model: what a step takes on hardware that is not here.
//!
//! * Collectives: a latency for each hop and a time for each byte (alpha and beta), by algorithm
//!   ([`Algorithm`]) on a described [`Fabric`].
//! * Inside one process no wires but caches and memory: [`InProcess`].
//! * Arithmetic: a roofline. Matmuls take the longer of their FLOPs and their bytes, everything else its
//!   bytes ([`Work::seconds`]).
//! * Overlap: gradients are reduced one after the other as they become final ([`Timeline`]), or as the
//!   schedule of the compiled program says.
//!
//! It predicts what the hardware allows, not what congestion, stragglers and input pipelines leave of it.

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
