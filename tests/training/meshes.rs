//! The same training on any mesh: replicated, sharded, and both, against one replica, as XLA
//! computes it.
//!
//! Each case runs on one mesh, and each mesh with some case. `LOCKSTEP_FULL=1` runs the cases on
//! more meshes. The product of settings is in `interpreted`.

use std::path::Path;
use std::sync::Arc;

use hlo::{LeafSpec, Literal, Tree};
use lockstep::config::Config;
use lockstep::data::{self, TrainBatches};
use lockstep::observe::EvalResult;
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

/// XLA's lowest level compiles in half the time. Not for convolutions in f64, which are loops that
/// take most of the time.
const QUICK: &str = "compile.overrides.xla_backend_optimization_level=0";

const DIGITS: &str = include_str!("../../examples/digits.toml");
const RESNET20: &str = include_str!("../../examples/resnet20-synthetic.toml");
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

/// Sharded over 4 and over 2 x 2, in every stage; over 8; and replicated. The last two cut layers.
const MESHES: [Mesh; 10] = [
    Mesh { data: 1, fsdp: 4, tensor: 1, zero: 1 },
    Mesh { data: 1, fsdp: 4, tensor: 1, zero: 2 },
    Mesh { data: 1, fsdp: 4, tensor: 1, zero: 3 },
    Mesh { data: 2, fsdp: 2, tensor: 1, zero: 1 },
    Mesh { data: 2, fsdp: 2, tensor: 1, zero: 2 },
    Mesh { data: 2, fsdp: 2, tensor: 1, zero: 3 },
    Mesh { data: 1, fsdp: 8, tensor: 1, zero: 3 },
    Mesh { data: 4, fsdp: 1, tensor: 1, zero: 1 },
    Mesh { data: 2, fsdp: 1, tensor: 2, zero: 1 },
    Mesh { data: 1, fsdp: 2, tensor: 2, zero: 3 },
];
const ONE: Mesh = Mesh { data: 1, fsdp: 1, tensor: 1, zero: 1 };
const HYBRID: Mesh = MESHES[5];

/// Sizes of the axes, and ZeRO's stage.
#[derive(Clone, Copy, Debug)]
struct Mesh {
    data: usize,
    fsdp: usize,
    tensor: usize,
    zero: usize,
}

impl Mesh {
    fn sets(self) -> Vec<String> {
        let Self { data, fsdp, tensor, zero } = self;
        let sizes = [("data", data), ("fsdp", fsdp), ("tensor", tensor)];
        let mut sets: Vec<_> =
            sizes.iter().map(|(axis, size)| format!("mesh.{axis}={size}")).collect();
        sets.extend((fsdp > 1).then(|| format!("parallel.zero={zero}")));
        sets
    }
}

/// Every way to run a model's blocks, every optimizer that takes norms, microbatches and running
/// means.
const MLP: [Case; 4] = [
    Case {
        name: "mlp, clipped AdamW, EMA",
        config: DIGITS,
        sets: &[
            "train.precision=f64",
            "model.dropout=0.1",
            "optimizer.ema_decay=0.9",
            "optimizer.name=adamw",
            "optimizer.clip_grad_norm=0.5",
            "schedule.peak=3e-3",
        ],
        num_steps: 20,
        tolerance: 1e-10,
    },
    Case {
        name: "mlp, LAMB, 4 microbatches",
        config: DIGITS,
        sets: &[
            "train.precision=f64",
            "model.dropout=0.1",
            "optimizer.name=lamb",
            "train.num_microbatches=4",
        ],
        num_steps: 20,
        tolerance: 1e-10,
    },
    Case {
        name: "mlp, five steps per launch",
        config: DIGITS,
        sets: &["train.precision=f64", "optimizer.name=sgd", "train.steps_per_launch=5"],
        num_steps: 20,
        tolerance: 1e-10,
    },
    Case {
        name: "mlp, f32",
        config: DIGITS,
        sets: &["train.precision=f32", "model.dropout=0.1"],
        num_steps: 20,
        tolerance: 1e-4,
    },
];
const GPTS: [Case; 7] = [
    Case { name: "gpt, clipped AdamW", config: GPT, sets: &[], num_steps: 20, tolerance: 1e-10 },
    Case {
        name: "gpt, LAMB, 4 microbatches",
        config: GPT,
        sets: &["optimizer.name=lamb", "schedule.peak=1e-2", "train.num_microbatches=4"],
        num_steps: 20,
        tolerance: 1e-10,
    },
    Case {
        name: "gpt, scan",
        config: GPT,
        sets: &["model.scan_layers=true"],
        num_steps: 20,
        tolerance: 1e-10,
    },
    Case {
        name: "gpt, remat",
        config: GPT,
        sets: &["model.remat=true"],
        num_steps: 20,
        tolerance: 1e-10,
    },
    Case {
        name: "gpt, scan and remat, 4 microbatches",
        config: GPT,
        sets: &[
            "model.scan_layers=true",
            "model.remat=true",
            "train.num_microbatches=4",
            "train.global_batch=32",
        ],
        num_steps: 20,
        tolerance: 1e-10,
    },
    Case {
        name: "gpt, LARS",
        config: GPT,
        sets: &["optimizer.name=lars", "schedule.peak=1.0"],
        num_steps: 20,
        tolerance: 1e-10,
    },
    Case {
        name: "gpt, f32",
        config: GPT,
        sets: &["train.precision=f32"],
        num_steps: 20,
        tolerance: 1e-4,
    },
];
/// In f64: in f32, each step multiplies what rounding has changed by about 2.
const RESNET20S: [Case; 2] = [
    Case {
        name: "resnet20",
        config: RESNET20,
        sets: &[
            "train.global_batch=16",
            "model.batch_norm_group=2",
            "data.num_examples=96",
            "data.image=[3,8,8]",
            "schedule.warmup=none",
            "schedule.peak=0.02",
            "train.precision=f64",
        ],
        num_steps: 6,
        tolerance: 1e-10,
    },
    Case {
        name: "resnet20, clipped AdamW, 4 microbatches",
        config: RESNET20,
        sets: &[
            "train.global_batch=32",
            "model.batch_norm_group=2",
            "data.num_examples=96",
            "data.image=[3,8,8]",
            "schedule.warmup=none",
            "optimizer.name=adamw",
            "optimizer.clip_grad_norm=1.0",
            "schedule.peak=1e-3",
            "train.num_microbatches=4",
            "train.precision=f64",
        ],
        num_steps: 6,
        tolerance: 1e-10,
    },
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

fn train(case: &Case, mesh: Mesh) -> Trained {
    let is_quick = !case.name.starts_with("resnet");
    let quick = is_quick.then_some(&QUICK);
    let sets = case.sets.iter().chain(quick).map(|set| (*set).to_owned());
    let sets: Vec<_> = sets.chain(mesh.sets()).collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/a.toml");
    let config = Config::parse(case.config, &path, &sets).unwrap();
    let splits = data::open(&config).unwrap();
    let model = config.model.build(splits.train.num_outputs());
    let (client, mesh) = open_devices(&config, |_| ()).unwrap();
    let run = Run::new(&config, &splits, mesh, client.platform()).unwrap();
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

fn check(case: &Case, meshes: &[Mesh]) {
    check_against(ONE, case, meshes);
}

fn check_against(reference: Mesh, case: &Case, meshes: &[Mesh]) {
    let one = train(case, reference);
    let last = one.losses[one.losses.len() - 1];
    assert!(last < one.losses[0] * 0.99, "{} does not learn: {:?}", case.name, one.losses);
    for mesh in meshes {
        let other = train(case, *mesh);
        let what = format!("{} on {mesh:?}", case.name);
        let worst = worst_relative_difference(&one.losses, &other.losses);
        println!("{what}: {worst:e}");
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
        check_memory(&what, *mesh, &one, &other);
    }
}

/// `fsdp` and `tensor` reduce the bytes that a replica holds, in its buffers and in the compiler's
/// size of the step's arguments.
fn check_memory(what: &str, mesh: Mesh, one: &Trained, other: &Trained) {
    let ((whole, held), argument_bytes) = (other.state_bytes, other.argument_bytes);
    assert_eq!(whole, one.state_bytes.0, "{what}");
    let specs = other.trainer.state().specs();
    let sizes = other.trainer.state().mesh();
    let piece = |leaf: &LeafSpec| leaf.num_bytes() / sizes.group_size(leaf.sharding.varying());
    assert_eq!(held, specs.values().map(piece).sum::<usize>(), "{what}");
    let saved = one.argument_bytes as i64 - argument_bytes as i64;
    assert!(saved >= (one.state_bytes.1 - held) as i64, "{what}: {saved} bytes of arguments less");
    // Only small leaves are whole.
    let num_pieces = mesh.fsdp * mesh.tensor;
    if num_pieces > 1 {
        assert!(held * num_pieces < whole * 8 / 5, "{what} holds {held} of {whole} bytes");
    }
}

/// The indices of `MESHES` that are tried: `few`, or with `LOCKSTEP_FULL` the first `all`.
fn meshes(few: &[usize], all: usize) -> Vec<Mesh> {
    match std::env::var_os("LOCKSTEP_FULL") {
        Some(_) => MESHES[..all].to_vec(),
        None => few.iter().map(|index| MESHES[*index]).collect(),
    }
}

#[test]
fn mlp_agrees_on_any_mesh() {
    check(&MLP[0], &meshes(&[0, 5, 7], 8));
    check(&MLP[1], &meshes(&[3, 5], 7));
    MLP[2..].iter().for_each(|case| check(case, &[HYBRID]));
}

#[test]
fn gpt_agrees_on_any_mesh() {
    check(&GPTS[0], &meshes(&[1, 6, 8], 10));
    [1, 2, 5].iter().for_each(|case| check(&GPTS[*case], &[HYBRID]));
    [3, 6].iter().for_each(|case| check(&GPTS[*case], &[MESHES[9]]));
}

/// Against as many replicas with whole state, since what bf16 rounds depends on the number of
/// replicas. Gradients are accumulated over microbatches, and parameters rounded before they are
/// sent. Where XLA rounds depends on the mesh on some processors. So not with Adam: the gradients
/// of the keys' biases are rounding errors alone, and Adam would turn them into steps of full size.
#[test]
fn bf16_agrees_on_as_many_replicas() {
    let sets = &[
        "train.precision=bf16",
        "train.num_microbatches=2",
        "optimizer.name=sgd",
        "optimizer.momentum=0.9",
        "schedule.peak=0.1",
    ];
    let case = Case { name: "gpt, bf16", sets, tolerance: 2e-4, ..GPTS[0] };
    check_against(MESHES[7], &case, &meshes(&[1, 3, 5], 6));
}

#[test]
fn gpt_in_a_scan_agrees_on_any_mesh() {
    check(&GPTS[4], &meshes(&[2, 4, 9], 10));
}

#[test]
fn resnet20_agrees_on_any_mesh() {
    check(&RESNET20S[0], &meshes(&[2, 5], 7));
    check(&RESNET20S[1], &[HYBRID]);
}

/// `params.safetensors` holds whole leaves. The file does not depend on the mesh that wrote it, and
/// on any mesh that reads it, the model evaluates to the same loss.
#[test]
fn files_do_not_depend_on_the_mesh() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(format!("{name}.safetensors"));
    let case = Case { num_steps: 3, ..MLP[0] };
    let sharded = train(&case, HYBRID);
    params_file::save(&path("sharded"), &sharded.params).unwrap();
    let mut files = vec![];
    for mesh in [ONE, MESHES[0]] {
        let mut other = train(&case, mesh).trainer;
        let specs = other.model_specs();
        other.set_model(&params_file::open(&path("sharded"), &specs).unwrap()).unwrap();
        other.prove_lockstep().unwrap();
        let params = other.model().unwrap();
        assert_eq!(state::fingerprint(&params), state::fingerprint(&sharded.params));
        params_file::save(&path("other"), &params).unwrap();
        files.push(std::fs::read(path("other")).unwrap());
    }
    let sharded = std::fs::read(path("sharded")).unwrap();
    assert!(files.iter().all(|file| *file == sharded));
}

/// On data = 2 and fsdp = 2 each shard has one copy: a flipped bit in it is found, and the replicas
/// that disagree are named.
#[test]
fn a_flipped_bit_in_a_shard_is_found() {
    let case = Case { num_steps: 2, ..MLP[0] };
    let mut trainer = train(&case, HYBRID).trainer;
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

/// Replicas along `tensor` have other pieces of most leaves, and all of the others.
#[test]
fn a_flipped_bit_in_a_leaf_that_is_not_cut_is_found() {
    let case = Case { num_steps: 1, sets: &["model.num_layers=1"], ..GPTS[0] };
    let mut trainer = train(&case, Mesh { data: 1, ..MESHES[8] }).trainer;
    let path = "params.blocks.0.norm2.weight";
    let leaf = trainer.state().get(path).unwrap();
    let mut values: Vec<_> = (0..2).map(|replica| leaf.read(replica).unwrap()).collect();
    values[1].bytes_mut()[3] ^= 1;
    let values: Vec<_> = values.into_iter().map(Arc::new).collect();
    trainer.state_mut().replace(path, &values).unwrap();
    match trainer.prove_lockstep().unwrap_err() {
        Error::LockstepLost { leaf, replicas, .. } => {
            assert_eq!((&*leaf, &*replicas), (path, "{0} against {1}"));
        }
        other => panic!("{other}"),
    }
}

/// A value in one shard, or in the rows of one stage, that makes the next state of that replica
/// infinite keeps every replica from updating, although loss and gradients are finite on all.
#[test]
fn a_nonfinite_value_in_one_shard_skips_the_update_of_all() {
    const SETS: &[&str] = &["train.precision=f64", "train.on_nonfinite=skip", "optimizer.name=sgd"];
    const STAGES: &[&str] =
        &[SETS[1], SETS[2], "schedule.peak=0.1", "train.num_microbatches=4", "mesh.pipeline=3"];
    let shards = Case { num_steps: 2, sets: SETS, ..MLP[0] };
    let stages = Case { num_steps: 2, sets: STAGES, ..GPTS[0] };
    for (case, mesh, path) in [
        (shards, MESHES[2], "opt_state.momentum.blocks.0.linear.weight"),
        (stages, ONE, "opt_state.momentum.blocks.*.mlp.up.weight"),
    ] {
        let mut other = train(&case, mesh);
        let spec = other.trainer.state().specs()[path].clone();
        let mut momentum = Literal::zeros(spec.dtype, &spec.dims);
        *momentum.as_mut_slice::<f64>().last_mut().unwrap() = f64::INFINITY;
        other.trainer.state_mut().scatter(path, &momentum).unwrap();
        let before = other.trainer.model().unwrap();
        let result = other.step(2);
        assert!(result.loss.is_finite() && result.grad_norm.is_finite() && !result.is_finite());
        assert_eq!(result.num_skipped, 1, "{path}");
        assert!(other.trainer.model().unwrap().values().eq(before.values()), "{path}");
    }
}
