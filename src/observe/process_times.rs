//! `processes.jsonl`: the time that each process itself took.

use std::path::Path;

use super::steps_file::StepsFile;
use super::{Error, FlushLater, RunEvent, Sink};

/// Writes `DIR/processes.jsonl`: a line for some steps in a row, with the times of all processes. A
/// disk that is full is treated as by [`Jsonl`](super::Jsonl).
pub struct ProcessTimesFile {
    file: StepsFile,
}

impl ProcessTimesFile {
    /// The name of the file.
    pub const FILE: &'static str = "processes.jsonl";

    /// A sink that makes the file when the run starts.
    pub fn new(dir: &Path) -> Self {
        Self { file: StepsFile::new(dir.join(Self::FILE)) }
    }
}

impl Sink for ProcessTimesFile {
    fn event(&mut self, event: &RunEvent) {
        match event {
            RunEvent::Started(info) => self.file.start(info),
            RunEvent::LockstepProved { process_times, .. } => {
                for times in process_times {
                    self.file.write(times.step, times);
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
        self.file.flush_later()
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;
    use crate::observe::{LikeSteps, ProcessTimes, RunInfo, RunProgress};

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
                let steps = LikeSteps { num_steps: 9, own_ms: 1.25, input_ms: 0.5 };
                let spread = vec![vec![steps], vec![]];
                let times = ProcessTimes { step: *step, num_steps: 10, own_ms, spread };
                let (num_steps, took) = (step + 1, Duration::ZERO);
                let process_times = vec![times];
                sink.event(&RunEvent::LockstepProved { num_steps, took, process_times });
            }
            sink.flush().unwrap();
            fs::read_to_string(dir.path().join(ProcessTimesFile::FILE)).unwrap()
        };
        let line = |step: u64| {
            format!(
                "{{\"step\":{step},\"num_steps\":10,\"own_ms\":[1.5,null],\
                 \"spread\":[[[9,1.25,0.5]],[]]}}\n"
            )
        };
        assert_eq!(run(None, &[9, 19]), [line(9), line(19)].concat());
        assert_eq!(run(Some(15), &[24]), [line(9), line(24)].concat());
    }
}
