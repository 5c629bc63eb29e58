//! The last phase changes of each process, written down when a job fails.
//!
//! The file is `flight_recorder.jsonl`, in JSON lines. Each process has a line about itself,
//! followed by a line for each of its last phase changes, oldest first:
//! ```json
//! {"process":1,"host":"node0","pid":812,"first_replica":4,"num_replicas":4,"num_changes":2,"last_report":1764000012.5}
//! {"process":1,"time":1764000010.25,"phase":"compute","step":511}
//! {"process":1,"time":1764000010.5,"phase":"data","step":512}
//! ```
//! Times are Unix times in seconds, on the clock of the host that writes the file; those of other
//! hosts are late by the time of a message. `num_changes` counts the lines that follow,
//! `last_report` is null if the process never reported.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::report::{Phase, Report};
use super::watchdog::WorkerName;

/// Phase changes that are kept of each process.
const MAX_CHANGES: usize = 1000;
/// The largest file.
const MAX_BYTES: usize = 64 << 20;
/// The most bytes of a line about a phase change: those of 20-digit numbers.
const MAX_LINE: usize = 120;

const FILE: &str = "flight_recorder.jsonl";

/// The last phase changes of all processes of a job.
#[derive(Debug)]
pub struct FlightRecorder {
    processes: Vec<Recorded>,
    /// The same moment on both clocks.
    now: (Instant, SystemTime),
}

#[derive(Debug)]
struct Recorded {
    name: WorkerName,
    changes: VecDeque<(Instant, Phase, u64)>,
    last_report: Option<Instant>,
}

#[derive(Serialize)]
struct ProcessLine<'a> {
    process: usize,
    host: &'a str,
    pid: u32,
    first_replica: usize,
    num_replicas: usize,
    num_changes: usize,
    last_report: Option<f64>,
}

#[derive(Serialize)]
struct ChangeLine {
    process: usize,
    time: f64,
    phase: &'static str,
    step: u64,
}

impl FlightRecorder {
    /// A recorder of these processes, in the order of their indices. `now` is the same moment on
    /// both clocks.
    pub fn new(names: Vec<WorkerName>, now: (Instant, SystemTime)) -> Self {
        let processes = names.into_iter();
        let empty = |name| Recorded { name, changes: VecDeque::new(), last_report: None };
        Self { processes: processes.map(empty).collect(), now }
    }

    /// Keeps the phase changes of a report. One with an unknown index is ignored.
    pub fn record(&mut self, report: &Report, arrived: Instant) {
        let Some(process) = self.processes.get_mut(report.process_index) else { return };
        process.last_report = Some(arrived);
        if !report.replicas.is_empty() {
            process.name.replicas = report.replicas.clone();
        }
        for change in &report.changes {
            let at = arrived.checked_sub(change.ago).unwrap_or(arrived);
            process.changes.push_back((at, change.phase, change.step));
        }
        let surplus = process.changes.len().saturating_sub(MAX_CHANGES);
        process.changes.drain(..surplus);
    }

    /// Writes the file into `dir`, which is created if necessary. Lines of the processes in `first`
    /// come first, so that they are there if the disk is full. With many processes, fewer changes
    /// of each are written, at most 64 MiB in total.
    ///
    /// # Errors
    /// A message with the path, for the user: that a record cannot be written is no failure of the
    /// job.
    pub fn write(&self, dir: &Path, first: &[usize]) -> Result<PathBuf, String> {
        let path = dir.join(FILE);
        let written = std::fs::create_dir_all(dir).and_then(|()| {
            let mut file = BufWriter::new(File::create(&path)?);
            self.write_to(&mut file, first)?;
            file.flush()
        });
        match written {
            Ok(()) => Ok(path),
            Err(error) => Err(format!(
                "the record of the last phases of each process, {}, is missing or incomplete: \
                 {error}",
                path.display()
            )),
        }
    }

    fn write_to(&self, out: &mut impl Write, first: &[usize]) -> io::Result<()> {
        let (first, rest): (Vec<_>, Vec<_>) =
            self.processes.iter().enumerate().partition(|(index, _)| first.contains(index));
        for (index, process) in first.into_iter().chain(rest) {
            self.write_process(out, index, process)?;
        }
        Ok(())
    }

    fn write_process(
        &self,
        out: &mut impl Write,
        process: usize,
        recorded: &Recorded,
    ) -> io::Result<()> {
        let Recorded { name: WorkerName { host, pid, replicas }, changes, last_report } = recorded;
        let num_changes = changes.len().min(MAX_BYTES / self.processes.len() / MAX_LINE);
        let line = ProcessLine {
            process,
            host,
            pid: *pid,
            first_replica: replicas.start,
            num_replicas: replicas.len(),
            num_changes,
            last_report: last_report.map(|at| self.unix_secs(at)),
        };
        write_line(out, &line)?;
        for (at, phase, step) in changes.range(changes.len() - num_changes..) {
            let (time, phase) = (self.unix_secs(*at), phase.name());
            write_line(out, &ChangeLine { process, time, phase, step: *step })?;
        }
        Ok(())
    }

    /// Rounded to microseconds.
    fn unix_secs(&self, at: Instant) -> f64 {
        let (instant, system) = self.now;
        let system = match at.checked_duration_since(instant) {
            Some(after) => system.checked_add(after),
            None => system.checked_sub(instant.saturating_duration_since(at)),
        };
        let system = system.unwrap_or(UNIX_EPOCH);
        let unix = system.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        unix.as_micros() as f64 / 1e6
    }
}

fn write_line(out: &mut impl Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::super::report::PhaseChange;
    use super::*;

    fn names(num_processes: usize) -> Vec<WorkerName> {
        let name = |index| WorkerName {
            host: "node0".to_owned(),
            pid: 800 + index as u32,
            replicas: 2 * index..2 * index + 2,
        };
        (0..num_processes).map(name).collect()
    }

    fn report(process_index: usize, changes: Vec<PhaseChange>) -> Report {
        Report {
            replicas: 0..0,
            process_index,
            phase: Phase::Data,
            step: 0,
            in_phase: Duration::ZERO,
            waits_for: vec![],
            steps: vec![],
            changes,
            machine: String::new(),
        }
    }

    fn change(phase: Phase, step: u64, ago_millis: u64) -> PhaseChange {
        PhaseChange { phase, step, ago: Duration::from_millis(ago_millis) }
    }

    fn recorder(num_processes: usize) -> (FlightRecorder, Instant) {
        let now = Instant::now();
        let unix = UNIX_EPOCH + Duration::from_secs(1_764_000_000);
        (FlightRecorder::new(names(num_processes), (now, unix)), now)
    }

    #[test]
    fn a_record_is_lines_of_json() {
        let (mut recorder, now) = recorder(2);
        let changes = vec![change(Phase::Compute, 511, 2250), change(Phase::Data, 512, 2000)];
        recorder.record(&report(1, changes), now + Duration::from_millis(12_500));
        recorder.record(&report(7, vec![]), now);
        let dir = tempfile::tempdir().unwrap();
        let path = recorder.write(&dir.path().join("failed"), &[1]).unwrap();
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            r#"{"process":1,"host":"node0","pid":801,"first_replica":2,"num_replicas":2,"num_changes":2,"last_report":1764000012.5}
{"process":1,"time":1764000010.25,"phase":"compute","step":511}
{"process":1,"time":1764000010.5,"phase":"data","step":512}
{"process":0,"host":"node0","pid":800,"first_replica":0,"num_replicas":2,"num_changes":0,"last_report":null}
"#
        );
    }

    #[test]
    fn the_newest_changes_are_kept_and_the_file_is_bounded() {
        let (mut recorder, now) = recorder(2);
        for first in (0..3000).step_by(500) {
            let changes = (first..first + 500).map(|step| change(Phase::Compute, step, 0));
            recorder.record(&report(0, changes.collect()), now);
        }
        let mut text = vec![];
        recorder.write_to(&mut text, &[]).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1002);
        assert!(lines[1].ends_with(r#""step":2000}"#) && lines[1000].ends_with(r#""step":2999}"#));
        // The longest line that there can be.
        let line = ChangeLine {
            process: usize::MAX,
            time: 1_764_000_000.123_456,
            phase: Phase::Coordinator.name(),
            step: u64::MAX,
        };
        assert!(serde_json::to_string(&line).unwrap().len() < MAX_LINE);
        // Of 2,000 processes there are enough.
        const { assert!(MAX_BYTES / 2000 / MAX_LINE > 250) };
    }

    #[test]
    fn a_file_that_cannot_be_written_is_a_message() {
        let (recorder, _) = recorder(1);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let message = recorder.write(&dir.path().join("file"), &[]).unwrap_err();
        assert!(message.contains("flight_recorder.jsonl, is missing or incomplete: "), "{message}");
    }

    #[test]
    fn a_full_disk_is_a_message() {
        struct Full(usize);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let length = bytes.len().min(self.0);
                self.0 -= length;
                match length {
                    0 => Err(io::ErrorKind::StorageFull.into()),
                    _ => Ok(length),
                }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (recorder, _) = recorder(2);
        for room in [0, 50, 150] {
            let error = recorder.write_to(&mut Full(room), &[]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        }
    }
}
