//! The meaning of a path to parameters: files, or a checkpoint.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hlo::{LeafSpec, Literal, Tree, counted, row_paths, split_rows};

use super::fit::{StoredLeaf, Unmatched, fit, fit_below_head};
use super::other_weights::{ADAPTER, adapter, other_weights};
use super::read::{StoredTensor, Tensors, files_of_index, tensors};
use super::{Error, FILE};
use crate::checkpoint::{Checkpoint, CheckpointDir, Location, Manifest};
use crate::config::read_regular;
use crate::step::{StateSection, ema_path};
use crate::train::ModelValues;
use crate::train::checkpoint_place::{checkpoints_of_run, warn_of_incomplete};
use crate::train::run_dir::{CONFIG_FILE, MAX_CONFIG, summary_in};

/// The file in a Hugging Face folder, unless there are several.
pub(super) const HF_FILE: &str = "model.safetensors";
/// The file that names them if there are several.
pub(super) const HF_INDEX: &str = "model.safetensors.index.json";

/// Extensions of files that hold data or a configuration, and no model.
const OTHER_FILES: [&str; 8] = ["csv", "tsv", "jsonl", "parquet", "npy", "npz", "txt", "toml"];

/// A model that was saved.
#[derive(Debug)]
pub enum SavedModel {
    /// `params.safetensors` of a run.
    Run {
        /// The run's output directory.
        dir: PathBuf,
        /// The file.
        file: PathBuf,
    },
    /// Files under the model's own names or those of a foreign format.
    Files {
        /// The file or the folder that the user named.
        path: PathBuf,
        /// Safetensors files.
        files: Vec<PathBuf>,
    },
    /// The parameters and running statistics in a checkpoint.
    Checkpoint(Arc<Checkpoint>),
}

/// The leaves of a model in files or a checkpoint, which have been found to fit. Values are read,
/// checked and converted when they are asked for, so that a process reads the pieces that it holds,
/// one at a time.
#[derive(Debug)]
pub struct OpenModel {
    path: PathBuf,
    leaves: Tree<StoredLeaf>,
}

impl OpenModel {
    /// All values.
    ///
    /// # Errors
    /// Values that cannot be read, or that are not finite or too large.
    pub fn read_all(&self) -> Result<Tree<Literal>, Error> {
        let value = |(path, leaf): (&str, &StoredLeaf)| Ok((path.to_owned(), leaf.read_all()?));
        let values: Result<_, String> = self.leaves.iter().map(value).collect();
        values.map_err(Error::unreadable_params(&self.path))
    }
}

impl ModelValues for OpenModel {
    fn paths(&self) -> Vec<&str> {
        self.leaves.paths().collect()
    }

    fn piece(
        &self,
        path: &str,
        spec: &LeafSpec,
        start: &[usize],
        dims: &[usize],
    ) -> Result<Literal, Error> {
        let failed = Error::unreadable_params(&self.path);
        let leaf = self.leaves.get(path).filter(|leaf| leaf.is(spec));
        let leaf = leaf.ok_or_else(|| failed(format!("it was opened without `{path}: {spec}`")))?;
        leaf.read(start, dims).map_err(failed)
    }
}

impl SavedModel {
    /// What `path` leads to:
    ///
    /// - a checkpoint, or a directory or prefix of checkpoints, which stands for its newest one;
    /// - the output directory of a run: its parameters at the end if it is done, otherwise its
    ///   newest checkpoint, otherwise the parameters that it left;
    /// - a Hugging Face folder, with `model.safetensors` or several files and their index;
    /// - anything else: a safetensors file.
    ///
    /// # Errors
    /// A path that leads nowhere, a directory that is none of these or cannot be read, and a
    /// damaged checkpoint.
    pub fn find(path: &Path) -> Result<Self, Error> {
        if let place @ Location::Url(_) = Location::from(path) {
            return Ok(Self::Checkpoint(Arc::new(CheckpointDir::open(place)?)));
        }
        if !path.is_dir() {
            let failed = Error::unreadable_params(path);
            path.metadata().map_err(|error| failed(error.to_string()))?;
            let extension = path.extension().and_then(|extension| extension.to_str());
            if extension.is_some_and(|extension| OTHER_FILES.contains(&extension)) {
                let problem = "it is not a model, which is the --out of a run, a checkpoint, or a \
                               .safetensors file or a folder with one";
                return Err(failed(problem.to_owned()));
            }
            let (path, files) = (path.to_owned(), vec![path.to_owned()]);
            return Ok(Self::Files { path, files });
        }
        let file = path.join(FILE);
        // A run that was continued and has not ended has the file of its earlier end.
        let is_done = file.exists() && summary_in(path)["status"] == "done";
        if !is_done && let Some(checkpoint) = Self::newest_checkpoint(path)? {
            return Ok(checkpoint);
        }
        let (whole, index) = (path.join(HF_FILE), path.join(HF_INDEX));
        let path = path.to_owned();
        if file.exists() {
            Ok(Self::Run { dir: path, file })
        } else if path.join(ADAPTER).exists() {
            Err(Error::unreadable_params(&path)(adapter()))
        } else if whole.exists() {
            Ok(Self::Files { path, files: vec![whole] })
        } else if index.exists() {
            Ok(Self::Files { path, files: files_of_index(&index)? })
        } else {
            let reason = match other_weights(&path) {
                Some(reason) => reason,
                None => format!(
                    "the directory has neither checkpoints nor {FILE}, {HF_FILE} or {HF_INDEX}"
                ),
            };
            Err(Error::unreadable_params(&path)(reason))
        }
    }

    /// The checkpoint at `path`, the newest one in a directory of checkpoints, or the newest one of
    /// the run in an output directory.
    ///
    /// # Errors
    /// A directory that cannot be read, and a damaged checkpoint.
    pub fn newest_checkpoint(path: &Path) -> Result<Option<Self>, Error> {
        let is_checkpoint = path.join(Manifest::FILE).exists();
        for place in [path.into(), checkpoints_of_run(path)] {
            if !is_checkpoint {
                warn_of_incomplete(&place)?;
            }
            if is_checkpoint || !CheckpointDir::list(&place)?.is_empty() {
                let checkpoint = CheckpointDir::open(&place)?;
                return Ok(Some(Self::Checkpoint(Arc::new(checkpoint))));
            }
        }
        Ok(None)
    }

    /// The configuration of its run, as TOML, and where it is from. `None` if no run saved it.
    ///
    /// # Errors
    /// If the run's file cannot be read.
    pub fn config(&self) -> Result<Option<(String, PathBuf)>, Error> {
        match self {
            Self::Checkpoint(checkpoint) => {
                let manifest = checkpoint.location().join(Manifest::FILE);
                Ok(Some((checkpoint.run().config.clone(), manifest.to_string().into())))
            }
            Self::Run { dir, .. } => {
                let path = dir.join(CONFIG_FILE);
                let text = read_regular(&path, MAX_CONFIG).map_err(|error| error.to_string());
                let text = text
                    .and_then(|bytes| String::from_utf8(bytes).map_err(|error| error.to_string()));
                let text =
                    text.map_err(|error| format!("its configuration {CONFIG_FILE}: {error}"));
                Ok(Some((text.map_err(Error::unreadable_params(dir))?, path)))
            }
            Self::Files { .. } => Ok(None),
        }
    }

    /// Finds the model's leaves, and says what of the file is not used. Values are read when they
    /// are asked for.
    ///
    /// # Errors
    /// As [`open`](super::open).
    pub fn open(&self, specs: &Tree<LeafSpec>) -> Result<(OpenModel, Unmatched), Error> {
        let path = self.path();
        let found = fit(&self.tensors()?, specs);
        let (leaves, unmatched) = found.map_err(Error::unreadable_params(&path))?;
        Ok((OpenModel { path, leaves }, unmatched))
    }

    /// [`Self::open`] of a model that may have been trained with another head, or without one; and
    /// what of either the other lacks.
    ///
    /// # Errors
    /// As [`open`](super::open), for everything but heads.
    pub fn open_below_head(&self, specs: &Tree<LeafSpec>) -> Result<(OpenModel, Unmatched), Error> {
        if !matches!(self, Self::Files { .. }) {
            return self.open(specs);
        }
        let path = self.path();
        let found = fit_below_head(&self.tensors()?, specs);
        let (leaves, unmatched) = found.map_err(Error::unreadable_params(&path))?;
        Ok((OpenModel { path, leaves }, unmatched))
    }

    /// All values under the names that they were saved with. With `means`, the running means of the
    /// parameters where the optimizer keeps them; a run's file has these only.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn values(&self, means: bool) -> Result<Tree<Literal>, Error> {
        if let Self::Checkpoint(checkpoint) = self {
            return of_checkpoint(checkpoint, means);
        }
        let value = |(name, tensor): (String, StoredTensor)| {
            let value = tensor.read_all().map_err(|reason| format!("`{name}`: {reason}"))?;
            Ok((name, value))
        };
        let values: Result<_, String> = self.tensors()?.into_iter().map(value).collect();
        values.map_err(Error::unreadable_params(&self.path()))
    }

    /// The tensors for evaluation, by the names that they were saved with.
    pub(super) fn tensors(&self) -> Result<Tensors, Error> {
        let Self::Checkpoint(checkpoint) = self else { return tensors(self.files()) };
        let tensor = |(name, (path, spec)): (String, (String, &LeafSpec))| {
            let rows = row_paths(&name, spec).into_iter().zip(row_paths(&path, spec));
            rows.map(|(name, path)| {
                let tensor = StoredTensor::of_checkpoint(checkpoint, &path, &spec.row());
                (name, tensor)
            })
            .collect::<Vec<_>>()
        };
        Ok(leaves_of_checkpoint(checkpoint, true).into_iter().flat_map(tensor).collect())
    }

    fn files(&self) -> &[PathBuf] {
        match self {
            Self::Checkpoint(_) => &[],
            Self::Run { file, .. } => std::slice::from_ref(file),
            Self::Files { files, .. } => files,
        }
    }

    /// The path for messages.
    fn path(&self) -> PathBuf {
        match self {
            Self::Checkpoint(checkpoint) => checkpoint.location().to_string().into(),
            Self::Run { file: path, .. } | Self::Files { path, .. } => path.clone(),
        }
    }
}

impl fmt::Display for SavedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path().display())?;
        match self {
            Self::Checkpoint(checkpoint) => {
                let has_means = checkpoint.specs().paths().any(|path| {
                    let has_mean = |name| checkpoint.specs().get(&ema_path(name)).is_some();
                    matches!(StateSection::of(path), Some((StateSection::Params, name)) if has_mean(name))
                });
                let means = if has_means { ", running means of the parameters" } else { "" };
                write!(f, " (after {}{means})", counted(checkpoint.run().step, "step"))
            }
            Self::Files { files, .. } if files.len() > 1 => write!(f, " ({} files)", files.len()),
            Self::Run { .. } | Self::Files { .. } => Ok(()),
        }
    }
}

/// The leaves for evaluation: under each of the model's own names the path of a leaf in the
/// checkpoint. With `means`, the running means of parameters where there are any.
fn leaves_of_checkpoint(checkpoint: &Checkpoint, means: bool) -> Tree<(String, &LeafSpec)> {
    let mut leaves = Tree::new();
    for (path, spec) in checkpoint.specs().iter() {
        let Some((section @ (StateSection::Params | StateSection::ModelState), name)) =
            StateSection::of(path)
        else {
            continue;
        };
        let mean = ema_path(name);
        let is_mean =
            section == StateSection::Params && means && checkpoint.specs().get(&mean).is_some();
        leaves.insert(name, (if is_mean { mean } else { path.to_owned() }, spec));
    }
    leaves
}

/// The values of [`leaves_of_checkpoint`], as rows.
fn of_checkpoint(checkpoint: &Checkpoint, means: bool) -> Result<Tree<Literal>, Error> {
    let leaves = leaves_of_checkpoint(checkpoint, means);
    let value =
        |(name, (path, _)): (&str, &(String, _))| Ok((name.to_owned(), checkpoint.leaf(path)?));
    let values = leaves.iter().map(value).collect::<Result<_, Error>>()?;
    Ok(split_rows(&leaves.map(|_, (_, spec)| (*spec).clone()), values))
}
