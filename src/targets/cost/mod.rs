//! The cost model: predicted time of a step on absent hardware.
//!
//! * Collectives: latency per hop and time per byte (alpha and beta), by algorithm
//!   ([`Algorithm`]) on a described [`Fabric`].
//! * Collectives within one process: caches and memory instead of wires ([`InProcess`]).
//! * Compute: a roofline. Matmuls take the longer of the time for their FLOPs and for their bytes, everything
//!   else the time for its bytes ([`Work::seconds`]).
//! * Groups: what connects the replicas of a group, from where a target's replicas are ([`DeviceLayout`]).
//! * Overlap: collectives run one after another, each as soon as its operands are known ([`Timeline`]), or as scheduled in
//!   the compiled program.
//!
//! It predicts what the hardware allows; congestion, stragglers and input pipelines are not modelled.

mod collective;
mod fabric;
mod in_process;
mod layout;
mod roofline;
mod timeline;

pub use collective::{Algorithm, all_gather, all_reduce, reduce_scatter, seconds};
pub use fabric::{Fabric, Group, Wire};
pub use in_process::InProcess;
pub use layout::DeviceLayout;
pub use roofline::Work;
pub(super) use timeline::first_group;
pub use timeline::{StepTime, Timeline};
