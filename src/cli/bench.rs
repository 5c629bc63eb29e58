//! `lockstep bench`: times of a step, and with `--profile` of its parts and ops.

use std::ffi::OsString;
use std::fmt::Write;
use std::io;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hlo::{Mesh, counted};

use super::args::{BenchArgs, ConfigArgs};
use super::changes::argument;
use super::output::OutputFile;
use super::{Loaded, cluster, collectives, launch, print_line};
use crate::cluster::{DEAD_AFTER, JobSize, Secret, Tls};
use crate::launch::{LaunchOptions, launch};
use crate::train::profile::{self, OpTimes};
use crate::train::{self, BenchOptions, BenchResult, StepParts};

/// Number of ops in the table.
const MAX_OPS: usize = 25;
/// Number of steps in which ops are timed.
const OP_STEPS: usize = 3;
/// All processes of a host start within this time.
const START_WITHIN: Duration = Duration::from_secs(120);

pub fn run(args: &BenchArgs, started: Instant) -> Result<ExitCode> {
    let file = collectives::file(args);
    file.as_ref().map_or(Ok(()), OutputFile::check)?;
    match args.processes {
        Some(num_processes) if num_processes.get() > 1 => {
            return launch_here(args, num_processes.get());
        }
        _ => {}
    }
    if args.collectives {
        return collectives::run(args, file);
    }
    let mut loaded = Loaded::new(&args.config)?;
    loaded.config.compile.cache &= args.warm;
    let member = cluster::join(&loaded.config)?;
    if member.is_some() && args.profile {
        bail!("--profile is for one process; leave it out");
    }
    let worker = |mesh: Mesh| worker(&args.config, mesh);
    let options = BenchOptions {
        num_steps: args.steps as usize,
        started,
        member: member.as_ref(),
        worker: if args.profile { Some(&worker) } else { None },
    };
    let result = train::bench(&loaded.job(), &options);
    let is_first = cluster::leave_after(member, &result);
    let result = result?;
    if args.json && is_first {
        print_line(&serde_json::to_string(&result)?)?;
    } else if is_first {
        print_line(describe(&result, args.steps).trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs this command in several processes of this host.
fn launch_here(args: &BenchArgs, num_processes: usize) -> Result<ExitCode> {
    let mut arguments: Vec<OsString> = vec!["bench".into()];
    if !args.config.config.as_os_str().is_empty() {
        arguments.push(args.config.config.clone().into());
    }
    for set in args.config.sets() {
        arguments.extend(argument(&set).into_iter().map(Into::into));
    }
    arguments.extend(["--steps".into(), args.steps.to_string().into()]);
    if args.collectives {
        arguments.push("--collectives".into());
        arguments.extend(["--max-bytes".into(), args.max_bytes.to_string().into()]);
    }
    if let Some(path) = &args.to {
        arguments.extend(["--to".into(), path.clone().into()]);
    }
    let flags = [("--overwrite", args.overwrite), ("--json", args.json), ("--warm", args.warm)];
    arguments.extend(flags.into_iter().filter(|flag| flag.1).map(|flag| flag.0.into()));
    let options = LaunchOptions {
        program: std::env::current_exe().context("cannot find this program")?,
        arguments,
        job: "bench".to_owned(),
        secret: Secret::random().context("cannot make a token")?,
        tls: (Tls::default(), None),
        size: JobSize::fixed(1, num_processes),
        num_local: num_processes,
        host_index: None,
        coordinator: None,
        is_coordinator_elsewhere: false,
        max_restarts: 0,
        dead_after: DEAD_AFTER,
        stuck_after: None,
        record_dir: None,
        start_within: START_WITHIN,
        interface: None,
    };
    launch::check_num_local(num_processes, "--processes")?;
    Ok(launch::exit_code(launch(&options, &launch::watch()?)?))
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
    let predicted = result.predicted_ms.map_or(String::new(), |predicted_ms| {
        format!("step, by the fabric    {predicted_ms:.3} ms\n")
    });
    let mut text = format!(
        "replicas               {}\n\
         step                   {median_step_ms:.3} ms (median of {num_steps}, each waited for)\n\
         step, no collectives   {compute_only_ms:.3} ms\n\
         {predicted}host, a step           {host_ms_per_step:.3} ms\n\
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
