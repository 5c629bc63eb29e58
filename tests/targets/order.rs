//! The order of devices, and so their replicas, on topologies that the real plugins describe.

use std::collections::BTreeSet;
use std::path::Path;

use hlo::{Axis, Mesh};
use lockstep::cluster::{PlacedDevice, fsdp_line};
use lockstep::targets::cost::DeviceLayout;
use lockstep::targets::{Chip, Target, worker};

use super::{BINARY, install};

/// All devices of the target, with `fsdp` neighbours that share the state.
fn mesh(target: &Target, fsdp: usize) -> Mesh {
    Mesh::new(&[(Axis::Data, target.num_devices() / fsdp), (Axis::Fsdp, fsdp)])
}

fn placed(target: &str, fsdp: usize) -> Vec<PlacedDevice> {
    install(if target.starts_with("tpu") { "tpu" } else { "cuda-compiler" });
    let target: Target = target.parse().unwrap();
    let devices = worker::devices(Path::new(BINARY), &target, &mesh(&target, fsdp)).unwrap();
    assert_eq!(devices.len(), target.num_devices());
    let ids: BTreeSet<_> = devices.iter().map(|device| device.id).collect();
    assert_eq!(ids.len(), devices.len(), "a device stands twice");
    assert_eq!(Chip::of_kind(&devices[0].kind), Some(target.chip), "{}", devices[0].kind);
    devices
}

/// Number of runs of equal keys. It equals the number of keys only if the devices of each key are
/// contiguous.
fn num_runs<K: PartialEq>(devices: &[PlacedDevice], key: impl Fn(&PlacedDevice) -> K) -> usize {
    1 + devices.windows(2).filter(|pair| key(&pair[0]) != key(&pair[1])).count()
}

fn distance(a: &PlacedDevice, b: &PlacedDevice) -> i64 {
    a.coords.iter().zip(&b.coords).map(|(a, b)| (a - b).abs()).sum()
}

#[test]
fn hosts_are_contiguous_and_each_is_next_to_its_successor() {
    // Target, hosts.
    let rows =
        [("tpu:v5e:4x4", 4), ("tpu:v5e:16x16", 64), ("tpu:v5p:4x4x4", 16), ("tpu:v6e:8x8", 16)];
    for (target, num_hosts) in rows {
        let devices = placed(target, 1);
        assert_eq!(num_runs(&devices, |device| device.process_index), num_hosts, "{target}");
        let per_host = devices.len() / num_hosts;
        let hosts: Vec<_> = devices.chunks(per_host).collect();
        for pair in hosts.windows(2) {
            let nearest = pair[0].iter().flat_map(|a| pair[1].iter().map(|b| distance(a, b))).min();
            assert_eq!(nearest, Some(1), "{target}");
        }
        for host in hosts {
            let steps = host.windows(2).map(|pair| distance(&pair[0], &pair[1]));
            assert!(steps.into_iter().all(|step| step == 1), "{target}: {host:?}");
        }
    }
}

/// The lines have the length that `compile` takes them to have, also where the sides differ.
#[test]
fn sharded_state_lies_along_lines_of_the_torus() {
    for (target, fsdp) in [("tpu:v5e:2x4", 8), ("tpu:v5e:4x2", 8), ("tpu:v5e:4x8", 16)] {
        let parsed: Target = target.parse().unwrap();
        let mesh = mesh(&parsed, fsdp);
        let devices = placed(target, fsdp);
        let line = fsdp_line(&devices, &mesh).unwrap();
        let layout = DeviceLayout::of_mesh(&parsed, &mesh);
        assert_eq!(layout.line(), Some(line), "{target}");
        let lines: Vec<_> = devices.chunks(line).collect();
        for pair in lines.windows(2) {
            for (a, b) in pair[0].iter().zip(pair[1]) {
                assert_eq!(distance(a, b), 1, "{target}");
            }
        }
        for line in lines {
            assert!(line.windows(2).all(|pair| distance(&pair[0], &pair[1]) == 1), "{target}");
        }
    }
}

#[test]
fn the_cores_of_a_chip_are_contiguous() {
    for chip in placed("tpu:tpu7x:2x2x2", 1).chunks(2) {
        assert_eq!((distance(&chip[0], &chip[1]), chip[0].core_on_chip), (0, 0));
        assert_eq!(chip[1].core_on_chip, 1);
    }
}

/// `placed` compares the number of devices with the target's.
#[test]
fn a_v4_chip_is_one_device() {
    let devices = placed("tpu:v4-16", 1);
    let chips: BTreeSet<_> = devices.iter().map(|device| device.coords.clone()).collect();
    assert_eq!((devices.len(), chips.len()), (8, 8), "{devices:?}");
}

#[test]
fn slices_are_contiguous() {
    let devices = placed("tpu:v5e:4x4x2", 1);
    assert_eq!(num_runs(&devices, |device| device.slice_index), 2);
    assert_eq!(num_runs(&devices, |device| (device.slice_index, device.process_index)), 8);
}

#[test]
fn gpus_of_a_host_are_contiguous() {
    let devices = placed("gpu:h100:4x8", 1);
    assert_eq!(num_runs(&devices, |device| device.process_index), 4);
    assert!(devices.chunks(8).all(|host| host[0].process_index == host[7].process_index));
}
