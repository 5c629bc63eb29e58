//! BERT and DistilBERT from Hugging Face folders: logits and five steps of fine-tuning against
//! transformers (`encoder_hf.py`), and the way back.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hlo::{DType, Literal, TensorType, Tree};
use lockstep::config::{Config, ModelConfig};
use lockstep::data::{Error, Field, HostBatch, Source, Splits};
use lockstep::step::trace_forward;
use lockstep::train::params_file::{self, FolderOptions, SavedModel};
use lockstep::train::{Run, Trainer, open_devices};
use models::encoder::Encoder;
use models::{Batch, Precision};
use safetensors::SafeTensors;
use serde_json::Value;

use super::{drawn, support};

fn reference() -> Value {
    serde_json::from_str(include_str!("encoder_hf.json")).unwrap()
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/encoder_hf").join(name)
}

/// A configuration that names a folder.
pub fn config(from: &Path, sets: &[&str]) -> Config {
    let text = format!(
        "model = {{ from = {from:?} }}\n\
         data = {{ source = \"synthetic_tokens\", vocab_size = 96, context = 10 }}\n\
         train = {{ global_batch = 4, steps = 5 }}\noptimizer = {{ name = \"adamw\" }}\n\
         schedule = {{ name = \"constant\", peak = 1e-3 }}"
    );
    let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
    Config::parse(&text, Path::new("a.toml"), &sets).unwrap()
}

fn encoder(config: &ModelConfig, num_classes: usize) -> Encoder {
    match config {
        ModelConfig::Bert(bert) => bert.model(num_classes),
        ModelConfig::DistilBert(bert) => bert.model(num_classes),
        other => panic!("{}", other.name()),
    }
}

/// The fields of the examples that `encoder_hf.py` has: tokens, segments, mask, labels.
fn fields(reference: &Value) -> [(&'static str, Literal); 4] {
    let [batch, positions] = [0, 1].map(|dim| reference["dims"][dim].as_u64().unwrap() as usize);
    let dims = [batch, positions];
    let integers = |name: &str, below: u32, dims: &[usize]| {
        let values: Vec<_> =
            drawn::integers(name, below).take(dims.iter().product::<usize>()).collect();
        Literal::from_f64(DType::I32, dims, &values)
    };
    let lengths = reference["lengths"].as_array().unwrap();
    let row = |length: &Value| {
        let length = length.as_u64().unwrap() as usize;
        (0..positions).map(move |place| f64::from(u8::from(place < length)))
    };
    let mask: Vec<_> = lengths.iter().flat_map(row).collect();
    [
        ("x", integers("tokens", 96, &dims)),
        ("segments", integers("segments", 2, &dims)),
        ("mask", Literal::from_f64(DType::I32, &dims, &mask)),
        ("y", integers("labels", 3, &[batch])),
    ]
}

#[test]
fn logits_match_transformers() {
    let reference = reference();
    let [(_, ids), (_, segments), (_, mask), _] = fields(&reference);
    for name in ["bert", "distilbert"] {
        for head in ["classification", "masked_lm"] {
            let from = folder(&format!("{name}_{head}"));
            let config = config(&from, &[&format!("model.head={head}")]);
            assert_eq!((config.model.name(), config.model.folder()), (name, Some(&*from)));
            let model = encoder(&config.model, 3);
            let ty = TensorType::new(DType::I32, ids.dims());
            for (dtype, tolerance) in [(DType::F64, 1e-8), (DType::F32, 1e-5)] {
                let forward = trace_forward(Precision::uniform(dtype), &ty, |scope, x| {
                    let t = x.tracer();
                    let fields = [("x", x)].into_iter().chain([
                        ("segments", t.constant(segments.clone())),
                        ("mask", t.constant(mask.clone())),
                    ]);
                    let fields = fields.map(|(name, value)| (name.to_owned(), value)).collect();
                    let weight = t.full(dtype, &[ids.dims()[0]], 1.0);
                    model.logits(scope, &Batch { fields, weight })
                })
                .unwrap();
                let leaves = params_file::open(&from, &forward.leaves).unwrap().read_all().unwrap();
                let inputs = forward.arguments(&leaves).unwrap().into_iter().chain([ids.clone()]);
                let inputs: Vec<_> = inputs.map(|value| vec![value]).collect();
                let executable = support::compile(&forward.graph).unwrap();
                let logits = support::run(&executable, &inputs).unwrap().remove(0).remove(0);
                let digest = &reference["models"][name][head];
                drawn::assert_digest(
                    &format!("{name} {head}"),
                    "logits",
                    &logits,
                    digest,
                    tolerance,
                );
            }
        }
    }
}

/// Examples that are given, as both splits.
struct Given {
    fields: Vec<Field>,
}

impl Source for Given {
    fn num_examples(&self) -> u64 {
        4
    }

    fn num_outputs(&self) -> usize {
        3
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn read(&self, _: u64, _: Option<u64>, _: &mut [&mut [u8]]) -> Result<(), Error> {
        unreachable!("the batches are made by hand")
    }
}

/// Steps on the same batch from the folder of the configuration: losses, and parameters at the end.
fn fine_tune(
    config: &Config,
    fields: &[(&'static str, Literal)],
    rates: &[f64],
) -> (Vec<f64>, Tree<Literal>) {
    let of_field = |(name, values): &(&'static str, Literal)| Field {
        name,
        dtype: DType::I32,
        dims: values.dims()[1..].to_vec(),
    };
    let source: Arc<dyn Source> = Arc::new(Given { fields: fields.iter().map(of_field).collect() });
    let splits = Splits { train: source.clone(), eval: source, warnings: vec![] };
    let model = config.model.build(3);
    let (client, mesh) = open_devices(config, |_| ()).unwrap();
    let run = Run::new(config, &splits, mesh, client.platform()).unwrap();
    let mut trainer = Trainer::new(&client, &run, &*model, 0).unwrap();
    let start = params_file::open(config.model.folder().unwrap(), &trainer.model_specs());
    trainer.set_model(&start.unwrap()).unwrap();
    let num_shards = run.batch.num_batch_shards();
    let mut losses = vec![];
    for (step, rate) in rates.iter().enumerate() {
        let pieces = |(name, values): &(&str, Literal)| {
            let rows = values.dims()[0] / num_shards;
            let dims = [&[rows], &values.dims()[1..]].concat();
            let size = values.num_bytes() / num_shards;
            let piece = |bytes: &[u8]| {
                let mut piece = Literal::zeros(DType::I32, &dims);
                piece.bytes_mut().copy_from_slice(bytes);
                Arc::new(piece)
            };
            ((*name).to_owned(), values.bytes().chunks(size).map(piece).collect())
        };
        let batch = HostBatch {
            index: step as u64,
            num_steps: 1,
            size_class: 0,
            shards: (0..num_shards).collect(),
            fields: fields.iter().map(pieces).collect(),
        };
        let batch = trainer.batch_sender().send(batch).unwrap();
        let pending = trainer.step(batch, *rate).unwrap();
        losses.push(trainer.finish(pending).unwrap()[0].loss);
    }
    trainer.prove_lockstep().unwrap();
    (losses, trainer.model().unwrap())
}

/// Losses and parameters, in f32 and f64, replicated and sharded, with blocks as a loop and
/// without.
#[test]
fn five_steps_of_fine_tuning_match_pytorch() {
    let reference = reference();
    let fields = fields(&reference);
    let number = |key: &str| reference["optimizer"][key].as_f64().unwrap();
    let rates = reference["rates"].as_array().unwrap().iter();
    let rates: Vec<_> = rates.map(|rate| rate.as_f64().unwrap()).collect();
    let sets = ["beta1", "beta2", "epsilon", "weight_decay"]
        .map(|key| format!("optimizer.{key}={:?}", number(key)));
    let still = ["model.dropout=0", "model.attention_dropout=0", "model.classifier_dropout=0"];
    for name in ["bert", "distilbert"] {
        let steps = &reference["models"][name]["steps"];
        for (more, tolerance) in [
            (&["train.precision=f32"][..], 1e-4),
            (&["train.precision=f64"], 1e-8),
            (&["train.precision=f64", "mesh.fsdp=2", "parallel.zero=3"], 1e-8),
            (&["train.precision=f64", "mesh.data=2", "model.scan_layers=true"], 1e-8),
            (&["train.precision=f64", "model.remat=true", "train.num_microbatches=2"], 1e-8),
        ] {
            let what = format!("{name} {more:?}");
            let sets: Vec<_> =
                sets.iter().map(String::as_str).chain(still).chain(more.iter().copied()).collect();
            let config = config(&folder(&format!("{name}_classification")), &sets);
            let (losses, params) = fine_tune(&config, &fields, &rates);
            for (loss, expected) in losses.iter().zip(steps["losses"].as_array().unwrap()) {
                let expected = expected.as_f64().unwrap();
                assert!((loss / expected - 1.0).abs() < tolerance, "{what}: {losses:?}");
            }
            let counterpart = config.model.counterpart().unwrap();
            let digests = steps["params"].as_object().unwrap();
            assert_eq!(params.len(), digests.len(), "{what}");
            for (path, value) in params.iter() {
                let name = counterpart.format.full_name(path).unwrap().name;
                drawn::assert_digest(
                    &format!("{what}: {path}"),
                    &name,
                    value,
                    &digests[&name],
                    tolerance,
                );
            }
        }
    }
}

/// More padding changes neither the loss nor, seen in the update of plain gradient descent, any
/// gradient.
#[test]
fn padding_changes_no_loss_and_no_gradient() {
    let reference = reference();
    let given = fields(&reference);
    let padded = given.clone().map(|(name, values)| match *values.dims() {
        [batch, positions] => {
            let rows = values.to_f64();
            // Tokens that would be seen if the mask did not hide them.
            let token = if name == "x" { 7.0 } else { 0.0 };
            let row = |row: &[f64]| [row, &[token; 2]].concat();
            let rows: Vec<_> = rows.chunks(positions).flat_map(row).collect();
            (name, Literal::from_f64(DType::I32, &[batch, positions + 2], &rows))
        }
        _ => (name, values),
    });
    let still = ["model.dropout=0", "model.attention_dropout=0", "model.classifier_dropout=0"];
    let sgd = ["optimizer.name=sgd", "optimizer.momentum=0", "train.precision=f64"];
    for name in ["bert", "distilbert"] {
        let config = config(&folder(&format!("{name}_classification")), &[still, sgd].concat());
        let (loss, params) = fine_tune(&config, &given, &[1.0]);
        let (padded_loss, padded_params) = fine_tune(&config, &padded, &[1.0]);
        assert!((loss[0] / padded_loss[0] - 1.0).abs() < 1e-10, "{name}");
        let (_, start) = fine_tune(&config, &given, &[]);
        for (path, value) in params.iter() {
            let (value, again) = (value.to_f64(), padded_params[path].to_f64());
            let difference =
                value.iter().zip(&again).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(difference < 1e-10, "{name}: {path} {difference:e}");
            // The keys' biases have no gradient, nor have rows that no token uses.
            let is_moved = value != start[path].to_f64();
            assert!(is_moved || path.ends_with("key.bias"), "{name}: {path} has no gradient");
        }
    }
}

/// A model that was read is written again, bit for bit, in f32 and bf16, and with the configuration
/// that was read.
#[test]
fn folders_are_written_as_they_were_read() {
    for name in [
        "bert_classification",
        "bert_masked_lm",
        "distilbert_classification",
        "distilbert_masked_lm",
    ] {
        let from = folder(name);
        let head = if name.ends_with("masked_lm") { "masked_lm" } else { "classification" };
        let config = config(&from, &[&format!("model.head={head}")]);
        let values = SavedModel::find(&from).unwrap().values(true).unwrap();
        let counterpart = config.model.counterpart().unwrap();
        let ours = |values: &Tree<Literal>| -> Tree<Literal> {
            let run = |precision| {
                let ty = TensorType::new(DType::I32, &[2, 10]);
                trace_forward(precision, &ty, |scope, x| {
                    let mask = x.full_like(1.0);
                    let fields = ["x", "segments", "mask"]
                        .map(|name| (name.to_owned(), if name == "x" { x } else { mask }));
                    let weight = x.tracer().full(DType::F32, &[2], 1.0);
                    let batch = Batch { fields: fields.into_iter().collect(), weight };
                    encoder(&config.model, 3).logits(scope, &batch)
                })
                .unwrap()
            };
            let forward = run(Precision::uniform(values.values().next().unwrap().dtype()));
            forward.leaves.map(|path, _| {
                let name = counterpart.format.full_name(path).unwrap().name;
                values[&*name].clone()
            })
        };
        let dir = tempfile::tempdir().unwrap();
        let rounded =
            values.map(|_, value| Literal::from_f64(DType::Bf16, value.dims(), &value.to_f64()));
        let cases = [(&values, None), (&values, Some(10_000)), (&rounded, Some(1))];
        for (index, (values, max_file_bytes)) in cases.into_iter().enumerate() {
            let to = dir.path().join(index.to_string());
            let options = FolderOptions { max_file_bytes, ..FolderOptions::default() };
            params_file::save_for_library(&to, &ours(values), &counterpart, &options).unwrap();
            check_parts(&to, values, max_file_bytes);
            let written = SavedModel::find(&to).unwrap().values(true).unwrap();
            assert_eq!(written.len(), values.len(), "{name}");
            for (path, value) in values.iter() {
                assert_eq!(
                    (value.dtype(), value.bytes()),
                    (written[path].dtype(), written[path].bytes()),
                    "{path}"
                );
            }
            let fields = |dir: &Path| -> Value {
                serde_json::from_slice(&fs::read(dir.join("config.json")).unwrap()).unwrap()
            };
            let (theirs, ours) = (fields(&from), fields(&to));
            for (key, value) in theirs.as_object().unwrap() {
                let is_ours = ours.get(key).is_some()
                    && !key.ends_with("dtype")
                    && key != "classifier_dropout";
                assert!(
                    !is_ours || ours[key] == *value,
                    "{name}: {key} is {} and was {value}",
                    ours[key]
                );
            }
            assert!(
                ours.as_object().unwrap().keys().all(|key| theirs.get(key).is_some()
                    || key.ends_with("dtype")
                    || key == "position_embedding_type"),
                "{ours}"
            );
        }
    }
}

/// The files of a folder are as many as the limit asks for, and its index names the one that has a
/// tensor.
fn check_parts(folder: &Path, values: &Tree<Literal>, max_file_bytes: Option<usize>) {
    let index = folder.join("model.safetensors.index.json");
    let Some(max) = max_file_bytes else {
        assert!(folder.join("model.safetensors").exists() && !index.exists());
        return;
    };
    let index: Value = serde_json::from_slice(&fs::read(index).unwrap()).unwrap();
    let num_bytes: usize = values.values().map(Literal::num_bytes).sum();
    assert_eq!(index["metadata"]["total_size"], num_bytes);
    let map = index["weight_map"].as_object().unwrap();
    let mut files: Vec<_> = map.values().map(|file| file.as_str().unwrap()).collect();
    files.sort_unstable();
    files.dedup();
    assert!(files.len() > 1 && (max > 1 || files.len() == values.len()), "{files:?}");
    for file in &files {
        let bytes = fs::read(folder.join(file)).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        assert!(tensors.names().iter().all(|name| map[*name] == *file), "{file}");
        let held: usize = tensors.tensors().iter().map(|(_, tensor)| tensor.data().len()).sum();
        assert!(held <= max || tensors.len() == 1, "{file} has {held} bytes");
    }
}

/// A model with another head, or with early names, gives its encoder; the rest is drawn.
#[test]
fn another_head_is_left_out_and_ours_is_drawn() {
    for (name, missing, unused) in [
        (
            "bert",
            "classifier.bias, classifier.weight, pooler.bias, pooler.weight",
            "cls.predictions",
        ),
        (
            "distilbert",
            "classifier.bias, classifier.weight, pre_classifier.bias, pre_classifier.weight",
            "vocab_",
        ),
    ] {
        let from = folder(&format!("{name}_masked_lm"));
        let config = config(&from, &[]);
        let (client, mesh) = open_devices(&config, |_| ()).unwrap();
        let of_field = |(name, values): &(&'static str, Literal)| Field {
            name,
            dtype: DType::I32,
            dims: values.dims()[1..].to_vec(),
        };
        let source: Arc<dyn Source> =
            Arc::new(Given { fields: fields(&reference()).iter().map(of_field).collect() });
        let splits = Splits { train: source.clone(), eval: source, warnings: vec![] };
        let run = Run::new(&config, &splits, mesh, client.platform()).unwrap();
        let trainer = Trainer::new(&client, &run, &*config.model.build(3), 0).unwrap();
        let specs = trainer.model_specs();
        let saved = SavedModel::find(&from).unwrap();
        let (found, mut unmatched) = saved.open_below_head(&specs).unwrap();
        unmatched.missing.sort();
        assert_eq!(unmatched.missing.join(", "), missing);
        assert!(unmatched.unused.iter().all(|name| name.starts_with(unused)), "{unmatched:?}");
        let found = found.read_all().unwrap();
        assert_eq!(found.len() + unmatched.missing.len(), specs.len());
        let error = params_file::open(&from, &specs).unwrap_err().to_string();
        assert!(error.contains("is missing") || error.contains("does not have"), "{error}");

        // Early files have other names for the same.
        let values = saved.values(true).unwrap();
        let early = |path: &str| {
            path.replace("LayerNorm.weight", "LayerNorm.gamma")
                .replace("LayerNorm.bias", "LayerNorm.beta")
        };
        let early: Tree<_> =
            values.iter().map(|(path, value)| (early(path), value.clone())).collect();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("early.safetensors");
        params_file::save(&file, &early).unwrap();
        let (again, _) = SavedModel::find(&file).unwrap().open_below_head(&specs).unwrap();
        assert_eq!(again.read_all().unwrap(), found);

        // Tensors that are not of a head are needed.
        let without = early.into_iter().filter(|(path, _)| !path.contains("position"));
        params_file::save(&file, &without.collect()).unwrap();
        let error =
            SavedModel::find(&file).unwrap().open_below_head(&specs).unwrap_err().to_string();
        assert!(error.contains("position_embeddings.weight` is missing"), "{error}");
    }
}
