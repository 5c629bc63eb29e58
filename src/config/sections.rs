//! The short sections: `[model]`, `[mesh]`, `[parallel]`, `[compile]`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::Table;

use super::data::Data;
use super::device::{Backend, Device};
use super::error::{KeyError, require};
use super::keys::{Section, choices, field_names, read_keys};

choices! {
    /// `[model]`: the architecture, picked by `name`.
    pub enum Model by "name" {
        /// Fully connected layers.
        "mlp" => Mlp(models::mlp::Config),
        /// Residual networks for images.
        "resnet" => ResNet(models::resnet::Config),
        /// A decoder-only transformer.
        "gpt" => Gpt(models::gpt::Config),
    }
}

impl Section for Model {
    const NAME: &'static str = "model";
    const TAG: Option<&'static str> = Some(Self::TAG);
    const CHOICES: &'static [&'static str] = Self::NAMES;

    fn keys(choice: &str) -> Vec<&'static str> {
        Self::keys_of(choice)
    }

    fn read(choice: &str, table: &Table) -> Result<Self, KeyError> {
        let model = Self::read_choice(choice, table)?;
        match &model {
            Self::Mlp(mlp) => check_mlp(mlp)?,
            Self::ResNet(resnet) => {
                let group = resnet.batch_norm_group;
                require(group > 0, "batch_norm_group", group, "a whole number, 1 or more")?;
                check_share("label_smoothing", resnet.label_smoothing)?;
            }
            Self::Gpt(gpt) => check_gpt(gpt)?,
        }
        Ok(model)
    }
}

fn check_mlp(mlp: &models::mlp::Config) -> Result<(), KeyError> {
    let sizes = format!("{:?}", mlp.hidden);
    let allowed = "a list of whole numbers, each 1 or more";
    require(mlp.hidden.iter().all(|size| *size > 0), "hidden", sizes, allowed)?;
    check_share("dropout", mlp.dropout)?;
    check_share("label_smoothing", mlp.label_smoothing)
}

fn check_share(key: &str, value: f64) -> Result<(), KeyError> {
    require((0.0..1.0).contains(&value), key, value, "a number from 0 to below 1")
}

fn check_gpt(gpt: &models::gpt::Config) -> Result<(), KeyError> {
    let models::gpt::Gpt { num_layers, width, num_heads, context, vocabulary, .. } = gpt.model();
    let sizes = [
        ("num_layers", num_layers),
        ("width", width),
        ("num_heads", num_heads),
        ("context", context),
        ("vocabulary", vocabulary),
    ];
    for (key, value) in sizes {
        let allowed = format!("a whole number from 1 to {MAX_SIZE}");
        require((1..=MAX_SIZE).contains(&value), key, value, &allowed)?;
    }
    let allowed = format!("a number that divides the width, {width}");
    require(width.is_multiple_of(num_heads), "num_heads", num_heads, &allowed)?;
    let fraction = (0.0..1.0).contains(&gpt.dropout);
    require(fraction, "dropout", gpt.dropout, "a number from 0 to below 1")
}

/// Far more than is of use; a slip of the finger should not ask for terabytes.
const MAX_SIZE: usize = 1 << 20;

/// `[mesh]`: how many replicas there are along each axis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mesh {
    /// Replicas that hold the parameters whole and cut the batch. Default `"auto"`.
    pub data: AutoOr<usize>,
}

impl Mesh {
    /// The number of replicas where `num_devices` devices could be had: `"auto"` takes them all.
    pub fn num_replicas(&self, num_devices: usize) -> usize {
        self.data.or(num_devices)
    }
}

impl Section for Mesh {
    const NAME: &'static str = "mesh";

    fn keys(_choice: &str) -> Vec<&'static str> {
        field_names::<Self>().to_vec()
    }

    fn read(_choice: &str, table: &Table) -> Result<Self, KeyError> {
        let mesh: Self = read_keys(table)?;
        require(mesh.data != AutoOr::Value(0), "data", 0, "\"auto\" or a whole number, 1 or more")?;
        Ok(mesh)
    }
}

/// `[parallel]`: how the step is spread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Parallel {
    /// Bytes of gradients that one collective reduces together; 0 reduces each by itself. Default
    /// `"auto"`: what is best on the backend.
    pub bucket_bytes: AutoOr<usize>,
}

impl Section for Parallel {
    const NAME: &'static str = "parallel";

    fn keys(_choice: &str) -> Vec<&'static str> {
        field_names::<Self>().to_vec()
    }

    fn read(_choice: &str, table: &Table) -> Result<Self, KeyError> {
        read_keys(table)
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
    /// The value, or what `"auto"` stands for here.
    pub fn or(&self, auto: T) -> T {
        match self {
            Self::Auto => auto,
            Self::Value(value) => *value,
        }
    }
}

impl Serialize for AutoOr<usize> {
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

/// `[compile]`: what is asked of XLA.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Compile {
    /// XLA options by name. Default none.
    pub overrides: BTreeMap<String, OptionValue>,
    /// Are compiled programs kept on disk and found again? Default true.
    pub cache: bool,
}

impl Default for Compile {
    fn default() -> Self {
        Self { overrides: BTreeMap::new(), cache: true }
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
    /// A number with a point.
    Float(f64),
    /// A string, enums among them.
    Text(String),
}

impl Section for Compile {
    const NAME: &'static str = "compile";

    fn keys(_choice: &str) -> Vec<&'static str> {
        field_names::<Self>().to_vec()
    }

    fn read(_choice: &str, table: &Table) -> Result<Self, KeyError> {
        read_keys(table)
    }
}

/// Makes the paths in a configuration absolute; relative ones are relative to `dir`.
pub(super) fn resolve_paths(data: &mut Data, device: &mut Device, dir: &Path) {
    let resolve = |path: &mut PathBuf| {
        let joined = dir.join(&*path);
        *path = std::path::absolute(&joined).unwrap_or(joined);
    };
    data.paths_mut().into_iter().for_each(resolve);
    if let Backend::Path(path) = &mut device.backend {
        resolve(path);
    }
}
