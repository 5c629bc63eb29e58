//! Reading safetensors files.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Metadata, SafeTensors};
use serde_json::Value;

use super::Error;
use super::fit::Tensors;
use crate::config::{open_regular, read_regular};

/// The format's limit on the size of the header, in bytes.
const MAX_HEADER: u64 = 100_000_000;

fn damaged(reason: String) -> String {
    format!("it is not a safetensors file, or it is damaged: {reason}")
}

/// Reads whole files.
///
/// # Errors
/// The first one that cannot be read.
pub(super) fn read_files(paths: &[PathBuf]) -> Result<Vec<Vec<u8>>, Error> {
    let read = |path: &PathBuf| read_announced(path).map_err(Error::unreadable_params(path));
    paths.iter().map(read).collect()
}

/// The tensors of files that were read from `paths`.
///
/// # Errors
/// A file that is damaged, and a name that two of them have.
pub(super) fn tensors<'a>(paths: &[PathBuf], files: &'a [Vec<u8>]) -> Result<Tensors<'a>, Error> {
    let mut all = Tensors::new();
    for (path, bytes) in paths.iter().zip(files) {
        let failed = Error::unreadable_params(path);
        let file = SafeTensors::deserialize(bytes);
        let file = file.map_err(|error| failed(damaged(error.to_string())))?;
        for (name, tensor) in file.tensors() {
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

/// The bytes of a file. They are read only if the length of the file matches its header.
fn read_announced(path: &Path) -> Result<Vec<u8>, String> {
    let in_words = |error: std::io::Error| error.to_string();
    let mut file = open_regular(path).map_err(in_words)?;
    let found = file.metadata().map_err(in_words)?.len();
    let mut bytes = vec![];
    file.by_ref().take(8).read_to_end(&mut bytes).map_err(in_words)?;
    let header_bytes = bytes.as_slice().try_into().map(u64::from_le_bytes).unwrap_or(u64::MAX);
    if header_bytes > MAX_HEADER || header_bytes > found {
        return Err(damaged("it has no valid header".to_owned()));
    }
    file.by_ref().take(header_bytes).read_to_end(&mut bytes).map_err(in_words)?;
    let header: Metadata = serde_json::from_slice(bytes.get(8..).unwrap_or_default())
        .map_err(|error| damaged(format!("its header is invalid: {error}")))?;
    let expected = (8 + header_bytes).saturating_add(header.data_len() as u64);
    if found != expected {
        return Err(damaged(format!("it has {found} bytes, but {expected} by its header")));
    }
    file.take(found).read_to_end(&mut bytes).map_err(in_words)?;
    Ok(bytes)
}
