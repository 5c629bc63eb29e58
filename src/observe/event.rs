//! The events of a run, as plain data.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use super::{MetricValues, NoiseAverages, Status, StepProgram};

/// Something that happened in a run. The events of a run come in this order: `Started`; then those
/// of its steps; `StepsEnded`; `Ended`. A `Message` may come at any time.
#[derive(Clone, Debug, PartialEq)]
pub enum RunEvent {
    /// The first step is next.
    Started(Box<RunInfo>),
    /// The steps of a launch have ended.
    Launch(LaunchMetrics),
    /// The update of a step was skipped because a value was not finite.
    UpdateSkipped {
        /// Index of the step, from 0.
        step: u64,
        /// Which value, and on which replicas.
        reason: String,
        /// Updates skipped so far, this one included.
        num_skipped: u64,
    },
    /// Replicas that hold the same piece of the state were found to hold the same bits.
    LockstepProved {
        /// Steps taken.
        num_steps: u64,
        /// How long the steps waited for that.
        took: Duration,
        /// The times of processes that they told each other meanwhile, by steps.
        process_times: Vec<ProcessTimes>,
    },
    /// A checkpoint was saved, in the background.
    CheckpointSaved(SavedCheckpoint),
    /// The evaluation split was evaluated.
    Evaluated {
        /// After which step, and the result.
        eval: StepEval,
        /// `true` if it is the best so far.
        is_best: bool,
        /// How long the steps waited for it.
        took: Duration,
    },
    /// A process was found to be slow: the watchdog's verdict.
    ProcessSlow(SlowProcess),
    /// A message to the user.
    Message(String),
    /// No more steps and evaluations follow.
    StepsEnded,
    /// The run has ended.
    Ended(RunEnd),
}

/// An attempt at a job that has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailedGeneration {
    /// Its number, from 1.
    pub generation: u64,
    /// The processes that failed; empty if it was none of them.
    pub processes: Vec<usize>,
    /// Why.
    pub reason: String,
    /// The largest step that any of them had reported.
    pub step: u64,
}

/// How processes of a generation came to their first step, in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GenerationStart {
    /// Its number, from 1.
    pub generation: u64,
    /// What began it: `start` of the job, `failure` of the generation before, or `hosts` that came
    /// or left.
    pub after: String,
    /// Number of hosts.
    pub num_hosts: usize,
    /// Number of processes.
    pub num_processes: usize,
    /// The first step that it takes.
    pub step: u64,
    /// From the failure, or the end of the processes before, until all knew who takes part.
    pub agree_secs: f64,
    /// Processes were started, and joined.
    pub join_secs: f64,
    /// The plugin was loaded, and opened its devices.
    pub plugin_secs: f64,
    /// The rest until the state is there: data, programs that are traced and compiled or loaded.
    pub programs_secs: f64,
    /// Where the state came from: the `memory` of supervisors, a `checkpoint`, or the `start` of
    /// the run.
    #[serde(default)]
    pub state_from: String,
    /// The state was read.
    pub state_secs: f64,
    /// From there until the first launch has ended; `null` if it has not.
    pub first_step_secs: Option<f64>,
}

/// A process that takes longer than the others, which wait for it in every step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlowProcess {
    /// Its index in the job.
    pub process_index: usize,
    /// Name of its host.
    pub host: String,
    /// Its own time in a step, in multiples of the others'.
    pub factor: f64,
    /// Index, from 0, of the first of the slow steps.
    pub since_step: u64,
    /// What makes it slow: `input`, `host` or `device`.
    pub cause: &'static str,
    /// What its machine tells of why it may be slow; empty if nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub machine: String,
    /// All of that for people, with its process id and replicas.
    #[serde(skip)]
    pub text: String,
}

/// The time that each process itself took for some steps in a row, without waiting for others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessTimes {
    /// Index of the last of the steps, from 0.
    pub step: u64,
    /// How many they are.
    pub num_steps: u64,
    /// The mean of each process in milliseconds, in their order; in files `null` if it is not
    /// finite.
    pub own_ms: Vec<f64>,
    /// How the steps of each process differ, in their order, without its first launch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spread: Vec<Vec<LikeSteps>>,
}

/// Steps of a process that took it about as long; in files `[num_steps, own_ms, input_ms]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "(u64, f64, f64)", into = "(u64, f64, f64)")]
pub struct LikeSteps {
    /// How many they are.
    pub num_steps: u64,
    /// The mean time that the process itself took for one of them, in milliseconds.
    pub own_ms: f64,
    /// The mean part in which it waited for its batch, in milliseconds.
    pub input_ms: f64,
}

impl From<(u64, f64, f64)> for LikeSteps {
    fn from((num_steps, own_ms, input_ms): (u64, f64, f64)) -> Self {
        Self { num_steps, own_ms, input_ms }
    }
}

impl From<LikeSteps> for (u64, f64, f64) {
    fn from(steps: LikeSteps) -> Self {
        (steps.num_steps, steps.own_ms, steps.input_ms)
    }
}

/// The most memory that a process has taken so far, in bytes; `None` if it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeakMemory {
    /// Of the host.
    pub process_bytes: Option<u64>,
    /// Of the device that has given most.
    pub device_bytes: Option<u64>,
}

/// The facts about a run before its first step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunInfo {
    /// Seconds since the process started.
    pub elapsed_secs: f64,
    /// Steps that the configuration asks for.
    pub planned_steps: u64,
    /// Replicas, over all processes.
    pub num_replicas: usize,
    /// Processes that hold the replicas.
    pub num_processes: usize,
    /// Sizes of the mesh's axes, by name.
    pub mesh: BTreeMap<&'static str, usize>,
    /// Examples per step.
    pub global_batch: usize,
    /// The share of what the replicas compute that counts: below 1 if some microbatches are
    /// surplus.
    pub batch_efficiency: f64,
    /// Number of values in the model's parameters.
    pub num_params: u64,
    /// Bytes of the state on one replica: parameters, model state and optimizer state.
    pub state_bytes_per_replica: u64,
    /// The program of a step.
    pub program: StepProgram,
    /// Seed of every random choice.
    pub seed: u64,
    /// Dtypes of parameters and arithmetic: `f32`, `bf16` or `f64`.
    pub precision: String,
    /// How the training differs from that of one device, by what replicas send.
    pub approximations: Vec<String>,
    /// The backend, as the configuration names it.
    pub backend: String,
    /// The kind of its devices, as the plugin names it.
    pub device: String,
    /// The version of this program.
    pub version: &'static str,
    /// The configuration with every key, as TOML.
    pub config: String,
    /// Names of the classes or labels of the data; empty where it has none.
    pub class_names: Vec<String>,
    /// The checkpoint that the run continues from, if any.
    pub resumed_from: Option<String>,
    /// Earlier attempts at the job under the same supervisor; all of them have failed.
    pub failed_generations: Vec<FailedGeneration>,
    /// How the generations of the job began, this one last.
    pub generation_starts: Vec<GenerationStart>,
    /// The run's progress there.
    pub progress: RunProgress,
}

/// A checkpoint that is on the disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SavedCheckpoint {
    /// Steps taken.
    pub num_steps: u64,
    /// When the steps began to wait.
    pub begun: Instant,
    /// How long the steps waited: until the state was copied to host memory.
    pub waited: Duration,
    /// How long it was written, beside the steps.
    pub written: Duration,
}

/// The progress of a run: a run that continues it needs this besides the state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunProgress {
    /// Steps taken.
    pub num_steps: u64,
    /// Updates skipped because a value was not finite.
    pub num_skipped: u64,
    /// Which value was not finite, if the update of the last step was skipped.
    pub last_skipped: Option<String>,
    /// Mean training loss of the last step.
    pub final_loss: Option<f64>,
    /// The last evaluation.
    pub eval: Option<StepEval>,
    /// The best evaluation.
    pub best_eval: Option<StepEval>,
    /// What is known of the noise of gradients.
    pub noise: NoiseAverages,
}

/// A launch that has ended, and the metrics of its steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaunchMetrics {
    /// One element per step that counts: after a step that stops the run, the other steps of the
    /// launch do not count.
    pub steps: Vec<StepMetrics>,
    /// Steps that were launched.
    pub num_steps: usize,
    /// Time from the end of the previous launch to the end of this one, without evaluations and
    /// proofs.
    pub duration: Duration,
    /// Seconds from the start of the process to the end of the launch.
    pub elapsed_secs: f64,
    /// `true` if the last step is followed by an evaluation. A run that is stopped gives it up.
    pub is_evaluated: bool,
    /// The norms of each parameter, for steps among these that have them.
    pub layers: Vec<StepLayers>,
    /// The shards of the batch that were late, of steps that had some.
    pub late_shards: BTreeMap<u64, Vec<usize>>,
    /// When its parts were, if that is known.
    pub spans: Option<Box<LaunchSpans>>,
}

/// The norms of each parameter in a step, in the order of the names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepLayers {
    /// Index of the step, from 0.
    pub step: u64,
    /// The parameters as files name them.
    pub names: Arc<[String]>,
    /// Norms of the parameters before the update.
    pub param_norm: Vec<f64>,
    /// Norms of their gradients, before clipping.
    pub grad_norm: Vec<f64>,
    /// Norms of their updates.
    pub update_norm: Vec<f64>,
    /// How many values of each parameter are in each of the [`HistogramBuckets`], parameter by
    /// parameter; empty if they are not counted. Of a large parameter these are evenly spaced
    /// samples.
    ///
    /// [`HistogramBuckets`]: super::HistogramBuckets
    pub counts: Vec<u32>,
}

impl StepLayers {
    /// What is known of each parameter: names, in the order of [`Self::of`].
    pub const NORMS: [&str; 4] = ["param_norm", "grad_norm", "update_norm", "update_ratio"];

    /// The numbers of the parameter at this place among the names; the last is the norm of the
    /// update as a share of the parameter's.
    pub fn of(&self, place: usize) -> [f64; 4] {
        let norms = [&self.param_norm, &self.grad_norm, &self.update_norm];
        let [param, grad, update] =
            norms.map(|norms| norms.get(place).copied().unwrap_or(f64::NAN));
        [param, grad, update, update / param]
    }
}

/// When the parts of a launch were.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchSpans {
    /// The loop waited for its batch.
    pub data: Range<Instant>,
    /// The host launched it.
    pub host: Range<Instant>,
    /// From the end of the launch before, or what was done after it, to the end of this one.
    pub whole: Range<Instant>,
    /// The part of that after the launch.
    pub compute: Range<Instant>,
    /// This process waited for others in collectives. Where there are very many of these, the last
    /// are left out.
    pub waits: Vec<Range<Instant>>,
    /// The processes that others waited for, and how long this one did.
    pub waited_for: Vec<(usize, Duration)>,
    /// The ops that this process itself computed, by their beginning; only of traced steps.
    pub ops: Vec<OpSpan>,
}

/// An op of a replica.
#[derive(Clone, Debug, PartialEq)]
pub struct OpSpan {
    /// What it computes: `dot_general`, `all_reduce`.
    pub name: &'static str,
    /// The replica.
    pub replica: usize,
    /// When. A collective waits for other replicas meanwhile.
    pub span: Range<Instant>,
    /// The types of its operands.
    pub operands: String,
    /// The bytes of these.
    pub bytes: u64,
}

/// One training step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StepMetrics {
    /// Index of the step, from 0.
    pub step: u64,
    /// Its metrics.
    #[serde(flatten)]
    pub values: MetricValues,
}

/// Means over the evaluation split. In JSON each is a field: `eval_loss`, and `eval_NAME` for each
/// metric.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvalResult {
    /// Mean loss.
    pub loss: f64,
    /// The model's metrics by name. A classifier has `accuracy`, the share of examples that are
    /// classified correctly, and may have `top5_accuracy`, the share of examples with the label
    /// among the five highest scores; both are from 0 to 1.
    pub metrics: BTreeMap<&'static str, f64>,
    /// What is no mean over examples: not among the fields in JSON.
    pub counts: EvalCounts,
}

/// What an evaluation has counted, each example by its weight.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum EvalCounts {
    /// Nothing.
    #[default]
    None,
    /// Examples of each class (rows) that are predicted as each class (columns).
    Classes(Vec<Vec<f64>>),
    /// Of each label, how often it is predicted correctly, is predicted, and is there.
    Labels(Vec<[f64; 3]>),
}

impl EvalResult {
    /// A metric cannot have one of these names: `eval_loss` and `eval_step` are other fields.
    pub const RESERVED_NAMES: [&str; 2] = [Self::LOSS, "step"];
    /// The name of the loss where a metric can be named.
    pub const LOSS: &'static str = "loss";
}

impl Serialize for EvalResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(Some(1 + self.metrics.len()))?;
        fields.serialize_entry("eval_loss", &self.loss)?;
        for (name, value) in &self.metrics {
            fields.serialize_entry(&eval_field(name), value)?;
        }
        fields.end()
    }
}

/// The field that holds a metric.
pub(super) fn eval_field(name: &str) -> String {
    format!("eval_{name}")
}

/// An evaluation, and the step after which it was made.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepEval {
    /// Index of the step, from 0.
    pub step: u64,
    /// The means.
    #[serde(flatten)]
    pub eval: EvalResult,
}

/// How a run ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunEnd {
    /// The outcome.
    pub status: Status,
    /// Why it failed.
    pub reason: Option<String>,
    /// Hexadecimal SHA-256 of the final parameters and model state, if they are sound.
    pub params_fingerprint: Option<String>,
    /// Of this process.
    pub peak_memory: PeakMemory,
    /// Bytes per second at which messages of other processes arrived, if that was measured.
    pub link_bytes_per_sec: Option<f64>,
    /// Seconds since the process started.
    pub elapsed_secs: f64,
}
