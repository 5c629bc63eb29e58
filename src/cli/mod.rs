//! The command line: one module per command.
//!
//! Results go to stdout, progress and errors to stderr. Exit codes: 0; 1 for errors and for runs
//! that end with values that are not finite; 2 for wrong usage; 128 plus the number of the signal
//! for runs that a signal stopped.

pub mod allocator;
mod args;
mod bench;
mod changes;
mod checkpoint;
mod class_table;
mod cluster;
mod collectives;
mod compare;
mod compile;
mod coordinator;
mod data;
mod doctor;
mod evaluate;
mod fabric;
mod hlo;
mod host;
mod init;
mod labels;
mod launch;
mod logging;
mod machine;
mod manual;
mod output;
mod picture;
mod place;
mod plan;
mod plot;
mod plugin;
mod predict;
mod preflight;
mod recipes;
mod report;
mod resolved;
mod schedule;
mod search;
mod signals;
mod stragglers;
mod train;

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use ::hlo::{Axis, Mesh};
use anyhow::{Context, Result};
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use models::Model;

use crate::children;
use crate::config::{Config, shorten_words};
use crate::data::Splits;
use crate::observe::{Waiting, say};
use crate::train::Job;
use args::{Args, Command, ConfigArgs};

pub use schedule::{findings, parameter_ranks};

/// Stack of the thread that runs the command, in bytes: as much as the first thread of a process
/// usually has. Only what is used takes memory.
const STACK_BYTES: usize = 8 << 20;

/// Exit code of a process that panics.
const PANICKED: u8 = 101;

/// Runs the command in the arguments of this process, which was started at `started`, on a thread
/// of its own: the stack of the first one is as small as `ulimit -s` makes it.
pub fn main(started: Instant) -> ExitCode {
    let thread = thread::Builder::new().name("main".to_owned()).stack_size(STACK_BYTES);
    match thread.spawn(move || run_command(started)).map(JoinHandle::join) {
        Ok(Ok(code)) => code,
        // The panic has been reported.
        Ok(Err(_)) => PANICKED.into(),
        Err(error) => {
            say(&format!("error: cannot start a thread: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run_command(started: Instant) -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage(&error),
    };
    if matches!(args.command, Command::Train { .. } | Command::Bench(_)) {
        allocator::tune();
    }
    let ran = signals::keep_on_long_files().map_err(anyhow::Error::from);
    match ran.and_then(|()| logging::start(&args.log)).and_then(|()| run(args.command, started)) {
        Ok(code) => code,
        Err(error) => match error.downcast_ref() {
            Some(error) => usage(error),
            None => {
                say(&format!("error: {}", in_words(&error)));
                ExitCode::FAILURE
            }
        },
    }
}

/// An error in the arguments that only the command finds: exit code 2.
fn wrong_usage(text: &str) -> anyhow::Error {
    Args::command().error(ErrorKind::ValueValidation, text).into()
}

/// Prints help, or what is wrong with the arguments.
fn usage(error: &clap::Error) -> ExitCode {
    let text = error.to_string();
    match shorten_words(&text) {
        // Prints in color on a terminal.
        Cow::Borrowed(_) => error.exit(),
        Cow::Owned(text) => say(text.trim_end()),
    }
    ExitCode::from(error.exit_code() as u8)
}

fn run(command: Command, started: Instant) -> Result<ExitCode> {
    match command {
        Command::Train(args) => train::run(args, started),
        Command::Launch(args) => launch::run(args),
        Command::Coordinator(args) => coordinator::run(args),
        Command::Evaluate(args) => evaluate::run(&args),
        Command::Predict(args) => predict::run(&args),
        Command::Config { config, .. } => resolved::run(config.as_ref()),
        Command::Data(args) => data::run(&args),
        Command::Init(args) => init::run(&args),
        Command::Hlo { config, stage } => hlo::run(&config, stage),
        Command::Bench(args) => bench::run(&args, started),
        Command::TimeOps { config, mesh, steps } => {
            children::end_with_parent(|| ());
            let sizes: Vec<_> = Axis::ALL.into_iter().zip(mesh.iter().map(|n| n.get())).collect();
            let mesh = Mesh::new(&sizes);
            bench::serve(&config, mesh, steps)
        }
        Command::Schedule(args) => schedule::run(&args),
        Command::Plot(args) => plot::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Recipes { name, batch, json, table } => match (name, table) {
            (name, Some(form)) => recipes::table(name.as_deref(), form),
            (None, None) => recipes::list(json),
            (Some(name), None) => recipes::write(&name, batch),
        },
        Command::Compile(args) => compile::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Preflight(args) => preflight::run(&args),
        Command::CompileWorker { dir } => compile::serve(&dir),
        Command::ProbePlugin { path, open, trial } => {
            children::end_with_parent(|| ());
            doctor::probe_plugin_here(&path, open, trial)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::ProbeNvidia { nccl } => {
            children::end_with_parent(|| ());
            doctor::probe_nvidia_here(nccl)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Plugin { command } => plugin::run(&command),
        Command::Checkpoint { command } => checkpoint::run(&command),
        Command::Man { dir, overwrite } => manual::run(&dir, overwrite),
        Command::Completions { shell } => {
            // Without the commands that the program gives itself.
            let all = Args::command();
            let shown = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
            let args = all.get_arguments().cloned();
            let mut shown = clap::Command::new("lockstep").args(args).subcommands(shown);
            let mut script = vec![];
            clap_complete::generate(shell, &mut shown, "lockstep", &mut script);
            print_line(String::from_utf8_lossy(&script).trim_end())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Doctor { json } => doctor::run(json),
    }
}

/// A configuration with the data and the model that it names.
struct Loaded {
    config: Config,
    splits: Splits,
    model: Box<dyn Model>,
}

impl Loaded {
    fn new(args: &ConfigArgs) -> Result<Self> {
        Self::with_sets(&args.config, &args.sets())
    }

    fn with_sets(path: &Path, sets: &[String]) -> Result<Self> {
        let mut config = Config::load(path, sets)?;
        // Whether a run could start from the model's parameters is not the question.
        let warnings = labels::settle(&mut config, None).unwrap_or_default();
        Self::of_config(config, warnings)
    }

    /// A run that starts from the parameters in `init`, if there are such.
    fn with_init(mut config: Config, init: Option<&Path>) -> Result<Self> {
        let warnings = labels::settle(&mut config, init)?;
        Self::of_config(config, warnings)
    }

    fn of_config(mut config: Config, warnings: Vec<String>) -> Result<Self> {
        let mut splits = open_data(&config)?;
        splits.warnings.splice(0..0, warnings);
        // So that what reads the run later needs no training data.
        splits.train.write_learned(&mut config.data);
        let model = crate::train::build_model(&config, &*splits.train)?;
        crate::train::check_example(&*model, &config, &splits)?;
        Ok(Self { config, splits, model })
    }

    fn job(&self) -> Job<'_> {
        Job { config: &self.config, model: &*self.model, splits: &self.splits }
    }
}

/// The data of a configuration. Says that it is read, if that takes long.
fn open_data(config: &Config) -> Result<Splits, crate::data::Error> {
    let _waiting = Waiting::on("reading the data");
    crate::data::open(config)
}

/// An error with its causes, without those that the message already contains.
fn in_words(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(|cause| cause.to_string()) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    shorten_words(&text).into_owned()
}

/// A line on stdout.
fn print_line(text: &str) -> Result<()> {
    print_lines(std::iter::once(text))
}

/// Lines on stdout. A closed stdout is not an error: the reader has seen enough.
fn print_lines(lines: impl Iterator<Item = impl std::fmt::Display>) -> Result<()> {
    let mut stdout = io::BufWriter::new(io::stdout().lock());
    let mut lines = lines;
    let written = lines.try_for_each(|line| writeln!(stdout, "{line}"));
    match written.and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to stdout"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_shown_once() {
        let file = || io::Error::other("no such file");
        let with_cause = metrics_error(file());
        assert_eq!(in_words(&with_cause.into()), "cannot write a: no such file");
        let without_cause = anyhow::Error::from(file()).context("cannot start");
        assert_eq!(in_words(&without_cause), "cannot start: no such file");
    }

    fn metrics_error(source: io::Error) -> crate::observe::Error {
        crate::observe::Error::Write { path: "a".into(), source }
    }
}
