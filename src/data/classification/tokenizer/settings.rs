//! What stands beside a vocabulary and changes tokens: `tokenizer_config.json`,
//! `special_tokens_map.json`, `added_tokens.json`, and the kind of model in `config.json`.
//!
//! Read as `AutoTokenizer` of transformers 5.24 reads them (`tokenization_utils_base.py`,
//! `models/auto/tokenization_auto.py`). `tests/reference/tokenizer_folders.py` makes the expected
//! tokens with it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::class::Class;
use super::{Place, file};
use crate::config::shorten;

const CONFIG: &str = "tokenizer_config.json";
const SPECIAL_TOKENS: &str = "special_tokens_map.json";
const ADDED_TOKENS: &str = "added_tokens.json";
const MODEL_CONFIG: &str = "config.json";

/// Special tokens that transformers has a name for, in its order.
pub(super) const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// A list of more of them; the first is the older name.
const MORE: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];
/// A key of `tokenizer_config.json` with tokens by id. With it, transformers reads no other file of
/// tokens.
const DECODER: &str = "added_tokens_decoder";
/// Keys that say what is special, or that are read below.
const READ: [&str; 13] = [
    "tokenizer_class",
    "do_lower_case",
    "strip_accents",
    "tokenize_chinese_chars",
    "split_special_tokens",
    "model_input_names",
    "model_max_length",
    "max_len",
    "truncation_side",
    "padding_side",
    "add_prefix_space",
    "do_basic_tokenize",
    "fast_tokenizer_files",
];
/// Keys that change no token of a text: of decoding, of chats, of padding, and records of how the
/// file came to be.
const WITHOUT_EFFECT: [&str; 28] = [
    "_commit_hash",
    "add_bos_token",
    "add_eos_token",
    "backend",
    "chat_template",
    "clean_up_tokenization_spaces",
    "cls_token_id",
    "errors",
    "files_loaded",
    "full_tokenizer_file",
    "is_local",
    "legacy",
    "local_files_only",
    "max_length",
    "name_or_path",
    "never_split",
    "pad_to_multiple_of",
    "pad_token_type_id",
    "processor_class",
    "response_template",
    "special_tokens_map_file",
    "stride",
    "tokenizer_file",
    "truncation_strategy",
    "use_fast",
    "vocab_file",
    "vocab_size",
    "wordpieces_prefix",
];
/// A `model_max_length` above this means that there is none: transformers writes 1e30.
const NO_LIMIT: f64 = 1e9;

/// The letters of words, as BERT's normalizer treats them. `None` if no file says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Letters {
    pub do_lower_case: Option<bool>,
    pub strip_accents: Option<bool>,
    pub tokenize_chinese_chars: Option<bool>,
}

/// What the files say.
#[derive(Debug)]
pub(super) struct Settings {
    pub class: Class,
    /// `true` if a file names the class.
    pub is_named: bool,
    /// `true` if `tokenizer_config.json` does.
    pub is_named_in_config: bool,
    pub letters: Letters,
    /// The name of `bos_token` and so on, and the token.
    pub special: Vec<(String, AddedToken)>,
    /// Special tokens without a name.
    pub more_special: Vec<AddedToken>,
    /// Tokens beyond the vocabulary by id, or with flags of their own; and the file that has them.
    pub added: BTreeMap<u32, (AddedToken, PathBuf)>,
    /// Whether a model gets segments; `None` if no file says it.
    pub has_segments: Option<bool>,
    /// Whether texts that are too long lose their start; `None` if no file says it.
    pub cuts_start: Option<bool>,
    pub splits_special: bool,
    pub add_prefix_space: Option<bool>,
    /// Most tokens that the model takes.
    pub model_max_length: Option<usize>,
    /// `model_type` of `config.json`.
    pub model_type: Option<String>,
    pub warnings: Vec<String>,
}

impl Settings {
    /// Reads the files beside `vocabulary`, which is a `tokenizer.json` if it `is_whole` and
    /// otherwise a `vocab.txt`. `in_file` are the `added_tokens` of a `tokenizer.json`.
    ///
    /// # Errors
    /// A file that cannot be read or is no JSON object, and a key that changes tokens in a way that
    /// is not known here.
    pub fn read(
        place: &Place<'_>,
        is_whole: bool,
        in_file: &[Value],
    ) -> Result<Self, super::Error> {
        let path = |name: &str| place.vocabulary.with_file_name(name);
        let config_path = path(CONFIG);
        let mut config = object(place, &config_path)?.unwrap_or_default();
        let model_config = object(place, &path(MODEL_CONFIG))?.unwrap_or_default();
        let failed = |reason: String| place.wrong(&config_path, reason);
        let flag = |key: &str| flag(&config, key).map_err(failed);
        let model_type = text_of(&model_config, "model_type");
        let named = [&config, &model_config].map(|keys| text_of(keys, "tokenizer_class"));
        let is_named_in_config = named[0].is_some();
        let named = named.into_iter().flatten().next();
        let mut warnings = vec![];
        let class = Class::of(named.as_deref(), model_type.as_deref(), is_whole, &mut warnings);
        let class = class.map_err(failed)?;
        let letters = Letters {
            do_lower_case: flag("do_lower_case")?,
            strip_accents: flag("strip_accents")?,
            tokenize_chinese_chars: flag("tokenize_chinese_chars")?,
        };
        if flag("do_basic_tokenize")? == Some(false) {
            return Err(failed(
                "do_basic_tokenize is false: versions of transformers disagree on what that means; \
                 save the folder again with a tokenizer.json, without this key"
                    .to_owned(),
            ));
        }
        if let Some(files) = config.get("fast_tokenizer_files").and_then(Value::as_array)
            && let Some(other) = files.iter().find(|file| *file != "tokenizer.json")
        {
            return Err(failed(format!(
                "fast_tokenizer_files has {other}, which replaces tokenizer.json in some versions \
                 of transformers; rename the file that is meant to tokenizer.json and remove the \
                 key"
            )));
        }
        let splits_special = flag("split_special_tokens")?.unwrap_or_default();
        let add_prefix_space = flag("add_prefix_space")?;
        let cuts_start = side(&config, "truncation_side").map_err(failed)?;
        if side(&config, "padding_side").map_err(failed)? == Some(true) {
            warnings.push(format!(
                "{}: padding_side is \"left\", but texts are padded on the right here",
                config_path.display()
            ));
        }
        let has_segments = input_names(&config, &config_path, &mut warnings).map_err(failed)?;
        let lengths = ["model_max_length", "max_len"].map(|key| config.get(key)?.as_f64());
        let model_max_length = lengths.into_iter().flatten().next();
        let model_max_length =
            model_max_length.filter(|length| (1.0..NO_LIMIT).contains(length)).map(|n| n as usize);
        note_unread(&config, &config_path, &mut warnings);

        let mut added = BTreeMap::new();
        if let Some(decoder) = config.get(DECODER).filter(|decoder| !decoder.is_null()) {
            let tokens = by_id(decoder).map_err(|reason| failed(format!("{DECODER}: {reason}")))?;
            added.extend(tokens.into_iter().map(|(id, token)| (id, (token, config_path.clone()))));
        } else {
            let (_, listed) = specials(&config).map_err(failed)?;
            for (key, value) in object(place, &path(SPECIAL_TOKENS))?.unwrap_or_default() {
                // What is in it is special, whatever it says.
                config.insert(key, as_special(value));
            }
            let added_path = path(ADDED_TOKENS);
            let (named, _) = specials(&config).map_err(failed)?;
            for (token, id) in object(place, &added_path)?.unwrap_or_default() {
                let id = id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
                    place.wrong(
                        &added_path,
                        format!("{:?} has the id {id}, not a whole number", shorten(&token)),
                    )
                })?;
                // What only the map lists is not special in this file.
                let named = named.iter().filter(|(name, _)| NAMES.contains(&&**name));
                let mut special = named.map(|(_, token)| token).chain(&listed);
                let is_special = special.any(|other| other.content == token);
                added.insert(id, (AddedToken::from(token, is_special), added_path.clone()));
            }
            let whole = place.vocabulary.to_owned();
            for value in in_file {
                let (Some(id), Ok(token)) = (value["id"].as_u64(), token(value)) else { continue };
                added.insert(id as u32, (token, whole.clone()));
            }
        }
        let (special, more_special) = specials(&config).map_err(failed)?;
        Ok(Self {
            class,
            is_named: named.is_some(),
            is_named_in_config,
            letters,
            special,
            more_special,
            added,
            has_segments,
            cuts_start,
            splits_special,
            add_prefix_space,
            model_max_length,
            model_type,
            warnings,
        })
    }
}

/// The object in a file; `None` if there is no such file.
fn object(place: &Place<'_>, path: &Path) -> Result<Option<Map<String, Value>>, super::Error> {
    if !path.exists() {
        return Ok(None);
    }
    match serde_json::from_slice(&file(path, place.key)?) {
        Ok(Value::Object(object)) => Ok(Some(object)),
        Ok(_) => Err(place.wrong(path, "it is no JSON object".to_owned())),
        Err(error) => Err(place.wrong(path, format!("it is not JSON: {error}"))),
    }
}

fn quoted(value: &Value) -> String {
    shorten(&value.to_string()).into_owned()
}

fn text_of(keys: &Map<String, Value>, key: &str) -> Option<String> {
    keys.get(key)?.as_str().map(str::to_owned)
}

fn flag(keys: &Map<String, Value>, key: &str) -> Result<Option<bool>, String> {
    match keys.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(*value)),
        Some(other) => Err(format!("{key} is {}, not true or false", quoted(other))),
    }
}

/// `true` for the left side.
fn side(keys: &Map<String, Value>, key: &str) -> Result<Option<bool>, String> {
    match keys.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(side)) if side == "left" || side == "right" => Ok(Some(side == "left")),
        Some(other) => Err(format!("{key} is {}, not \"left\" or \"right\"", quoted(other))),
    }
}

/// Whether `model_input_names` has segments.
fn input_names(
    config: &Map<String, Value>,
    path: &Path,
    warnings: &mut Vec<String>,
) -> Result<Option<bool>, String> {
    let names = match config.get("model_input_names") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(names)) => names,
        Some(other) => return Err(format!("model_input_names is {}, not a list", quoted(other))),
    };
    if !names.iter().any(|name| name == "attention_mask") {
        warnings.push(format!(
            "{}: model_input_names has no \"attention_mask\", but padding is hidden here",
            path.display()
        ));
    }
    Ok(Some(names.iter().any(|name| name == "token_type_ids")))
}

/// Says which keys nothing here reads.
fn note_unread(config: &Map<String, Value>, path: &Path, warnings: &mut Vec<String>) {
    let is_known = |key: &str| {
        READ.contains(&key)
            || WITHOUT_EFFECT.contains(&key)
            || MORE.contains(&key)
            || key == DECODER
    };
    let is_token = |key: &str, value: &Value| key.ends_with("_token") && !value.is_boolean();
    let unread: Vec<_> = config
        .iter()
        .filter(|(key, value)| !is_known(key) && !is_token(key, value) && !value.is_null())
        .map(|(key, _)| key.as_str())
        .collect();
    if !unread.is_empty() {
        warnings.push(format!(
            "{}: {} not read; check that tokens do not depend on it",
            path.display(),
            match &unread[..] {
                [key] => format!("{} is", shorten(key)),
                keys => format!("{} are", shorten(&keys.join(", "))),
            }
        ));
    }
}

type Specials = (Vec<(String, AddedToken)>, Vec<AddedToken>);

/// Special tokens with a name, those of transformers first, and others.
fn specials(config: &Map<String, Value>) -> Result<Specials, String> {
    let mut named = vec![];
    let others = config.keys().map(String::as_str).filter(|key| !NAMES.contains(key));
    let others = others.filter(|key| key.ends_with("_token"));
    for key in NAMES.into_iter().chain(others) {
        match config.get(key) {
            None | Some(Value::Null | Value::Bool(_)) => {}
            Some(value) => {
                let token = token(value).map_err(|reason| format!("{key}: {reason}"))?;
                named.push((key.to_owned(), token.special(true)));
            }
        }
    }
    let mut more = vec![];
    for key in MORE {
        match config.get(key) {
            None | Some(Value::Null) => {}
            Some(Value::Array(tokens)) => {
                for value in tokens {
                    more.push(token(value).map_err(|reason| format!("{key}: {reason}"))?);
                }
            }
            Some(Value::Object(tokens)) => {
                for (name, value) in tokens {
                    let token = token(value).map_err(|reason| format!("{key}.{name}: {reason}"))?;
                    named.push((name.clone(), token.special(true)));
                }
            }
            Some(other) => return Err(format!("{key} is {}, not a list of tokens", quoted(other))),
        }
    }
    Ok((named, more))
}

/// A token: its text, or an object with flags. A text stands for a special token.
fn token(value: &Value) -> Result<AddedToken, String> {
    if let Some(text) = value.as_str() {
        return Ok(AddedToken::from(text, true));
    }
    let content = value["content"].as_str();
    let content = content.ok_or_else(|| format!("{} is no token", quoted(value)))?;
    let flag = |key: &str| value[key].as_bool();
    let is_special = flag("special").unwrap_or_default();
    Ok(AddedToken::from(content, is_special)
        .normalized(flag("normalized").unwrap_or(!is_special))
        .single_word(flag("single_word").unwrap_or_default())
        .lstrip(flag("lstrip").unwrap_or_default())
        .rstrip(flag("rstrip").unwrap_or_default()))
}

/// Marks the tokens in a value of `special_tokens_map.json` as special.
fn as_special(mut value: Value) -> Value {
    match &mut value {
        Value::Object(token) if token.contains_key("content") => {
            token.insert("special".to_owned(), true.into());
        }
        Value::Array(tokens) => {
            *tokens = std::mem::take(tokens).into_iter().map(as_special).collect();
        }
        _ => {}
    }
    value
}

fn by_id(decoder: &Value) -> Result<Vec<(u32, AddedToken)>, String> {
    let decoder = decoder.as_object().ok_or_else(|| format!("{} is no object", quoted(decoder)))?;
    let of_entry = |(id, value): (&String, &Value)| {
        let number =
            id.parse().map_err(|_| format!("{:?} is not the id of a token", shorten(id)))?;
        match value {
            Value::Object(_) => Ok((number, token(value)?)),
            _ => Err(format!("{id} is {}, not an object", quoted(value))),
        }
    };
    decoder.iter().map(of_entry).collect()
}
