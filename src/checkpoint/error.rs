//! Why a checkpoint cannot be written or read.

use std::io;
use std::path::{Path, PathBuf};

/// Why a checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file operation failed.
    #[error("cannot {verb} {}: {source}", path.display())]
    Io {
        /// What was attempted: `write`, `read`.
        verb: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// There is no manifest.
    #[error(
        "{} is not a checkpoint: it has no manifest.json{hint}", path.display()
    )]
    NotACheckpoint {
        /// The directory.
        path: PathBuf,
        /// What may help; begins with a separator, or empty.
        hint: &'static str,
    },
    /// A newer program has written it.
    #[error(
        "{} has format version {version}, but this program reads versions up to {newest}; use the version of \
         lockstep that wrote it", path.display()
    )]
    Version {
        /// The directory.
        path: PathBuf,
        /// Its version.
        version: u32,
        /// The newest version that can be read.
        newest: u32,
    },
    /// Its contents are not those that were written.
    #[error("the checkpoint {} is damaged: {reason}; remove it to use an earlier one", path.display())]
    Damaged {
        /// The directory.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// It does not fit what is to be restored.
    #[error("the checkpoint {} does not fit: {reason}", path.display())]
    Misfit {
        /// The directory.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
    /// Another process uses the directory.
    #[error(
        "another process writes checkpoints into {}; choose another checkpoint.dir, or wait for it", path.display()
    )]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// It holds the checkpoints of another run.
    #[error(
        "{} holds checkpoints of another run (the newest is {newest}); continue that run with --resume, or choose \
         another checkpoint.dir", path.display()
    )]
    Occupied {
        /// The directory.
        path: PathBuf,
        /// The name of the newest.
        newest: String,
    },
}

impl Error {
    pub(super) fn io(verb: &'static str, path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { verb, path: path.to_owned(), source }
    }
}
