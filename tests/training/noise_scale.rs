//! The gradient noise scale: of a quadratic with known noise, and the squares that it is made of on
//! meshes whose parts of a batch are the same.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use hlo::Tensor;
use lockstep::config::Config;
use lockstep::data::{self, Source, TrainBatches};
use lockstep::observe::{Jsonl, NoiseAverages, Summary};
use lockstep::train::{self, Job, Options, Resume, Run, Trainer, open_devices};
use models::{Batch, Initializer, Loss, Model, Scope};
use serde_json::Value;

const QUADRATIC: &str = r#"
[model]
name = "mlp"
[data]
source = "synthetic"
num_examples = 4096
features = 1024
classes = 64
[train]
global_batch = 32
steps = 60
check_lockstep_every = 20
[optimizer]
name = "sgd"
momentum = 0.0
[schedule]
name = "constant"
peak = 1e-30
[observe]
noise_scale_every = 1
[compile.overrides]
xla_backend_optimization_level = 0
"#;
const NUM_FEATURES: usize = 1024;

/// `1/2 |w - x|^2` for each example, with `w` at 1: the gradients of examples are `w - x`, so that
/// their mean and their variance are those of the data. Steps change nothing.
fn quadratic<'g>(scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
    let x_bd = batch.field("x");
    let w_d = scope.param("w", &[NUM_FEATURES], Initializer::Ones);
    let away_bd: Tensor<'g> = w_d.broadcast_like(x_bd, &[1]) - x_bd;
    let loss_b = (away_bd * away_bd).reduce_sum(&[1]) * 0.5;
    let (sum, weight) = ((loss_b * batch.weight).sum(), batch.weight.sum());
    Loss { sum, weight, metrics: vec![], tally: None, reports_f1: false }
}

/// `tr(Sigma) / |G|^2` from all examples.
fn expected_scale(source: &Arc<dyn Source>) -> f64 {
    let num_examples = source.num_examples();
    let (mut sums, mut squares) = (vec![0.0; NUM_FEATURES], 0.0);
    for example in 0..num_examples {
        let (mut x, mut y) = (vec![0_u8; 4 * NUM_FEATURES], [0_u8; 4]);
        source.read(example, None, &mut [&mut x, &mut y]).unwrap();
        for (sum, bytes) in sums.iter_mut().zip(x.chunks_exact(4)) {
            let value = f64::from(f32::from_ne_bytes(bytes.try_into().unwrap()));
            *sum += value;
            squares += value * value;
        }
    }
    let means: Vec<_> = sums.iter().map(|sum| sum / num_examples as f64).collect();
    let of_mean = means.iter().map(|mean| mean * mean).sum::<f64>();
    let gradient = means.iter().map(|mean| (1.0 - mean).powi(2)).sum::<f64>();
    (squares / num_examples as f64 - of_mean) / gradient
}

fn job(sets: &[&str]) -> Config {
    let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
    Config::parse(QUADRATIC, Path::new("/a.toml"), &sets).unwrap()
}

#[test]
fn of_a_quadratic_with_known_noise_it_is_right_within_a_tenth() {
    let meshes: [&[&str]; 4] = [
        &["mesh.data=4"],
        &["mesh.data=2", "mesh.fsdp=2", "parallel.zero=3"],
        &["mesh.data=1", "train.num_microbatches=8"],
        // Half of them are not measured; a launch has several.
        &[
            "mesh.data=1",
            "mesh.fsdp=4",
            "parallel.zero=1",
            "train.steps_per_launch=3",
            "observe.noise_scale_every=2",
        ],
    ];
    for mesh in meshes {
        let config = job(mesh);
        let splits = data::open(&config).unwrap();
        let expected = expected_scale(&splits.train);
        let dir = tempfile::tempdir().unwrap();
        let options = Options { out: Some(dir.path().to_owned()), ..Options::default() };
        let job = Job { config: &config, model: &quadratic, splits: &splits };
        let outcome = train::train(&job, &options).unwrap().success().unwrap();
        let scale = outcome.summary.noise_scale.unwrap();
        println!("{mesh:?}: {scale}, expected {expected}");
        assert!((scale / expected - 1.0).abs() < 0.1, "{mesh:?}: {scale}, not {expected}");
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        let summary: Value = serde_json::from_str(&read(Summary::FILE)).unwrap();
        assert_eq!(summary["noise_scale"], scale);
        let lines = read(Jsonl::FILE);
        let lines: Vec<Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(lines[59]["noise_scale"], scale);
        let is_each = config.observe.noise_scale_every == 1;
        assert_eq!(lines[0].get("noise_scale").is_some(), is_each);
        assert_ne!(lines[3]["noise_scale"], lines[2]["noise_scale"]);
        assert_eq!(lines[2]["noise_scale"] == lines[1]["noise_scale"], !is_each);
    }
}

/// A run that is stopped and continued has the averages of one that is not.
#[test]
fn a_run_that_is_continued_goes_on_with_its_averages() {
    let run = |out: &Path, steps: &str, resume: Resume| {
        let config = job(&["mesh.data=2", "data.num_examples=256", steps]);
        let splits = data::open(&config).unwrap();
        let job = Job { config: &config, model: &quadratic, splits: &splits };
        let options = Options { out: Some(out.to_owned()), resume, ..Options::default() };
        train::train(&job, &options).unwrap().success().unwrap().summary.noise_scale.unwrap()
    };
    let dir = tempfile::tempdir().unwrap();
    let (whole, parts) = (dir.path().join("whole"), dir.path().join("parts"));
    let expected = run(&whole, "train.steps=20", Resume::Never);
    run(&parts, "train.steps=10", Resume::Never);
    assert_eq!(run(&parts, "train.steps=20", Resume::Newest), expected);
}

const GPT: &str = r#"
[model]
name = "gpt"
num_layers = 2
width = 32
num_heads = 4
context = 16
vocabulary = 64
[data]
source = "synthetic_tokens"
vocab_size = 64
context = 16
[train]
global_batch = 16
steps = 100
precision = "f64"
[optimizer]
name = "sgd"
freeze = ["blocks.0.attn.*"]
[schedule]
name = "constant"
peak = 0.5
[observe]
noise_scale_every = 1
[compile.overrides]
xla_backend_optimization_level = 0
"#;

/// The squares of the first two steps, and the norms of their gradients.
fn squares(model: &str, sets: &[&str]) -> Vec<[f64; 2]> {
    let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
    let config = Config::parse(model, Path::new("/a.toml"), &sets).unwrap();
    let splits = data::open(&config).unwrap();
    let model: Box<dyn Model> = config.model.build(splits.train.num_outputs());
    let (client, mesh) = open_devices(&config, |_| ()).unwrap();
    let run = Run::new(&config, &splits, mesh, client.platform()).unwrap();
    assert_eq!(run.batch_parts(&*model), Some(2), "{sets:?}");
    let mut trainer = Trainer::new(&client, &run, &*model, config.train.seed).unwrap();
    let batches = TrainBatches::split(splits.train.clone(), 0, run.batch).unwrap();
    let steps = (0..2).map(|index| {
        let batch = trainer.batch_sender().send(batches.get(index).unwrap()).unwrap();
        let pending = trainer.step(batch, 0.5).unwrap();
        let result = trainer.finish(pending).unwrap().remove(0);
        [result.part_squares.unwrap(), result.grad_norm]
    });
    steps.collect()
}

/// Each has the two halves of a batch as parts.
#[test]
fn the_squares_are_the_same_wherever_the_parts_are() {
    let one = squares(GPT, &["mesh.data=1", "train.num_microbatches=2"]);
    for [of_part, of_whole] in &one {
        assert!(*of_part > of_whole.powi(2), "{one:?}");
    }
    let meshes: [&[&str]; 7] = [
        &["mesh.data=2"],
        &["mesh.data=1", "mesh.fsdp=2", "parallel.zero=1"],
        &["mesh.data=2", "mesh.fsdp=2", "parallel.zero=2", "train.num_microbatches=2"],
        &["mesh.data=2", "mesh.fsdp=2", "parallel.zero=3", "model.scan_layers=true"],
        &["mesh.data=2", "mesh.tensor=2", "parallel.sequence=true"],
        &["mesh.data=1", "mesh.tensor=2", "train.num_microbatches=2"],
        &["mesh.data=2", "mesh.pipeline=2", "train.num_microbatches=4"],
    ];
    for mesh in meshes {
        let found = squares(GPT, mesh);
        for (found, expected) in found.iter().flatten().zip(one.iter().flatten()) {
            let error = (found - expected).abs();
            assert!(error < 1e-9 * expected, "{mesh:?}: {found}, not {expected}");
        }
    }
}

#[test]
fn an_average_that_is_hidden_by_noise_is_no_scale() {
    let mut noise = NoiseAverages::default();
    noise.add(8, 2, 4.0, 1.0);
    assert!(noise.scale().unwrap().is_nan(), "{noise:?}");
    noise.add(8, 2, f64::INFINITY, 1.0);
    assert!(noise.scale().unwrap().is_nan() && noise.variance.is_finite());
}
