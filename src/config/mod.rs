//! The configuration of a run: plain typed data, validated once, with errors that say what to change.
//!
//! A configuration is a TOML file of nine sections, and `--set section.key=value` reaches every key of
//! it. [`Config::load`] reads both and checks each key by itself; what needs the data or the number of
//! devices is checked where these are known: [`BatchPlan::new`] and [`RunLength::new`] here,
//! `optim::Schedule::new` for the rates. Unknown keys are errors that name the nearest known one.
//!
//! ```
//! let text = r#"
//!     model = { name = "mlp", hidden = [32] }
//!     data = { source = "synthetic" }
//!     train = { global_batch = 64, steps = 100 }
//!     optimizer = { name = "sgd" }
//!     schedule = { name = "cosine", peak = 0.1 }
//! "#;
//! let sets = ["train.epochs=3".to_owned()];
//! let config = lockstep::config::Config::parse(text, "a.toml".as_ref(), &sets)?;
//! assert_eq!(config.train.length, lockstep::config::Length::Epochs(3));
//! # Ok::<(), lockstep::config::Error>(())
//! ```

mod batch;
mod data;
mod device;
mod error;
mod keys;
mod optimizer;
mod overrides;
mod patterns;
mod reference;
mod resolved;
mod run_length;
mod schedule;
mod sections;
mod shape;
mod span;
mod train;

use std::path::Path;

use serde::Serialize;
use toml::Table;

pub use batch::{BatchError, BatchPlan};
pub use data::{
    Cifar10, Data, Digits, Idx, ImageFolder, OnBroken, Synthetic, SyntheticTokens, Text, TokenType,
    Tokens,
};
pub use device::{Backend, Device, PluginOption, UnknownBackend};
pub use error::{Error, Problem};
pub use optimizer::{Adam, AdamW, Lamb, Lars, Optimizer, Sgd, UpdateRule};
pub use patterns::Patterns;
pub use reference::reference;
pub use run_length::{RunLength, RunLengthError};
pub use schedule::{Peak, Scaling, Schedule, Warmup, WarmupKind};
pub use sections::{AutoOr, Compile, Mesh, Model, OptionValue, Parallel};
pub use shape::{
    Constant, Decay, DecayShape, Interpolation, InverseSqrt, Piecewise, Polynomial, Shape,
    StepDecay, Wsd,
};
pub use span::Span;
pub use train::{BatchSize, Length, OnNonfinite, Precision, Train};

use error::KeyError;
use keys::{SectionInfo, info, read_section};

/// A validated configuration. Serializes to the TOML that it would be read from, defaults written out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// `[model]`.
    pub model: Model,
    /// `[data]`.
    pub data: Data,
    /// `[train]`.
    pub train: Train,
    /// `[optimizer]`.
    pub optimizer: Optimizer,
    /// `[schedule]`.
    pub schedule: Schedule,
    /// `[mesh]`.
    pub mesh: Mesh,
    /// `[parallel]`.
    pub parallel: Parallel,
    /// `[device]`.
    pub device: Device,
    /// `[compile]`.
    pub compile: Compile,
}

/// Every section there is.
const SECTIONS: [SectionInfo; 9] = [
    info::<Model>(),
    info::<Data>(),
    info::<Train>(),
    info::<Optimizer>(),
    info::<Schedule>(),
    info::<Mesh>(),
    info::<Parallel>(),
    info::<Device>(),
    info::<Compile>(),
];

impl Config {
    /// Reads the file, applies the `--set` arguments (`section.key=value`) in order, and validates.
    ///
    /// # Errors
    /// A file that cannot be read or is not TOML, an argument of another form, and any key that is
    /// unknown, missing, of the wrong type, out of range, or excluded by another.
    pub fn load(path: &Path, sets: &[String]) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::parse(&text, path, sets)
    }

    /// [`Self::load`] from a text; `path` is what errors name and what paths in it are relative to.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn parse(text: &str, path: &Path, sets: &[String]) -> Result<Self, Error> {
        let mut file: Table = toml::from_str(text)
            .map_err(|source| Error::Parse { path: path.to_owned(), source: Box::new(source) })?;
        let sets = sets.iter().map(|set| overrides::parse(set)).collect::<Result<Vec<_>, _>>()?;
        overrides::apply(&mut file, &sets, &SECTIONS)?;
        let mut config = Self::read(&file).map_err(in_other_sections).map_err(|error| {
            let is_set = |set: &&overrides::Override<'_>| {
                let key = set.path.join(".");
                key == error.key || key.starts_with(&format!("{}.", error.key))
            };
            let place = match sets.iter().rev().find(is_set) {
                Some(set) => format!("--set {}", set.argument),
                None => path.display().to_string(),
            };
            Error::Key { place, key: error.key, problem: error.problem }
        })?;
        let dir = path.parent().unwrap_or(Path::new(""));
        sections::resolve_paths(&mut config.data, &mut config.device, dir);
        config.write_out();
        Ok(config)
    }

    fn read(file: &Table) -> Result<Self, KeyError> {
        let sections = SECTIONS.map(|section| section.name);
        if let Some(name) = file.keys().find(|name| !sections.contains(&name.as_str())) {
            return Err(KeyError::unknown(name, sections.to_vec()));
        }
        let config = Self {
            model: read_section(file)?,
            data: read_section(file)?,
            train: read_section(file)?,
            optimizer: read_section(file)?,
            schedule: read_section(file)?,
            mesh: read_section(file)?,
            parallel: read_section(file)?,
            device: read_section(file)?,
            compile: read_section(file)?,
        };
        let dtype = config.train.precision.dtypes().params;
        config.optimizer.check_in(dtype).map_err(|error| error.within("optimizer"))?;
        if let AutoOr::Value(num_replicas) = config.mesh.data {
            config.check_batch(num_replicas)?;
        }
        Ok(config)
    }

    /// With a mesh of known size, a batch that does not divide is known before anything starts.
    fn check_batch(&self, num_replicas: usize) -> Result<(), KeyError> {
        let key = match self.train.batch {
            BatchSize::Global(_) => "train.global_batch",
            BatchSize::PerReplica(_) => "train.batch_per_replica",
        };
        self.batch_plan(num_replicas)
            .map(|_| ())
            .map_err(|error| KeyError::new(key, Problem::Inconsistent(error.to_string())))
    }

    /// The arithmetic of the global batch on `num_replicas` replicas along `data`.
    ///
    /// # Errors
    /// As [`BatchPlan::new`].
    pub fn batch_plan(&self, num_replicas: usize) -> Result<BatchPlan, BatchError> {
        BatchPlan::new(self.train.batch, self.train.num_microbatches, num_replicas)
    }

    /// Examples of one step over all replicas, of which there are `num_replicas`.
    ///
    /// # Errors
    /// As [`BatchPlan::new`], where the number of replicas makes the batch.
    pub fn global_batch(&self, num_replicas: usize) -> Result<usize, BatchError> {
        match self.train.batch {
            BatchSize::Global(size) => Ok(size),
            BatchSize::PerReplica(_) => Ok(self.batch_plan(num_replicas)?.global_batch()),
        }
    }
}

/// Keys under the names that other programs give them.
const SYNONYMS: [(&str, &str); 3] = [
    ("lr", "schedule.peak"),
    ("learning_rate", "schedule.peak"),
    ("batch_size", "train.global_batch"),
];

/// For an unknown key, the one that another section has under the same name, if there is just one.
fn in_other_sections(mut error: KeyError) -> KeyError {
    let Problem::Unknown { nearest, .. } = &mut error.problem else { return error };
    let (section, key) = error.key.split_once('.').unwrap_or(("", &error.key));
    let synonym = SYNONYMS.iter().find(|row| row.0 == key).map(|row| row.1.to_owned());
    let known = known_keys();
    let same_name = |known: &&String| {
        known.split_once('.').is_some_and(|(other, name)| name == key && other != section)
    };
    let mut same = known.iter().filter(same_name);
    let only = same.next().filter(|_| same.next().is_none()).cloned();
    if let Some(other) = synonym.or(only) {
        *nearest = Some(other);
    }
    error
}

/// Every key there is, as `section.key`, for all choices of `name` and `source`: what `--set` reaches.
pub fn known_keys() -> Vec<String> {
    let mut known = vec![];
    for section in SECTIONS {
        let choices = if section.choices.is_empty() { &[""] } else { section.choices };
        let keys = choices.iter().flat_map(|choice| (section.keys)(choice));
        for key in section.tag.into_iter().chain(keys) {
            let key = format!("{}.{key}", section.name);
            if !known.contains(&key) {
                known.push(key);
            }
        }
    }
    known
}
