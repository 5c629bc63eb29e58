//! `processes.jsonl`: the time that each process itself took.

use std::path::{Path, PathBuf};

use super::jsonl::{Entry, LinesOfSteps, WholeLines, open};
use super::{Error, FlushLater, RunEvent, Sink, Writer};

/// Writes `DIR/processes.jsonl`: a line for some steps in a row, with the times of all processes. A
/// disk that is full is treated as by [`Jsonl`](super::Jsonl).
pub struct ProcessTimesFile {
    path: PathBuf,
    writer: Option<Writer<LinesOfSteps<WholeLines>>>,
    /// Why the file could not be made.
    error: Option<Error>,
}

impl ProcessTimesFile {
    /// The name of the file.
    pub const FILE: &'static str = "processes.jsonl";

    /// A sink that makes the file when the run starts.
    pub fn new(dir: &Path) -> Self {
        Self { path: dir.join(Self::FILE), writer: None, error: None }
    }
}

impl Sink for ProcessTimesFile {
    fn event(&mut self, event: &RunEvent) {
        match event {
            RunEvent::Started(info) => {
                let first_step = info.resumed_from.as_ref().map(|_| info.progress.num_steps);
                match open(&self.path, first_step, false) {
                    Ok(writer) => self.writer = Some(writer),
                    Err(error) => self.error = Some(error),
                }
            }
            RunEvent::LockstepProved { process_times, .. } => {
                let Some(writer) = &self.writer else { return };
                for times in process_times {
                    // Serializing numbers into memory does not fail.
                    let line = serde_json::to_vec(times).unwrap_or_default();
                    writer.write(Entry::Other(times.step, line));
                }
            }
            RunEvent::Launch(_)
            | RunEvent::Evaluated { .. }
            | RunEvent::ProcessSlow(_)
            | RunEvent::StepsEnded
            | RunEvent::UpdateSkipped { .. }
            | RunEvent::CheckpointSaved(_)
            | RunEvent::Message(_)
            | RunEvent::Ended(_) => {}
        }
    }

    fn flush_later(&mut self) -> Option<FlushLater> {
        self.writer.as_ref().map(Writer::flush_later)
    }

    fn flush(&mut self) -> Result<(), Error> {
        match (self.error.take(), &self.writer) {
            (Some(error), _) => Err(error),
            (None, Some(writer)) => writer.flush(),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;
    use crate::observe::{ProcessTimes, RunInfo, RunProgress};

    #[test]
    fn steps_that_are_taken_again_have_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let run = |resumed: Option<u64>, steps: &[u64]| {
            let mut sink = ProcessTimesFile::new(dir.path());
            let progress =
                RunProgress { num_steps: resumed.unwrap_or(0), ..RunProgress::default() };
            let resumed_from = resumed.map(|_| "a".to_owned());
            let info = RunInfo { progress, resumed_from, ..RunInfo::default() };
            sink.event(&RunEvent::Started(Box::new(info)));
            for step in steps {
                let own_ms = vec![1.5, f64::NAN];
                let times = ProcessTimes { step: *step, num_steps: 10, own_ms };
                let (num_steps, took) = (step + 1, Duration::ZERO);
                let process_times = vec![times];
                sink.event(&RunEvent::LockstepProved { num_steps, took, process_times });
            }
            sink.flush().unwrap();
            fs::read_to_string(dir.path().join(ProcessTimesFile::FILE)).unwrap()
        };
        let line =
            |step: u64| format!("{{\"step\":{step},\"num_steps\":10,\"own_ms\":[1.5,null]}}\n");
        assert_eq!(run(None, &[9, 19]), [line(9), line(19)].concat());
        assert_eq!(run(Some(15), &[24]), [line(9), line(24)].concat());
    }
}
