//! `lockstep bench`: times of a step, and with `--profile` of its parts and ops.

use std::fmt::Write;
use std::io;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::Result;
use hlo::{Mesh, counted};

use super::args::{BenchArgs, ConfigArgs};
use super::changes::argument;
use super::{Loaded, collectives, print_line};
use crate::train::profile::{self, OpTimes};
use crate::train::{self, BenchOptions, BenchResult, StepParts};

/// Number of ops in the table.
const MAX_OPS: usize = 25;
/// Number of steps in which ops are timed.
const OP_STEPS: usize = 3;

pub fn run(args: &BenchArgs, started: Instant) -> Result<ExitCode> {
    if args.collectives {
        return collectives::run(args);
    }
    let mut loaded = Loaded::new(&args.config)?;
    loaded.config.compile.cache &= args.warm;
    let worker = |mesh: Mesh| worker(&args.config, mesh);
    let options = BenchOptions {
        num_steps: args.steps as usize,
        started,
        worker: if args.profile { Some(&worker) } else { None },
    };
    let result = train::bench(&loaded.job(), &options)?;
    if args.json {
        print_line(&serde_json::to_string(&result)?)?;
    } else {
        print_line(describe(&result, args.steps).trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The command that runs steps with timed ops.
fn worker(config: &ConfigArgs, mesh: Mesh) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("time-ops").arg(&config.config);
    for set in config.sets() {
        command.args(argument(&set));
    }
    command.args(["--mesh", &mesh.sizes().map(|size| size.to_string()).join(",")]);
    command.args(["--steps", &OP_STEPS.to_string()]);
    Ok(command)
}

pub fn serve(config: &ConfigArgs, mesh: Mesh, num_steps: usize) -> Result<ExitCode> {
    let loaded = Loaded::new(config)?;
    profile::serve_ops(&loaded.job(), mesh, num_steps, &mut io::stdout().lock())?;
    Ok(ExitCode::SUCCESS)
}

fn describe(result: &BenchResult, num_steps: u32) -> String {
    let BenchResult { median_step_ms, host_ms_per_step, compute_only_ms, .. } = result;
    let mut text = format!(
        "replicas               {}\n\
         step                   {median_step_ms:.3} ms (median of {num_steps}, each waited for)\n\
         step, no collectives   {compute_only_ms:.3} ms\n\
         host, a step           {host_ms_per_step:.3} ms\n\
         start to first step    {:.3} s\n",
        result.num_replicas, result.first_step_secs
    );
    if !result.start.is_empty() {
        text += "\nway to the end of the first step\n     from       ms\n";
        for span in &result.start {
            text += &format!("{:>9.1} {:>8.1}  {}\n", span.from_ms, span.ms, span.name);
        }
    }
    if let Some(parts) = &result.parts {
        let StepParts { transfer_ms, launch_ms, compute_ms, collectives_ms, read_ms, batch_ms } =
            parts;
        text += &format!(
            "\nparts of a step, each waited for\n\
             transfer of the batch  {transfer_ms:.3} ms\n\
             launch by the host     {launch_ms:.3} ms\n\
             compute                {compute_ms:.3} ms\n\
             collectives            {collectives_ms:.3} ms\n\
             reading the loss       {read_ms:.3} ms\n\
             beside it, in train: making the batch {batch_ms:.3} ms\n"
        );
    }
    if let Some(ops) = &result.ops {
        describe_ops(&mut text, ops, *median_step_ms);
    }
    text
}

fn describe_ops(text: &mut String, ops: &OpTimes, step_ms: f64) {
    let total = ops.total_ms;
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "\n{} ops of one replica's step without communication, one after the other on one \
         processor: {total:.3} ms, {:.2} of the step\n{:>9} {:>6} {:>6}  kind",
        ops.num_launches,
        total / step_ms,
        "ms",
        "share",
        "ops"
    );
    let share = |ms: f64| 100.0 * ms / total;
    for row in &ops.kinds {
        let (ms, num_launches, kind) = (row.ms, row.num_launches, &row.kind);
        let _ = writeln!(text, "{ms:>9.3} {:>5.1}% {num_launches:>6}  {kind}", share(ms));
    }
    let _ = writeln!(text, "\n{:>9} {:>6} {:>6}  op", "ms", "share", "ops");
    for row in ops.ops.iter().take(MAX_OPS) {
        let (ms, num_launches, kind) = (row.ms, row.num_launches, &row.kind);
        let from = match &row.sources[..] {
            [] => String::new(),
            [one] => format!("  {one}"),
            [first, rest @ ..] => format!("  {first} and {} more", rest.len()),
        };
        let op = &row.op;
        let _ =
            writeln!(text, "{ms:>9.3} {:>5.1}% {num_launches:>6}  {kind} {op}{from}", share(ms));
    }
    if ops.ops.len() > MAX_OPS {
        let _ =
            writeln!(text, "and {}; --json has all", counted(ops.ops.len() - MAX_OPS, "more op"));
    }
}
