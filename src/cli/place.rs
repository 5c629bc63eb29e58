//! Where this process is to run: its place among others, and what is wrong with it. `train` asks before it waits for the
//! others, `doctor` reports it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::{env, fs, io};

use super::doctor::{Host, has_device_files};
use crate::cluster::environment::{
    DEFAULT_PORT, Environment, Given, Known, Probe, SliceHosts, metadata as ask_metadata, unread,
};
use crate::cluster::{Secret, SecretError, Whereabouts, host_name};
use crate::config::{AutoOr, Backend, Config, HostPort, StoreUrl};
use crate::launch::variable;
use crate::targets::Target;

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong.
    pub what: String,
    /// What to change.
    pub change: String,
    /// What `train` makes of it.
    pub weight: Weight,
}

/// What `train` makes of a finding. `doctor` reports all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Nothing: the run does not depend on it.
    Note,
    /// It warns.
    Warning,
    /// It ends.
    Error,
}

/// The place of a process.
#[derive(Debug)]
pub struct OwnPlace {
    /// `None` for a process alone, and if it is not known.
    pub environment: Option<Environment>,
    /// What keeps the place from being known.
    pub obstacle: Option<String>,
    /// What the processes of the job share, if there are several.
    pub secret: Option<Secret>,
    /// What is wrong.
    pub findings: Vec<Fault>,
}

/// What a run is to have.
#[derive(Debug, Default)]
pub struct Wanted<'a> {
    /// Values of the configuration.
    given: Given,
    /// `None` if it is not known what will run: for `doctor`.
    backend: Option<&'a Backend>,
    /// The file with the token, which is otherwise in a variable.
    token_file: Option<&'a Path>,
    /// `true` if the coordinator's address can be found elsewhere.
    has_store: bool,
}

/// What this machine is.
pub struct Machine<'a> {
    has_gpus: bool,
    has_tpus: bool,
    /// Looks for a host by its name or address.
    whereabouts: &'a dyn Fn(&str) -> io::Result<Whereabouts>,
}

/// The place of this process for a run with this configuration.
pub fn of_run(config: &Config, store: &StoreUrl) -> OwnPlace {
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
        has_store: *store != StoreUrl::Builtin,
    };
    here(&wanted, &Host::here(), config.device.backend == Backend::Tpu)
}

/// The place of this process for a run of which only the environment is known.
pub fn of_any_run(host: &Host) -> OwnPlace {
    // Elsewhere the metadata server may be slow not to exist.
    let asks = host.tpu_pci_devices > 0 || host.is_google_cloud;
    here(&Wanted::default(), host, asks)
}

/// Why a supervisor that is told of one host only may be one of several that would each train alone.
pub fn ignored_by_supervisor() -> Option<String> {
    with_probe(false, ignored_hosts)
}

fn ignored_hosts(probe: &Probe) -> Option<String> {
    let environment = Environment::find(probe, &Given::default()).ok()?;
    let (what, index, number) = match environment {
        Some(Environment { process_index: index, num_processes: number, .. })
            if number.value > 1 =>
        {
            let from = format!("{}, {}", index.from, number.from);
            let what = format!("this is process {} of {} ({from})", index.value, number.value);
            (what, index.value.to_string(), number.value.to_string())
        }
        _ => {
            let text = unread(probe).into_iter().next()?;
            let (what, _) = text.split_once(", but")?;
            (what.to_owned(), "INDEX".to_owned(), "NUMBER".to_owned())
        }
    };
    Some(format!(
        "{what}, but --hosts is 1, and each supervisor would train alone: if they are the hosts of one job, set --hosts \
         {number}, --host-index {index} and --coordinator HOST:{DEFAULT_PORT} with the first host"
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
            let missing = several.coordinator().err().filter(|_| !wanted.has_store);
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

/// Reads what the processes share. One process alone needs nothing.
fn findings_of_token(
    probe: &Probe,
    wanted: &Wanted<'_>,
    several: Option<&Environment>,
    findings: &mut Vec<Fault>,
) -> Option<Secret> {
    const PRINTS: &str = "`openssl rand -hex 32` prints one";
    let variable = (probe.variable)(variable::TOKEN);
    let weight = if several.is_some() { Weight::Error } else { Weight::Note };
    let read = match (wanted.token_file, variable) {
        (Some(path), _) if several.is_some() => Secret::from_file(path),
        (None, Some(text)) => Secret::from_hex(&text),
        (None, None) => {
            let Known { value, from } = &several?.num_processes;
            findings.push(finding(
                format!(
                    "this is one of {value} processes ({from}), which need a common token, but {} is not set",
                    variable::TOKEN
                ),
                format!(
                    "set it, or cluster.token_file, to the same in all ({PRINTS}), or cluster.num_processes to 1 if this \
                     process is to run alone"
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
                "the coordinator's address is {shown} (from {from}), which is no address of this host ({}), but this is \
                 process 0, which runs the coordinator here",
                host_name()
            );
            let change = format!(
                "set it ({from}, or LOCKSTEP_COORDINATOR) to an address of this host in all processes, or start process 0 \
                 on the host that has this one; it is right only if a service or a gateway leads from there to this host"
            );
            Some(finding(what, change, Weight::Warning))
        }
        Ok(Whereabouts::Here(ip)) if ip.is_loopback() && !is_local => {
            let is_meant = host == "localhost" || host == ip.to_string();
            // Processes of one host are told by hand to meet there, too.
            (!is_meant || num_hosts > 1).then(|| {
                let what = format!(
                    "the coordinator's host is {host} (from {from}), which is {ip} on this host: processes on other hosts \
                     cannot reach it"
                );
                let change = format!(
                    "set it ({from}, or LOCKSTEP_COORDINATOR) to an address that the other hosts can reach, or correct the \
                     line of {host} in /etc/hosts"
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

/// Whether the chips are there that the run, or the environment, speaks of. A process alone hears it from its plugin; one
/// of several would wait for the others before.
fn chips(
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
                "ask for the chips (google.com/tpu in the resources of a pod, --privileged for a container), or {}",
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
                "ask for GPUs (--gpus-per-task of Slurm, nvidia.com/gpu in the resources of a pod, --gpus all for a \
                 container), or {}",
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

/// Whether the slice of a TPU has as many hosts as its type says. With fewer, the chips wait for the missing ones.
fn slice_hosts(
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

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    const TOKEN: &str = "LOCKSTEP_TOKEN=0123456789abcdef0123456789abcdef";
    const TWO: [&str; 3] = [TOKEN, "LOCKSTEP_PROCESS_INDEX=1", "LOCKSTEP_NUM_PROCESSES=2"];

    /// Hosts that begin with `here` are this machine, `home` is loopback, `none` has no address, others are elsewhere.
    fn whereabouts(host: &str) -> io::Result<Whereabouts> {
        match host {
            "home" | "localhost" => Ok(Whereabouts::Here(IpAddr::from([127, 0, 1, 1]))),
            "none" => Err(io::Error::other("unknown name")),
            host if host.starts_with("here") => Ok(Whereabouts::Here(IpAddr::from([10, 0, 0, 1]))),
            _ => Ok(Whereabouts::Elsewhere(Ipv4Addr::new(192, 0, 2, 1).into())),
        }
    }

    /// `NAME=value`, and `@name=value` for attributes of the metadata server; on a machine with these chips.
    fn place(recorded: &[&str], wanted: &Wanted<'_>, chips: &str) -> OwnPlace {
        let look = |name: &str| {
            let mut pairs = recorded.iter().filter_map(|line| line.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
        };
        let probe = Probe {
            variable: &look,
            names: &Vec::new,
            file: &|_| None,
            metadata: &|name| look(&format!("@{name}")),
        };
        let machine = Machine {
            has_gpus: chips.contains("gpu"),
            has_tpus: chips.contains("tpu"),
            whereabouts: &whereabouts,
        };
        examine(&probe, wanted, &machine)
    }

    fn on(backend: &Backend) -> Wanted<'_> {
        Wanted { backend: Some(backend), ..Wanted::default() }
    }

    /// What `doctor` says.
    fn findings(recorded: &[&str]) -> Vec<Fault> {
        place(recorded, &Wanted::default(), "").findings
    }

    #[track_caller]
    fn check(found: Vec<Fault>, weight: Weight, what: &str, change: &str) {
        let [one] = &found[..] else { panic!("{what}: {found:?}") };
        let is_it = one.what.contains(what) && one.change.contains(change);
        assert!(is_it && one.weight == weight, "{one:?}");
    }

    #[test]
    fn a_place_without_fault_has_no_findings() {
        assert_eq!(findings(&["USER=me", TOKEN]), []);
        let at = |address: &'static str| [&TWO[..], &[address]].concat();
        assert_eq!(findings(&at("LOCKSTEP_COORDINATOR=a:1")), []);
        assert!(place(&at("LOCKSTEP_COORDINATOR=a:1"), &Wanted::default(), "").secret.is_some());
        let first = [TOKEN, "RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=here"];
        assert_eq!(findings(&first), []);
        let local = ["LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=home"];
        assert_eq!(findings(&[&first[..3], &local].concat()), []);
        // Told to be alone.
        assert_eq!(findings(&["LOCKSTEP_NUM_PROCESSES=1", "DSTACK_NODES_NUM=2"]), []);
    }

    #[test]
    fn a_token_is_needed_by_several_processes() {
        let several = ["RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=a"];
        let with = |token: &'static str| findings(&[&several[..], &[token]].concat());
        let missing = "one of 2 processes (WORLD_SIZE), which need a common token";
        check(with("USER=me"), Weight::Error, missing, "cluster.token_file");
        check(
            with("LOCKSTEP_TOKEN=hello"),
            Weight::Error,
            "LOCKSTEP_TOKEN does not hold",
            "openssl",
        );
        check(with("LOCKSTEP_TOKEN=0123"), Weight::Error, "LOCKSTEP_TOKEN has only 2 bytes", "16");
        check(with("LOCKSTEP_TOKEN="), Weight::Error, "LOCKSTEP_TOKEN has only 0 bytes", "16");
        // What `launch` would refuse.
        check(findings(&["LOCKSTEP_TOKEN=hello"]), Weight::Note, "does not hold", "openssl");
        let path = Path::new("/no/such/token");
        let wanted = Wanted { token_file: Some(path), ..Wanted::default() };
        let found = place(&[&several[..], &[TOKEN]].concat(), &wanted, "").findings;
        check(found, Weight::Error, "cluster.token_file, /no/such/token cannot be read", "openssl");
    }

    #[test]
    fn what_contradicts_is_a_finding_with_what_to_change() {
        let rows: [(&[&str], Weight, &str, &str); 6] = [
            (
                &["RANK=5"],
                Weight::Error,
                "but nothing says of how many",
                "set LOCKSTEP_NUM_PROCESSES",
            ),
            (&["RANK=x", "WORLD_SIZE=2"], Weight::Error, "RANK is \"x\"", "correct it"),
            (&["RANK=1", "WORLD_SIZE=2"], Weight::Error, "where they meet", "host:port"),
            (
                &["RANK=1", "WORLD_SIZE=3", "MASTER_ADDR=a", "PMI_RANK=1", "PMI_SIZE=2"],
                Weight::Warning,
                "but PMI (PMI_RANK, PMI_SIZE) says process 1 of 2",
                "remove the variables",
            ),
            (
                &["RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=[[::1]]"],
                Weight::Error,
                "MASTER_ADDR is \"[[::1]]\"",
                "correct it",
            ),
            (&["DSTACK_NODES_NUM=2"], Weight::Warning, "each process would train alone", "$DSTACK"),
        ];
        for (recorded, weight, what, change) in rows {
            check(findings(&[recorded, &[TOKEN]].concat()), weight, what, change);
        }
        // etcd has the address.
        let wanted = Wanted { has_store: true, ..Wanted::default() };
        assert_eq!(place(&[TOKEN, "RANK=1", "WORLD_SIZE=2"], &wanted, "").findings, []);
    }

    #[test]
    fn a_supervisor_of_one_host_is_not_one_of_several() {
        let of = |recorded: &[&str]| {
            let look = |name: &str| {
                let mut pairs = recorded.iter().filter_map(|line| line.split_once('='));
                pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
            };
            let (names, file, metadata) = (&Vec::new, &|_: &Path| None, &|_: &str| None);
            ignored_hosts(&Probe { variable: &look, names, file, metadata })
        };
        let slurm = ["SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NODELIST=a,b"];
        let said = of(&slurm).unwrap();
        assert!(said.starts_with("this is process 1 of 2 (SLURM_PROCID, SLURM_STEP"), "{said}");
        assert!(said.contains("--hosts 2, --host-index 1 and --coordinator"), "{said}");
        let said = of(&["DSTACK_NODES_NUM=2"]).unwrap();
        assert!(said.starts_with("DSTACK_NODES_NUM (dstack) is 2, but --hosts is 1"), "{said}");
        assert_eq!(of(&["USER=me", "RANK=0", "WORLD_SIZE=1"]), None);
    }

    #[test]
    fn process_0_is_where_the_others_look_for_it() {
        let first = [TOKEN, "RANK=0", "WORLD_SIZE=2", "MASTER_PORT=29517"];
        let at = |address: &'static str| findings(&[&first[..], &[address]].concat());
        let what =
            "192.0.2.1:29517 (from MASTER_ADDR, MASTER_PORT), which is no address of this host";
        check(at("MASTER_ADDR=192.0.2.1"), Weight::Warning, what, "start process 0");
        check(
            at("MASTER_ADDR=other"),
            Weight::Warning,
            "other:29517, which is 192.0.2.1",
            "set it",
        );
        check(at("MASTER_ADDR=home"), Weight::Warning, "home (from", "/etc/hosts");
        check(at("MASTER_ADDR=none"), Weight::Note, "none (from", "correct its name");
        assert_eq!(at("MASTER_ADDR=localhost"), []);
        // The other processes are elsewhere, and a supervisor's worker does not run the coordinator.
        assert_eq!(findings(&[&TWO[..], &["LOCKSTEP_COORDINATOR=192.0.2.1:1"]].concat()), []);
        let worker = ["MASTER_ADDR=192.0.2.1", "LOCKSTEP_SUPERVISOR=7"];
        assert_eq!(findings(&[&first[..], &worker].concat()), []);
        let slurm = ["SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NODELIST=localhost,b"];
        let found = findings(&[&slurm[..], &["SLURM_JOB_ID=1", TOKEN]].concat());
        check(
            found,
            Weight::Warning,
            "processes on other hosts cannot reach it",
            "LOCKSTEP_COORDINATOR",
        );
    }

    #[test]
    fn chips_that_are_spoken_of_are_there() {
        let worker = [TOKEN, "TPU_WORKER_ID=1", "TPU_WORKER_HOSTNAMES=a,b"];
        let no_tpu = "TPU_WORKER_ID is 1, TPU_WORKER_HOSTNAMES is a,b, but this machine has no TPU";
        check(findings(&worker), Weight::Note, no_tpu, "google.com/tpu");
        let of = |backend: &Backend, recorded: &[&str], chips| {
            place(recorded, &on(backend), chips).findings
        };
        check(of(&Backend::Tpu, &worker, "gpu"), Weight::Error, no_tpu, "google.com/tpu");
        assert_eq!(of(&Backend::Tpu, &worker, "tpu gpu"), []);
        check(
            findings(&["@accelerator-type=v5litepod-8"]),
            Weight::Note,
            "metadata server",
            "chips",
        );
        let several = [&TWO[..], &["LOCKSTEP_COORDINATOR=a:1"]].concat();
        check(
            of(&Backend::Cuda, &several, "tpu"),
            Weight::Error,
            "the backend is cuda",
            "nvidia.com",
        );
        // Alone, its plugin says so at once.
        assert_eq!(of(&Backend::Cuda, &[], ""), []);
        for gpus in ["CUDA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=all", "SLURM_GPUS_ON_NODE=8"]
        {
            check(findings(&[gpus]), Weight::Note, "no GPU of NVIDIA's", "--gpus all");
            assert_eq!(place(&[gpus], &Wanted::default(), "gpu").findings, []);
        }
        for none in
            ["CUDA_VISIBLE_DEVICES=-1", "NVIDIA_VISIBLE_DEVICES=void", "SLURM_GPUS_ON_NODE=0"]
        {
            assert_eq!(findings(&[none]), []);
        }
    }

    #[test]
    fn a_slice_has_the_hosts_of_its_type() {
        let slice = |kind: &'static str, hosts: &'static str, more: &[&'static str]| {
            let names = [TOKEN, "TPU_WORKER_ID=1", kind, hosts];
            place(&[&names, more].concat(), &on(&Backend::Tpu), "tpu gpu").findings
        };
        let kind = "TPU_ACCELERATOR_TYPE=v5litepod-16";
        let what = "TPU_ACCELERATOR_TYPE is v5litepod-16, a slice of 4 hosts, but TPU_WORKER_HOSTNAMES names 2";
        let two = "TPU_WORKER_HOSTNAMES=a,b";
        check(slice(kind, two, &[]), Weight::Error, what, "name all hosts");
        let pool = "TPU_ACCELERATOR_TYPE=tpu-v5-lite-podslice";
        let found = slice(pool, two, &["TPU_TOPOLOGY=4x4"]);
        check(found, Weight::Error, "a slice of 4 hosts", "LOCKSTEP_NUM_PROCESSES");
        for (kind, hosts) in [
            (kind, "TPU_WORKER_HOSTNAMES=a,b,c,d"),
            ("TPU_ACCELERATOR_TYPE=v5litepod-8", two),
            ("TPU_ACCELERATOR_TYPE=v5p-16", two),
            ("TPU_ACCELERATOR_TYPE=of-another-maker", two),
            // Two processes on each of four hosts.
            (kind, "TPU_PROCESS_ADDRESSES=a:1,a:2,b:1,b:2,c:1,c:2,d:1,d:2"),
        ] {
            assert_eq!(slice(kind, hosts, &[]), [], "{kind} {hosts}");
        }
        // Given by hand, or of no interest on another backend.
        let explicit = ["LOCKSTEP_PROCESS_INDEX=1", "LOCKSTEP_NUM_PROCESSES=2"];
        check(slice(kind, two, &explicit), Weight::Note, what, "name all");
        let found = place(&[TOKEN, "TPU_WORKER_ID=1", kind, two], &on(&Backend::Cpu), "tpu gpu");
        check(found.findings, Weight::Note, what, "name all");
    }
}
