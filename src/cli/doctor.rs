//! `lockstep doctor`: what is on this machine, and what is wrong with it.

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use ::hlo::{Axis, DType, Literal, Mesh, Reduction, TensorType, lower, trace};
use anyhow::Result;
use serde::Serialize;

use super::{in_words, print_line};
use crate::pjrt::{self, Arg, Client, CompileOptions, InstallOptions, Plugin};

/// What was found.
#[derive(Serialize)]
struct Report {
    os: &'static str,
    arch: &'static str,
    cores: usize,
    cache_dir: String,
    plugins: Vec<PluginReport>,
}

#[derive(Serialize)]
struct PluginReport {
    name: &'static str,
    path: Option<String>,
    api_version: Option<String>,
    platform: Option<String>,
    num_devices: Option<usize>,
    /// What is wrong, in words.
    problem: Option<String>,
}

/// Replicas of the trial all_reduce.
const NUM_REPLICAS: usize = 2;

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
            print_line(&line(plugin))?;
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

fn line(plugin: &PluginReport) -> String {
    let name = format!("{:8}", plugin.name);
    match (&plugin.problem, &plugin.path) {
        (Some(problem), _) => format!("{name} {problem}"),
        (None, path) => {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            let devices = plugin.num_devices.map_or(String::new(), |n| format!(", {n} devices"));
            let (platform, api) = (text(&plugin.platform), text(&plugin.api_version));
            format!("{name} {platform}, PJRT {api}{devices}: {}", text(path))
        }
    }
}

fn examine(listed: &pjrt::Listed) -> PluginReport {
    let mut report = PluginReport {
        name: listed.name,
        path: None,
        api_version: None,
        platform: None,
        num_devices: None,
        problem: None,
    };
    let Some(found) = &listed.found else {
        let install = format!("not installed; lockstep plugin install {}", listed.name);
        report.problem = Some(install);
        return report;
    };
    report.path = Some(found.path.display().to_string());
    if let Err(error) = probe(listed.name, &found.path, &mut report) {
        report.problem = Some(in_words(&error));
    }
    report
}

fn probe(name: &str, path: &std::path::Path, report: &mut PluginReport) -> Result<()> {
    let plugin = Plugin::load(path)?;
    let (major, minor) = plugin.api_version();
    report.api_version = Some(format!("{major}.{minor}"));
    // Opening a GPU's or TPU's client takes the device away from a run that may be under way.
    if name == "cpu" {
        let client = Client::cpu(&plugin, NUM_REPLICAS)?;
        report.platform = Some(client.platform_name().to_owned());
        report.num_devices = Some(client.devices().len());
        try_all_reduce(&client)?;
    }
    Ok(())
}

/// Adds up 1 and 2 on two replicas.
fn try_all_reduce(client: &Client) -> Result<()> {
    let graph = trace(Mesh::data(NUM_REPLICAS), |t| {
        let x = t.input("x", TensorType::new(DType::F32, &[1]).varying(Axis::Data.into()));
        t.output("sum", x.all_reduce(Reduction::Sum, Axis::Data));
    })?;
    let executable = client.compile(&lower(&graph, "doctor"), &CompileOptions::default())?;
    let x = [1f32, 2.0].map(|value| Arc::new(Literal::from_slice(&[1], &[value])));
    let outputs = executable.execute(vec![Arg::Donate(client.upload(&x)?)])?.outputs;
    for replica in 0..NUM_REPLICAS {
        let sum = outputs[0].read(replica)?.to_f64()[0];
        anyhow::ensure!(sum == 3.0, "an all_reduce of 1 and 2 gave {sum} on replica {replica}");
    }
    Ok(())
}
