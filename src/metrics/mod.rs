//! What a run measures, and where it goes: a line a step in `metrics.jsonl`, one object at the end in
//! `summary.json`, and a bar or lines on stderr for whoever watches (phase: run).
//!
//! Numbers that are not finite are written as `null`, for JSON has no others.

mod progress;
mod spans;
mod summary;
mod timer;
mod writer;

use std::io;
use std::path::PathBuf;

pub use progress::{Progress, say};
pub use spans::{Span, Spans};
pub use summary::Summary;
pub use timer::{StepTimer, median};
pub use writer::{EvalMetrics, MetricsWriter, StepMetrics, check_out_dir};

/// A place that cannot be written to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The output directory cannot be made, or no file in it.
    #[error("cannot write into the output directory {}: {source}; choose another with --out", dir.display())]
    OutDir {
        /// The directory.
        dir: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A write failed later: the disk is full, or the directory is gone.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}
