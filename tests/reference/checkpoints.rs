//! Checkpoints of other programs, loaded by their own names: the model's logits match those of the
//! program.
//!
//! `gpt2_hf.py` and `resnet50_torchvision.py` created them; with `--full` they compare the
//! published sizes.

use std::collections::BTreeMap;
use std::path::Path;

use hlo::{DType, Literal, TensorType, Tree};
use lockstep::step::{Forward, trace_forward};
use lockstep::train::params_file::{self, FolderOptions, SavedModel};
use models::resnet::{self, ResNet};
use models::{ModelConfig, Precision, Scope};
use serde_json::Value;

use super::{drawn, encoders, support};

const F32S: Precision = Precision::uniform(DType::F32);

#[test]
fn logits_of_gpt2_match_hugging_face() {
    let reference: Value = serde_json::from_str(include_str!("gpt2_hf.json")).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/gpt2_hf");
    let ModelConfig::Gpt(config) = encoders::config(&folder, &[]).model else {
        panic!("the folder is of a GPT-2");
    };
    let model = config.model();
    let dims = sizes(&reference["dims"]);
    let ty = TensorType::new(DType::I32, &dims);
    let forward = trace_forward(F32S, &ty, |scope: &Scope<'_>, x| model.logits(scope, x)).unwrap();
    let count = dims.iter().product();
    let tokens: Vec<_> = drawn::integers("tokens", model.vocabulary as u32).take(count).collect();
    let logits = run(&forward, &folder, Literal::from_f64(DType::I32, &dims, &tokens));
    drawn::assert_digest("logits", "logits", &logits, &reference["logits"], 1e-5);

    // An export from it equals the folder that transformers has written.
    let counterpart = ModelConfig::Gpt(config).counterpart().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let exported = dir.path().join("exported");
    let params = params_file::open(&folder, &forward.leaves).unwrap().read_all().unwrap();
    params_file::save_for_library(&exported, &params, &counterpart, &FolderOptions::default())
        .unwrap();
    assert_eq!(stored(&exported), stored(&folder));
}

#[test]
fn logits_of_resnet50_match_torchvision() {
    let reference: Value = serde_json::from_str(include_str!("resnet50_torchvision.json")).unwrap();
    let config = resnet::ResNetConfig {
        preset: resnet::ResNetPreset::ResNet50,
        ..resnet::ResNetConfig::default()
    };
    let model = ResNet { config, objective: 1000.into() };
    let dims = [&[2], &sizes(&reference["image"])[..]].concat();
    let ty = TensorType::new(DType::F32, &dims);
    let forward = trace_forward(F32S, &ty, |scope: &Scope<'_>, x| model.logits(scope, x)).unwrap();

    let tensors = reference["tensors"].as_object().unwrap();
    let state: Tree<_> = tensors
        .iter()
        .map(|(name, dims)| {
            let tensor = match name.ends_with("num_batches_tracked") {
                true => Literal::scalar(0i64),
                false => drawn::leaf(name, DType::F32, &sizes(dims)),
            };
            (name.clone(), tensor)
        })
        .collect();
    let num_counters = state.paths().filter(|name| name.ends_with("tracked")).count();
    assert_eq!(forward.leaves.len(), state.len() - num_counters);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("resnet50.safetensors");
    params_file::save(&path, &state).unwrap();

    let count = dims.iter().product();
    let images: Vec<_> = drawn::uniform("images").take(count).collect();
    let logits = run(&forward, &path, Literal::from_f64(DType::F32, &dims, &images));
    drawn::assert_digest("logits", "logits", &logits, &reference["logits"], 1e-4);

    let counterpart = ModelConfig::ResNet(model.config).counterpart().unwrap();
    let exported = dir.path().join("exported.safetensors");
    let leaves = params_file::open(&path, &forward.leaves).unwrap().read_all().unwrap();
    params_file::save_for_library(&exported, &leaves, &counterpart, &FolderOptions::default())
        .unwrap();
    let is_counter = |name: &String| name.ends_with("num_batches_tracked");
    let mut expected = stored(&path);
    expected.retain(|name, _| !is_counter(name));
    assert_eq!(stored(&exported), expected);
}

/// The tensors of a file or folder, under their own names.
fn stored(path: &Path) -> BTreeMap<String, Literal> {
    SavedModel::find(path).unwrap().values(true).unwrap().into_iter().collect()
}

fn run(forward: &Forward, checkpoint: &Path, x: Literal) -> Literal {
    let leaves = params_file::open(checkpoint, &forward.leaves).unwrap().read_all().unwrap();
    let values = leaves.into_iter().map(|(_, leaf)| leaf).chain([x]);
    let inputs: Vec<_> = values.map(|value| vec![value]).collect();
    let executable = support::compile(&forward.graph).unwrap();
    support::run(&executable, &inputs).unwrap().remove(0).remove(0)
}

fn sizes(dims: &Value) -> Vec<usize> {
    dims.as_array().unwrap().iter().map(|dim| dim.as_u64().unwrap() as usize).collect()
}
