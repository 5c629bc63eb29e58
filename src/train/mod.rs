//! The training loop. Belongs to the run phase.
//!
//! ```text
//! data thread: batch k+1 -> devices      loop: batch k, rate k -> launch -> state, numbers of step k
//! ```
//! With `steps_per_launch`, a launch is several steps on as many batches and rates. Launches are
//! asynchronous: the loop runs up to `MAX_IN_FLIGHT` of them ahead of the numbers that it
//! writes down, and waits only where it needs a value.

mod bench;
mod error;
mod formulation;
mod launches;
pub mod params_file;
pub mod profile;
mod programs;
mod report;
mod setup;
mod trainer;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use models::Model;

use crate::config::{Config, OnNonfinite};
use crate::data::{Prefetch, Splits, TrainBatches};
use crate::metrics::{
    EvalMetrics, MetricsWriter, Progress, Spans, StepMetrics, StepTimer, Summary, check_out_dir,
    say,
};
use crate::pjrt::Client;

pub use bench::{BenchOptions, BenchResult, StepParts, bench};
pub use error::Error;
pub use formulation::Formulation;
pub use launches::launches;
pub use programs::{CompileSettings, Programs, step_graph};
pub use report::{describe_batch, describe_synchronisation};
pub use setup::{Plan, num_replicas_on_host, open_devices, platform_on_host};
pub use trainer::{
    BatchSender, DeviceBatch, EvalResult, PendingSteps, StepResult, Trainer, params_fingerprint,
};

/// Launches whose numbers may be outstanding. More would not make the devices busier, and would let the
/// host run far ahead of a step that is to stop the run.
const MAX_IN_FLIGHT: usize = 2;

/// What to train, on what.
pub struct Job<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The model.
    pub model: &'a dyn Model,
    /// The data.
    pub splits: &'a Splits,
}

/// Where a run begins and what it leaves behind.
pub struct Options {
    /// When the process started, as well as it is known.
    pub started: Instant,
    /// Directory for metrics, summary and parameters; without one nothing is written.
    pub out: Option<PathBuf>,
    /// Parameters to start from, instead of those that follow from the seed.
    pub init: Option<PathBuf>,
    /// Set from outside (by a signal) to end the run behind the step that is under way.
    pub stop: Arc<AtomicBool>,
}

impl Default for Options {
    fn default() -> Self {
        Self { started: Instant::now(), out: None, init: None, stop: Arc::default() }
    }
}

/// What a run came to: everything that there is to be written has been.
#[derive(Debug)]
pub struct Outcome {
    /// What `summary.json` holds.
    pub summary: Summary,
    /// Was it ended from outside, before its last step?
    pub interrupted: bool,
    /// Why it is no success: what ended it before its last step, or what is not finite at its end.
    pub failure: Option<Error>,
}

impl Outcome {
    /// The outcome of a run that succeeded or was interrupted.
    ///
    /// # Errors
    /// The failure of one that did not.
    pub fn success(self) -> Result<Self, Error> {
        match self.failure {
            Some(failure) => Err(failure),
            None => Ok(self),
        }
    }
}

/// Trains from the first step to the last: opens the devices, compiles, runs the loop, evaluates, and
/// writes `metrics.jsonl`, `params.safetensors` and `summary.json` if there is a directory for them.
///
/// A run that failed on the way, with parameters that are sound, has an outcome too: they have been written,
/// and metrics up to that step.
///
/// # Errors
/// See [`Error`]: what keeps a run from starting or from being written down, and what leaves no sound
/// parameters.
pub fn train(job: &Job<'_>, options: &Options) -> Result<Outcome, Error> {
    // Before anything that takes time: a run that could not be written down does not start.
    options.out.as_deref().map(check_out_dir).transpose()?;
    let (client, plan, mut trainer) = setup::start(job, &Spans::new(options.started))?;
    if let Some(path) = &options.init {
        trainer.set_model(params_file::load(path, &trainer.model_types())?)?;
    }
    say(&describe_devices(&client, job.config));
    say(&describe_batch(&plan));
    say(&describe_synchronisation(&trainer));

    // Only now, for it empties the file of a run before.
    let writer = options.out.as_deref().map(MetricsWriter::create).transpose()?;
    let mut run = Run {
        job,
        plan: &plan,
        progress: Progress::new(0, plan.run.total_steps(), plan.batch.global_batch()),
        timer: StepTimer::new(options.started),
        writer,
        held: None,
        num_steps: 0,
        last_loss: None,
        last_eval: None,
        num_skipped: 0,
        skipped_last: None,
        last_end: Instant::now(),
    };
    let ended = run.steps(&mut trainer, &options.stop);
    run.progress.finish();
    let held = run.write_held();
    let written = run.writer.take().map_or(Ok(()), MetricsWriter::finish);

    if let Some(report) = job.splits.skipped_report() {
        say(&report);
    }
    // Whatever ended the steps: what is sound is kept. What a failed proof or launch leaves is not.
    let (interrupted, failure) = match ended {
        Err(error @ (Error::LockstepLost { .. } | Error::Pjrt(_))) => return Err(error),
        Err(error) => (false, Some(error)),
        Ok(interrupted) => (interrupted, run.nonfinite_end()),
    };
    let saved = run.save(&trainer, options.out.as_deref());
    match (
        saved.and_then(|summary| held.and(written.map_err(Error::from)).map(|()| summary)),
        failure,
    ) {
        (Ok(summary), failure) => Ok(Outcome { summary, interrupted, failure }),
        // What went wrong first.
        (Err(_), Some(failure)) => Err(failure),
        (Err(error), None) => Err(error),
    }
}

fn describe_devices(client: &Client, config: &Config) -> String {
    let (platform, version) = (client.platform_name(), client.platform_version());
    let backend = &config.device.backend;
    // Most plugins begin the version with the platform.
    let platform = if version.starts_with(platform) { "" } else { &format!("{platform} ") };
    format!("backend {backend}: {platform}{version}, {} devices", client.devices().len())
}

/// The state of the loop on the host.
struct Run<'a> {
    job: &'a Job<'a>,
    plan: &'a Plan,
    progress: Progress,
    timer: StepTimer,
    writer: Option<MetricsWriter>,
    /// The line of a step behind which there is an evaluation, until that has been made.
    held: Option<StepMetrics>,
    /// Steps whose numbers are known. A step that stops the run is the last of them, and those that
    /// were launched behind it have changed nothing.
    num_steps: u64,
    last_loss: Option<f64>,
    last_eval: Option<EvalResult>,
    num_skipped: u64,
    /// What was not finite in the last step, if its update was left out.
    skipped_last: Option<String>,
    /// When the step before ended.
    last_end: Instant,
}

/// A launch in flight, and what the host has spent on it.
struct InFlight {
    pending: PendingSteps,
    host: Duration,
    data_wait: Duration,
}

impl Run<'_> {
    /// All steps, proofs and evaluations. Was it interrupted?
    fn steps(&mut self, trainer: &mut Trainer, stop: &AtomicBool) -> Result<bool, Error> {
        let config = &self.job.config.train;
        let total = self.plan.run.total_steps();
        let batches = TrainBatches::new(
            self.job.splits.train.clone(),
            config.seed,
            self.plan.batch.global_batch(),
            self.plan.mesh.num_replicas(),
        )?;
        let steps_per_launch = config.steps_per_launch as u64;
        let stops = [config.check_lockstep_every, config.eval_every];
        let launches = launches(total, steps_per_launch, &stops);
        let launches = launches.map(move |steps| batches.launch(steps));
        let sender = trainer.batch_sender();
        let mut prefetch = Prefetch::start(launches, 1, move |batches| sender.send(batches))?;
        let mut in_flight = VecDeque::new();
        self.last_end = Instant::now();
        let mut interrupted = false;
        while trainer.steps_taken() < total {
            if stop.load(Ordering::Relaxed) {
                interrupted = true;
                break;
            }
            let Some(batch) = prefetch.next() else { break };
            let batch = match batch {
                Ok(batch) => batch,
                Err(error) => {
                    // What was launched before is part of the run, and of the parameters.
                    self.finish(trainer, &mut in_flight, 0)?;
                    return Err(error.into());
                }
            };
            let launched = Instant::now();
            let (taken, num_steps) = (trainer.steps_taken(), batch.batch.num_steps as u64);
            let rates = (taken..taken + num_steps).map(|step| self.plan.schedule.lr(step));
            let pending = trainer.launch(batch.batch, rates.collect())?;
            let (host, data_wait) = (launched.elapsed(), batch.waited);
            in_flight.push_back(InFlight { pending, host, data_wait });

            let taken = trainer.steps_taken();
            let every = config.check_lockstep_every;
            let prove = every > 0 && taken.is_multiple_of(every) && taken < total;
            let evaluate = self.is_evaluated_behind(taken - 1) && taken < total;
            let keep = if prove || evaluate { 0 } else { MAX_IN_FLIGHT };
            self.finish(trainer, &mut in_flight, keep)?;
            if prove {
                trainer.prove_lockstep()?;
            }
            if evaluate {
                self.evaluate(trainer)?;
            }
        }
        self.finish(trainer, &mut in_flight, 0)?;
        if config.check_lockstep_every > 0 {
            // What is saved has been proved.
            trainer.prove_lockstep()?;
        }
        if interrupted {
            let text = format!("stopped by a signal after {} steps", trainer.steps_taken());
            self.progress.message(&text);
        } else {
            self.evaluate(trainer)?;
        }
        Ok(interrupted)
    }

    /// Waits for the numbers of all but the last `keep` launches, and writes them down. The steps of a
    /// launch share its time evenly.
    fn finish(
        &mut self,
        trainer: &mut Trainer,
        in_flight: &mut VecDeque<InFlight>,
        keep: usize,
    ) -> Result<(), Error> {
        while in_flight.len() > keep {
            let Some(InFlight { pending, host, data_wait }) = in_flight.pop_front() else { break };
            let results = trainer.finish(pending)?;
            let end = Instant::now();
            let took = end - std::mem::replace(&mut self.last_end, end);
            let [took, host, data_wait] =
                [took, host, data_wait].map(|time| time / results.len().max(1) as u32);
            for result in &results {
                self.timer.record(took);
                self.record(result, took, host, data_wait)?;
            }
        }
        Ok(())
    }

    fn record(
        &mut self,
        result: &StepResult,
        took: Duration,
        host: Duration,
        data_wait: Duration,
    ) -> Result<(), Error> {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let metrics = StepMetrics {
            step: result.step,
            loss: result.loss,
            lr: result.lr,
            grad_norm: result.grad_norm,
            num_skipped: result.num_skipped,
            step_ms: ms(took),
            host_ms: ms(host),
            data_wait_ms: ms(data_wait),
            examples_per_sec: self.plan.batch.global_batch() as f64 / took.as_secs_f64(),
            eval: None,
        };
        self.held = Some(metrics);
        if !self.is_evaluated_behind(result.step) {
            self.write_held()?;
        }
        self.progress.step(result.step + 1, result.loss);
        self.num_steps = result.step + 1;
        self.last_loss = Some(result.loss);
        self.skipped_last = None;
        if result.num_skipped > self.num_skipped {
            self.num_skipped = result.num_skipped;
            let what = describe_nonfinite(result);
            if self.plan.on_nonfinite == OnNonfinite::Stop {
                return Err(Error::NonFinite { step: result.step, what });
            }
            let (step, count) = (result.step, result.num_skipped);
            let text = format!("step {step}: {what}; its update was left out ({count} so far)");
            self.progress.message(&text);
            self.skipped_last = Some(what);
        }
        Ok(())
    }

    /// What is not finite at the end of a run that took all its steps.
    fn nonfinite_end(&self) -> Option<Error> {
        let (num_steps, num_skipped) = (self.num_steps, self.num_skipped);
        if let Some(what) = self.skipped_last.clone() {
            let step = num_steps.saturating_sub(1);
            return Some(Error::LastSkipped { step, what, num_skipped, num_steps });
        }
        let loss = self.last_eval.as_ref().map(|eval| eval.loss);
        let loss = loss.filter(|loss| !loss.is_finite())?;
        Some(Error::NonFiniteEval { loss })
    }

    fn evaluate(&mut self, trainer: &Trainer) -> Result<(), Error> {
        let eval = trainer.evaluate(&self.job.splits.eval, self.plan)?;
        let accuracy = eval.metrics.get("accuracy").copied();
        let step = trainer.steps_taken();
        let accuracy_text = accuracy.map_or(String::new(), |a| format!(", accuracy {a:.4}"));
        let text = format!("evaluation after {step} steps: loss {:.4}{accuracy_text}", eval.loss);
        self.progress.message(&text);
        if let Some(held) = &mut self.held {
            held.eval = Some(EvalMetrics {
                eval_loss: eval.loss,
                eval_accuracy: accuracy,
                eval_top5_accuracy: eval.metrics.get("top5_accuracy").copied(),
            });
        }
        self.write_held()?;
        self.last_eval = Some(eval);
        // Its time is not the next step's.
        self.last_end = Instant::now();
        Ok(())
    }

    /// Is the evaluation split looked at behind this step? Its line waits for that.
    fn is_evaluated_behind(&self, step: u64) -> bool {
        let every = self.job.config.train.eval_every;
        step + 1 == self.plan.run.total_steps() || every > 0 && (step + 1).is_multiple_of(every)
    }

    /// Writes the line that waits, if one does.
    fn write_held(&mut self) -> Result<(), Error> {
        if let (Some(writer), Some(metrics)) = (&mut self.writer, self.held.take()) {
            writer.step(&metrics)?;
        }
        Ok(())
    }

    /// Writes parameters and summary, if there is a directory for them.
    fn save(&self, trainer: &Trainer, out: Option<&Path>) -> Result<Summary, Error> {
        let params = trainer.model()?;
        let eval = self.last_eval.as_ref();
        let metric = |name: &str| eval.and_then(|eval| eval.metrics.get(name).copied());
        let summary = Summary {
            steps: self.num_steps,
            num_replicas: self.plan.mesh.num_replicas(),
            global_batch: self.plan.batch.global_batch(),
            final_loss: self.last_loss,
            eval_loss: eval.map(|eval| eval.loss),
            eval_accuracy: metric("accuracy"),
            eval_top5_accuracy: metric("top5_accuracy"),
            median_step_ms: self.timer.median_ms(),
            first_step_secs: self.timer.first_step_secs(),
            num_skipped: self.num_skipped,
            params_fingerprint: params_fingerprint(&params),
        };
        if let Some(dir) = out {
            let written = params_file::save(&dir.join(params_file::FILE), &params);
            summary.save(dir)?;
            written?;
        }
        Ok(summary)
    }
}

fn describe_nonfinite(result: &StepResult) -> String {
    let replicas: Vec<_> = result.nonfinite_replicas.iter().map(usize::to_string).collect();
    match (&replicas[..], &result.nonfinite_leaf) {
        ([], _) if !result.loss.is_finite() => format!("the loss is {}", result.loss),
        ([], Some(leaf)) if result.grad_norm.is_finite() => {
            format!("the next value of `{leaf}` is not finite")
        }
        ([], _) => format!("the gradient's norm is {}", result.grad_norm),
        ([one], _) => format!("the loss is not finite on replica {one}"),
        (many, _) => format!("the loss is not finite on replicas {}", many.join(", ")),
    }
}
