//! `[device]`: the plugin, and the options for opening its devices.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::de;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::error::{KeyError, Problem, nearest, require};
use super::key::{KeyInfo, OnResume};
use super::keys::{Reader, Section};
use super::shorten::shorten;

/// `[device]`: the hardware to run on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct DeviceConfig {
    /// The PJRT plugin.
    #[schemars(
        extend(
            "values" =
                "`\"cpu\"`, `\"cuda\"`, `\"tpu\"`, or the path of a plugin, with a `/` in it",
        ),
        with = "String",
    )]
    pub backend: Backend,
    /// Options of the plugin, passed to it when it opens its devices: `true`, `false`, numbers,
    /// strings or lists of whole numbers. The `cpu` backend has none. See [GPU](gpu.md) and
    /// [TPU](tpu.md).
    #[schemars(extend("values" = "table of options"))]
    pub options: BTreeMap<String, PluginOption>,
}

impl Section for DeviceConfig {
    const NAME: &'static str = "device";
    const ABOUT: &str = "The hardware to run on.";

    fn keys(_choice: &str) -> Vec<KeyInfo> {
        KeyInfo::shared::<Self>(OnResume::Same)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut device: Self = reader.keys()?;
        if reader.errors.none_of(&["backend"]) {
            let is_mock = device.options.get(MOCK_NCCL) == Some(&PluginOption::Bool(true));
            for (name, option) in &mut device.options {
                if is_mock && MOCK_OPTIONS.contains(&name.as_str()) {
                    continue;
                }
                let checked = option.check(&device.backend, name);
                reader.errors.check(checked.map_err(|error| error.within("options")));
            }
        }
        Some(device)
    }
}

/// The value of a plugin's option.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "an option is true, false, a number, a string or a list of whole numbers"
)]
pub enum PluginOption {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A string.
    Text(String),
    /// Whole numbers, such as the devices to use.
    Ints(Vec<i64>),
}

/// The share of a GPU's memory that its plugin may use, and allocates at the start.
const MEMORY_FRACTION: &str = "memory_fraction";

/// With this option the CUDA plugin takes one host's GPUs for those of many hosts, and
/// `MOCK_OPTIONS` say for how many hosts, and which one this is: for measurements of a large
/// program's step on few GPUs.
const MOCK_NCCL: &str = "enable_mock_nccl";
const MOCK_OPTIONS: [&str; 2] = ["node_id", "num_nodes"];

/// Options that this program sets, and what to set instead.
const OWN_OPTIONS: [(&str, &str); 3] = [
    ("cpu_device_count", "the CPU backend has as many devices as the mesh has replicas"),
    ("node_id", "a run is one process, which is node 0"),
    ("num_nodes", "a run is one process"),
];

impl PluginOption {
    /// Refuses options that would be ignored, would hang, or are known to be wrong. The plugin
    /// itself refuses other names that it does not know. Converts an integer where the plugin
    /// expects a floating-point number.
    fn check(&mut self, backend: &Backend, name: &str) -> Result<(), KeyError> {
        if let Some((_, reason)) = OWN_OPTIONS.iter().find(|(own, _)| *own == name) {
            let problem = format!("this program sets it: {reason}");
            return Err(KeyError::new(name, Problem::Inconsistent(problem)));
        }
        match (backend, name) {
            (Backend::Cpu, _) => Err(KeyError::new(
                name,
                Problem::Inconsistent(format!(
                    "the cpu backend has no options; leave it out (--unset device.options.{name}), \
                     or set device.backend"
                )),
            )),
            (Backend::Cuda, MEMORY_FRACTION) => {
                if let Self::Int(whole) = *self {
                    *self = Self::Float(whole as f64);
                }
                let allowed = "a number above 0, to 1";
                let fits = matches!(self, Self::Float(share) if *share > 0.0 && *share <= 1.0);
                require(fits, name, &*self, allowed)
            }
            (Backend::Cuda, "preallocate") => {
                require(matches!(self, Self::Bool(_)), name, &*self, "true or false")
            }
            (Backend::Cuda, "visible_devices") => {
                let allowed = "a list of the GPUs' numbers, each once, such as [0, 1]";
                let fits = matches!(self, Self::Ints(gpus) if are_devices(gpus));
                require(fits, name, &*self, allowed)
            }
            _ => Ok(()),
        }
    }
}

fn are_devices(numbers: &[i64]) -> bool {
    let different: BTreeSet<_> = numbers.iter().collect();
    !numbers.is_empty() && different.len() == numbers.len() && numbers.iter().all(|gpu| *gpu >= 0)
}

/// As it is written in TOML.
impl fmt::Display for PluginOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{value:?}"),
            Self::Text(value) => write!(f, "{value:?}"),
            Self::Ints(values) => write!(f, "{values:?}"),
        }
    }
}

impl DeviceConfig {
    /// The share of a GPU's memory that is configured, if any.
    pub fn memory_fraction(&self) -> Option<f64> {
        match self.options.get(MEMORY_FRACTION) {
            Some(PluginOption::Float(share)) => Some(*share),
            _ => None,
        }
    }
}

/// A PJRT plugin: by name, or by the path of its library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// `"cpu"`: XLA on the host, with as many devices as the mesh has replicas.
    #[default]
    Cpu,
    /// `"cuda"`: NVIDIA GPUs.
    Cuda,
    /// `"tpu"`: Google TPUs.
    Tpu,
    /// The library of a plugin: absolute, once a configuration is read.
    Path(PathBuf),
}

impl Backend {
    const NAMES: [&'static str; 3] = ["cpu", "cuda", "tpu"];

    /// From a name, or a path, which has a `/` in it.
    ///
    /// # Errors
    /// A word that is neither, with the nearest name.
    pub fn parse(word: &str) -> Result<Self, UnknownBackend> {
        match word {
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda),
            "tpu" => Ok(Self::Tpu),
            path if path.contains('/') => Ok(Self::Path(path.into())),
            other => Err(UnknownBackend(other.to_owned())),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda => f.write_str("cuda"),
            Self::Tpu => f.write_str("tpu"),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

/// A word that does not name a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownBackend(String);

impl fmt::Display for UnknownBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a backend", shorten(&self.0))?;
        // The letters of "gpu" are nearest to those of another backend.
        let meant = match self.0.as_str() {
            "gpu" | "nvidia" => Some("cuda".to_owned()),
            word => nearest(word, &Backend::NAMES),
        };
        if let Some(name) = meant {
            write!(f, ", did you mean {name:?}?")?;
        }
        write!(
            f,
            "; allowed: {}, or the path of a plugin, with a / in it",
            Backend::NAMES.join(", ")
        )
    }
}

impl std::error::Error for UnknownBackend {}

impl Serialize for Backend {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Backend {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        Self::parse(&word).map_err(de::Error::custom)
    }
}
