//! The same training on any mesh: replicated, sharded, and both, against one replica.

use std::path::Path;
use std::sync::Arc;

use hlo::{LeafSpec, Literal, Tree};
use lockstep::config::Config;
use lockstep::data::{self, TrainBatches};
use lockstep::observe::EvalResult;
use lockstep::parallel::{Policy, Stage, Zero};
use lockstep::state;
use lockstep::train::{Error, Run, StepResult, Trainer, open_devices, params_file};

/// A model, its data and its optimizer.
struct Case {
    name: &'static str,
    config: &'static str,
    sets: &'static [&'static str],
    num_steps: u64,
    /// Largest relative difference of losses.
    tolerance: f64,
}

/// XLA's lowest level compiles in half the time.
const QUICK: &str = "compile.overrides.xla_backend_optimization_level=0";

const DIGITS: &str = include_str!("../examples/digits.toml");
const RESNET20: &str = include_str!("../examples/resnet20-synthetic.toml");
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
clip_grad_norm = 1.0
[schedule]
name = "constant"
peak = 3e-3
"#;

/// Every way to run a model's blocks, every optimizer that takes norms, microbatches and running means. ResNet-20 runs in
/// f32, the dtype it is trained in, for three steps: each multiplies what rounding has changed by about 2.
const CASES: [Case; 7] = [
    Case {
        name: "digits",
        config: DIGITS,
        sets: &["train.precision=f64", "model.dropout=0.1", "optimizer.ema_decay=0.9"],
        num_steps: 30,
        tolerance: 1e-9,
    },
    Case {
        name: "digits, LAMB and microbatches",
        config: DIGITS,
        sets: &["train.precision=f64", "optimizer.name=lamb", "train.num_microbatches=2"],
        num_steps: 20,
        tolerance: 1e-9,
    },
    Case {
        name: "digits, five steps per launch",
        config: DIGITS,
        sets: &["train.precision=f64", "optimizer.name=sgd", "train.steps_per_launch=5"],
        num_steps: 20,
        tolerance: 1e-9,
    },
    Case { name: "gpt", config: GPT, sets: &[], num_steps: 12, tolerance: 1e-9 },
    Case {
        name: "gpt, scan and remat",
        config: GPT,
        sets: &["model.scan_layers=true", "model.remat=true"],
        num_steps: 12,
        tolerance: 1e-9,
    },
    Case {
        name: "gpt, LARS",
        config: GPT,
        sets: &["optimizer.name=lars", "schedule.peak=1.0"],
        num_steps: 12,
        tolerance: 1e-9,
    },
    Case {
        name: "resnet20",
        config: RESNET20,
        sets: &[
            "train.global_batch=32",
            "model.batch_norm_group=8",
            "data.num_examples=96",
            "schedule.warmup=none",
            "schedule.peak=0.02",
        ],
        num_steps: 3,
        tolerance: 1e-4,
    },
];

/// Data parallel, sharded, and hybrid.
const MESHES: [[&str; 2]; 3] = [
    ["mesh.data=4", "mesh.fsdp=1"],
    ["mesh.data=1", "mesh.fsdp=4"],
    ["mesh.data=2", "mesh.fsdp=2"],
];

/// The results of a run.
struct Trained {
    losses: Vec<f64>,
    eval: EvalResult,
    params: Tree<Literal>,
    /// Bytes of the state as a whole, and of what one replica holds of it.
    state_bytes: (usize, usize),
    /// Bytes of the step's arguments on one replica, as the compiler counts them.
    argument_bytes: u64,
    trainer: Trainer,
    batches: TrainBatches,
}

impl Trained {
    /// One more step, on batch `index`.
    fn step(&mut self, index: u64) -> StepResult {
        let batch = self.trainer.batch_sender().send(self.batches.get(index).unwrap()).unwrap();
        let pending = self.trainer.step(batch, 1e-3).unwrap();
        self.trainer.finish(pending).unwrap().remove(0)
    }
}

fn train(case: &Case, mesh: &[&str]) -> Trained {
    train_with(case, mesh, None)
}

fn train_with(case: &Case, mesh: &[&str], policy: Option<Arc<dyn Policy>>) -> Trained {
    let sets = case.sets.iter().chain(mesh).chain(&[QUICK]);
    let sets: Vec<_> = sets.map(|set| (*set).to_owned()).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/a.toml");
    let config = Config::parse(case.config, &path, &sets).unwrap();
    let splits = data::open(&config.data, config.train.seed).unwrap();
    let model = config.model.build(splits.train.num_classes());
    let (client, mesh) = open_devices(&config, |_| ()).unwrap();
    let mut run = Run::new(&config, &splits, mesh, client.platform()).unwrap();
    run.policy = policy.unwrap_or(run.policy);
    let mut trainer = Trainer::new(&client, &run, &*model, config.train.seed).unwrap();
    let (batch, shards) = (run.batch.global_batch(), run.batch.num_batch_shards());
    let batches =
        TrainBatches::new(splits.train.clone(), config.train.seed, batch, shards).unwrap();
    let sender = trainer.batch_sender();
    let size = run.steps_per_launch.max(1) as u64;
    let launch = |index: u64| {
        let steps = index * size..(index + 1) * size;
        let batch = sender.send(batches.launch(steps.clone()).unwrap()).unwrap();
        let rates = steps.map(|step| run.schedule.lr(step)).collect();
        let pending = trainer.launch(batch, rates).unwrap();
        let results = trainer.finish(pending).unwrap();
        results.into_iter().map(|result| result.loss).collect::<Vec<_>>()
    };
    let losses = (0..case.num_steps / size).flat_map(launch).collect();
    trainer.prove_lockstep().unwrap();
    let eval = trainer.evaluate(&splits.eval, &run).unwrap();
    let params = trainer.model().unwrap();
    let whole = trainer.state().specs().values().map(|leaf| leaf.num_bytes()).sum();
    let held = trainer.state().leaves().map(|leaf| leaf.num_bytes()).sum();
    let memory = trainer.step_program().executable.memory().unwrap();
    let (state_bytes, argument_bytes) = ((whole, held), memory.argument_bytes);
    Trained { losses, eval, params, state_bytes, argument_bytes, trainer, batches }
}

fn worst_relative_difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs() / a.abs().max(1e-6)).fold(0.0, f64::max)
}

fn check(case: &Case) {
    let one = train(case, &["mesh.data=1", "mesh.fsdp=1"]);
    let last = one.losses[one.losses.len() - 1];
    assert!(last < one.losses[0] * 0.99, "{} does not learn: {:?}", case.name, one.losses);
    for mesh in MESHES {
        let other = train(case, &mesh);
        let what = format!("{} on {mesh:?}", case.name);
        let worst = worst_relative_difference(&one.losses, &other.losses);
        assert!(worst < case.tolerance, "{what}: losses differ by {worst:e}");
        let worst = worst_relative_difference(&[one.eval.loss], &[other.eval.loss]);
        assert!(worst < 10.0 * case.tolerance, "{what}: evaluations differ by {worst:e}");
        let metrics = |eval: &EvalResult| eval.metrics.clone().into_iter().collect::<Vec<_>>();
        for ((name, one), (_, other)) in metrics(&one.eval).iter().zip(&metrics(&other.eval)) {
            assert!((one - other).abs() < 1e-2, "{what}: {name} is {one} and {other}");
        }
        // The same leaves as a whole, in the same order, whatever the mesh.
        assert!(one.params.paths().eq(other.params.paths()), "{what}");
        for (path, whole) in one.params.iter() {
            let gathered = &other.params[path];
            assert_eq!(
                (whole.dtype(), whole.dims()),
                (gathered.dtype(), gathered.dims()),
                "{what}"
            );
            let (whole, gathered) = (whole.to_f64(), gathered.to_f64());
            let scale = whole.iter().fold(0f64, |scale, x| scale.max(x.abs())).max(1e-3);
            let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e3 * case.tolerance * scale;
            assert!(whole.iter().zip(&gathered).all(close), "{what}: `{path}` differs");
        }
        check_memory(&what, mesh[1], &one, &other);
    }
}

/// `fsdp` reduces the bytes that a replica holds, in its buffers and in the compiler's size of the step's arguments.
fn check_memory(what: &str, fsdp: &str, one: &Trained, other: &Trained) {
    let num_shards: usize = fsdp.rsplit('=').next().unwrap().parse().unwrap();
    let ((whole, held), argument_bytes) = (other.state_bytes, other.argument_bytes);
    assert_eq!(whole, one.state_bytes.0, "{what}");
    // Only small leaves are not sharded.
    let small = |leaf: &&LeafSpec| leaf.sharding.varying().is_empty();
    let specs = other.trainer.state().specs();
    let kept_whole: usize = specs.values().filter(small).map(|leaf| leaf.num_bytes()).sum();
    assert_eq!(held, kept_whole + (whole - kept_whole) / num_shards, "{what}");
    let saved = one.argument_bytes as i64 - argument_bytes as i64;
    assert!(saved >= (whole - held) as i64, "{what}: {saved} bytes of arguments less");
    if num_shards > 1 {
        assert!(held * num_shards < whole * 3 / 2, "{what} holds {held} of {whole} bytes");
    }
}

#[test]
fn digits_agrees_on_any_mesh() {
    CASES[..3].iter().for_each(check);
}

#[test]
fn gpt_agrees_on_any_mesh() {
    CASES[3..6].iter().for_each(check);
}

#[test]
fn resnet20_agrees_on_any_mesh() {
    check(&CASES[6]);
}

/// `params.safetensors` holds whole leaves. The file does not depend on the mesh that wrote it, and on any mesh that
/// reads it, the model evaluates to the same loss.
#[test]
fn files_do_not_depend_on_the_mesh() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(format!("{name}.safetensors"));
    let case = Case { num_steps: 3, ..CASES[0] };
    let sharded = train(&case, &["mesh.data=2", "mesh.fsdp=2"]);
    params_file::save(&path("sharded"), &sharded.params).unwrap();
    let mut files = vec![];
    for mesh in [["mesh.data=1", "mesh.fsdp=1"], ["mesh.data=1", "mesh.fsdp=4"]] {
        let mut other = train(&case, &mesh).trainer;
        let specs = other.model_specs();
        other.set_model(&params_file::load(&path("sharded"), &specs).unwrap()).unwrap();
        other.prove_lockstep().unwrap();
        let params = other.model().unwrap();
        assert_eq!(state::fingerprint(&params), state::fingerprint(&sharded.params));
        params_file::save(&path("other"), &params).unwrap();
        files.push(std::fs::read(path("other")).unwrap());
    }
    let sharded = std::fs::read(path("sharded")).unwrap();
    assert!(files.iter().all(|file| *file == sharded));
}

/// A policy may gather a parameter where it is used, also in the body of a scan or remat and in the copy of that body for
/// the backward pass.
#[test]
fn parameters_can_be_gathered_where_they_are_used() {
    for case in &CASES[3..5] {
        let one = train(case, &["mesh.data=1", "mesh.fsdp=1"]);
        let other = train_with(
            case,
            &["mesh.data=2", "mesh.fsdp=2"],
            Some(Arc::new(Zero::new(Stage::Three))),
        );
        let worst = worst_relative_difference(&one.losses, &other.losses);
        assert!(worst < case.tolerance, "{}: losses differ by {worst:e}", case.name);
        let params = other.trainer.state().specs().subtree("params");
        let num_cut = params.values().filter(|leaf| !leaf.sharding.varying().is_empty()).count();
        let nodes = other.trainer.step_graph().nodes().iter();
        let num_gathers = nodes.filter(|node| node.op.name() == "all_gather").count();
        // The blocks' gathers are in the body of the scan.
        let is_scanned = case.sets.contains(&"model.scan_layers=true");
        assert_eq!(num_gathers < num_cut, is_scanned, "{num_gathers} of {num_cut}");
    }
}

/// On data = 2 and fsdp = 2 each shard has one copy: a flipped bit in it is found, and the replicas that disagree are
/// named.
#[test]
fn a_flipped_bit_in_a_shard_is_found() {
    let case = Case { num_steps: 2, ..CASES[0] };
    let mut trainer = train(&case, &["mesh.data=2", "mesh.fsdp=2"]).trainer;
    let path = "opt_state.first_moment.blocks.0.linear.weight";
    let leaf = trainer.state().get(path).unwrap();
    let mut pieces: Vec<_> = (0..4).map(|replica| leaf.read(replica).unwrap()).collect();
    assert!(pieces[0] == pieces[2] && pieces[1] == pieces[3] && pieces[0] != pieces[1]);
    pieces[3].bytes_mut()[17] ^= 4;
    let pieces: Vec<_> = pieces.into_iter().map(Arc::new).collect();
    trainer.state_mut().replace(path, &pieces).unwrap();
    match trainer.prove_lockstep().unwrap_err() {
        Error::LockstepLost { step, leaf, replicas } => {
            assert_eq!((step, &*leaf, &*replicas), (2, path, "{1} against {3}"));
        }
        other => panic!("{other}"),
    }
}

/// A value in one shard that makes the next state of that shard infinite keeps every replica from updating, although
/// loss and gradients are finite on all of them.
#[test]
fn a_nonfinite_value_in_one_shard_skips_the_update_of_all() {
    let sets = &["train.precision=f64", "train.on_nonfinite=skip", "optimizer.name=sgd"];
    let case = Case { num_steps: 2, sets, ..CASES[0] };
    let mut other = train(&case, &["mesh.data=1", "mesh.fsdp=4"]);
    let path = "opt_state.momentum.blocks.0.linear.weight";
    let spec = other.trainer.state().specs()[path].clone();
    let mut momentum = Literal::zeros(spec.dtype, &spec.dims);
    *momentum.as_mut_slice::<f64>().last_mut().unwrap() = f64::INFINITY;
    other.trainer.state_mut().scatter(path, &momentum).unwrap();
    let before = other.trainer.model().unwrap();
    let result = other.step(2);
    assert!(result.loss.is_finite() && result.grad_norm.is_finite() && !result.is_finite());
    assert_eq!(result.num_skipped, 1);
    assert!(other.trainer.model().unwrap().values().eq(before.values()));
}
