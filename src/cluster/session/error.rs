//! Errors of a session with the coordinator.

use std::io;

use crate::pjrt::{Code, KeyValueError};

/// Why a session cannot begin, or why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody answers.
    #[error(
        "no coordinator answered at {address} within {secs} s ({error}); check the address, that \
         process 0 or `lockstep launch` is running there, and that no firewall blocks the port"
    )]
    Unreachable {
        /// host:port.
        address: String,
        /// How long it was tried.
        secs: u64,
        /// The last error.
        error: String,
    },
    /// One of the two does not belong to the job of the other.
    #[error(
        "what answers at {address} {why}; the coordinator and all processes of a job need the same \
         token and job name"
    )]
    Unauthenticated {
        /// host:port.
        address: String,
        /// What it does.
        why: String,
    },
    /// The coordinator understood, and says no.
    #[error("{0}")]
    Refused(String),
    /// Another one has this place, or had it a moment ago.
    #[error("{0}")]
    Occupied(String),
    /// The coordinator does not know the caller: it was started again.
    #[error("the coordinator was started again: {0}")]
    Forgotten(String),
    /// Some processes did not join in time.
    #[error("after {secs} s: {missing}")]
    NotAllJoined {
        /// Who is missing and who is there.
        missing: String,
        /// The deadline.
        secs: u64,
    },
    /// The generation has ended: a process failed, or the coordinator is gone.
    #[error("{0}")]
    Ended(String),
    /// Others did not arrive in time.
    #[error("{what}: nothing from {missing} within {secs} s")]
    Deadline {
        /// What was waited for.
        what: String,
        /// Who is missing.
        missing: String,
        /// The deadline.
        secs: u64,
    },
    /// No process has set the key, not within the timeout either.
    #[error("the key {0:?} is not set")]
    KeyNotSet(String),
    /// The key is set, to another value.
    #[error("the key {0:?} is set already")]
    KeyIsSet(String),
    /// A value is too large, or there are too many.
    #[error("{0}")]
    TooLarge(String),
    /// The certificate or the address cannot be used.
    #[error("cannot connect to the coordinator at {address}: {error}")]
    Connection {
        /// host:port.
        address: String,
        /// What is wrong.
        error: String,
    },
    /// Threads or random numbers are not to be had.
    #[error("cannot start a session with the coordinator: {0}")]
    Io(#[from] io::Error),
}

impl From<Error> for KeyValueError {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::KeyNotSet(_) => Code::NotFound,
            Error::KeyIsSet(_) => Code::AlreadyExists,
            Error::TooLarge(_) => Code::ResourceExhausted,
            Error::Deadline { .. } => Code::DeadlineExceeded,
            Error::Ended(_) => Code::Aborted,
            Error::Refused(_) => Code::InvalidArgument,
            _ => Code::Unavailable,
        };
        Self { code, message: error.to_string() }
    }
}
