//! Hosts of Cloud TPU slices: from the variables of Google Kubernetes Engine, or from the machine's
//! metadata.

use std::path::Path;

use super::error::EnvironmentError;
use super::launchers::{Launched, is_launched_otherwise};
use super::probe::{Probe, host_and_port, invalid, parse};
use super::{DEFAULT_PORT, Known, SliceHosts};
use crate::config::HostPort;

type Result<T> = std::result::Result<T, EnvironmentError>;

/// Adds what the variables, or the metadata, say of the slice.
pub(super) fn complete(probe: &Probe, explicit: &Launched, found: &mut Launched) -> Result<()> {
    let mut workers = workers(probe)?;
    let mut kind = probe.text("TPU_ACCELERATOR_TYPE");
    let skips = probe.text("TPU_SKIP_MDS_QUERY").is_some();
    let is_identified = explicit.index.is_some() || found.index.is_some() || workers.is_some();
    if !skips && !is_identified && !is_launched_otherwise(probe) {
        // ip, or two other fields and ip, of each worker.
        const ENDPOINTS: &str = "worker-network-endpoints";
        const NUMBER: &str = "agent-worker-number";
        const TYPE: &str = "accelerator-type";
        let Some(number) = (probe.metadata)(NUMBER) else { return Ok(()) };
        found.index = Some(parse(number.trim(), NUMBER, 0)?);
        if let Some(endpoints) = (probe.metadata)(ENDPOINTS) {
            let host = |endpoint: &str| {
                let ip = endpoint.trim().splitn(3, ':').last().unwrap_or_default();
                host(ip, ENDPOINTS)
            };
            let value = endpoints.split(',').map(host).collect::<Result<_>>()?;
            workers = Some(Known { value, from: ENDPOINTS.to_owned() });
        }
        let value = (probe.metadata)(TYPE).map(|value| value.trim().to_owned());
        kind = kind.or(value.map(|value| Known { value, from: TYPE.to_owned() }));
    }
    let Some(workers) = workers else { return Ok(()) };
    let count = workers.value.len();
    found.count = Some(Known { value: count, from: workers.from.clone() });
    if let Some(index) = found.index.clone().filter(|index| index.value >= count) {
        found.problem = Some(EnvironmentError::IndexTooLarge {
            index: index.value,
            index_from: index.from,
            count,
            count_from: workers.from.clone(),
        });
    }
    let mut first = workers.value.first().cloned().unwrap_or_default();
    found.hosts = workers.value;
    // With bounds of its own a process uses a part of the slice.
    if let Some(kind) = kind.filter(|_| probe.text("TPU_PROCESS_BOUNDS").is_none()) {
        let mut hosts = found.hosts.clone();
        hosts.sort_unstable();
        hosts.dedup();
        let num_hosts = Known { value: hosts.len(), from: workers.from.clone() };
        let topology = probe.text("TPU_TOPOLOGY");
        found.slice = Some(SliceHosts { kind, topology, num_hosts });
    }
    let mut from = workers.from;
    if let Some(Slice { index: slice, num_slices, first_worker }) = slice(probe)? {
        from = format!("{}, {from}", num_slices.from);
        let value = num_slices.value.saturating_mul(count);
        found.count = Some(Known { value, from: from.clone() });
        if let Some(index) = &mut found.index {
            index.value = slice.value.saturating_mul(count).saturating_add(index.value);
            index.from = format!("{}, {}", slice.from, index.from);
        }
        // Only the hosts of this slice are known.
        found.hosts.clear();
        // The port there is that of the TPU runtime.
        let address = host_and_port(&first_worker.value, &first_worker.from, DEFAULT_PORT)?;
        (first, from) = (address.host().to_owned(), first_worker.from);
    }
    let address =
        HostPort::new(&first, DEFAULT_PORT).ok_or_else(|| invalid(&from, &first, HOSTS))?;
    found.coordinator = Some(Known { value: address.to_string(), from });
    Ok(())
}

const HOSTS: &str = "a list of hosts, separated by commas";

/// A host of a list, without its port.
fn host(text: &str, from: &str) -> Result<String> {
    HostPort::host_of(text).map(str::to_owned).ok_or_else(|| invalid(from, text, HOSTS))
}

/// The workers of this slice, from the variables.
fn workers(probe: &Probe) -> Result<Option<Known<Vec<String>>>> {
    let hosts = |known: Known<String>| {
        let hosts = known.value.split(',').map(|text| host(text.trim(), &known.from));
        Ok(Some(Known { value: hosts.collect::<Result<_>>()?, from: known.from }))
    };
    const PATH: &str = "TPU_PROCESS_ADDRESSES_PATH";
    if let Some(path) = probe.text(PATH) {
        let expected = "a file with the addresses of the workers";
        let wrong = || invalid(PATH, &path.value, expected);
        let text = (probe.file)(Path::new(&path.value)).ok_or_else(wrong)?;
        let value = text.trim().to_owned();
        return match value.is_empty() {
            true => Err(wrong()),
            false => hosts(Known { value, from: PATH.to_owned() }),
        };
    }
    // On machines with one worker the first is "local".
    let addresses = probe.text("TPU_PROCESS_ADDRESSES").filter(|known| known.value != "local");
    addresses.or_else(|| probe.text("TPU_WORKER_HOSTNAMES")).map_or(Ok(None), hosts)
}

/// The slice of this machine in a job of several.
struct Slice {
    index: Known<usize>,
    num_slices: Known<usize>,
    /// The first worker of the first slice.
    first_worker: Known<String>,
}

fn slice(probe: &Probe) -> Result<Option<Slice>> {
    const VARIABLES: [&str; 3] =
        ["MEGASCALE_SLICE_ID", "MEGASCALE_NUM_SLICES", "MEGASCALE_COORDINATOR_ADDRESS"];
    // Machines that were created together have them in the metadata, as lines NAME: 'value'.
    let text = || (probe.metadata)("tpu-env").unwrap_or_default();
    let from_metadata = |text: &str, name: &str| {
        let value = text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'));
        let value = value?.trim().trim_matches('\'').to_owned();
        (!value.is_empty()).then(|| Known { value, from: format!("tpu-env ({name})") })
    };
    let mut values = VARIABLES.map(|name| probe.text(name));
    if values.iter().all(Option::is_none) && workers(probe)?.is_none() {
        let text = text();
        values = VARIABLES.map(|name| from_metadata(&text, name));
    }
    let named = |is_set: bool| {
        let mut named = VARIABLES.iter().zip(&values).filter(|(_, v)| v.is_some() == is_set);
        named.next().map(|(variable, _)| *variable)
    };
    if let (Some(present), Some(missing)) = (named(true), named(false)) {
        return Err(EnvironmentError::Incomplete { present, missing });
    }
    let [Some(index), Some(count), Some(first_worker)] = values else { return Ok(None) };
    let index = parse(&index.value, &index.from, 0)?;
    let num_slices = parse(&count.value, &count.from, 1)?;
    Ok(Some(Slice { index, num_slices, first_worker }))
}
