//! The time of each op of a step. Belongs to the run phase.
//!
//! XLA's CPU plugin has no profiler extension. But environment variables make its runtime log a
//! line on stderr for each op that it starts, with the time in microseconds. So a child process
//! runs a few steps of one replica on a single processor, where ops run one after the other and the
//! time from one start to the next is that of the op. The sum is processor time: on several
//! processors the step takes less, and the ratio shows how well the program is parallelized.

mod launch_log;
mod table;
mod worker;

use std::process::{Command, Stdio};

pub use table::{OpTime, OpTimes, Share};
pub use worker::serve_ops;

use crate::children;
use crate::pjrt;
use crate::targets;

/// Why the ops could not be timed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The process that runs the steps cannot be started.
    #[error("cannot start a process to time the ops in: {source}")]
    Start {
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The process ended with an error.
    #[error("the process that times the ops failed: {said}")]
    Worker {
        /// Its stderr without the log.
        said: String,
    },
    /// The backend is not XLA's CPU backend, or logs in another format.
    #[error(
        "the plugin does not log the ops that it starts; ops can be timed only on XLA's CPU \
         backend, run without --profile on others"
    )]
    NoOps,
    /// The optimised program cannot be read.
    #[error("the optimised program cannot be read: {reason}")]
    Program {
        /// The reason.
        reason: String,
    },
    /// A program cannot be compiled or run.
    #[error(transparent)]
    Train(#[from] super::Error),
}

impl From<pjrt::Error> for ProfileError {
    fn from(error: pjrt::Error) -> Self {
        Self::Train(error.into())
    }
}

/// Runs `worker`, a command that calls [`serve_ops`] and ends when its stdin does, and summarizes
/// the ops of its steps.
///
/// # Errors
/// See [`ProfileError`].
pub fn time_ops(mut worker: Command) -> Result<OpTimes, ProfileError> {
    for (name, value) in launch_log::ENVIRONMENT {
        worker.env(name, value);
    }
    worker.stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = children::output(&mut worker).map_err(|source| ProfileError::Start { source })?;
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(ProfileError::Worker { said: launch_log::without_log_lines(&log) });
    }
    let unreadable = |reason: String| ProfileError::Program { reason };
    let instructions =
        targets::instructions(&output.stdout).map_err(|error| unreadable(error.to_string()))?;
    OpTimes::new(&launch_log::steps(&log), &instructions).ok_or(ProfileError::NoOps)
}
