//! `train.microbatch`: a global batch of `T` microbatches is the same training on any number of
//! replicas, also where these do not divide `T` and some run surplus microbatches with weight 0.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hlo::Literal;
use lockstep::config::Config;
use lockstep::data::{self, TrainBatches};
use lockstep::pjrt::Platform;
use lockstep::train::{Run, StepResult, Trainer, mesh_on_host, open_devices};
use models::layers::linear;
use models::loss::cross_entropy;
use models::{Batch, Initializer, Loss, Scope};
use rayon::prelude::*;

use crate::interpreted::{
    GPT, MLP, NUM_STEPS, ONE, OPTIMIZERS, PIPELINE_GPT, RESNET, TENSOR_GPT, check, combinations,
    train, train_on,
};

/// Microbatches of 4 examples.
const SIZE: &str = "train.microbatch=4";
/// Batches of 4, 5, 6 and 12 of them.
const BATCHES: [&str; 4] = [
    "train.global_batch=16",
    "train.global_batch=20",
    "train.global_batch=24",
    "train.global_batch=48",
];
/// 1 to 8 replicas, with whole state or shards of it.
const MESHES: [&[&str]; 9] = [
    ONE,
    &["mesh.data=2"],
    &["mesh.data=3"],
    &["mesh.data=1", "mesh.fsdp=3", "parallel.zero=1"],
    &["mesh.data=2", "mesh.fsdp=2", "parallel.zero=1"],
    &["mesh.data=2", "mesh.fsdp=2", "parallel.zero=2"],
    &["mesh.data=1", "mesh.fsdp=4", "parallel.zero=3"],
    &["mesh.data=5"],
    &["mesh.data=2", "mesh.fsdp=4", "parallel.zero=3"],
];

#[test]
fn any_number_of_replicas_trains_as_one_does() {
    let models: [(&str, &[&str]); 4] = [
        (MLP, &[]),
        (GPT, &[]),
        (GPT, &["model.scan_layers=true"]),
        (GPT, &["model.remat=true", "model.loss_chunk_rows=24"]),
    ];
    // With running means and clipped gradients.
    let adamw = OPTIMIZERS[1];
    let rows = combinations(&[models.len(), MESHES.len(), BATCHES.len()]);
    let references = rows.iter().map(|row| (models[row[0]].0, row[2]));
    let references: BTreeSet<_> = references.collect();
    // One replica, and the whole batch at once.
    let references: BTreeMap<_, _> = references
        .into_par_iter()
        .map(|of @ (model, batch)| (of, train(model, &[ONE, adamw, &[BATCHES[batch]]].concat())))
        .collect();
    rows.par_iter().for_each(|row| {
        let [model, mesh, batch] = row[..] else { unreachable!() };
        let (text, blocks) = models[model];
        let sets = [blocks, adamw, MESHES[mesh], &[BATCHES[batch], SIZE]].concat();
        let one = &references[&(text, batch)];
        check(&format!("{sets:?} of\n{text}"), one, &train(text, &sets));
    });
}

/// Running means are those of the examples that count.
#[test]
fn batch_norm_is_that_of_one_replica() {
    let batch = BATCHES[0];
    let meshes = [ONE, MESHES[2], MESHES[7]];
    let runs: Vec<_> =
        meshes.par_iter().map(|mesh| train(RESNET, &[*mesh, &[batch, SIZE]].concat())).collect();
    let one = train(RESNET, &[ONE, &[batch]].concat());
    for (mesh, other) in meshes.iter().zip(&runs) {
        check(&format!("{batch} on {mesh:?}"), &one, other);
    }
}

/// Layers cut over `tensor`, and blocks cut into stages, beside a number of batch shards that does
/// not divide the microbatches.
#[test]
fn other_axes_stand_beside_any_number_of_batch_shards() {
    const BATCH: &str = "train.global_batch=24";
    let cases: [(&str, &[&str]); 6] = [
        (TENSOR_GPT, &["mesh.data=4", "mesh.tensor=2"]),
        (
            TENSOR_GPT,
            &["mesh.data=1", "mesh.fsdp=4", "parallel.zero=3", "mesh.tensor=2", "model.remat=true"],
        ),
        (PIPELINE_GPT, &["mesh.data=4", "mesh.pipeline=2"]),
        (PIPELINE_GPT, &["mesh.data=4", "mesh.pipeline=2", "parallel.pipeline_chunks=2"]),
        (PIPELINE_GPT, &["mesh.data=5", "mesh.pipeline=2", "parallel.pipeline_schedule=gpipe"]),
        (PIPELINE_GPT, &["mesh.data=1", "mesh.fsdp=4", "mesh.pipeline=4", "mesh.tensor=2"]),
    ];
    cases.par_iter().for_each(|(model, mesh)| {
        let one = train(model, &[ONE, &[BATCH]].concat());
        let other = train(model, &[*mesh, &[BATCH, SIZE]].concat());
        check(&format!("{mesh:?} of\n{model}"), &one, &other);
    });
}

/// Of 4 microbatches on 3 replicas, the last replica runs none that counts.
#[test]
fn a_replica_without_weight_has_no_part_in_what_is_not_finite() {
    let sets = ["mesh.data=3", BATCHES[0], SIZE];
    let healthy = train(MLP, &sets);
    assert_eq!(healthy.replica_losses.len() as u64, NUM_STEPS);
    for losses in &healthy.replica_losses {
        assert!(losses[0] > 0.0 && losses[1] > 0.0 && losses[2] == 0.0, "{losses:?}");
    }
    // The last microbatch, which the second replica runs and the third again.
    let poisoned = train_on(MLP, &sets, |field, of_replicas| {
        if field == "x" {
            for replica in [1, 2] {
                of_replicas[replica] = poisoned(&of_replicas[replica]);
            }
        }
    });
    for losses in &poisoned.replica_losses {
        assert!(losses[0].is_finite() && losses[1].is_nan() && losses[2] == 0.0, "{losses:?}");
    }
}

/// Values with the last one not a number.
fn poisoned(values: &Literal) -> Literal {
    let mut numbers = values.to_f64();
    *numbers.last_mut().unwrap() = f64::NAN;
    Literal::from_f64(values.dtype(), values.dims(), &numbers)
}

/// The step of `digits` in f64 on XLA's CPU backend.
struct Digits {
    run: Run,
    trainer: Trainer,
    batches: TrainBatches,
}

const DIGITS: &str = r#"
model = { name = "mlp", hidden = [32], dropout = 0.1 }
data = { source = "digits", path = "data/digits.csv.gz" }
train = { global_batch = 24, microbatch = 4, steps = 10, precision = "f64" }
optimizer = { name = "adamw" }
schedule = { name = "constant", peak = 3e-3 }
"#;

/// Paths in [`DIGITS`] are relative to its folder.
fn digits_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/a.toml")
}

impl Digits {
    fn new(sets: &[&str]) -> Self {
        let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
        let config = Config::parse(DIGITS, &digits_file(), &sets).unwrap();
        let splits = data::open(&config).unwrap();
        let model = config.model.build(splits.train.num_outputs());
        let (client, mesh) = open_devices(&config, |_| ()).unwrap();
        let run = Run::new(&config, &splits, mesh, client.platform()).unwrap();
        let trainer = Trainer::new(&client, &run, &*model, config.train.seed).unwrap();
        let batches = TrainBatches::split(splits.train, config.train.seed, run.batch).unwrap();
        Self { run, trainer, batches }
    }

    /// A step on batch `index`, with these shards poisoned.
    fn step(&mut self, index: u64, poison: &[usize]) -> StepResult {
        let mut batch = self.batches.get(index).unwrap();
        let x = batch.fields.get_mut("x").unwrap();
        for shard in poison {
            x[*shard] = Arc::new(poisoned(&x[*shard]));
        }
        let batch = self.trainer.batch_sender().send(batch).unwrap();
        let pending = self.trainer.step(batch, self.run.schedule.lr(index)).unwrap();
        self.trainer.finish(pending).unwrap().remove(0)
    }
}

#[test]
fn digits_has_the_same_curve_on_1_to_5_replicas() {
    let train = |replicas: usize| {
        let mut digits = Digits::new(&[&format!("mesh.data={replicas}")]);
        let losses: Vec<_> = (0..10).map(|index| digits.step(index, &[]).loss).collect();
        digits.trainer.prove_lockstep().unwrap();
        let model = digits.trainer.model().unwrap();
        let values: Vec<_> = model.values().flat_map(Literal::to_f64).collect();
        (losses, values)
    };
    let (losses, values) = train(1);
    assert!(losses[9] < losses[0], "does not learn: {losses:?}");
    for replicas in 2..=5 {
        let other = train(replicas);
        for (name, one, other) in [("losses", &losses, &other.0), ("model", &values, &other.1)] {
            let pairs = one.iter().zip(other);
            let worst = pairs.map(|(a, b)| (a - b).abs() / a.abs().max(1.0)).fold(0.0, f64::max);
            println!("{name} on {replicas}: {worst:e}");
            assert!(one.len() == other.len() && worst < 1e-10, "{name} on {replicas}: {worst:e}");
        }
    }
}

#[test]
fn the_replica_that_is_not_finite_is_named_and_none_without_weight() {
    let sets = ["mesh.data=3", "train.global_batch=16", "train.on_nonfinite=skip"];
    let mut digits = Digits::new(&sets);
    let result = digits.step(0, &[1, 2]);
    assert_eq!((result.nonfinite_replicas, result.num_skipped), (vec![1], 1));
    let result = digits.step(1, &[]);
    assert!(result.is_finite() && result.nonfinite_replicas.is_empty(), "{result:?}");
}

/// Where replicas divide the microbatches, they are those of `train.num_microbatches`, in the same
/// program.
#[test]
fn without_surplus_the_program_is_that_of_a_number_of_microbatches() {
    let text = |sets: &[&str]| {
        let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
        let text = DIGITS.replace(", microbatch = 4", "");
        let config = Config::parse(&text, &digits_file(), &sets).unwrap();
        let splits = data::open(&config).unwrap();
        let model = config.model.build(splits.train.num_outputs());
        let run = Run::new(&config, &splits, mesh_on_host(&config), Platform::Cpu).unwrap();
        let declared = run.spec(&*model).declare().unwrap();
        let graph = lockstep::step::trace_step(&declared).unwrap();
        run.lowering.lower(graph, "step").program.text_without_locations()
    };
    for (mesh, number) in [("mesh.data=1", 6), ("mesh.data=3", 2), ("mesh.data=6", 1)] {
        let number = format!("train.num_microbatches={number}");
        assert!(text(&[mesh, SIZE]) == text(&[mesh, &number]), "{mesh}");
    }
    assert!(text(&["mesh.data=4", SIZE]).contains("compare"));
}

/// A model with a loss that counts all examples alike would count surplus ones.
#[test]
fn a_loss_without_weights_is_refused_only_where_there_is_surplus() {
    fn unweighted<'g>(scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
        let logits = linear(scope, batch.field("x"), 10, Initializer::Zeros);
        cross_entropy(logits, batch.field("y"), batch.weight.full_like(1.0))
    }
    let traced = |mesh: &str| {
        let sets = [mesh.to_owned()];
        let config = Config::parse(DIGITS, &digits_file(), &sets).unwrap();
        let splits = data::open(&config).unwrap();
        let run = Run::new(&config, &splits, mesh_on_host(&config), Platform::Cpu).unwrap();
        let declared = run.spec(&unweighted).declare().unwrap();
        lockstep::step::trace_step(&declared).map(drop)
    };
    traced("mesh.data=3").unwrap();
    let error = traced("mesh.data=4").unwrap_err().to_string();
    assert!(error.contains("count each example by its weight"), "{error}");
}
