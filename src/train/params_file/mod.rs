//! Parameters on disk, with the model state that evaluation needs: safetensors files under the
//! model's own paths. Reading also accepts checkpoints, runs, and the names that other programs
//! use; writing can use those names too.
//!
//! `saved.rs` finds the model in a run, a checkpoint or a folder, `read.rs` reads tensors, `fit.rs`
//! fits them to the leaves, `huggingface.rs` writes what other libraries load. `classes.rs` says
//! what the classes of a saved model mean; `config::folder` reads the `config.json` of a folder.

mod classes;
mod fit;
mod huggingface;
mod other_weights;
mod read;
mod saved;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use hlo::{LeafSpec, Literal, Tree};
use safetensors::tensor::{Dtype, View};

use super::Error;
use crate::checkpoint::safetensors_dtype;
use crate::observe::{replace_file, say};
pub use classes::{SavedClasses, saved_classes};
pub use fit::Unmatched;
use fit::check_finite;
pub use huggingface::{FolderOptions, check_counterpart, save_for_library};
pub use saved::{OpenModel, SavedModel};

/// Name of the file in the output directory.
pub const FILE: &str = "params.safetensors";

/// Writes parameters atomically: an existing file is replaced only when the new one is complete.
///
/// # Errors
/// If a value is not finite, or the file cannot be written.
pub fn save(path: &Path, params: &Tree<Literal>) -> Result<(), Error> {
    let failed = |reason: String| Error::Params { verb: "write", path: path.to_owned(), reason };
    let bytes = serialize(params, None).map_err(failed)?;
    replace_file(path, &bytes).map_err(|error| failed(error.to_string()))
}

/// Opens parameters of the given types in what `path` leads to, see [`SavedModel::find`]: a file, a
/// checkpoint, a run, or a Hugging Face folder. If it is a directory, or holds another head too, a
/// message says what is taken.
///
/// Names are the model's own paths or those of a [foreign format](models::ForeignFormat), which is
/// recognized by them. Floats of any width are converted to the model's dtype, rounded once, to
/// nearest, ties to even. A value too large for that dtype is an error; one too small for it
/// becomes 0, as with any other rounding. Other dtypes must match the model's.
///
/// # Errors
/// If something cannot be read or is damaged, or if a parameter is missing, has other dims or
/// another dtype, or belongs neither to the model nor to another head on top of it. That a value is
/// not finite or too large is found when it is read.
pub fn open(path: &Path, specs: &Tree<LeafSpec>) -> Result<OpenModel, Error> {
    let saved = SavedModel::find(path)?;
    let (model, unmatched) = saved.open(specs)?;
    if path.is_dir() || !unmatched.unused.is_empty() {
        say(&describe(&saved, &unmatched));
    }
    Ok(model)
}

/// Like [`open`], but of a model that was found before, and always with a message that says what is
/// taken.
///
/// # Errors
/// As [`open`].
pub fn open_saved(saved: &SavedModel, specs: &Tree<LeafSpec>) -> Result<OpenModel, Error> {
    let (model, unmatched) = saved.open(specs)?;
    say(&describe(saved, &unmatched));
    Ok(model)
}

/// The parameters in the folder that the model's configuration names: training starts from them. A
/// message lists the parameters that the folder lacks, which are drawn, and those that are not
/// used.
///
/// # Errors
/// As [`open`], for everything but the head.
pub fn open_below_head(path: &Path, specs: &Tree<LeafSpec>) -> Result<OpenModel, Error> {
    let saved = SavedModel::find(path)?;
    let (model, unmatched) = saved.open_below_head(specs)?;
    say(&describe(&saved, &unmatched));
    Ok(model)
}

/// Where parameters are from, and what a model and a file do not have in common.
fn describe(saved: &SavedModel, Unmatched { missing, unused }: &Unmatched) -> String {
    let mut text = format!("taking the parameters from {saved}");
    if !missing.is_empty() {
        text += &format!("; drawn, because it lacks them: {}", missing.join(", "));
    }
    if !unused.is_empty() {
        text += &format!("; not used, because the model lacks them: {}", unused.join(", "));
    }
    text
}

/// The bytes of a safetensors file.
///
/// # Errors
/// A value that is not finite.
fn serialize(
    tensors: &Tree<Literal>,
    metadata: Option<HashMap<String, String>>,
) -> Result<Vec<u8>, String> {
    tensors.iter().try_for_each(|(name, literal)| check_finite(name, literal))?;
    let views = tensors.iter().map(|(name, literal)| (name, Leaf(literal)));
    safetensors::serialize(views, metadata).map_err(|error| error.to_string())
}

struct Leaf<'a>(&'a Literal);

impl View for Leaf<'_> {
    fn dtype(&self) -> Dtype {
        safetensors_dtype(self.0.dtype())
    }

    fn shape(&self) -> &[usize] {
        self.0.dims()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.0.bytes())
    }

    fn data_len(&self) -> usize {
        self.0.num_bytes()
    }
}
