//! Device order: which device runs which replica, in a run and in ahead-of-time compilation alike.
//!
//! Replicas that differ along an inner mesh axis have neighbouring numbers, so neighbours in this
//! order should be neighbours on the fastest links: first within a host, then along a torus
//! dimension, last over the network between slices. Plugins list devices by process or as a ring,
//! and on some generations their ids follow neither rule, so the order is computed here and sent to
//! the compiler.
//!
//! On a torus each host is a block of chips (usually 2x2). The order visits the blocks
//! boustrophedon, every other row backwards, so that each block touches the next one. Within a
//! block each chip is a neighbour of the previous one.
//!
//! If state is sharded over several whole lines of a two-dimensional torus, the order is row by row
//! instead. Then each line is a part of the groups along `fsdp`, and so is each row across lines: a
//! compiler that has a reduce_scatter along one dim only can be given one per dim ([`fsdp_line`]).
//! Such a group covers as many links as in the other order. One of a line or less would not: 4
//! chips in a line have half the bandwidth of a block of 2x2.
//!
//! Devices without coordinates are ordered by process, then by id. On the CPU backend and on the
//! GPUs of one host this is the plugin's own order.

use hlo::{Axis, Mesh};
use serde::{Deserialize, Serialize};

use crate::pjrt::{DeviceDescription, Value};

/// A device and where it is, as far as the order depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedDevice {
    /// The plugin's id.
    pub id: i32,
    /// The vendor's name for its model.
    pub kind: String,
    /// The host that holds it.
    pub process_index: usize,
    /// The slice, 0 if there is only one.
    pub slice_index: usize,
    /// The coordinates of its chip in the torus, empty if there are none.
    pub coords: Vec<i64>,
    /// Index of the core on its chip.
    pub core_on_chip: i64,
}

/// The devices in the order of the replicas of a mesh: slice by slice, in each slice host by host,
/// in each host chip by chip, on each chip core by core; or row by row if [`fsdp_line`] finds
/// lines. The order does not depend on that of `devices`.
pub fn device_order<'a>(
    devices: impl IntoIterator<Item = &'a DeviceDescription>,
    mesh: &Mesh,
) -> Vec<PlacedDevice> {
    let mut placed: Vec<PlacedDevice> = devices.into_iter().map(place).collect();
    // All hosts hold blocks of one size; which host it is read from must not depend on the plugin's
    // order.
    placed.sort_by_key(|device| (device.slice_index, device.process_index, device.id));
    let block = host_block(&placed);
    let by_line = fsdp_line(&placed, mesh).is_some();
    placed.sort_by_cached_key(|device| {
        let key = match (&device.coords[..], by_line) {
            ([], _) => vec![device.process_index as i64],
            (coords, true) => coords.to_vec(),
            (coords, false) => torus_key(coords, &block),
        };
        (device.slice_index, key, device.core_on_chip, device.id)
    });
    placed
}

/// The number of devices along the last dim of the torus, if the replicas of a group along `fsdp`
/// are neighbours in the device order and several of its lines, all in one slice. `None` on other
/// tori than two-dimensional ones with one device on each chip.
pub fn fsdp_line(devices: &[PlacedDevice], mesh: &Mesh) -> Option<usize> {
    let fsdp = mesh.size(Axis::Fsdp);
    // Along an axis that is not the innermost, neighbours lie apart.
    if mesh.stride(Axis::Fsdp) > 1 {
        return None;
    }
    let first = devices.first()?;
    let slice: Vec<_> =
        devices.iter().filter(|device| device.slice_index == first.slice_index).collect();
    let sides = (0..first.coords.len()).map(|dim| side(&slice, dim));
    let sides: Vec<_> = sides.filter(|side| *side > 1).collect();
    let [num_lines, line] = sides[..] else { return None };
    let is_full = num_lines.checked_mul(line) == Some(slice.len());
    let is_lines = fsdp > line && fsdp.is_multiple_of(line) && slice.len().is_multiple_of(fsdp);
    (is_full && is_lines).then_some(line)
}

/// The number of coordinates along a dim, from the lowest to the highest.
fn side(devices: &[&PlacedDevice], dim: usize) -> usize {
    let along = devices.iter().filter_map(|device| device.coords.get(dim).copied());
    let (low, high) =
        along.fold((i64::MAX, i64::MIN), |(low, high), at| (low.min(at), high.max(at)));
    let side = high.checked_sub(low).and_then(|last| usize::try_from(last).ok());
    side.map_or(1, |last| last.saturating_add(1))
}

fn place(device: &DeviceDescription) -> PlacedDevice {
    let int = |name| match device.attributes.get(name) {
        Some(Value::Int64(value)) => *value,
        _ => 0,
    };
    let coords = match device.attributes.get("coords") {
        Some(Value::Int64List(coords)) => coords.clone(),
        _ => vec![],
    };
    PlacedDevice {
        id: device.id,
        kind: device.kind.clone(),
        process_index: device.process_index,
        slice_index: usize::try_from(int("slice_index")).unwrap_or(0),
        coords,
        core_on_chip: int("core_on_chip"),
    }
}

/// The dims of the block of chips that the first device's host holds.
fn host_block(devices: &[PlacedDevice]) -> Vec<i64> {
    let Some(first) = devices.first() else { return vec![] };
    let same_host: Vec<_> = devices
        .iter()
        .filter(|device| {
            (device.process_index, device.slice_index) == (first.process_index, first.slice_index)
        })
        .collect();
    (0..first.coords.len()).map(|dim| side(&same_host, dim) as i64).collect()
}

/// Position of the host's block on the path through the slice, then position in the block on a path
/// of the same form, which in a block of 2x2 is a ring.
fn torus_key(coords: &[i64], block: &[i64]) -> Vec<i64> {
    let sizes = |dim: usize| block.get(dim).copied().unwrap_or(1).max(1);
    let blocks: Vec<i64> = coords.iter().enumerate().map(|(dim, at)| at / sizes(dim)).collect();
    let inside: Vec<i64> = coords.iter().enumerate().map(|(dim, at)| at % sizes(dim)).collect();
    let mut key = snake(&blocks);
    key.extend(snake(&inside));
    key
}

/// A sort key that visits the points of a box without jumps: the last dim varies slowest, and a dim
/// runs backwards where the sum of the slower coordinates is odd.
fn snake(coords: &[i64]) -> Vec<i64> {
    let mut key = Vec::with_capacity(coords.len());
    let mut slower = 0;
    for at in coords.iter().rev() {
        key.push(if slower % 2 == 0 { *at } else { -at });
        slower += at;
    }
    key
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn description(
        id: i32,
        process_index: usize,
        attributes: &[(&str, Value)],
    ) -> DeviceDescription {
        let named = attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        DeviceDescription {
            id,
            process_index,
            kind: "a chip".into(),
            debug_string: String::new(),
            attributes: named.collect::<BTreeMap<_, _>>(),
        }
    }

    fn sharded(fsdp: usize) -> Mesh {
        Mesh::new(&[(Axis::Fsdp, fsdp)])
    }

    fn ids(devices: &[DeviceDescription]) -> Vec<i32> {
        device_order(devices, &Mesh::SINGLE).iter().map(|device| device.id).collect()
    }

    #[test]
    fn devices_of_one_process_without_a_torus_keep_the_order_of_their_ids() {
        let slice = ("slice_index", Value::Int64(0));
        let coords = |k: i64| ("coords", Value::Int64List(vec![0, 0, k]));
        let cpus = (0..8).map(|id| description(id, 0, &[]));
        let gpus = (0..8).map(|id| description(id, 0, std::slice::from_ref(&slice)));
        // As newer plugins describe GPUs: partition, host and place in the host.
        let placed_gpus = (0..8).map(|id| description(id, 0, &[slice.clone(), coords(id.into())]));
        for devices in [cpus.collect::<Vec<_>>(), gpus.collect(), placed_gpus.collect()] {
            assert_eq!(ids(&devices), [0, 1, 2, 3, 4, 5, 6, 7], "{devices:?}");
        }
    }

    #[test]
    fn the_order_does_not_depend_on_that_of_the_plugin() {
        // Two hosts of 2x2 chips, side by side.
        let coords = |x: i64, y: i64| ("coords", Value::Int64List(vec![x, y, 0]));
        let chips = (0..8).map(|k| (i32::try_from(k).unwrap(), k % 4, k / 4));
        let mut devices: Vec<_> =
            chips.map(|(id, x, y)| description(id, usize::from(x >= 2), &[coords(x, y)])).collect();
        let expected = [0, 1, 5, 4, 2, 3, 7, 6];
        assert_eq!(ids(&devices), expected);
        devices.reverse();
        assert_eq!(ids(&devices), expected);
        devices.swap(1, 6);
        assert_eq!(ids(&devices), expected);
    }
    /// A slice of a two-dimensional torus with hosts of 2x2 chips, with ids by host as plugins
    /// number them.
    fn torus(sides: [i64; 2], slice: i64) -> Vec<DeviceDescription> {
        let chips = (0..sides[0]).flat_map(|x| (0..sides[1]).map(move |y| (x, y)));
        let host = |x: i64, y: i64| x / 2 * (sides[1] / 2) + y / 2;
        let chip = |(x, y): (i64, i64)| {
            let id = 1000 * slice + 4 * host(x, y) + x % 2 * 2 + y % 2;
            let attributes =
                [("coords", Value::Int64List(vec![x, y, 0])), ("slice_index", Value::Int64(slice))];
            description(id as i32, host(x, y) as usize, &attributes)
        };
        chips.map(chip).collect()
    }

    #[test]
    fn sharded_state_over_several_lines_is_ordered_row_by_row() {
        // Sides, slices, fsdp, and the length of the lines.
        let cases = [
            ([4, 4], 1, 16, Some(4)),
            ([4, 4], 1, 8, Some(4)),
            ([2, 4], 1, 8, Some(4)),
            ([4, 2], 1, 8, Some(2)),
            ([4, 4], 2, 16, Some(4)),
            // Unsharded, a line or less, parts of lines, one dim, and several slices.
            ([4, 4], 1, 1, None),
            ([4, 4], 1, 4, None),
            ([4, 6], 1, 8, None),
            ([4, 6], 1, 18, None),
            ([1, 8], 1, 8, None),
            ([4, 4], 2, 32, None),
        ];
        for (sides, num_slices, fsdp, line) in cases {
            let devices: Vec<_> = (0..num_slices).flat_map(|slice| torus(sides, slice)).collect();
            let order = device_order(&devices, &sharded(fsdp));
            assert_eq!(fsdp_line(&order, &sharded(fsdp)), line, "{sides:?}, {fsdp}");
            let places: Vec<_> = order.iter().map(|d| (d.slice_index, d.coords.clone())).collect();
            assert_eq!(places.is_sorted(), line.is_some() || sides[0] == 1, "{sides:?}, {fsdp}");
            if line.is_none() {
                assert_eq!(order, device_order(&devices, &Mesh::SINGLE), "{sides:?}, {fsdp}");
            }
        }
        // A torus with a missing chip, and one of three dims.
        let placed = device_order(&torus([4, 4], 0)[1..], &Mesh::SINGLE);
        assert_eq!(fsdp_line(&placed, &sharded(8)), None);
        let mut deep = device_order(&torus([4, 4], 0), &Mesh::SINGLE);
        deep.extend(deep.clone().into_iter().map(|mut device| {
            device.coords[2] = 1;
            device
        }));
        assert_eq!(fsdp_line(&deep, &sharded(16)), None);
        // Groups along `fsdp` are no neighbours.
        let mesh = sharded(8).with(Axis::Tensor, 2);
        assert_eq!(fsdp_line(&device_order(&torus([4, 4], 0), &mesh), &mesh), None);
    }
}
