//! Snapshots of the training state in the memory of supervisors.
//!
//! A step donates its state, so after a failure the survivors have none. But their supervisors do:
//! each process copies its part of the state now and then to a *slot*, a file without a name
//! (`memfd`) that its supervisor has made, and the supervisor sends it to that of the next host,
//! in a ring. So a supervisor holds two snapshots of each own process and two of each of the host
//! before: a whole one, and one that is being taken.
//!
//! Snapshots after the same step of the same generation, one of each process, make up the whole
//! state. Whoever begins the next generation asks all supervisors what they hold: nobody keeps
//! account of it, so nothing about it can be out of date, and a coordinator that was started again
//! has nothing to learn. What is in a snapshot only the training knows.
//!
//! | | |
//! |---|---|
//! | [`SnapshotSlot`] | the file, written by a process and read by its supervisor |
//! | [`SnapshotHolder`] | what a supervisor holds and serves |
//! | `link.rs` | connections to holders, by those who have the token of the job |
//! | [`SnapshotAccess`] | what a process gets from its supervisor |

mod access;
mod holder;
mod link;
mod memory;
mod slot;

pub use access::{LostParts, SnapshotAccess, SnapshotFile, SnapshotPart, SnapshotSet};
pub use holder::SnapshotHolder;
pub use link::HolderLink;
pub use memory::check_memory;
pub use slot::{SlotWriter, SnapshotId, SnapshotRecord, SnapshotSlot};
