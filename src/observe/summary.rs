//! `summary.json`: the state and the outcome of a run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use serde_json::Serializer;

use super::confusion::RowsOnLines;
use super::event::eval_field;
use super::{
    ConfusionMatrix, Error, FailedGeneration, GenerationStart, Metric, RunEvent, Sink, SlowProcess,
    StepEval, StepProgram, StepTimer, replace_file,
};

/// A run as a whole. Values that are not known or not finite are `null` in JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Its state or outcome.
    pub status: Status,
    /// Why it failed.
    pub reason: Option<String>,
    /// Steps taken.
    pub steps: u64,
    /// Steps that the configuration asks for.
    pub planned_steps: u64,
    /// Replicas, over all processes.
    pub num_replicas: usize,
    /// Processes that held the replicas.
    pub num_processes: usize,
    /// Sizes of the mesh's axes, by name.
    pub mesh: BTreeMap<&'static str, usize>,
    /// Examples per step.
    pub global_batch: usize,
    /// The share of what the replicas compute that counts: below 1 if some microbatches are
    /// surplus.
    pub batch_efficiency: f64,
    /// Mean training loss of the last step.
    pub final_loss: Option<f64>,
    /// Mean loss over the evaluation split, after step `eval_step`.
    pub eval_loss: Option<f64>,
    /// Share of the evaluation split that is classified correctly, 0 to 1.
    pub eval_accuracy: Option<f64>,
    /// Share of it with the label among the five highest scores, 0 to 1.
    pub eval_top5_accuracy: Option<f64>,
    /// The model's other metrics in that evaluation, as `eval_NAME`.
    #[serde(flatten)]
    pub eval_metrics: BTreeMap<String, f64>,
    /// Index, from 0, of the step after which the last evaluation was made.
    pub eval_step: Option<u64>,
    /// The best evaluation so far.
    pub best_eval: Option<StepEval>,
    /// What the last evaluation predicts for the examples of each class; of classes only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confusion: Option<ConfusionMatrix>,
    /// The batch that the noise of gradients suggests, in examples, if it is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise_scale: Option<f64>,
    /// Median step time in milliseconds.
    pub median_step_ms: Option<f64>,
    /// Seconds from the start of the process to the end of the first launch.
    pub first_step_secs: Option<f64>,
    /// Seconds from the start of the process to the writing of this.
    pub wall_secs: f64,
    /// Examples per second over all replicas, in all launches but the first, without the time of
    /// evaluations.
    pub examples_per_sec: Option<f64>,
    /// Seconds that the steps of this process waited for evaluations.
    pub evaluation_secs: f64,
    /// Lockstep proofs that this process made.
    pub num_proofs: u64,
    /// Seconds that the steps waited for them.
    pub proof_secs: f64,
    /// Checkpoints saved by this process.
    pub num_checkpoints: u64,
    /// Seconds that the steps waited for them: until the state was copied to host memory.
    pub checkpoint_wait_secs: f64,
    /// Seconds in which they were written, beside the steps.
    pub checkpoint_write_secs: f64,
    /// Sums over the steps of this process, in seconds: see [`Metric::total_secs`].
    #[serde(flatten)]
    pub totals: BTreeMap<&'static str, f64>,
    /// Number of values in the model's parameters.
    pub num_params: u64,
    /// Bytes of the state on one replica: parameters, model state and optimizer state.
    pub state_bytes_per_replica: u64,
    /// The most memory of the host that this process took, in bytes.
    pub peak_process_bytes: Option<u64>,
    /// The most memory that a device of this process gave, in bytes, if the plugin counts it.
    pub peak_device_bytes: Option<u64>,
    /// Bytes per second at which messages of other processes arrived: those of host collectives
    /// that are long, while any arrives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_bytes_per_sec: Option<f64>,
    /// The program of a step.
    pub program: StepProgram,
    /// Hexadecimal SHA-256 of the final parameters and model state.
    pub params_fingerprint: Option<String>,
    /// Updates skipped because a value was not finite.
    pub num_skipped: u64,
    /// How often a shard's batch was late and left out, in steps of this process.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_late_shards: u64,
    /// Seed of every random choice.
    pub seed: u64,
    /// Dtypes of parameters and arithmetic: `f32`, `bf16` or `f64`.
    pub precision: String,
    /// How the training differs from that of one device, by what replicas send of gradients and
    /// parameters.
    pub approximations: Vec<String>,
    /// The backend, as the configuration names it.
    pub backend: String,
    /// The kind of its devices, as the plugin names it.
    pub device: String,
    /// The version of this program.
    pub version: &'static str,
    /// The checkpoint that the run was continued from last.
    pub resumed_from: Option<String>,
    /// Earlier attempts at the job under the same supervisor; all of them have failed.
    pub failed_generations: Vec<FailedGeneration>,
    /// How the generations of a job with supervisors began, and how long that took.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub generation_starts: Vec<GenerationStart>,
    /// Processes that were found to be slow, each as the last time.
    pub slow_processes: Vec<SlowProcess>,
}

/// The state or outcome of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The run is running, or its process was killed.
    #[default]
    Running,
    /// The run took all its steps, without an error.
    Done,
    /// A signal stopped it.
    Interrupted,
    /// An error or a value that is not finite ended it, or its last update was skipped.
    Failed,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Summary {
    /// The name of the file.
    pub const FILE: &'static str = "summary.json";

    /// Adds an evaluation.
    fn evaluated(&mut self, found: &StepEval) {
        let StepEval { step, eval } = found;
        (self.eval_step, self.eval_loss) = (Some(*step), Some(eval.loss));
        (self.eval_accuracy, self.eval_top5_accuracy) = (None, None);
        self.eval_metrics.clear();
        for (name, value) in &eval.metrics {
            match *name {
                "accuracy" => self.eval_accuracy = Some(*value),
                "top5_accuracy" => self.eval_top5_accuracy = Some(*value),
                _ => drop(self.eval_metrics.insert(eval_field(name), *value)),
            }
        }
    }

    /// Writes `DIR/summary.json`. If that fails, the file that is there stays.
    fn save(&self, dir: &Path) -> Result<(), Error> {
        let path = dir.join(Self::FILE);
        let write = || {
            let mut text = vec![];
            self.serialize(&mut Serializer::with_formatter(&mut text, RowsOnLines::default()))?;
            text.push(b'\n');
            replace_file(&path, &text)
        };
        write().map_err(|source| Error::Write { path: path.clone(), source })
    }
}

/// Keeps a [`Summary`] up to date, and writes it to `DIR/summary.json` when the run starts and when
/// it has ended.
pub struct SummaryFile {
    dir: Option<PathBuf>,
    summary: Summary,
    timer: StepTimer,
    /// When the run began its steps.
    began: Instant,
    /// Of the data.
    class_names: Vec<String>,
    error: Option<Error>,
}

impl SummaryFile {
    /// Without a directory nothing is written.
    pub fn new(dir: Option<&Path>) -> Self {
        let (summary, timer) = (Summary::default(), StepTimer::default());
        Self {
            dir: dir.map(Path::to_owned),
            summary,
            timer,
            began: Instant::now(),
            class_names: vec![],
            error: None,
        }
    }

    /// The summary.
    pub fn into_summary(self) -> Summary {
        self.summary
    }

    fn save(&mut self) {
        let dir = self.dir.as_ref();
        self.error = dir.and_then(|dir| self.summary.save(dir).err());
    }
}

impl Sink for SummaryFile {
    fn event(&mut self, event: &RunEvent) {
        let Self { summary, timer, began, class_names, .. } = self;
        match event {
            RunEvent::Started(info) => {
                summary.planned_steps = info.planned_steps;
                summary.num_replicas = info.num_replicas;
                summary.num_processes = info.num_processes;
                summary.mesh = info.mesh.clone();
                summary.global_batch = info.global_batch;
                summary.batch_efficiency = info.batch_efficiency;
                summary.wall_secs = info.elapsed_secs;
                summary.num_params = info.num_params;
                summary.state_bytes_per_replica = info.state_bytes_per_replica;
                summary.program = info.program.clone();
                class_names.clone_from(&info.class_names);
                summary.seed = info.seed;
                summary.precision = info.precision.clone();
                summary.approximations = info.approximations.clone();
                summary.backend = info.backend.clone();
                summary.device = info.device.clone();
                summary.version = info.version;
                summary.resumed_from = info.resumed_from.clone();
                summary.failed_generations = info.failed_generations.clone();
                summary.generation_starts = info.generation_starts.clone();
                *began = Instant::now();
                let progress = &info.progress;
                summary.steps = progress.num_steps;
                summary.num_skipped = progress.num_skipped;
                summary.final_loss = progress.final_loss;
                if let Some(eval) = &progress.eval {
                    summary.evaluated(eval);
                }
                summary.best_eval = progress.best_eval.clone();
                summary.noise_scale = progress.noise.scale();
                self.save();
            }
            RunEvent::Launch(launch) => {
                timer.record(launch.duration, launch.num_steps, launch.elapsed_secs);
                let values = launch.steps.iter().flat_map(|step| step.values.iter());
                for (metric, ms) in values {
                    if let Some(field) = metric.total_secs {
                        *summary.totals.entry(field).or_default() += ms / 1e3;
                    }
                }
                let late = launch.late_shards.values().map(Vec::len).sum::<usize>();
                summary.num_late_shards += late as u64;
                if let Some(last) = launch.steps.last() {
                    summary.steps = last.step + 1;
                    summary.final_loss = last.values.get(Metric::LOSS);
                    let noise_scale = last.values.get(Metric::NOISE_SCALE);
                    summary.noise_scale = noise_scale.or(summary.noise_scale);
                    let num_skipped = last.values.get(Metric::NUM_SKIPPED);
                    summary.num_skipped = num_skipped.map_or(0, |count| count as u64);
                }
                if let Some(start @ GenerationStart { first_step_secs: None, .. }) =
                    summary.generation_starts.last_mut()
                {
                    start.first_step_secs = Some(began.elapsed().as_secs_f64());
                    // The next generation reads it, however this one ends.
                    self.save();
                }
            }
            RunEvent::LockstepProved { took, .. } => {
                summary.num_proofs += 1;
                summary.proof_secs += took.as_secs_f64();
            }
            RunEvent::Evaluated { eval, is_best, took } => {
                summary.evaluated(eval);
                summary.confusion = ConfusionMatrix::of(eval, class_names);
                summary.evaluation_secs += took.as_secs_f64();
                if *is_best {
                    summary.best_eval = Some(eval.clone());
                }
            }
            RunEvent::CheckpointSaved(saved) => {
                summary.num_checkpoints += 1;
                summary.checkpoint_wait_secs += saved.waited.as_secs_f64();
                summary.checkpoint_write_secs += saved.written.as_secs_f64();
            }
            RunEvent::Ended(end) => {
                summary.status = end.status;
                summary.reason = end.reason.clone();
                summary.params_fingerprint = end.params_fingerprint.clone();
                summary.peak_process_bytes = end.peak_memory.process_bytes;
                summary.peak_device_bytes = end.peak_memory.device_bytes;
                summary.link_bytes_per_sec = end.link_bytes_per_sec;
                summary.wall_secs = end.elapsed_secs;
                summary.median_step_ms = timer.median_ms();
                summary.first_step_secs = timer.first_step_secs();
                let rate = timer.steps_per_sec();
                summary.examples_per_sec = rate.map(|rate| rate * summary.global_batch as f64);
                self.save();
            }
            RunEvent::ProcessSlow(slow) => {
                // A process may become slow again and again: the last time counts.
                summary.slow_processes.retain(|other| other.process_index != slow.process_index);
                summary.slow_processes.push(slow.clone());
            }
            RunEvent::UpdateSkipped { .. } | RunEvent::Message(_) | RunEvent::StepsEnded => {}
        }
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.error.take().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_file_is_whole_replaced_and_valid_json() {
        let dir = tempfile::tempdir().unwrap();
        let mut summary = Summary { steps: 3, final_loss: Some(f64::NAN), ..Summary::default() };
        summary.save(dir.path()).unwrap();
        summary.steps = 4;
        summary.status = Status::Interrupted;
        summary.save(dir.path()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let path = dir.path().join(Summary::FILE);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o600, 0o600);
        let text = std::fs::read_to_string(path).unwrap();
        let read: serde_json::Map<_, _> = serde_json::from_str(&text).unwrap();
        assert_eq!((&read["steps"], &read["status"]), (&4.into(), &"interrupted".into()));
        assert!(read["final_loss"].is_null() && read["eval_loss"].is_null());
        let error = summary.save(&dir.path().join("gone")).unwrap_err().to_string();
        assert!(error.contains("gone/summary.json"), "{error}");
    }
}
