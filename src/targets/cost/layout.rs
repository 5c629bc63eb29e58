//! Where the replicas of a target are, and so what connects the replicas of a group.

use std::collections::{BTreeMap, BTreeSet};

use hlo::Mesh;

use super::fabric::{Fabric, Group, RegionLinks, Wire};
use crate::cluster::{device_order, fsdp_line};
use crate::pjrt::{DeviceDescription, Value};
use crate::targets::{Arrangement, Family, Target};

/// The places of a target's replicas, in replica order.
#[derive(Clone, Debug)]
pub struct DeviceLayout {
    /// The fabric of all devices.
    whole: Fabric,
    places: Vec<Place>,
    line: Option<usize>,
}

/// Where a replica is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    /// Its slice or host.
    island: usize,
    /// On a torus: the core on its chip, then the chip's coordinates.
    coords: Vec<i64>,
}

impl DeviceLayout {
    /// The layout of all devices of a target, in the order that `train` and `compile` use if the
    /// state is whole.
    pub fn of(target: &Target) -> Self {
        Self::of_mesh(target, &Mesh::data(target.num_devices()))
    }

    /// The same in the order of the replicas of a mesh.
    pub fn of_mesh(target: &Target, mesh: &Mesh) -> Self {
        let mut line = None;
        let places = match (&target.chip.family, &target.arrangement) {
            (Family::Tpu(tpu), Arrangement::Slices { bounds, num_slices }) => {
                let devices =
                    torus_devices(bounds, *num_slices, tpu.devices_per_chip, tpu.host_bounds);
                let devices = device_order(&devices, mesh);
                line = fsdp_line(&devices, mesh);
                let places = devices.into_iter().map(|device| {
                    let coords = [&[device.core_on_chip], &device.coords[..]].concat();
                    Place { island: device.slice_index, coords }
                });
                places.collect()
            }
            (_, Arrangement::Hosts { num_hosts, gpus_per_host }) => {
                let place = |replica| Place { island: replica / gpus_per_host, coords: vec![] };
                (0..num_hosts * gpus_per_host).map(place).collect()
            }
            // No target combines one family's chips with the other's arrangement.
            _ => vec![],
        };
        Self { whole: Fabric::of(target), places, line }
    }

    /// The lines of the torus that groups along `fsdp` consist of: see [`fsdp_line`].
    pub fn line(&self) -> Option<usize> {
        self.line
    }

    /// The links between the replicas of a group. Replicas that the target does not have are
    /// ignored.
    ///
    /// On a torus the group is taken as a box. Where it takes only every `s`-th chip of a dim, `s`
    /// groups share the links, and a hop passes `s` of them.
    pub fn fabric(&self, group: &[usize]) -> Fabric {
        let mut islands: BTreeMap<usize, Vec<&Place>> = BTreeMap::new();
        for place in group.iter().filter_map(|replica| self.places.get(*replica)) {
            islands.entry(place.island).or_default().push(place);
        }
        let num_groups = islands.len().max(1);
        let largest = islands.values().max_by_key(|places| places.len()).cloned();
        let largest = largest.unwrap_or_default();
        let group = match &self.whole.group {
            Group::Switch { wire, .. } => Group::Switch { size: largest.len().max(1), wire: *wire },
            Group::Torus { die, ring_from, link, .. } => {
                let cores: BTreeSet<i64> = largest.iter().map(|place| place.coords[0]).collect();
                let die = die.filter(|_| cores.len() > 1);
                let (mut sides, mut stride) = (vec![], 1);
                for dim in 1..largest.first().map_or(0, |place| place.coords.len()) {
                    let at: BTreeSet<i64> = largest.iter().map(|place| place.coords[dim]).collect();
                    let gap = at.iter().zip(at.iter().skip(1)).map(|(a, b)| b - a).min();
                    stride = stride.max(usize::try_from(gap.unwrap_or(1)).unwrap_or(1));
                    if at.len() > 1 {
                        sides.push(at.len());
                    }
                }
                let mut link = *link;
                link.latency_secs *= stride as f64;
                link.bytes_per_sec /= stride as f64;
                match die {
                    Some(wire) if sides.is_empty() => Group::Switch { size: 2, wire },
                    _ => Group::Torus { die, bounds: sides, ring_from: *ring_from, link },
                }
            }
        };
        let regions = self.whole.regions.and_then(|all| {
            let num_islands = self.places.last().map_or(1, |place| place.island + 1);
            let region = |island: &usize| island * all.num_regions / num_islands;
            let found: BTreeSet<usize> = islands.keys().map(region).collect();
            (found.len() > 1).then_some(RegionLinks { num_regions: found.len(), ..all })
        });
        let network = self.whole.network;
        Fabric { group, num_groups, network, regions }
    }

    /// The network between hosts or slices, as one device uses it.
    pub fn network(&self) -> Wire {
        self.whole.network
    }

    /// The same replicas with another network between hosts or slices.
    pub fn with_network(mut self, network: Wire) -> Self {
        self.whole.network = network;
        self
    }

    /// The same replicas with hosts or slices in several regions, as many in each.
    pub fn with_regions(mut self, regions: Option<RegionLinks>) -> Self {
        self.whole.regions = regions;
        self
    }

    /// The links between the first `num_devices` replicas.
    pub fn first(&self, num_devices: usize) -> Fabric {
        self.fabric(&(0..num_devices).collect::<Vec<_>>())
    }
}

/// The devices of a topology as a plugin describes them.
fn torus_devices(
    bounds: &[usize],
    num_slices: usize,
    devices_per_chip: usize,
    host_bounds: [usize; 2],
) -> Vec<DeviceDescription> {
    let num_chips: usize = bounds.iter().product();
    let host_of = |coords: &[usize]| {
        let block = |dim: usize| host_bounds.get(dim).copied().unwrap_or(1).max(1);
        let along = coords.iter().zip(bounds).enumerate();
        along
            .fold(0, |host, (dim, (at, bound))| host * bound.div_ceil(block(dim)) + at / block(dim))
    };
    let device = |index: usize| {
        let (slice, in_slice) =
            (index / (num_chips * devices_per_chip), index % (num_chips * devices_per_chip));
        let mut rest = in_slice / devices_per_chip;
        let coords: Vec<usize> = bounds
            .iter()
            .map(|bound| {
                let at = rest % bound;
                rest /= bound;
                at
            })
            .collect();
        let int = |value: usize| Value::Int64(value as i64);
        let attributes = [
            ("coords", Value::Int64List(coords.iter().map(|at| *at as i64).collect())),
            ("core_on_chip", int(in_slice % devices_per_chip)),
            ("slice_index", int(slice)),
        ];
        DeviceDescription {
            id: index as i32,
            process_index: host_of(&coords),
            kind: String::new(),
            debug_string: String::new(),
            attributes: attributes.map(|(name, value)| (name.to_owned(), value)).into(),
        }
    };
    (0..num_chips * devices_per_chip * num_slices).map(device).collect()
}

#[cfg(test)]
mod tests {
    use super::super::reduce_scatter;
    use hlo::Axis;

    use super::*;

    fn layout(target: &str) -> DeviceLayout {
        DeviceLayout::of(&target.parse().unwrap())
    }

    fn sides(fabric: &Fabric) -> (Vec<usize>, f64) {
        match &fabric.group {
            Group::Torus { bounds, link, .. } => (bounds.clone(), link.bytes_per_sec),
            Group::Switch { size, wire } => (vec![*size], wire.bytes_per_sec),
        }
    }

    #[test]
    fn on_hosts_neighbours_share_a_switch_and_strided_groups_the_network() {
        let layout = layout("gpu:h100:4x8");
        let whole = layout.first(32);
        assert_eq!((whole.group.size(), whole.num_groups), (8, 4));
        let neighbours = layout.fabric(&[8, 9, 10, 11]);
        assert_eq!((neighbours.group.size(), neighbours.num_groups), (4, 1));
        // One of each host, and two of each of two hosts.
        let strided = layout.fabric(&[3, 11, 19, 27]);
        assert_eq!((strided.group.size(), strided.num_groups), (1, 4));
        let mixed = layout.fabric(&[0, 4, 8, 12]);
        assert_eq!((mixed.group.size(), mixed.num_groups), (2, 2));
    }

    #[test]
    fn on_a_torus_neighbours_form_a_box_and_strided_groups_share_links() {
        let layout = layout("tpu:v5e:4x4");
        let (all, link) = sides(&layout.first(16));
        assert_eq!(all, [4, 4]);
        // The chips of a host.
        assert_eq!(sides(&layout.fabric(&[4, 5, 6, 7])), (vec![2, 2], link));
        // One chip of each host.
        assert_eq!(sides(&layout.fabric(&[0, 4, 8, 12])), (vec![2, 2], link / 2.0));
        assert_eq!(layout.fabric(&[5]).num_devices(), 1);
    }

    #[test]
    fn sharded_state_lies_along_lines() {
        let target = "tpu:v5e:2x4".parse().unwrap();
        let (blocks, lines) = (
            DeviceLayout::of(&target),
            DeviceLayout::of_mesh(&target, &Mesh::new(&[(Axis::Fsdp, 8)])),
        );
        assert_eq!((blocks.line(), lines.line()), (None, Some(4)));
        // Neighbours are lines, and every fourth replica is a line across.
        for (group, of_blocks, of_lines) in
            [([0, 1, 2, 3], vec![2, 2], vec![4]), ([4, 5, 6, 7], vec![2, 2], vec![4])]
        {
            assert_eq!(sides(&blocks.fabric(&group)).0, of_blocks);
            assert_eq!(sides(&lines.fabric(&group)).0, of_lines);
        }
        let (across, link) = sides(&lines.fabric(&[1, 5]));
        assert_eq!((across, link), (vec![2], sides(&lines.first(8)).1));
    }

    #[test]
    fn only_groups_on_both_sides_cross_regions() {
        let wire = Wire { latency_secs: 60e-3, bytes_per_sec: 1e9 };
        let regions = Some(RegionLinks { num_regions: 2, wire });
        let layout = layout("gpu:h100:4x8").with_regions(regions);
        assert_eq!(layout.first(16).regions, None);
        assert_eq!(layout.first(32).regions, regions);
        assert_eq!(layout.fabric(&[8, 16]).regions, regions);
        assert_eq!(layout.fabric(&[16, 24]).regions, None);
    }

    #[test]
    fn slices_are_connected_by_the_network() {
        let [layout, chip] = ["tpu:v5e:4x4x2", "tpu:v4:2x2x1"].map(layout);
        assert_eq!(layout.first(16).num_groups, 1);
        let whole = layout.first(32);
        assert_eq!((whole.num_groups, whole.group.size()), (2, 16));
        assert_eq!(layout.fabric(&[0, 16]).num_groups, 2);
        assert_eq!(sides(&chip.first(2)).0, [2]);
    }

    #[test]
    fn the_cores_of_a_chip_share_its_links_and_have_one_that_is_faster() {
        let layout = layout("tpu:tpu7x:2x2x2");
        // The two cores of a chip come first.
        let (chip, between) = sides(&layout.first(2));
        let (cube, link) = sides(&layout.first(16));
        assert_eq!((chip, cube), (vec![2], vec![2, 2, 2]));
        // Six links of 100 GB/s; each core has half of them.
        assert!((between / link - 12.0).abs() < 1e-9, "{between} {link}");
        assert_eq!(layout.first(16).num_devices(), 16);
        // Each core sends half of the bytes to the other, then the two send a half each over the
        // links of the chip.
        let (n, whole) = (1e12, layout.first(16));
        let expected = 0.5 * n / between + 7.0 / 8.0 * (n / 2.0) / (3.0 * link);
        let found = reduce_scatter(&whole, n);
        assert!((found / expected - 1.0).abs() < 1e-3, "{found} {expected}");
        // One core of each chip.
        let (cores, of_one) = sides(&layout.fabric(&[0, 2, 4, 6]));
        assert_eq!((cores.iter().product::<usize>(), of_one), (4, link));
    }
}
