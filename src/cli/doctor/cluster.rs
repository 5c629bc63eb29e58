//! The place of this process among those of its job, as `lockstep train` would find it.

use std::fs;

use hlo::counted;
use serde::Serialize;

use super::findings::Diagnosis;
use crate::cluster::environment::{
    Environment, EnvironmentError, Given, Known, Probe, metadata as ask_metadata,
};

/// What was found in the environment. `None` for one process.
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
}

/// Looks into this process's environment. The metadata server is asked only on machines with TPUs.
pub fn look(has_tpus: bool) -> (Option<ClusterReport>, Vec<Diagnosis>) {
    let probe = Probe {
        variable: &|name| std::env::var(name).ok(),
        file: &|path| fs::read_to_string(path).ok(),
        metadata: &|name| if has_tpus { ask_metadata(name) } else { None },
    };
    describe(Environment::find(&probe, &Given::default()))
}

fn describe(
    found: Result<Option<Environment>, EnvironmentError>,
) -> (Option<ClusterReport>, Vec<Diagnosis>) {
    let environment = match found {
        Ok(None) => return (None, vec![]),
        Ok(Some(environment)) => environment,
        Err(error) => return (None, vec![diagnosis(&error.to_string())]),
    };
    let missing = environment.coordinator().err().map(|error| error.to_string());
    let findings = environment.contradictions.iter().chain(&missing);
    let findings = findings.map(|text| diagnosis(text)).collect();
    let value = |known: &Option<Known<usize>>| known.as_ref().map(|known| known.value);
    let Environment { process_index, num_processes, coordinator, .. } = &environment;
    let mut from = vec![process_index.from.clone(), num_processes.from.clone()];
    from.extend(coordinator.as_ref().map(|known| known.from.clone()));
    from.dedup();
    let place = ClusterReport {
        launcher: environment.launcher,
        process_index: process_index.value,
        num_processes: num_processes.value,
        coordinator: coordinator.as_ref().map(|known| known.value.clone()),
        local_process_index: value(&environment.local_process_index),
        num_local_processes: value(&environment.num_local_processes),
        num_hosts: Some(environment.hosts.len()).filter(|count| *count > 0),
        from,
    };
    (Some(place), findings)
}

/// Messages end in ": " and what to change.
fn diagnosis(message: &str) -> Diagnosis {
    let (what, change) = message.rsplit_once(": ").unwrap_or((message, "correct it, or remove it"));
    Diagnosis { what: what.to_owned(), change: change.to_owned() }
}

/// For people.
pub fn line(place: Option<&ClusterReport>) -> String {
    let Some(place) = place else { return "cluster  one process".to_owned() };
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

    fn describe_recorded(recorded: &[&str]) -> (Option<ClusterReport>, Vec<Diagnosis>) {
        let variable = |name: &str| {
            let values = recorded.iter().filter_map(|line| line.strip_prefix(name));
            values.filter_map(|rest| rest.strip_prefix('=')).map(str::to_owned).next()
        };
        let probe = Probe { variable: &variable, file: &|_| None, metadata: &|_| None };
        describe(Environment::find(&probe, &Given::default()))
    }

    #[test]
    fn a_place_is_a_line() {
        let (place, findings) = describe_recorded(&[
            "RANK=5",
            "WORLD_SIZE=8",
            "LOCAL_WORLD_SIZE=4",
            "MASTER_ADDR=node1",
            "MASTER_PORT=29500",
        ]);
        assert_eq!(
            line(place.as_ref()),
            "cluster  process 5 of 8, started by torchrun, coordinator node1:29500, 4 processes on this host \
             (from RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)"
        );
        assert_eq!(findings, []);
        assert_eq!(line(describe_recorded(&[]).0.as_ref()), "cluster  one process");
    }

    #[test]
    fn what_contradicts_is_a_finding_with_what_to_change() {
        let rows: [(&[&str], &str, &str); 4] = [
            (&["RANK=5"], "but nothing says of how many", "set LOCKSTEP_NUM_PROCESSES"),
            (&["RANK=x", "WORLD_SIZE=2"], "RANK is \"x\"", "correct it"),
            (&["RANK=0", "WORLD_SIZE=2"], "where they meet", "host:port"),
            (
                &["RANK=0", "WORLD_SIZE=3", "MASTER_ADDR=a", "PMI_RANK=0", "PMI_SIZE=2"],
                "but PMI (PMI_RANK, PMI_SIZE) says process 0 of 2",
                "remove the variables",
            ),
        ];
        for (recorded, what, change) in rows {
            let (_, findings) = describe_recorded(recorded);
            let [one] = &findings[..] else { panic!("{recorded:?}: {findings:?}") };
            assert!(one.what.contains(what) && one.change.contains(change), "{one:?}");
        }
    }
}
