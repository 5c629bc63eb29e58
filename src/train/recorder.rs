//! Turns what the loop learns into [`RunEvent`]s for the sinks of the run, and writes the final
//! parameters.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use hlo::{Literal, Tree, counted};

use super::host_metrics::{HostStep, LaunchTimes};
use super::processes::Processes;
use super::progress::Progress;
use super::progress_record::progress_of;
use super::report::step_collectives;
use super::run_dir::{CONFIG_FILE, RunDir};
use super::step_program::step_program;
use super::{Error, Job, Outcome, Run, StepResult, Trainer, params_file};
use crate::checkpoint::Checkpoint;
use crate::cluster::{Member, SlowPeer};
use crate::config::{MeshConfig, ObserveConfig};
use crate::observe::{
    self, EvalResult, FlushLater, GenerationStart, LaunchMetrics, LaunchSpans, PeakMemory,
    ProcessTimes, Prometheus, RunEnd, RunEvent, RunInfo, RunProgress, SavedCheckpoint, SinkChoice,
    Sinks, SlowProcess, Status, StepEval, StepTrace, TraceChoice, describe_noise, replace_file,
};
use crate::state;

/// The endpoint of this process, if it has one: each process on a host has a port of its own.
///
/// # Errors
/// An address that cannot be listened on.
pub(super) fn listen(
    config: &ObserveConfig,
    processes: Processes<'_>,
) -> Result<Option<Prometheus>, Error> {
    let Some(address) = config.prometheus_address() else { return Ok(None) };
    let process_index = processes.this().index;
    let local_index = processes.member().map_or(0, Member::local_index);
    let port = usize::from(address.port()) + local_index;
    Ok(Some(Prometheus::listen(address.host(), port, process_index)?))
}

/// The trace of this process, if there is one, among the files of the run.
pub(super) fn trace(
    out: Option<&Path>,
    config: &ObserveConfig,
    processes: Processes<'_>,
    trainer: &Trainer,
) -> Option<StepTrace> {
    let (out, steps) = (out?.to_owned(), config.traced_steps()?);
    let process_index = processes.this().index;
    let replicas = trainer.replicas();
    let collectives = step_collectives(trainer.step_graph());
    Some(StepTrace::new(TraceChoice { out, steps, process_index, replicas, collectives }))
}

/// Where a run writes, its processes, and how these came about.
pub(super) struct RunOutputs<'a> {
    pub dir: Option<RunDir>,
    pub trace: Option<StepTrace>,
    pub prometheus: Option<Prometheus>,
    pub processes: Processes<'a>,
    pub generation_starts: Vec<GenerationStart>,
}

/// Sends events to the sinks of a run.
pub(super) struct Recorder {
    dir: Option<RunDir>,
    progress: Progress,
    sinks: Sinks,
    /// Chosen steps are traced.
    has_trace: bool,
    started: Instant,
    global_batch: usize,
    steps_per_epoch: f64,
    /// How often a shard's batch was late.
    num_late: usize,
    /// Bytes per second that arrive from other processes.
    link_bytes_per_sec: Option<f64>,
    /// Parts of a batch whose gradients are compared, if they are.
    num_parts: Option<usize>,
}

impl Recorder {
    /// Takes over the directory, writes the `resolved` configuration and starts the sinks.
    ///
    /// # Errors
    /// Files that cannot be moved or written.
    pub fn begin(
        RunOutputs { dir, trace, prometheus, processes, generation_starts }: RunOutputs<'_>,
        resolved: &str,
        job: &Job<'_>,
        run: &Run,
        trainer: &Trainer,
        resumed: Option<&Checkpoint>,
        started: Instant,
    ) -> Result<Self, Error> {
        // As the configuration spells it.
        let precision = serde_json::to_value(job.config.train.precision).unwrap_or_default();
        let progress = resumed.map_or_else(RunProgress::default, |from| {
            let metrics = trainer.eval_metrics();
            progress_of(from.run().step, &from.run().progress, &metrics)
        });
        let state_bytes = trainer.state().leaves().map(|leaf| leaf.num_bytes() as u64);
        let info = RunInfo {
            elapsed_secs: started.elapsed().as_secs_f64(),
            planned_steps: run.length.total_steps(),
            num_replicas: run.plan.mesh.num_replicas(),
            num_processes: processes.this().num_processes,
            mesh: MeshConfig::AXES.map(|axis| (axis.name(), run.plan.mesh.size(axis))).into(),
            global_batch: run.batch.global_batch(),
            batch_efficiency: run.batch.efficiency(),
            num_params: trainer.num_params(),
            state_bytes_per_replica: state_bytes.sum(),
            program: step_program(job, run, trainer)?,
            seed: job.config.train.seed,
            precision: precision.as_str().unwrap_or_default().to_owned(),
            approximations: run.approximations(),
            backend: job.config.device.backend.to_string(),
            device: trainer
                .client()
                .devices()
                .first()
                .map_or(String::new(), |device| device.kind.clone()),
            version: env!("CARGO_PKG_VERSION"),
            config: resolved.to_owned(),
            class_names: job.splits.eval.labels().to_vec(),
            resumed_from: resumed.map(|from| from.location().to_string()),
            failed_generations: processes.failed_generations(),
            generation_starts,
            progress: progress.clone(),
        };
        let choice = SinkChoice {
            out: dir.as_ref().map(RunDir::path),
            is_quiet: !processes.is_first(),
            has_layers: job.config.observe.layers_every > 0,
            // They tell each other with proofs.
            has_process_times: processes.this().num_processes > 1
                && job.config.train.check_lockstep_every > 0,
            has_tensorboard: job.config.observe.tensorboard,
            trace,
            prometheus,
        };
        let has_trace = choice.trace.is_some();
        let sinks = match &dir {
            Some(dir) => {
                dir.begin()?;
                let path = dir.path().join(CONFIG_FILE);
                let written = replace_file(&path, resolved.as_bytes());
                written
                    .map_err(|source| observe::Error::Write { path, source })
                    .and_then(|()| Sinks::start(choice, info))
                    .inspect_err(|_| dir.give_up())?
            }
            None => Sinks::start(choice, info)?,
        };
        Ok(Self {
            dir,
            progress: Progress::new(job.config, progress),
            sinks,
            has_trace,
            started,
            global_batch: run.batch.global_batch(),
            steps_per_epoch: run.length.steps_per_epoch().map_or(f64::NAN, |steps| steps as f64),
            num_late: 0,
            link_bytes_per_sec: None,
            num_parts: run.batch_parts(job.model),
        })
    }

    /// Records the steps of a launch. `is_evaluated` says whether an evaluation follows the last of
    /// them.
    pub fn launch(
        &mut self,
        results: &[StepResult],
        (times, spans): (LaunchTimes, LaunchSpans),
        is_evaluated: bool,
    ) {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let time = time.map_or(f64::NAN, |time| time.as_secs_f64());
        let (global_batch, steps_per_epoch) = (self.global_batch, self.steps_per_epoch);
        let (num_parts, progress) = (self.num_parts, &mut self.progress);
        let metrics = |result| {
            let noise_scale =
                num_parts.and_then(|parts| progress.measured(result, global_batch, parts));
            HostStep { result, times, time, global_batch, steps_per_epoch, noise_scale }.metrics()
        };
        let launch = LaunchMetrics {
            steps: results.iter().map(metrics).collect(),
            num_steps: times.num_steps,
            duration: times.total,
            // At its end: it may be recorded later, in the time of the next one.
            elapsed_secs: spans.whole.end.saturating_duration_since(self.started).as_secs_f64(),
            is_evaluated,
            layers: results.iter().filter_map(|result| result.layers.clone()).collect(),
            late_shards: results
                .iter()
                .filter(|result| !result.late_shards.is_empty())
                .map(|result| (result.step, result.late_shards.clone()))
                .collect(),
            spans: Some(Box::new(spans)),
        };
        self.num_late += launch.late_shards.values().map(Vec::len).sum::<usize>();
        self.progress.launched(results);
        self.sinks.send(&RunEvent::Launch(launch));
    }

    /// Records that the update of a step was skipped.
    pub fn update_skipped(&mut self, result: &StepResult, reason: &str) {
        let (step, num_skipped) = (result.step, result.num_skipped);
        self.progress.skipped(step, reason);
        let reason = reason.to_owned();
        self.sinks.send(&RunEvent::UpdateSkipped { step, reason, num_skipped });
    }

    /// Records that a process is slow.
    pub fn process_slow(&mut self, slow: SlowPeer) {
        let SlowPeer { process_index, host, factor, since_step, cause, machine, text } = slow;
        let cause = cause.name();
        let slow = SlowProcess { process_index, host, factor, since_step, cause, machine, text };
        self.sinks.send(&RunEvent::ProcessSlow(slow));
    }

    /// Takes note of how fast messages of other processes have arrived so far. Says it the first
    /// time.
    pub fn links_measured(&mut self, bytes_per_sec: f64) {
        if self.link_bytes_per_sec.replace(bytes_per_sec).is_none() {
            let mb_per_sec = bytes_per_sec / 1e6;
            self.say(&format!(
                "host collectives: messages from other processes arrive at {mb_per_sec:.0} MB/s"
            ));
        }
    }

    /// Records that all replicas hold the same state after `num_steps` steps.
    pub fn lockstep_proved(
        &mut self,
        num_steps: u64,
        took: Duration,
        process_times: Vec<ProcessTimes>,
    ) {
        self.sinks.send(&RunEvent::LockstepProved { num_steps, took, process_times });
    }

    /// Records that a checkpoint was saved.
    pub fn checkpoint_saved(&mut self, saved: SavedCheckpoint) {
        self.sinks.send(&RunEvent::CheckpointSaved(saved));
    }

    /// Records an evaluation after `num_steps` steps.
    pub fn evaluated(&mut self, num_steps: u64, eval: EvalResult, took: Duration) {
        let eval = StepEval { step: num_steps.saturating_sub(1), eval };
        let is_best = self.progress.evaluated(&eval);
        self.sinks.send(&RunEvent::Evaluated { eval, is_best, took });
    }

    /// `true` if chosen steps are traced.
    pub fn has_trace(&self) -> bool {
        self.has_trace
    }

    /// The progress of the run so far.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Waits for the lines of all steps so far, on another thread.
    pub fn flush_later(&mut self) -> Vec<FlushLater> {
        self.sinks.flush_later()
    }

    /// Sends a message to the user.
    pub fn say(&mut self, text: &str) {
        self.sinks.send(&RunEvent::Message(text.to_owned()));
    }

    /// Writes the parameters, if they are sound, the last lines and the summary. An error does not
    /// keep the rest from being written: it becomes the run's failure, or a message if there is a
    /// failure already.
    pub fn end(
        mut self,
        is_interrupted: bool,
        mut failure: Option<Error>,
        params: Option<&Tree<Literal>>,
        peak_memory: PeakMemory,
    ) -> Outcome {
        self.sinks.send(&RunEvent::StepsEnded);
        if let Some(scale) = self.num_parts.and_then(|_| self.progress.run().noise.scale()) {
            self.say(&describe_noise(scale, self.global_batch));
        }
        if self.num_late > 0 {
            let times = counted(self.num_late, "time");
            self.say(&format!(
                "a shard's batch was late and left out {times} (data.late = \"skip\"); \
                 metrics.jsonl says which"
            ));
        }
        let mut errors = vec![];
        // Parameters first: of all files they are the most expensive to lose.
        if let (Some(dir), Some(params)) = (&self.dir, params) {
            errors.extend(params_file::save(&dir.path().join(params_file::FILE), params).err());
        }
        errors.extend(self.sinks.flush().into_iter().map(Error::from));
        self.add_errors(&mut failure, errors);
        let status = match (&failure, is_interrupted) {
            (Some(_), _) => Status::Failed,
            (None, true) => Status::Interrupted,
            (None, false) => Status::Done,
        };
        self.sinks.send(&RunEvent::Ended(RunEnd {
            status,
            reason: failure.as_ref().map(Error::to_string),
            params_fingerprint: params.map(state::fingerprint),
            elapsed_secs: self.started.elapsed().as_secs_f64(),
            peak_memory,
            link_bytes_per_sec: self.link_bytes_per_sec,
        }));
        let errors: Vec<_> = self.sinks.flush().into_iter().map(Error::from).collect();
        let unwritten = errors.first().map(Error::to_string);
        self.add_errors(&mut failure, errors);
        let mut summary = self.sinks.into_summary();
        if unwritten.is_some() {
            (summary.status, summary.reason) = (Status::Failed, unwritten);
        }
        if let Some(dir) = &self.dir {
            dir.end(summary.status == Status::Done);
        }
        Outcome { summary, failure }
    }

    /// The first error is the run's failure if there is none yet. The others are shown.
    fn add_errors(&mut self, failure: &mut Option<Error>, errors: Vec<Error>) {
        for error in errors {
            match failure {
                None => *failure = Some(error),
                Some(_) => self.say(&format!("error: {error}")),
            }
        }
    }
}
