//! Time of one update of GPT-2 124M's parameters, with and without testing it before it is kept,
//! compared with the bytes that it must move and the memory bandwidth, measured in the same run.
//! See `README.md`.
//!
//! ```text
//! cargo bench --bench update -- [--rounds N]
//! ```

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use hlo::{AxisSet, DType, LeafSpec, Literal, Mesh, TensorType, Tree, passes, trace, verify};
use lockstep::cli::allocator;
use lockstep::config::Config;
use lockstep::lowering::{Lowered, Lowering};
use lockstep::optim::{Context, Transformation, from_config, global_norm};
use lockstep::pjrt::{
    Arg, Client, CompileOptions, InstallOptions, Platform, Plugin, find_or_install,
};
use lockstep::step::{first_nonfinite, recompute_if};
use mimalloc::MiMalloc;
use models::gpt::{GptConfig, GptPreset};
use models::{Batch, Model, Precision, Scope};
use rayon::prelude::*;

/// As of the program.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// An optimizer, and the number of passes over memory of the parameters' size that it needs: each
/// leaf of the state is read and written once, each gradient read once.
const CASES: [(&str, usize); 4] = [("sgd", 5), ("adamw", 7), ("lars", 5), ("lamb", 7)];

fn main() -> Result<(), Box<dyn Error>> {
    allocator::tune();
    let mut rounds = 10;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--rounds" => rounds = arguments.next().ok_or("a number must follow")?.parse()?,
            "--bench" => {}
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    let params = parameters()?;
    let num_params: usize = params.values().map(LeafSpec::num_elements).sum();
    let leaf_gb = num_params as f64 * 4.0 / 1e9;
    println!("{num_params} parameters, {leaf_gb:.3} GB");
    let found = find_or_install("cpu", &InstallOptions::from_env()?, |line| eprintln!("{line}"))?;
    let client = Client::cpu(&Plugin::load(&found.path)?, 1)?;
    let before = triad_gb_per_sec(num_params, rounds);
    println!("memory: {before:.2} GB/s, reading two arrays and writing one");
    for (name, num_passes) in CASES {
        let [alone, normed, tested] = [Form::Alone, Form::Normed, Form::Tested]
            .map(|form| update_secs(&client, name, &params, form, rounds));
        let (alone, normed, tested) = (alone?, normed?, tested?);
        let rate = leaf_gb * num_passes as f64 / alone;
        println!(
            "{name}: {:.1} ms, {num_passes} * {leaf_gb:.3} GB, {rate:.2} GB/s, {:.2} of the \
             memory's; with the gradient norm {:.1} ms; in a step {:.1} ms",
            alone * 1e3,
            rate / before,
            normed * 1e3,
            tested * 1e3
        );
    }
    let after = triad_gb_per_sec(num_params, rounds);
    println!("memory again: {after:.2} GB/s");
    Ok(())
}

/// Other results that are computed with the update.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// Nothing.
    Alone,
    /// The update is kept only if the gradient norm is finite.
    Normed,
    /// The update is kept only if all of the next state is finite too: what a step does.
    Tested,
}

/// The parameters of GPT-2 124M.
fn parameters() -> Result<Tree<LeafSpec>, hlo::Error> {
    let model = GptConfig::preset(GptPreset::Gpt2Small).model();
    let mut params = Tree::new();
    trace(Mesh::SINGLE, |t| {
        let scope = Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY);
        let ids =
            |name: &str| (name.to_owned(), t.input(name, TensorType::new(DType::I32, &[1, 1])));
        let weight = t.full(DType::F32, &[1], 1.0);
        let fields = ["x", "y"].iter().map(|name| ids(name)).collect();
        model.loss(&scope, &Batch { fields, weight });
        params = scope.parameters().map(|_, p| LeafSpec::replicated(DType::F32, &p.dims));
    })?;
    Ok(params)
}

/// The median time of an update in seconds, until it is complete.
fn update_secs(
    client: &Client,
    name: &str,
    params: &Tree<LeafSpec>,
    form: Form,
    rounds: usize,
) -> Result<f64, Box<dyn Error>> {
    let Lowered { graph, program } = update(&*optimizer(name)?, params, form)?;
    let executable = client.compile(&program, &CompileOptions::default())?;
    let upload = |input: &hlo::Input| -> Result<_, Box<dyn Error>> {
        let ty = graph.ty(input.value);
        let value = if input.name.starts_with("opt_state.") { 0.0 } else { 0.01 };
        let values = Literal::from_f64(ty.dtype, &ty.dims, &vec![value; ty.num_elements()]);
        Ok(client.upload_replicated(Arc::new(values))?)
    };
    let num_state = graph.outputs().len();
    let buffers = graph.inputs().iter().map(upload).collect::<Result<Vec<_>, _>>()?;
    let mut state = buffers;
    let rest = state.split_off(num_state);
    let mut seconds = vec![];
    for round in 0..rounds + 2 {
        let started = Instant::now();
        let args = state.into_iter().map(Arg::Donate).chain(rest.iter().map(Arg::Borrow));
        let launch = executable.execute(args.collect())?;
        launch.done.wait()?;
        state = launch.outputs;
        // The first rounds touch fresh memory.
        if round >= 2 {
            seconds.push(started.elapsed().as_secs_f64());
        }
    }
    Ok(median(seconds))
}

fn optimizer(name: &str) -> Result<Box<dyn Transformation>, Box<dyn Error>> {
    let text = "model = { name = \"mlp\" }\n data = { source = \"synthetic\" }\n\
                train = { global_batch = 8, steps = 10 }\n optimizer = { name = \"sgd\" }\n\
                schedule = { name = \"constant\", peak = 0.1 }";
    let sets = [format!("optimizer.name={name}"), "optimizer.weight_decay=0.01".to_owned()];
    Ok(from_config(&Config::parse(text, Path::new("update.toml"), &sets)?.optimizer))
}

/// `params, opt_state, num_updates, learning_rate, totals, scale -> params, opt_state`; `totals`
/// are sums of gradients.
fn update(
    optimizer: &dyn Transformation,
    params: &Tree<LeafSpec>,
    form: Form,
) -> Result<Lowered, Box<dyn Error>> {
    let mut leaves = params.clone().prefixed("params");
    leaves.extend(optimizer.init(params).prefixed("opt_state"));
    let graph = trace(Mesh::SINGLE, |t| {
        let inputs = leaves.map(|path, leaf| t.input(path, leaf.global_type()));
        let context = Context {
            params: inputs.subtree("params"),
            specs: params.clone(),
            num_updates: t.input("num_updates", TensorType::new(DType::U32, &[])),
            learning_rate: t.input("learning_rate", TensorType::new(DType::F32, &[])),
        };
        let totals = params.map(|path, leaf| t.input(format!("totals.{path}"), leaf.global_type()));
        let scale = t.input("scale", TensorType::new(DType::F32, &[]));
        let mean = totals.map(|_, total| *total * scale);
        let mut state = inputs.subtree("opt_state");
        let updates = optimizer.update(mean.clone(), &mut state, &context);
        let next = context.params.map(|path, param| *param + updates[path]);
        let mut next = next.prefixed("params");
        next.extend(state.prefixed("opt_state"));
        let norm = global_norm(&mean, &context.specs).filter(|_| form != Form::Alone);
        let mut apply = norm.map(|norm| norm.is_finite());
        if let (Some(is_mean_finite), Form::Tested) = (apply, form) {
            let next_if = |apply| recompute_if(apply, &next, &mean, &totals, scale);
            let finite = first_nonfinite(t, &next_if(is_mean_finite), AxisSet::EMPTY)
                .equal(0.0)
                .and(is_mean_finite);
            apply = Some(finite);
            next = next_if(finite);
        }
        for (path, next) in next.iter() {
            t.next_state(path, apply.map_or(*next, |apply| apply.select(*next, inputs[path])));
        }
    })?;
    let lowered = Lowering::for_platform(Platform::Cpu).lower(passes::simplify(&graph), "update");
    verify(&lowered.graph)?;
    Ok(lowered)
}

/// Memory bandwidth: the bytes per second that `a = b + 3 c` moves, over arrays of the parameters'
/// size on all cores. McCalpin, "Memory bandwidth and machine balance in current high performance
/// computers" (1995).
fn triad_gb_per_sec(num_elements: usize, rounds: usize) -> f64 {
    let (b, c) = (vec![1f32; num_elements], vec![2f32; num_elements]);
    let mut a = vec![0f32; num_elements];
    let chunk = 1 << 16;
    let seconds = (0..rounds + 1)
        .map(|_| {
            let started = Instant::now();
            let pieces = a.par_chunks_mut(chunk).zip(b.par_chunks(chunk).zip(c.par_chunks(chunk)));
            pieces.for_each(|(a, (b, c))| {
                for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
                    *a = b + 3.0 * c;
                }
            });
            started.elapsed().as_secs_f64()
        })
        .collect();
    assert_eq!(a[num_elements / 2], 7.0);
    3.0 * num_elements as f64 * 4.0 / 1e9 / median(seconds)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
