//! What connects devices: wires with a latency and a bandwidth, arranged as tori, switches and networks.

use crate::targets::{Arrangement, Chip, Family, Target};

/// One hop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wire {
    /// Seconds until the first byte is there (alpha).
    pub latency_secs: f64,
    /// Bytes/s of one device, one way (1 / beta).
    pub bytes_per_sec: f64,
}

/// Devices that a collective runs over: a group that is connected tightly, and copies of the group on a
/// network.
#[derive(Clone, Debug, PartialEq)]
pub struct Fabric {
    /// What connects the devices of a group.
    pub group: Group,
    /// Groups.
    pub num_groups: usize,
    /// What connects the groups: the share of one device.
    pub network: Wire,
}

/// How the devices of one group are connected.
#[derive(Clone, Debug, PartialEq)]
pub enum Group {
    /// Any to any at full speed: NVLink behind switches, the memory of one machine.
    Switch {
        /// Devices.
        size: usize,
        /// The share of one device.
        wire: Wire,
    },
    /// Neighbour to neighbour along each dimension.
    Torus {
        /// Devices along each dimension.
        bounds: Vec<usize>,
        /// Sides of at least this length close to a ring; shorter ones are lines.
        ring_from: usize,
        /// One link, one way; there are two along each dimension.
        link: Wire,
    },
}

/// An ICI hop: Austin et al., "How to Scale Your Model" (2025), part 3, takes about a microsecond.
const ICI_LATENCY_SECS: f64 = 1e-6;
/// A hop over NVLink and over the network: NCCL's own model, `src/graph/tuning.cc`, table of hardware
/// latencies, protocol Simple: 3.4 and 14 microseconds for rings.
const NVLINK_LATENCY_SECS: f64 = 3.4e-6;
const NETWORK_LATENCY_SECS: f64 = 14e-6;
/// What protocols leave of a wire. NCCL's tests reach 360 to 370 GB/s on the H100's 450 GB/s of NVLink.
const WIRE_SHARE: f64 = 0.8;

impl Group {
    /// Devices.
    pub fn size(&self) -> usize {
        match self {
            Group::Switch { size, .. } => *size,
            Group::Torus { bounds, .. } => bounds.iter().product(),
        }
    }
}

impl Fabric {
    /// One group.
    pub fn single(group: Group) -> Self {
        let network = Wire { latency_secs: 0.0, bytes_per_sec: f64::INFINITY };
        Self { group, num_groups: 1, network }
    }

    /// What connects the first `num_devices` devices of a target, in the order of the replicas.
    pub fn of(target: &Target, num_devices: usize) -> Self {
        let Target { chip, arrangement } = target;
        let wire = |latency_secs, bytes_per_sec: f64| Wire {
            latency_secs,
            bytes_per_sec: bytes_per_sec * WIRE_SHARE,
        };
        match (&chip.family, arrangement) {
            (Family::Tpu(tpu), Arrangement::Slices { bounds, num_slices }) => {
                let per_slice = bounds.iter().product::<usize>() * tpu.devices_per_chip;
                let num_groups = num_devices.div_ceil(per_slice).clamp(1, *num_slices);
                let within = num_devices.min(per_slice);
                // The devices of one chip share its links.
                let share = tpu.link_bytes_per_sec / tpu.devices_per_chip as f64;
                Self {
                    group: Group::Torus {
                        bounds: part_of_torus(bounds, tpu.devices_per_chip, within),
                        ring_from: tpu.ring_from,
                        link: wire(ICI_LATENCY_SECS, share),
                    },
                    num_groups,
                    network: wire(
                        NETWORK_LATENCY_SECS,
                        tpu.network_bytes_per_sec / tpu.devices_per_chip as f64,
                    ),
                }
            }
            (Family::Gpu(gpu), Arrangement::Hosts { num_hosts, gpus_per_host }) => Self {
                group: Group::Switch {
                    size: num_devices.min(*gpus_per_host),
                    wire: wire(NVLINK_LATENCY_SECS, gpu.nvlink_bytes_per_sec),
                },
                num_groups: num_devices.div_ceil(*gpus_per_host).clamp(1, *num_hosts),
                network: wire(NETWORK_LATENCY_SECS, gpu.network_bytes_per_sec),
            },
            // No target is made of one family's chips in the other's arrangement.
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
}

/// The sides of the box that the first `num_devices` fill: the cores of a chip first, then one dimension
/// after the other.
fn part_of_torus(bounds: &[usize], devices_per_chip: usize, num_devices: usize) -> Vec<usize> {
    let mut left = num_devices;
    let mut sides = vec![];
    for bound in [devices_per_chip].iter().chain(bounds) {
        let side = left.min(*bound).max(1);
        sides.push(side);
        left = left.div_ceil(side);
    }
    sides.retain(|side| *side > 1);
    sides
}
