//! Parameters in the form that other libraries load.

use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use hlo::{DType, Literal, Tree};
use models::{Counterpart, Layout, ModelConfig, TransformersConfig};
use serde_json::{Value, json};

use super::fit::copy;
use super::saved::HF_FILE;
use super::{Error, SavedModel, serialize};
use crate::config::read_regular;
use crate::observe::{replace_file, unfinished_prefix};

/// The configuration in a folder of Hugging Face's.
const HF_CONFIG: &str = "config.json";
const HF_GENERATION: &str = "generation_config.json";
/// Largest size of the configuration, in bytes.
const MAX_CONFIG: u64 = 1 << 20;
/// The files of a tokenizer, in any of the forms that transformers has.
const TOKENIZER_FILES: [&str; 7] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
];
/// Largest size of one of them, in bytes.
const MAX_TOKENIZER: u64 = 1 << 28;
/// The parameter with a number for each class.
const CLASSIFIER: &str = "classifier.bias";

/// Writes parameters, given under the model's own names, as the library of its counterpart has them: for transformers a
/// folder with `model.safetensors`, `config.json` and, if the token that ends a text is known, `generation_config.json`;
/// for torchvision a safetensors file. It appears under its name when it is complete and on the disk.
///
/// # Errors
/// If a parameter has no name there, a value is not finite, or something cannot be written. A folder that is there and
/// not empty is not replaced.
pub fn save_for_library(
    path: &Path,
    params: &Tree<Literal>,
    counterpart: &Counterpart,
    beside: &Beside,
) -> Result<(), Error> {
    let failed = |reason: String| Error::Params { verb: "write", path: path.to_owned(), reason };
    let renamed = |(path, value): (&str, &Literal)| {
        let name = counterpart.format.full_name(path).ok_or_else(|| {
            format!("{} has no tensor for the model's `{path}`", counterpart.format.name)
        });
        name.map(|(name, layout)| (name, arranged(value, layout)))
    };
    let tensors: Tree<Literal> =
        params.iter().map(renamed).collect::<Result<_, String>>().map_err(failed)?;
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let bytes = serialize(&tensors, Some(metadata)).map_err(failed)?;
    let written = match &counterpart.config {
        None => replace_file(path, &bytes),
        Some(config) => {
            let dtype = tensors.values().next().map_or(DType::F32, Literal::dtype);
            let num_classes = params.get(CLASSIFIER).map_or(0, |bias| bias.dims()[0]);
            let label = |class| beside.labels.get(class).cloned();
            let label = |class| label(class).unwrap_or_else(|| format!("LABEL_{class}"));
            let labels: Vec<_> = (0..num_classes).map(label).collect();
            let mut files = transformers_files(config, &labels, dtype, bytes);
            files.extend(beside.tokenizer_files().map_err(failed)?);
            write_folder(path, &files)
        }
    };
    written.map_err(|error| failed(error.to_string()))
}

/// What a folder for transformers has besides the model.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    /// The names of the classes; `LABEL_0` and so on without them.
    pub labels: Vec<String>,
    /// The tokenizer's folder, or its file in one.
    pub tokenizer: Option<PathBuf>,
}

impl Beside {
    /// The files of the tokenizer.
    fn tokenizer_files(&self) -> Result<Vec<(&'static str, Vec<u8>)>, String> {
        let Some(path) = &self.tokenizer else { return Ok(vec![]) };
        let folder = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
        let files = TOKENIZER_FILES.into_iter().map(|name| (name, folder.join(name)));
        let files = files.filter(|(_, file)| file.is_file()).map(|(name, file)| {
            let bytes = read_regular(&file, MAX_TOKENIZER);
            bytes.map(|bytes| (name, bytes)).map_err(|error| format!("{}: {error}", file.display()))
        });
        files.collect()
    }
}

/// Checks that a folder of Hugging Face's is of a model that computes the same as `model`, as far as shapes do not say it.
/// Anything else that parameters are loaded from passes.
///
/// # Errors
/// A key of its `config.json` that differs, and a file that cannot be read.
pub fn check_counterpart(path: &Path, model: &ModelConfig) -> Result<(), Error> {
    let config = path.join(HF_CONFIG);
    let counterpart = model.counterpart().and_then(|counterpart| counterpart.config);
    let Some(ours) = counterpart.filter(|_| config.exists()) else { return Ok(()) };
    if !matches!(SavedModel::find(path)?, SavedModel::Files { .. }) {
        return Ok(());
    }
    let failed = Error::unreadable_params(&config);
    let text = read_regular(&config, MAX_CONFIG).map_err(|error| failed(error.to_string()))?;
    let not_json = |error: serde_json::Error| failed(format!("it is not JSON: {error}"));
    let theirs: Value = serde_json::from_slice(&text).map_err(not_json)?;
    let config = ours;
    let ours = json!(config);
    let is_same = |key: &str, found: &Value| {
        let is_synonym = found.as_str().is_some_and(|name| config.synonyms(key).contains(&name));
        *found == ours[key] || is_synonym
    };
    // What is not written there has the default, which ours has too.
    let differs = |key: &&str| theirs.get(key).is_some_and(|found| !is_same(key, found));
    match config.shapeless().iter().find(|key| differs(key)) {
        None => Ok(()),
        Some(key) => {
            Err(failed(format!("{key} is {}, but the model's is {}", theirs[*key], ours[*key])))
        }
    }
}

/// A value with its dims in the given order.
fn arranged(value: &Literal, layout: Layout) -> Literal {
    let mut dims = value.dims().to_vec();
    if layout == Layout::Transposed {
        dims.reverse();
    }
    let mut to = Literal::zeros(value.dtype(), &dims);
    copy(value.bytes(), value.dims(), layout, &mut to);
    to
}

/// The names and contents of a folder that `from_pretrained` loads.
fn transformers_files(
    config: &TransformersConfig,
    labels: &[String],
    dtype: DType,
    weights: Vec<u8>,
) -> Vec<(&'static str, Vec<u8>)> {
    let dtype = match dtype {
        DType::F64 => "float64",
        DType::Bf16 => "bfloat16",
        DType::F16 => "float16",
        _ => "float32",
    };
    let mut fields = json!(config);
    // Versions before 4.56 know it by the longer name only.
    fields["dtype"] = dtype.into();
    fields["torch_dtype"] = dtype.into();
    if !labels.is_empty() {
        let numbered = labels.iter().enumerate();
        let names = numbered.clone().map(|(class, label)| (class.to_string(), json!(label)));
        fields["id2label"] = Value::Object(names.collect());
        let classes = numbered.map(|(class, label)| (label.clone(), json!(class)));
        fields["label2id"] = Value::Object(classes.collect());
    }
    let text = |value: Value| format!("{value:#}\n").into_bytes();
    let mut files = vec![(HF_FILE, weights), (HF_CONFIG, text(fields))];
    if let Some(token) = config.eos_token_id() {
        let generation =
            json!({"_from_model_config": true, "bos_token_id": token, "eos_token_id": token});
        files.push((HF_GENERATION, text(generation)));
    }
    files
}

/// Writes a folder under another name beside it, and renames it when everything is on the disk.
fn write_folder(path: &Path, files: &[(&str, Vec<u8>)]) -> io::Result<()> {
    let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The mode of any new directory; the process's umask applies to it.
    let permissions = Permissions::from_mode(0o777);
    let unfinished = tempfile::Builder::new()
        .prefix(&unfinished_prefix(path))
        .permissions(permissions)
        .tempdir_in(parent)?;
    for (name, contents) in files {
        let mut file = File::create_new(unfinished.path().join(name))?;
        file.write_all(contents)?;
        file.sync_all()?;
    }
    File::open(unfinished.path())?.sync_all()?;
    fs::rename(unfinished.path(), path)?;
    // It has another name now.
    let _ = unfinished.keep();
    File::open(parent)?.sync_all()
}
