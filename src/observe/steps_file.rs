//! A file with lines for some steps of a run, beside `metrics.jsonl`.

use std::path::PathBuf;

use serde::Serialize;

use super::jsonl::{Entry, LinesOfSteps, WholeLines, open};
use super::{Error, FlushLater, RunInfo, Writer};

/// The file. A disk that is full is treated as by [`Jsonl`](super::Jsonl).
pub(super) struct StepsFile {
    path: PathBuf,
    writer: Option<Writer<LinesOfSteps<WholeLines>>>,
    /// Why the file could not be made.
    error: Option<Error>,
}

impl StepsFile {
    /// A file that is made when the run starts.
    pub fn new(path: PathBuf) -> Self {
        Self { path, writer: None, error: None }
    }

    /// The run starts: one that continues keeps the lines of the steps before.
    pub fn start(&mut self, info: &RunInfo) {
        let first_step = info.resumed_from.as_ref().map(|_| info.progress.num_steps);
        match open(&self.path, first_step, false) {
            Ok(writer) => self.writer = Some(writer),
            Err(error) => self.error = Some(error),
        }
    }

    /// Writes a line that belongs to a step.
    pub fn write(&self, step: u64, line: &impl Serialize) {
        if let Some(writer) = &self.writer {
            // Serializing numbers into memory does not fail.
            let line = serde_json::to_vec(line).unwrap_or_default();
            writer.write(Entry::Other(step, line));
        }
    }

    pub fn flush_later(&self) -> Option<FlushLater> {
        self.writer.as_ref().map(Writer::flush_later)
    }

    pub fn flush(&mut self) -> Result<(), Error> {
        match (self.error.take(), &self.writer) {
            (Some(error), _) => Err(error),
            (None, Some(writer)) => writer.flush(),
            (None, None) => Ok(()),
        }
    }
}
