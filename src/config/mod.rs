//! The configuration of a run: plain typed data, validated once, with errors that say what to
//! change.
//!
//! A configuration is a TOML file of sections, and `--set section.key=value` and
//! `--unset section.key` reach every key of it. [`Config::load`] reads both and checks each key by
//! itself; what needs the data or the number of devices is checked where these are known:
//! [`BatchSplit::new`] and [`RunLength::new`] here, `optim::Schedule::new` for the rates. Unknown
//! keys are errors that name the nearest known one.
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

mod address;
mod arrays;
mod batch;
mod check;
mod checkpoint;
mod cluster;
mod data;
mod device;
mod error;
mod field_names;
mod file;
mod folder;
mod key;
mod keys;
mod late;
mod lines;
mod mesh;
mod observe;
mod optimizer;
mod overrides;
mod parallel_keys;
mod patterns;
mod reference;
mod resolved;
mod roster;
mod run_length;
mod schedule;
mod sections;
mod shape;
mod shorten;
mod span;
mod sync;
mod table;
mod train;

use std::path::{Path, PathBuf};

pub use models::ModelConfig;
use serde::Serialize;
use toml::Table;

pub use address::{HostPort, NotHostPort};
pub use arrays::{ArraysConfig, ChannelsDim};
pub use batch::{BatchError, BatchSplit};
pub use check::CheckConfig;
pub use checkpoint::{CheckpointConfig, OBJECT_SCHEMES, OnDamaged};
pub use cluster::{ClusterConfig, LinkSecurity, OnSlow};
pub use data::{
    Cifar10Config, ClassificationConfig, DataConfig, DigitsConfig, IdxConfig, ImageFolderConfig,
    OnBroken, SyntheticConfig, SyntheticTokensConfig, TextConfig, TokenType, TokensConfig,
};
pub use device::{Backend, DeviceConfig, PluginOption, UnknownBackend};
pub use error::{Complaint, Error, Place, Problem, near_names};
pub use file::{cache_dir, expand_home, open_regular, read_regular};
pub use folder::{FolderClasses, FolderConfig, FolderError};
pub use key::OnResume;
pub use late::{LateConfig, OnLate};
pub use mesh::{MeshConfig, UnevenMesh};
pub use observe::ObserveConfig;
pub use optimizer::{Adam, AdamW, Lamb, Lars, OptimizerConfig, Sgd, UpdateRule};
pub use patterns::{PatternNumbers, Patterns};
pub use reference::reference;
pub use roster::RosterError;
pub use run_length::{RunLength, RunLengthError};
pub use schedule::{Peak, Scaling, ScheduleConfig, Warmup, WarmupFrom, WarmupKind};
pub use sections::{
    AllReduceConfig, AutoOr, CompileConfig, Compression, GatherDType, KernelsConfig, OptionValue,
    ParallelConfig, PipelineOrder, ReduceDType,
};
pub use shape::{
    BoundariesFrom, Constant, Decay, DecayFrom, DecayShape, Interpolation, InverseSqrt, Piecewise,
    Polynomial, ReachedAt, Shape, StepDecay, Wsd,
};
pub use shorten::{shorten, shorten_words};
pub use span::Span;
pub use sync::SyncConfig;
pub use table::{ColumnEncoding, ColumnNames, MissingValues, TableConfig};
pub use train::{
    BatchSize, ClassWeights, Length, LossConfig, MAX_BATCH, MAX_ROUNDS, MAX_STEPS, Microbatches,
    OnNonfinite, PrecisionConfig, TrainConfig,
};

use error::{KeyError, KeyErrors};
use keys::{SectionInfo, info, read_section};
use overrides::Override;

/// Prefix of an argument that takes a key back; the key follows. Other arguments are
/// `section.key=value`.
pub const UNSET: &str = "--unset ";

/// A validated configuration. Serializes to the TOML that it would be read from, defaults written
/// out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// `[model]`.
    pub model: ModelConfig,
    /// `[data]`.
    pub data: DataConfig,
    /// The keys of `[data]` that are the same for all sources. [`Self::to_toml`] writes them there.
    #[serde(skip)]
    pub late: LateConfig,
    /// `[train]`.
    pub train: TrainConfig,
    /// `[optimizer]`.
    pub optimizer: OptimizerConfig,
    /// `[schedule]`.
    pub schedule: ScheduleConfig,
    /// `[mesh]`.
    pub mesh: MeshConfig,
    /// `[parallel]`.
    pub parallel: ParallelConfig,
    /// `[sync]`.
    pub sync: SyncConfig,
    /// `[device]`.
    pub device: DeviceConfig,
    /// `[compile]`.
    pub compile: CompileConfig,
    /// `[checkpoint]`.
    pub checkpoint: CheckpointConfig,
    /// `[cluster]`.
    pub cluster: ClusterConfig,
    /// `[observe]`.
    pub observe: ObserveConfig,
    /// `[check]`.
    pub check: CheckConfig,
}

/// All sections.
const SECTIONS: [SectionInfo; 14] = [
    info::<ModelConfig>(),
    info::<DataConfig>(),
    info::<TrainConfig>(),
    info::<OptimizerConfig>(),
    info::<ScheduleConfig>(),
    info::<MeshConfig>(),
    info::<ParallelConfig>(),
    info::<SyncConfig>(),
    info::<DeviceConfig>(),
    info::<CompileConfig>(),
    info::<CheckpointConfig>(),
    info::<ClusterConfig>(),
    info::<ObserveConfig>(),
    info::<CheckConfig>(),
];

/// The key of `[model]` with the examples that batch norm normalizes together.
const NORM_GROUP: &str = "batch_norm_group";

/// The key of the folder that a model is taken from.
const MODEL_FROM: &str = "model.from";

/// The path under `key`: relative to the current directory if it was given as an argument,
/// otherwise to `dir`.
fn absolute(path: &Path, key: &str, dir: &Path, overrides: &[Override<'_>]) -> PathBuf {
    let last = overrides.iter().rev().find(|set| sets_key(set, key));
    let is_typed = last.is_some_and(Override::is_set);
    let dir = if is_typed { Path::new("") } else { dir };
    let joined = dir.join(expand_home(path));
    std::path::absolute(&joined).unwrap_or(joined)
}

/// Where `[model]` names a folder and no architecture, adds what the folder says. Written-out
/// configurations have both, so that they can be read where the folder is not.
fn fill_from_folder(
    file: &mut Table,
    dir: &Path,
    overrides: &[Override<'_>],
) -> Result<(), KeyError> {
    let Some(model) = file.get_mut("model").and_then(toml::Value::as_table_mut) else {
        return Ok(());
    };
    let from = model.get("from").and_then(toml::Value::as_str).map(PathBuf::from);
    let Some(from) = from.filter(|_| !model.contains_key("name")) else { return Ok(()) };
    let folder = absolute(&from, MODEL_FROM, dir, overrides);
    let filled = folder::FolderConfig::read(&folder).and_then(|config| config.fill(model));
    filled.map_err(|problem| {
        // The name is not known then.
        model.insert("name".to_owned(), ModelConfig::NAMES[0].into());
        model.retain(|key, _| key == "name");
        let allowed = format!("a Hugging Face folder ({problem})");
        let found = from.display().to_string();
        KeyError::new(MODEL_FROM, Problem::Value { found, allowed })
    })
}

/// Largest size of a configuration file, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// What `lockstep init` makes of a file of data, by its name.
fn init_kind(path: &Path) -> Option<&'static str> {
    match path.extension()?.to_str()?.to_lowercase().as_str() {
        "csv" | "tsv" | "jsonl" | "parquet" => Some("tabular"),
        "npy" | "npz" => Some("arrays"),
        _ => None,
    }
}

impl Config {
    /// Reads the file, applies the arguments in order, and validates. An argument is
    /// `section.key=value`, or [`UNSET`] with `section.key`, which takes a key back.
    ///
    /// # Errors
    /// A file that cannot be read or is not TOML, arguments of another form, and all keys that are
    /// unknown, missing, of the wrong type, out of range, or excluded by others.
    pub fn load(path: &Path, sets: &[String]) -> Result<Self, Error> {
        let unreadable = |source| Error::Read { path: path.to_owned(), source };
        if let Some(kind) = init_kind(path) {
            let problem = format!(
                "it is no configuration, but data; `lockstep init {kind} --data {}` writes a \
                 configuration for it",
                path.display()
            );
            return Err(unreadable(std::io::Error::new(std::io::ErrorKind::InvalidData, problem)));
        }
        let bytes = read_regular(path, MAX_BYTES).map_err(unreadable)?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let line =
                error.as_bytes()[..error.utf8_error().valid_up_to()].split(|b| *b == b'\n').count();
            let problem = format!("line {line} is not UTF-8; is it a text file?");
            unreadable(std::io::Error::new(std::io::ErrorKind::InvalidData, problem))
        })?;
        Self::parse(&text, path, sets)
    }

    /// [`Self::parse`] of a run's configuration for evaluating its model only: `sets` may ask for
    /// any mesh, even if the run's batch, launches, stage of ZeRO or pipeline do not allow it.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn parse_for_evaluation(text: &str, path: &Path, sets: &[String]) -> Result<Self, Error> {
        // A text that is not TOML gets its error there.
        let Ok(mut keys) = text.parse::<toml::Table>() else {
            return Self::parse(text, path, sets);
        };
        if let Some(train) = keys.get_mut("train").and_then(toml::Value::as_table_mut) {
            train.remove("global_batch");
            train.remove("microbatch");
            train.remove("num_microbatches");
            train.insert("batch_per_replica".to_owned(), 1.into());
            train.remove("steps_per_launch");
        }
        // Evaluation reads parameters after an outer step, on any mesh, and records no steps.
        keys.remove("sync");
        if let Some(data) = keys.get_mut("data").and_then(toml::Value::as_table_mut) {
            data.remove("late");
            data.remove("late_from");
        }
        keys.remove("observe");
        // Evaluation normalizes with running means, whatever the groups were.
        if let Some(group) = keys.get_mut("model").and_then(|model| model.get_mut(NORM_GROUP)) {
            *group = 1.into();
        }
        if let Some(parallel) = keys.get_mut("parallel").and_then(toml::Value::as_table_mut)
            && sets
                .iter()
                .any(|set| set.strip_prefix(UNSET).unwrap_or(set).trim_start().starts_with("mesh."))
        {
            // Keys that need an axis which the other mesh may lack, or which it excludes.
            for key in
                ["zero", "gather_dtype", "gather_exact", "pipeline_chunks", "pipeline_schedule"]
            {
                parallel.remove(key);
            }
        }
        Self::parse(&keys.to_string(), path, sets)
    }

    /// [`Self::load`] from a text; `path` is what errors name. Paths in the text are relative to
    /// that file's directory, those in `sets` to the current one; in both a leading `~/` is the
    /// home directory.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn parse(text: &str, path: &Path, sets: &[String]) -> Result<Self, Error> {
        let mut complaints = vec![];
        let of_set = |index: usize| Place::Set { index, argument: sets[index].clone() };
        let mut overrides = vec![];
        for (index, set) in sets.iter().enumerate() {
            match overrides::parse(index, set) {
                Ok(set) => overrides.push(set),
                Err(problem) => {
                    complaints.push(Complaint {
                        place: of_set(index),
                        key: String::new(),
                        problem,
                    });
                }
            }
        }
        let in_file = |line| Place::File { path: path.to_owned(), line };
        let (file, lines) = lines::parse(text);
        let syntax = lines.errors.iter().map(|(line, message)| Complaint {
            place: in_file(*line),
            key: String::new(),
            problem: Problem::Toml(message.clone()),
        });
        complaints.extend(syntax);
        // Without the file's keys, those would seem to be missing.
        let Some(mut file) = file else { return Err(invalid(complaints)) };
        let misplaced = overrides::apply(&mut file, &overrides, &SECTIONS);
        complaints.extend(misplaced.into_iter().map(|(index, problem)| Complaint {
            place: of_set(index),
            key: String::new(),
            problem,
        }));
        let mut errors = KeyErrors::default();
        let dir = path.parent().unwrap_or(Path::new(""));
        if let Err(error) = fill_from_folder(&mut file, dir, &overrides) {
            errors.push(error);
        }
        let config = Self::read(&file, &mut errors);
        for error in errors.into_vec() {
            let KeyError { key, problem } = in_other_sections(error);
            let place = match overrides.iter().rev().find(|set| sets_key(set, &key)) {
                Some(set) => of_set(set.index),
                None => in_file(lines.line_of(&key)),
            };
            complaints.push(Complaint { place, key, problem });
        }
        match config {
            Some(mut config) if complaints.is_empty() => {
                config.resolve_paths(dir, &overrides);
                config.write_out();
                Ok(config)
            }
            _ => Err(invalid(complaints)),
        }
    }

    /// `None` only if there are errors. A configuration that comes with errors must not be used.
    fn read(file: &Table, errors: &mut KeyErrors) -> Option<Self> {
        let sections = SECTIONS.map(|section| section.name);
        for name in file.keys().filter(|name| !sections.contains(&name.as_str())) {
            errors.push(KeyError::unknown(name, sections.to_vec()));
        }
        let model = read_section(file, errors);
        let data: Option<DataConfig> = read_section(file, errors);
        let late = data::read_late(file);
        let train: Option<TrainConfig> = read_section(file, errors);
        let optimizer: Option<OptimizerConfig> = read_section(file, errors);
        let schedule = read_section(file, errors);
        let mesh: Option<MeshConfig> = read_section(file, errors);
        let parallel: Option<ParallelConfig> = read_section(file, errors);
        let sync: Option<SyncConfig> = read_section(file, errors);
        let device: Option<DeviceConfig> = read_section(file, errors);
        let compile = read_section(file, errors);
        let checkpoint = read_section(file, errors);
        let cluster = read_section(file, errors);
        let observe: Option<ObserveConfig> = read_section(file, errors);
        let check = read_section(file, errors);
        if let (Some(optimizer), Some(train)) = (&optimizer, &train)
            && errors.none_of(&["train.precision"])
        {
            let mut in_dtype = KeyErrors::default();
            optimizer.check_in(train.precision.dtypes().params, &mut in_dtype);
            errors.extend_from("optimizer", in_dtype);
        }
        if let (Some(parallel), Some(mesh)) = (&parallel, &mesh) {
            parallel_keys::check(parallel, mesh, errors);
        }
        if let (Some(sync), Some(mesh), Some(parallel)) = (sync, &mesh, &parallel)
            && let Some(optimizer) = &optimizer
        {
            sync::check(sync, (mesh, parallel), optimizer, errors);
        }
        if let (Some(parallel), Some(optimizer)) = (&parallel, &optimizer) {
            parallel_keys::check_momentum(parallel, optimizer, errors);
        }
        if let (Some(observe), Some(sync), Some(parallel)) = (&observe, sync, &parallel)
            && let (Some(mesh), Some(train)) = (&mesh, &train)
        {
            observe::check(observe, (sync, parallel), mesh, train, errors);
        }
        if let (Some(train), Some(mesh)) = (&train, &mesh) {
            check_launches(train, mesh, errors);
        }
        if let (Some(parallel), Some(device)) = (&parallel, &device) {
            parallel_keys::check_host_collectives(parallel, device, errors);
        }
        if let (Some(train), Some(data)) = (&train, &data) {
            check_pad_to(train, data, errors);
        }
        if let (Some(data), Some(train), Some(sync)) = (&data, &train, sync)
            && let (Some(mesh), Some(observe)) = (&mesh, &observe)
        {
            late::check(&late, (data, model.as_ref()), (train, sync), (mesh, observe), errors);
        }
        // Microbatches of a fixed size are the same on any mesh.
        if let (Some(train), Some(mesh)) = (&train, &mesh)
            && let shards = mesh.fixed().map(|mesh| mesh.num_batch_shards())
            && let Some(shards) = shards.or(train.microbatch.map(|_| 1))
        {
            check_batch(train, model.as_ref(), shards, errors);
        }
        Some(Self {
            model: model?,
            data: data?,
            late,
            train: train?,
            optimizer: optimizer?,
            schedule: schedule?,
            mesh: mesh?,
            parallel: parallel?,
            sync: sync?,
            device: device?,
            compile: compile?,
            checkpoint: checkpoint?,
            cluster: cluster?,
            observe: observe?,
            check: check?,
        })
    }

    /// Makes paths absolute: those in arguments are relative to the current directory, those in a
    /// file to that file's directory.
    fn resolve_paths(&mut self, dir: &Path, overrides: &[Override<'_>]) {
        let backend = match &mut self.device.backend {
            Backend::Path(path) => Some(("device.backend", path)),
            _ => None,
        };
        self.checkpoint.dir = expand_home(&self.checkpoint.dir);
        let cluster = &mut self.cluster;
        let files = [
            ("cluster.token_file", &mut cluster.token_file),
            ("cluster.tls_ca", &mut cluster.tls_ca),
            ("cluster.tls_certificate", &mut cluster.tls_certificate),
            ("cluster.tls_key", &mut cluster.tls_key),
            ("parallel.fabric", &mut self.parallel.fabric),
            ("data.late_from", &mut self.late.late_from),
        ];
        let files = files.into_iter().filter_map(|(key, path)| Some((key, path.as_mut()?)));
        let others = backend.into_iter().chain(files);
        let data =
            self.data.paths_mut().into_iter().map(|(key, path)| (format!("data.{key}"), path));
        let model = self.model.folder_mut().map(|path| (MODEL_FROM, path));
        let others = others.chain(model).map(|(key, path)| (key.to_owned(), path));
        for (key, path) in data.chain(others) {
            *path = absolute(path, &key, dir, overrides);
        }
    }

    /// The global batch, split into `num_batch_shards` shards.
    ///
    /// # Errors
    /// As [`BatchSplit::new`].
    pub fn split_batch(&self, num_batch_shards: usize) -> Result<BatchSplit, BatchError> {
        BatchSplit::new(self.train.batch, self.train.microbatches(), num_batch_shards)
    }

    /// Number of examples in one step over all replicas, which are split into `num_batch_shards`
    /// shards.
    ///
    /// # Errors
    /// As [`BatchSplit::new`], where the number of batch shards makes the batch.
    pub fn global_batch(&self, num_batch_shards: usize) -> Result<usize, BatchError> {
        match self.train.batch {
            BatchSize::Global(size) => Ok(size),
            BatchSize::PerReplica(_) => Ok(self.split_batch(num_batch_shards)?.global_batch()),
        }
    }
}

/// All complaints, in the order of the file and of the arguments.
fn invalid(mut complaints: Vec<Complaint>) -> Error {
    complaints.sort_by(|a, b| a.place.cmp(&b.place));
    Error::Invalid(complaints)
}

/// `true` if the argument is about this key, one below it, or one above it.
fn sets_key(set: &Override<'_>, key: &str) -> bool {
    set.path.iter().zip(key.split('.')).all(|(set, key)| *set == key)
}

/// With a mesh of known size, or microbatches of a fixed size, a batch that does not divide is an
/// error of the configuration.
fn check_batch(
    train: &TrainConfig,
    model: Option<&ModelConfig>,
    num_batch_shards: usize,
    errors: &mut KeyErrors,
) {
    let key = match train.batch {
        BatchSize::Global(_) => "train.global_batch",
        BatchSize::PerReplica(_) => "train.batch_per_replica",
    };
    let others = [
        "train.global_batch",
        "train.batch_per_replica",
        "train.microbatch",
        "train.num_microbatches",
        "mesh",
    ];
    if !errors.none_of(&others) {
        return;
    }
    let group =
        model.filter(|_| errors.none_of(&["model"])).and_then(ModelConfig::batch_norm_group);
    // The complaint names the key.
    let mut complain = |key: &str, prefix: &str, error: BatchError| {
        let message = error.to_string();
        let problem = message.strip_prefix(prefix).unwrap_or(&message);
        errors.push(KeyError::new(key, Problem::Inconsistent(problem.to_owned())));
    };
    match (BatchSplit::new(train.batch, train.microbatches(), num_batch_shards), group) {
        (Err(error), _) => complain(key, &format!("{key} = "), error),
        (Ok(batch), Some(group)) => {
            let key = format!("model.{NORM_GROUP}");
            let checked = batch.check_norm_group(group);
            checked.unwrap_or_else(|error| complain(&key, &format!("{key} = {group}: "), error));
        }
        (Ok(_), None) => {}
    }
}

/// The batches of a launch have the same dims, and would depend on where launches begin.
fn check_pad_to(train: &TrainConfig, data: &DataConfig, errors: &mut KeyErrors) {
    if let DataConfig::Classification(texts) = data
        && !texts.pad_to.is_empty()
        && train.steps_per_launch > 1
        && errors.none_of(&["data.pad_to", "train.steps_per_launch"])
    {
        let problem = format!(
            "batches of several lengths need train.steps_per_launch = 1, but it is {}; set it to \
             1, or leave out data.pad_to (--unset data.pad_to)",
            train.steps_per_launch
        );
        errors.push(KeyError::new("data.pad_to", Problem::Inconsistent(problem)));
    }
}

/// A step with a pipeline is a program of several loops: another around them would save nothing.
fn check_launches(train: &TrainConfig, mesh: &MeshConfig, errors: &mut KeyErrors) {
    let num_stages = mesh.pipeline.unwrap_or(1);
    if num_stages > 1
        && train.steps_per_launch > 1
        && errors.none_of(&["mesh.pipeline", "train.steps_per_launch"])
    {
        let problem = format!(
            "a step of mesh.pipeline = {num_stages} stages runs many microbatches and is launched \
             by itself; set it to 1"
        );
        errors.push(KeyError::new("train.steps_per_launch", Problem::Inconsistent(problem)));
    }
}

/// Names that other programs have for our keys.
const SYNONYMS: [(&str, &str); 3] = [
    ("lr", "schedule.peak"),
    ("learning_rate", "schedule.peak"),
    ("batch_size", "train.global_batch"),
];

/// Suggests, for an unknown key, the key of the same name in another section, if there is exactly
/// one.
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

/// All keys that `--set` reaches, as `section.key`, for all choices of `name` and `source`.
pub fn known_keys() -> Vec<String> {
    let of_section = |section: SectionInfo| {
        section.all_keys().into_iter().map(move |key| format!("{}.{key}", section.name))
    };
    SECTIONS.into_iter().flat_map(of_section).collect()
}

/// The meaning of a changed key, `section.key` or below it, for a run that is resumed. One that no
/// section has is that of another run.
///
/// ```
/// use lockstep::config::{OnResume, on_resume};
/// assert_eq!(on_resume("model.width"), OnResume::Refuse);
/// assert_eq!(on_resume("compile.overrides.xla_a"), OnResume::Same);
/// ```
pub fn on_resume(path: &str) -> OnResume {
    let mut parts = path.split('.');
    let (name, key) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let Some(section) = SECTIONS.into_iter().find(|section| section.name == name) else {
        return OnResume::Warn;
    };
    if let Some(tag) = section.tag.filter(|tag| tag.name == key) {
        return tag.on_resume;
    }
    let mut keys = section.choices().iter().flat_map(|choice| section.keys(choice));
    keys.find(|known| known.name == key).map_or(OnResume::Warn, |known| known.on_resume)
}
