//! `lockstep coordinator`.

use std::process::ExitCode;

use anyhow::Result;

use super::args::CoordinatorArgs;
use super::launch::{Rules, job_name, watch};
use super::wrong_usage;
use crate::cluster::{CoordinatorOptions, Limits, Overseer};
use crate::launch;
use crate::observe::say;

pub fn run(args: CoordinatorArgs) -> Result<ExitCode> {
    let CoordinatorArgs { listen, rules } = args;
    let Some(secret) = rules.token()? else {
        let text = "the coordinator and all hosts need the same token: set --token-file, or \
                    LOCKSTEP_TOKEN";
        return Err(wrong_usage(text));
    };
    let Rules { dead_after, stuck_after, start_within } = rules.check()?;
    let job = job_name();
    let mut options = CoordinatorOptions::new(&job, secret, 0);
    options.is_standalone = true;
    options.tls = rules.tls(true)?.identity;
    options.set_dead_after(dead_after);
    options.start_within = start_within;
    options.max_restarts = rules.max_restarts;
    let limits = Limits::new(dead_after, stuck_after);
    let overseer =
        Overseer::new(limits, rules.record_dir, |text| say(&format!("coordinator: {text}")));
    let requests = watch()?;
    let address = listen.to_string();
    let ready = || say(&format!("coordinator: waits for the hosts of job {job:?} at {address}"));
    let signal = launch::coordinate(&address, options, &overseer, &requests, ready)?;
    Ok(ExitCode::from(128 + signal as u8))
}
