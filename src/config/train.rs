//! `[train]`: the batch, the length of the run, and its checks.

use hlo::DType;
use serde::{Deserialize, Serialize};

use super::error::{AT_LEAST_ONE, KeyError, KeyErrors, Range, require};
use super::keys::{Exclusive, Reader, Section, field_names};

/// `[train]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(into = "TrainKeys")]
pub struct TrainConfig {
    /// `global_batch` or `batch_per_replica`.
    pub batch: BatchSize,
    /// `steps`, `epochs` or `examples`.
    pub length: Length,
    /// Seed of all random numbers: initial parameters, order of data, dropout. Default 0.
    pub seed: u64,
    /// Steps between evaluations; 0, the default, evaluates at the end only.
    pub eval_every: u64,
    /// Evaluations in a row without a better one after which the run ends; 0, the default, for
    /// none.
    pub patience: u64,
    /// `loss` or the metric of the model that says which evaluation is the best. Default: the
    /// accuracy or, if the model has none, the loss.
    pub best_metric: Option<String>,
    /// Microbatches whose gradients are summed, at most [`MAX_ROUNDS`]. Default 1.
    pub num_microbatches: usize,
    /// Steps in one launch of a program, at most [`MAX_ROUNDS`]. Launches end at evaluations and
    /// proofs. Default 1.
    pub steps_per_launch: usize,
    /// Steps between checks that all replicas hold the same state; 0 disables them. Default 50.
    pub check_lockstep_every: u64,
    /// What to do if the loss, a gradient or the next state is not finite. Default `stop`.
    pub on_nonfinite: OnNonfinite,
    /// The dtypes of parameters and computation. Default `f32`.
    pub precision: PrecisionConfig,
}

/// Largest number of examples in a step.
pub const MAX_BATCH: usize = 1 << 24;
/// Largest number of steps in a run: `schedule` evaluates the rate at each of them.
pub const MAX_STEPS: u64 = 100_000_000;
/// Largest number of microbatches in a step and of steps in a launch: their data are in memory
/// together.
pub const MAX_ROUNDS: usize = 1 << 16;

/// Examples per step, before the number of replicas is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchSize {
    /// `global_batch`: over all replicas, at most [`MAX_BATCH`].
    Global(usize),
    /// `batch_per_replica`: the global batch grows with the replicas.
    PerReplica(usize),
}

/// A number of steps, of passes over the data, or of examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// `steps`, at most [`MAX_STEPS`].
    Steps(u64),
    /// `epochs`.
    Epochs(u64),
    /// `examples`, over all replicas; a batch that would exceed it is left out.
    Examples(u64),
}

/// What to do if the loss, a gradient or the next state is not finite; all replicas decide the
/// same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnNonfinite {
    /// Stop the run with an error that names the step and the value.
    #[default]
    Stop,
    /// Skip the update.
    Skip,
}

/// The dtypes of parameters and computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrecisionConfig {
    /// binary32.
    #[default]
    F32,
    /// bfloat16 for activations and matrix products; parameters, optimizer state, norms, softmax,
    /// loss and all sums stay binary32.
    Bf16,
    /// binary64: slow, for comparing results.
    F64,
}

impl PrecisionConfig {
    /// The dtypes that this stands for.
    pub const fn dtypes(self) -> models::Precision {
        match self {
            PrecisionConfig::F32 => models::Precision::uniform(DType::F32),
            PrecisionConfig::Bf16 => models::Precision { params: DType::F32, compute: DType::Bf16 },
            PrecisionConfig::F64 => models::Precision::uniform(DType::F64),
        }
    }
}

/// The keys of the section as they are written.
#[derive(Clone, Serialize, Deserialize)]
#[serde(default)]
struct TrainKeys {
    #[serde(skip_serializing_if = "Option::is_none")]
    global_batch: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch_per_replica: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    epochs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    examples: Option<u64>,
    seed: u64,
    eval_every: u64,
    patience: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    best_metric: Option<String>,
    num_microbatches: usize,
    steps_per_launch: usize,
    check_lockstep_every: u64,
    on_nonfinite: OnNonfinite,
    precision: PrecisionConfig,
}

impl Default for TrainKeys {
    fn default() -> Self {
        Self {
            global_batch: None,
            batch_per_replica: None,
            steps: None,
            epochs: None,
            examples: None,
            seed: 0,
            eval_every: 0,
            patience: 0,
            best_metric: None,
            num_microbatches: 1,
            steps_per_launch: 1,
            check_lockstep_every: 50,
            on_nonfinite: OnNonfinite::default(),
            precision: PrecisionConfig::default(),
        }
    }
}

impl Section for TrainConfig {
    const NAME: &'static str = "train";
    const EXCLUSIVE: &'static [Exclusive] = &[
        (&["global_batch"], &["batch_per_replica"]),
        (&["steps"], &["epochs"]),
        (&["steps"], &["examples"]),
        (&["epochs"], &["examples"]),
    ];

    fn keys(_choice: &str) -> Vec<&'static str> {
        field_names::<TrainKeys>().to_vec()
    }

    fn range(_choice: &str, key: &str) -> Option<Range> {
        match key {
            "global_batch" | "batch_per_replica" => Some(1..=MAX_BATCH as i64),
            "steps" => Some(1..=MAX_STEPS as i64),
            "epochs" | "examples" => Some(AT_LEAST_ONE),
            "num_microbatches" | "steps_per_launch" => Some(1..=MAX_ROUNDS as i64),
            _ => None,
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let keys: TrainKeys = reader.keys()?;
        let errors = &mut reader.errors;
        let train = Self {
            batch: read_batch(&keys, errors),
            length: read_length(&keys, errors),
            seed: keys.seed,
            eval_every: keys.eval_every,
            patience: keys.patience,
            best_metric: keys.best_metric,
            num_microbatches: keys.num_microbatches,
            steps_per_launch: keys.steps_per_launch,
            check_lockstep_every: keys.check_lockstep_every,
            on_nonfinite: keys.on_nonfinite,
            precision: keys.precision,
        };
        // Otherwise the keys would silently have no effect.
        if errors.none_of(&["eval_every", "patience"]) {
            let has_evaluations = keys.patience == 0 || keys.eval_every > 0;
            let allowed = "0 while train.eval_every is 0: without evaluations no run ends early";
            errors.check(require(has_evaluations, "patience", keys.patience, allowed));
        }
        let stops =
            [("check_lockstep_every", keys.check_lockstep_every), ("eval_every", keys.eval_every)];
        for (key, every) in stops {
            if every == 0 || !errors.none_of(&[key]) {
                continue;
            }
            let allowed =
                format!("at most {every}, which is train.{key}: no launch goes past such a step");
            let found = keys.steps_per_launch;
            errors.check(require(found as u64 <= every, "steps_per_launch", found, &allowed));
        }
        Some(train)
    }
}

fn read_batch(keys: &TrainKeys, errors: &mut KeyErrors) -> BatchSize {
    match (keys.global_batch, keys.batch_per_replica) {
        (Some(size), _) => return BatchSize::Global(size),
        (None, Some(size)) => return BatchSize::PerReplica(size),
        (None, None) if errors.none_of(&["global_batch", "batch_per_replica"]) => {
            let allowed = "a whole number, 1 or more; or set train.batch_per_replica instead";
            errors.push(KeyError::missing("global_batch", allowed));
        }
        (None, None) => {}
    }
    BatchSize::Global(1)
}

fn read_length(keys: &TrainKeys, errors: &mut KeyErrors) -> Length {
    match (keys.steps, keys.epochs, keys.examples) {
        (Some(steps), _, _) => return Length::Steps(steps),
        (None, Some(epochs), _) => return Length::Epochs(epochs),
        (None, None, Some(examples)) => return Length::Examples(examples),
        (None, None, None) if errors.none_of(&["steps", "epochs", "examples"]) => {
            let allowed =
                "a whole number, 1 or more; or set train.epochs or train.examples instead";
            errors.push(KeyError::missing("steps", allowed));
        }
        (None, None, None) => {}
    }
    Length::Steps(1)
}

impl From<TrainConfig> for TrainKeys {
    fn from(train: TrainConfig) -> Self {
        let mut keys = Self {
            seed: train.seed,
            eval_every: train.eval_every,
            patience: train.patience,
            best_metric: train.best_metric,
            num_microbatches: train.num_microbatches,
            steps_per_launch: train.steps_per_launch,
            check_lockstep_every: train.check_lockstep_every,
            on_nonfinite: train.on_nonfinite,
            precision: train.precision,
            ..Self::default()
        };
        match train.batch {
            BatchSize::Global(size) => keys.global_batch = Some(size),
            BatchSize::PerReplica(size) => keys.batch_per_replica = Some(size),
        }
        match train.length {
            Length::Steps(steps) => keys.steps = Some(steps),
            Length::Epochs(epochs) => keys.epochs = Some(epochs),
            Length::Examples(examples) => keys.examples = Some(examples),
        }
        keys
    }
}
