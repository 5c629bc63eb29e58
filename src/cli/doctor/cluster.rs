//! The place of this process among those of its job, as `lockstep train` would find it.

use std::collections::BTreeMap;

use hlo::counted;
use serde::Serialize;

use super::findings::Diagnosis;
use crate::cli::place::Fault;
use crate::cluster::Limits;
use crate::cluster::environment::{Environment, Known};

/// The environment of the job. `None` for one process.
#[derive(Debug, Serialize)]
pub struct ClusterReport {
    pub launcher: Option<&'static str>,
    pub process_index: usize,
    pub num_processes: usize,
    pub coordinator: Option<String>,
    pub local_process_index: Option<usize>,
    pub num_local_processes: Option<usize>,
    pub num_hosts: Option<usize>,
    /// The variables that say so.
    pub from: Vec<String>,
    /// How long a process may take, in seconds, unless the job is started with another
    /// `--dead-after-secs`.
    pub limits_secs: BTreeMap<&'static str, f64>,
}

impl From<Fault> for Diagnosis {
    fn from(Fault { what, change, .. }: Fault) -> Self {
        Self { what, change }
    }
}

impl ClusterReport {
    pub fn of(environment: &Environment) -> Self {
        let value = |known: &Option<Known<usize>>| known.as_ref().map(|known| known.value);
        let Environment { process_index, num_processes, coordinator, .. } = environment;
        let mut from = vec![process_index.from.clone(), num_processes.from.clone()];
        from.extend(coordinator.as_ref().map(|known| known.from.clone()));
        from.dedup();
        Self {
            launcher: environment.launcher,
            process_index: process_index.value,
            num_processes: num_processes.value,
            coordinator: coordinator.as_ref().map(|known| known.value.clone()),
            local_process_index: value(&environment.local_process_index),
            num_local_processes: value(&environment.num_local_processes),
            num_hosts: Some(environment.hosts.len()).filter(|count| *count > 0),
            from,
            limits_secs: Limits::default()
                .rows()
                .map(|(what, time)| (what, time.as_secs_f64()))
                .into(),
        }
    }

    /// How long a process may take, for people.
    pub fn times(&self) -> String {
        let times = self.limits_secs.iter();
        let times = times.map(|(what, secs)| format!("{} {secs} s", what.replace('_', " ")));
        let times: Vec<_> = times.collect();
        format!("times    {}; --dead-after-secs above 8 makes all longer", times.join(", "))
    }
}

/// For people.
pub fn line(place: Option<&ClusterReport>, obstacle: Option<&str>) -> String {
    let Some(place) = place else {
        return match obstacle {
            None => "cluster  one process".to_owned(),
            Some(obstacle) => format!("cluster  unknown: {obstacle}"),
        };
    };
    let mut facts = vec![format!("process {} of {}", place.process_index, place.num_processes)];
    facts.extend(place.launcher.map(|launcher| format!("started by {launcher}")));
    facts.extend(place.coordinator.as_ref().map(|address| format!("coordinator {address}")));
    facts
        .extend(place.num_local_processes.map(|count| counted(count, "process") + " on this host"));
    facts.extend(place.num_hosts.map(|count| counted(count, "host")));
    format!("cluster  {} (from {})", facts.join(", "), place.from.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_line() {
        let known = |value, from: &str| Known { value, from: from.to_owned() };
        let coordinator =
            Known { value: "node1:29500".into(), from: "MASTER_ADDR, MASTER_PORT".into() };
        let environment = Environment {
            launcher: Some("torchrun"),
            process_index: known(5, "RANK"),
            num_processes: known(8, "WORLD_SIZE"),
            coordinator: Some(coordinator),
            local_process_index: None,
            num_local_processes: Some(known(4, "LOCAL_WORLD_SIZE")),
            hosts: vec![],
            slice: None,
            contradictions: vec![],
        };
        assert_eq!(
            line(Some(&ClusterReport::of(&environment)), None),
            "cluster  process 5 of 8, started by torchrun, coordinator node1:29500, 4 processes on \
             this host (from RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)"
        );
        assert_eq!(
            ClusterReport::of(&environment).times(),
            "times    checkpoint 900 s, compile 3600 s, end 900 s, evaluate 3600 s, first step 600 \
             s, no report 8 s, start 600 s; --dead-after-secs above 8 makes all longer"
        );
        assert_eq!(line(None, None), "cluster  one process");
        assert_eq!(line(None, Some("RANK is \"x\"")), "cluster  unknown: RANK is \"x\"");
    }
}
