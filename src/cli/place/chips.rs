//! Whether the chips are there that the run, or the environment, speaks of.

use super::{Fault, Machine, Wanted, Weight, finding};
use crate::cluster::environment::{Environment, Probe, SliceHosts};
use crate::config::Backend;
use crate::launch::variable;
use crate::targets::Target;

/// Variables that a machine with GPUs has, and the values that mean none.
const GPU_VARIABLES: [(&str, &[&str]); 5] = [
    ("CUDA_VISIBLE_DEVICES", &["", "-1", "none", "NoDevFiles"]),
    ("NVIDIA_VISIBLE_DEVICES", &["", "void", "none"]),
    ("SLURM_STEP_GPUS", &[""]),
    ("SLURM_JOB_GPUS", &[""]),
    ("SLURM_GPUS_ON_NODE", &["", "0"]),
];
/// Variables of hosts with TPUs.
const TPU_VARIABLES: [(&str, &[&str]); 7] = [
    ("TPU_WORKER_ID", &[""]),
    ("TPU_WORKER_HOSTNAMES", &[""]),
    ("TPU_ACCELERATOR_TYPE", &[""]),
    ("TPU_TOPOLOGY", &[""]),
    ("TPU_PROCESS_ADDRESSES", &[""]),
    ("TPU_VISIBLE_CHIPS", &[""]),
    ("CLOUD_TPU_TASK_ID", &[""]),
];

/// Problems with the chips of this machine. A single process hears of them from its plugin; one of
/// several would first wait for the others.
pub(super) fn chips(
    probe: &Probe,
    wanted: &Wanted<'_>,
    several: Option<&Environment>,
    machine: &Machine<'_>,
) -> Vec<Fault> {
    let set = |variables: &[(&str, &[&str])]| {
        let set = variables.iter().filter_map(|(name, none)| {
            let value = (probe.variable)(name)?.trim().to_owned();
            (!none.contains(&&*value)).then(|| format!("{name} is {value}"))
        });
        set.collect::<Vec<_>>().join(", ")
    };
    let weight = |backend: &Backend| match wanted.backend == Some(backend) && several.is_some() {
        true => Weight::Error,
        false => Weight::Note,
    };
    let otherwise = |weight| match weight {
        Weight::Error => "choose another --backend",
        _ => "remove the variables",
    };
    let mut found = vec![];
    if !machine.has_tpus {
        let mut said = set(&TPU_VARIABLES);
        if said.is_empty()
            && let Some(kind) = (probe.metadata)("accelerator-type")
        {
            said = format!("the metadata server says accelerator-type {}", kind.trim());
        }
        let weight = weight(&Backend::Tpu);
        if said.is_empty() && weight == Weight::Error {
            said = "the backend is tpu".to_owned();
        }
        if !said.is_empty() {
            let change = format!(
                "ask for the chips (google.com/tpu in the resources of a pod, --privileged for a \
                 container), or {}",
                otherwise(weight)
            );
            found.push(finding(format!("{said}, but this machine has no TPU"), change, weight));
        }
    }
    if !machine.has_gpus {
        let mut said = set(&GPU_VARIABLES);
        let weight = weight(&Backend::Cuda);
        if said.is_empty() && weight == Weight::Error {
            said = "the backend is cuda".to_owned();
        }
        if !said.is_empty() {
            let change = format!(
                "ask for GPUs (--gpus-per-task of Slurm, nvidia.com/gpu in the resources of a pod, \
                 --gpus all for a container), or {}",
                otherwise(weight)
            );
            found.push(finding(
                format!("{said}, but this machine has no GPU of NVIDIA's"),
                change,
                weight,
            ));
        }
    }
    found
}

/// Whether the slice of a TPU has as many hosts as its type says. With fewer, the chips wait for
/// the missing ones.
pub(super) fn slice_hosts(
    slice: &SliceHosts,
    wanted: &Wanted<'_>,
    several: Option<&Environment>,
) -> Option<Fault> {
    let SliceHosts { kind, topology, num_hosts } = slice;
    let by_topology =
        topology.as_ref().map(|bounds| format!("tpu:{}:{}", kind.value, bounds.value));
    let mut names = [Some(format!("tpu:{}", kind.value)), by_topology].into_iter().flatten();
    let target: Target = names.find_map(|name| name.parse().ok())?;
    if target.may_have_hosts(num_hosts.value) {
        return None;
    }
    let names = |count: usize| if count == 1 { "host" } else { "hosts" };
    let what = format!(
        "{} is {}, a slice of {} {}, but {} names {}",
        kind.from,
        kind.value,
        target.num_hosts(),
        names(target.num_hosts()),
        num_hosts.from,
        num_hosts.value,
    );
    let change = format!(
        "name all hosts of the slice in {}, or set {} and {} if these are all that there are",
        num_hosts.from,
        variable::PROCESS_INDEX,
        variable::NUM_PROCESSES
    );
    let is_believed = several.is_some_and(|several| {
        several.launcher == Some("Cloud TPU") && !several.process_index.from.starts_with("LOCKSTEP")
    });
    let weight = match wanted.backend {
        Some(Backend::Tpu) if is_believed => Weight::Error,
        _ => Weight::Note,
    };
    Some(finding(what, change, weight))
}
