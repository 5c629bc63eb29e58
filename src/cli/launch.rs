//! `lockstep launch`.

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

use super::args::LaunchArgs;
use super::cluster::etcd;
use crate::cluster::Secret;
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
        store,
        token_file,
        max_restarts,
        heartbeat_secs,
        stuck_after_secs,
        record_dir,
        start_within_secs,
        command,
    } = args;
    if command.first().is_none_or(|first| first != "train") {
        bail!("what is launched is a training run: lockstep launch [OPTIONS] -- train CONFIG ...");
    }
    let num_hosts = hosts.get();
    if host_index >= num_hosts {
        bail!(
            "--host-index {host_index} is not one of {num_hosts} hosts; they are numbered from 0"
        );
    }
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let num_processes = num_processes.map_or(cores * num_hosts, usize::from);
    let num_local = num_processes / num_hosts;
    if num_local > MAX_PER_CORE * cores {
        bail!(
            "{num_local} processes on this host are more than {MAX_PER_CORE} for each of its {cores} cores; lower \
             --num-processes"
        );
    }
    let secret = match &token_file {
        Some(path) => Secret::from_file(path)?,
        None if std::env::var_os(variable::TOKEN).is_some() => Secret::from_env(variable::TOKEN)?,
        None if num_hosts == 1 => Secret::random().context("cannot make a token")?,
        None => bail!("several hosts need the same token: set --token-file, or LOCKSTEP_TOKEN"),
    };
    let requests = watch()?;
    let options = LaunchOptions {
        program: std::env::current_exe().context("cannot find this program")?,
        arguments: command,
        job: std::env::var(variable::JOB).unwrap_or_else(|_| "lockstep".to_owned()),
        secret,
        num_processes,
        num_hosts,
        host_index,
        coordinator,
        etcd: etcd(&store)?.map(|etcd| (etcd, store.into())),
        max_restarts,
        heartbeat: seconds(heartbeat_secs, "--heartbeat-secs")?,
        stuck_after: stuck_after_secs
            .map(|secs| seconds(secs, "--stuck-after-secs"))
            .transpose()?,
        record_dir,
        start_within: seconds(start_within_secs, "--start-within-secs")?,
    };
    Ok(match launch::launch(&options, &requests)? {
        LaunchEnd::Done => ExitCode::SUCCESS,
        LaunchEnd::Stopped(signal) => (128 + signal as u8).into(),
        LaunchEnd::Failed(reason) => {
            say(&format!("error: {reason}"));
            ExitCode::FAILURE
        }
    })
}

fn seconds(secs: f64, name: &str) -> Result<Duration> {
    match Duration::try_from_secs_f64(secs) {
        Ok(time) if (0.01..=1e6).contains(&secs) => Ok(time),
        _ => bail!("{name} {secs} must be a number of seconds, 0.01 to 1e6"),
    }
}

/// From now on a first signal is passed on to the workers, which save and end. A second one ends this process, and so them.
fn watch() -> Result<Requests> {
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
