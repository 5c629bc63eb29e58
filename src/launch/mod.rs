//! The supervisor of a host: starts workers, passes on what they write, and starts them again after
//! a failure.
//!
//! ```text
//! lockstep launch --num-processes 4 -- train run.toml --out run --resume
//!   coordinator (in one of the supervisors) <- heartbeats, wishes, values -> 4 x lockstep train run.toml ...
//! ```
//! The coordinator decides: it directs every supervisor to start the processes of a generation, to
//! end them, and to end itself. A worker ends when its supervisor does, however that ends.

mod beforehand;
mod snapshots;
mod supervisor;
mod worker;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use crate::cluster::{self, JobSize, Secret, Tls, TlsError};

pub use supervisor::{coordinate, launch};

/// Names of the environment variables by which a supervisor tells its workers what they are.
pub mod variable {
    /// The coordinator, `HOST:PORT`.
    pub const COORDINATOR: &str = "LOCKSTEP_COORDINATOR";
    /// Index of the process.
    pub const PROCESS_INDEX: &str = "LOCKSTEP_PROCESS_INDEX";
    /// Number of processes.
    pub const NUM_PROCESSES: &str = "LOCKSTEP_NUM_PROCESSES";
    /// Index of the process among those on its host.
    pub const LOCAL_PROCESS_INDEX: &str = "LOCKSTEP_LOCAL_PROCESS_INDEX";
    /// Number of processes on the host.
    pub const NUM_LOCAL_PROCESSES: &str = "LOCKSTEP_NUM_LOCAL_PROCESSES";
    /// The attempt at the job.
    pub const GENERATION: &str = "LOCKSTEP_GENERATION";
    /// Number of processes with all hosts of a job that can do with fewer.
    pub const FULL_PROCESSES: &str = "LOCKSTEP_FULL_PROCESSES";
    /// With `1` hosts may come and leave: also a process that is alone belongs to a job.
    pub const IS_FLEXIBLE: &str = "LOCKSTEP_IS_FLEXIBLE";
    /// How long a worker waits for directories that another process has, in seconds.
    pub const START_WITHIN_SECS: &str = "LOCKSTEP_START_WITHIN_SECS";
    /// The name of the job.
    pub const JOB: &str = "LOCKSTEP_JOB";
    /// What all processes share, as hexadecimal digits.
    pub const TOKEN: &str = "LOCKSTEP_TOKEN";
    /// File with the authority of the coordinator's certificate.
    pub const TLS_CA: &str = "LOCKSTEP_TLS_CA";
    /// With `1` a process of the CPU backend says nothing of its waits in collectives, as on an
    /// accelerator, where it knows nothing of them. For tests of what is found without.
    pub const HIDE_WAITS: &str = "LOCKSTEP_HIDE_WAITS";
    /// For the process whose block the supervisor shows on its terminal: the supervisor's process
    /// id. What the process itself starts may inherit the variable, but has another parent.
    pub const SHOWN_BY: &str = "LOCKSTEP_SHOWN_BY";
    /// The numbers of the files in the supervisor that hold snapshots of the process; empty if
    /// there are none.
    pub const SNAPSHOT_SLOTS: &str = "LOCKSTEP_SNAPSHOT_SLOTS";
    /// Where the supervisor serves snapshots; empty if it does not.
    pub const SNAPSHOT_HOLDER: &str = "LOCKSTEP_SNAPSHOT_HOLDER";
    /// Where the supervisors of all hosts do.
    pub const SNAPSHOT_HOLDERS: &str = "LOCKSTEP_SNAPSHOT_HOLDERS";
    /// With `1` the process only compiles what so many processes would start with.
    pub const ONLY_COMPILE: &str = "LOCKSTEP_ONLY_COMPILE";
    /// Process id of the supervisor.
    pub const SUPERVISOR: &str = "LOCKSTEP_SUPERVISOR";
}

/// What a supervisor starts, and how it treats failures.
#[derive(Clone, Debug)]
pub struct LaunchOptions {
    /// The program that workers run.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Certificates of the coordinator, and the file with the authority, for the workers.
    pub tls: (Tls, Option<PathBuf>),
    /// The name of the job.
    pub job: String,
    /// What all processes share.
    pub secret: Secret,
    /// How many hosts, each with a supervisor, and processes the job may have.
    pub size: JobSize,
    /// Number of processes on this host.
    pub num_local: usize,
    /// Index of this host, if a launcher has given it one: the order of hosts follows it.
    pub host_index: Option<usize>,
    /// Where the coordinator listens, `HOST:PORT`, if there are several hosts. It runs in the
    /// supervisor that can listen there, unless it is elsewhere.
    pub coordinator: Option<String>,
    /// The coordinator is standalone.
    pub is_coordinator_elsewhere: bool,
    /// Restarts in a row without a new checkpoint.
    pub max_restarts: usize,
    /// Who sends no report for this long is dead.
    pub dead_after: Duration,
    /// How long a phase of a step may last; `None` follows from measured steps.
    pub stuck_after: Option<Duration>,
    /// Where the last phases of all processes are written when a generation fails.
    pub record_dir: Option<PathBuf>,
    /// Time within which enough supervisors must have started.
    pub start_within: Duration,
    /// The network interface that other supervisors connect to, for copies of snapshots; `None` for
    /// the one on the way to the coordinator.
    pub interface: Option<String>,
}

/// What reaches the supervisor from outside: signals.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    /// The number of the signal that ends the job after saving; 0 for none.
    pub stop: Arc<AtomicUsize>,
    /// A checkpoint is asked for.
    pub save: Arc<AtomicBool>,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaunchEnd {
    /// All processes have done what they were to do.
    Done,
    /// A signal, by its number, has ended them.
    Stopped(usize),
    /// It failed.
    Failed(String),
}

/// Why a supervisor cannot do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// Several hosts need an address where they meet.
    #[error(
        "{num_hosts} hosts need --coordinator HOST:PORT, an address of one of them, and the same \
         --token-file on all"
    )]
    NoCoordinator {
        /// Hosts.
        num_hosts: usize,
    },
    /// The coordinator cannot listen there.
    #[error("the coordinator cannot listen at {address}: {source}")]
    Listen {
        /// `HOST:PORT`.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// Each host would run a coordinator of its own.
    #[error(
        "--coordinator {address} is no address at which other hosts reach one: give an address of \
         one of the hosts, the same on all"
    )]
    Unspecified {
        /// `HOST:PORT`.
        address: String,
    },
    /// The coordinator's certificate is missing.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A worker cannot be started.
    #[error("cannot start {}: {source}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The coordinator does not answer, or refuses this supervisor.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
}
