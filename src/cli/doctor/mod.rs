//! `lockstep doctor`: describes this machine and reports what is wrong with it.

mod child;
mod cluster;
mod findings;
mod network;
mod nvidia;
mod plugins;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use super::host::Host;
use super::{place, print_lines};
use crate::pjrt::{self, InstallOptions};
use cluster::ClusterReport;
use findings::{Diagnosis, findings};
use network::{Network, nccl_variables};
use nvidia::Nvidia;
use plugins::{PluginReport, examine};

pub use nvidia::{GpuNotes, probe_here as probe_nvidia_here};
pub use plugins::probe_here as probe_plugin_here;

/// All that `doctor` reports.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    host: Host,
    cache_dir: String,
    plugins: Vec<PluginReport>,
    /// `None` without an NVIDIA GPU and without a plugin for one.
    nvidia: Option<Nvidia>,
    /// `None` for one process, and if what was found makes the place unclear.
    cluster: Option<ClusterReport>,
    #[serde(skip)]
    obstacle: Option<String>,
    findings: Vec<Diagnosis>,
}

pub fn run(json: bool) -> Result<ExitCode> {
    let options = InstallOptions::from_env()?;
    let host = Host::here();
    let plugins: Vec<_> = pjrt::list(&options).iter().map(examine).collect();
    let cuda = plugins.iter().find(|plugin| plugin.name == "cuda");
    let cuda = cuda.and_then(|plugin| plugin.path.as_deref()).map(Path::new);
    let nvidia = Nvidia::here(host.nvidia_pci_devices > 0, cuda);
    let mut findings = findings(&host, nvidia.as_ref());
    let place = place::of_any_run(&host);
    let cluster = place.environment.as_ref().map(ClusterReport::of);
    findings.extend(place.findings.into_iter().map(Diagnosis::from));
    let network = Network::read(Path::new("/"));
    findings.extend(network.findings(&nccl_variables(), host.nvidia_pci_devices));
    let cache_dir = options.compile_cache_dir().display().to_string();
    let report =
        Report { host, cache_dir, plugins, nvidia, cluster, obstacle: place.obstacle, findings };
    if json {
        print_lines([serde_json::to_string(&report)?].iter())?;
    } else {
        print_lines(report.lines().iter())?;
    }
    // GPU and TPU plugins are optional; the CPU plugin is required. Findings are advice.
    let healthy = |plugin: &PluginReport| match &plugin.problem {
        None => true,
        Some(_) => plugin.path.is_none() && plugin.name != "cpu",
    };
    let all_healthy = report.plugins.iter().all(healthy);
    Ok(if all_healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Report {
    /// For people.
    fn lines(&self) -> Vec<String> {
        let mut lines = self.host.lines();
        lines.push(format!("cache    {}", self.cache_dir));
        lines.extend(self.plugins.iter().map(PluginReport::line));
        match &self.nvidia {
            Some(nvidia) => lines.extend(nvidia.lines()),
            None => lines.push("nvidia   no GPU".to_owned()),
        }
        if self.host.tpu_pci_devices == 0 {
            lines.push("tpu      none".to_owned());
        }
        lines.push(cluster::line(self.cluster.as_ref(), self.obstacle.as_deref()));
        lines.extend(self.cluster.as_ref().map(ClusterReport::times));
        for Diagnosis { what, change } in &self.findings {
            lines.push(format!("wrong    {what}"));
            lines.push(format!("         - {change}"));
        }
        if self.findings.is_empty() {
            lines.push("ok       nothing wrong was found".to_owned());
        }
        lines
    }
}
