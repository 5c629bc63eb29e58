//! What a run measures, and where it goes: a line a step in `metrics.jsonl`, one object in `summary.json`, and
//! a bar or lines on stderr for whoever watches (phase: run).
//!
//! Numbers that are not finite are written as `null`, for JSON has no others. `docs/outputs.md` explains the
//! fields to their readers.

mod file;
mod jsonl;
mod spans;
mod summary;
mod terminal;
mod timer;

use std::io;
use std::path::PathBuf;

pub use file::{replace_file, unfinished_prefix};
pub use jsonl::{EvalMetrics, MetricsWriter, StepMetrics};
pub use spans::{StartupSpan, StartupSpans};
pub use summary::{Status, StepEval, Summary};
pub use terminal::{Progress, say};
pub use timer::{StepTimer, median};

/// A file of a run could not be written: the disk is full, or the directory is gone.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A write failed.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A write failed, and went on failing until there was no room to keep the lines.
    #[error(
        "cannot write {}: {source}; the lines of {num_lost} steps are lost", path.display()
    )]
    Lost {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
        /// Lines that were dropped.
        num_lost: u64,
    },
}
