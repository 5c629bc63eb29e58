//! Where this process is to run: its place among others, and what is wrong with it. `train` asks
//! before it waits for the others, `doctor` reports it.

mod chips;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::{env, fs, io};

use chips::{chips, slice_hosts};

use super::host::{Host, has_device_files};
use crate::cluster::environment::{
    DEFAULT_PORT, Environment, Given, Known, Probe, metadata as ask_metadata, unread,
};
use crate::cluster::{Secret, SecretError, Whereabouts, host_name};
use crate::config::{AutoOr, Backend, Config, HostPort};
use crate::launch::variable;

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The problem.
    pub what: String,
    /// The remedy.
    pub change: String,
    /// The consequence for `train`.
    pub weight: Weight,
}

/// The consequence of a finding for `train`. `doctor` reports all findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Nothing: the run does not depend on it.
    Note,
    /// `train` warns.
    Warning,
    /// `train` ends.
    Error,
}

/// The place of a process.
#[derive(Debug)]
pub struct OwnPlace {
    /// `None` for a process alone, and if it is not known.
    pub environment: Option<Environment>,
    /// The reason why the place is not known.
    pub obstacle: Option<String>,
    /// The secret that the processes of the job share, if there are several.
    pub secret: Option<Secret>,
    /// The problem.
    pub findings: Vec<Fault>,
}

/// The settings that a run asks for.
#[derive(Debug, Default)]
pub struct Wanted<'a> {
    /// Values of the configuration.
    given: Given,
    /// `None` if it is not known what will run: for `doctor`.
    backend: Option<&'a Backend>,
    /// The file with the token, which is otherwise in a variable.
    token_file: Option<&'a Path>,
}

/// This machine.
pub struct Machine<'a> {
    has_gpus: bool,
    has_tpus: bool,
    /// Looks for a host by its name or address.
    whereabouts: &'a dyn Fn(&str) -> io::Result<Whereabouts>,
}

/// The place of this process for a run with this configuration.
pub fn of_run(config: &Config) -> OwnPlace {
    let cluster = &config.cluster;
    let value = |key: AutoOr<usize>| match key {
        AutoOr::Value(value) => Some(value),
        AutoOr::Auto => None,
    };
    let given = Given {
        coordinator: cluster.coordinator.clone(),
        process_index: value(cluster.process_index),
        num_processes: value(cluster.num_processes),
    };
    if given.num_processes == Some(1) {
        return OwnPlace { environment: None, obstacle: None, secret: None, findings: vec![] };
    }
    let wanted = Wanted {
        given,
        backend: Some(&config.device.backend),
        token_file: cluster.token_file.as_deref(),
    };
    here(&wanted, &Host::here(), config.device.backend == Backend::Tpu)
}

/// The place of this process in a run, as far as the environment alone tells it.
pub fn of_any_run(host: &Host) -> OwnPlace {
    // Elsewhere the metadata server may be slow not to exist.
    let asks = host.tpu_pci_devices > 0 || host.is_google_cloud;
    here(&Wanted::default(), host, asks)
}

/// Why a supervisor that is told of one host only may be one of several that would each train
/// alone.
pub fn ignored_by_supervisor() -> Option<String> {
    with_probe(false, ignored_hosts)
}

/// The index of this host, if a launcher has started a supervisor on each.
pub fn host_index() -> Option<usize> {
    with_probe(false, |probe| {
        let environment = Environment::find(probe, &Given::default()).ok()??;
        (environment.num_processes.value > 1).then_some(environment.process_index.value)
    })
}

fn ignored_hosts(probe: &Probe) -> Option<String> {
    let environment = Environment::find(probe, &Given::default()).ok()?;
    let (what, number) = match environment {
        Some(Environment { process_index: index, num_processes: number, .. })
            if number.value > 1 =>
        {
            let from = format!("{}, {}", index.from, number.from);
            let what = format!("this is process {} of {} ({from})", index.value, number.value);
            (what, number.value.to_string())
        }
        _ => {
            let text = unread(probe).into_iter().next()?;
            let (what, _) = text.split_once(", but")?;
            (what.to_owned(), "NUMBER".to_owned())
        }
    };
    Some(format!(
        "{what}, but --hosts is 1, and each supervisor would train alone: if they are the hosts of \
         one job, set --hosts {number} and --coordinator HOST:{DEFAULT_PORT} with one of them"
    ))
}

fn here(wanted: &Wanted<'_>, host: &Host, asks_metadata: bool) -> OwnPlace {
    let machine = Machine {
        has_gpus: host.nvidia_pci_devices > 0 || has_device_files("cuda"),
        has_tpus: host.tpu_pci_devices > 0 || has_device_files("tpu"),
        whereabouts: &Whereabouts::of,
    };
    with_probe(asks_metadata, |probe| examine(probe, wanted, &machine))
}

/// Calls `ask` with this process's environment.
fn with_probe<T>(asks_metadata: bool, ask: impl FnOnce(&Probe) -> T) -> T {
    let text = |text: OsString| text.to_string_lossy().into_owned();
    ask(&Probe {
        variable: &|name| env::var_os(name).map(text),
        names: &|| env::vars_os().map(|(name, _)| text(name)).collect(),
        file: &|path| fs::read_to_string(path).ok(),
        metadata: &|name| if asks_metadata { ask_metadata(name) } else { None },
    })
}

/// The one list of what is checked.
fn examine(probe: &Probe, wanted: &Wanted<'_>, machine: &Machine<'_>) -> OwnPlace {
    let mut findings = vec![];
    let environment = match Environment::find(probe, &wanted.given) {
        Ok(environment) => environment,
        Err(error) => {
            let error = in_two(&error.to_string(), Weight::Error);
            let obstacle = Some(error.what.clone());
            findings.push(error);
            let secret = findings_of_token(probe, wanted, None, &mut findings);
            return OwnPlace { environment: None, obstacle, secret, findings };
        }
    };
    let several = environment.as_ref().filter(|environment| environment.num_processes.value > 1);
    if let Some(environment) = &environment {
        let contradictions = environment.contradictions.iter();
        findings.extend(contradictions.map(|text| in_two(text, Weight::Warning)));
    }
    match several {
        Some(several) => {
            let missing = several.coordinator().err();
            findings.extend(missing.map(|error| in_two(&error.to_string(), Weight::Error)));
            findings.extend(address(probe, several, machine));
        }
        None if environment.as_ref().is_some_and(is_told) => {}
        None => findings.extend(unread(probe).iter().map(|text| in_two(text, Weight::Warning))),
    }
    let secret = findings_of_token(probe, wanted, several, &mut findings);
    findings.extend(chips(probe, wanted, several, machine));
    let slice = environment.as_ref().and_then(|environment| environment.slice.as_ref());
    findings.extend(slice.and_then(|slice| slice_hosts(slice, wanted, several)));
    OwnPlace { environment, obstacle: None, secret, findings }
}

fn finding(what: impl Into<String>, change: impl Into<String>, weight: Weight) -> Fault {
    Fault { what: what.into(), change: change.into(), weight }
}

/// Messages about environments end in `: ` and what to change.
fn in_two(message: &str, weight: Weight) -> Fault {
    let (what, change) = message.rsplit_once(": ").unwrap_or((message, "correct it, or remove it"));
    finding(what, change, weight)
}

/// `true` if somebody has given the number of processes on purpose.
fn is_told(environment: &Environment) -> bool {
    [variable::NUM_PROCESSES, "cluster.num_processes"].contains(&&*environment.num_processes.from)
}

/// The weight of a problem that only matters to several processes: it ends `train` if this is one
/// of them.
fn weight_for(several: Option<&Environment>) -> Weight {
    if several.is_some() { Weight::Error } else { Weight::Note }
}

/// Reads what the processes share. One process alone needs nothing.
fn findings_of_token(
    probe: &Probe,
    wanted: &Wanted<'_>,
    several: Option<&Environment>,
    findings: &mut Vec<Fault>,
) -> Option<Secret> {
    const PRINTS: &str = "`openssl rand -hex 32` prints one";
    let variable = (probe.variable)(variable::TOKEN);
    let weight = weight_for(several);
    let read = match (wanted.token_file, variable) {
        (Some(path), _) if several.is_some() => Secret::from_file(path),
        (None, Some(text)) => Secret::from_hex(&text),
        (None, None) => {
            let Known { value, from } = &several?.num_processes;
            findings.push(finding(
                format!(
                    "this is one of {value} processes ({from}), which need a common token, but {} \
                     is not set",
                    variable::TOKEN
                ),
                format!(
                    "set it, or cluster.token_file, to the same in all ({PRINTS}), or \
                     cluster.num_processes to 1 if this process is to run alone"
                ),
                weight,
            ));
            return None;
        }
        _ => return None,
    };
    let error = match read {
        Ok(secret) => return Some(secret),
        Err(error) => error,
    };
    let name = match wanted.token_file {
        Some(path) => format!("cluster.token_file, {}", path.display()),
        None => variable::TOKEN.to_owned(),
    };
    let what = match &error {
        SecretError::File { error, .. } => format!("cannot be read: {error}"),
        SecretError::TooShort { num_bytes } => format!("has only {num_bytes} bytes"),
        _ => "does not hold hexadecimal digits, two for each byte".to_owned(),
    };
    let change = format!("set it to at least 16 random bytes, the same in all processes; {PRINTS}");
    findings.push(finding(format!("{name} {what}"), change, weight));
    None
}

/// Whether the others can reach the coordinator where they look for it, if this process runs it.
fn address(probe: &Probe, several: &Environment, machine: &Machine<'_>) -> Option<Fault> {
    let is_supervised = (probe.variable)(variable::SUPERVISOR).is_some();
    if several.process_index.value > 0 || is_supervised {
        return None;
    }
    let Known { value, from } = several.coordinator.as_ref()?;
    let address: HostPort = value.parse().ok()?;
    let host = address.host();
    let num_hosts = several.hosts.iter().collect::<BTreeSet<_>>().len();
    let is_local = several
        .num_local_processes
        .as_ref()
        .is_some_and(|local| local.value == several.num_processes.value && num_hosts <= 1);
    match (machine.whereabouts)(host) {
        Ok(Whereabouts::Elsewhere(ip)) => {
            let ip = ip.to_string();
            let shown = if ip == host { value.clone() } else { format!("{value}, which is {ip}") };
            let what = format!(
                "the coordinator's address is {shown} (from {from}), which is no address of this \
                 host ({}), but this is process 0, which runs the coordinator here",
                host_name()
            );
            let change = format!(
                "set it ({from}, or LOCKSTEP_COORDINATOR) to an address of this host in all \
                 processes, or start process 0 on the host that has this one; it is right only if \
                 a service or a gateway leads from there to this host"
            );
            Some(finding(what, change, Weight::Warning))
        }
        Ok(Whereabouts::Here(ip)) if ip.is_loopback() && !is_local => {
            let is_meant = host == "localhost" || host == ip.to_string();
            // Processes of one host are told by hand to meet there, too.
            (!is_meant || num_hosts > 1).then(|| {
                let what = format!(
                    "the coordinator's host is {host} (from {from}), which is {ip} on this host: \
                     processes on other hosts cannot reach it"
                );
                let change = format!(
                    "set it ({from}, or LOCKSTEP_COORDINATOR) to an address that the other hosts \
                     can reach, or correct the line of {host} in /etc/hosts"
                );
                finding(what, change, Weight::Warning)
            })
        }
        Ok(Whereabouts::Here(_)) => None,
        Err(error) => {
            let what =
                format!("the coordinator's host {host} (from {from}) has no address: {error}");
            let change =
                "correct its name; one that is still being started may get an address later";
            Some(finding(what, change, Weight::Note))
        }
    }
}

#[cfg(test)]
mod tests;
