//! What the watchdog finds, and how it says so.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::cluster::report::{Phase, SlowCause};

/// Where a process runs, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerName {
    /// Its host.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
    /// Its replicas, in global numbers; empty if they are not known.
    pub replicas: Range<usize>,
}

/// A process, and what it did last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// Index in the job.
    pub process_index: usize,
    /// Host, process id, replicas.
    pub name: WorkerName,
    /// Its phase as of its last report.
    pub phase: Phase,
    /// Its step as of its last report.
    pub step: u64,
}

/// Something that is wrong with a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// A process does not report.
    Dead {
        /// Which.
        who: Culprit,
        /// Time since its last report.
        silent: Duration,
    },
    /// A process reports, but does not finish its phase, and others wait for it.
    Stuck {
        /// Which.
        who: Culprit,
        /// Time in this phase.
        lasted: Duration,
        /// How long the phase may last.
        limit: Duration,
        /// Other processes.
        num_waiting: usize,
    },
    /// All processes wait, and nothing tells for which.
    Standstill {
        /// How many.
        num_processes: usize,
        /// The phase of the first.
        phase: Phase,
        /// The step of the first.
        step: u64,
        /// How long all have waited.
        lasted: Duration,
    },
    /// A process takes longer than the others, which wait for it in every step.
    Slow {
        /// Which.
        who: Culprit,
        /// Its own time, in multiples of the others'.
        factor: f64,
        /// The first of the slow steps.
        since_step: u64,
        /// What makes it slow.
        cause: SlowCause,
    },
}

impl Verdict {
    /// The process that is at fault, if it is known.
    pub fn who(&self) -> Option<&Culprit> {
        match self {
            Self::Dead { who, .. } | Self::Stuck { who, .. } | Self::Slow { who, .. } => Some(who),
            Self::Standstill { .. } => None,
        }
    }

    /// `true` if the job cannot go on. Slow processes only cost time.
    pub fn is_fatal(&self) -> bool {
        !matches!(self, Self::Slow { .. })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dead { who, silent } => {
                let Culprit { phase, step, .. } = who;
                write!(f, "{who} is dead: no heartbeat for {}", lasting(*silent))?;
                write!(f, ", last seen in {phase} at step {step}")
            }
            Self::Stuck { who, lasted, limit, num_waiting } => {
                let Culprit { phase, step, .. } = who;
                let (lasted, limit) = (lasting(*lasted), lasting(*limit));
                write!(f, "{who} is stuck: in {phase} at step {step} for {lasted}, limit {limit}")?;
                match num_waiting {
                    0 => Ok(()),
                    1 => f.write_str("; 1 process waits for it"),
                    _ => write!(f, "; {} processes wait for it", grouped(*num_waiting)),
                }
            }
            Self::Standstill { num_processes, phase, step, lasted } => {
                match num_processes {
                    1 => f.write_str("the only process is in ")?,
                    _ => write!(f, "all {} processes are in ", grouped(*num_processes))?,
                }
                write!(f, "{phase} at step {step} for {}, ", lasting(*lasted))?;
                f.write_str("and none differs from the others: look at the network and the devices")
            }
            Self::Slow { who, factor, since_step, cause } => {
                write!(f, "{who} is slow: {factor:.2} times the others' own time ")?;
                write!(f, "since step {since_step}; {}", cause.text())
            }
        }
    }
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} {}", self.process_index, self.name)
    }
}

/// "(host a, pid 7, replicas 2 to 3)".
impl fmt::Display for WorkerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, pid, replicas } = self;
        write!(f, "(host {host}, pid {pid}")?;
        match replicas.len() {
            0 => f.write_str(")"),
            1 => write!(f, ", replica {})", replicas.start),
            _ => write!(f, ", replicas {} to {})", replicas.start, replicas.end - 1),
        }
    }
}

/// A duration in words: `2.4 s`, `31 s`, `3 min 5 s`, `2 h 10 min`.
pub(super) fn lasting(duration: Duration) -> String {
    let secs = duration.as_secs();
    match secs {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..120 => format!("{secs} s"),
        120..7200 => format!("{} min {} s", secs / 60, secs % 60),
        _ => format!("{} h {} min", secs / 3600, secs / 60 % 60),
    }
}

/// A count with a comma after every three digits.
pub(super) fn grouped(count: usize) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
