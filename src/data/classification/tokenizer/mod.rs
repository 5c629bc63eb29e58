//! A tokenizer as transformers makes it from the files of a folder.

mod build;
mod class;
mod settings;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tokenizers::Tokenizer;

use crate::config::read_regular;
use crate::data::Error;
use crate::data::files::unreadable;
use settings::Settings;

/// Largest size of a file, in bytes.
const MAX_BYTES: u64 = 1 << 28;

/// A tokenizer, and what its files say besides.
pub(super) struct FolderTokenizer {
    pub tokenizer: Tokenizer,
    /// The file with the vocabulary.
    pub vocabulary: PathBuf,
    /// One more than the highest id of a token.
    pub vocab_size: usize,
    /// The id that fills the rest of an example.
    pub pad_id: u32,
    /// `false` if all segments are 0.
    pub has_segments: bool,
    /// `true` if texts that are too long lose their start.
    pub cuts_start: bool,
    /// Most tokens that the model takes, if a file says it.
    pub model_max_length: Option<usize>,
    /// What another folder must say.
    pub class: TokenizerClass,
    /// What to say about pairs of texts, if nothing says whether they have segments.
    pub about_pairs: Option<String>,
    /// What to say about the files.
    pub warnings: Vec<String>,
}

/// The file with the vocabulary, and the key of the configuration that leads to it.
struct Place<'a> {
    vocabulary: &'a Path,
    key: &'static str,
}

impl Place<'_> {
    /// A file beside the vocabulary that is wrong.
    fn wrong(&self, path: &Path, reason: String) -> Error {
        Error::TokenizerSetting { path: path.to_owned(), key: self.key, reason }
    }

    /// A vocabulary that is wrong.
    fn unusable(&self, reason: impl ToString) -> Error {
        let (path, reason) = (self.vocabulary.to_owned(), reason.to_string());
        Error::Tokenizer { path, key: self.key, reason }
    }
}

/// What `tokenizer_config.json` must say in another folder, beside another `config.json`, for the
/// same tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenizerClass {
    /// `tokenizer_class`, if it does not say it.
    pub name: Option<&'static str>,
    /// Whether a model gets segments, if versions of transformers disagree on that.
    pub has_segments: Option<bool>,
}

impl TokenizerClass {
    /// That of the tokenizer at `path`, as [`open`] takes it.
    ///
    /// # Errors
    /// As [`open`].
    pub fn of(path: &Path, key: &'static str) -> Result<Self, Error> {
        Ok(open(path, key)?.class)
    }
}

/// Opens a `tokenizer.json`, a `vocab.txt`, or a folder with either, and reads what stands beside
/// it. `key` names the path in messages.
///
/// # Errors
/// A file that is missing, damaged or of another kind; and files that contradict each other where
/// versions of transformers follow different ones.
pub(super) fn open(path: &Path, key: &'static str) -> Result<FolderTokenizer, Error> {
    let vocabulary = file_of(path, key)?;
    let place = Place { vocabulary: &vocabulary, key };
    let bytes = file(&vocabulary, key)?;
    if vocabulary.extension().is_some_and(|extension| extension == "txt") {
        let settings = Settings::read(&place, false, &[])?;
        return build::of_vocab(&place, &bytes, settings);
    }
    let json: Value = serde_json::from_slice(&bytes).map_err(|error| place.unusable(error))?;
    let tokenizer = Tokenizer::from_bytes(&bytes).map_err(|error| place.unusable(error))?;
    let in_file = json["added_tokens"].as_array().map_or(&[][..], Vec::as_slice);
    let settings = Settings::read(&place, true, in_file)?;
    build::of_json(&place, tokenizer, &json, settings)
}

/// The file itself, or the first of those in a folder.
fn file_of(path: &Path, key: &'static str) -> Result<PathBuf, Error> {
    let metadata = fs::metadata(path).map_err(|source| unreadable(path, key, source))?;
    if !metadata.is_dir() {
        return Ok(path.to_owned());
    }
    let files = ["tokenizer.json", "vocab.txt"].map(|name| path.join(name));
    files.into_iter().find(|file| file.is_file()).ok_or_else(|| Error::Tokenizer {
        path: path.to_owned(),
        key,
        reason: "the folder has neither tokenizer.json nor vocab.txt".to_owned(),
    })
}

fn file(path: &Path, key: &'static str) -> Result<Vec<u8>, Error> {
    read_regular(path, MAX_BYTES).map_err(|source| unreadable(path, key, source))
}
