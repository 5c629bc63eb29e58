//! The other processes of a run, as the configuration and the environment say.

use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::io::Read;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use xxhash_rust::xxh3::Xxh3;

use super::launch::job_name;
use super::machine::MachineNotes;
use super::place::{self, Fault, OwnPlace, Weight};
use crate::checkpoint;
use crate::cluster::environment::Environment;
use crate::cluster::{
    Cause, INTERRUPTED, Member, MemberOptions, REGROUP, Secret, SnapshotAccess, TlsFiles,
};
use crate::config::{Backend, Config, LinkSecurity, OnSlow};
use crate::launch::variable;
use crate::observe::{Status, say};
use crate::pjrt::{self, Process};
use crate::train::{Error, Outcome};

/// Joins the other processes of the run. Waits until all have joined. `None` if there is only one
/// and no other can come.
pub fn join(config: &Config) -> Result<Option<Member>> {
    let is_supervised = follow_supervisor()?;
    let cluster = &config.cluster;
    let OwnPlace { environment, secret, findings, .. } = place::of_run(config);
    let of_weight = |weight| {
        let found = findings.iter().filter(move |finding| finding.weight == weight);
        found.map(|Fault { what, change, .. }| format!("{what}: {change}"))
    };
    of_weight(Weight::Warning).for_each(|text| say(&format!("warning: {text}")));
    let errors: Vec<String> = of_weight(Weight::Error).collect();
    if !errors.is_empty() {
        bail!(errors.join("\nerror: "));
    }
    let (Some(environment), Some(secret)) = (environment, secret) else { return Ok(None) };
    let process = Process {
        index: environment.process_index.value,
        num_processes: environment.num_processes.value,
    };
    let may_change = env::var_os(variable::IS_FLEXIBLE).is_some_and(|value| value == "1");
    if process.num_processes == 1 && !(is_supervised && may_change) {
        return Ok(None);
    }
    let coordinator = environment.coordinator()?.unwrap_or_default().to_owned();
    let files = TlsFiles {
        authority: env::var_os(variable::TLS_CA).map(Into::into).or(cluster.tls_ca.clone()),
        certificate: cluster.tls_certificate.clone(),
        key: cluster.tls_key.clone(),
    };
    let tls = files.read(!is_supervised && process.index == 0)?;
    let dead_after = Duration::from_secs_f64(cluster.dead_after_secs);
    let member = Member::join(MemberOptions {
        coordinator,
        job: job_name(),
        secret,
        tls,
        has_plain_links: cluster.links == LinkSecurity::Plain,
        interface: cluster.interface.clone(),
        replaces_slow: cluster.on_slow == OnSlow::Replace,
        hides_waits: env::var_os(variable::HIDE_WAITS).is_some_and(|value| value == "1"),
        generation: variable_as(variable::GENERATION)?,
        process,
        local_index: environment.local_process_index.as_ref().map(|index| index.value),
        program: program(config)?,
        deadline: Duration::from_secs_f64(cluster.join_timeout_secs),
        own_dead_after: (!is_supervised).then_some(dead_after),
        gpus: own_gpus(config, &environment),
        say,
    });
    let member = member?;
    let (mut notes, backend) = (None, config.device.backend.clone());
    // NVML is loaded there, and not while the run waits for it.
    member.watch_machine(move || notes.get_or_insert_with(|| MachineNotes::new(&backend)).now())?;
    Ok(Some(member))
}

/// The GPU of this process, if it is one of several on its host. `None` if it may use all that it
/// sees: it is alone, its launcher shows it only its own, or the configuration chooses.
fn own_gpus(config: &Config, environment: &Environment) -> Option<Vec<usize>> {
    const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
    let shares_its_host = environment.num_local_processes.as_ref()?.value > 1;
    let is_chosen = config.device.options.contains_key("visible_devices");
    let is_only_one = env::var(VISIBLE).is_ok_and(|devices| !devices.contains(','));
    if config.device.backend != Backend::Cuda || !shares_its_host || is_chosen || is_only_one {
        return None;
    }
    Some(vec![environment.local_process_index.as_ref()?.value])
}

/// Makes the configuration of all hosts one for those that are there, in a job that can do with
/// fewer.
pub fn fit_roster(config: &mut Config) -> Result<()> {
    let Some(full_processes) = variable_as(variable::FULL_PROCESSES)? else { return Ok(()) };
    let num_processes = variable_as(variable::NUM_PROCESSES)?.unwrap_or(full_processes);
    Ok(config.fit_roster(full_processes, num_processes)?)
}

/// The number of processes for which this one only compiles programs, if that is its work.
pub fn only_compiles_for() -> Result<Option<usize>> {
    match env::var_os(variable::ONLY_COMPILE) {
        Some(value) if value == "1" => variable_as(variable::NUM_PROCESSES),
        _ => Ok(None),
    }
}

/// Leaves the other processes after the run, and tells them if it has failed here. `is_regrouping`:
/// the run goes on in other processes.
pub fn leave(member: Member, trained: &Result<Outcome, Error>, is_regrouping: bool) {
    let failure = match trained {
        Ok(Outcome { failure: None, summary }) => {
            let outcome = match summary.status {
                _ if is_regrouping => REGROUP,
                Status::Interrupted => INTERRUPTED,
                _ => "done",
            };
            // What has failed since then is not this process's failure.
            let _ = member.leave(outcome);
            return;
        }
        Ok(Outcome { failure: Some(failure), .. }) | Err(failure) => failure,
    };
    fail(member, failure);
}

/// Leaves the other processes after something other than a run. `true` for the process that reports
/// about it.
pub fn leave_after<T>(member: Option<Member>, ended: &Result<T, Error>) -> bool {
    let Some(member) = member else { return true };
    let is_first = member.process().index == 0;
    match ended {
        // What has failed since then is not this process's failure.
        Ok(_) => drop(member.leave("done")),
        Err(failure) => fail(member, failure),
    }
    is_first
}

/// Tells the other processes that this one has failed.
fn fail(member: Member, failure: &Error) {
    // A launch fails here because of another process as well; that one knows better.
    let (cause, reason) = match failure {
        Error::Pjrt(pjrt::Error::Pjrt { message, .. }) => (Cause::PeerLost, message.clone()),
        Error::Pjrt(_) | Error::Cluster(_) | Error::Member(_) => {
            (Cause::PeerLost, failure.to_string())
        }
        // Another attempt would end in the same way.
        Error::StoppedBeforeStart
        | Error::NotResumed { .. }
        | Error::Checkpoint(checkpoint::Error::Damaged { .. }) => {
            (Cause::Final, failure.to_string())
        }
        Error::Checkpoint(checkpoint::Error::NotShared { .. }) => {
            (Cause::Host, failure.to_string())
        }
        _ => (Cause::Own, failure.to_string()),
    };
    member.fail(cause, &reason);
}

/// The time within which the supervisor of this process, if it has one, waits for what was left of
/// a run before.
pub fn start_within() -> Result<Option<Duration>> {
    let secs = variable_as::<f64>(variable::START_WITHIN_SECS)?;
    Ok(secs.and_then(|secs| Duration::try_from_secs_f64(secs).ok()))
}

/// The snapshots that the supervisor of this process holds, if it has one.
pub fn snapshots() -> Result<Option<SnapshotAccess>> {
    let Some(supervisor) = variable_as(variable::SUPERVISOR)? else { return Ok(None) };
    let list = |name| -> Vec<String> {
        let text = env::var(name).unwrap_or_default();
        text.split(',').filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    let slots = list(variable::SNAPSHOT_SLOTS);
    Ok(Some(SnapshotAccess {
        supervisor,
        slots: slots.iter().filter_map(|number| number.parse().ok()).collect(),
        own_holder: env::var(variable::SNAPSHOT_HOLDER).unwrap_or_default(),
        holders: list(variable::SNAPSHOT_HOLDERS),
        generation: variable_as(variable::GENERATION)?.unwrap_or_default(),
        job: job_name(),
        secret: Secret::from_env(variable::TOKEN)?,
    }))
}

fn variable_as<T: FromStr>(name: &str) -> Result<Option<T>> {
    let Some(text) = env::var_os(name) else { return Ok(None) };
    let parsed = text.to_str().and_then(|text| text.parse().ok());
    match parsed {
        Some(value) => Ok(Some(value)),
        None => bail!("the environment variable {name} is {text:?}, which is not a number"),
    }
}

/// Ends this process when its supervisor ends, however that ends. `true` if it has one.
pub fn follow_supervisor() -> Result<bool> {
    let Some(supervisor) = variable_as::<i32>(variable::SUPERVISOR)? else { return Ok(false) };
    set_parent_process_death_signal(Some(Signal::KILL))
        .context("cannot ask for a signal when the supervisor ends")?;
    // The supervisor may have ended before.
    if getppid() != Pid::from_raw(supervisor) {
        bail!("the supervisor that started this process has ended");
    }
    Ok(true)
}

/// What must be the same in all processes: this program, and the configuration without what tells
/// the processes apart.
fn program(config: &Config) -> Result<Vec<(String, String)>> {
    let shared = Config { cluster: Default::default(), ..config.clone() };
    let named = |name: &str, value: String| (name.to_owned(), value);
    let mut program = vec![named("version", env!("CARGO_PKG_VERSION").to_owned())];
    program.push(named("binary", own_digest().unwrap_or_default()));
    // Key by key, so that the message about a difference is short.
    let mut sections: BTreeMap<String, String> = BTreeMap::new();
    for (section, keys) in toml::Table::try_from(&shared)? {
        let Some(keys) = keys.as_table() else { continue };
        for (key, value) in keys {
            sections.insert(format!("{section}.{key}"), value.to_string());
        }
    }
    program.extend(sections);
    Ok(program)
}

/// A hash of the program that runs, `None` if it cannot be read.
fn own_digest() -> Option<String> {
    let mut file = File::open("/proc/self/exe").ok()?;
    let (mut hash, mut block) = (Xxh3::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut block).ok()? {
            0 => return Some(format!("{:032x}", hash.digest128())),
            count => hash.update(&block[..count]),
        }
    }
}
