//! `[train]`: how much data a step takes, how long the run is, and what watches over it.

use hlo::DType;
use serde::{Deserialize, Serialize};
use toml::Table;

use super::error::{KeyError, require};
use super::keys::{Exclusive, Section, field_names, read_keys};

/// `[train]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(into = "TrainKeys")]
pub struct Train {
    /// `global_batch` or `batch_per_replica`.
    pub batch: BatchSize,
    /// `steps`, `epochs` or `examples`.
    pub length: Length,
    /// What every random choice follows from: initial parameters, order of data, dropout. Default 0.
    pub seed: u64,
    /// Steps between evaluations; 0, the default, evaluates at the end only.
    pub eval_every: u64,
    /// Microbatches whose gradients are summed before the reduction. Default 1.
    pub num_microbatches: usize,
    /// Steps that go to the devices in one launch, where none of them is followed by an evaluation or a
    /// proof. Default 1.
    pub steps_per_launch: usize,
    /// Steps between proofs that all replicas hold the same state; 0 is never. Default 50.
    pub check_lockstep_every: u64,
    /// What to do about a loss, a gradient or a next state that is not finite. Default `stop`.
    pub on_nonfinite: OnNonfinite,
    /// The dtypes of parameters and of arithmetic. Default `f32`.
    pub precision: Precision,
}

/// Examples per step, before it is known how many replicas there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchSize {
    /// `global_batch`: over all replicas.
    Global(usize),
    /// `batch_per_replica`: the global batch grows with the replicas.
    PerReplica(usize),
}

/// A number of steps, of passes over the data, or of examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// `steps`.
    Steps(u64),
    /// `epochs`.
    Epochs(u64),
    /// `examples`, over all replicas; a batch that would go beyond is left out.
    Examples(u64),
}

/// What to do about a loss, a gradient or a next state that is not finite; all replicas decide alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnNonfinite {
    /// The run stops, naming the step and what it was.
    #[default]
    Stop,
    /// The update is left out.
    Skip,
}

/// The dtypes of parameters and of arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// binary32.
    #[default]
    F32,
    /// bfloat16 for activations and matrix products; parameters, optimizer state, norms, softmax, loss
    /// and all sums stay binary32.
    Bf16,
    /// binary64: slow, for checking results against each other.
    F64,
}

impl Precision {
    /// The dtypes meant.
    pub const fn dtypes(self) -> models::Precision {
        match self {
            Precision::F32 => models::Precision::uniform(DType::F32),
            Precision::Bf16 => models::Precision { params: DType::F32, compute: DType::Bf16 },
            Precision::F64 => models::Precision::uniform(DType::F64),
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
    num_microbatches: usize,
    steps_per_launch: usize,
    check_lockstep_every: u64,
    on_nonfinite: OnNonfinite,
    precision: Precision,
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
            num_microbatches: 1,
            steps_per_launch: 1,
            check_lockstep_every: 50,
            on_nonfinite: OnNonfinite::default(),
            precision: Precision::default(),
        }
    }
}

impl Section for Train {
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

    fn read(_choice: &str, table: &Table) -> Result<Self, KeyError> {
        let keys: TrainKeys = read_keys(table)?;
        let batch = match (keys.global_batch, keys.batch_per_replica) {
            (Some(size), _) => {
                require(size > 0, "global_batch", size, POSITIVE)?;
                BatchSize::Global(size)
            }
            (None, Some(size)) => {
                require(size > 0, "batch_per_replica", size, POSITIVE)?;
                BatchSize::PerReplica(size)
            }
            (None, None) => {
                let allowed = "a whole number, 1 or more; or set train.batch_per_replica instead";
                return Err(KeyError::missing("global_batch", allowed));
            }
        };
        let length = read_length(&keys)?;
        let num_microbatches = keys.num_microbatches;
        require(num_microbatches > 0, "num_microbatches", num_microbatches, POSITIVE)?;
        let steps_per_launch = keys.steps_per_launch;
        require(steps_per_launch > 0, "steps_per_launch", steps_per_launch, POSITIVE)?;
        // Else it would have no effect, and nobody would be told.
        let stops = [
            ("train.check_lockstep_every", keys.check_lockstep_every),
            ("train.eval_every", keys.eval_every),
        ];
        for (key, every) in stops {
            let allowed =
                format!("at most {every}, which is {key}: no launch goes past such a step");
            let fits = every == 0 || steps_per_launch as u64 <= every;
            require(fits, "steps_per_launch", steps_per_launch, &allowed)?;
        }
        Ok(Self {
            batch,
            length,
            seed: keys.seed,
            eval_every: keys.eval_every,
            num_microbatches,
            steps_per_launch,
            check_lockstep_every: keys.check_lockstep_every,
            on_nonfinite: keys.on_nonfinite,
            precision: keys.precision,
        })
    }
}

const POSITIVE: &str = "a whole number, 1 or more";

fn read_length(keys: &TrainKeys) -> Result<Length, KeyError> {
    let (key, value, length) = match (keys.steps, keys.epochs, keys.examples) {
        (Some(steps), _, _) => ("steps", steps, Length::Steps(steps)),
        (None, Some(epochs), _) => ("epochs", epochs, Length::Epochs(epochs)),
        (None, None, Some(examples)) => ("examples", examples, Length::Examples(examples)),
        (None, None, None) => {
            let allowed =
                "a whole number, 1 or more; or set train.epochs or train.examples instead";
            return Err(KeyError::missing("steps", allowed));
        }
    };
    require(value > 0, key, value, POSITIVE)?;
    Ok(length)
}

impl From<Train> for TrainKeys {
    fn from(train: Train) -> Self {
        let mut keys = Self {
            seed: train.seed,
            eval_every: train.eval_every,
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
