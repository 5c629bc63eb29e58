//! `metrics.jsonl`: a line per step.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{
    Error, EvalResult, FlushLater, RunEvent, Sink, SlowProcess, StepEval, StepMetrics, Writer,
    WriterTarget, say,
};

/// Writes `DIR/metrics.jsonl`: a line per step, with the evaluation after it if there was one.
///
/// A [`Writer`] writes the lines within a second, and at the end. If they cannot be written, that
/// is said on stderr; the file then ends with its last whole line, and the others are kept in
/// memory and tried again every second and at the end. Lines that do not fit there are lost: they
/// are counted, and the run fails at its end.
pub struct Jsonl {
    path: PathBuf,
    writer: Option<Writer<LinesOfSteps<WholeLines>>>,
    /// The line of a step that is followed by an evaluation, until that has been made.
    held: Option<StepLine>,
    /// For the next line.
    slow: Vec<SlowProcess>,
    /// Why the file could not be made.
    error: Option<Error>,
}

/// A line of the file.
#[derive(Default, Serialize)]
pub(super) struct StepLine {
    #[serde(flatten)]
    step: StepMetrics,
    #[serde(flatten)]
    eval: Option<EvalResult>,
    /// Processes that were found to be slow since the line before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    slow_processes: Vec<SlowProcess>,
    /// Shards of the batch that were late.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    late_shards: Vec<usize>,
}

impl Jsonl {
    /// The name of the file.
    pub const FILE: &'static str = "metrics.jsonl";

    /// A sink that makes the file when the run starts.
    pub fn new(dir: &Path) -> Self {
        Self { path: dir.join(Self::FILE), writer: None, held: None, slow: vec![], error: None }
    }

    fn write_held(&mut self) {
        if let (Some(writer), Some(line)) = (&self.writer, self.held.take()) {
            writer.write(Entry::Line(line));
        }
    }
}

impl Sink for Jsonl {
    fn event(&mut self, event: &RunEvent) {
        match event {
            RunEvent::Started(info) => {
                let first_step = info.resumed_from.as_ref().map(|_| info.progress.num_steps);
                match open(&self.path, first_step, true) {
                    Ok(writer) => self.writer = Some(writer),
                    Err(error) => self.error = Some(error),
                }
            }
            RunEvent::Launch(launch) => {
                for step in &launch.steps {
                    self.write_held();
                    let slow_processes = std::mem::take(&mut self.slow);
                    let late_shards =
                        launch.late_shards.get(&step.step).cloned().unwrap_or_default();
                    let (step, eval) = (step.clone(), None);
                    self.held = Some(StepLine { step, eval, slow_processes, late_shards });
                }
                if !launch.is_evaluated {
                    self.write_held();
                }
            }
            RunEvent::Evaluated { eval: found, .. } => {
                match (&mut self.held, &self.writer) {
                    (Some(held), _) => held.eval = Some(found.eval.clone()),
                    // The run was stopped before this evaluation, and continues with it.
                    (None, Some(writer)) => writer.write(Entry::Evaluated(found.clone())),
                    (None, None) => {}
                }
                self.write_held();
            }
            RunEvent::ProcessSlow(slow) => self.slow.push(slow.clone()),
            RunEvent::StepsEnded => self.write_held(),
            RunEvent::UpdateSkipped { .. }
            | RunEvent::LockstepProved { .. }
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

/// What the thread is given.
pub(super) enum Entry {
    Line(StepLine),
    /// A line of another file, of this step.
    Other(u64, Vec<u8>),
    /// An evaluation after a step that the file already has.
    Evaluated(StepEval),
}

/// Makes an empty file or, for a run that is resumed after `first_step` steps, keeps the lines
/// before them; and starts the thread. Without `is_each` only some steps have a line.
pub(super) fn open(
    path: &Path,
    first_step: Option<u64>,
    is_each: bool,
) -> Result<Writer<LinesOfSteps<WholeLines>>, Error> {
    let failed = |source| Error::Write { path: path.to_owned(), source };
    let (file, last) = match first_step.filter(|_| path.exists()) {
        Some(first_step) => WholeLines::continued(path, first_step, is_each).map_err(failed)?,
        None => (WholeLines { file: File::create_new(path).map_err(failed)?, len: 0 }, vec![]),
    };
    let mut lines = LinesOfSteps::new(file, path.to_owned());
    lines.last = last;
    Writer::start(path, lines)
}

/// The size of the lines that are kept while they cannot be written.
const MAX_PENDING_BYTES: usize = 64 << 20;

/// Where lines go.
pub(super) trait Append: Send + 'static {
    /// Appends `bytes`, which are whole lines. An error comes with the number of bytes that were
    /// written, all of them in whole lines.
    fn append(&mut self, bytes: &[u8]) -> Result<(), (usize, io::Error)>;

    /// Lets the next lines take the place of the last `num_bytes` bytes.
    fn take_back(&mut self, num_bytes: usize);
}

/// A file that always ends with a whole line, unless the process is killed while it writes one.
pub(super) struct WholeLines {
    file: File,
    len: u64,
}

impl WholeLines {
    /// A file that is there, without its lines from `first_step` on: those steps are taken again.
    /// Its last line is returned: an evaluation may be added to it.
    fn continued(path: &Path, first_step: u64, is_each: bool) -> io::Result<(Self, Vec<u8>)> {
        let text = std::fs::read(path)?;
        let step_of = |line: &[u8]| {
            let line: serde_json::Value = serde_json::from_slice(line).unwrap_or_default();
            line["step"].as_u64()
        };
        // A line that cannot be read is not one of those steps.
        let is_kept = |line: &&[u8]| step_of(line).is_none_or(|step| step < first_step);
        // The beginning of a line that a killed process has left is no line.
        let lines = text.split_inclusive(|byte| *byte == b'\n');
        let kept = lines.take_while(|line| line.ends_with(b"\n") && is_kept(line));
        let kept: Vec<_> = kept.collect();
        let num_lines = kept.len();
        if is_each && num_lines as u64 != first_step {
            let path = path.display();
            say(&format!("{path} has {num_lines} of {first_step} steps before the checkpoint"));
        }
        let num_damaged = kept.iter().filter(|line| step_of(line).is_none()).count();
        if num_damaged > 0 {
            say(&format!(
                "warning: {} is damaged: {num_damaged} of its lines cannot be read",
                path.display()
            ));
        }
        let len = kept.iter().map(|line| line.len() as u64).sum();
        let last = kept.last().map_or(vec![], |line| line.to_vec());
        let file = File::options().write(true).open(path)?;
        file.set_len(len)?;
        Ok((Self { file, len }, last))
    }
}

impl Append for WholeLines {
    fn append(&mut self, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
        // What is written to a file without a name is lost without an error.
        if self.file.metadata().is_ok_and(|found| found.nlink() == 0) {
            return Err((0, io::Error::other("it was removed while the run writes it")));
        }
        let mut written = 0;
        let error = loop {
            if written == bytes.len() {
                self.len += written as u64;
                return Ok(());
            }
            match self.file.write_at(&bytes[written..], self.len + written as u64) {
                Ok(0) => break io::ErrorKind::WriteZero.into(),
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break error,
            }
        };
        let whole = bytes[..written].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.len += whole as u64;
        // The first error is the one to report.
        let _ = self.file.set_len(self.len);
        Err((whole, error))
    }

    fn take_back(&mut self, num_bytes: usize) {
        self.len -= num_bytes as u64;
    }
}

/// Lines that wait to be written.
pub(super) struct LinesOfSteps<A> {
    target: A,
    path: PathBuf,
    pending: Vec<u8>,
    /// The last line of a file that is continued, until another follows.
    last: Vec<u8>,
    num_lost: u64,
    /// `true` if the last try failed, which has been said.
    is_failing: bool,
}

impl<A: Append> LinesOfSteps<A> {
    fn new(target: A, path: PathBuf) -> Self {
        Self { target, path, pending: vec![], last: vec![], num_lost: 0, is_failing: false }
    }

    fn add_line(&mut self, line: &StepLine) {
        self.last.clear();
        // Serializing numbers into memory does not fail.
        self.add_bytes(line.step.step, serde_json::to_vec(line).unwrap_or_default());
    }

    fn add_bytes(&mut self, step: u64, line: Vec<u8>) {
        // Lines after a lost one are lost, too: the file has no gaps.
        if self.num_lost > 0 || self.pending.len() + line.len() >= MAX_PENDING_BYTES {
            if self.num_lost == 0 {
                let path = self.path.display();
                say(&format!(
                    "there is no room to keep more lines of {path}: from step {step} on they are \
                     lost"
                ));
            }
            self.num_lost += 1;
            return;
        }
        self.pending.extend(line);
        self.pending.push(b'\n');
    }

    /// Adds an evaluation to the last line of a file that is continued, if it is of that step and
    /// has none.
    fn add_to_last(&mut self, found: &StepEval) {
        let mut last = std::mem::take(&mut self.last);
        let line: serde_json::Value = serde_json::from_slice(&last).unwrap_or_default();
        if line["step"] == found.step && line.get("eval_loss").is_none() {
            let fields = serde_json::to_vec(&found.eval).unwrap_or_default();
            self.target.take_back(last.len());
            last.truncate(last.len() - "}\n".len());
            last.push(b',');
            last.extend(fields.get(1..).unwrap_or_default());
            last.push(b'\n');
            self.pending.extend(last);
        }
    }

    fn append(&mut self) -> io::Result<()> {
        let (written, result) = match self.target.append(&self.pending) {
            Ok(()) => (self.pending.len(), Ok(())),
            Err((written, error)) => (written, Err(error)),
        };
        self.pending.drain(..written);
        result
    }
}

impl<A: Append> WriterTarget for LinesOfSteps<A> {
    type Item = Entry;

    fn add(&mut self, entry: Entry) {
        match entry {
            Entry::Line(line) => self.add_line(&line),
            Entry::Other(step, line) => self.add_bytes(step, line),
            Entry::Evaluated(found) => self.add_to_last(&found),
        }
    }

    /// The first failure is said on stderr.
    fn try_to_write(&mut self) -> bool {
        let (written, path) = (self.append(), self.path.display());
        match &written {
            Err(error) if !self.is_failing => say(&format!(
                "cannot write {path}: {error}; the run goes on, and its lines are kept until they \
                 can be written"
            )),
            Ok(()) if self.is_failing && self.num_lost == 0 => {
                say(&format!("{path} can be written again"));
            }
            _ => {}
        }
        self.is_failing = written.is_err();
        self.is_failing
    }

    fn flush(&mut self) -> Result<(), Error> {
        let (written, path, num_lost) = (self.append(), self.path.clone(), self.num_lost);
        match written {
            Err(source) if num_lost == 0 => Err(Error::Write { path, source }),
            Err(source) => Err(Error::Lost { path, source, num_lost }),
            Ok(()) if num_lost == 0 => Ok(()),
            Ok(()) => {
                let source = io::Error::other("it could not be written for a while");
                Err(Error::Lost { path, source, num_lost })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};
    use std::{fs, thread};

    use serde_json::Value;

    use super::*;
    use crate::observe::{LaunchMetrics, Metric, RunInfo, RunProgress};

    static LOSS: Metric = Metric::number(Metric::LOSS);
    static COUNT: Metric = Metric::count("num_dropped");
    static UNWRITTEN: Metric = Metric::number("weight").unwritten();

    fn lines(dir: &Path) -> Vec<Value> {
        let text = fs::read_to_string(dir.join(Jsonl::FILE)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn started(dir: &Path) -> Jsonl {
        let mut sink = Jsonl::new(dir);
        sink.event(&RunEvent::Started(Box::default()));
        sink
    }

    fn launch(steps: &[StepMetrics], is_evaluated: bool) -> RunEvent {
        let (steps, num_steps) = (steps.to_vec(), steps.len());
        RunEvent::Launch(LaunchMetrics {
            steps,
            num_steps,
            is_evaluated,
            ..LaunchMetrics::default()
        })
    }

    #[test]
    fn every_line_is_json_and_reaches_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = started(dir.path());
        for step in 0..100 {
            let loss = if step == 50 { f64::INFINITY } else { 0.5 };
            let values = [(&LOSS, loss), (&COUNT, 7.0), (&UNWRITTEN, 1.0)].into_iter().collect();
            let metrics = StepMetrics { step, values };
            sink.event(&launch(&[metrics], step == 99));
        }
        let eval = EvalResult {
            loss: 0.25,
            metrics: [("accuracy", 0.75)].into(),
            ..EvalResult::default()
        };
        let eval = StepEval { step: 99, eval };
        sink.event(&RunEvent::Evaluated { eval, is_best: true, took: Duration::ZERO });
        sink.flush().unwrap();
        let lines = lines(dir.path());
        assert_eq!(lines.len(), 100);
        assert_eq!((&lines[7]["step"], &lines[7]["loss"]), (&7.into(), &0.5.into()));
        assert!(lines[50]["loss"].is_null());
        assert_eq!(lines[99]["eval_accuracy"], 0.75);
        assert!(lines[98].get("eval_accuracy").is_none());
        let fields: Vec<_> = lines[0].as_object().unwrap().keys().collect();
        assert_eq!(fields, ["loss", "num_dropped", "step"]);
        assert!(lines[0]["num_dropped"].is_u64());
    }

    #[test]
    fn lines_reach_the_file_within_a_second_and_on_drop() {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = started(dir.path());
        sink.event(&launch(&[StepMetrics::default()], false));
        let start = Instant::now();
        while lines(dir.path()).is_empty() {
            assert!(start.elapsed() < Duration::from_secs(3), "not flushed");
            thread::sleep(Duration::from_millis(20));
        }
        sink.event(&launch(&[StepMetrics::default()], false));
        drop(sink);
        assert_eq!(lines(dir.path()).len(), 2);
    }

    #[test]
    fn a_run_that_continues_keeps_the_lines_before_and_may_add_an_evaluation_to_the_last() {
        let eval = |loss| EvalResult {
            loss,
            metrics: [("accuracy", 0.75)].into(),
            ..EvalResult::default()
        };
        let continued = |dir: &Path, num_steps: u64, events: &[RunEvent]| {
            let progress = RunProgress { num_steps, ..RunProgress::default() };
            let mut sink = Jsonl::new(dir);
            let resumed_from = Some("a checkpoint".to_owned());
            let info = RunInfo { progress, resumed_from, ..RunInfo::default() };
            sink.event(&RunEvent::Started(Box::new(info)));
            sink.flush().unwrap();
            events.iter().for_each(|event| sink.event(event));
            sink.flush().unwrap();
        };
        let step = |step| StepMetrics { step, ..StepMetrics::default() };
        let evaluated = |step, loss| RunEvent::Evaluated {
            eval: StepEval { step, eval: eval(loss) },
            is_best: true,
            took: Duration::ZERO,
        };
        for (events, losses) in [
            (vec![], vec![None; 3]),
            (vec![evaluated(2, 0.25)], vec![None, None, Some(0.25)]),
            (vec![evaluated(1, 0.25)], vec![None; 3]),
            (vec![evaluated(2, 0.25), evaluated(2, 0.5)], vec![None, None, Some(0.25)]),
            (
                vec![evaluated(2, 0.25), launch(&[step(3)], true), evaluated(3, 0.5)],
                vec![None, None, Some(0.25), Some(0.5)],
            ),
            (vec![launch(&[step(3)], false), evaluated(2, 0.25)], vec![None; 4]),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let mut sink = started(dir.path());
            for index in 0..5 {
                sink.event(&launch(&[step(index)], false));
            }
            drop(sink);
            continued(dir.path(), 3, &events);
            let lines = lines(dir.path());
            let found: Vec<_> = lines.iter().map(|line| line["eval_loss"].as_f64()).collect();
            assert_eq!(found, losses, "{events:?}");
            assert!((0..).zip(&lines).all(|(step, line)| line["step"] == step));
        }
        // Stopped before its first step.
        let dir = tempfile::tempdir().unwrap();
        drop(started(dir.path()));
        continued(dir.path(), 0, &[launch(&[step(0)], false)]);
        assert_eq!(lines(dir.path()).len(), 1);
    }

    #[test]
    fn a_file_that_is_there_is_not_emptied() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(Jsonl::FILE);
        fs::write(&path, "earlier").unwrap();
        let error = started(dir.path()).flush().unwrap_err().to_string();
        assert!(error.contains("metrics.jsonl: File exists"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "earlier");
    }

    #[test]
    fn a_file_that_is_removed_while_it_is_written_is_an_error_of_the_run() {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = started(dir.path());
        sink.flush().unwrap();
        fs::remove_file(dir.path().join(Jsonl::FILE)).unwrap();
        sink.event(&launch(&[StepMetrics::default()], false));
        let error = sink.flush().unwrap_err().to_string();
        assert!(error.contains("it was removed while the run writes it"), "{error}");
    }

    /// A disk that is full for the first few writes.
    struct FullAtFirst {
        num_failures: usize,
        written: Vec<u8>,
    }

    impl Append for FullAtFirst {
        fn append(&mut self, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
            if self.num_failures > 0 {
                self.num_failures -= 1;
                return Err((0, io::ErrorKind::StorageFull.into()));
            }
            self.written.extend(bytes);
            Ok(())
        }

        fn take_back(&mut self, num_bytes: usize) {
            self.written.truncate(self.written.len() - num_bytes);
        }
    }

    #[test]
    fn lines_wait_until_there_is_room_for_them() {
        let disk = FullAtFirst { num_failures: 2, written: vec![] };
        let mut lines = LinesOfSteps::new(disk, "metrics.jsonl".into());
        for step in 0..4 {
            let metrics = StepMetrics { step, ..StepMetrics::default() };
            lines.add_line(&StepLine { step: metrics, ..StepLine::default() });
            assert_eq!(lines.try_to_write(), step < 2);
        }
        let text = String::from_utf8(lines.target.written.clone()).unwrap();
        let steps = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let steps: Vec<_> = steps.map(|line| line["step"].as_u64().unwrap()).collect();
        assert_eq!(steps, [0, 1, 2, 3]);
        lines.flush().unwrap();
    }

    #[test]
    fn what_is_kept_in_memory_is_bounded_and_what_is_lost_counted() {
        let disk = FullAtFirst { num_failures: 1, written: vec![] };
        let mut lines = LinesOfSteps::new(disk, "metrics.jsonl".into());
        lines.pending = vec![b'\n'; MAX_PENDING_BYTES - 1];
        lines.add_line(&StepLine::default());
        assert!(lines.try_to_write());
        assert!(!lines.try_to_write());
        lines.add_line(&StepLine::default());
        assert!(lines.pending.is_empty(), "no line follows a gap");
        let error = lines.flush().unwrap_err().to_string();
        assert!(error.contains("the lines of 2 steps are lost"), "{error}");
    }

    #[test]
    fn a_full_disk_is_reported() {
        let full = Path::new("/dev/full");
        if !full.exists() {
            return;
        }
        let file = File::options().write(true).open(full).unwrap();
        let mut lines = LinesOfSteps::new(WholeLines { file, len: 0 }, full.to_owned());
        lines.add_line(&StepLine::default());
        assert!(lines.try_to_write());
        let error = lines.flush().unwrap_err().to_string();
        assert!(error.contains("cannot write /dev/full: No space left"), "{error}");
    }
}
