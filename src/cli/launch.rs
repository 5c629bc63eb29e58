//! `lockstep launch`.

use std::ffi::OsString;
use std::fs;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use hlo::counted;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

use super::args::{Args, Command, HostRange, JobRules, LaunchArgs, TrainArgs};
use super::{place, wrong_usage};
use crate::cluster::{JobSize, Secret, Tls, TlsFiles};
use crate::config::Config;
use crate::launch::{self, LaunchEnd, LaunchOptions, Requests, variable};
use crate::observe::say;

/// More processes than this for each core are a mistake.
const MAX_PER_CORE: usize = 32;

pub fn run(args: LaunchArgs) -> Result<ExitCode> {
    let LaunchArgs {
        num_processes,
        hosts: HostRange { min, max },
        processes_per_host,
        spares,
        coordinator,
        external_coordinator,
        rules,
        command,
    } = args;
    let begins_with = |word: &str| command.first().is_some_and(|found| found == word);
    let (is_run, is_bench) = (begins_with("train"), begins_with("bench"));
    if !is_run && !is_bench {
        let text = "what is launched is a training run: lockstep launch [OPTIONS] -- train CONFIG \
                    ...; or a measurement: ... -- bench CONFIG, or bench --collectives";
        return Err(wrong_usage(text));
    }
    let has = |option: &str| {
        let is_it = |word: &str| {
            word.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        };
        command.iter().any(|word| word.to_str().is_some_and(is_it))
    };
    if is_bench && has("--processes") {
        let text = "leave out --processes: launch starts the processes, --num-processes of them";
        return Err(wrong_usage(text));
    }
    if is_bench && has("--profile") {
        let text = "leave out --profile: it times the ops of one process; for these, run lockstep \
                    bench CONFIG --profile without launch";
        return Err(wrong_usage(text));
    }
    if is_run && rules.max_restarts > 0 && has("--out") && !has("--resume") {
        say("warning: the command has no --resume: after a failure, the job cannot continue its \
             run");
    }
    let is_alone = max + spares == 1;
    if let (false, Some(number)) = (is_alone, num_processes) {
        return Err(wrong_usage(&format!(
            "--num-processes {number} is for one host; with --hosts, set --processes-per-host"
        )));
    }
    if let (true, Some(text)) = (is_alone, place::ignored_by_supervisor()) {
        say(&format!("warning: {text}"));
    }
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let num_local = num_processes.or(processes_per_host).map_or(cores, usize::from);
    let option =
        if processes_per_host.is_some() { "--processes-per-host" } else { "--num-processes" };
    check_num_local(num_local, option)?;
    let full_processes = max.saturating_mul(num_local);
    let mut size = JobSize {
        min_hosts: min,
        max_hosts: max,
        num_spares: spares,
        full_processes,
        multiple_of: 1,
    };
    if size.is_elastic() {
        if is_bench {
            let text = "what is measured needs a fixed number of hosts: --hosts N";
            return Err(wrong_usage(text));
        }
        if !(has("--out") && has("--resume")) {
            let text = "a job whose hosts come and go continues its run again and again: give \
                        train --out DIR and --resume";
            return Err(wrong_usage(text));
        }
    }
    // What is wrong with it the workers say, unless it decides who may take part.
    let config = match train_config(&command) {
        Err(error) if size.is_elastic() => return Err(error),
        config => config.unwrap_or_default(),
    };
    if let (true, Some(config)) = (size.is_elastic(), &config) {
        size.multiple_of = config.process_multiple(full_processes)?;
    }
    let secret = match rules.token()? {
        Some(secret) => secret,
        None if is_alone && !external_coordinator => {
            Secret::random().context("cannot make a token")?
        }
        None => {
            let text = "several hosts need the same token: set --token-file, or LOCKSTEP_TOKEN";
            return Err(wrong_usage(text));
        }
    };
    // Workers may have another working directory.
    let authority = rules.tls_ca.as_ref().map(std::path::absolute).transpose()?;
    // Which of several hosts runs the coordinator is not known yet.
    let has_certificate = rules.tls_certificate.is_some() || rules.tls_key.is_some();
    let tls = rules.tls(has_certificate || is_alone && !external_coordinator)?;
    let Rules { dead_after, stuck_after, start_within } = rules.check()?;
    let requests = watch()?;
    let options = LaunchOptions {
        program: std::env::current_exe().context("cannot find this program")?,
        arguments: command,
        job: job_name(),
        secret,
        tls: (tls, authority),
        size,
        num_local,
        host_index: place::host_index().filter(|_| !is_alone),
        coordinator: coordinator.map(|address| address.to_string()),
        is_coordinator_elsewhere: external_coordinator,
        // What was measured before a failure is not worth keeping.
        max_restarts: if is_run { rules.max_restarts } else { 0 },
        dead_after,
        stuck_after,
        record_dir: rules.record_dir,
        start_within,
        interface: config.and_then(|config| config.cluster.interface),
    };
    Ok(exit_code(launch::launch(&options, &requests)?))
}

/// The configuration of a run that is launched; `None` if it is a measurement.
fn train_config(command: &[OsString]) -> Result<Option<Config>> {
    let words = std::iter::once("lockstep".into()).chain(command.iter().cloned());
    match Args::try_parse_from(words)?.command {
        Command::Train(TrainArgs { config, .. }) => {
            Ok(Some(Config::load(&config.config, &config.sets())?))
        }
        _ => Ok(None),
    }
}

/// Checks that this host can run so many processes.
pub fn check_num_local(num_local: usize, option: &str) -> Result<()> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    match num_local > MAX_PER_CORE * cores {
        false => Ok(()),
        true => Err(wrong_usage(&format!(
            "{num_local} processes on this host are more than {MAX_PER_CORE} for each of its {}; \
             lower {option}",
            counted(cores, "core")
        ))),
    }
}

/// Of a job that has ended; the reason of a failure is said.
pub fn exit_code(end: LaunchEnd) -> ExitCode {
    match end {
        LaunchEnd::Done => ExitCode::SUCCESS,
        LaunchEnd::Stopped(signal) => (128 + signal as u8).into(),
        LaunchEnd::Failed(reason) => {
            say(&format!("error: {reason}"));
            ExitCode::FAILURE
        }
    }
}

/// The name of the job.
pub fn job_name() -> String {
    std::env::var(variable::JOB).unwrap_or_else(|_| "lockstep".to_owned())
}

/// Times of [`JobRules`].
pub struct Rules {
    pub dead_after: Duration,
    pub stuck_after: Option<Duration>,
    pub start_within: Duration,
}

impl JobRules {
    /// The token, if there is one.
    pub fn token(&self) -> Result<Option<Secret>> {
        Ok(match &self.token_file {
            Some(path) => Some(Secret::from_file(path)?),
            None if std::env::var_os(variable::TOKEN).is_none() => None,
            None => Some(Secret::from_env(variable::TOKEN)?),
        })
    }

    /// The certificates. `runs_coordinator`: this host needs one of its own.
    pub fn tls(&self, runs_coordinator: bool) -> Result<Tls> {
        let files = TlsFiles {
            authority: self.tls_ca.clone(),
            certificate: self.tls_certificate.clone(),
            key: self.tls_key.clone(),
        };
        Ok(files.read(runs_coordinator)?)
    }

    /// Checks the times, and that the directory of records can be written to.
    pub fn check(&self) -> Result<Rules> {
        if let Some(dir) = &self.record_dir {
            let writable = fs::create_dir_all(dir).and_then(|()| tempfile::tempfile_in(dir));
            writable
                .with_context(|| format!("--record-dir {} cannot be written to", dir.display()))?;
        }
        let stuck_after = self.stuck_after_secs;
        Ok(Rules {
            dead_after: seconds(self.dead_after_secs, "--dead-after-secs")?,
            stuck_after: stuck_after.map(|secs| seconds(secs, "--stuck-after-secs")).transpose()?,
            start_within: seconds(self.start_within_secs, "--start-within-secs")?,
        })
    }
}

fn seconds(secs: f64, name: &str) -> Result<Duration> {
    match Duration::try_from_secs_f64(secs) {
        Ok(time) if (0.01..=1e6).contains(&secs) => Ok(time),
        _ => Err(wrong_usage(&format!("{name} {secs} must be a number of seconds, 0.01 to 1e6"))),
    }
}

/// From now on a first signal is passed on to the workers, which save and end. A second one ends
/// this process, and so them.
pub fn watch() -> Result<Requests> {
    let requests = Requests::default();
    flag::register(SIGUSR1, requests.save.clone())?;
    let second = std::sync::Arc::<std::sync::atomic::AtomicBool>::default();
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, 128 + signal, second.clone())?;
        flag::register(signal, second.clone())?;
        flag::register_usize(signal, requests.stop.clone(), signal as usize)?;
    }
    debug_assert_eq!(requests.stop.load(Ordering::Relaxed), 0);
    Ok(requests)
}
