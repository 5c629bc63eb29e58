//! `[train]`: the batch, the length of the run, and its checks.

use std::borrow::Cow;
use std::fmt;

use hlo::DType;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smart_default::SmartDefault;

use super::error::{KeyError, KeyErrors, Problem, require};
use super::key::{KeyInfo, OnResume};
use super::keys::{Exclusive, Reader, Section};
use super::sections::AutoOr;

/// `[train]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct TrainConfig {
    /// `global_batch` or `batch_per_replica`.
    #[serde(flatten, skip_deserializing)]
    #[schemars(skip)]
    #[default(BatchSize::Global(1))]
    pub batch: BatchSize,
    /// `steps`, `epochs` or `examples`.
    #[serde(flatten, skip_deserializing)]
    #[schemars(skip)]
    #[default(Length::Steps(1))]
    pub length: Length,
    /// Seed of all random numbers: initial parameters, order of data, dropout.
    pub seed: u64,
    /// Steps between evaluations. 0 evaluates at the end only.
    #[schemars(extend("unit" = "steps", "resume" = "same"))]
    pub eval_every: u64,
    /// The run ends after this many evaluations in a row that are not better than the best before.
    /// 0 never ends it early. Requires `eval_every`.
    #[schemars(extend("unit" = "evaluations"))]
    pub patience: u64,
    /// The measure of the best evaluation, for `patience` and `checkpoint.keep_best`: the lowest
    /// loss, or the highest value of a metric.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend(
            "values" = "`\"loss\"`, or a metric of the model",
            "absent" = "the accuracy or, if the model has none, the loss",
        ),
    )]
    pub best_metric: Option<String>,
    /// Examples of a microbatch, whatever the number of replicas. It divides the batch into `T`
    /// microbatches, and each of `R` replicas runs `K = ceil(T / R)` of them. Where `T` is less
    /// than `K * R`, replicas run the last one again with weight 0: the training is the same on
    /// any number of replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1, max = MAX_MICROBATCH),
        extend(
            "unit" = "examples",
            "absent" = "the batch of a replica divided by `num_microbatches`",
            "resume" = "same",
        ),
    )]
    pub microbatch: Option<usize>,
    /// Microbatches on each replica. Their gradients are summed, and then reduced over the
    /// replicas; with `parallel.zero` 2 or 3, those of each microbatch are reduced first. `"auto"`:
    /// 1, or as many as `microbatch` makes necessary.
    #[schemars(
        range(min = 1, max = MAX_ROUNDS),
        extend("unit" = "microbatches", "resume" = "same"),
    )]
    pub num_microbatches: AutoOr<usize>,
    /// Steps in one launch of a program: at most `eval_every` and `check_lockstep_every`, unless
    /// these are 0.
    #[schemars(range(min = 1, max = MAX_ROUNDS), extend("unit" = "steps", "resume" = "same"))]
    #[default(1)]
    pub steps_per_launch: usize,
    /// Steps between checks that all replicas hold the same state. 0 disables them.
    #[schemars(extend("unit" = "steps", "resume" = "same"))]
    #[default(50)]
    pub check_lockstep_every: u64,
    /// What to do if the loss, a gradient or the next state is not finite: stop the run, or skip
    /// the update.
    #[schemars(extend("resume" = "same"))]
    pub on_nonfinite: OnNonfinite,
    /// The dtypes of parameters and computation. With `"bf16"` parameters, optimizer state, norms,
    /// softmax, loss and all sums stay f32. `"f64"` is slow; use it to compare results.
    pub precision: PrecisionConfig,
    /// The loss. `"auto"` fits the data: `"cross_entropy"` for classes, `"mse"` for values,
    /// `"binary_cross_entropy"` for examples with any number of labels. `"mse"`, `"mae"` and
    /// `"huber"` make a number of each target of a table or an array, also if it is whole.
    pub loss: LossConfig,
    /// Where the loss becomes linear, with `loss = "huber"`, in standard deviations of the target.
    #[schemars(extend("exclusiveMinimum" = 0))]
    #[default(1.0)]
    pub huber_delta: f64,
    /// How often an example of each class counts in training, in the order of the classes;
    /// `"balanced"` makes all classes count alike: examples / (classes * examples of the class).
    /// An empty list counts all once. Evaluation counts every example once.
    pub class_weights: ClassWeights,
}

impl TrainConfig {
    /// The microbatches of the batch.
    pub fn microbatches(&self) -> Microbatches {
        match self.microbatch {
            Some(size) => Microbatches::Size(size),
            None => Microbatches::Number(self.num_microbatches.or(1)),
        }
    }
}

/// What a model learns to make small.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LossConfig {
    /// What fits the data.
    #[default]
    Auto,
    /// Cross-entropy of one class.
    CrossEntropy,
    /// Mean squared error.
    Mse,
    /// Mean absolute error.
    Mae,
    /// Huber's loss: squared near 0, linear beyond.
    Huber,
    /// Cross-entropy of each of several labels by itself.
    BinaryCrossEntropy,
}

impl LossConfig {
    /// `true` if targets are values.
    pub fn is_regression(self) -> bool {
        matches!(self, Self::Mse | Self::Mae | Self::Huber)
    }

    /// The word in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::CrossEntropy => "cross_entropy",
            Self::Mse => "mse",
            Self::Mae => "mae",
            Self::Huber => "huber",
            Self::BinaryCrossEntropy => "binary_cross_entropy",
        }
    }
}

/// How often an example of each class counts.
#[derive(Clone, Debug, PartialEq)]
pub enum ClassWeights {
    /// `"balanced"`.
    Balanced,
    /// A weight for each class; none if all count once.
    Given(Vec<f64>),
}

impl Default for ClassWeights {
    fn default() -> Self {
        Self::Given(vec![])
    }
}

impl Serialize for ClassWeights {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Balanced => serializer.serialize_str("balanced"),
            Self::Given(weights) => weights.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ClassWeights {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Weights;
        impl<'de> Visitor<'de> for Weights {
            type Value = ClassWeights;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"balanced\" or a list of numbers above 0")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<ClassWeights, E> {
                match word {
                    "balanced" => Ok(ClassWeights::Balanced),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }

            fn visit_seq<A: de::SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> Result<ClassWeights, A::Error> {
                let mut weights = vec![];
                while let Some(weight) = list.next_element::<f64>()? {
                    if !(weight > 0.0 && weight.is_finite()) {
                        let found = de::Unexpected::Float(weight);
                        return Err(de::Error::invalid_value(found, &self));
                    }
                    weights.push(weight);
                }
                Ok(ClassWeights::Given(weights))
            }
        }
        deserializer.deserialize_any(Weights)
    }
}

impl JsonSchema for ClassWeights {
    fn schema_name() -> Cow<'static, str> {
        "ClassWeights".into()
    }

    fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "values": "`\"balanced\"`, or a list of numbers above 0" })
    }
}

/// The keys of [`TrainConfig::batch`] and [`TrainConfig::length`].
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
struct LengthKeys {
    /// Examples per step, over all replicas and microbatches.
    #[schemars(
        range(min = 1, max = MAX_BATCH),
        extend("unit" = "examples", "required" = true, "resume" = "batch"),
    )]
    global_batch: Option<usize>,
    /// Examples per step on each replica: the global batch grows with the number of replicas.
    #[schemars(
        range(min = 1, max = MAX_BATCH),
        extend("unit" = "examples", "depends" = "instead of `global_batch`", "resume" = "batch"),
    )]
    batch_per_replica: Option<usize>,
    /// Length of the run.
    #[schemars(
        range(min = 1, max = MAX_STEPS),
        extend("unit" = "steps", "required" = true, "resume" = "length"),
    )]
    steps: Option<u64>,
    /// Length of the run. An epoch has as many steps as there are whole batches of training
    /// examples; the remainder is not used.
    #[schemars(
        range(min = 1),
        extend("unit" = "epochs", "depends" = "instead of `steps`", "resume" = "length"),
    )]
    epochs: Option<u64>,
    /// Length of the run, rounded down to whole batches.
    #[schemars(
        range(min = 1),
        extend("unit" = "examples", "depends" = "instead of `steps`", "resume" = "length"),
    )]
    examples: Option<u64>,
}

/// Largest number of examples in a step.
pub const MAX_BATCH: usize = 1 << 24;
/// Largest `microbatch`.
const MAX_MICROBATCH: usize = 1 << 16;
/// Largest number of steps in a run: `schedule` evaluates the rate at each of them.
pub const MAX_STEPS: u64 = 100_000_000;
/// Largest number of microbatches in a step and of steps in a launch: their data are in memory
/// together.
pub const MAX_ROUNDS: usize = 1 << 16;

/// Examples per step, before the number of replicas is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum BatchSize {
    /// `global_batch`: over all replicas, at most [`MAX_BATCH`].
    #[serde(rename = "global_batch")]
    Global(usize),
    /// `batch_per_replica`: the global batch grows with the replicas.
    #[serde(rename = "batch_per_replica")]
    PerReplica(usize),
}

/// The microbatches that a batch is divided into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Microbatches {
    /// So many on each replica.
    Number(usize),
    /// Of so many examples, whatever the number of replicas.
    Size(usize),
}

/// A number of steps, of passes over the data, or of examples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Length {
    /// `steps`, at most [`MAX_STEPS`].
    Steps(u64),
    /// `epochs`.
    Epochs(u64),
    /// `examples`, over all replicas; a batch that would exceed it is not evaluated.
    Examples(u64),
}

/// What to do if the loss, a gradient or the next state is not finite; all replicas decide the
/// same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnNonfinite {
    /// Stop the run with an error that names the step and the value.
    #[default]
    Stop,
    /// Skip the update.
    Skip,
}

/// The dtypes of parameters and computation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

impl Section for TrainConfig {
    const NAME: &'static str = "train";
    const ABOUT: &str = "\
        The batch, the length of the run, and its checks. One of the two batch keys and one \
        of the three length keys must be set.";
    const EXCLUSIVE: &'static [Exclusive] = &[
        (&["global_batch"], &["batch_per_replica"]),
        (&["steps"], &["epochs"]),
        (&["steps"], &["examples"]),
        (&["epochs"], &["examples"]),
    ];

    fn keys(_choice: &str) -> Vec<KeyInfo> {
        [KeyInfo::shared::<LengthKeys>(OnResume::Warn), KeyInfo::shared::<Self>(OnResume::Warn)]
            .concat()
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (keys, train): (LengthKeys, Self) = (reader.keys()?, reader.keys()?);
        let errors = &mut reader.errors;
        let (batch, length) = (read_batch(&keys, errors), read_length(&keys, errors));
        let train = Self { batch, length, ..train };
        if let (Some(size), AutoOr::Value(number)) = (train.microbatch, train.num_microbatches) {
            let allowed =
                format!("\"auto\" beside train.microbatch = {size}, or leave one of them out");
            errors.push(KeyError::new(
                "num_microbatches",
                Problem::Value { found: number.to_string(), allowed },
            ));
        }
        // Otherwise the keys would silently have no effect.
        if errors.none_of(&["eval_every", "patience"]) {
            let has_evaluations = train.patience == 0 || train.eval_every > 0;
            let allowed = "0 while train.eval_every is 0: without evaluations no run ends early";
            errors.check(require(has_evaluations, "patience", train.patience, allowed));
        }
        let stops = [
            ("check_lockstep_every", train.check_lockstep_every),
            ("eval_every", train.eval_every),
        ];
        for (key, every) in stops {
            if every == 0 || !errors.none_of(&[key]) {
                continue;
            }
            let allowed =
                format!("at most {every}, which is train.{key}: no launch goes past such a step");
            let found = train.steps_per_launch;
            errors.check(require(found as u64 <= every, "steps_per_launch", found, &allowed));
        }
        Some(train)
    }
}

fn read_batch(keys: &LengthKeys, errors: &mut KeyErrors) -> BatchSize {
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

fn read_length(keys: &LengthKeys, errors: &mut KeyErrors) -> Length {
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
