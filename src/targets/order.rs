//! Device order: which device of a target is which replica, for programs that are compiled for hardware that is not
//! here. A run has its devices in its plugin's order.
//!
//! Replicas that differ along an inner mesh axis have neighbouring numbers, so neighbours in this order
//! should be neighbours on the fastest wires: first within a host, then along a torus dimension, last over
//! the network between slices. Plugins list devices by process or as a ring, and their ids follow neither
//! rule on every generation; so the order is made here, and sent to the compiler.
//!
//! On a torus the hosts are blocks of chips (2x2 usually). They are walked like a snake, every other row
//! backwards, so that each host's block touches the next one's; inside a block each chip is a neighbour of
//! the one before.

use serde::{Deserialize, Serialize};

use crate::pjrt::{DeviceDescription, Value};

/// A device at its place in the order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// The plugin's id.
    pub id: i32,
    /// The vendor's name for its model.
    pub kind: String,
    /// The host that holds it.
    pub process_index: usize,
    /// The slice, 0 where there is only one.
    pub slice_index: usize,
    /// Its chip's place in the torus, empty where there is none.
    pub coords: Vec<i64>,
    /// Its place on its chip.
    pub core_on_chip: i64,
}

/// The devices in the order of the replicas: slices one after the other, in each the hosts as a snake, in
/// each host its chips round, on each chip its cores.
pub fn order(devices: &[DeviceDescription]) -> Vec<Placed> {
    let mut placed: Vec<Placed> = devices.iter().map(place).collect();
    let block = host_block(&placed);
    placed.sort_by_cached_key(|device| {
        let key = if device.coords.is_empty() {
            vec![device.process_index as i64]
        } else {
            torus_key(&device.coords, &block)
        };
        (device.slice_index, key, device.core_on_chip, device.id)
    });
    placed
}

fn place(device: &DeviceDescription) -> Placed {
    let int = |name| match device.attributes.get(name) {
        Some(Value::Int64(value)) => *value,
        _ => 0,
    };
    let coords = match device.attributes.get("coords") {
        Some(Value::Int64List(coords)) => coords.clone(),
        _ => vec![],
    };
    Placed {
        id: device.id,
        kind: device.kind.clone(),
        process_index: device.process_index,
        slice_index: usize::try_from(int("slice_index")).unwrap_or(0),
        coords,
        core_on_chip: int("core_on_chip"),
    }
}

/// The sizes of the block of chips that the first device's host holds.
fn host_block(devices: &[Placed]) -> Vec<i64> {
    let Some(first) = devices.first() else { return vec![] };
    let same_host: Vec<_> = devices
        .iter()
        .filter(|device| {
            (device.process_index, device.slice_index) == (first.process_index, first.slice_index)
        })
        .collect();
    (0..first.coords.len())
        .map(|dim| {
            let along = same_host.iter().filter_map(|device| device.coords.get(dim).copied());
            let (low, high) =
                along.fold((i64::MAX, i64::MIN), |(low, high), at| (low.min(at), high.max(at)));
            (high - low + 1).max(1)
        })
        .collect()
}

/// Place of the host's block along the snake, then place in the block along a smaller snake: in a block of
/// 2x2 that goes round.
fn torus_key(coords: &[i64], block: &[i64]) -> Vec<i64> {
    let sizes = |dim: usize| block.get(dim).copied().unwrap_or(1).max(1);
    let blocks: Vec<i64> = coords.iter().enumerate().map(|(dim, at)| at / sizes(dim)).collect();
    let inside: Vec<i64> = coords.iter().enumerate().map(|(dim, at)| at % sizes(dim)).collect();
    let mut key = snake(&blocks);
    key.extend(snake(&inside));
    key
}

/// Coordinates turned into a key whose order walks a box without jumps: the last dim varies slowest, and a
/// dim runs backwards wherever the sum of the slower ones is odd.
fn snake(coords: &[i64]) -> Vec<i64> {
    let mut key = Vec::with_capacity(coords.len());
    let mut slower = 0;
    for at in coords.iter().rev() {
        key.push(if slower % 2 == 0 { *at } else { -at });
        slower += at;
    }
    key
}
