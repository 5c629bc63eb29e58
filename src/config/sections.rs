//! The short sections: `[model]`, `[mesh]`, `[parallel]`, `[compile]`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use hlo::{Algorithm, DType};
use models::{InvalidValue, MAX_LAYERS, ModelConfig};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::json;
use smart_default::SmartDefault;

use super::error::{KeyError, Problem};
use super::field_names::field_names_by;
use super::key::{AUTO_PATTERN, KeyInfo, OnResume, generator};
use super::keys::{Reader, Section, Tag};
use super::patterns::Patterns;

impl Section for ModelConfig {
    const NAME: &'static str = "model";
    const ABOUT: &str = "The architecture, selected by `name`.";
    const TAG: Option<Tag> = Some(Tag {
        name: Self::TAG,
        choices: Self::NAMES,
        meaning: "The architecture.",
        on_resume: OnResume::Refuse,
    });

    fn keys(choice: &str) -> Vec<KeyInfo> {
        let Some(schema) = Self::schema(choice, generator()) else { return vec![] };
        let names = field_names_by(|names| Self::deserialize(choice, names));
        KeyInfo::of_schema(names, &schema, OnResume::Refuse)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let name = reader.choice;
        let model = reader.keys_by(|keys| Self::deserialize(name, keys))?;
        for InvalidValue { key, found, allowed, depends_on } in model.check() {
            if reader.errors.none_of(depends_on) {
                reader.errors.push(KeyError::new(key, Problem::Value { found, allowed }));
            }
        }
        Some(model)
    }
}

/// The largest mesh: more replicas than any cluster has.
pub(super) const MAX_REPLICAS: i64 = 1 << 17;

/// `[parallel]`: how the step is distributed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct ParallelConfig {
    /// Stage of ZeRO. Allowed only if `mesh.fsdp` is more than 1 or `"auto"`. Every stage keeps
    /// parameters and optimizer state sharded. Stage 1 gathers each parameter and reduces each
    /// gradient once a step. Stage 2 reduces the gradient of each microbatch, and accumulates
    /// shards of it. Stage 3 gathers each parameter where the model uses it, in the forward and
    /// again in the backward pass. See [Parallelism](parallelism.md).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3), extend("absent" = "stage 1 if `mesh.fsdp` is more than 1"))]
    pub zero: Option<usize>,
    /// Size of the buckets in which gradients are reduced. 0 reduces each by itself; `"auto"` is
    /// what is fastest on the backend.
    #[schemars(extend("unit" = "bytes"))]
    pub bucket_bytes: AutoOr<usize>,
    /// How sums over replicas are computed: `"ring"`, `"tree"` and `"hierarchical"` are written
    /// into the program as the messages of that algorithm, `"direct"` leaves them to the engine.
    /// `"auto"` is `"direct"`, unless `fabric` is set. Sums of fewer than 1024 elements, and those
    /// that scatter their result, are always direct. See
    /// [Communication](communication.md#algorithms).
    pub all_reduce: AllReduceConfig,
    /// A fabric file, as `lockstep bench --collectives --to FILE` writes it on the devices of the
    /// run. With it `all_reduce = "auto"` takes the algorithm that was fastest there for the size
    /// of a sum, if the run has as many replicas; `plan` and `preflight` take its links between
    /// processes for the network between hosts. See
    /// [Communication](communication.md#measuring-links).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("values" = "path", "absent" = "nothing is known of the links"))]
    pub fabric: Option<PathBuf>,
    /// Number of replicas with fast links to each other, neighbors in the order of the mesh:
    /// `all_reduce = "hierarchical"` sums among them first. `"auto"` is the replicas of a process,
    /// or what `fabric` was measured with.
    #[schemars(range(min = 1, max = MAX_REPLICAS), extend("unit" = "replicas"))]
    pub replicas_per_host: AutoOr<usize>,
    /// The dtype in which gradients are sent where they are summed over replicas, if not their own:
    /// `"bf16"` rounds the terms, adds them in the gradient's dtype in the order of the replicas,
    /// and rounds the sum once more where all replicas get it. Half the bytes of f32. Gradients of
    /// fewer than 4096 elements stay. See [Communication](communication.md#fewer-bytes).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("absent" = "the gradient's own"))]
    pub reduce_dtype: Option<ReduceDType>,
    /// The dtype in which parameters are sent where training gathers them over `fsdp`, if not that
    /// of the computation: blocks of 128 elements with a scale, of integers (`"int8"`) or floats
    /// with 4 bits of exponent and 3 of fraction (`"f8e4m3"`). A quarter of the bytes of f32, half
    /// of those of bf16. Training then computes the loss of rounded parameters, and its gradients
    /// update exact ones; evaluation uses those. Only if `mesh.fsdp` is more than 1 or `"auto"`.
    /// See [Communication](communication.md#fewer-bytes).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("absent" = "that of the computation"))]
    pub gather_dtype: Option<GatherDType>,
    /// Patterns of the parameters that are gathered as they are, whatever `gather_dtype` says, such
    /// as `["*norm*", "embed.*"]`. An empty list excludes none. Of stacked blocks all are, if the
    /// patterns match one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend("absent" = "parameters of rank below 2, which are biases and the scales of norms"),
    )]
    pub gather_exact: Option<Patterns>,
    /// What replicas send of their gradients over `mesh.data`; they send the rest with later ones.
    /// `"top_k"`: one element of each block. `"power_sgd"`: the product of two thin
    /// matrices. Gradients of fewer than 1024 elements are sent in full. Another algorithm than
    /// training with all of the gradients. See [Communication](communication.md#fewer-bytes).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("absent" = "all of them"))]
    pub compression: Option<Compression>,
    /// Elements of a block of `compression = "top_k"`. `"auto"` is 8, the smallest power of 2 with
    /// which a sum takes less than a tenth of the bytes of one in f32.
    #[schemars(range(min = 2, max = MAX_BLOCK), extend("unit" = "elements"))]
    pub top_k_block: AutoOr<usize>,
    /// Where the momentum of `optimizer.name = "sgd"` is with `compression = "top_k"`: `true` gives
    /// it to each replica's own gradients, before they are sent, so that what waits gathers
    /// momentum too; `false` to what has arrived. `"auto"` is `true` where that is possible: with
    /// `optimizer.momentum_correction`, without `optimizer.clip_grad_norm`.
    #[schemars(extend("values" = "`\"auto\"`, `true` or `false`"))]
    pub top_k_momentum: AutoOr<bool>,
    /// Rank of the matrices of `compression = "power_sgd"`. `"auto"` is the largest with which the
    /// two factors of a gradient take at most a twelfth of its bytes in f32, but at most 16.
    #[schemars(range(min = 1, max = MAX_RANK))]
    pub power_sgd_rank: AutoOr<usize>,
    /// Replicas of a line of the torus, a divisor of `mesh.fsdp`: each gradient is scattered in two
    /// collectives, across the lines and then along them. 0 and 1 scatter it in one. `"auto"` is
    /// one in `train`; `lockstep compile` compares both for TPU v5e, and says which to set. With
    /// `mesh.fsdp = "auto"` a value that does not divide it has no effect. See
    /// [TPU](tpu.md#sharded-state-on-v5e).
    #[schemars(extend("unit" = "replicas"))]
    pub scatter_line: AutoOr<usize>,
    /// Sequence parallelism: replicas along `mesh.tensor` have pieces of the rows of examples and
    /// positions between the parts of layers that are cut, instead of all rows. `"auto"` is `true`
    /// where the number of positions divides evenly. See
    /// [Parallelism](parallelism.md#sequence-parallelism).
    #[schemars(extend("values" = "`\"auto\"`, `true` or `false`"))]
    pub sequence: AutoOr<bool>,
    /// Context parallelism, for long examples: replicas along `mesh.tensor` have pieces of the rows
    /// of examples and positions in layers too, which are then whole; attention gathers keys and
    /// values. Only the vocabulary is cut. Instead of `parallel.sequence`. See
    /// [Parallelism](parallelism.md#context-parallelism).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("absent" = "`false`"))]
    pub context: Option<bool>,
    /// The order of the passes of a pipeline: `1f1b` begins each backward pass as early as it can,
    /// so that few microbatches are kept; `gpipe` begins them when all forward passes are done.
    /// Only where `mesh.pipeline` is more than 1. See
    /// [Parallelism](parallelism.md#pipeline-parallelism).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("absent" = "`1f1b`"))]
    pub pipeline_schedule: Option<PipelineOrder>,
    /// Number of chunks that the layers of each stage are cut into: with more, stages wait less for
    /// each other and send more. It divides the layers of a stage, and `mesh.pipeline` then divides
    /// the number of microbatches. Only where `mesh.pipeline` is more than 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_LAYERS), extend("unit" = "chunks", "absent" = "1"))]
    pub pipeline_chunks: Option<usize>,
    /// On the `cpu` backend: whether this process computes the collectives (`true`) or XLA does
    /// (`false`, and `"auto"`). Sums over replicas are then added in the order of the replicas,
    /// those of bf16 in f32. A replica that fails ends the run with an error, not the process.
    #[schemars(extend("values" = "`\"auto\"`, `true` or `false`"))]
    pub host_collectives: AutoOr<bool>,
}

/// The dtype of gradients between replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReduceDType {
    /// 16 bits, 8 of them a fraction.
    Bf16,
    /// 8 bits, with a scale for each block.
    Int8,
}

/// The dtype of parameters between replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum GatherDType {
    /// 8 bits, with a scale for each block.
    Int8,
    /// 8 bits, 3 of them a fraction, with a scale for each block.
    F8E4M3,
}

/// What replicas send of their gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// The largest elements.
    TopK,
    /// A projection on a few dims.
    PowerSgd,
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TopK => "top_k",
            Self::PowerSgd => "power_sgd",
        })
    }
}

/// The largest block that sends one element: a millionth of a gradient.
pub(super) const MAX_BLOCK: i64 = 1 << 20;
/// The largest rank of a compressed gradient. Each column is orthogonalised on the ones before it.
pub(super) const MAX_RANK: i64 = 64;

impl From<ReduceDType> for DType {
    fn from(dtype: ReduceDType) -> Self {
        match dtype {
            ReduceDType::Bf16 => Self::Bf16,
            ReduceDType::Int8 => Self::I8,
        }
    }
}

/// How sums over replicas are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AllReduceConfig {
    /// As is best where nothing is known of the links: by the engine.
    #[default]
    Auto,
    /// By the engine.
    Direct,
    /// By messages around a ring.
    Ring,
    /// By messages up and down a tree.
    Tree,
    /// In each host, between hosts, in each host.
    Hierarchical,
}

impl AllReduceConfig {
    /// The algorithm that is written into programs.
    pub fn algorithm(self) -> Option<Algorithm> {
        match self {
            Self::Auto | Self::Direct => None,
            Self::Ring => Some(Algorithm::Ring),
            Self::Tree => Some(Algorithm::Tree),
            Self::Hierarchical => Some(Algorithm::Hierarchical),
        }
    }
}

/// The order of the passes of a pipeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PipelineOrder {
    /// Each backward pass as early as possible: one forward, one backward pass.
    #[default]
    #[serde(rename = "1f1b")]
    OneForwardOneBackward,
    /// All backward passes after all forward passes.
    #[serde(rename = "gpipe")]
    Gpipe,
}

impl ParallelConfig {
    /// The stage of ZeRO of a sharded mesh if none is set.
    pub const DEFAULT_ZERO: usize = 1;

    /// The keys that are set and need a pipeline.
    pub fn pipeline_keys(&self) -> impl Iterator<Item = &'static str> {
        let keys = [
            ("parallel.pipeline_chunks", self.pipeline_chunks.is_some()),
            ("parallel.pipeline_schedule", self.pipeline_schedule.is_some()),
        ];
        keys.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| key)
    }

    /// Number of chunks of each stage of a pipeline.
    pub fn num_pipeline_chunks(&self) -> usize {
        self.pipeline_chunks.unwrap_or(1)
    }

    /// `true` for context parallelism.
    pub fn is_context(&self) -> bool {
        self.context.unwrap_or(false)
    }

    /// The stage of ZeRO of a sharded mesh: 1, 2 or 3.
    pub fn zero_stage(&self) -> usize {
        self.zero.unwrap_or(Self::DEFAULT_ZERO)
    }
}

impl Section for ParallelConfig {
    const NAME: &'static str = "parallel";
    const ABOUT: &str = "How the step is distributed over the replicas.";

    fn keys(_choice: &str) -> Vec<KeyInfo> {
        KeyInfo::shared::<Self>(OnResume::Same)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        reader.keys()
    }
}

/// `"auto"`, or a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AutoOr<T> {
    /// `"auto"`.
    #[default]
    Auto,
    /// The value itself.
    Value(T),
}

impl<T: Copy> AutoOr<T> {
    /// The value, or `auto` for `"auto"`.
    pub fn or(&self, auto: T) -> T {
        self.value().unwrap_or(auto)
    }

    /// The value; `None` for `"auto"`.
    pub fn value(&self) -> Option<T> {
        match self {
            Self::Auto => None,
            Self::Value(value) => Some(*value),
        }
    }
}

impl<T: Serialize> Serialize for AutoOr<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Value(value) => value.serialize(serializer),
        }
    }
}

impl<T: JsonSchema> JsonSchema for AutoOr<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("AutoOr{}", T::schema_name()).into()
    }

    /// The schema of the value, and the only string beside it.
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = generator.subschema_for::<T>();
        let own = schema.remove("type");
        schema.insert("type".to_owned(), json!([own, "string"]));
        schema.insert("pattern".to_owned(), json!(AUTO_PATTERN));
        schema
    }
}

impl<'de> Deserialize<'de> for AutoOr<usize> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AutoOrCount;
        impl Visitor<'_> for AutoOrCount {
            type Value = AutoOr<usize>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\" or a whole number, 0 or more")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Self::Value, E> {
                match word {
                    "auto" => Ok(AutoOr::Auto),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
                let invalid = |_| E::invalid_value(de::Unexpected::Signed(value), &self);
                usize::try_from(value).map(AutoOr::Value).map_err(invalid)
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
                let invalid = |_| E::invalid_value(de::Unexpected::Unsigned(value), &self);
                usize::try_from(value).map(AutoOr::Value).map_err(invalid)
            }
        }
        deserializer.deserialize_any(AutoOrCount)
    }
}

impl<'de> Deserialize<'de> for AutoOr<bool> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AutoOrBool;
        impl Visitor<'_> for AutoOrBool {
            type Value = AutoOr<bool>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\", true or false")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Self::Value, E> {
                match word {
                    "auto" => Ok(AutoOr::Auto),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self::Value, E> {
                Ok(AutoOr::Value(value))
            }
        }
        deserializer.deserialize_any(AutoOrBool)
    }
}

/// `[compile]`: options for XLA.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct CompileConfig {
    /// XLA options by name: `true`, `false`, numbers or strings. `optimization_level`, `"O0"` to
    /// `"O3"`, is the compiler's effort.
    #[schemars(extend("values" = "table of XLA options"))]
    pub overrides: BTreeMap<String, OptionValue>,
    /// Cache compiled programs on disk.
    #[default(true)]
    pub cache: bool,
    /// Whether kernels compute ops in the place of XLA: those that were measured to be faster on
    /// the backend, all that there are, or none. On `cpu` the first two are the same: matrix
    /// products, attention, convolutions, maxima over windows, large sums over leading dims, and
    /// random bits are computed by kernels of this program. On `cuda` there is one kernel, with
    /// `"all"`: attention by cuDNN, see [GPU](gpu.md). Results differ by rounding.
    pub kernels: KernelsConfig,
    /// On `cuda`, use only ops that round alike in each run, so that a run can be repeated bit for
    /// bit: slower, and attention is left to XLA. The `cpu` backend always does.
    pub deterministic: bool,
}

/// Which kernels compute the ops that there are kernels for: on the CPU backend those of this
/// program, on CUDA cuDNN's attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum KernelsConfig {
    /// The kernels that were measured to be faster on the backend.
    #[default]
    Auto,
    /// All kernels.
    All,
    /// XLA.
    Xla,
}

/// The value of an XLA option.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "an XLA option is true, false, a number or a string")]
pub enum OptionValue {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A string, or the name of an enum value.
    Text(String),
}

impl Section for CompileConfig {
    const NAME: &'static str = "compile";
    const ABOUT: &str = "Options for XLA.";

    fn keys(_choice: &str) -> Vec<KeyInfo> {
        KeyInfo::shared::<Self>(OnResume::Same)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        reader.keys()
    }
}
