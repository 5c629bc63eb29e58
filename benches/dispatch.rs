//! Wall time of a trivial step over 150 small donated arrays: the host's cost.
//!
//! `cargo bench --bench dispatch -- --replicas 2` prints one line of JSON. See `README.md`.

use std::error::Error;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use hlo::{DType, Literal, Program, ProgramInput, ProgramOutput, TensorType};
use lockstep::pjrt::{
    Arg, Buffers, Client, CompileOptions, InstallOptions, Plugin, find_or_install,
};

const NUM_ARRAYS: usize = 150;
const DIM: usize = 32;
const WARM_UP: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let mut num_replicas = 1;
    let mut steps = 2000;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || -> Result<usize, Box<dyn Error>> {
            Ok(arguments.next().ok_or("a number must follow")?.parse()?)
        };
        match argument.as_str() {
            "--replicas" => num_replicas = number()?,
            "--steps" => steps = number()?,
            "--bench" => {}
            other => return Err(format!("unknown argument {other}").into()),
        }
    }

    let found = find_or_install("cpu", &InstallOptions::from_env()?, |line| eprintln!("{line}"))?;
    let started = Instant::now();
    let plugin = Plugin::load(&found.path)?;
    let load_ms = started.elapsed().as_secs_f64() * 1e3;
    let started = Instant::now();
    let client = Client::cpu(&plugin, num_replicas)?;
    let client_ms = started.elapsed().as_secs_f64() * 1e3;
    let started = Instant::now();
    let executable = client.compile(&program(num_replicas), &CompileOptions::default())?;
    let compile_ms = started.elapsed().as_secs_f64() * 1e3;

    let zeros = Arc::new(Literal::zeros(DType::F32, &[DIM]));
    let mut state = (0..NUM_ARRAYS)
        .map(|_| client.upload_replicated(zeros.clone()))
        .collect::<Result<Vec<Buffers>, _>>()?;
    let mut micros = Vec::with_capacity(steps);
    for step in 0..WARM_UP + steps {
        let started = Instant::now();
        let launch = executable.execute(state.into_iter().map(Arg::Donate).collect())?;
        launch.done.wait()?;
        state = launch.outputs;
        if step >= WARM_UP {
            micros.push(started.elapsed().as_secs_f64() * 1e6);
        }
    }
    assert_eq!(state[7].read(0)?.to_f64(), vec![(WARM_UP + steps) as f64; DIM]);
    micros.sort_by(f64::total_cmp);
    println!(
        "{{\"replicas\": {num_replicas}, \"median_us\": {:.1}, \"p10_us\": {:.1}, \"load_ms\": \
         {load_ms:.1}, \"client_ms\": {client_ms:.2}, \"compile_ms\": {compile_ms:.1}}}",
        micros[steps / 2],
        micros[steps / 10]
    );
    Ok(())
}

/// Adds 1 to each array.
fn program(num_replicas: usize) -> Program {
    let ty = TensorType::new(DType::F32, &[DIM]);
    let array = format!("tensor<{DIM}xf32>");
    let list =
        |each: &dyn Fn(usize) -> String| (0..NUM_ARRAYS).map(each).collect::<Vec<_>>().join(", ");
    let mut text = format!(
        "module @dispatch attributes {{mhlo.num_replicas = {num_replicas} : i32, \
         mhlo.num_partitions = 1 : i32}} {{\nfunc.func public @main({}) -> ({}) {{\n  %one = \
         stablehlo.constant dense<1.0> : {array}\n",
        list(&|k| format!("%a{k}: {array} {{tf.aliasing_output = {k} : i32}}")),
        list(&|_| array.clone()),
    );
    for k in 0..NUM_ARRAYS {
        let _ = writeln!(text, "  %r{k} = stablehlo.add %a{k}, %one : {array}");
    }
    let _ = writeln!(
        text,
        "  return {} : {}\n}}\n}}",
        list(&|k| format!("%r{k}")),
        list(&|_| array.clone())
    );
    let name = |k| format!("state.{k}");
    Program {
        text,
        num_replicas,
        num_processes: 1,
        inputs: (0..NUM_ARRAYS)
            .map(|k| ProgramInput { name: name(k), ty: ty.clone(), donated: true })
            .collect(),
        outputs: (0..NUM_ARRAYS).map(|k| ProgramOutput { name: name(k), ty: ty.clone() }).collect(),
    }
}
