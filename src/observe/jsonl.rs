//! `metrics.jsonl`: a line a step.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::{Error, say};

/// One training step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepMetrics {
    /// Index of the step, from 0.
    pub step: u64,
    /// When its numbers were known, in seconds since 1970-01-01 UTC.
    pub time: f64,
    /// Passes over the training data at its end: 1 is the end of the first.
    pub epoch: f64,
    /// Examples seen at its end, over all replicas.
    pub examples: u64,
    /// Mean loss over the global batch.
    pub loss: f64,
    /// Learning rate.
    pub lr: f64,
    /// Euclidean norm of the whole gradient.
    pub grad_norm: f64,
    /// Updates left out so far because something was not finite, this step's included.
    pub num_skipped: u64,
    /// Milliseconds of the whole step; steps of one launch share its time evenly.
    pub step_ms: f64,
    /// Milliseconds that the host took to start it.
    pub host_ms: f64,
    /// Milliseconds in which the loop waited for its batch.
    pub data_wait_ms: f64,
    /// Examples per second, over all replicas.
    pub examples_per_sec: f64,
    /// The evaluation after the step, if there was one: its fields stand in the step's line.
    #[serde(flatten)]
    pub eval: Option<EvalMetrics>,
}

/// One evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct EvalMetrics {
    /// Mean loss over the evaluation split.
    pub eval_loss: f64,
    /// Share of it that is classified correctly, 0 to 1, where the model says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_accuracy: Option<f64>,
    /// Share of it whose label is among the five classes of the highest score, 0 to 1, where the model
    /// says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval_top5_accuracy: Option<f64>,
}

/// Writes `DIR/metrics.jsonl` on a thread, so that a slow disk does not hold a step up. Lines reach the
/// file within a second, and at the end. Where they cannot, which is said on stderr, the file keeps its
/// whole lines and the others are kept in memory and tried again every second and at the end.
pub struct MetricsWriter {
    steps: Option<Sender<StepMetrics>>,
    thread: Option<JoinHandle<Result<(), Error>>>,
    path: PathBuf,
}

impl MetricsWriter {
    /// The name of the file.
    pub const FILE: &'static str = "metrics.jsonl";

    /// Makes an empty file in the directory.
    ///
    /// # Errors
    /// If there is one already, it cannot be made, or no thread can be started.
    pub fn create(dir: &Path) -> Result<Self, Error> {
        let path = dir.join(Self::FILE);
        let failed = |source| Error::Write { path: path.clone(), source };
        let file = WholeLines { file: File::create_new(&path).map_err(failed)?, len: 0 };
        let lines = Lines::new(file, path.clone());
        let (steps, receiver) = channel();
        let run = move || write_lines(lines, &receiver);
        let thread = thread::Builder::new().name("metrics".to_owned()).spawn(run);
        let thread = thread.map_err(failed)?;
        Ok(Self { steps: Some(steps), thread: Some(thread), path })
    }

    /// Adds the line of a step.
    pub fn step(&mut self, metrics: &StepMetrics) {
        if let Some(steps) = &self.steps {
            // The thread listens for as long as there is somebody to listen to.
            let _ = steps.send(*metrics);
        }
    }

    /// Writes what is left and says whether all of it was written. Dropping does the same and says
    /// nothing.
    ///
    /// # Errors
    /// If lines could not be written.
    pub fn finish(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        self.steps = None;
        let result = self.thread.take().map_or(Ok(Ok(())), JoinHandle::join);
        let panicked = || io::Error::other("the thread that writes it panicked");
        result.unwrap_or_else(|_| Err(Error::Write { path: self.path.clone(), source: panicked() }))
    }
}

impl Drop for MetricsWriter {
    fn drop(&mut self) {
        // Nobody is left to be told.
        let _ = self.end();
    }
}

/// How often lines are written.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// How much of what cannot be written is kept.
const MAX_PENDING_BYTES: usize = 64 << 20;

fn write_lines(mut lines: Lines<impl Append>, steps: &Receiver<StepMetrics>) -> Result<(), Error> {
    // When the oldest line that is not yet in the file has to be.
    let mut due: Option<Instant> = None;
    loop {
        let step = match due {
            None => steps.recv().map_err(RecvTimeoutError::from),
            Some(due) => steps.recv_timeout(due.saturating_duration_since(Instant::now())),
        };
        match step {
            Ok(step) => {
                lines.add(&step);
                due.get_or_insert_with(|| Instant::now() + FLUSH_EVERY);
            }
            Err(RecvTimeoutError::Timeout) => {
                due = lines.try_to_write().then(|| Instant::now() + FLUSH_EVERY);
            }
            Err(RecvTimeoutError::Disconnected) => return lines.finish(),
        }
    }
}

/// Where lines go.
trait Append {
    /// Adds `bytes`, which are whole lines. Where that fails, tells how many bytes of whole lines are there.
    fn append(&mut self, bytes: &[u8]) -> Result<(), (usize, io::Error)>;
}

/// A file that ends with a whole line, unless the process is killed while it writes one.
struct WholeLines {
    file: File,
    len: u64,
}

impl Append for WholeLines {
    fn append(&mut self, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
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
        // The first error is the one to be told of.
        let _ = self.file.set_len(self.len);
        Err((whole, error))
    }
}

/// Lines on their way.
struct Lines<A> {
    target: A,
    path: PathBuf,
    pending: Vec<u8>,
    num_lost: u64,
    /// Whether it is known, and has been said, that they cannot be written.
    is_failing: bool,
}

impl<A: Append> Lines<A> {
    fn new(target: A, path: PathBuf) -> Self {
        Self { target, path, pending: vec![], num_lost: 0, is_failing: false }
    }

    fn add(&mut self, step: &StepMetrics) {
        // Numbers can be written into memory.
        let line = serde_json::to_vec(step).unwrap_or_default();
        // What comes after a line that is lost is lost, too: what is there has no gap.
        if self.num_lost > 0 || self.pending.len() + line.len() >= MAX_PENDING_BYTES {
            if self.num_lost == 0 {
                let (path, step) = (self.path.display(), step.step);
                say(&format!(
                    "there is no room to keep more lines of {path}: from step {step} on they are lost"
                ));
            }
            self.num_lost += 1;
            return;
        }
        self.pending.extend(line);
        self.pending.push(b'\n');
    }

    fn append(&mut self) -> io::Result<()> {
        let (written, result) = match self.target.append(&self.pending) {
            Ok(()) => (self.pending.len(), Ok(())),
            Err((written, error)) => (written, Err(error)),
        };
        self.pending.drain(..written);
        result
    }

    /// Is there something to be tried again? The first failure is said.
    fn try_to_write(&mut self) -> bool {
        let (written, path) = (self.append(), self.path.display());
        match &written {
            Err(error) if !self.is_failing => say(&format!(
                "cannot write {path}: {error}; the run goes on, and its lines are kept until they can be written"
            )),
            Ok(()) if self.is_failing && self.num_lost == 0 => {
                say(&format!("{path} can be written again"));
            }
            _ => {}
        }
        self.is_failing = written.is_err();
        self.is_failing
    }

    fn finish(mut self) -> Result<(), Error> {
        let (written, path, num_lost) = (self.append(), self.path, self.num_lost);
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
    use std::fs;

    use serde_json::Value;

    use super::*;

    fn lines(dir: &Path) -> Vec<Value> {
        let text = fs::read_to_string(dir.join(MetricsWriter::FILE)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn every_line_is_json_and_reaches_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = MetricsWriter::create(dir.path()).unwrap();
        for step in 0..100 {
            let loss = if step == 50 { f64::INFINITY } else { 0.5 };
            let eval = EvalMetrics {
                eval_loss: 0.25,
                eval_accuracy: Some(0.75),
                ..EvalMetrics::default()
            };
            let eval = (step == 99).then_some(eval);
            let metrics = StepMetrics { step, loss, lr: 1e-3, eval, ..StepMetrics::default() };
            writer.step(&metrics);
        }
        writer.finish().unwrap();
        let lines = lines(dir.path());
        assert_eq!(lines.len(), 100);
        assert_eq!((&lines[7]["step"], &lines[7]["loss"]), (&7.into(), &0.5.into()));
        assert!(lines[50]["loss"].is_null());
        assert_eq!(lines[99]["eval_accuracy"], 0.75);
        assert!(lines[98].get("eval_accuracy").is_none());
        for key in ["lr", "grad_norm", "step_ms", "host_ms", "data_wait_ms", "examples_per_sec"] {
            assert!(lines[0].get(key).is_some(), "{key}");
        }
    }

    #[test]
    fn lines_reach_the_file_within_a_second_and_on_drop() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = MetricsWriter::create(dir.path()).unwrap();
        writer.step(&StepMetrics::default());
        let start = Instant::now();
        while lines(dir.path()).is_empty() {
            assert!(start.elapsed() < Duration::from_secs(3), "not flushed");
            thread::sleep(Duration::from_millis(20));
        }
        writer.step(&StepMetrics::default());
        drop(writer);
        assert_eq!(lines(dir.path()).len(), 2);
    }

    #[test]
    fn a_file_that_is_there_is_not_emptied() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(MetricsWriter::FILE);
        fs::write(&path, "earlier").unwrap();
        let error = MetricsWriter::create(dir.path()).err().unwrap().to_string();
        assert!(error.contains("metrics.jsonl: File exists"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "earlier");
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
    }

    #[test]
    fn lines_wait_until_there_is_room_for_them() {
        let disk = FullAtFirst { num_failures: 2, written: vec![] };
        let mut lines = Lines::new(disk, "metrics.jsonl".into());
        for step in 0..4 {
            lines.add(&StepMetrics { step, ..StepMetrics::default() });
            assert_eq!(lines.try_to_write(), step < 2);
        }
        let text = String::from_utf8(lines.target.written.clone()).unwrap();
        let steps = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let steps: Vec<_> = steps.map(|line| line["step"].as_u64().unwrap()).collect();
        assert_eq!(steps, [0, 1, 2, 3]);
        lines.finish().unwrap();
    }

    #[test]
    fn what_is_kept_in_memory_is_bounded_and_what_is_lost_counted() {
        let disk = FullAtFirst { num_failures: 1, written: vec![] };
        let mut lines = Lines::new(disk, "metrics.jsonl".into());
        lines.pending = vec![b'\n'; MAX_PENDING_BYTES - 1];
        lines.add(&StepMetrics::default());
        assert!(lines.try_to_write());
        assert!(!lines.try_to_write());
        lines.add(&StepMetrics::default());
        assert!(lines.pending.is_empty(), "no line follows a gap");
        let error = lines.finish().unwrap_err().to_string();
        assert!(error.contains("the lines of 2 steps are lost"), "{error}");
    }

    #[test]
    fn a_full_disk_is_reported() {
        let full = Path::new("/dev/full");
        if !full.exists() {
            return;
        }
        let file = File::options().write(true).open(full).unwrap();
        let mut lines = Lines::new(WholeLines { file, len: 0 }, full.to_owned());
        lines.add(&StepMetrics::default());
        assert!(lines.try_to_write());
        let error = lines.finish().unwrap_err().to_string();
        assert!(error.contains("cannot write /dev/full: No space left"), "{error}");
    }
}
