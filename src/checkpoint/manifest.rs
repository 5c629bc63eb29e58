//! `manifest.json`: everything about a checkpoint but the values.

use std::collections::{BTreeMap, BTreeSet};

use hlo::{Axis, AxisSet, DType, LeafSpec, Sharding, Tree};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128;

use super::{Error, Location};

/// The value of `format`.
const FORMAT: &str = "lockstep checkpoint";
/// The newest format version, which is written.
const VERSION: u32 = 1;

/// Bytes with a checksum of their own. Small enough to still be in the processor's cache after they
/// were hashed or read.
pub(super) const BLOCK_BYTES: usize = 1 << 20;

/// The contents of `manifest.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// `"lockstep checkpoint"`.
    pub format: String,
    /// The version of the format.
    pub version: u32,
    /// XXH3-128 of the manifest's own text with this field's digits replaced by zeros, 32
    /// hexadecimal digits.
    pub checksum: String,
    /// The run.
    pub run: RunRecord,
    /// The files with the values, one per process.
    pub files: Vec<FileRecord>,
    /// The leaves of the state, in order.
    pub leaves: Vec<LeafRecord>,
}

/// The run that a checkpoint belongs to, after `step` steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Steps taken.
    pub step: u64,
    /// Where the next step reads the training data. It follows from `step`, and is checked against
    /// it.
    pub position: DataPosition,
    /// Examples per step.
    pub global_batch: usize,
    /// Seed of every random choice.
    pub seed: u64,
    /// Sizes of the mesh's axes, by name.
    pub mesh: BTreeMap<String, usize>,
    /// Replicas, over all processes.
    pub num_replicas: usize,
    /// Processes that held the replicas.
    pub num_processes: usize,
    /// The resolved configuration, as TOML.
    pub config: String,
    /// The data. Earlier versions did not record them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataRecord>,
    /// The progress of the run so far: losses, evaluations.
    pub progress: Value,
    /// Hexadecimal hash of everything that the compiled step depends on: an equal one computes the
    /// same bits.
    pub program: String,
    /// The backend, as the configuration names it.
    pub backend: String,
    /// The kind of its devices, as the plugin names it.
    pub device: String,
    /// The version of lockstep.
    pub lockstep: String,
    /// When it was saved, in seconds since 1970-01-01 UTC.
    pub saved_at: f64,
}

/// The data of a run, as far as they can be recognized.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataRecord {
    /// The training examples.
    pub train: SplitRecord,
    /// The evaluation examples.
    pub eval: SplitRecord,
}

/// One part of the data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitRecord {
    /// Number of examples.
    pub num_examples: u64,
    /// Hash of the examples, 32 hexadecimal digits; `None` if the source has none.
    pub fingerprint: Option<String>,
}

/// A place in the training data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataPosition {
    /// Passes over the data that are complete.
    pub epoch: u64,
    /// Batches taken of the next pass.
    pub batch: u64,
}

/// A file with values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Its name.
    pub name: String,
    /// Its size.
    pub num_bytes: u64,
    /// The size of its safetensors header, with the 8 bytes that say how long it is. The values
    /// follow.
    pub header_bytes: u64,
    /// XXH3-128 of these bytes.
    pub header_checksum: String,
    /// Size of the blocks of a piece that have a checksum each; the last block of a piece may be
    /// shorter.
    pub block_bytes: u64,
}

/// A leaf of the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafRecord {
    /// Its path.
    pub path: String,
    /// Its dtype: `f32`, `bf16`, `u32`.
    pub dtype: String,
    /// Size of each dim of the whole leaf.
    pub dims: Vec<usize>,
    /// For each dim, the mesh axes that it was cut over.
    pub sharding: Vec<Vec<String>>,
    /// Number of leading dims that count equal blocks. The indices of the blocks stand for the `*`s
    /// in the path; see [`LeafSpec::num_stacked`].
    pub num_stacked: usize,
    /// The pieces that it was saved in. They cover it, and none overlap.
    pub pieces: Vec<PieceRecord>,
}

/// A piece of a leaf: a tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PieceRecord {
    /// Index of its file.
    pub file: usize,
    /// The name of the tensor.
    pub tensor: String,
    /// Index of its first element in the whole leaf, for each dim.
    pub start: Vec<usize>,
    /// Size of each dim.
    pub dims: Vec<usize>,
    /// Its place in the file.
    pub offset: u64,
    /// Its size in bytes: row-major, little endian.
    pub num_bytes: u64,
    /// XXH3-128 of each of its blocks, 32 hexadecimal digits.
    pub checksums: Vec<String>,
}

/// A checksum as the manifest spells it.
pub(super) fn hex(checksum: u128) -> String {
    format!("{checksum:032x}")
}

impl Manifest {
    /// The name of the file.
    pub const FILE: &'static str = "manifest.json";

    pub(super) fn new(run: RunRecord, files: Vec<FileRecord>, leaves: Vec<LeafRecord>) -> Self {
        let (format, checksum) = (FORMAT.to_owned(), hex(0));
        Self { format, version: VERSION, checksum, run, files, leaves }
    }

    /// The text, with its checksum.
    ///
    /// # Errors
    /// A value that JSON cannot express.
    pub(super) fn to_text(&self) -> Result<String, serde_json::Error> {
        let blank = Self { checksum: hex(0), ..self.clone() };
        let text = serde_json::to_string_pretty(&blank)? + "\n";
        let place = text.find(&hex(0)).unwrap_or_default();
        let checksum = hex(xxh3_128(text.as_bytes()));
        Ok(format!("{}{checksum}{}", &text[..place], &text[place + checksum.len()..]))
    }

    /// Reads a text, and checks its checksum and that its records belong together.
    ///
    /// # Errors
    /// [`Error::Damaged`], or [`Error::Version`]; `dir` is what they name.
    pub(super) fn from_text(text: &[u8], dir: &Location) -> Result<Self, Error> {
        let damaged = |reason: String| Error::Damaged {
            path: dir.clone(),
            reason: format!("manifest.json {reason}"),
        };
        let value: Value = serde_json::from_slice(text)
            .map_err(|error| damaged(format!("is not JSON: {error}")))?;
        if value["format"] != FORMAT {
            return Err(damaged("is of another format".to_owned()));
        }
        // Newer versions may have another checksum.
        let version = value["version"].as_u64().unwrap_or_default();
        if version > u64::from(VERSION) {
            let version = u32::try_from(version).unwrap_or(u32::MAX);
            return Err(Error::Version { path: dir.clone(), version, newest: VERSION });
        }
        let checksum = value["checksum"].as_str().unwrap_or_default().to_owned();
        if !is_intact(text, &checksum) {
            return Err(damaged("was changed: its checksum does not match".to_owned()));
        }
        let manifest: Self = serde_json::from_value(value)
            .map_err(|error| damaged(format!("is incomplete: {error}")))?;
        manifest.check().map_err(damaged)?;
        Ok(manifest)
    }

    /// The leaves as they were declared.
    ///
    /// # Errors
    /// A dtype or an axis that is not known.
    pub(super) fn specs(&self) -> Result<Tree<LeafSpec>, String> {
        self.leaves.iter().map(|leaf| Ok((leaf.path.clone(), leaf.spec()?))).collect()
    }

    /// Checks that pieces cover their leaves, each element once, and lie in their files.
    fn check(&self) -> Result<(), String> {
        if self.files.iter().any(|file| file.header_bytes > file.num_bytes) {
            return Err("has a header that is longer than its file".to_owned());
        }
        if self.files.iter().any(|file| file.block_bytes == 0) {
            return Err("has checksums of blocks without bytes".to_owned());
        }
        let mut num_bytes = 0u64;
        for leaf in &self.leaves {
            let misfit = || format!("has pieces of `{}` that do not make up the leaf", leaf.path);
            let whole = size(&leaf.dims).ok_or_else(misfit)?;
            let (mut starts, mut covered) = (BTreeSet::new(), 0u64);
            // Pieces of equal size in a grid do not overlap if they begin at different places. The
            // last along a dim may be smaller.
            let grid: Vec<_> = (0..leaf.dims.len())
                .map(|dim| leaf.pieces.iter().filter_map(|piece| piece.dims.get(dim)).max())
                .collect();
            for piece in &leaf.pieces {
                let is_in_grid = |(dim, (start, size)): (usize, (&usize, &usize))| {
                    let step = grid[dim].copied().unwrap_or(0);
                    start.checked_rem(step).unwrap_or(0) == 0
                        && leaf.dims[dim].checked_sub(*start).map(|rest| rest.min(step))
                            == Some(*size)
                };
                let in_file = piece.offset.checked_add(piece.num_bytes);
                let file = self.files.get(piece.file).filter(|file| {
                    piece.offset >= file.header_bytes
                        && in_file.is_some_and(|end| end <= file.num_bytes)
                });
                let size = size(&piece.dims).ok_or_else(misfit)?;
                let num_blocks = file.map(|file| piece.num_bytes.div_ceil(file.block_bytes));
                let fits = (piece.start.len(), piece.dims.len())
                    == (leaf.dims.len(), leaf.dims.len())
                    && piece.start.iter().zip(&piece.dims).enumerate().all(is_in_grid)
                    && Some(piece.num_bytes)
                        == size.checked_mul(leaf.spec()?.dtype.size_bytes() as u64)
                    && num_blocks == Some(piece.checksums.len() as u64)
                    && starts.insert(&piece.start);
                if !fits {
                    return Err(misfit());
                }
                covered = covered.saturating_add(size);
                num_bytes = num_bytes.saturating_add(piece.num_bytes);
            }
            if covered != whole {
                return Err(misfit());
            }
        }
        let available = self.files.iter().map(|file| file.num_bytes - file.header_bytes);
        match num_bytes == available.fold(0, u64::saturating_add) {
            true => Ok(()),
            false => Err("does not account for all bytes of its files".to_owned()),
        }
    }
}

/// Number of elements, if it is a number.
fn size(dims: &[usize]) -> Option<u64> {
    dims.iter().try_fold(1u64, |size, dim| size.checked_mul(*dim as u64))
}

/// `true` if a text has this checksum.
fn is_intact(text: &[u8], checksum: &str) -> bool {
    let place = (checksum.len() == hex(0).len())
        .then(|| memchr::memmem::find(text, checksum.as_bytes()))
        .flatten();
    let Some(place) = place else { return false };
    let mut blank = text.to_owned();
    blank[place..place + checksum.len()].fill(b'0');
    hex(xxh3_128(&blank)) == checksum
}

impl LeafRecord {
    pub(super) fn new(path: &str, spec: &LeafSpec, pieces: Vec<PieceRecord>) -> Self {
        let names = |axes: &AxisSet| axes.iter().map(|axis| axis.name().to_owned()).collect();
        Self {
            path: path.to_owned(),
            dtype: spec.dtype.name().to_owned(),
            dims: spec.dims.clone(),
            sharding: spec.sharding.dims().iter().map(names).collect(),
            num_stacked: spec.num_stacked,
            pieces,
        }
    }

    /// The leaf as it was declared.
    ///
    /// # Errors
    /// A dtype or an axis that is not known.
    pub(super) fn spec(&self) -> Result<LeafSpec, String> {
        let unknown =
            |what: &str, name: &str| format!("has the unknown {what} `{name}` at `{}`", self.path);
        let dtype = DType::ALL.into_iter().find(|dtype| dtype.name() == self.dtype);
        let dtype = dtype.ok_or_else(|| unknown("dtype", &self.dtype))?;
        let axis = |name: &String| {
            let axis = Axis::ALL.into_iter().find(|axis| axis.name() == name);
            axis.ok_or_else(|| unknown("axis", name))
        };
        let dim = |names: &Vec<String>| {
            Ok::<_, String>(AxisSet::of(&names.iter().map(axis).collect::<Result<Vec<_>, _>>()?))
        };
        let sharding: Vec<_> = self.sharding.iter().map(dim).collect::<Result<_, _>>()?;
        let num_indices = self.path.matches('*').count();
        // The first index may be that of a block of a pipeline.
        let of_pipeline = num_indices + LeafSpec::PIPELINE_DIMS - 1;
        let is_stack =
            self.num_stacked == num_indices || (num_indices > 0 && self.num_stacked == of_pipeline);
        if sharding.len() != self.dims.len() || self.num_stacked > self.dims.len() || !is_stack {
            return Err(format!("has records of `{}` with different numbers of dims", self.path));
        }
        let spec = LeafSpec::new(dtype, &self.dims, Sharding::new(&sharding));
        Ok(LeafSpec { num_stacked: self.num_stacked, ..spec })
    }
}
