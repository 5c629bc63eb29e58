//! The trait of sinks, and the list of all of them.

use std::path::Path;

use super::{
    Error, Jsonl, LayersFile, ProcessTimesFile, Prometheus, RunEvent, RunInfo, StepTrace, Summary,
    SummaryFile, TensorBoard, Terminal,
};

/// Waits until everything that a sink got before has been written, on any thread.
pub type FlushLater = Box<dyn FnOnce() -> Result<(), Error> + Send>;

/// Receives the events of a run.
pub trait Sink {
    /// Handles an event. Between `Started` and `StepsEnded` this must not wait for a disk or a
    /// network, because it is called between two launches: a [`Writer`](super::Writer) does that.
    /// Errors are kept for [`Self::flush`].
    fn event(&mut self, event: &RunEvent);

    /// Waits until everything so far has been written. Called after `Started`, `StepsEnded` and
    /// `Ended`.
    ///
    /// # Errors
    /// A file that cannot be written. The run fails: it does not start, or ends with this error.
    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Like [`Self::flush`], between two launches: does not wait, but returns what waits. `None` if
    /// nothing is written before the run ends.
    fn flush_later(&mut self) -> Option<FlushLater> {
        None
    }
}

/// Which sinks a process has. By default the terminal alone.
#[derive(Default)]
pub struct SinkChoice<'a> {
    /// The directory for files; `None` writes none.
    pub out: Option<&'a Path>,
    /// `true` for all processes but the one that reports about the run on the terminal.
    pub is_quiet: bool,
    /// `true` if the norms of each parameter are among them.
    pub has_layers: bool,
    /// `true` if the times of several processes are among them.
    pub has_process_times: bool,
    /// `true` if the files of TensorBoard are among them.
    pub has_tensorboard: bool,
    /// The trace of this process.
    pub trace: Option<StepTrace>,
    /// The endpoint of this process.
    pub prometheus: Option<Prometheus>,
}

/// The sinks of a run.
pub struct Sinks {
    /// Every run has a summary, with or without a file.
    summary: SummaryFile,
    others: Vec<Box<dyn Sink>>,
}

impl Sinks {
    /// Makes the sinks and sends them `Started`.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn start(choice: SinkChoice<'_>, info: RunInfo) -> Result<Self, Error> {
        let SinkChoice { out, is_quiet, .. } = choice;
        let SinkChoice { has_layers, has_process_times, has_tensorboard, .. } = choice;
        let SinkChoice { trace, prometheus, .. } = choice;
        let mut others: Vec<Box<dyn Sink>> = vec![];
        if let Some(dir) = out {
            others.push(Box::new(Jsonl::new(dir)));
            if has_layers {
                others.push(Box::new(LayersFile::new(dir)));
            }
            if has_process_times {
                others.push(Box::new(ProcessTimesFile::new(dir)));
            }
            if has_tensorboard {
                others.push(Box::new(TensorBoard::new(dir)));
            }
        }
        if let Some(trace) = trace {
            others.push(Box::new(trace));
        }
        if let Some(prometheus) = prometheus {
            others.push(Box::new(prometheus));
        }
        if !is_quiet {
            others.push(Box::new(Terminal::default()));
        }
        let mut sinks = Self { summary: SummaryFile::new(out), others };
        let started = RunEvent::Started(Box::new(info));
        for sink in sinks.iter_mut() {
            sink.event(&started);
            sink.flush()?;
        }
        Ok(sinks)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut dyn Sink> {
        let others = self.others.iter_mut().map(|sink| sink.as_mut() as &mut dyn Sink);
        std::iter::once(&mut self.summary as &mut dyn Sink).chain(others)
    }

    /// Hands an event to every sink.
    pub fn send(&mut self, event: &RunEvent) {
        self.iter_mut().for_each(|sink| sink.event(event));
    }

    /// Flushes every sink and returns the errors.
    pub fn flush(&mut self) -> Vec<Error> {
        self.iter_mut().filter_map(|sink| sink.flush().err()).collect()
    }

    /// [`Sink::flush_later`] of every sink.
    pub fn flush_later(&mut self) -> Vec<FlushLater> {
        self.iter_mut().filter_map(|sink| sink.flush_later()).collect()
    }

    /// The summary of the run.
    pub fn into_summary(self) -> Summary {
        self.summary.into_summary()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use serde_json::Value;

    use super::*;
    use crate::observe::{
        EvalResult, LaunchMetrics, Metric, RunEnd, SlowProcess, Status, StepEval, StepMetrics,
    };

    static LOSS: Metric = Metric::number(Metric::LOSS);

    fn into(dir: &Path) -> SinkChoice<'_> {
        SinkChoice { out: Some(dir), ..SinkChoice::default() }
    }

    fn launch(steps: std::ops::Range<u64>, is_evaluated: bool) -> RunEvent {
        let step = |step| StepMetrics { step, values: [(&LOSS, 0.5)].into_iter().collect() };
        let steps: Vec<_> = steps.map(step).collect();
        let num_steps = steps.len();
        RunEvent::Launch(LaunchMetrics {
            steps,
            num_steps,
            is_evaluated,
            ..LaunchMetrics::default()
        })
    }

    #[test]
    fn every_metric_of_an_evaluation_is_in_the_line_of_its_step_and_in_the_summary() {
        let dir = tempfile::tempdir().unwrap();
        let info = RunInfo { planned_steps: 6, ..RunInfo::default() };
        let mut sinks = Sinks::start(into(dir.path()), info).unwrap();
        let summary = || -> Value {
            let text = fs::read_to_string(dir.path().join(Summary::FILE)).unwrap();
            serde_json::from_str(&text).unwrap()
        };
        assert_eq!(
            (&summary()["status"], &summary()["planned_steps"]),
            (&"running".into(), &6.into())
        );
        sinks.send(&launch(0..2, true));
        let metrics = [("recall", 0.75), ("top5_accuracy", f64::NAN)].into();
        let eval = EvalResult { loss: 0.25, metrics, ..EvalResult::default() };
        let eval = StepEval { step: 1, eval };
        sinks.send(&RunEvent::Evaluated { eval, is_best: true, took: Duration::ZERO });
        sinks.send(&launch(2..4, false));
        // The evaluation of this one is given up.
        sinks.send(&launch(4..5, true));
        sinks.send(&RunEvent::StepsEnded);
        assert!(sinks.flush().is_empty());
        let end = RunEnd { status: Status::Interrupted, ..RunEnd::default() };
        sinks.send(&RunEvent::Ended(end));
        assert!(sinks.flush().is_empty());

        let text = fs::read_to_string(dir.path().join(Jsonl::FILE)).unwrap();
        let lines: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(lines.len(), 5);
        for (step, line) in lines.iter().enumerate() {
            assert_eq!(line["step"], step);
            assert_eq!(line.get("eval_loss").is_some(), step == 1, "{line}");
        }
        assert_eq!(
            (&lines[1]["eval_loss"], &lines[1]["eval_recall"]),
            (&0.25.into(), &0.75.into())
        );
        assert_eq!(lines[1]["eval_top5_accuracy"], Value::Null);
        let summary = summary();
        assert_eq!((&summary["status"], &summary["steps"]), (&"interrupted".into(), &5.into()));
        assert_eq!((&summary["eval_recall"], &summary["eval_step"]), (&0.75.into(), &1.into()));
        assert_eq!(summary.get("eval_accuracy"), Some(&Value::Null));
        assert_eq!(summary["best_eval"]["eval_recall"], 0.75);
        assert!(summary["best_eval"].get("eval_accuracy").is_none(), "{summary}");
        assert_eq!(sinks.into_summary().eval_metrics, [("eval_recall".to_owned(), 0.75)].into());
    }

    #[test]
    fn totals_and_slow_processes_are_in_the_lines_and_in_the_summary() {
        static WAIT: Metric = Metric::number("wait_ms").summed_as("wait_secs");
        let dir = tempfile::tempdir().unwrap();
        let mut sinks = Sinks::start(into(dir.path()), RunInfo::default()).unwrap();
        let steps = (0..3).map(|step| StepMetrics {
            step,
            // The first step does not know.
            values: (step > 0).then_some((&WAIT, 500.0 * step as f64)).into_iter().collect(),
        });
        for step in steps {
            if step.step > 0 {
                sinks.send(&RunEvent::ProcessSlow(SlowProcess {
                    process_index: 7,
                    host: "a".to_owned(),
                    factor: 1.5,
                    since_step: step.step,
                    cause: "input",
                    machine: "84 C".to_owned(),
                    text: "process 7 is slow".to_owned(),
                }));
            }
            let launch =
                LaunchMetrics { steps: vec![step], num_steps: 1, ..LaunchMetrics::default() };
            sinks.send(&RunEvent::Launch(launch));
        }
        sinks.send(&RunEvent::StepsEnded);
        sinks.send(&RunEvent::Ended(RunEnd::default()));
        assert!(sinks.flush().is_empty());
        let text = fs::read_to_string(dir.path().join(Jsonl::FILE)).unwrap();
        let slow = |step: u64| {
            format!(
                "[{{\"process_index\":7,\"host\":\"a\",\"factor\":1.5,\"since_step\":{step},\
                 \"cause\":\"input\",\"machine\":\"84 C\"}}]"
            )
        };
        let expected = format!(
            "{{\"step\":0}}\n{{\"step\":1,\"wait_ms\":500.0,\"slow_processes\":{}}}\n\
             {{\"step\":2,\"wait_ms\":1000.0,\"slow_processes\":{}}}\n",
            slow(1),
            slow(2)
        );
        assert_eq!(text, expected);
        let text = fs::read_to_string(dir.path().join(Summary::FILE)).unwrap();
        let summary: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(summary["wait_secs"], 1.5);
        let slow: Value = serde_json::from_str(&slow(2)).unwrap();
        assert_eq!(summary["slow_processes"], slow);
    }

    #[test]
    fn a_run_whose_files_cannot_be_made_does_not_start() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(Jsonl::FILE), "another run's").unwrap();
        let error = Sinks::start(into(dir.path()), RunInfo::default()).err().unwrap().to_string();
        assert!(error.contains("metrics.jsonl: File exists"), "{error}");
        let gone = Sinks::start(into(&dir.path().join("gone")), RunInfo::default());
        let error = gone.err().unwrap().to_string();
        assert!(error.contains("gone/summary.json"), "{error}");
    }
}
