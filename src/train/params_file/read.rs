//! Safetensors files. Values are read when they are asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hlo::{Corner, DType, LeafSpec, Literal, contiguous_runs};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde_json::Value;

use super::Error;
use crate::checkpoint::{Checkpoint, safetensors_dtype};
use crate::config::{open_regular, read_regular};

/// The format's limit on the size of the header, in bytes.
const MAX_HEADER: u64 = 100_000_000;

/// Tensors by name, from one file or several.
pub(super) type Tensors = BTreeMap<String, StoredTensor>;

/// A tensor with its values in a file or a checkpoint.
#[derive(Clone, Debug)]
pub(super) struct StoredTensor {
    /// Its dtype, which programs may not have.
    pub dtype: Dtype,
    /// Its dims.
    pub dims: Vec<usize>,
    values: Values,
}

#[derive(Clone, Debug)]
enum Values {
    /// In a file, from this byte on, row-major.
    File(Arc<File>, u64),
    /// At this path of a checkpoint.
    Checkpoint(Arc<Checkpoint>, String),
}

impl StoredTensor {
    /// A leaf of a checkpoint, or a row of one.
    pub fn of_checkpoint(checkpoint: &Arc<Checkpoint>, path: &str, spec: &LeafSpec) -> Self {
        let values = Values::Checkpoint(checkpoint.clone(), path.to_owned());
        Self { dtype: safetensors_dtype(spec.dtype), dims: spec.dims.clone(), values }
    }

    /// The dtype, if programs can have it.
    pub fn program_dtype(&self) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| safetensors_dtype(*dtype) == self.dtype)
    }

    /// All values.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_all(&self) -> Result<Literal, String> {
        self.read(&vec![0; self.dims.len()], &self.dims)
    }

    /// The rectangle of these `dims` that starts at `start`. Nothing else is read.
    ///
    /// # Errors
    /// A dtype that programs do not have, or values that cannot be read.
    pub fn read(&self, start: &[usize], dims: &[usize]) -> Result<Literal, String> {
        let dtype = self
            .program_dtype()
            .ok_or_else(|| format!("it is of the unknown dtype {:?}", self.dtype))?;
        match &self.values {
            Values::Checkpoint(checkpoint, path) => {
                let spec = LeafSpec::replicated(dtype, &self.dims);
                checkpoint.read(path, &spec, start, dims).map_err(|error| error.to_string())
            }
            Values::File(file, offset) => {
                let mut values = Literal::zeros(dtype, dims);
                let size = dtype.size_bytes();
                let from = Corner { dims: &self.dims, start };
                let to = Corner { dims, start: &vec![0; dims.len()] };
                for run in contiguous_runs(dims, from, to) {
                    let bytes = &mut values.bytes_mut()[run.to * size..][..run.len * size];
                    let read = file.read_exact_at(bytes, offset + (run.from * size) as u64);
                    read.map_err(|error| error.to_string())?;
                }
                Ok(values)
            }
        }
    }
}

fn damaged(reason: String) -> String {
    format!("it is not a safetensors file, or it is damaged: {reason}")
}

/// The tensors of files.
///
/// # Errors
/// A file that cannot be read or is damaged, and a name that two of them have.
pub(super) fn tensors(paths: &[PathBuf]) -> Result<Tensors, Error> {
    let mut all = Tensors::new();
    for path in paths {
        let failed = Error::unreadable_params(path);
        for (name, tensor) in tensors_of(path).map_err(&failed)? {
            if all.contains_key(&name) {
                return Err(failed(format!(
                    "it holds `{name}`, as another file of the model does"
                )));
            }
            all.insert(name, tensor);
        }
    }
    Ok(all)
}

/// The files that `model.safetensors.index.json` names, beside it.
///
/// # Errors
/// An index that cannot be read or names no files, or a file that is elsewhere.
pub(super) fn files_of_index(path: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = Error::unreadable_params(path);
    let text = read_regular(path, MAX_HEADER).map_err(|error| failed(error.to_string()))?;
    let index: Value = serde_json::from_slice(&text)
        .map_err(|error| failed(format!("it is not JSON: {error}")))?;
    let names = index["weight_map"].as_object().into_iter().flat_map(|map| map.values());
    let names: BTreeSet<_> = names.map(|name| name.as_str().unwrap_or_default()).collect();
    // A name, not a path that leads elsewhere.
    if let Some(name) = names.iter().find(|name| Path::new(name).file_name() != Some(name.as_ref()))
    {
        return Err(failed(format!("weight_map has `{name}`, which is not the name of a file")));
    }
    match names.is_empty() {
        true => Err(failed("it has no weight_map, which names the files".to_owned())),
        false => Ok(names.into_iter().map(|name| path.with_file_name(name)).collect()),
    }
}

/// The tensors of a file, by its header.
fn tensors_of(path: &Path) -> Result<Vec<(String, StoredTensor)>, String> {
    let in_words = |error: std::io::Error| error.to_string();
    let mut file = open_regular(path).map_err(in_words)?;
    let found = file.metadata().map_err(in_words)?.len();
    let mut bytes = vec![];
    file.by_ref().take(8).read_to_end(&mut bytes).map_err(in_words)?;
    let header_bytes = bytes.as_slice().try_into().map(u64::from_le_bytes).unwrap_or(u64::MAX);
    if header_bytes > MAX_HEADER || header_bytes > found {
        return Err(damaged("it has no valid header".to_owned()));
    }
    bytes.clear();
    file.by_ref().take(header_bytes).read_to_end(&mut bytes).map_err(in_words)?;
    let header: Metadata = serde_json::from_slice(&bytes)
        .map_err(|error| damaged(format!("its header is invalid: {error}")))?;
    let expected = (8 + header_bytes).saturating_add(header.data_len() as u64);
    if found != expected {
        return Err(damaged(format!("it has {found} bytes, but {expected} by its header")));
    }
    let file = Arc::new(file);
    let tensor = |(name, info): (String, &TensorInfo)| {
        let offset = 8 + header_bytes + info.data_offsets.0 as u64;
        let values = Values::File(file.clone(), offset);
        (name, StoredTensor { dtype: info.dtype, dims: info.shape.clone(), values })
    };
    Ok(header.tensors().into_iter().map(tensor).collect())
}
