//! Arguments of `launch` and of `coordinator`.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use super::path;
use crate::config::HostPort;

/// Arguments of `launch`.
#[derive(Debug, clap::Args)]
pub struct LaunchArgs {
    /// Number of processes, on all hosts; by default one per core of this host, on each
    #[arg(long, value_name = "N")]
    pub num_processes: Option<NonZeroUsize>,
    /// Number of hosts; on each, start `lockstep launch` with the same arguments but for
    /// --host-index
    #[arg(long, value_name = "N", default_value = "1")]
    pub hosts: NonZeroUsize,
    /// Index of this host, from 0
    #[arg(long, value_name = "I", default_value_t = 0)]
    pub host_index: usize,
    /// Where the coordinator listens; needed with several hosts. It runs on host 0: if that host is
    /// lost, the job waits until it is back
    #[arg(long, value_name = "HOST:PORT")]
    pub coordinator: Option<HostPort>,
    /// At --coordinator runs a `lockstep coordinator`, which has the options of failures
    #[arg(
        long,
        requires = "coordinator",
        conflicts_with_all = [
            "max_restarts", "dead_after_secs", "stuck_after_secs", "record_dir", "tls_certificate",
            "tls_key",
        ],
    )]
    pub external_coordinator: bool,
    #[command(flatten)]
    pub rules: JobRules,
    /// The command of each process: train CONFIG ..., or a measurement: bench ...
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Arguments of `coordinator`.
#[derive(Debug, clap::Args)]
pub struct CoordinatorArgs {
    /// Where it listens: an address of this host that all hosts of the job reach
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: HostPort,
    #[command(flatten)]
    pub rules: JobRules,
}

/// Who belongs to a job, and what is done about failures.
#[derive(Debug, clap::Args)]
pub struct JobRules {
    /// File with the token that all hosts share: at least 32 hexadecimal digits. Or set
    /// LOCKSTEP_TOKEN
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub token_file: Option<PathBuf>,
    /// PEM file with the authority that has signed the coordinator's certificate, if it has one; on
    /// all hosts. Without, TLS is by keys that follow from the token
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub tls_ca: Option<PathBuf>,
    /// PEM file with the coordinator's certificate, where it runs
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub tls_certificate: Option<PathBuf>,
    /// PEM file with the private key of the certificate, where the coordinator runs
    #[arg(long, value_name = "FILE", value_parser = path())]
    pub tls_key: Option<PathBuf>,
    /// Restarts in a row without a new checkpoint, after which the job fails
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub max_restarts: usize,
    /// Seconds without a report after which a worker, a supervisor or the coordinator counts as
    /// dead; each sends four reports in that time. Above 8, other limits are longer in proportion
    #[arg(long, value_name = "SECS", default_value_t = 8.0)]
    pub dead_after_secs: f64,
    /// Seconds that a phase of a step may last, after which the process is stuck; by default 20
    /// times a step, at least 30
    #[arg(long, value_name = "SECS")]
    pub stuck_after_secs: Option<f64>,
    /// Directory for flight_recorder.jsonl: what each process did last, written when some fail
    #[arg(long, value_name = "DIR", value_parser = path())]
    pub record_dir: Option<PathBuf>,
    /// Seconds within which all supervisors must have started, or have come back after a failure
    #[arg(long, value_name = "SECS", default_value_t = 300.0)]
    pub start_within_secs: f64,
}

pub const COORDINATOR_HELP: &str = "\
It keeps who belongs to the job, and directs the supervisors. It may run on any host that the others
reach, needs no devices, and keeps nothing on disk: when it is started again at its address within
--dead-after-secs, the processes go on. After a longer time they end, and start again from the newest
checkpoint. It serves one job after the other until a signal ends it; that ends no job.";
