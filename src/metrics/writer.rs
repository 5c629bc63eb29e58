//! `metrics.jsonl`: a line a step.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::Error;

/// One training step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepMetrics {
    /// The step, from 0.
    pub step: u64,
    /// Mean loss over the global batch.
    pub loss: f64,
    /// Learning rate.
    pub lr: f64,
    /// Euclidean norm of the whole gradient.
    pub grad_norm: f64,
    /// Updates left out so far because something was not finite, this step's included.
    pub num_skipped: u64,
    /// Milliseconds of the whole step.
    pub step_ms: f64,
    /// Milliseconds in which the host worked rather than waited.
    pub host_ms: f64,
    /// Milliseconds in which the loop waited for its batch.
    pub data_wait_ms: f64,
    /// Examples per second, over all replicas.
    pub examples_per_sec: f64,
    /// The evaluation behind the step, if there was one: its fields stand in the step's line.
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

/// Makes the directory if it is not there, and sees whether files can be made in it and its metrics
/// written, without changing what an earlier run left there. To be called before anything that takes
/// time: a run that could not be written down does not start.
///
/// # Errors
/// If the directory cannot be made or written to.
pub fn check_out_dir(dir: &Path) -> Result<(), Error> {
    let check = || -> io::Result<()> {
        fs::create_dir_all(dir)?;
        tempfile::tempfile_in(dir)?;
        match File::options().append(true).open(dir.join(MetricsWriter::FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    };
    check().map_err(|source| Error::OutDir { dir: dir.to_owned(), source })
}

/// Writes `DIR/metrics.jsonl` on a thread, so that a slow disk does not hold a step up. Lines reach the
/// file within a second, and at the end.
pub struct MetricsWriter {
    lines: Option<Sender<String>>,
    thread: Option<JoinHandle<io::Result<()>>>,
    path: PathBuf,
}

impl MetricsWriter {
    /// The name of the file.
    pub const FILE: &'static str = "metrics.jsonl";

    /// Makes the directory if it is not there, and an empty file in it.
    ///
    /// # Errors
    /// If the directory cannot be made or written to, or no thread can be started.
    pub fn create(dir: &Path) -> Result<Self, Error> {
        let path = dir.join(Self::FILE);
        let open = || -> io::Result<(File, Sender<String>, Receiver<String>)> {
            fs::create_dir_all(dir)?;
            let (lines, receiver) = channel();
            Ok((File::create(&path)?, lines, receiver))
        };
        let out_dir = |source| Error::OutDir { dir: dir.to_owned(), source };
        let (file, lines, receiver) = open().map_err(out_dir)?;
        let run = move || write_lines(BufWriter::new(file), &receiver);
        let thread =
            thread::Builder::new().name("metrics".to_owned()).spawn(run).map_err(out_dir)?;
        Ok(Self { lines: Some(lines), thread: Some(thread), path })
    }

    /// Adds the line of a step.
    ///
    /// # Errors
    /// If an earlier line could not be written.
    pub fn step(&mut self, metrics: &StepMetrics) -> Result<(), Error> {
        let line = serde_json::to_string(metrics)
            .map_err(|error| Error::Write { path: self.path.clone(), source: error.into() })?;
        match &self.lines {
            Some(lines) if lines.send(line).is_ok() => Ok(()),
            // The thread ends early only when a write failed.
            _ => self.end(),
        }
    }

    /// Writes what is left and says whether all of it was written. Dropping does the same and says
    /// nothing.
    ///
    /// # Errors
    /// If a line could not be written.
    pub fn finish(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        self.lines = None;
        let closed = || io::Error::other("the file was closed after an earlier error");
        let result = match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) | None => Err(closed()),
        };
        result.map_err(|source| Error::Write { path: self.path.clone(), source })
    }
}

impl Drop for MetricsWriter {
    fn drop(&mut self) {
        if self.thread.is_some() {
            // Nobody is left to be told.
            let _ = self.end();
        }
    }
}

const FLUSH_EVERY: Duration = Duration::from_secs(1);

fn write_lines(mut file: BufWriter<File>, lines: &Receiver<String>) -> io::Result<()> {
    // When the oldest line that is not yet in the file has to be.
    let mut due: Option<Instant> = None;
    loop {
        let line = match due {
            None => lines.recv().map_err(RecvTimeoutError::from),
            Some(due) => lines.recv_timeout(due.saturating_duration_since(Instant::now())),
        };
        match line {
            Ok(line) => {
                writeln!(file, "{line}")?;
                due.get_or_insert_with(|| Instant::now() + FLUSH_EVERY);
            }
            Err(RecvTimeoutError::Timeout) => {
                file.flush()?;
                due = None;
            }
            Err(RecvTimeoutError::Disconnected) => return file.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn lines(dir: &Path) -> Vec<Value> {
        let text = fs::read_to_string(dir.join(MetricsWriter::FILE)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn every_line_is_json_and_reaches_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("a/b");
        let mut writer = MetricsWriter::create(&out).unwrap();
        for step in 0..100 {
            let loss = if step == 50 { f64::INFINITY } else { 0.5 };
            let eval = EvalMetrics {
                eval_loss: 0.25,
                eval_accuracy: Some(0.75),
                ..EvalMetrics::default()
            };
            let eval = (step == 99).then_some(eval);
            let metrics = StepMetrics { step, loss, lr: 1e-3, eval, ..StepMetrics::default() };
            writer.step(&metrics).unwrap();
        }
        writer.finish().unwrap();
        let lines = lines(&out);
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
        writer.step(&StepMetrics::default()).unwrap();
        let start = Instant::now();
        while lines(dir.path()).is_empty() {
            assert!(start.elapsed() < Duration::from_secs(3), "not flushed");
            thread::sleep(Duration::from_millis(20));
        }
        writer.step(&StepMetrics::default()).unwrap();
        drop(writer);
        assert_eq!(lines(dir.path()).len(), 2);
    }

    #[test]
    fn a_directory_that_cannot_be_made_fails_before_the_run() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let out = file.path().join("out");
        for error in [MetricsWriter::create(&out).err(), check_out_dir(&out).err()] {
            let error = error.unwrap().to_string();
            assert!(error.contains("cannot write into the output directory"), "{error}");
            assert!(error.contains("--out"), "{error}");
        }
    }

    #[test]
    fn checking_a_directory_leaves_it_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        check_out_dir(&dir.path().join("new/run")).unwrap();
        let metrics = dir.path().join(MetricsWriter::FILE);
        fs::write(&metrics, "earlier").unwrap();
        check_out_dir(dir.path()).unwrap();
        assert_eq!(fs::read_to_string(&metrics).unwrap(), "earlier");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        fs::remove_file(&metrics).unwrap();
        fs::create_dir(&metrics).unwrap();
        check_out_dir(dir.path()).unwrap_err();
    }

    #[test]
    fn a_full_disk_is_reported() {
        let full = Path::new("/dev/full");
        if !full.exists() {
            return;
        }
        let (lines, receiver) = channel();
        let file = BufWriter::new(File::options().write(true).open(full).unwrap());
        let thread = thread::spawn(move || write_lines(file, &receiver));
        let path = full.to_owned();
        let mut writer = MetricsWriter { lines: Some(lines), thread: Some(thread), path };
        writer.step(&StepMetrics::default()).unwrap();
        let error = writer.finish().unwrap_err().to_string();
        assert!(error.contains("/dev/full"), "{error}");
    }
}
