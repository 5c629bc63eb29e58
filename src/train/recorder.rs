//! What a run writes down, shows and leaves behind.

use std::time::{Duration, Instant, SystemTime};

use hlo::{Axis, Literal, Tree};

use super::run_dir::{CONFIG_FILE, RunDir};
use super::{
    Error, EvalResult, Job, Outcome, Run, StepResult, Trainer, params_file, params_fingerprint,
};
use crate::observe::{
    self, EvalMetrics, MetricsWriter, Progress, Status, StepMetrics, StepTimer, Summary,
    replace_file, say,
};
use crate::pjrt::Client;

/// Keeps the summary up to date, shows progress, and writes metrics, parameters and summary where there is a
/// directory for them.
pub(super) struct Recorder {
    dir: Option<RunDir>,
    writer: Option<MetricsWriter>,
    progress: Progress,
    timer: StepTimer,
    summary: Summary,
    started: Instant,
    steps_per_epoch: f64,
    /// The line of a step after which there is an evaluation, until that has been made.
    held: Option<StepMetrics>,
}

/// Where the time of a launch went.
#[derive(Clone, Copy)]
pub(super) struct LaunchTimes {
    /// Steps that it took, of which some may have changed nothing.
    pub num_steps: usize,
    pub took: Duration,
    pub host: Duration,
    pub data_wait: Duration,
}

impl Recorder {
    /// Takes the directory, in which nothing has been changed before, and writes the `resolved` configuration
    /// and a summary that says that the run is under way.
    pub fn begin(
        dir: Option<RunDir>,
        resolved: &str,
        job: &Job<'_>,
        run: &Run,
        client: &Client,
        trainer: &Trainer,
        started: Instant,
    ) -> Result<Self, Error> {
        // As the configuration spells it.
        let precision = serde_json::to_value(job.config.train.precision).unwrap_or_default();
        let summary = Summary {
            planned_steps: run.length.total_steps(),
            num_replicas: run.mesh.num_replicas(),
            num_processes: 1,
            mesh: Axis::ALL.map(|axis| (axis.name(), run.mesh.size(axis))).into(),
            global_batch: run.batch.global_batch(),
            wall_secs: started.elapsed().as_secs_f64(),
            num_params: trainer.num_params(),
            seed: job.config.train.seed,
            precision: precision.as_str().unwrap_or_default().to_owned(),
            backend: job.config.device.backend.to_string(),
            device: client.devices().first().map_or(String::new(), |device| device.kind.clone()),
            version: env!("CARGO_PKG_VERSION"),
            ..Summary::default()
        };
        let create = |dir: &RunDir| {
            let path = dir.path().join(CONFIG_FILE);
            let written = replace_file(&path, resolved.as_bytes());
            written.map_err(|source| observe::Error::Write { path, source })?;
            summary.save(dir.path())?;
            MetricsWriter::create(dir.path())
        };
        let writer = match &dir {
            Some(dir) => {
                dir.begin()?;
                Some(create(dir).inspect_err(|_| dir.give_up())?)
            }
            None => None,
        };
        Ok(Self {
            dir,
            writer,
            progress: Progress::new(0, run.length.total_steps(), run.batch.global_batch()),
            timer: StepTimer::new(started),
            steps_per_epoch: run.length.steps_per_epoch().map_or(f64::NAN, |steps| steps as f64),
            summary,
            started,
            held: None,
        })
    }

    /// Writes steps of a launch down. All that it took share its time evenly. The line of the last one waits for the
    /// evaluation after it, if there `is_evaluation`.
    pub fn launch(&mut self, results: &[StepResult], times: LaunchTimes, is_evaluation: bool) {
        self.timer.record(times.took, times.num_steps);
        let ms = |time: Duration| time.as_secs_f64() * 1e3 / times.num_steps as f64;
        let step_ms = ms(times.took);
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        for result in results {
            self.write_held();
            let num_steps = result.step + 1;
            self.held = Some(StepMetrics {
                step: result.step,
                time: time.as_ref().map_or(f64::NAN, Duration::as_secs_f64),
                epoch: num_steps as f64 / self.steps_per_epoch,
                examples: num_steps * self.summary.global_batch as u64,
                loss: result.loss,
                lr: result.lr,
                grad_norm: result.grad_norm,
                num_skipped: result.num_skipped,
                step_ms,
                host_ms: ms(times.host),
                data_wait_ms: ms(times.data_wait),
                examples_per_sec: self.summary.global_batch as f64 / step_ms * 1e3,
                eval: None,
            });
            self.summary.steps = num_steps;
            self.summary.final_loss = Some(result.loss);
            self.summary.num_skipped = result.num_skipped;
        }
        if !is_evaluation {
            self.write_held();
        }
        let loss = self.summary.final_loss.unwrap_or(f64::NAN);
        self.progress.launch(self.summary.steps, loss);
    }

    /// Takes note of an evaluation after the last step.
    pub fn evaluated(&mut self, eval: &EvalResult) {
        let metrics = EvalMetrics {
            eval_loss: eval.loss,
            eval_accuracy: eval.metrics.get("accuracy").copied(),
            eval_top5_accuracy: eval.metrics.get("top5_accuracy").copied(),
        };
        let accuracy =
            metrics.eval_accuracy.map_or(String::new(), |a| format!(", accuracy {a:.4}"));
        let steps = self.summary.steps;
        self.say(&format!("evaluation after {steps} steps: loss {:.4}{accuracy}", eval.loss));
        if let Some(held) = &mut self.held {
            held.eval = Some(metrics);
        }
        self.write_held();
        self.summary.evaluated(steps.saturating_sub(1), metrics);
    }

    /// What is known of the run.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// A line for whoever watches.
    pub fn say(&mut self, text: &str) {
        self.progress.message(text);
    }

    /// Writes what is left: the parameters, if they are sound, the last lines and the summary. What goes
    /// wrong here does not keep the rest from being written. It is the run's failure where there is no
    /// other, and said where there is.
    pub fn end(
        mut self,
        is_interrupted: bool,
        mut failure: Option<Error>,
        params: Option<&Tree<Literal>>,
    ) -> Outcome {
        self.progress.finish();
        self.write_held();
        let mut check = |result: Result<(), Error>| match (result, &failure) {
            (Ok(()), _) => {}
            (Err(error), None) => failure = Some(error),
            (Err(error), Some(_)) => say(&format!("error: {error}")),
        };
        // First what cannot be had again.
        if let (Some(dir), Some(params)) = (&self.dir, params) {
            check(params_file::save(&dir.path().join(params_file::FILE), params));
        }
        check(self.writer.take().map_or(Ok(()), MetricsWriter::finish).map_err(Error::from));
        let mut summary = self.summary;
        summary.median_step_ms = self.timer.median_ms();
        summary.first_step_secs = self.timer.first_step_secs();
        let rate = self.timer.steps_per_sec();
        summary.examples_per_sec = rate.map(|rate| rate * summary.global_batch as f64);
        summary.params_fingerprint = params.map(params_fingerprint);
        summary.wall_secs = self.started.elapsed().as_secs_f64();
        summary.status = match (&failure, is_interrupted) {
            (Some(_), _) => Status::Failed,
            (None, true) => Status::Interrupted,
            (None, false) => Status::Done,
        };
        summary.reason = failure.as_ref().map(Error::to_string);
        if let Some(dir) = &self.dir {
            if let Err(error) = summary.save(dir.path()) {
                (summary.status, summary.reason) = (Status::Failed, Some(error.to_string()));
                match &failure {
                    None => failure = Some(error.into()),
                    Some(_) => say(&format!("error: {error}")),
                }
            }
            dir.end(summary.status == Status::Done);
        }
        Outcome { summary, failure }
    }

    /// Writes the line that waits, if one does.
    fn write_held(&mut self) {
        if let (Some(writer), Some(metrics)) = (&mut self.writer, self.held.take()) {
            writer.step(&metrics);
        }
    }
}
