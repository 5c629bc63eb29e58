//! GPT on real devices: replicas and all ways to run blocks agree, and rematerialization saves
//! memory.

use std::path::Path;
use std::sync::Arc;

use crate::support;
use hlo::{
    AxisSet, DType, Graph, Literal, Mesh, Tensor, TensorType, Tracer, Tree, grad, lower, passes,
    trace,
};
use lockstep::config::{self, Config};
use lockstep::data::{self, TrainBatches};
use lockstep::pjrt::{Arg, CompileOptions, Executable, OverrideValue, Platform};
use lockstep::step;
use lockstep::train::{Run, Trainer, open_devices};
use models::gpt::{self, Gpt};
use models::{Batch, Loss, Model, Precision, Scope};

const CONFIG: &str = r#"
[model]
name = "gpt"
num_layers = 2
width = 32
num_heads = 2
context = 16
vocabulary = 16
[data]
source = "synthetic"
num_examples = 256
features = 17
[train]
global_batch = 16
steps = 20
[optimizer]
name = "adamw"
[schedule]
name = "constant"
peak = 3e-3
"#;

/// A GPT on the synthetic task's numbers, quantized to 16 levels: 17 numbers are 16 tokens and
/// their successors.
struct OnLevels(Gpt);

impl Model for OnLevels {
    fn loss<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
        let x = batch.field("x").convert(DType::F32);
        let tokens = (x * 2.0 + 8.0).clamp(0.0, 15.0).floor().convert(DType::I32);
        let part = |name: &str, first: usize| -> (String, Tensor<'g>) {
            (name.to_owned(), tokens.slice_dim(1, first, first + 16))
        };
        let fields = [part("x", 0), part("y", 1)].into_iter().collect();
        self.0.loss(scope, &Batch { fields, weight: batch.weight })
    }
}

fn losses(num_steps: u64, sets: &[String]) -> Vec<f64> {
    let config = Config::parse(CONFIG, Path::new("/runs/gpt.toml"), sets).unwrap();
    let config::ModelConfig::Gpt(gpt) = &config.model else { panic!("another model") };
    let model = OnLevels(gpt.model());
    let splits = data::open(&config).unwrap();
    let (client, mesh) = open_devices(&config, |_| ()).unwrap();
    let run = Run::new(&config, &splits, mesh, client.platform()).unwrap();
    let mut trainer = Trainer::new(&client, &run, &model, config.train.seed).unwrap();
    let (seed, size) = (config.train.seed, run.batch.global_batch());
    let batches = TrainBatches::new(splits.train, seed, size, mesh.num_replicas()).unwrap();
    let sender = trainer.batch_sender();
    (0..num_steps)
        .map(|step| {
            let batch = sender.send(batches.get(step).unwrap()).unwrap();
            let pending = trainer.step(batch, run.schedule.lr(step)).unwrap();
            trainer.finish(pending).unwrap()[0].loss
        })
        .collect()
}

fn worst_relative_difference(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs() / a.abs()).fold(0.0, f64::max)
}

#[test]
fn loss_curves_agree_on_any_number_of_replicas_and_however_blocks_are_run() {
    for (precision, tolerance) in [("f32", 1e-4), ("f64", 1e-10)] {
        let run = |num_replicas: usize, scan: bool, remat: bool| {
            let sets = [
                format!("mesh.data={num_replicas}"),
                format!("train.precision={precision}"),
                format!("model.scan_layers={scan}"),
                format!("model.remat={remat}"),
            ];
            losses(20, &sets)
        };
        let one = run(1, false, false);
        assert!(one[19] < one[0] * 0.95, "it does not learn: {one:?}");
        for (num_replicas, scan, remat) in [(2, false, true), (4, false, false), (4, true, true)] {
            let worst = worst_relative_difference(&one, &run(num_replicas, scan, remat));
            assert!(
                worst < tolerance,
                "{precision}, {num_replicas} replicas, scan {scan}, remat {remat}: {worst:e}"
            );
        }
    }
}

/// The sizes of `examples/gpt-bytes.toml`. XLA's lowest optimization level halves the compile time.
#[test]
fn four_layers_of_width_128_agree_on_any_number_of_replicas() {
    let run = |num_replicas: usize| {
        let mesh = format!("mesh.data={num_replicas}");
        let sizes = ["model.num_layers=4", "model.width=128", "model.num_heads=4"];
        let quick = "compile.overrides.xla_backend_optimization_level=0";
        let sets = sizes.into_iter().chain([quick, &*mesh]).map(str::to_owned);
        losses(8, &sets.collect::<Vec<_>>())
    };
    let one = run(1);
    assert!(one[7] < one[0], "it does not learn: {one:?}");
    for num_replicas in [2, 4, 8] {
        let worst = worst_relative_difference(&one, &run(num_replicas));
        assert!(worst < 1e-4, "{num_replicas} replicas: {worst:e}");
    }
}

/// `examples/gpt2-124m.toml` on short examples and in f32.
fn gpt2_124m(sets: &[&str]) -> (gpt::Gpt, Config) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/gpt2-124m.toml");
    let short = [
        "data.context=128",
        "train.batch_per_replica=4",
        "train.precision=f32",
        "optimizer.name=sgd",
        "mesh.data=1",
    ];
    let sets: Vec<_> = short.iter().chain(sets).map(|set| (*set).to_owned()).collect();
    let config = Config::load(&file, &sets).unwrap();
    let config::ModelConfig::Gpt(gpt) = &config.model else { panic!("another model") };
    (gpt.model(), config)
}

#[test]
fn gpt2_124m_has_the_published_number_of_parameters() {
    let (model, config) = gpt2_124m(&[]);
    let splits = data::open(&config).unwrap();
    let run = Run::new(&config, &splits, Mesh::SINGLE, Platform::Cpu).unwrap();
    let declared = run.spec(&model).declare().unwrap();
    let sizes = declared.parameters().values().map(|p| p.dims.iter().product::<usize>());
    assert_eq!(sizes.sum::<usize>(), 124_439_808);
}

/// With one of its layers, the initial loss is near that of guessing among all tokens, plus half
/// the variance of the logits: their standard deviation is `0.02 sqrt(768)`, however many layers
/// come before the last norm.
#[test]
fn gpt2_124m_starts_at_the_loss_of_guessing() {
    let (model, config) = gpt2_124m(&["model.num_layers=1"]);
    let splits = data::open(&config).unwrap();
    let run = Run::new(&config, &splits, Mesh::SINGLE, Platform::Cpu).unwrap();
    let declared = run.spec(&model).declare().unwrap();
    let client = support::client();
    let init = step::trace_init(&declared).unwrap();
    let program = support::compile(&init).unwrap();
    let seed = Arc::new(Literal::from_slice(&[2], &[0u32, 0]));
    let seed = client.upload_on(program.placement(), &[seed]).unwrap();
    let state = program.execute(vec![Arg::Borrow(&seed)]).unwrap().outputs;
    let mut state: Tree<_> =
        init.outputs().iter().map(|output| output.name.clone()).zip(state).collect();
    let (eval, _) = step::trace_eval(&declared).unwrap();
    let program = support::compile(&eval).unwrap();
    let mut batch = TrainBatches::new(splits.train, 0, 4, 1).unwrap().get(0).unwrap().fields;
    batch.insert("weight", vec![Arc::new(Literal::from_slice(&[4], &[1f32; 4]))]);
    for (name, values) in batch {
        let values = client.upload_on(program.placement(), &values).unwrap();
        state.insert(format!("batch.{name}"), values);
    }
    let args = eval.inputs().iter().map(|input| Arg::Borrow(&state[&input.name])).collect();
    let sums = program.execute(args).unwrap().outputs[0].read(0).unwrap().to_f64();
    let loss = sums[0] / sums[1];
    assert!((loss / 50257f64.ln() - 1.0).abs() < 0.02, "{loss}");
}

fn batch(t: &Tracer) -> Batch<'_> {
    let ids = |name: &str| t.input(name, TensorType::new(DType::I32, &[8, 128]));
    let fields = ["x", "y"].map(|name| (name.to_owned(), ids(name)));
    Batch { fields: fields.into_iter().collect(), weight: t.full(DType::F32, &[8], 1.0) }
}

/// Loss and gradients of a GPT, compiled.
fn gradients(config: gpt::GptConfig, overrides: &[(&str, &str)]) -> (Graph, Executable) {
    let model = config.model();
    let mut declared = Tree::new();
    trace(Mesh::SINGLE, |t| {
        let scope = Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY);
        model.loss(&scope, &batch(t));
        declared = scope.parameters();
    })
    .unwrap();
    let graph = trace(Mesh::SINGLE, |t| {
        let f32s = Precision::uniform(DType::F32);
        let params = declared.map(|path, p| t.input(path, TensorType::new(p.dtype, &p.dims)));
        let scope = Scope::bind(t, f32s, params.clone(), None);
        let loss = model.loss(&scope, &batch(t));
        t.output("loss", loss.sum);
        let params: Vec<_> = params.values().copied().collect();
        for (i, gradient) in grad(loss.sum, &params).into_iter().enumerate() {
            t.output(format!("gradient.{i}"), gradient);
        }
    });
    let graph = passes::simplify(&graph.unwrap());
    let program = lower(&graph, "gradient");
    let text = |(name, value): &(&str, &str)| {
        ((*name).to_owned(), OverrideValue::String((*value).to_owned()))
    };
    let overrides = overrides.iter().map(text).collect();
    let options = CompileOptions { overrides, ..CompileOptions::default() };
    let executable = support::client().compile(&program, &options).unwrap();
    (graph, executable)
}

/// Temporaries of the gradient of a GPT of 12 layers, in bytes.
fn temporaries(scan_layers: bool, remat: bool) -> u64 {
    let config = gpt::GptConfig {
        num_layers: Some(12),
        width: Some(64),
        scan_layers,
        remat,
        ..gpt::GptConfig::default()
    };
    // They do not depend on the level of the machine code.
    let fast = [("xla_backend_optimization_level", "0")];
    gradients(config, &fast).1.memory().unwrap().temporary_bytes
}

/// The same bits if each op is compiled by itself. With fusion, XLA may contract a product and a
/// sum to a fused multiply-add in only one of the two programs; then they agree to a few units in
/// the last place of f32.
#[test]
fn rematerialization_changes_no_gradient() {
    let run = |scan_layers: bool, remat: bool, disabled_passes: &str| {
        let config = gpt::GptConfig {
            num_layers: Some(2),
            width: Some(32),
            vocabulary: Some(32),
            scan_layers,
            remat,
            ..gpt::GptConfig::default()
        };
        let (graph, executable) = gradients(config, &[("xla_disable_hlo_passes", disabled_passes)]);
        let inputs = graph.inputs().iter().zip(0..).map(|(input, stream)| {
            let ty = graph.ty(input.value);
            let is_float = ty.dtype.is_float();
            let (low, high) = if is_float { (-0.2, 0.2) } else { (0.0, 32.0) };
            let values = support::uniform(stream, ty.num_elements(), low, high);
            vec![Literal::from_f64(ty.dtype, &ty.dims, &values)]
        });
        support::run(&executable, &inputs.collect::<Vec<_>>()).unwrap()
    };
    let worst = |kept: &[Vec<Literal>], again: &[Vec<Literal>]| {
        let of_leaf = |(kept, again): (&Vec<Literal>, &Vec<Literal>)| {
            let (kept, again) = (kept[0].to_f64(), again[0].to_f64());
            let scale = kept.iter().fold(0f64, |greatest, x| greatest.max(x.abs()));
            let differences = kept.iter().zip(&again).map(|(a, b)| (a - b).abs() / scale);
            differences.fold(0f64, f64::max)
        };
        kept.iter().zip(again).map(of_leaf).fold(0f64, f64::max)
    };
    // Without this pass, which runs by default, barriers stay and keep the recomputation separate.
    let fused = "cse_barrier_expander";
    let apart = "cse_barrier_expander,fusion";
    for scan in [false, true] {
        assert!(run(scan, false, apart) == run(scan, true, apart), "scan {scan}: other bits");
    }
    let worst = worst(&run(false, false, fused), &run(false, true, fused));
    eprintln!("fused: the worst difference is {worst:e} of the leaf's greatest element");
    assert!(worst < 4e-6, "{worst:e}");
}

#[test]
fn rematerialization_at_least_halves_the_temporaries_of_twelve_layers() {
    // Unrolled, they compile for long: of the full set.
    let is_full = std::env::var_os("LOCKSTEP_FULL").is_some();
    for scan in if is_full { &[true, false][..] } else { &[true] } {
        let scan = *scan;
        let [kept, again] = [false, true].map(|remat| temporaries(scan, remat));
        eprintln!("scan {scan}: temporaries {kept} bytes, computed again {again}");
        assert!(again * 2 <= kept, "scan {scan}: {kept} bytes kept, {again} computed again");
    }
}
