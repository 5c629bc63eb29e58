//! Parameters in the form that other libraries load.

use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use hlo::{DType, Fused, Literal, Tree};
use models::{Counterpart, ForeignFormat, ModelConfig, TransformersConfig};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::fit::arranged;
use super::saved::{HF_FILE, HF_INDEX};
use super::{Error, SavedModel, serialize};
use crate::config::{FolderConfig, read_regular};
use crate::data::TokenizerClass;
use crate::observe::{replace_file, unfinished_prefix};

/// The configuration in a Hugging Face folder.
const HF_CONFIG: &str = "config.json";
const HF_GENERATION: &str = "generation_config.json";
/// The files of a tokenizer, in any of the forms that transformers has.
const TOKENIZER_FILES: [&str; 7] = [
    "tokenizer.json",
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
];
/// The one with settings.
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// Largest size of one of them, in bytes.
const MAX_TOKENIZER: u64 = 1 << 28;
/// The parameter with a number for each class.
const CLASSIFIER: &str = "classifier.bias";

/// Writes parameters, given under the model's own names, as the library of its counterpart has
/// them: for transformers a folder with `model.safetensors`, or several files and
/// `model.safetensors.index.json`, `config.json` and, if the token that ends a text is known,
/// `generation_config.json`; for torchvision a safetensors file. It appears under its name when it
/// is complete and on the disk.
///
/// # Errors
/// If a parameter has no name there, a value is not finite, or something cannot be written. A
/// folder that is there and not empty is not replaced.
pub fn save_for_library(
    path: &Path,
    params: &Tree<Literal>,
    counterpart: &Counterpart,
    options: &FolderOptions,
) -> Result<(), Error> {
    let failed = |reason: String| Error::Params { verb: "write", path: path.to_owned(), reason };
    let tensors = renamed(params, counterpart.format).map_err(failed)?;
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let Some(config) = &counterpart.config else {
        let bytes = serialize(&tensors, Some(metadata)).map_err(failed)?;
        return replace_file(path, &bytes).map_err(|error| failed(error.to_string()));
    };
    let dtype = tensors.values().next().map_or(DType::F32, Literal::dtype);
    let num_classes = params.get(CLASSIFIER).map_or(0, |bias| bias.dims()[0]);
    let label = |class| options.labels.get(class).cloned();
    let label = |class| label(class).unwrap_or_else(|| format!("LABEL_{class}"));
    let labels: Vec<_> = (0..num_classes).map(label).collect();
    let mut files = transformers_files(config, &labels, dtype);
    let has_segments =
        matches!(config, TransformersConfig::Encoder(fields) if fields.has_segments());
    files.extend(options.tokenizer_files(has_segments).map_err(failed)?);
    let parts = in_parts(tensors, options.max_file_bytes);
    files.extend(index_of(&parts));
    let folder = NewFolder::new(path).map_err(|error| failed(error.to_string()))?;
    for (name, tensors) in &parts {
        let bytes = serialize(tensors, Some(metadata.clone())).map_err(failed)?;
        folder.write(name, &bytes).map_err(|error| failed(error.to_string()))?;
    }
    let written = files.iter().try_for_each(|(name, bytes)| folder.write(name, bytes));
    written.and_then(|()| folder.finish(path)).map_err(|error| failed(error.to_string()))
}

/// The parameters under the names of a format.
fn renamed(params: &Tree<Literal>, format: &ForeignFormat) -> Result<Tree<Literal>, String> {
    let mut tensors = Tree::new();
    for (path, value) in params.iter() {
        let missing = || format!("{} has no tensor for the model's `{path}`", format.name);
        let tensor = format.full_name(path).ok_or_else(missing)?;
        let value = match &tensor.fused {
            None => Some(value.clone()),
            // The first part stands for all.
            Some(Fused { path, part: 0 }) => {
                let parts = Fused::parts(path).into_iter().flatten();
                let parts = parts.map(|part| params.get(&part)).collect::<Option<Vec<_>>>();
                Some(joined(&parts.ok_or_else(missing)?))
            }
            Some(_) => None,
        };
        tensors.extend(value.map(|value| (tensor.name, arranged(&value, tensor.layout))));
    }
    Ok(tensors)
}

/// The rows of all values, which have the same other dims.
fn joined(values: &[&Literal]) -> Literal {
    let mut dims = values[0].dims().to_vec();
    dims[0] = values.iter().map(|value| value.dims()[0]).sum();
    let mut whole = Literal::zeros(values[0].dtype(), &dims);
    let bytes = values.iter().flat_map(|value| value.bytes()).copied();
    whole.bytes_mut().iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    whole
}

/// The parameters of each file, in order, with its name: one file, or several named as transformers
/// does. None has more than `max_bytes` of values, unless it has one tensor only.
fn in_parts(tensors: Tree<Literal>, max_bytes: Option<usize>) -> Vec<(String, Tree<Literal>)> {
    let mut parts = vec![Tree::new()];
    let mut num_bytes = 0usize;
    for (name, value) in tensors {
        let more = num_bytes.saturating_add(value.num_bytes());
        let is_too_large = max_bytes.is_some_and(|max| num_bytes > 0 && more > max);
        if is_too_large {
            parts.push(Tree::new());
        }
        num_bytes = if is_too_large { value.num_bytes() } else { more };
        if let Some(part) = parts.last_mut() {
            part.insert(name, value);
        }
    }
    let num_parts = parts.len();
    let name = |index: usize| match num_parts {
        1 => HF_FILE.to_owned(),
        _ => format!("model-{:05}-of-{num_parts:05}.safetensors", index + 1),
    };
    parts.into_iter().enumerate().map(|(index, part)| (name(index), part)).collect()
}

/// The file that says which of several files has a tensor.
fn index_of(parts: &[(String, Tree<Literal>)]) -> Option<(&'static str, Vec<u8>)> {
    if parts.len() == 1 {
        return None;
    }
    let of_part = |(file, part): &(String, Tree<Literal>)| -> Vec<_> {
        part.paths().map(|name| (name.to_owned(), json!(file))).collect()
    };
    let map: Map<_, _> = parts.iter().flat_map(of_part).collect();
    let num_bytes =
        |(_, part): &(_, Tree<Literal>)| -> usize { part.values().map(Literal::num_bytes).sum() };
    let total: usize = parts.iter().map(num_bytes).sum();
    let index = json!({"metadata": {"total_size": total}, "weight_map": map});
    Some((HF_INDEX, format!("{index:#}\n").into_bytes()))
}

/// The files of a folder for transformers besides the model, and how the model is divided into
/// files.
#[derive(Clone, Debug, Default)]
pub struct FolderOptions {
    /// The names of the classes; `LABEL_0` and so on without them.
    pub labels: Vec<String>,
    /// The tokenizer's folder, or its file in one.
    pub tokenizer: Option<PathBuf>,
    /// Most bytes of values in a file with several tensors; one file without it.
    pub max_file_bytes: Option<usize>,
}

impl FolderOptions {
    /// The files of the tokenizer. Settings that `tokenizer_config.json` lacks are added to it,
    /// because another `config.json` beside it would stand for another tokenizer. `has_segments` if
    /// the model does.
    fn tokenizer_files(&self, has_segments: bool) -> Result<Vec<(&'static str, Vec<u8>)>, String> {
        let Some(path) = &self.tokenizer else { return Ok(vec![]) };
        let folder = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
        let files = TOKENIZER_FILES.into_iter().map(|name| (name, folder.join(name)));
        let files = files.filter(|(_, file)| file.is_file()).map(|(name, file)| {
            let bytes = read_regular(&file, MAX_TOKENIZER);
            bytes.map(|bytes| (name, bytes)).map_err(|error| format!("{}: {error}", file.display()))
        });
        let mut files = files.collect::<Result<Vec<_>, _>>()?;
        let class =
            TokenizerClass::of(path, "data.tokenizer").map_err(|error| error.to_string())?;
        let place = files.iter().position(|(name, _)| *name == TOKENIZER_CONFIG);
        let text = place.map_or(&b"{}"[..], |place| &files[place].1);
        let mut settings: Value =
            serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if let Some(name) = class.name {
            settings["tokenizer_class"] = name.into();
        }
        if let Some(are_made) = class.has_segments {
            let segments = (are_made && has_segments).then_some("token_type_ids");
            let names = [Some("input_ids"), segments, Some("attention_mask")];
            settings["model_input_names"] = names.into_iter().flatten().collect();
        }
        if class != (TokenizerClass { name: None, has_segments: None }) {
            if let Some(place) = place {
                files.remove(place);
            }
            files.push((TOKENIZER_CONFIG, format!("{settings:#}\n").into_bytes()));
        }
        Ok(files)
    }
}

/// Checks that a Hugging Face folder is of a model that computes the same as `model`. Anything else
/// that parameters are loaded from passes.
///
/// # Errors
/// A key of its `config.json` that differs, or that no model of this program can have; and a file
/// that cannot be read.
pub fn check_counterpart(path: &Path, model: &ModelConfig) -> Result<(), Error> {
    let counterpart = model.counterpart().and_then(|counterpart| counterpart.config);
    let Some(ours) = counterpart.filter(|_| FolderConfig::is_in(path)) else { return Ok(()) };
    if !matches!(SavedModel::find(path)?, SavedModel::Files { .. }) {
        return Ok(());
    }
    let theirs = FolderConfig::read(path)?;
    let fields = json!(ours);
    let differs = |key: &str| {
        // Keys that are not written there have the default, which ours have too.
        let (found, expected) = (theirs.get(key)?, &fields[key]);
        let is_synonym = found.as_str().is_some_and(|name| ours.synonyms(key).contains(&name));
        let is_number = expected.as_f64().is_some_and(|number| found.as_f64() == Some(number));
        let is_free = expected.is_null();
        let is_same = found == expected || is_synonym || is_number || is_free;
        (!is_same).then(|| format!("{key} is {found}, but the model's is {expected}"))
    };
    match ours.computed_with().iter().find_map(|key| differs(key)) {
        None => Ok(()),
        Some(reason) => Err(theirs.wrong(reason).into()),
    }
}

/// The names and contents of a folder that `from_pretrained` loads.
fn transformers_files(
    config: &TransformersConfig,
    labels: &[String],
    dtype: DType,
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
    let mut files = vec![(HF_CONFIG, text(fields))];
    if let Some(token) = config.eos_token_id() {
        let generation =
            json!({"_from_model_config": true, "bos_token_id": token, "eos_token_id": token});
        files.push((HF_GENERATION, text(generation)));
    }
    files
}

/// A folder that is written under another name beside its own, which it gets when everything is on
/// the disk.
struct NewFolder {
    dir: TempDir,
}

impl NewFolder {
    fn new(path: &Path) -> io::Result<Self> {
        // The mode of any new directory; the process's umask applies to it.
        let permissions = Permissions::from_mode(0o777);
        let prefix = unfinished_prefix(path);
        let mut builder = tempfile::Builder::new();
        let dir = builder.prefix(&prefix).permissions(permissions).tempdir_in(parent(path))?;
        Ok(Self { dir })
    }

    fn write(&self, name: &str, contents: &[u8]) -> io::Result<()> {
        let mut file = File::create_new(self.dir.path().join(name))?;
        file.write_all(contents)?;
        file.sync_all()
    }

    fn finish(self, path: &Path) -> io::Result<()> {
        File::open(self.dir.path())?.sync_all()?;
        fs::rename(self.dir.path(), path)?;
        // The directory has another name now.
        let _ = self.dir.keep();
        File::open(parent(path))?.sync_all()
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `tokenizer.json` of a word for each id, which is no `BertTokenizer`'s.
    const WORDS: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1}, "unk_token": "[UNK]"}}"#;

    /// Beside the `config.json` that is written, a file without a class would be another tokenizer.
    #[test]
    fn a_tokenizer_says_what_it_is_beside_another_configuration() {
        let settings =
            |name: &str, text: &str, config: Option<&str>, has_segments: bool| -> Value {
                let dir = tempfile::tempdir().unwrap();
                fs::write(dir.path().join(name), text).unwrap();
                if let Some(config) = config {
                    fs::write(dir.path().join(TOKENIZER_CONFIG), config).unwrap();
                }
                let tokenizer = Some(dir.path().to_owned());
                let options = FolderOptions { tokenizer, ..FolderOptions::default() };
                let files = options.tokenizer_files(has_segments).unwrap();
                let all =
                    files.iter().filter(|(name, _)| *name == TOKENIZER_CONFIG).collect::<Vec<_>>();
                assert_eq!((all.len(), files.len()), (1, 2));
                serde_json::from_slice(&all[0].1).unwrap()
            };
        let (whole, vocab) = ("tokenizer.json", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n");
        let fast = "PreTrainedTokenizerFast";
        let names = ["input_ids", "token_type_ids", "attention_mask"];
        let expected = json!({"tokenizer_class": fast, "model_input_names": names});
        assert_eq!(settings(whole, WORDS, None, true), expected);
        let expected = json!({"tokenizer_class": fast, "model_input_names": [names[0], names[2]]});
        assert_eq!(settings(whole, WORDS, None, false), expected);
        let given = json!({"tokenizer_class": fast, "model_input_names": names, "x_token": null});
        assert_eq!(settings(whole, WORDS, Some(&given.to_string()), true), given);
        let expected = json!({"do_lower_case": false, "tokenizer_class": "BertTokenizer"});
        let given = "{\"do_lower_case\": false}";
        assert_eq!(settings("vocab.txt", vocab, Some(given), true), expected);
    }
}
