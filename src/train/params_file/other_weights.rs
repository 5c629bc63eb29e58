//! Folders with weights in formats that are not read, and how to convert them.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::config::read_regular;

/// Files of weights that transformers writes, besides safetensors.
const FILES: [(&str, &str); 6] = [
    ("pytorch_model.bin", ""),
    ("pytorch_model.bin.index.json", ""),
    ("tf_model.h5", "from_tf=True"),
    ("model.ckpt.index", "from_tf=True"),
    ("flax_model.msgpack", "from_flax=True"),
    ("flax_model.msgpack.index.json", "from_flax=True"),
];
/// Another format that a file may have, by its extension.
const EXTENSIONS: [&str; 5] = ["bin", "pt", "pth", "ckpt", "gguf"];
/// A file that says that others change the weights when transformers loads them.
pub(super) const ADAPTER: &str = "adapter_config.json";
/// Largest size of a configuration, in bytes.
const MAX_CONFIG: u64 = 1 << 20;

/// The weights that a folder has in place of safetensors, and how to convert them.
pub(super) fn other_weights(folder: &Path) -> Option<String> {
    let known = FILES.into_iter().find(|(name, _)| folder.join(name).exists());
    if let Some((name, option)) = known {
        let class = class_of(folder);
        let path = folder.display();
        let option = if option.is_empty() { String::new() } else { format!(", {option}") };
        return Some(format!(
            "it has {name}, but only safetensors are read; convert it: python -c \"from \
             transformers import {class} as M; \
             M.from_pretrained('{path}'{option}).save_pretrained('{path}-safetensors')\", and copy \
             the tokenizer's files"
        ));
    }
    let is_other = |name: &String| {
        let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| EXTENSIONS.contains(&extension))
    };
    let entries =
        fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<_> = entries.filter(is_other).collect();
    names.sort();
    let name = names.first()?;
    Some(format!(
        "it has {name}, but only safetensors are read; save the model as model.safetensors"
    ))
}

/// Advice about an adapter.
pub(super) fn adapter() -> String {
    format!(
        "it has {ADAPTER}, an adapter that changes the weights when transformers loads them; merge \
         it (merge_and_unload() of the library peft) and save the model, or remove the file"
    )
}

/// The class of transformers that the folder names, or the one without a head.
fn class_of(folder: &Path) -> String {
    let text = read_regular(&folder.join("config.json"), MAX_CONFIG).unwrap_or_default();
    let config: Value = serde_json::from_slice(&text).unwrap_or_default();
    let named = config["architectures"][0].as_str();
    let is_name = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric()) && name.len() < 100;
    named.filter(is_name).unwrap_or("AutoModel").to_owned()
}
