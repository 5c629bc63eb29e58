//! What workers and supervisors learn about the job they belong to.

use std::time::Duration;

use super::messages::{self as wire, DirectiveKind, DirectiveRow, GenerationRow, PeerRow, SlowRow};
use super::report::SlowCause;
use super::roster::{HostPlace, index};

/// A process of the generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Name of its host.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// Where it accepts connections of the other processes, as it announced it; empty if nowhere.
    pub data_address: String,
}

/// How a generation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenerationEnd {
    /// The generation, from 1.
    pub generation: u64,
    /// Indices of the processes that failed; empty if it was none of them.
    pub processes: Vec<usize>,
    /// Why.
    pub reason: String,
    /// The largest step that any process had reported.
    pub step: u64,
}

/// How a generation came about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Formation {
    /// Number of hosts; 0 without supervisors.
    pub num_hosts: usize,
    /// What began it: `start` of the job, `failure` of the generation before, or `hosts` that came
    /// or left.
    pub after: &'static str,
    /// From the failure, or the end of the processes before, until supervisors were told to start.
    pub agree: Duration,
    /// From there until all processes had joined.
    pub join: Duration,
}

/// A process that takes longer than the others, as the watchdog has found.
#[derive(Clone, Debug, PartialEq)]
pub struct SlowPeer {
    /// Its index.
    pub process_index: usize,
    /// Name of its host.
    pub host: String,
    /// Its own time in a step, in multiples of the others'.
    pub factor: f64,
    /// The first of the slow steps.
    pub since_step: u64,
    /// What makes it slow.
    pub cause: SlowCause,
    /// What its machine tells of why it may be slow; empty if nothing.
    pub machine: String,
    /// All of that for people.
    pub text: String,
}

/// Where the supervisors of a job serve snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// The addresses of all that are there, `HOST:PORT`.
    pub addresses: Vec<String>,
    /// That of the next host of the generation, which keeps copies; empty if there is none.
    pub next: String,
}

/// What a supervisor is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Directive {
    /// Start its processes, as members of this generation.
    Start {
        /// The generation, from 1.
        generation: u64,
        /// The place of this host; `None`: the generation does without it.
        place: Option<HostPlace>,
        /// Processes of the job with all its hosts.
        full_processes: usize,
        /// Where supervisors serve snapshots.
        holders: Holders,
    },
    /// End its processes (SIGKILL), and report each.
    Kill {
        /// Their generation.
        generation: u64,
        /// Why the generation failed.
        reason: String,
    },
    /// End, with all processes that are left.
    End {
        /// All processes left the job in good order.
        is_success: bool,
        /// How the run ended, or why it failed.
        text: String,
        /// The number of the signal by which a process was asked to stop; 0 for none.
        signal: u32,
    },
}

impl From<&PeerRow> for Peer {
    fn from(row: &PeerRow) -> Self {
        Self { host: row.host.clone(), pid: row.pid, data_address: row.data_address.clone() }
    }
}

impl From<&GenerationRow> for GenerationEnd {
    fn from(row: &GenerationRow) -> Self {
        Self {
            generation: row.generation,
            processes: row.processes.iter().map(|&process| process as usize).collect(),
            reason: row.reason.clone(),
            step: row.step,
        }
    }
}

impl From<&wire::FormationRow> for Formation {
    fn from(row: &wire::FormationRow) -> Self {
        let after = match row.cause() {
            wire::Cause::Start => "start",
            wire::Cause::Failure => "failure",
            wire::Cause::Hosts => "hosts",
        };
        Self {
            num_hosts: row.num_hosts as usize,
            after,
            agree: Duration::from_millis(row.agree_ms),
            join: Duration::from_millis(row.join_ms),
        }
    }
}

impl From<&SlowRow> for SlowPeer {
    fn from(row: &SlowRow) -> Self {
        Self {
            process_index: row.process_index as usize,
            host: row.host.clone(),
            factor: row.factor,
            since_step: row.since_step,
            cause: SlowCause::from_code(row.cause),
            machine: row.machine.clone(),
            text: row.text.clone(),
        }
    }
}

impl SlowPeer {
    pub(super) fn to_row(&self) -> SlowRow {
        SlowRow {
            process_index: self.process_index as u32,
            host: self.host.clone(),
            factor: self.factor,
            since_step: self.since_step,
            cause: self.cause.code(),
            machine: self.machine.clone(),
            text: self.text.clone(),
        }
    }
}

impl Directive {
    pub(super) fn to_row(&self) -> DirectiveRow {
        let kind = match self.clone() {
            Self::Start { generation, place, full_processes, holders } => {
                DirectiveKind::Start(wire::StartProcesses {
                    generation,
                    place: place.map(HostPlace::to_row),
                    full_processes: index(full_processes),
                    snapshot_holders: holders.addresses,
                    next_holder: holders.next,
                })
            }
            Self::Kill { generation, reason } => {
                DirectiveKind::Kill(wire::Kill { generation, reason })
            }
            Self::End { is_success, text, signal } => {
                DirectiveKind::End(wire::JobEnd { is_success, text, signal })
            }
        };
        DirectiveRow { kind: Some(kind) }
    }

    pub(super) fn from_row(row: DirectiveRow) -> Option<Self> {
        Some(match row.kind? {
            DirectiveKind::Start(start) => Self::Start {
                generation: start.generation,
                place: start.place.as_ref().map(HostPlace::from),
                full_processes: start.full_processes as usize,
                holders: Holders { addresses: start.snapshot_holders, next: start.next_holder },
            },
            DirectiveKind::Kill(wire::Kill { generation, reason }) => {
                Self::Kill { generation, reason }
            }
            DirectiveKind::End(wire::JobEnd { is_success, text, signal }) => {
                Self::End { is_success, text, signal }
            }
        })
    }
}
