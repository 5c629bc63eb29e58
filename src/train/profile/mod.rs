//! Where the time of a step goes, op by op. Belongs to the run phase.
//!
//! XLA's CPU plugin has no profiler extension. But its runtime writes a line on stderr for each op that it
//! starts, with the time in microseconds, where the environment asks for it. So a child process runs a few
//! steps of one replica on a single processor, where ops come one after the other and the time from one
//! start to the next is the op's. That is work, not waiting: on several processors the step takes less, and
//! how much less says how well the program spreads.

mod launch_log;
mod table;
mod worker;

use std::process::Command;

pub use table::{OpTime, OpTimes, Share};
pub use worker::serve_ops;

use crate::pjrt;
use crate::targets;

/// Why there are no times of ops.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The process that runs the steps cannot be started.
    #[error("cannot start a process to time the ops in: {source}")]
    Start {
        /// The system's reason.
        source: std::io::Error,
    },
    /// It ended with an error.
    #[error("the process that times the ops failed: {said}")]
    Worker {
        /// What it said.
        said: String,
    },
    /// Not XLA's CPU backend, or one that logs in another form.
    #[error(
        "the plugin logs no op that it starts; the times of ops are known only for XLA's CPU backend, \
         run without --profile for the others"
    )]
    NoOps,
    /// The optimised program cannot be read.
    #[error("the optimised program cannot be read: {reason}")]
    Program {
        /// What is wrong with it.
        reason: String,
    },
    /// A program that cannot be compiled or run.
    #[error(transparent)]
    Train(#[from] super::Error),
}

impl From<pjrt::Error> for ProfileError {
    fn from(error: pjrt::Error) -> Self {
        Self::Train(error.into())
    }
}

/// Runs `worker`, a command that ends in [`serve_ops`], and sums up what its steps were made of.
///
/// # Errors
/// See [`ProfileError`].
pub fn time_ops(mut worker: Command) -> Result<OpTimes, ProfileError> {
    for (name, value) in launch_log::ENVIRONMENT {
        worker.env(name, value);
    }
    let output = worker.output().map_err(|source| ProfileError::Start { source })?;
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(ProfileError::Worker { said: launch_log::without_log_lines(&log) });
    }
    let unreadable = |reason: String| ProfileError::Program { reason };
    let instructions =
        targets::instructions(&output.stdout).map_err(|error| unreadable(error.to_string()))?;
    OpTimes::new(&launch_log::steps(&log), &instructions).ok_or(ProfileError::NoOps)
}
