//! The network between hosts with GPUs: interfaces, InfiniBand and RoCE adapters, and NCCL's
//! variables. Read from Linux's sysfs; what a driver does not show there is not judged.

mod nccl_variables;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::findings::Diagnosis;
use nccl_variables::VARIABLES;

/// The network of a host.
#[derive(Debug, Default)]
pub struct Network {
    interfaces: Vec<Interface>,
    ports: Vec<Port>,
    /// `true` if the GPUs' driver lets adapters read and write the GPUs' memory.
    has_gpu_direct: bool,
}

#[derive(Debug)]
struct Interface {
    name: String,
    mtu: Option<u32>,
    is_up: bool,
    /// `false` for bridges, tunnels and the like.
    is_hardware: bool,
}

/// An active port of an adapter.
#[derive(Debug)]
struct Port {
    adapter: String,
    is_roce: bool,
    /// Its interface, of RoCE.
    interface: Option<String>,
    /// The types of its GIDs, by index.
    gid_types: BTreeMap<u32, String>,
    /// Priorities for which congestion control (DCQCN) is on; `None` if unknown.
    ecn_priorities: Option<Vec<usize>>,
    /// `dscp` or `pcp`: the field that decides the priority of a packet.
    trust: Option<String>,
    traffic_class: Option<u32>,
}

impl Network {
    /// Reads the files below `root`, which is `/` except in tests.
    pub fn read(root: &Path) -> Self {
        let classes = root.join("sys/class");
        let interfaces = entries(&classes.join("net")).into_iter().map(|dir| Interface {
            name: name(&dir),
            mtu: text(&dir.join("mtu")).and_then(|mtu| mtu.parse().ok()),
            // Some drivers do not know.
            is_up: text(&dir.join("operstate")).is_none_or(|state| state != "down"),
            is_hardware: dir.join("device").exists(),
        });
        let adapters = entries(&classes.join("infiniband"));
        let ports = adapters.iter().flat_map(|adapter| {
            let ports = entries(&adapter.join("ports")).into_iter();
            ports.filter_map(|port| Port::read(&classes, adapter, &port))
        });
        let gpu_direct = [
            "sys/module/nvidia_peermem/version",
            "sys/kernel/mm/memory_peers/nv_mem/version",
            "sys/kernel/mm/memory_peers/nv_mem_nc/version",
        ];
        let modules = text(&root.join("proc/modules")).unwrap_or_default();
        // This one exports memory through DMA-BUF.
        let driver = text(&root.join("proc/driver/nvidia/version")).unwrap_or_default();
        Self {
            interfaces: interfaces.collect(),
            ports: ports.collect(),
            has_gpu_direct: gpu_direct.iter().any(|path| root.join(path).exists())
                || modules.lines().any(|line| line.starts_with("nvidia_peermem "))
                || driver.contains("Open Kernel Module"),
        }
    }

    /// The problems of the network, given NCCL's variables and the number of GPUs. Without GPUs,
    /// NCCL is not used.
    pub fn findings(
        &self,
        variables: &BTreeMap<String, String>,
        num_gpus: usize,
    ) -> Vec<Diagnosis> {
        let mut found = misspelled(variables);
        found.extend(contradictions(variables));
        if num_gpus == 0 {
            return found;
        }
        let get = |name: &str| variables.get(name).map(String::as_str);
        found.extend(self.interface_choice(get("NCCL_SOCKET_IFNAME")));
        found.extend(self.adapters(get("NCCL_IB_HCA"), get("NCCL_NET"), get("NCCL_IB_DISABLE")));
        if num_gpus > 1 && get("NCCL_P2P_DISABLE") == Some("1") {
            let what = "NCCL_P2P_DISABLE=1: GPUs exchange data through the host's memory, even \
                        where they have NVLink";
            found.push(finding(what, "unset NCCL_P2P_DISABLE"));
        }
        if !self.ports.is_empty() && !self.has_gpu_direct {
            found.push(finding(
                "adapters cannot access the GPUs' memory (GPUDirect RDMA): data between hosts is \
                 copied through the host's memory",
                "sudo modprobe nvidia_peermem, or install the driver's open kernel modules",
            ));
        }
        let class = get("NCCL_IB_TC").and_then(|class| class.parse().ok());
        let gid = get("NCCL_IB_GID_INDEX").and_then(|gid| gid.parse().ok());
        let roce = self.ports.iter().filter(|port| port.is_roce);
        found.extend(roce.flat_map(|port| self.roce(port, class, gid)));
        found
    }

    fn interface_choice(&self, chosen: Option<&str>) -> Option<Diagnosis> {
        let all = || list(self.interfaces.iter().map(|interface| interface.name.as_str()));
        let Some(chosen) = chosen else {
            // NCCL takes all but these, unless there is one named ib*.
            let excluded = ["docker", "lo", "virbr"];
            let is_candidate = |interface: &&Interface| {
                interface.is_up && !excluded.iter().any(|name| interface.name.starts_with(name))
            };
            let has_ib = self.interfaces.iter().any(|interface| interface.name.starts_with("ib"));
            let (hardware, others): (Vec<_>, Vec<_>) =
                self.interfaces.iter().filter(is_candidate).partition(|i| i.is_hardware);
            let (first, _) = (hardware.first()?, others.first()?);
            let others = list(others.iter().map(|interface| interface.name.as_str()));
            return (!has_ib).then(|| {
                finding(
                    format!(
                        "NCCL may choose a virtual interface ({others}), which other hosts \
                             cannot reach"
                    ),
                    format!(
                        "set NCCL_SOCKET_IFNAME to the interface between the hosts, such as {}",
                        first.name
                    ),
                )
            });
        };
        let selected: Vec<&Interface> = self
            .interfaces
            .iter()
            .filter(|interface| is_selected(chosen, &interface.name))
            .collect();
        let what = if selected.is_empty() {
            format!("NCCL_SOCKET_IFNAME={chosen} is no interface of this host: it has {}", all())
        } else if selected.iter().all(|interface| interface.name == "lo") {
            format!(
                "NCCL_SOCKET_IFNAME={chosen} is the loopback interface, which reaches no other host"
            )
        } else if selected.iter().all(|interface| !interface.is_up) {
            format!("NCCL_SOCKET_IFNAME={chosen} is down")
        } else {
            return None;
        };
        Some(finding(what, "name the interface between the hosts, or unset it"))
    }

    fn adapters(
        &self,
        chosen: Option<&str>,
        net: Option<&str>,
        disabled: Option<&str>,
    ) -> Option<Diagnosis> {
        let names = || list(self.ports.iter().map(|port| port.adapter.as_str()));
        let wants_ib = net.is_some_and(|net| net.eq_ignore_ascii_case("ib"));
        if self.ports.is_empty() {
            return (wants_ib || chosen.is_some()).then(|| {
                let variable = if wants_ib { "NCCL_NET=IB" } else { "NCCL_IB_HCA" };
                let what = format!("{variable} is set, but no InfiniBand or RoCE port is active");
                finding(what, "look at the cables and ibstat; or unset it")
            });
        }
        if disabled == Some("1") {
            let what = format!("NCCL_IB_DISABLE=1: {} are not used, only TCP", names());
            return Some(finding(what, "unset NCCL_IB_DISABLE"));
        }
        // Adapters may be named with a port.
        let chosen = chosen?;
        let adapters: Vec<&str> =
            chosen.split(',').map(|item| item.split(':').next().unwrap_or(item)).collect();
        let adapters = adapters.join(",");
        let selects = self.ports.iter().any(|port| is_selected(&adapters, &port.adapter));
        (!selects).then(|| {
            let what = format!("NCCL_IB_HCA={chosen} is no active adapter: there are {}", names());
            finding(what, "name one of them, or unset NCCL_IB_HCA")
        })
    }

    fn roce(&self, port: &Port, class: Option<u32>, gid: Option<u32>) -> Vec<Diagnosis> {
        let mut found = vec![];
        let adapter = &port.adapter;
        let interface = self.interfaces.iter().find(|i| Some(&i.name) == port.interface.as_ref());
        if let Some(Interface { name, mtu: Some(mtu), .. }) = interface
            && *mtu < JUMBO
        {
            let what = format!("{name} has an MTU of {mtu}: RoCE on {adapter} uses small packets");
            let change =
                format!("sudo ip link set dev {name} mtu 9000, and on the switches as well");
            found.push(finding(what, change));
        }
        let kind = gid.and_then(|gid| Some((gid, port.gid_types.get(&gid)?)));
        if let Some((gid, kind)) = kind
            && kind != ROCE_V2
        {
            let v2 = port.gid_types.iter().find(|(_, kind)| *kind == ROCE_V2);
            let change = match v2 {
                Some((index, _)) => format!("unset it, or set it to {index}"),
                None => "unset it, and give the interface an IP address".to_owned(),
            };
            let what =
                format!("NCCL_IB_GID_INDEX={gid} is {kind} on {adapter}, which is not routed");
            found.push(finding(what, change));
        }
        let Some(class) = class.or(port.traffic_class) else { return found };
        // The upper six bits are the DSCP. By default its upper three bits are the priority.
        let priority = (class >> 5) as usize;
        let device = port.interface.as_deref().unwrap_or(adapter);
        if class > 0 && port.trust.as_deref() == Some("pcp") {
            let what = format!(
                "RoCE traffic on {device} has traffic class {class}, but its priority is taken \
                 from the VLAN tag: flow control (PFC) does not protect it"
            );
            found.push(finding(what, format!("sudo mlnx_qos -i {device} --trust dscp")));
        }
        if let Some(priorities) = &port.ecn_priorities
            && !priorities.contains(&priority)
        {
            let what = format!(
                "congestion control (ECN) is off for priority {priority} on {device}, which \
                 traffic class {class} has"
            );
            let change = format!(
                "echo 1 > /sys/class/net/{device}/ecn/roce_np/enable/{priority}, and roce_rp as \
                 well; or use another class with NCCL_IB_TC"
            );
            found.push(finding(what, change));
        }
        found
    }
}

const ROCE_V2: &str = "RoCE v2";
/// The smallest MTU with which RoCE packets of 4096 bytes fit, with their headers.
const JUMBO: u32 = 4200;

impl Port {
    fn read(classes: &Path, adapter: &Path, dir: &Path) -> Option<Self> {
        // "4: ACTIVE"
        if !text(&dir.join("state"))?.contains("ACTIVE") {
            return None;
        }
        let gids = entries(&dir.join("gid_attrs/types"));
        let gid_types = gids.iter().filter_map(|gid| Some((name(gid).parse().ok()?, text(gid)?)));
        let devices = entries(&dir.join("gid_attrs/ndevs"));
        let interface = devices.iter().find_map(|device| text(device));
        let net = interface.as_ref().map(|interface| classes.join("net").join(interface));
        // "Global tclass=106", or empty.
        let class = text(&adapter.join("tc").join(name(dir)).join("traffic_class"));
        Some(Self {
            adapter: name(adapter),
            is_roce: text(&dir.join("link_layer"))? == "Ethernet",
            gid_types: gid_types.collect(),
            ecn_priorities: net.as_ref().and_then(|net| ecn_priorities(net)),
            trust: net.and_then(|net| text(&net.join("qos/trust"))),
            traffic_class: class.and_then(|class| class.rsplit('=').next()?.trim().parse().ok()),
            interface,
        })
    }
}

/// Priorities for which both ends of congestion control are on.
fn ecn_priorities(net: &Path) -> Option<Vec<usize>> {
    let is_on = |role: &str, priority: usize| {
        let file = net.join("ecn").join(role).join("enable").join(priority.to_string());
        text(&file).map(|value| value == "1")
    };
    let both = |priority| Some(is_on("roce_np", priority)? && is_on("roce_rp", priority)?);
    let values: Option<Vec<bool>> = (0..8).map(both).collect();
    Some((0..8).zip(values?).filter(|(_, is_on)| *is_on).map(|(priority, _)| priority).collect())
}

/// NCCL's lists: prefixes of names, `=` for whole names, `^` for all others.
fn is_selected(list: &str, name: &str) -> bool {
    let (list, is_excluded) = match list.strip_prefix('^') {
        Some(list) => (list, true),
        None => (list, false),
    };
    let (list, is_exact) = match list.strip_prefix('=') {
        Some(list) => (list, true),
        None => (list, false),
    };
    let matches = |item: &str| if is_exact { name == item } else { name.starts_with(item) };
    list.split(',').map(str::trim).filter(|item| !item.is_empty()).any(matches) != is_excluded
}

/// Names that are nearly those of variables. Plugins of NCCL have variables of their own, which are
/// not known here.
fn misspelled(variables: &BTreeMap<String, String>) -> Vec<Diagnosis> {
    let unknown = variables.keys().filter_map(|variable| {
        let name = variable.strip_prefix("NCCL_")?;
        if VARIABLES.contains(&name) {
            return None;
        }
        let distance = |known: &&&str| strsim::damerau_levenshtein(known, name);
        let near = VARIABLES.iter().min_by_key(distance).filter(|near| distance(near) <= 2)?;
        let what = format!("{variable} is not a variable of NCCL, which ignores it");
        Some(finding(what, format!("write NCCL_{near}")))
    });
    unknown.collect()
}

/// Variables that cannot both have an effect.
fn contradictions(variables: &BTreeMap<String, String>) -> Vec<Diagnosis> {
    let is = |name: &str, value: &str| {
        variables.get(name).is_some_and(|found| found.eq_ignore_ascii_case(value))
    };
    let is_set = |name: &str| variables.contains_key(name);
    let rows = [
        (
            is("NCCL_IB_DISABLE", "1") && is_set("NCCL_IB_HCA"),
            "NCCL_IB_HCA chooses InfiniBand adapters, but NCCL_IB_DISABLE=1 turns them off",
        ),
        (
            is("NCCL_IB_DISABLE", "1") && is("NCCL_NET", "IB"),
            "NCCL_NET=IB wants InfiniBand, but NCCL_IB_DISABLE=1 turns it off",
        ),
        (
            is("NCCL_NET", "Socket") && is_set("NCCL_IB_HCA"),
            "NCCL_IB_HCA chooses InfiniBand adapters, but NCCL_NET=Socket uses TCP",
        ),
        (
            is("NCCL_P2P_DISABLE", "1") && is_set("NCCL_P2P_LEVEL"),
            "NCCL_P2P_LEVEL says when GPUs talk directly, but NCCL_P2P_DISABLE=1 says never",
        ),
        (
            is("NCCL_P2P_DISABLE", "1") && is("NCCL_SHM_DISABLE", "1"),
            "NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1 leave GPUs of a host only the network",
        ),
    ];
    let found = rows.into_iter().filter(|(is_wrong, _)| *is_wrong);
    found.map(|(_, what)| finding(what, "unset one of the two")).collect()
}

/// NCCL's variables in this process's environment.
pub fn nccl_variables() -> BTreeMap<String, String> {
    let all = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    all.filter(|(name, value)| name.starts_with("NCCL_") && !value.is_empty()).collect()
}

fn finding(what: impl Into<String>, change: impl Into<String>) -> Diagnosis {
    Diagnosis { what: what.into(), change: change.into() }
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    match names.collect::<Vec<_>>() {
        names if names.is_empty() => "none".to_owned(),
        names => names.join(", "),
    }
}

fn text(path: &Path) -> Option<String> {
    // Entries of GIDs that are not used cannot be read.
    let text = fs::read_to_string(path).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return vec![] };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}
