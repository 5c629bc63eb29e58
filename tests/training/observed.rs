//! What some steps measure besides: norms of each parameter, its gradient and its update, and
//! counts of its values, against the parameters before and after the step.

use std::path::Path;

use hlo::{Literal, Tree};
use lockstep::config::Config;
use lockstep::data::{self, TrainBatches};
use lockstep::observe::HistogramBuckets;
use lockstep::state;
use lockstep::train::{Run, StepResult, Trainer, open_devices};

const GPT: &str = r#"
[model]
name = "gpt"
num_layers = 4
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
momentum = 0.0
[schedule]
name = "constant"
peak = 0.5
[compile.overrides]
xla_backend_optimization_level = 0
"#;
const RATE: f64 = 0.5;

struct Training {
    trainer: Trainer,
    batches: TrainBatches,
}

impl Training {
    fn new(sets: &[&str]) -> Self {
        let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
        let config = Config::parse(GPT, Path::new("/a.toml"), &sets).unwrap();
        let splits = data::open(&config).unwrap();
        let model = config.model.build(splits.train.num_outputs());
        let (client, mesh) = open_devices(&config, |_| ()).unwrap();
        let run = Run::new(&config, &splits, mesh, client.platform()).unwrap();
        let trainer = Trainer::new(&client, &run, &*model, config.train.seed).unwrap();
        let batches = TrainBatches::split(splits.train.clone(), 0, run.batch).unwrap();
        Self { trainer, batches }
    }

    fn step(&mut self) -> StepResult {
        let batch = self.batches.get(self.trainer.steps_taken()).unwrap();
        let batch = self.trainer.batch_sender().send(batch).unwrap();
        let pending = self.trainer.step(batch, RATE).unwrap();
        self.trainer.finish(pending).unwrap().remove(0)
    }

    fn params(&self) -> Tree<Literal> {
        self.trainer.model().unwrap()
    }
}

/// How many values are in each bucket, and whether one is so near an edge that it may be in either
/// of two.
fn counts(values: &[f64]) -> (Vec<u32>, bool) {
    let edges = HistogramBuckets::edges();
    let (mut counts, mut is_at_an_edge) = (vec![0; HistogramBuckets::COUNT], false);
    for value in values {
        let bucket = edges[1..HistogramBuckets::COUNT].partition_point(|edge| edge <= value);
        counts[bucket] += 1;
        is_at_an_edge |= edges.iter().any(|edge| (value / edge - 1.0).abs() < 1e-6);
    }
    (counts, is_at_an_edge)
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|x| x * x).sum::<f64>().sqrt()
}

fn assert_close(what: &str, found: f64, expected: f64) {
    let scale = expected.abs().max(1e-9);
    assert!((found - expected).abs() < 1e-9 * scale, "{what}: {found}, not {expected}");
}

#[test]
fn norms_are_those_of_whole_parameters_and_the_run_is_the_same_to_the_bit() {
    let meshes: [&[&str]; 7] = [
        &["mesh.data=1"],
        &["mesh.data=2", "mesh.fsdp=2", "parallel.zero=1"],
        &["mesh.data=2", "mesh.fsdp=2", "parallel.zero=3", "model.scan_layers=true"],
        &["mesh.data=1", "mesh.tensor=2", "parallel.sequence=true"],
        &["mesh.data=1", "mesh.fsdp=2", "mesh.tensor=2", "train.num_microbatches=2"],
        &["mesh.data=1", "mesh.pipeline=2", "train.num_microbatches=4"],
        &[
            "mesh.data=2",
            "mesh.pipeline=2",
            "parallel.pipeline_chunks=2",
            "train.num_microbatches=4",
        ],
    ];
    for mesh in meshes {
        let mut plain = Training::new(mesh);
        let sets = ["observe.layers_every=2", "observe.tensorboard=true"];
        let mut observed = Training::new(&[mesh, &sets[..]].concat());
        let mut num_counted = 0;
        for step in 0..4 {
            let before = observed.params();
            let result = observed.step();
            let (after, expected) = (observed.params(), plain.step());
            assert_eq!((result.loss, result.grad_norm), (expected.loss, expected.grad_norm));
            let what = format!("{mesh:?}, step {step}");
            assert_eq!(expected.layers, None, "{what}");
            assert_eq!(result.layers.is_some(), step % 2 == 1, "{what}");
            let Some(layers) = result.layers else { continue };
            assert_eq!(layers.step, step);
            assert!(layers.names.iter().map(String::as_str).eq(before.paths()), "{what}");
            for (place, name) in layers.names.iter().enumerate() {
                let [before, after] = [&before, &after].map(|params| params[name].to_f64());
                let update = norm(after.iter().zip(&before).map(|(after, before)| after - before));
                let found = layers.counts.chunks(HistogramBuckets::COUNT).nth(place).unwrap();
                let (expected, is_at_an_edge) = counts(&before);
                assert_eq!(found.iter().sum::<u32>() as usize, before.len(), "{what}, {name}");
                assert!(is_at_an_edge || *found == expected, "{what}, {name}: {found:?}");
                num_counted += usize::from(!is_at_an_edge);
                let param = norm(before.into_iter());
                let found = layers.of(place);
                let expected = [param, update / RATE, update, update / param];
                for (found, expected) in found.into_iter().zip(expected) {
                    // A norm's gain begins as 1, a bias as 0.
                    if expected.is_finite() {
                        let error = (found - expected).abs();
                        assert!(
                            error < 1e-6 * expected.max(1e-6),
                            "{what}, {name}: {found} {expected}"
                        );
                    }
                }
            }
            assert_close(&what, norm(layers.grad_norm.iter().copied()), result.grad_norm);
        }
        assert!(num_counted > 20, "{mesh:?}: {num_counted}");
        let [plain, observed] = [&plain, &observed].map(|of| state::fingerprint(&of.params()));
        assert_eq!(plain, observed, "{mesh:?}");
    }
}
