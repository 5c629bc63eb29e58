//! The short sections: `[model]`, `[mesh]`, `[parallel]`, `[compile]`.

use std::collections::BTreeMap;
use std::fmt;

use models::{InvalidValue, ModelConfig};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::error::{KeyError, Problem, Range};
use super::keys::{Reader, Section, field_names, field_names_by};

impl Section for ModelConfig {
    const NAME: &'static str = "model";
    const TAG: Option<&'static str> = Some(Self::TAG);
    const CHOICES: &'static [&'static str] = Self::NAMES;

    fn keys(choice: &str) -> Vec<&'static str> {
        field_names_by(|names| Self::deserialize(choice, names)).to_vec()
    }

    fn range(choice: &str, key: &str) -> Option<Range> {
        Self::range(choice, key)
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ParallelConfig {
    /// Stage of ZeRO: 1, 2 or 3. Only set if `mesh.fsdp` is more than 1 or `"auto"`. Default
    /// [`Self::DEFAULT_ZERO`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zero: Option<usize>,
    /// Size in bytes of the buckets in which gradients are reduced; 0 reduces each by itself.
    /// Default `"auto"`: what is fastest on the backend.
    pub bucket_bytes: AutoOr<usize>,
    /// The replicas of a line of the torus, if gradients are scattered along one dim of it at a
    /// time; 0 or 1 scatters each in one collective. Default `"auto"`: one collective, and
    /// `lockstep compile` looks whether two are better.
    pub scatter_line: AutoOr<usize>,
    /// `true` if this process computes the collectives of the CPU backend, `false` if XLA does.
    /// Default `"auto"`: XLA.
    pub host_collectives: AutoOr<bool>,
}

impl Default for ParallelConfig {
    fn default() -> Self {
        Self {
            zero: None,
            bucket_bytes: AutoOr::Auto,
            scatter_line: AutoOr::Auto,
            host_collectives: AutoOr::Auto,
        }
    }
}

impl ParallelConfig {
    /// The stage of ZeRO of a sharded mesh if none is set.
    pub const DEFAULT_ZERO: usize = 1;

    /// The stage of ZeRO of a sharded mesh: 1, 2 or 3.
    pub fn zero_stage(&self) -> usize {
        self.zero.unwrap_or(Self::DEFAULT_ZERO)
    }
}

impl Section for ParallelConfig {
    const NAME: &'static str = "parallel";

    fn keys(_choice: &str) -> Vec<&'static str> {
        field_names::<Self>().to_vec()
    }

    fn range(_choice: &str, key: &str) -> Option<Range> {
        (key == "zero").then_some(1..=3)
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
        match self {
            Self::Auto => auto,
            Self::Value(value) => *value,
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CompileConfig {
    /// XLA options by name. Default none.
    pub overrides: BTreeMap<String, OptionValue>,
    /// `true` if compiled programs are cached on disk. Default true.
    pub cache: bool,
    /// Which kernels are used. Default `auto`.
    pub kernels: KernelsConfig,
}

/// Who computes the ops that there are kernels for: on the CPU backend those of this program, on
/// CUDA cuDNN's attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

impl Default for CompileConfig {
    fn default() -> Self {
        Self { overrides: BTreeMap::new(), cache: true, kernels: KernelsConfig::Auto }
    }
}

/// The value of an XLA option.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

    fn keys(_choice: &str) -> Vec<&'static str> {
        field_names::<Self>().to_vec()
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        reader.keys()
    }
}
