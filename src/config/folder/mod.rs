//! `[model] from = "FOLDER"`: the architecture and its sizes from the `config.json` of a Hugging
//! Face folder.

mod classes;
mod kinds;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};
use toml::{Table, Value};

use super::file::read_regular;
use super::shorten;
pub use classes::FolderClasses;
use kinds::{FIXED, FolderKind, KINDS};

/// The file that describes the model.
const CONFIG: &str = "config.json";
/// Largest size of it, in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// `n_embd` of a GPT-2 without it.
const GPT2_WIDTH: u64 = 768;

/// A `config.json` that is not one of a model that this program has.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct FolderError {
    path: PathBuf,
    reason: String,
}

/// The `config.json` of a Hugging Face folder, of a model that computes what one of this program
/// does.
pub struct FolderConfig {
    path: PathBuf,
    keys: Map<String, Json>,
    kind: &'static FolderKind,
}

impl FolderConfig {
    /// Reads the file in `folder`.
    ///
    /// # Errors
    /// A file that cannot be read or is no JSON object, a model that is none of this program's, and
    /// a key with a value that no such model can have.
    pub fn read(folder: &Path) -> Result<Self, FolderError> {
        let path = folder.join(CONFIG);
        match Self::of_file(&path) {
            Ok((keys, kind)) => Ok(Self { path, keys, kind }),
            Err(reason) => Err(FolderError { path, reason }),
        }
    }

    /// `true` if `folder` has such a file.
    pub fn is_in(folder: &Path) -> bool {
        folder.join(CONFIG).exists()
    }

    fn of_file(path: &Path) -> Result<(Map<String, Json>, &'static FolderKind), String> {
        let bytes = read_regular(path, MAX_BYTES).map_err(|error| error.to_string())?;
        let found: Json =
            serde_json::from_slice(&bytes).map_err(|error| format!("it is not JSON: {error}"))?;
        let Json::Object(keys) = found else { return Err("it is no JSON object".to_owned()) };
        let model_type = keys.get("model_type").and_then(Json::as_str).unwrap_or_default();
        let Some(kind) = KINDS.iter().find(|kind| kind.model_type == model_type) else {
            let known = KINDS.each_ref().map(|kind| kind.model_type).join(", ");
            return Err(format!("model_type {:?} is not one of {known}", shorten(model_type)));
        };
        for (key, allowed) in kind.fixed.iter().chain(&FIXED) {
            if let Some(found) = keys.get(*key).filter(|found| !is_one_of(found, allowed)) {
                let found = shorten(&found.to_string()).into_owned();
                let allowed: Vec<_> =
                    allowed.iter().filter(|value| **value != "null").copied().collect();
                let allowed = match &allowed[..] {
                    [] => "none".to_owned(),
                    some => some.join(" or "),
                };
                return Err(format!("{key} is {found}; {} here has {allowed}", kind.name));
            }
        }
        for (key, _) in kind.sizes {
            if let Some(found) = given(&keys, key)
                && found.as_u64().is_none_or(|size| size == 0)
            {
                let found = shorten(&found.to_string()).into_owned();
                return Err(format!("{key} is {found}, not a whole number from 1 on"));
            }
        }
        for (key, _) in kind.rates {
            if let Some(found) = given(&keys, key).filter(|found| found.as_f64().is_none()) {
                return Err(format!("{key} is {}, not a number", shorten(&found.to_string())));
            }
        }
        if let Some(inner) = given(&keys, "n_inner").filter(|_| kind.model_type == "gpt2") {
            let width = given(&keys, "n_embd").and_then(Json::as_u64).unwrap_or(GPT2_WIDTH);
            if inner.as_u64() != width.checked_mul(4) {
                return Err(format!("n_inner is {inner}; gpt here has 4 times n_embd = {width}"));
            }
        }
        Ok((keys, kind))
    }

    /// The value of a key, if there is one other than `null`.
    pub fn get(&self, key: &str) -> Option<&Json> {
        given(&self.keys, key)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The classes of the model, if it has some.
    ///
    /// # Errors
    /// Keys that contradict each other, and a model that gives numbers.
    pub fn classes(&self) -> Result<FolderClasses, FolderError> {
        FolderClasses::of(&self.keys).map_err(|reason| self.wrong(reason))
    }

    /// An error about the file.
    pub fn wrong(&self, reason: String) -> FolderError {
        FolderError { path: self.path.clone(), reason }
    }

    /// Adds `name` and the sizes to the keys of `[model]`; those that are there stay.
    ///
    /// # Errors
    /// Keys that exclude each other.
    pub(super) fn fill(&self, model: &mut Table) -> Result<(), FolderError> {
        if let Some(preset) = model.get("preset") {
            return Err(self.wrong(format!(
                "it has the sizes, so model.preset = {preset} has no effect; leave that out"
            )));
        }
        // transformers' default of each.
        let rate = |key| (key, self.get(key).and_then(Json::as_f64).unwrap_or(0.1));
        let [(first, rate), others @ ..] = ["resid_pdrop", "embd_pdrop", "attn_pdrop"].map(rate);
        if self.kind.model_type == "gpt2"
            && !model.contains_key("dropout")
            && let Some((other, differs)) = others.iter().find(|(_, other)| *other != rate)
        {
            return Err(self.wrong(format!(
                "{first} is {rate} and {other} is {differs}, but gpt here has one rate; set \
                 model.dropout"
            )));
        }
        model.insert("name".to_owned(), self.kind.name.into());
        if let Some(preset) = self.kind.preset {
            model.insert("preset".to_owned(), preset.into());
        }
        for (theirs, ours) in self.kind.sizes {
            if let Some(size) = self.get(theirs).and_then(Json::as_i64) {
                model.entry(*ours).or_insert(Value::Integer(size));
            }
        }
        for (theirs, ours) in self.kind.rates {
            let rate = match self.get(theirs) {
                // transformers uses the other rate then.
                None if *ours == "classifier_dropout" => self.get("hidden_dropout_prob"),
                rate => rate,
            };
            let gpt2 = (self.kind.model_type == "gpt2").then_some(0.1);
            if let Some(rate) = rate.and_then(Json::as_f64).or(gpt2) {
                model.entry(*ours).or_insert(Value::Float(rate));
            }
        }
        Ok(())
    }
}

/// The value of a key, if there is one other than `null`.
fn given<'a>(keys: &'a Map<String, Json>, key: &str) -> Option<&'a Json> {
    keys.get(key).filter(|value| !value.is_null())
}

fn is_one_of(found: &Json, allowed: &[&str]) -> bool {
    let same = |allowed: &&str| {
        let allowed: Json = serde_json::from_str(allowed).unwrap_or_default();
        allowed == *found || allowed.as_f64().is_some_and(|n| found.as_f64() == Some(n))
    };
    allowed.iter().any(same)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn filled(text: &str, keys: &str) -> Result<Table, String> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(CONFIG), text).unwrap();
        let mut model: Table = keys.parse().unwrap();
        let filled = FolderConfig::read(dir.path()).and_then(|folder| folder.fill(&mut model));
        filled.map(|()| model).map_err(|error| error.to_string())
    }

    #[test]
    fn sizes_are_read_and_keys_that_are_set_stay() {
        let text = r#"{"model_type": "bert", "hidden_size": 64, "num_attention_heads": 4, "classifier_dropout": null,
            "hidden_dropout_prob": 0, "layer_norm_eps": 1e-12, "hidden_act": "gelu"}"#;
        let expected =
            "name = \"bert\"\nwidth = 64\nnum_heads = 2\ndropout = 0.0\nclassifier_dropout = 0.0";
        assert_eq!(filled(text, "num_heads = 2").unwrap(), expected.parse().unwrap());
    }

    #[test]
    fn sizes_that_are_not_there_are_those_of_transformers() {
        let expected = "name = \"gpt\"\npreset = \"gpt2-124m\"\nnum_layers = 2\ndropout = 0.1";
        let text = r#"{"model_type": "gpt2", "n_layer": 2}"#;
        assert_eq!(filled(text, "").unwrap(), expected.parse().unwrap());
        let without_dropout = r#"{"model_type": "gpt2", "attn_pdrop": 0.0}"#;
        let error = filled(without_dropout, "").unwrap_err();
        assert!(error.contains("resid_pdrop is 0.1 and attn_pdrop is 0"), "{error}");
        let error = filled(text, "preset = \"gpt2-355m\"").unwrap_err();
        assert!(error.contains("model.preset = \"gpt2-355m\" has no effect"), "{error}");
    }

    #[test]
    fn models_that_compute_something_else_are_refused() {
        for (text, expected) in [
            ("", "it is not JSON"),
            ("[]", "it is no JSON object"),
            ("{}", "model_type \"\" is not one of bert, distilbert, gpt2"),
            (r#"{"model_type": "roberta"}"#, "model_type \"roberta\" is not one of"),
            (r#"{"model_type": "bert", "hidden_act": "relu"}"#, "hidden_act is \"relu\""),
            (
                r#"{"model_type": "bert", "layer_norm_eps": 1e-5}"#,
                "layer_norm_eps is 0.00001; bert here has 1e-12",
            ),
            (
                r#"{"model_type": "distilbert", "dim": "wide"}"#,
                "dim is \"wide\", not a whole number from 1 on",
            ),
            (r#"{"model_type": "distilbert", "n_layers": -1}"#, "n_layers is -1, not a whole"),
            (r#"{"model_type": "distilbert", "n_heads": 0}"#, "n_heads is 0, not a whole"),
            (
                r#"{"model_type": "bert", "hidden_size": 768.5}"#,
                "hidden_size is 768.5, not a whole",
            ),
            (
                r#"{"model_type": "bert", "hidden_dropout_prob": "x"}"#,
                "hidden_dropout_prob is \"x\"",
            ),
            (r#"{"model_type": "bert", "hidden_act": null}"#, "hidden_act is null; bert here has"),
            (
                r#"{"model_type": "bert", "type_vocab_size": 1}"#,
                "type_vocab_size is 1; bert here has 2",
            ),
            (
                r#"{"model_type": "bert", "position_embedding_type": "relative_key"}"#,
                "position_embedding_type is \"relative_key\"; bert here has \"absolute\"",
            ),
            (r#"{"model_type": "bert", "is_decoder": true}"#, "is_decoder is true"),
            (r#"{"model_type": "bert", "pruned_heads": {"0": [1]}}"#, "pruned_heads is"),
            (r#"{"model_type": "bert", "auto_map": {"AutoModel": "x.Y"}}"#, "auto_map is"),
            (r#"{"model_type": "bert", "quantization_config": {}}"#, "bert here has none"),
            (r#"{"model_type": "gpt2", "add_cross_attention": true}"#, "add_cross_attention is"),
            (r#"{"model_type": "gpt2", "tie_word_embeddings": false}"#, "tie_word_embeddings is"),
            (r#"{"model_type": "gpt2", "scale_attn_weights": false}"#, "scale_attn_weights is"),
            (
                r#"{"model_type": "gpt2", "n_inner": 96}"#,
                "n_inner is 96; gpt here has 4 times n_embd = 768",
            ),
            (
                r#"{"model_type": "gpt2", "n_inner": 96, "n_embd": 32}"#,
                "n_inner is 96; gpt here has 4 times n_embd = 32",
            ),
            (
                r#"{"model_type": "gpt2", "resid_pdrop": 0.1, "attn_pdrop": 0.0}"#,
                "resid_pdrop is 0.1 and attn_pdrop is 0, but gpt here has one rate; set \
                 model.dropout",
            ),
            (r#"{"model_type": "gpt2", "activation_function": "relu"}"#, "activation_function is"),
        ] {
            let error = filled(text, "").unwrap_err();
            assert!(error.contains(CONFIG) && error.contains(expected), "{error}");
        }
        for (text, keys) in [
            (r#"{"model_type": "gpt2", "resid_pdrop": 0.1, "attn_pdrop": 0.0}"#, "dropout = 0.0"),
            (r#"{"model_type": "gpt2", "n_inner": 128, "n_embd": 32}"#, ""),
            (
                r#"{"model_type": "gpt2", "n_inner": null, "activation_function": "gelu_accurate"}"#,
                "",
            ),
            (
                r#"{"model_type": "bert", "pruned_heads": {}, "auto_map": null, "is_decoder": false}"#,
                "",
            ),
        ] {
            filled(text, keys).unwrap();
        }
        let missing = FolderConfig::read(Path::new("/nowhere")).err().unwrap().to_string();
        assert!(missing.contains("/nowhere/config.json: No such file"), "{missing}");
    }
}
