//! The processes of a run: how they find each other, what they agree on, and the collectives of the
//! CPU backend between them.
//!
//! | | |
//! |---|---|
//! | [`environment`] | which process this is, from what a launcher has set |
//! | [`Coordinator`] | keeps membership, values and wishes of a job; runs in a supervisor or in process 0 |
//! | [`Session`], [`SupervisorSession`] | a process's, and a supervisor's, side of it |
//! | [`Member`] | a process of a job: its session, and its connections to the others |
//! | [`Rendezvous`] | collectives that processes compute, connected by [`Links`] |
//! | [`Watchdog`], [`FlightRecorder`] | who is dead, stuck or slow, and what each did last |
//! | [`SnapshotHolder`], [`SnapshotAccess`] | snapshots of the state in the memory of supervisors |
//! | [`device_order`] | which device runs which replica |

pub mod awake;
mod codec;
mod coordinator;
mod device_order;
pub mod environment;
mod flight_recorder;
mod heartbeats;
mod host_collectives;
mod member;
mod members;
mod messages;
mod overseer;
mod own_host;
mod report;
mod roster;
mod secret;
mod session;
mod snapshots;
mod tls;
mod token_tls;
mod watchdog;
mod wish;

pub use coordinator::{Coordinator, CoordinatorOptions, JobChange, Watcher};
pub use device_order::{PlacedDevice, device_order, fsdp_line};
pub use flight_recorder::FlightRecorder;
pub use host_collectives::{LastProcess, LaunchWaits, LinkError, LinkOptions, Links, Rendezvous};
pub use member::{Member, MemberError, MemberOptions};
pub use members::{Directive, Formation, GenerationEnd, Holders, Peer, SlowPeer};
pub use overseer::Overseer;
pub use own_host::{Whereabouts, host_name, interface_address, local_address, slower_interface};
pub use report::{Phase, PhaseChange, ProbeTime, Report, SlowCause, StepTimes, thin};
pub use roster::{HostPlace, JobSize};
pub use secret::{Secret, SecretError, random_bytes};
pub use session::{
    Cause, Contact, Error, HeldProcesses, JoinOptions, Session, SupervisorOptions,
    SupervisorSession,
};
pub use snapshots::{
    HolderLink, LostParts, SlotWriter, SnapshotAccess, SnapshotFile, SnapshotHolder, SnapshotId,
    SnapshotPart, SnapshotRecord, SnapshotSet, SnapshotSlot, check_memory,
};
pub use tls::{Tls, TlsError, TlsFiles};
pub use watchdog::{Culprit, DEAD_AFTER, Limits, Verdict, Watchdog, WorkerName};
pub use wish::{AgreedWish, INTERRUPTED, REGROUP, REGROUP_CODE, Wish, ends_well};
