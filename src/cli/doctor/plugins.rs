//! The plugins on this machine. They are loaded in a child process: the TPU plugin looks for
//! hardware and for the cloud's metadata server when it is loaded, and a plugin may crash if its
//! device is broken or in use, or if it is damaged.

use std::path::Path;
use std::sync::Arc;

use ::hlo::{Axis, DType, Literal, Mesh, Reduction, TensorType, counted, lower, trace};
use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::child;
use crate::cli::host::has_device_files;
use crate::cli::{in_words, print_line};
use crate::pjrt::{self, Arg, Client, CompileOptions, Plugin, PluginSource, Value};
use crate::targets::worker;

/// A plugin, and what is wrong with it.
#[derive(Default, Serialize)]
pub struct PluginReport {
    pub name: &'static str,
    pub path: Option<String>,
    /// Version of its package, if it is known.
    pub version: Option<String>,
    #[serde(flatten)]
    pub found: ProbedPlugin,
    /// The problem, in words.
    pub problem: Option<String>,
}

/// The answer of a plugin.
#[derive(Default, Serialize, Deserialize)]
pub struct ProbedPlugin {
    pub api_version: Option<String>,
    pub platform: Option<String>,
    pub num_devices: Option<usize>,
    /// The devices' kind, and the bytes of memory that each may use.
    pub device_kind: Option<String>,
    pub device_memory_bytes: Option<u64>,
}

impl PluginReport {
    pub fn line(&self) -> String {
        let name = format!("{:14}", self.name);
        let (Some(path), None) = (&self.path, &self.problem) else {
            return format!("{name} {}", self.problem.as_deref().unwrap_or_default());
        };
        let ProbedPlugin { api_version, platform, num_devices, device_kind, device_memory_bytes } =
            &self.found;
        let mut facts = vec![];
        facts.extend(self.version.clone());
        facts.extend(platform.clone());
        facts.extend(api_version.as_ref().map(|version| format!("PJRT {version}")));
        facts.extend(num_devices.map(|count| counted(count, "device")));
        facts.extend(device_kind.clone());
        facts.extend(device_memory_bytes.map(|bytes| format!("{:.1} GB each", bytes as f64 / 1e9)));
        format!("{name} {}: {path}", facts.join(", "))
    }
}

pub fn examine(listed: &pjrt::Listed) -> PluginReport {
    let mut report = PluginReport { name: listed.name, ..PluginReport::default() };
    let Some(found) = &listed.found else {
        let install = format!("not installed; lockstep plugin install {}", listed.name);
        report.problem = Some(install);
        return report;
    };
    report.path = Some(found.path.display().to_string());
    report.version = found.version.clone();
    match probe_in_child(listed.name, &found.path) {
        Ok(found) => report.found = found,
        Err(error) => {
            let mut problem = in_words(&error);
            if found.source == PluginSource::Cache && !problem.contains("plugin install") {
                problem += &format!(
                    "; if it is damaged, `lockstep plugin remove {0}` and `lockstep plugin install \
                     {0}` install it again",
                    listed.name
                );
            }
            report.problem = Some(problem);
        }
    }
    report
}

/// Replicas of the trial all_reduce.
const NUM_REPLICAS: usize = 2;

fn probe_cpu(path: &Path) -> Result<ProbedPlugin> {
    let plugin = Plugin::load(path)?;
    let client = Client::cpu(&plugin, NUM_REPLICAS)?;
    try_all_reduce(&client)?;
    Ok(ProbedPlugin {
        api_version: Some(api_version(&plugin)),
        platform: Some(client.platform_name().to_owned()),
        num_devices: Some(client.devices().len()),
        ..ProbedPlugin::default()
    })
}

fn api_version(plugin: &Plugin) -> String {
    let (major, minor) = plugin.api_version();
    format!("{major}.{minor}")
}

fn probe_in_child(name: &str, path: &Path) -> Result<ProbedPlugin> {
    let mut command = child::command()?;
    command.arg("probe-plugin").arg(path);
    if name == "cpu" {
        command.arg("--trial");
    } else if has_device_files(name) {
        command.arg("--open");
    } else {
        worker::without_hardware(&mut command);
    }
    let said: Result<Result<ProbedPlugin, String>> = child::ask(command);
    said?.map_err(anyhow::Error::msg)
}

/// Runs in the child: prints one line of JSON, the answer or the error. `trial`: of the CPU plugin,
/// with an all_reduce.
pub fn probe_here(path: &Path, open: bool, trial: bool) -> Result<()> {
    let probe = || -> Result<ProbedPlugin> {
        if trial {
            return probe_cpu(path);
        }
        let plugin = Plugin::load(path)?;
        let api_version = Some(api_version(&plugin));
        if !open {
            return Ok(ProbedPlugin { api_version, ..ProbedPlugin::default() });
        }
        // A GPU client would allocate most of the memory, which a run may need.
        let options: &[(&str, Value)] = match path.to_string_lossy().contains("cuda") {
            true => &[("preallocate", Value::Bool(false))],
            false => &[],
        };
        let client = Client::new(&plugin, options, None)?;
        let first = client.devices().first();
        let memory = client.memory_stats(0)?.and_then(|stats| stats.bytes_limit);
        Ok(ProbedPlugin {
            api_version,
            platform: Some(client.platform_name().to_owned()),
            num_devices: Some(client.devices().len()),
            device_kind: first.map(|device| device.kind.clone()),
            device_memory_bytes: memory,
        })
    };
    let said = probe().map_err(|error| in_words(&error));
    print_line(&serde_json::to_string(&said)?)
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
