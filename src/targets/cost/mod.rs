//! The cost model: predicted time of a step on absent hardware.
//!
//! * Collectives: latency per hop and time per byte (alpha and beta), by algorithm
//!   ([`hlo::Algorithm`]) on a described [`Fabric`].
//! * Collectives within one process: caches and memory instead of wires ([`InProcess`]).
//! * Compute: a roofline. Each matmul takes the longer of the times for its FLOPs and for its
//!   bytes, everything else the time for its bytes ([`Work::seconds`]).
//! * Groups: what connects the replicas of a group, from where a target's replicas are
//!   ([`DeviceLayout`]).
//! * Overlap: collectives run one after another, each as soon as its operands are known
//!   ([`Timeline`]), or as scheduled in the compiled program.
//!
//! * Waiting for the slowest device, by the spread of step times ([`expected_maximum`]).
//! * Other networks than the target's, by name ([`NamedNetwork`]), measured ones
//!   ([`MeasuredFabric`]), and changed ones ([`WhatIf`]).
//! * Failures: the best interval between checkpoints, and what is left of the time ([`Failures`]).
//! * Slow steps of some processes, resampled from a run ([`Stragglers`]).
//!
//! Input pipelines are not modelled, nor traffic of others on the network.

mod collective;
mod fabric;
mod failures;
mod in_process;
mod jitter;
mod layout;
mod line_fit;
mod measured;
mod network;
mod roofline;
mod stragglers;
mod timeline;
mod what_if;

pub use collective::{all_gather, all_reduce, all_reduce_by, reduce_scatter, seconds};
pub use fabric::{Fabric, Group, RegionLinks, Wire};
pub use failures::Failures;
pub use in_process::InProcess;
pub use jitter::{STEP_VARIATION, expected_maximum, num_varying, waiting_secs};
pub use layout::DeviceLayout;
pub use line_fit::{FittedValue, LineFit};
pub use measured::{CollectiveSpan, DIRECT, MeasuredCollective, MeasuredFabric, MeasuredPoint};
pub use network::{NamedNetwork, NetworkError};
pub use roofline::Work;
pub use stragglers::{RecordedSteps, Remedy, ResampledSteps, Stragglers};
pub(super) use timeline::first_group;
pub use timeline::{AllReduced, StepTime, Timeline};
pub use what_if::{WhatIf, WhatIfError};
