//! Why a checkpoint cannot be written or read.

use std::io;

use super::Location;

/// Why a checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file operation failed.
    #[error("cannot {verb} {path}: {source}")]
    Io {
        /// The attempt: `write`, `read`.
        verb: &'static str,
        /// The file or directory.
        path: Location,
        /// Why not.
        source: io::Error,
    },
    /// A checkpoint without a manifest.
    #[error("{path} is not a checkpoint: it has no manifest.json{hint}")]
    NotACheckpoint {
        /// The directory.
        path: Location,
        /// A hint for the user; begins with a separator, or is empty.
        hint: &'static str,
    },
    /// A checkpoint without its manifest.
    #[error(
        "the checkpoint {path} is damaged: it has no manifest.json, which a save writes last, \
         before the directory gets its name; bring the file back, or remove the directory: then \
         the checkpoint before it is used, or, without one, the run begins again"
    )]
    Incomplete {
        /// The directory.
        path: Location,
    },
    /// A newer program has written it.
    #[error(
        "{path} has format version {version}, but this program reads versions up to {newest}; use \
         the version of lockstep that wrote it"
    )]
    Version {
        /// The directory.
        path: Location,
        /// Its version.
        version: u32,
        /// The newest version that can be read.
        newest: u32,
    },
    /// Its contents are not those that were written.
    #[error(
        "the checkpoint {path} is damaged: {reason}; remove it to use an earlier one, or set \
         checkpoint.on_damaged = \"previous\""
    )]
    Damaged {
        /// The directory.
        path: Location,
        /// The problem.
        reason: String,
    },
    /// A checkpoint that does not fit the state to restore.
    #[error("the checkpoint {path} does not fit: {reason}")]
    Misfit {
        /// The directory.
        path: Location,
        /// The mismatch.
        reason: String,
    },
    /// Another process uses the directory.
    #[error("{by} writes checkpoints into {path}; choose another checkpoint.dir, or wait for it")]
    InUse {
        /// The directory.
        path: Location,
        /// The process, as far as it is known.
        by: String,
    },
    /// Another process of the run could not save its part.
    #[error("cannot write {path} together with the other processes: {reason}")]
    OtherProcess {
        /// The directory.
        path: Location,
        /// Why not.
        reason: String,
    },
    /// The processes of a run do not have the directory in common.
    #[error(
        "the processes of the run do not see each other's files in {path}; set checkpoint.dir, or \
         --out, to the same directory on all hosts, one that they share (a relative path begins \
         where each was started), or checkpoint.dir to a URL of an object store"
    )]
    NotShared {
        /// The directory.
        path: Location,
    },
    /// A URL, in a program that was built without object stores.
    #[error(
        "{path} is in an object store, but this program was built without the feature \
         `object-stores`"
    )]
    NoObjectStores {
        /// The URL.
        path: Location,
    },
    /// A directory with the checkpoints of another run.
    #[error(
        "{path} holds checkpoints of another run (the newest is {newest}); continue that run with \
         --resume, or choose another checkpoint.dir"
    )]
    Occupied {
        /// The directory.
        path: Location,
        /// The name of the newest.
        newest: String,
    },
}

impl Error {
    pub(crate) fn io(verb: &'static str, path: impl Into<Location>) -> impl Fn(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { verb, path: path.clone(), source }
    }
}
