//! Which process of a job this one is: its index, the number of processes, and the coordinator's
//! address, from what a launcher has set.
//!
//! In order of precedence:
//! 1. `LOCKSTEP_COORDINATOR`, `LOCKSTEP_PROCESS_INDEX`, `LOCKSTEP_NUM_PROCESSES`: set by
//!    `lockstep launch`, or by hand;
//! 2. flags and the configuration ([`Given`]);
//! 3. the launchers in the table of `launchers.rs`.
//!
//! Launchers nest: `mpirun` or `torchrun` in a Slurm step, one per node. The inner one then has a
//! multiple of the outer one's processes and is right. Where two sources cannot both be true,
//! [`Environment::contradictions`] says which and what to change; if none of them can be used, it
//! is an error.

mod error;
mod hosts;
mod kubernetes;
mod launchers;
mod metadata;
mod probe;
#[cfg(test)]
mod tests;
mod tpu;
mod unread;

pub use error::EnvironmentError;
pub use metadata::metadata;
pub use probe::Probe;
pub use unread::unread;

use crate::config::HostPort;
use launchers::{LAUNCHERS, Launched};

type Result<T> = std::result::Result<T, EnvironmentError>;

/// The port of the coordinator where nothing else follows from the environment. Outside the ranges
/// from which systems choose ports themselves.
pub const DEFAULT_PORT: u16 = 61_400;

const COORDINATOR: &str = "LOCKSTEP_COORDINATOR";
const PROCESS_INDEX: &str = "LOCKSTEP_PROCESS_INDEX";
const NUM_PROCESSES: &str = "LOCKSTEP_NUM_PROCESSES";
const LOCAL_PROCESS_INDEX: &str = "LOCKSTEP_LOCAL_PROCESS_INDEX";
const NUM_LOCAL_PROCESSES: &str = "LOCKSTEP_NUM_LOCAL_PROCESSES";

/// A value, and where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known<T> {
    /// The value.
    pub value: T,
    /// The variable, flag or key that it comes from.
    pub from: String,
}

/// The hosts of a TPU slice, and its type, such as `v5litepod-16`. The two may contradict each
/// other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceHosts {
    /// The accelerator type, or the name of the node pool's accelerators.
    pub kind: Known<String>,
    /// Chips along each dim, such as `4x4`, if it is known.
    pub topology: Option<Known<String>>,
    /// Hosts that are named as its workers.
    pub num_hosts: Known<usize>,
}

/// What flags and the configuration say. `None` where they say nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// `cluster.coordinator`: host:port.
    pub coordinator: Option<String>,
    /// Index of this process.
    pub process_index: Option<usize>,
    /// Processes of the job.
    pub num_processes: Option<usize>,
}

/// This process among those of its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// The launcher whose variables were used, such as `Slurm`; `None` if all was given explicitly.
    pub launcher: Option<&'static str>,
    /// Index of this process, below `num_processes`.
    pub process_index: Known<usize>,
    /// Processes of the job.
    pub num_processes: Known<usize>,
    /// host:port of the coordinator, if it is known.
    pub coordinator: Option<Known<String>>,
    /// Index of this process among those on its host, if it is known.
    pub local_process_index: Option<Known<usize>>,
    /// Processes on this host, if it is known.
    pub num_local_processes: Option<Known<usize>>,
    /// Hosts of the job, in the order of their processes; empty if unknown.
    pub hosts: Vec<String>,
    /// This host's TPU slice, if the launcher knows it.
    pub slice: Option<SliceHosts>,
    /// Sources that disagree, each with what to change after `: `.
    pub contradictions: Vec<String>,
}

impl Environment {
    /// Finds the place of this process. `None` if nothing says that it is one of several.
    ///
    /// # Errors
    /// A value that cannot be read, an index that is not below the number of processes, an index
    /// without a number of processes or the reverse, and sources that contradict each other so that
    /// none can be used.
    pub fn find(probe: &Probe, given: &Given) -> Result<Option<Self>> {
        let mut contradictions = vec![];
        let index = first(
            probe.number(PROCESS_INDEX)?,
            known(given.process_index, "cluster.process_index"),
            &mut contradictions,
        );
        let count = first(
            probe.count(NUM_PROCESSES)?,
            known(given.num_processes, "cluster.num_processes"),
            &mut contradictions,
        );
        let coordinator = first(
            probe.text(COORDINATOR),
            known(given.coordinator.clone(), "cluster.coordinator"),
            &mut contradictions,
        );
        let mut explicit = Launched {
            index,
            count,
            coordinator,
            local_index: probe.number(LOCAL_PROCESS_INDEX)?,
            num_local: probe.count(NUM_LOCAL_PROCESSES)?,
            ..Launched::default()
        };
        let launched = launchers(probe, &explicit)?;
        let chosen = choose(&launched, &mut contradictions);
        if let Some(launched) = chosen {
            explicit_agrees(&explicit, launched, &mut contradictions)?;
        }
        let nothing = Launched::default();
        let launched = chosen.unwrap_or(&nothing);
        let is_launched = explicit.index.is_none();
        let (index, count) = match (
            explicit.index.or_else(|| launched.index.clone()),
            explicit.count.or_else(|| launched.count.clone()),
        ) {
            (None, None) => return Ok(None),
            (Some(index), Some(count)) => (index, count),
            // One process of one.
            (None, Some(count)) if count.value == 1 => {
                (Known { value: 0, from: count.from.clone() }, count)
            }
            (None, Some(count)) => {
                return Err(EnvironmentError::NoIndex { count: count.value, from: count.from });
            }
            (Some(index), None) => {
                return Err(EnvironmentError::NoCount { index: index.value, from: index.from });
            }
        };
        if index.value >= count.value {
            return Err(EnvironmentError::IndexTooLarge {
                index: index.value,
                index_from: index.from,
                count: count.value,
                count_from: count.from,
            });
        }
        if is_launched {
            if let Some(problem) = &launched.problem {
                return Err(problem.clone());
            }
            contradictions.extend(launched.doubts.iter().cloned());
        }
        if let Some(Known { value, from }) = &mut explicit.coordinator
            && count.value > 1
        {
            let address: Option<HostPort> = value.parse().ok();
            let expected = "HOST:PORT, such as node1:61400 or [2001:db8::1]:61400";
            let address = address.ok_or_else(|| probe::invalid(from, value, expected))?;
            *value = address.to_string();
        }
        let local = if is_launched { launched } else { &nothing };
        let local_index = explicit.local_index.or_else(|| local.local_index.clone());
        let num_local = explicit.num_local.or_else(|| local.num_local.clone());
        if let (Some(index), Some(count)) = (&local_index, &num_local)
            && index.value >= count.value
        {
            contradictions.push(format!(
                "{} is {}, but {} is {}: correct one of them",
                index.from, index.value, count.from, count.value
            ));
        }
        Ok(Some(Self {
            launcher: launched.name,
            process_index: index,
            num_processes: count,
            coordinator: explicit.coordinator.or_else(|| launched.coordinator.clone()),
            local_process_index: local_index,
            num_local_processes: num_local,
            hosts: launched.hosts.clone(),
            slice: launched.slice.clone(),
            contradictions,
        }))
    }

    /// The coordinator's address.
    ///
    /// # Errors
    /// [`EnvironmentError::NoCoordinator`] if there are several processes, and none is known.
    pub fn coordinator(&self) -> Result<Option<&str>> {
        match &self.coordinator {
            Some(coordinator) => Ok(Some(&coordinator.value)),
            None if self.num_processes.value == 1 => Ok(None),
            None => Err(EnvironmentError::NoCoordinator {
                count: self.num_processes.value,
                from: self.num_processes.from.clone(),
            }),
        }
    }
}

fn known<T>(value: Option<T>, from: &str) -> Option<Known<T>> {
    Some(Known { value: value?, from: from.to_owned() })
}

/// The first of two values. That the second differs is a contradiction.
fn first<T: PartialEq + std::fmt::Display>(
    first: Option<Known<T>>,
    second: Option<Known<T>>,
    contradictions: &mut Vec<String>,
) -> Option<Known<T>> {
    if let (Some(first), Some(second)) = (&first, &second)
        && first.value != second.value
    {
        contradictions.push(format!(
            "{} is {}, but {} is {}: the first is used; remove one of them",
            first.from, first.value, second.from, second.value
        ));
    }
    first.or(second)
}

/// What the launchers say. One that says only a part of it counts if the rest is given explicitly.
fn launchers(probe: &Probe, explicit: &Launched) -> Result<Vec<Launched>> {
    let mut found = vec![];
    for launcher in &LAUNCHERS {
        found.extend(launcher.find(probe, explicit)?);
    }
    Ok(found)
}

/// The launcher to believe: the first one whose values are complete, or the innermost of those that
/// nest in it.
fn choose<'a>(launched: &'a [Launched], contradictions: &mut Vec<String>) -> Option<&'a Launched> {
    let mut complete =
        launched.iter().filter_map(|launched| Some((launched.identity()?, launched)));
    let Some((mut identity, mut chosen)) = complete.next() else { return launched.first() };
    for (other_identity, other) in complete {
        // What a scheduler starts is not inside a process that another launcher has started in it.
        let may_be_outer = identity == other_identity || chosen.is_inner || !other.is_inner;
        if other_identity.1 > identity.1 && nests(other_identity, identity) {
            (identity, chosen) = (other_identity, other);
        } else if !(may_be_outer && nests(identity, other_identity)) {
            contradictions.push(format!(
                "{} says process {} of {}, but {} says process {} of {}; the first is used, \
                 because the processes that {} starts in those of {} would be {} or a multiple: \
                 remove the variables of {6} if they are left over, or set {PROCESS_INDEX} and \
                 {NUM_PROCESSES}",
                chosen.label(),
                identity.0,
                identity.1,
                other.label(),
                other_identity.0,
                other_identity.1,
                other.name.unwrap_or_default(),
                chosen.name.unwrap_or_default(),
                identity.1,
            ));
        }
    }
    Some(chosen)
}

/// `true` if process `inner` of a launcher can be process `outer` of another one, or one of several
/// that this has started. Both are (index, number of processes).
fn nests(inner: (usize, usize), outer: (usize, usize)) -> bool {
    inner == outer || (inner.1 > outer.1 && inner.1.is_multiple_of(outer.1))
}

/// Checks explicit values against a launcher's.
///
/// # Errors
/// [`EnvironmentError::Mixed`] if one value is explicit and the other is not, and they do not
/// belong together.
fn explicit_agrees(
    explicit: &Launched,
    launched: &Launched,
    contradictions: &mut Vec<String>,
) -> Result<()> {
    let Some(theirs) = launched.identity() else { return Ok(()) };
    match (&explicit.index, &explicit.count) {
        (Some(index), Some(count)) if !nests((index.value, count.value), theirs) => {
            contradictions.push(format!(
                "{} and {} say process {} of {}, but {} says process {} of {}: the first are used; \
                 remove them if they are left over from another run",
                index.from,
                count.from,
                index.value,
                count.value,
                launched.label(),
                theirs.0,
                theirs.1,
            ));
            Ok(())
        }
        (None, Some(Known { value, from })) if *value != theirs.1 => Err(EnvironmentError::Mixed {
            from: from.clone(),
            value: *value,
            launcher: launched.label(),
            theirs: theirs.1,
            missing: PROCESS_INDEX,
        }),
        (Some(Known { value, from }), None) if *value != theirs.0 => Err(EnvironmentError::Mixed {
            from: from.clone(),
            value: *value,
            launcher: launched.label(),
            theirs: theirs.0,
            missing: NUM_PROCESSES,
        }),
        _ => Ok(()),
    }
}
