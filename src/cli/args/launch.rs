//! Arguments of `launch` and of `coordinator`.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

use super::path;
use crate::config::HostPort;

/// Arguments of `launch`.
#[derive(Debug, clap::Args)]
pub struct LaunchArgs {
    /// Number of processes, if there is one host; by default one per core
    #[arg(long, value_name = "N")]
    pub num_processes: Option<NonZeroUsize>,
    /// Number of hosts, or the least and the most: the job begins with those that come, goes on
    /// with those that are left, and takes in others later. On each, start `lockstep launch` with
    /// the same arguments
    #[arg(long, value_name = "N|MIN:MAX", default_value = "1")]
    pub hosts: HostRange,
    /// Number of processes on each host; by default one per core of this host
    #[arg(long, value_name = "N", conflicts_with = "num_processes")]
    pub processes_per_host: Option<NonZeroUsize>,
    /// Hosts beyond those of --hosts, which wait until one is lost
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub spares: usize,
    /// Where the coordinator listens; needed with several hosts. It runs on the host that has this
    /// address: if that one is lost, the job waits until it is back
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

/// The least and the most hosts of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRange {
    pub min: usize,
    pub max: usize,
}

impl FromStr for HostRange {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const MAX_HOSTS: usize = 1 << 17;
        let number = |text: &str| match text.trim().parse::<usize>() {
            Ok(number @ 1..=MAX_HOSTS) => Ok(number),
            _ => Err("hosts are a number of at least 1, or the least and the most, as in 2:4"),
        };
        let (min, max) = text.split_once(':').unwrap_or((text, text));
        match (number(min)?, number(max)?) {
            (min, max) if min <= max => Ok(Self { min, max }),
            _ => Err("the least number of hosts comes first, as in 2:4"),
        }
    }
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
    /// Seconds within which enough supervisors must have started, or have come back after a failure
    #[arg(long, value_name = "SECS", default_value_t = 300.0)]
    pub start_within_secs: f64,
}

pub const COORDINATOR_HELP: &str = "\
It keeps who belongs to the job, and directs the supervisors. It may run on any host that the others
reach, needs no devices, and keeps nothing on disk: when it is started again at its address within
--dead-after-secs, the processes go on. After a longer time they end, and start again from the newest
checkpoint. It serves one job after the other until a signal ends it; that ends no job.";
