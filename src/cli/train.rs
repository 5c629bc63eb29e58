//! `lockstep train`.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hlo::counted;

use super::args::TrainArgs;
use super::{Loaded, cluster, print_line, signals, wrong_usage};
use crate::cluster::REGROUP_CODE;
use crate::config::Config;
use crate::observe::{Status, Summary, say};
use crate::train::{self, Error, Options, Outcome, Resume, Stop, params_file};

/// As of `nice`.
const LOWEST_PRIORITY: i32 = 19;
/// The value of `--resume` without one.
const AUTO: &str = "auto";
/// How long a process that was killed may keep the directories of its run.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn run(args: TrainArgs, started: Instant) -> Result<ExitCode> {
    if let Some(num_processes) = cluster::only_compiles_for()? {
        return compile_beforehand(&args, num_processes);
    }
    let stop = Stop::default();
    let received = signals::watch(&stop)?;
    let TrainArgs { config, out, overwrite, resume, init, json } = args;
    if let (Some(from), Some(_)) = (resume.as_ref().filter(|path| path.as_os_str() != AUTO), &init)
    {
        let text = format!(
            "--resume {0} and --init both say where the run begins; leave out --init to continue \
             from {0}",
            from.display()
        );
        return Err(wrong_usage(&text));
    }
    let mut config = Config::load(&config.config, &config.sets())?;
    cluster::fit_roster(&mut config)?;
    if let Some(init) = &init {
        params_file::check_counterpart(init, &config.model)?;
    }
    let loaded = Loaded::with_init(config, init.as_deref())?;
    let resume = match resume {
        None => Resume::Never,
        Some(path) if path.as_os_str() == AUTO => Resume::Newest,
        Some(path) => Resume::From(path),
    };
    let member = cluster::join(&loaded.config)?;
    let patience = cluster::start_within()?.unwrap_or(PATIENCE);
    let snapshots = cluster::snapshots()?;
    let mut options =
        Options { started, out, overwrite, init, resume, patience, stop, member, snapshots };
    let trained = train::train(&loaded.job(), &options);
    let is_regrouping = options.stop.is_regrouping();
    let is_first = options.member.as_ref().is_none_or(|member| member.process().index == 0);
    if let Some(member) = options.member.take() {
        cluster::leave(member, &trained, is_regrouping);
    }
    let Outcome { summary, failure } = match trained {
        Err(error @ Error::StoppedBeforeStart) => {
            let code = received.exit_code();
            say(&error.to_string());
            return Ok(code.into());
        }
        outcome => outcome?,
    };
    let line = match json {
        true => Some(serde_json::to_string(&summary)?),
        false => in_a_line(&summary).filter(|_| !(is_shown(&summary) && is_one_terminal())),
    };
    let printed =
        line.filter(|_| is_first && !is_regrouping).map_or(Ok(()), |line| print_line(&line));
    match failure {
        // The failure matters more than a reader that has gone away.
        Some(failure) => Err(failure.into()),
        None if printed.is_err() => printed.map(|()| ExitCode::SUCCESS),
        None if is_regrouping => Ok(REGROUP_CODE.into()),
        None if summary.status == Status::Interrupted => Ok(received.exit_code().into()),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Fills the compile cache for so many processes, with what the running ones leave of the
/// processors.
fn compile_beforehand(args: &TrainArgs, num_processes: usize) -> Result<ExitCode> {
    cluster::follow_supervisor()?;
    // Of this thread and of those that it starts. At the usual priority they do the same.
    let _ = rustix::process::setpriority_process(None, LOWEST_PRIORITY);
    let compile = || {
        let mut config = Config::load(&args.config.config, &args.config.sets())?;
        cluster::fit_roster(&mut config)?;
        if !train::compiles_beforehand(&config) {
            return Ok(());
        }
        let loaded = Loaded::with_init(config, args.init.as_deref())?;
        anyhow::Ok(train::compile_beforehand(&loaded.job(), num_processes)?)
    };
    compile().with_context(|| {
        format!("the programs of {num_processes} processes are not compiled beforehand")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// `true` if the last line about the run, on stderr, was of the evaluation after its last step.
fn is_shown(summary: &Summary) -> bool {
    let is_last = summary.eval_step.is_some_and(|step| step + 1 == summary.steps);
    summary.status != Status::Interrupted && is_last
}

/// `true` if stdout and stderr are the same terminal.
fn is_one_terminal() -> bool {
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let device = |stream: &dyn AsFd| {
        let file = File::from(stream.as_fd().try_clone_to_owned().ok()?);
        Some(file.metadata().ok()?.rdev())
    };
    stdout.is_terminal()
        && stderr.is_terminal()
        && device(&stdout).is_some_and(|out| device(&stderr) == Some(out))
}

/// The result of a run in a line. If the last evaluation was not at the end of the run, the line
/// says after which step it was.
fn in_a_line(summary: &Summary) -> Option<String> {
    let Summary { status, steps, planned_steps, .. } = summary;
    let metrics: String = match summary.eval_accuracy {
        Some(accuracy) => format!("accuracy {accuracy:.4}, "),
        None => {
            let metrics = summary.eval_metrics.iter();
            let name = |key: &str| key.strip_prefix("eval_").unwrap_or(key).to_owned();
            metrics.map(|(key, value)| format!("{} {value:.4}, ", name(key))).collect()
        }
    };
    let eval = summary.eval_loss.map(|loss| format!("{metrics}loss {loss:.4}"));
    let eval_steps = counted(summary.eval_step.map_or(0, |step| step + 1), "step");
    match (status, eval) {
        (Status::Interrupted, None) => {
            Some(format!("stopped after {steps} of {planned_steps} steps"))
        }
        (Status::Interrupted, Some(eval)) => Some(format!(
            "stopped after {steps} of {planned_steps} steps; evaluation after {eval_steps}: {eval}"
        )),
        (_, Some(eval)) => Some(format!("evaluation: {eval}, after {eval_steps}")),
        (_, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evaluation_is_shown_with_its_step() {
        let mut summary = Summary {
            status: Status::Interrupted,
            steps: 3496,
            planned_steps: 9000,
            ..Summary::default()
        };
        let line = |summary: &Summary| in_a_line(summary).unwrap_or_default();
        assert_eq!(line(&summary), "stopped after 3496 of 9000 steps");
        (summary.eval_loss, summary.eval_step) = (Some(0.25), Some(2799));
        let stopped = "stopped after 3496 of 9000 steps; evaluation after 2800 steps: loss 0.2500";
        assert_eq!(line(&summary), stopped);
        summary.eval_accuracy = Some(0.9);
        summary.status = Status::Failed;
        assert_eq!(line(&summary), "evaluation: accuracy 0.9000, loss 0.2500, after 2800 steps");
        (summary.eval_loss, summary.eval_step) = (None, None);
        assert_eq!(in_a_line(&summary), None);

        (summary.eval_loss, summary.eval_step) = (Some(0.25), Some(2799));
        assert!(!is_shown(&summary), "696 steps have followed it");
        summary.steps = 2800;
        assert!(is_shown(&summary));
        summary.status = Status::Interrupted;
        assert!(!is_shown(&summary), "nothing on stderr says that the run was stopped");
    }
}
