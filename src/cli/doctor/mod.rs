//! `lockstep doctor`: what is on this machine, and what is wrong with it.

mod plugins;

use std::process::ExitCode;
use std::thread;

use anyhow::Result;
use serde::Serialize;

use super::print_line;
use crate::pjrt::{self, InstallOptions};
use plugins::{PluginReport, examine};

pub use plugins::probe_here;

/// What was found.
#[derive(Serialize)]
struct Report {
    os: &'static str,
    arch: &'static str,
    cores: usize,
    cache_dir: String,
    plugins: Vec<PluginReport>,
}

pub fn run(json: bool) -> Result<ExitCode> {
    let options = InstallOptions::from_env()?;
    let report = Report {
        os: std::env::consts::OS,
        arch: std::env::consts::ARCH,
        cores: thread::available_parallelism().map_or(1, usize::from),
        cache_dir: options.compile_cache_dir().display().to_string(),
        plugins: pjrt::list(&options).iter().map(examine).collect(),
    };
    if json {
        print_line(&serde_json::to_string(&report)?)?;
    } else {
        print_line(&format!("machine  {} {}, {} cores", report.os, report.arch, report.cores))?;
        print_line(&format!("cache    {}", report.cache_dir))?;
        for plugin in &report.plugins {
            print_line(&plugin.line())?;
        }
    }
    // A GPU's or TPU's plugin need not be here; without the CPU's nothing runs.
    let healthy = |plugin: &PluginReport| match &plugin.problem {
        None => true,
        Some(_) => plugin.path.is_none() && plugin.name != "cpu",
    };
    let all_healthy = report.plugins.iter().all(healthy);
    Ok(if all_healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
