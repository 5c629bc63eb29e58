//! The launchers that are known, and the variables that they set.
//!
//! Sources: `srun(1)`, output environment variables; Kubernetes, "Indexed Job" and "Job with
//! Pod-to-Pod Communication"; JobSet's `api/jobset/v1alpha2`; Cloud TPU and GKE, "TPU multislice",
//! and the attributes of TPU machines as JAX reads them; `torchrun`, "Environment Variables", and
//! its options as variables, which Kubeflow Trainer sets; SkyPilot, "Distributed multi-node jobs";
//! JAX, `jax.distributed`, and Kubeflow's JAXJob; Open MPI, "Environment variables set for MPI
//! applications"; MPICH's Hydra and Cray's PMI.

use super::error::EnvironmentError;
use super::hosts::{expand, tasks_of_node};
use super::probe::{Probe, host_and_port, invalid};
use super::{DEFAULT_PORT, Known, SliceHosts, kubernetes, tpu};
use crate::config::HostPort;

type Result<T> = std::result::Result<T, EnvironmentError>;

/// What a launcher, or explicit values, say of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Launched {
    pub(super) name: Option<&'static str>,
    pub(super) index: Option<Known<usize>>,
    pub(super) count: Option<Known<usize>>,
    pub(super) coordinator: Option<Known<String>>,
    pub(super) local_index: Option<Known<usize>>,
    pub(super) num_local: Option<Known<usize>>,
    pub(super) hosts: Vec<String>,
    /// The slice of a TPU that these hosts are, if its type is known.
    pub(super) slice: Option<SliceHosts>,
    /// Why its index cannot be used.
    pub(super) problem: Option<EnvironmentError>,
    /// Why its index may be wrong.
    pub(super) doubts: Vec<String>,
    /// `true` if it starts processes in those of a [`Role::Scheduler`].
    pub(super) is_inner: bool,
}

impl Launched {
    /// Index and number of processes, if both are known.
    pub(super) fn identity(&self) -> Option<(usize, usize)> {
        Some((self.index.as_ref()?.value, self.count.as_ref()?.value))
    }

    /// The launcher with the variables that identify the process.
    pub(super) fn label(&self) -> String {
        let from = [&self.index, &self.count];
        let from: Vec<&str> = from.into_iter().flatten().map(|known| known.from.as_str()).collect();
        format!("{} ({})", self.name.unwrap_or_default(), from.join(", "))
    }
}

/// What a launcher starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Processes on hosts that it gives to a job. No other launcher's process starts these.
    Scheduler,
    /// Processes, where it is started itself.
    Starter,
}

/// A launcher: the variables that it sets, in order of preference.
pub(super) struct Launcher {
    name: &'static str,
    role: Role,
    /// Without this one, the others do not mean what they seem to.
    needs: Option<&'static str>,
    index: &'static [&'static str],
    count: &'static [&'static str],
    local_index: &'static [&'static str],
    num_local: &'static [&'static str],
    /// Adds what is not simply the value of a variable.
    complete: fn(&Probe, &Launched, &mut Launched) -> Result<()>,
}

/// In order of precedence among launchers that do not nest: schedulers first.
pub(super) const LAUNCHERS: [Launcher; 10] = [
    Launcher {
        name: "Slurm",
        role: Role::Scheduler,
        // A batch script also has SLURM_PROCID and SLURM_NTASKS, but is one process: only srun
        // starts a step.
        needs: Some("SLURM_STEP_NODELIST"),
        index: &["SLURM_PROCID"],
        // That of the step: a shell in an allocation is one task, whatever the allocation has.
        count: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"],
        local_index: &["SLURM_LOCALID"],
        num_local: &[],
        complete: slurm,
    },
    Launcher {
        name: "Kubernetes",
        role: Role::Scheduler,
        needs: None,
        index: &["JOB_COMPLETION_INDEX"],
        count: &[],
        local_index: &[],
        num_local: &[],
        complete: kubernetes::complete,
    },
    Launcher {
        name: "Cloud TPU",
        role: Role::Scheduler,
        needs: None,
        // The first is set where several processes share a host.
        index: &["CLOUD_TPU_TASK_ID", "TPU_WORKER_ID"],
        count: &[],
        local_index: &[],
        num_local: &[],
        complete: tpu::complete,
    },
    Launcher {
        name: "SkyPilot",
        role: Role::Scheduler,
        needs: None,
        index: &["SKYPILOT_NODE_RANK"],
        count: &["SKYPILOT_NUM_NODES"],
        local_index: &[],
        num_local: &[],
        complete: skypilot,
    },
    Launcher {
        // Options of torchrun, as variables: what it would start in this pod, or has started, has
        // its own.
        name: "Kubeflow",
        role: Role::Scheduler,
        needs: None,
        index: &["PET_NODE_RANK"],
        count: &[],
        local_index: &[],
        num_local: &[],
        complete: kubeflow,
    },
    Launcher {
        name: "torchrun",
        role: Role::Starter,
        needs: None,
        index: &["RANK"],
        count: &["WORLD_SIZE"],
        local_index: &["LOCAL_RANK"],
        num_local: &["LOCAL_WORLD_SIZE"],
        complete: torchrun,
    },
    Launcher {
        name: "JAX",
        role: Role::Starter,
        needs: None,
        index: &["JAX_PROCESS_ID"],
        count: &["JAX_NUM_PROCESSES"],
        local_index: &[],
        num_local: &[],
        complete: jax,
    },
    Launcher {
        name: "JAXJob",
        role: Role::Starter,
        // The other names are too general to mean anything alone.
        needs: Some("COORDINATOR_ADDRESS"),
        index: &["PROCESS_ID"],
        count: &["NUM_PROCESSES"],
        local_index: &[],
        num_local: &[],
        complete: jax_job,
    },
    Launcher {
        name: "Open MPI",
        role: Role::Starter,
        needs: None,
        index: &["OMPI_COMM_WORLD_RANK"],
        count: &["OMPI_COMM_WORLD_SIZE"],
        local_index: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        num_local: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        complete: on_one_host,
    },
    Launcher {
        name: "PMI",
        role: Role::Starter,
        needs: None,
        index: &["PMI_RANK"],
        count: &["PMI_SIZE"],
        // Hydra's and Cray's.
        local_index: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"],
        num_local: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
        complete: on_one_host,
    },
];

impl Launcher {
    /// What this launcher says; `None` if the process was not started by it. `explicit` has the
    /// values that were given.
    pub(super) fn find(&self, probe: &Probe, explicit: &Launched) -> Result<Option<Launched>> {
        if self.needs.is_some_and(|variable| probe.text(variable).is_none()) {
            return Ok(None);
        }
        let number = |names: &[&str]| first_of(names, |name| probe.number(name));
        let count = |names: &[&str]| first_of(names, |name| probe.count(name));
        let mut found = Launched {
            name: Some(self.name),
            index: number(self.index)?,
            count: count(self.count)?,
            local_index: number(self.local_index)?,
            num_local: count(self.num_local)?,
            is_inner: self.role == Role::Starter,
            ..Launched::default()
        };
        (self.complete)(probe, explicit, &mut found)?;
        if let (None, Some(count)) = (&found.index, &found.count)
            && count.value == 1
        {
            found.index = Some(Known { value: 0, from: count.from.clone() });
        }
        Ok((found.index.is_some() || found.count.is_some()).then_some(found))
    }
}

fn first_of<T>(names: &[&str], look: impl Fn(&str) -> Result<Option<T>>) -> Result<Option<T>> {
    for name in names {
        if let Some(found) = look(name)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Ports of Slurm jobs: the last 4,096, above those that Linux chooses from.
const SLURM_PORTS: u64 = 1 << 12;

fn slurm(probe: &Probe, _: &Launched, found: &mut Launched) -> Result<()> {
    const NODES: &str = "SLURM_STEP_NODELIST";
    let Some(nodes) = probe.text(NODES) else { return Ok(()) };
    found.hosts = expand(&nodes.value, NODES)?;
    if let Some(job) = first_of(&["SLURM_JOB_ID", "SLURM_JOBID"], |name| probe.number(name))? {
        // Steps of a job may share a node.
        let step = first_of(&["SLURM_STEP_ID", "SLURM_STEPID"], |name| probe.number(name))?;
        let step = step.map_or(0, |step| step.value as u64);
        let number = (job.value as u64).wrapping_add(step.wrapping_mul(61)) % SLURM_PORTS;
        let port = (u64::from(u16::MAX) + 1 - SLURM_PORTS + number) as u16;
        let from = format!("{NODES}, {}", job.from);
        let expected = "a list whose first entry is a host";
        let address = HostPort::new(&found.hosts[0], port);
        let address = address.ok_or_else(|| invalid(NODES, &nodes.value, expected))?;
        found.coordinator = Some(Known { value: address.to_string(), from });
    }
    const PER_NODE: &str = "SLURM_STEP_TASKS_PER_NODE";
    if let (Some(list), Some(node)) = (probe.text(PER_NODE), probe.number("SLURM_NODEID")?) {
        let count = tasks_of_node(&list.value, node.value);
        found.num_local = count.map(|value| Known { value, from: PER_NODE.to_owned() });
    }
    Ok(())
}

/// `true` if a variable of another launcher identifies this process, so that the metadata need not
/// be asked.
pub(super) fn is_launched_otherwise(probe: &Probe) -> bool {
    let others = LAUNCHERS
        .iter()
        .filter(|launcher| launcher.needs.is_none_or(|variable| probe.text(variable).is_some()));
    others.flat_map(|launcher| launcher.index).any(|variable| probe.text(variable).is_some())
}

/// One process on each node. The first line of the list is the node with index 0.
fn skypilot(probe: &Probe, _: &Launched, found: &mut Launched) -> Result<()> {
    const NODES: &str = "SKYPILOT_NODE_IPS";
    let Some(nodes) = probe.text(NODES).filter(|_| found.identity().is_some()) else {
        return Ok(());
    };
    let first = nodes.value.lines().next().unwrap_or_default().trim();
    let address = HostPort::new(first, DEFAULT_PORT);
    let address = address.ok_or_else(|| invalid(NODES, first, "a list of hosts, one a line"))?;
    found.coordinator = Some(Known { value: address.to_string(), from: nodes.from });
    Ok(())
}

/// One process in each pod. A number of nodes that may change, such as `1:4`, is for torchrun only.
fn kubeflow(probe: &Probe, _: &Launched, found: &mut Launched) -> Result<()> {
    found.count = probe.text("PET_NNODES").and_then(|Known { value, from }| {
        let value = value.parse().ok().filter(|count| *count > 0)?;
        Some(Known { value, from })
    });
    if found.index.is_none() || found.count.is_none() {
        (found.index, found.count) = (None, None);
        return Ok(());
    }
    set_coordinator(probe.address("PET_MASTER_ADDR", "PET_MASTER_PORT")?, found);
    Ok(())
}

fn torchrun(probe: &Probe, explicit: &Launched, found: &mut Launched) -> Result<()> {
    if found.index.is_none() && found.count.is_none() {
        return Ok(());
    }
    let Some(mut address) = probe.address("MASTER_ADDR", "MASTER_PORT")? else {
        return on_one_host(probe, explicit, found);
    };
    // The agent listens on that port itself.
    let store = probe.text("TORCHELASTIC_USE_AGENT_STORE");
    let is_taken = store.is_some_and(|store| store.value.eq_ignore_ascii_case("true"));
    if is_taken {
        let next = address.value.port().checked_add(1).unwrap_or(DEFAULT_PORT);
        address.value = HostPort::new(address.value.host(), next).unwrap_or(address.value);
    }
    set_coordinator(Some(address), found);
    Ok(())
}

fn jax(probe: &Probe, explicit: &Launched, found: &mut Launched) -> Result<()> {
    jax_coordinator(probe, explicit, found, ["JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_PORT"])
}

fn jax_job(probe: &Probe, explicit: &Launched, found: &mut Launched) -> Result<()> {
    jax_coordinator(probe, explicit, found, ["COORDINATOR_ADDRESS", "COORDINATOR_PORT"])
}

/// The address may have its port, or leave it to another variable.
fn jax_coordinator(
    probe: &Probe,
    explicit: &Launched,
    found: &mut Launched,
    [address, port]: [&str; 2],
) -> Result<()> {
    if found.index.is_none() && found.count.is_none() {
        return Ok(());
    }
    let Some(text) = probe.text(address) else { return on_one_host(probe, explicit, found) };
    let whole: Option<HostPort> = text.value.parse().ok();
    let known = match whole {
        Some(value) => Known { value, from: text.from },
        None => match probe.text(port) {
            Some(_) => return probe.address(address, port).map(|it| set_coordinator(it, found)),
            None => {
                Known { value: host_and_port(&text.value, address, DEFAULT_PORT)?, from: text.from }
            }
        },
    };
    set_coordinator(Some(known), found);
    Ok(())
}

fn set_coordinator(address: Option<Known<HostPort>>, found: &mut Launched) {
    found.coordinator =
        address.map(|Known { value, from }| Known { value: value.to_string(), from });
}

/// Launchers that do not say where process 0 is: known only if all processes are on this host.
fn on_one_host(_: &Probe, _: &Launched, found: &mut Launched) -> Result<()> {
    if let (Some(count), Some(local)) = (&found.count, &found.num_local)
        && count.value == local.value
    {
        let value = format!("127.0.0.1:{DEFAULT_PORT}");
        found.coordinator = Some(Known { value, from: local.from.clone() });
    }
    Ok(())
}
