//! `lockstep schedule`: the learning rate over the run, from the configuration alone.
//!
//! It uses the same [`Schedule`] as `train`, so it prints what `metrics.jsonl` records. It opens
//! the data only if the configuration does not have the number of examples.

mod against;
mod check;
mod plot;
mod table;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use hlo::counted;
use serde::Serialize;

pub use check::{findings, parameter_ranks};
pub(super) use plot::curve as rate_curve;

use super::args::ScheduleArgs;
use super::{picture, print_line, print_lines};
use crate::config::{BatchSize, Config, RunLength, RunLengthError};
use crate::observe::stdout_columns;
use crate::optim::schedule::{self, Schedule};
use crate::{data, train};

/// The schedule of one number of replicas.
struct Column {
    /// `lr`, or `lr_8` among several.
    name: String,
    /// The number of replicas, if the global batch depends on it.
    num_batch_shards: Option<usize>,
    run: RunLength,
    schedule: Schedule,
}

impl Column {
    /// The rates of all steps.
    fn rates(&self) -> impl Iterator<Item = f64> {
        (0..self.schedule.total_steps()).map(|step| self.schedule.lr(step))
    }
}

/// The output of `--json` for a [`Column`].
#[derive(Serialize)]
struct Figures {
    num_batch_shards: Option<usize>,
    global_batch: usize,
    total_steps: u64,
    steps_per_epoch: Option<u64>,
    warmup_steps: u64,
    peak: f64,
    /// A rate for each step.
    lr: Vec<f64>,
}

/// Runs the command.
pub fn run(args: &ScheduleArgs) -> Result<ExitCode> {
    if let Some(rule) = &args.explain {
        return check::explain(rule);
    }
    let Some(files) = &args.config else { bail!("name a configuration") };
    let config = Config::load(&files.config, &files.sets())?;
    if args.check {
        return check::run(&config, args.json);
    }
    if let Some(name) = &args.against {
        return against::run(&config, name, args.json);
    }
    let file = picture::file(args.plot.as_deref(), args.overwrite)?;
    let columns = columns(&config, &args.replicas)?;
    if let Some(file) = file {
        plot::save(file, &files.config, &config, &columns)?;
    }
    if args.json {
        let figures: Vec<_> = columns.iter().map(figures).collect();
        print_line(&serde_json::to_string(&figures)?)?;
    } else if args.csv {
        print_lines(table::csv(&columns))?;
    } else if let Some(path) = &args.plot {
        print_line(&path.display().to_string())?;
    } else {
        print_lines(
            table::table(&config, &columns, stdout_columns().unwrap_or(usize::MAX)).into_iter(),
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn figures(column: &Column) -> Figures {
    Figures {
        num_batch_shards: column.num_batch_shards,
        global_batch: column.run.global_batch(),
        total_steps: column.run.total_steps(),
        steps_per_epoch: column.run.steps_per_epoch(),
        warmup_steps: column.schedule.warmup_steps(),
        peak: column.schedule.peak(),
        lr: column.rates().collect(),
    }
}

/// A column for each number of replicas; by default for that of the mesh.
fn columns(config: &Config, replicas: &[u32]) -> Result<Vec<Column>> {
    let examples = Examples::of(config);
    if replicas.is_empty() {
        let num_batch_shards = match config.train.batch {
            BatchSize::Global(_) => None,
            BatchSize::PerReplica(_) => Some(train::mesh_on_host(config).num_batch_shards()),
        };
        return Ok(vec![column(config, &examples, "lr".to_owned(), num_batch_shards)?]);
    }
    if let BatchSize::Global(_) = config.train.batch {
        bail!(
            "--replicas shows what more replicas do to a batch that grows with them, but \
             train.global_batch does not; set train.batch_per_replica instead"
        );
    }
    let column = |num_batch_shards: &u32| {
        let name = format!("lr_{num_batch_shards}");
        column(config, &examples, name, Some(*num_batch_shards as usize))
            .with_context(|| format!("with {}", counted(*num_batch_shards, "replica")))
    };
    replicas.iter().map(column).collect()
}

fn column(
    config: &Config,
    examples: &Examples,
    name: String,
    num_batch_shards: Option<usize>,
) -> Result<Column> {
    let global_batch = config.global_batch(num_batch_shards.unwrap_or(1))?;
    let run = RunLength::new(config.train.length, examples.count(), global_batch);
    let run = run.map_err(|error| examples.explain(error))?;
    let schedule = Schedule::new(&config.schedule, &run).map_err(|error| match error {
        schedule::Error::Length(error) => examples.explain(error),
        error => error.into(),
    })?;
    Ok(Column { name, num_batch_shards, run, schedule })
}

/// The number of training examples, or why it is not known.
struct Examples(Result<usize, data::Error>);

impl Examples {
    /// From the configuration, or else from the data.
    fn of(config: &Config) -> Self {
        if let Some(num_examples) = config.data.num_examples() {
            return Self(Ok(num_examples));
        }
        let splits = data::open(config);
        Self(
            splits.map(|splits| usize::try_from(splits.train.num_examples()).unwrap_or(usize::MAX)),
        )
    }

    fn count(&self) -> Option<usize> {
        self.0.as_ref().ok().copied()
    }

    /// The error, and if the number of examples is missing, why.
    fn explain(&self, error: RunLengthError) -> anyhow::Error {
        match (&error, &self.0) {
            (RunLengthError::UnknownExamples { .. }, Err(reason)) => {
                anyhow::Error::msg(reason.to_string()).context(error)
            }
            _ => error.into(),
        }
    }
}
