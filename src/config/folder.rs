//! `[model] from = "FOLDER"`: the architecture and its sizes from the `config.json` of a folder of Hugging Face's.

use std::path::Path;

use serde_json::Value as Json;
use toml::{Table, Value};

use super::file::read_regular;

/// The file that describes the model.
const CONFIG: &str = "config.json";
/// Largest size of it, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// An architecture as transformers names it.
struct Kind {
    model_type: &'static str,
    /// `model.name`.
    name: &'static str,
    /// The preset with the sizes that hold where the file has none, if that is not the usual preset.
    preset: Option<&'static str>,
    /// Key of the file, key of `[model]`.
    keys: &'static [(&'static str, &'static str)],
    /// Keys that must have a value, if they are there: it decides what is computed.
    fixed: &'static [(&'static str, &'static [&'static str])],
}

const KINDS: [Kind; 3] = [
    Kind {
        model_type: "bert",
        name: "bert",
        preset: None,
        keys: &[
            ("vocab_size", "vocabulary"),
            ("hidden_size", "width"),
            ("num_hidden_layers", "num_layers"),
            ("num_attention_heads", "num_heads"),
            ("intermediate_size", "num_hidden"),
            ("max_position_embeddings", "context"),
            ("hidden_dropout_prob", "dropout"),
            ("attention_probs_dropout_prob", "attention_dropout"),
            ("classifier_dropout", "classifier_dropout"),
        ],
        fixed: &[
            ("hidden_act", &["\"gelu\""]),
            ("type_vocab_size", &["2"]),
            ("layer_norm_eps", &["1e-12"]),
            ("position_embedding_type", &["\"absolute\""]),
            ("is_decoder", &["false"]),
        ],
    },
    Kind {
        model_type: "distilbert",
        name: "distilbert",
        preset: None,
        keys: &[
            ("vocab_size", "vocabulary"),
            ("dim", "width"),
            ("n_layers", "num_layers"),
            ("n_heads", "num_heads"),
            ("hidden_dim", "num_hidden"),
            ("max_position_embeddings", "context"),
            ("dropout", "dropout"),
            ("attention_dropout", "attention_dropout"),
            ("seq_classif_dropout", "classifier_dropout"),
        ],
        fixed: &[("activation", &["\"gelu\""])],
    },
    Kind {
        model_type: "gpt2",
        name: "gpt",
        preset: Some("gpt2-124m"),
        keys: &[
            ("vocab_size", "vocabulary"),
            ("n_embd", "width"),
            ("n_layer", "num_layers"),
            ("n_head", "num_heads"),
            ("n_positions", "context"),
            ("resid_pdrop", "dropout"),
        ],
        fixed: &[
            ("activation_function", &["\"gelu_new\"", "\"gelu_pytorch_tanh\"", "\"gelu_fast\""]),
            ("layer_norm_epsilon", &["1e-5"]),
            ("scale_attn_weights", &["true"]),
            ("scale_attn_by_inverse_layer_idx", &["false"]),
        ],
    },
];

/// Adds `name` and the sizes to the keys of `[model]`; those that are there stay.
///
/// # Errors
/// A file that cannot be read, or a model that is none of ours.
pub(super) fn fill(model: &mut Table, folder: &Path) -> Result<(), String> {
    let path = folder.join(CONFIG);
    let failed = |reason: &dyn std::fmt::Display| format!("{}: {reason}", path.display());
    let bytes = read_regular(&path, MAX_BYTES).map_err(|error| failed(&error))?;
    let found: Json = serde_json::from_slice(&bytes)
        .map_err(|error| failed(&format!("it is not JSON: {error}")))?;
    let model_type = found["model_type"].as_str().unwrap_or_default();
    let Some(kind) = KINDS.iter().find(|kind| kind.model_type == model_type) else {
        let known = KINDS.map(|kind| kind.model_type).join(", ");
        return Err(failed(&format!("model_type {model_type:?} is not one of {known}")));
    };
    for (key, allowed) in kind.fixed {
        let is_allowed = |found: &Json| {
            let same = |allowed: &&str| {
                let allowed: Json = serde_json::from_str(allowed).unwrap_or_default();
                allowed == *found || allowed.as_f64().is_some_and(|n| found.as_f64() == Some(n))
            };
            allowed.iter().any(same)
        };
        if let Some(found) = found.get(key).filter(|found| !is_allowed(found)) {
            let allowed = allowed.join(" or ");
            return Err(failed(&format!("{key} is {found}; {} here has {allowed}", kind.name)));
        }
    }
    if let Some(preset) = model.get("preset") {
        return Err(failed(&format!(
            "it has the sizes, so model.preset = {preset} has no effect; leave that out"
        )));
    }
    model.insert("name".to_owned(), kind.name.into());
    if let Some(preset) = kind.preset {
        model.insert("preset".to_owned(), preset.into());
    }
    for (theirs, ours) in kind.keys {
        let value = match &found[*theirs] {
            // transformers uses the other rate then.
            Json::Null if *ours == "classifier_dropout" => &found["hidden_dropout_prob"],
            value => value,
        };
        let value = match value {
            Json::Null => continue,
            Json::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(whole), _) if !ours.ends_with("dropout") => Value::Integer(whole),
                (_, Some(number)) => Value::Float(number),
                _ => return Err(failed(&format!("{theirs} is {value}, not a number"))),
            },
            other => return Err(failed(&format!("{theirs} is {other}, not a number"))),
        };
        model.entry(*ours).or_insert(value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn filled(text: &str, keys: &str) -> Result<Table, String> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(CONFIG), text).unwrap();
        let mut model: Table = keys.parse().unwrap();
        fill(&mut model, dir.path()).map(|()| model)
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
        let expected = "name = \"gpt\"\npreset = \"gpt2-124m\"\nnum_layers = 2";
        let text = r#"{"model_type": "gpt2", "n_layer": 2}"#;
        assert_eq!(filled(text, "").unwrap(), expected.parse().unwrap());
        let error = filled(text, "preset = \"gpt2-355m\"").unwrap_err();
        assert!(error.contains("model.preset = \"gpt2-355m\" has no effect"), "{error}");
    }

    #[test]
    fn models_that_compute_something_else_are_refused() {
        for (text, expected) in [
            ("", "it is not JSON"),
            ("[]", "model_type \"\" is not one of bert, distilbert, gpt2"),
            (r#"{"model_type": "roberta"}"#, "model_type \"roberta\" is not one of"),
            (r#"{"model_type": "bert", "hidden_act": "relu"}"#, "hidden_act is \"relu\""),
            (
                r#"{"model_type": "bert", "layer_norm_eps": 1e-5}"#,
                "layer_norm_eps is 0.00001; bert here has 1e-12",
            ),
            (r#"{"model_type": "distilbert", "dim": "wide"}"#, "dim is \"wide\", not a number"),
            (r#"{"model_type": "gpt2", "activation_function": "relu"}"#, "activation_function is"),
        ] {
            let error = filled(text, "").unwrap_err();
            assert!(error.contains(CONFIG) && error.contains(expected), "{error}");
        }
        let missing = fill(&mut Table::new(), Path::new("/nowhere")).unwrap_err();
        assert!(missing.contains("/nowhere/config.json: No such file"), "{missing}");
    }
}
