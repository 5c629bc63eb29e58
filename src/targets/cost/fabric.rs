//! Interconnects: wires with a latency and a bandwidth, arranged as tori, switches and networks.

use crate::targets::{Arrangement, Chip, Family, Target};

/// The link of one hop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wire {
    /// Latency in seconds (alpha).
    pub latency_secs: f64,
    /// Bandwidth of one device in one direction, in bytes/s (1 / beta).
    pub bytes_per_sec: f64,
}

/// The devices of a collective: equal groups with a fast interconnect, connected by a network.
#[derive(Clone, Debug, PartialEq)]
pub struct Fabric {
    /// The links between the devices of a group.
    pub group: Group,
    /// Number of groups.
    pub num_groups: usize,
    /// The links between the groups, per device.
    pub network: Wire,
    /// Other links between some of the groups, if they are in several regions.
    pub regions: Option<RegionLinks>,
}

/// Regions with as many groups each, and what connects them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegionLinks {
    /// Number of regions, at least 2.
    pub num_regions: usize,
    /// The links between regions, per device.
    pub wire: Wire,
}

/// How the devices of one group are connected.
#[derive(Clone, Debug, PartialEq)]
pub enum Group {
    /// Every pair at full speed: NVLink with switches, the memory of one machine.
    Switch {
        /// Devices.
        size: usize,
        /// The link of one device.
        wire: Wire,
    },
    /// Links between neighbors along each dimension.
    Torus {
        /// The link between the two devices of a chip, if the group has both; they share the links
        /// of the chip.
        die: Option<Wire>,
        /// Chips along each dimension.
        bounds: Vec<usize>,
        /// Sides of at least this length are rings, shorter ones lines.
        ring_from: usize,
        /// One link in one direction; there are two per dimension.
        link: Wire,
    },
}

/// An ICI hop, and for want of a published figure one between the two chiplets of a chip: Austin et
/// al., "How to Scale Your Model" (2025), part 3, takes about a microsecond.
const ICI_LATENCY_SECS: f64 = 1e-6;
/// A hop over NVLink and over the network: NCCL's own model, `src/graph/tuning.cc`, table of
/// hardware latencies, protocol Simple: 3.4 and 14 microseconds for rings.
const NVLINK_LATENCY_SECS: f64 = 3.4e-6;
const NETWORK_LATENCY_SECS: f64 = 14e-6;
/// The fraction of a wire's bandwidth that remains after protocol overhead. NCCL's tests reach 360
/// to 370 GB/s on the H100's 450 GB/s of NVLink.
const WIRE_SHARE: f64 = 0.8;

impl Group {
    /// Devices.
    pub fn size(&self) -> usize {
        match self {
            Group::Switch { size, .. } => *size,
            Group::Torus { die, bounds, .. } => {
                let of_chip = if die.is_some() { 2 } else { 1 };
                of_chip * bounds.iter().product::<usize>()
            }
        }
    }
}

impl Fabric {
    /// A single group without a network.
    pub fn single(group: Group) -> Self {
        let network = Wire { latency_secs: 0.0, bytes_per_sec: f64::INFINITY };
        Self { group, num_groups: 1, network, regions: None }
    }

    /// The interconnect of all devices of a target.
    pub(super) fn of(target: &Target) -> Self {
        let Target { chip, arrangement } = target;
        let wire = |latency_secs, bytes_per_sec: f64| Wire {
            latency_secs,
            bytes_per_sec: bytes_per_sec * WIRE_SHARE,
        };
        match (&chip.family, arrangement) {
            (Family::Tpu(tpu), Arrangement::Slices { bounds, num_slices }) => {
                // The devices of one chip share its links.
                let share = |bytes_per_sec: f64| bytes_per_sec / tpu.devices_per_chip as f64;
                Self {
                    group: Group::Torus {
                        die: tpu.die_bytes_per_sec.map(|bytes| wire(ICI_LATENCY_SECS, bytes)),
                        bounds: bounds.clone(),
                        ring_from: tpu.ring_from,
                        link: wire(ICI_LATENCY_SECS, share(tpu.link_bytes_per_sec)),
                    },
                    num_groups: *num_slices,
                    network: wire(NETWORK_LATENCY_SECS, share(tpu.network_bytes_per_sec)),
                    regions: None,
                }
            }
            (Family::Gpu(gpu), Arrangement::Hosts { num_hosts, gpus_per_host }) => Self {
                group: Group::Switch {
                    size: *gpus_per_host,
                    wire: wire(NVLINK_LATENCY_SECS, gpu.host_link_bytes_per_sec),
                },
                num_groups: *num_hosts,
                network: wire(NETWORK_LATENCY_SECS, gpu.network_bytes_per_sec),
                regions: None,
            },
            // No target combines one family's chips with the other's arrangement.
            _ => Self::lone(chip),
        }
    }

    fn lone(chip: &Chip) -> Self {
        let wire = Wire { latency_secs: 0.0, bytes_per_sec: chip.memory_bytes_per_sec };
        Self::single(Group::Switch { size: 1, wire })
    }

    /// Devices.
    pub fn num_devices(&self) -> usize {
        self.group.size() * self.num_groups
    }

    /// Groups in each region, rounded up, and the regions.
    pub(super) fn groups_by_region(&self) -> (usize, usize) {
        let num_regions = self.regions.map_or(1, |regions| regions.num_regions);
        (self.num_groups.div_ceil(num_regions), num_regions)
    }

    /// The slowest link between groups.
    pub(super) fn slowest_network(&self) -> Wire {
        let slower = |regions: RegionLinks| Wire {
            latency_secs: regions.wire.latency_secs.max(self.network.latency_secs),
            bytes_per_sec: regions.wire.bytes_per_sec.min(self.network.bytes_per_sec),
        };
        self.regions.map_or(self.network, slower)
    }
}
