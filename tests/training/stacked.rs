//! Blocks that run as a scan keep their parameters as stacks. They train like unrolled blocks, on
//! any mesh, and files hold the same parameters under the same names.

use std::path::Path;
use std::sync::Arc;

use hlo::{DType, LeafSpec, Literal, Mesh, TensorType, Tree, interpret};
use lockstep::config::{Config, ModelConfig};
use lockstep::data::{self, TrainBatches};
use lockstep::pjrt::Platform;
use lockstep::train::{Error, Run, Trainer, open_devices, params_file};
use lockstep::{state, step};
use models::{Precision, Scope};

const GPT: &str = r#"
[model]
name = "gpt"
num_layers = 3
width = 32
num_heads = 4
context = 16
vocabulary = 64
dropout = 0.1
[data]
source = "synthetic_tokens"
vocab_size = 64
context = 16
[train]
global_batch = 16
steps = 100
precision = "f64"
[optimizer]
name = "adamw"
[schedule]
name = "constant"
peak = 3e-3
"#;

/// XLA's lowest level compiles in half the time.
const QUICK: &str = "compile.overrides.xla_backend_optimization_level=0";
const NUM_STEPS: u64 = 12;
const TOLERANCE: f64 = 1e-10;
const SCAN: &str = "model.scan_layers=true";
const MESHES: [[&str; 2]; 3] = [
    ["mesh.data=1", "mesh.fsdp=1"],
    ["mesh.data=1", "mesh.fsdp=4"],
    ["mesh.data=2", "mesh.fsdp=2"],
];

pub(crate) struct Trained {
    /// Losses and norms of gradients, in turn.
    pub(crate) curve: Vec<f64>,
    pub(crate) eval_loss: f64,
    /// Before the first step.
    pub(crate) initial: Tree<Literal>,
    pub(crate) trainer: Trainer,
}

fn config(sets: &[&str]) -> Config {
    let sets: Vec<_> = sets.iter().chain(&[QUICK]).map(|set| (*set).to_owned()).collect();
    Config::parse(GPT, Path::new("gpt.toml"), &sets).unwrap()
}

pub(crate) fn train(num_steps: u64, sets: &[&str]) -> Trained {
    train_as(num_steps, sets, |_| ())
}

/// The run is as `change` leaves it.
pub(crate) fn train_as(num_steps: u64, sets: &[&str], change: impl FnOnce(&mut Run)) -> Trained {
    let config = config(sets);
    let splits = data::open(&config).unwrap();
    let model = config.model.build(splits.train.num_outputs());
    let (client, mesh) = open_devices(&config, |_| ()).unwrap();
    let mut run = Run::new(&config, &splits, mesh, client.platform()).unwrap();
    change(&mut run);
    let mut trainer = Trainer::new(&client, &run, &*model, config.train.seed).unwrap();
    let initial = trainer.model().unwrap();
    let (batch, shards) = (run.batch.global_batch(), run.batch.num_batch_shards());
    let batches =
        TrainBatches::new(splits.train.clone(), config.train.seed, batch, shards).unwrap();
    let sender = trainer.batch_sender();
    let mut curve = vec![];
    for step in 0..num_steps {
        let batch = sender.send(batches.get(step).unwrap()).unwrap();
        let pending = trainer.step(batch, run.schedule.lr(step)).unwrap();
        for result in trainer.finish(pending).unwrap() {
            curve.extend([result.loss, result.grad_norm]);
        }
    }
    trainer.prove_lockstep().unwrap();
    let eval_loss = trainer.evaluate(&splits.eval, &run).unwrap().loss;
    Trained { curve, eval_loss, initial, trainer }
}

pub(crate) fn bytes_of_file(params: &Tree<Literal>) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(params_file::FILE);
    params_file::save(&path, params).unwrap();
    std::fs::read(path).unwrap()
}

/// Checks that two runs are the same up to rounding: curves, evaluations, and models by path.
#[track_caller]
pub(crate) fn assert_alike(what: &str, one: &Trained, other: &Trained, tolerance: f64) {
    assert_eq!(other.curve.len(), one.curve.len(), "{what}");
    let worst = other.curve.iter().zip(&one.curve).map(|(got, expected)| {
        // Both may be infinite.
        if got == expected { 0.0 } else { (got - expected).abs() / expected.abs() }
    });
    let worst = worst.fold(0.0, |worst: f64, x| if x.is_nan() { x } else { worst.max(x) });
    println!("{what}: {worst:e}");
    assert!(worst < tolerance, "{what}: differ by {worst:e}: {:?} {:?}", one.curve, other.curve);
    let difference = (other.eval_loss / one.eval_loss - 1.0).abs();
    assert!(difference < 10.0 * tolerance, "{what}: evaluations differ by {difference:e}");
    let [expected, params] = [one, other].map(|of| of.trainer.model().unwrap());
    assert!(params.paths().eq(expected.paths()), "{what}");
    for (path, expected) in expected.iter() {
        assert_eq!(params[path].dims(), expected.dims(), "{what}: `{path}`");
        let (got, expected) = (params[path].to_f64(), expected.to_f64());
        let scale = expected.iter().fold(0f64, |scale, x| scale.max(x.abs())).max(1e-3);
        let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e3 * tolerance * scale;
        assert!(got.iter().zip(&expected).all(close), "{what}: `{path}` differs");
    }
}

/// Trains unrolled on one replica, and as a scan on each mesh.
fn check(name: &str, sets: &[&str]) {
    let unrolled = train(NUM_STEPS, &[sets, &MESHES[0]].concat());
    assert!(unrolled.curve[2 * NUM_STEPS as usize - 2] < unrolled.curve[0] * 0.99, "{name}");
    for mesh in MESHES {
        let what = format!("{name} on {mesh:?}");
        let scanned = train(NUM_STEPS, &[sets, &[SCAN], &mesh].concat());
        let fingerprint = state::fingerprint(&scanned.initial);
        assert_eq!(fingerprint, state::fingerprint(&unrolled.initial), "{what}: initial values");
        assert_eq!(bytes_of_file(&scanned.initial), bytes_of_file(&unrolled.initial), "{what}");
        assert_alike(&what, &unrolled, &scanned, TOLERANCE);
        let specs = scanned.trainer.state().specs();
        assert_eq!(specs["params.blocks.*.mlp.up.weight"].dims, [3, 128, 32]);
        assert_eq!(scanned.trainer.num_params(), unrolled.trainer.num_params());
        let bytes = |specs: &Tree<LeafSpec>| specs.values().map(LeafSpec::num_bytes).sum::<usize>();
        assert_eq!(bytes(specs), bytes(unrolled.trainer.state().specs()), "{what}");
    }
}

#[test]
fn clipped_adamw_with_averages_trains_alike() {
    check("adamw", &["optimizer.clip_grad_norm=1.0", "optimizer.ema_decay=0.9"]);
}

/// Patterns that match parameters of one block only.
#[test]
fn lamb_with_a_mask_for_one_block_trains_alike() {
    let decay = "optimizer.weight_decay_exclude=['blocks.0.*', '*.bias']";
    let trust = "optimizer.trust_exclude=['blocks.2.mlp.*', '*norm?.*']";
    let lamb = ["optimizer.name=lamb", "optimizer.weight_decay=0.1", decay, trust];
    check("lamb", &[&lamb[..], &["train.num_microbatches=2", "model.remat=true"]].concat());
}

#[test]
fn lars_with_a_mask_for_one_block_trains_alike() {
    let decay = "optimizer.weight_decay_exclude=['blocks.1.*.weight']";
    let lars = ["optimizer.name=lars", "schedule.peak=1.0", "optimizer.weight_decay=0.01", decay];
    check("lars", &lars);
}

/// Rates that fall from block to block, a rate of its own for one block, and parameters that are
/// not trained.
#[test]
fn blocks_with_their_own_rates_train_alike() {
    let rates = "optimizer.lr_factors={ 'blocks.1.*' = 2, 'norm.*' = 5 }";
    let decays = "optimizer.weight_decays={ 'blocks.2.*' = 0.3 }";
    let freeze = "optimizer.freeze=['position.*', 'blocks.*.norm1.*']";
    let groups = ["optimizer.layer_decay=0.8", rates, decays, freeze];
    check("groups", &[&groups[..], &["train.num_microbatches=2"]].concat());
}

/// Parameters that are not trained keep their bits, are not reduced, and have no optimizer state.
#[test]
fn frozen_parameters_cost_nothing() {
    let freeze = "optimizer.freeze=['embed.*', 'position.*', 'blocks.*']";
    for mesh in MESHES {
        let trained = train(3, &[&["optimizer.weight_decay=0.1", freeze], &mesh[..]].concat());
        let after = trained.trainer.model().unwrap();
        for (path, before) in trained.initial.iter() {
            let is_frozen = !path.starts_with("norm.");
            assert_eq!(before.bytes() == after[path].bytes(), is_frozen, "`{path}` on {mesh:?}");
        }
        let specs = trained.trainer.state().specs();
        let kept = specs.paths().filter(|path| path.starts_with("opt_state."));
        assert_eq!(kept.count(), 4, "two moments of a weight and a bias");
        let all = train(0, &mesh).trainer;
        let sent = |trainer: &Trainer| -> u64 {
            let found = hlo::communication(trainer.step_graph()).into_iter();
            found.map(|collective| collective.total_bytes_on_wire()).sum()
        };
        let [some, all] = [&trained.trainer, &all].map(sent);
        assert!(mesh == MESHES[0] || some * 2 < all, "{some} of {all} bytes on {mesh:?}");
    }
}

/// A file of the unrolled model initializes the scanned one, and the other way round.
#[test]
fn files_do_not_depend_on_how_blocks_are_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("of_one.safetensors");
    let ema = "optimizer.ema_decay=0.9";
    let mesh = ["mesh.data=2", "mesh.fsdp=2"];
    for (from, to) in [("false", "true"), ("true", "false")] {
        let [from, to] = [from, to].map(|scan| format!("model.scan_layers={scan}"));
        let written = train(2, &[&from, ema, mesh[0], mesh[1]]).trainer.model().unwrap();
        params_file::save(&path, &written).unwrap();
        let mut trainer = train(0, &[&to, ema, mesh[0], mesh[1]]).trainer;
        let read = params_file::open(&path, &trainer.model_specs()).unwrap();
        trainer.set_model(&read).unwrap();
        trainer.prove_lockstep().unwrap();
        let again = trainer.model().unwrap();
        assert_eq!(state::fingerprint(&again), state::fingerprint(&written), "{from} to {to}");
        assert_eq!(bytes_of_file(&again), std::fs::read(&path).unwrap(), "{from} to {to}");

        let others = written.into_iter().filter(|(path, _)| path != "blocks.1.norm1.bias");
        params_file::save(&path, &others.collect()).unwrap();
        let error = params_file::open(&path, &trainer.model_specs()).unwrap_err().to_string();
        assert!(error.contains("`blocks.1.norm1.bias` is missing"), "{error}");
    }
}

/// Rows that are missing or do not fit are refused with their own names.
#[test]
fn a_row_that_does_not_fit_its_stack_is_named() {
    let mut trainer = train(0, &[SCAN, "mesh.data=1", "mesh.fsdp=1"]).trainer;
    let model = trainer.model().unwrap();
    let mut refused = |path: &str, value: Option<Literal>| {
        let mut changed: Tree<_> = model.clone().into_iter().filter(|(p, _)| p != path).collect();
        changed.extend(value.map(|value| (path.to_owned(), value)));
        trainer.set_model(&changed).unwrap_err().to_string()
    };
    let error = refused("blocks.1.norm1.bias", None);
    assert!(
        error.contains("`params.blocks.1.norm1.bias`") && error.contains("no value"),
        "{error}"
    );
    let error = refused("blocks.1.norm1.bias", Some(Literal::zeros(DType::F64, &[31])));
    assert!(error.contains("`params.blocks.1.norm1.bias`") && error.contains("f64[31]"), "{error}");
    let error = refused("blocks.3.norm1.bias", Some(Literal::zeros(DType::F64, &[32])));
    assert!(error.contains("`params.blocks.3.norm1.bias`") && error.contains("no such"), "{error}");
    let stack = Literal::zeros(DType::F64, &[3, 32]);
    let error = refused("blocks.*.norm1.bias", Some(stack));
    assert!(error.contains("`params.blocks.*.norm1.bias`") && error.contains("no such"), "{error}");
    assert_eq!(state::fingerprint(&trainer.model().unwrap()), state::fingerprint(&model));
}

/// A flipped bit in one row of a sharded stack is found by the proof.
#[test]
fn a_flipped_bit_in_a_stack_is_found() {
    let mut trainer = train(1, &[SCAN, "mesh.data=2", "mesh.fsdp=2"]).trainer;
    let path = "params.blocks.*.attn.out.weight";
    let leaf = trainer.state().get(path).unwrap();
    let mut pieces: Vec<_> = (0..4).map(|replica| leaf.read(replica).unwrap()).collect();
    assert_eq!(pieces[0].dims(), [3, 16, 32]);
    *pieces[1].bytes_mut().last_mut().unwrap() ^= 4;
    let pieces: Vec<_> = pieces.into_iter().map(Arc::new).collect();
    trainer.state_mut().replace(path, &pieces).unwrap();
    match trainer.prove_lockstep().unwrap_err() {
        Error::LockstepLost { leaf, replicas, .. } => {
            assert_eq!((&*leaf, &*replicas), (path, "{1} against {3}"));
        }
        other => panic!("{other}"),
    }
}

/// The model without its loss takes stacks too, from the values that a file holds.
#[test]
fn a_forward_pass_takes_the_values_of_a_file() {
    let x = TensorType::new(DType::I32, &[2, 16]);
    let logits = |scan: &str| {
        let ModelConfig::Gpt(gpt) = config(&[scan]).model else { unreachable!() };
        let model = gpt.model();
        let precision = Precision::uniform(DType::F64);
        let forward =
            step::trace_forward(precision, &x, |scope: &Scope<'_>, x| model.logits(scope, x));
        let forward = forward.unwrap();
        let value = |path: &str, leaf: &LeafSpec| {
            let value = |i| ((path.len() * 7 + i * 13) % 29) as f64 / 100.0 - 0.1;
            let values: Vec<_> = (0..leaf.num_elements()).map(value).collect();
            Literal::from_f64(leaf.dtype, &leaf.dims, &values)
        };
        let values = forward.leaves.map(value);
        let ids: Vec<_> = (0..32).map(|i| (i * 5) % 64).collect();
        let mut inputs = forward.arguments(&values).unwrap();
        inputs.push(Literal::from_slice(&[2, 16], &ids));
        let inputs: Vec<_> = inputs.into_iter().map(|input| vec![input]).collect();
        let outputs = interpret(&forward.graph, &inputs).unwrap();
        let error = forward.arguments(&Tree::new()).unwrap_err().to_string();
        assert_eq!(error, "`embed.weight`: there is no value");
        (values, inputs.len(), outputs[0][0].to_f64())
    };
    let (leaves, num_inputs, expected) = logits("model.scan_layers=false");
    let (scanned_leaves, num_scanned_inputs, got) = logits(SCAN);
    assert_eq!(leaves, scanned_leaves);
    assert_eq!(num_inputs - num_scanned_inputs, 2 * 16, "16 parameters of 3 blocks");
    assert!(got.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-12));
}

/// With stacks, the text of a scanned step hardly depends on the number of blocks.
#[test]
fn the_scanned_step_of_gpt2_124m_has_at_most_a_quarter_of_the_text() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/gpt2-124m.toml");
    let num_bytes = |scan: &str| {
        let config = Config::load(&file, &[scan.to_owned(), "mesh.data=1".to_owned()]).unwrap();
        let splits = data::open(&config).unwrap();
        let model = config.model.build(splits.train.num_outputs());
        let run = Run::new(&config, &splits, Mesh::SINGLE, Platform::Cpu).unwrap();
        let graph = step::trace_step(&run.spec(&*model).declare().unwrap()).unwrap();
        let text = run.lowering.lower(graph, "step").program.text;
        // Source locations are for messages, and not part of the program.
        let lines = text.lines().filter(|line| !line.starts_with("#loc"));
        lines.map(|line| line.split(" loc(").next().unwrap_or_default().len() + 1).sum::<usize>()
    };
    let (unrolled, scanned) = (num_bytes("model.scan_layers=false"), num_bytes(SCAN));
    let share = scanned as f64 / unrolled as f64;
    eprintln!("{scanned} of {unrolled} bytes: {share:.3}");
    assert!(share <= 0.25, "{scanned} of {unrolled} bytes: {share:.3}");
}
