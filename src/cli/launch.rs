//! `lockstep launch`.

use std::fs;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use hlo::counted;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

use super::args::{JobRules, LaunchArgs};
use super::{place, wrong_usage};
use crate::cluster::{Secret, Tls, TlsFiles};
use crate::launch::{self, LaunchEnd, LaunchOptions, Requests, variable};
use crate::observe::say;

/// More processes than this for each core are a mistake.
const MAX_PER_CORE: usize = 32;

pub fn run(args: LaunchArgs) -> Result<ExitCode> {
    let LaunchArgs {
        num_processes,
        hosts,
        host_index,
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
    let num_hosts = hosts.get();
    if host_index >= num_hosts {
        return Err(wrong_usage(&format!(
            "--host-index {host_index} is not one of {}; they are numbered from 0",
            counted(num_hosts, "host")
        )));
    }
    if let (1, Some(text)) = (num_hosts, place::ignored_by_supervisor()) {
        say(&format!("warning: {text}"));
    }
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let num_processes = num_processes.map_or(cores * num_hosts, usize::from);
    check_num_local(num_processes / num_hosts, "--num-processes")?;
    let secret = match rules.token()? {
        Some(secret) => secret,
        None if num_hosts == 1 && !external_coordinator => {
            Secret::random().context("cannot make a token")?
        }
        None => {
            let text = "several hosts need the same token: set --token-file, or LOCKSTEP_TOKEN";
            return Err(wrong_usage(text));
        }
    };
    // Workers may have another working directory.
    let authority = rules.tls_ca.as_ref().map(std::path::absolute).transpose()?;
    let tls = rules.tls(host_index == 0 && !external_coordinator)?;
    let Rules { dead_after, stuck_after, start_within } = rules.check()?;
    let requests = watch()?;
    let options = LaunchOptions {
        program: std::env::current_exe().context("cannot find this program")?,
        arguments: command,
        job: job_name(),
        secret,
        tls: (tls, authority),
        num_processes,
        num_hosts,
        host_index,
        coordinator: coordinator.map(|address| address.to_string()),
        is_coordinator_elsewhere: external_coordinator,
        // What was measured before a failure is not worth keeping.
        max_restarts: if is_run { rules.max_restarts } else { 0 },
        dead_after,
        stuck_after,
        record_dir: rules.record_dir,
        start_within,
    };
    Ok(exit_code(launch::launch(&options, &requests)?))
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
