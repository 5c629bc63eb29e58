//! Time of collectives by algorithm, in seconds. `n` is the bytes per device, `p` the number of
//! devices, `alpha` the latency of a hop and `beta` the seconds per byte:
//!
//! ```text
//! ring all_reduce      2 (p-1) alpha + 2 (p-1)/p n beta     reduce_scatter, then all_gather
//! ring reduce_scatter    (p-1) alpha +   (p-1)/p n beta     (the same for all_gather)
//! tree all_reduce      2 ceil(log2 p) alpha + 2 n beta      two pipelined trees with half the bytes each
//! hierarchical         reduce_scatter in the group, all_reduce of n/g over the network, all_gather
//! ```
//! With regions the network has two levels: hops within a region cost its alpha and beta, and those
//! that cross the ones between regions.
//!
//! Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH"
//! (2005); Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction
//! and scan" (2009). The ring's cost is often given without the factor 2, which is the cost of one
//! of its two halves.
//!
//! On a torus both directions of all dimensions are used at once: bandwidths add up, and so do the
//! hops of the dimensions. A line has no wrap-around link, so it has half the bandwidth of a ring.

use hlo::Algorithm;

use super::{Fabric, Group, Wire};

/// Seconds of an all_reduce of `bytes` per device with an algorithm.
pub fn all_reduce_by(algorithm: Algorithm, fabric: &Fabric, bytes: f64) -> f64 {
    let Fabric { group, num_groups, network, .. } = fabric;
    let (in_region, num_regions) = fabric.groups_by_region();
    let between = fabric.regions.map_or(*network, |regions| regions.wire);
    let slowest_network = fabric.slowest_network().bytes_per_sec * group.size() as f64;
    let devices = fabric.num_devices();
    if devices <= 1 {
        return 0.0;
    }
    match algorithm {
        Algorithm::Hierarchical => 2.0 * reduce_scatter(fabric, bytes),
        Algorithm::Ring if *num_groups == 1 => 2.0 * in_group(group, bytes),
        Algorithm::Ring => {
            // The slowest link of the ring decides; the rings of a group share its links to the
            // network.
            let slowest = bandwidth(group).min(slowest_network);
            let p = devices as f64;
            // One hop leaves each region.
            let crossing = if num_regions > 1 { num_regions as f64 } else { 0.0 };
            let hops = crossing * between.latency_secs
                + (*num_groups as f64 - crossing) * network.latency_secs
                + (p - *num_groups as f64) * latency(group);
            2.0 * (hops + (p - 1.0) / p * bytes / slowest)
        }
        Algorithm::Tree => {
            let depth = |count: usize| (count as f64).log2().ceil();
            // A torus links neighbors only: a tree is as deep as the torus is wide, and uses
            // one link of each device.
            let (depth_in_group, in_group) = match group {
                Group::Switch { size, wire } => {
                    (depth(*size) * wire.latency_secs, wire.bytes_per_sec)
                }
                Group::Torus { link, .. } => (hops(group) * link.latency_secs, link.bytes_per_sec),
            };
            let slowest = match num_groups {
                1 => in_group,
                _ => in_group.min(slowest_network),
            };
            let depth_of_network =
                depth(in_region) * network.latency_secs + depth(num_regions) * between.latency_secs;
            2.0 * (depth_of_network + depth_in_group + bytes / slowest)
        }
    }
}

/// Seconds of an all_reduce of `bytes` per device with the fastest algorithm, and that algorithm.
///
/// ```
/// use hlo::Algorithm;
/// use lockstep::targets::cost::{Fabric, Group, Wire, all_reduce};
///
/// let wire = Wire { latency_secs: 1e-6, bytes_per_sec: 1e9 };
/// let fabric = Fabric::single(Group::Switch { size: 4, wire });
/// let (secs, algorithm) = all_reduce(&fabric, 1e6);
/// assert_eq!(algorithm, Algorithm::Ring);
/// assert!((secs - (6e-6 + 1.5e-3)).abs() < 1e-12);
/// ```
pub fn all_reduce(fabric: &Fabric, bytes: f64) -> (f64, Algorithm) {
    let timed =
        Algorithm::ALL.map(|algorithm| (all_reduce_by(algorithm, fabric, bytes), algorithm));
    timed.into_iter().fold(timed[0], |best, other| if other.0 < best.0 { other } else { best })
}

/// Seconds of a reduce_scatter of `bytes` per device.
pub fn reduce_scatter(fabric: &Fabric, bytes: f64) -> f64 {
    let group = fabric.group.size() as f64;
    let (in_region, num_regions) = fabric.groups_by_region();
    let between = fabric.regions.map_or(fabric.network, |regions| regions.wire);
    // First in the group, then in the region, then between regions: each sends what is left.
    in_group(&fabric.group, bytes)
        + ring_pass(in_region, bytes / group, fabric.network)
        + ring_pass(num_regions, bytes / (group * in_region as f64), between)
}

/// Seconds of an all_gather with a result of `bytes` per device; a reduce_scatter takes as long.
pub fn all_gather(fabric: &Fabric, bytes: f64) -> f64 {
    reduce_scatter(fabric, bytes)
}

/// Seconds of a collective by StableHLO's name, with `whole_bytes` shared by the group as in
/// [`hlo::Communication::whole_bytes`]. An all_to_all takes as long as a reduce_scatter, a
/// collective_permute sends to the next device; 0 for an unknown name.
pub fn seconds(fabric: &Fabric, kind: &str, whole_bytes: f64) -> f64 {
    if fabric.num_devices() <= 1 {
        return 0.0;
    }
    match kind {
        "all_reduce" => all_reduce(fabric, whole_bytes).0,
        "reduce_scatter" | "all_to_all" => reduce_scatter(fabric, whole_bytes),
        "all_gather" => all_gather(fabric, whole_bytes),
        "collective_permute" => {
            let (latency_secs, bytes_per_sec) = match (&fabric.group, fabric.num_groups) {
                (_, 2..) => {
                    let slowest = fabric.slowest_network();
                    (slowest.latency_secs, slowest.bytes_per_sec)
                }
                (Group::Switch { wire: link, .. } | Group::Torus { link, .. }, _) => {
                    (link.latency_secs, link.bytes_per_sec)
                }
            };
            latency_secs + whole_bytes / bytes_per_sec
        }
        _ => 0.0,
    }
}

/// Seconds of half a ring all_reduce over `p` devices.
fn ring_pass(p: usize, bytes: f64, wire: Wire) -> f64 {
    if p <= 1 {
        return 0.0;
    }
    let p = p as f64;
    (p - 1.0) * wire.latency_secs + (p - 1.0) / p * bytes / wire.bytes_per_sec
}

/// Seconds of a reduce_scatter inside a group.
fn in_group(group: &Group, bytes: f64) -> f64 {
    match group {
        Group::Switch { size, wire } => ring_pass(*size, bytes, *wire),
        Group::Torus { die, bounds, link, .. } => {
            let p = bounds.iter().product::<usize>() as f64;
            // The two devices of a chip first; then each has a half to send over the links that
            // they share.
            let (of_chip, bytes) = match die {
                Some(wire) => (ring_pass(2, bytes, *wire), bytes / 2.0),
                None => (0.0, bytes),
            };
            if p <= 1.0 {
                return of_chip;
            }
            of_chip + hops(group) * link.latency_secs + (p - 1.0) / p * bytes / bandwidth(group)
        }
    }
}

/// Bandwidth of a device inside its group, in one direction, in bytes/s.
fn bandwidth(group: &Group) -> f64 {
    match group {
        Group::Switch { wire, .. } => wire.bytes_per_sec,
        Group::Torus { bounds, ring_from, link, .. } => {
            let links: f64 =
                bounds.iter().map(|side| if side >= ring_from { 2.0 } else { 1.0 }).sum();
            links.max(1.0) * link.bytes_per_sec
        }
    }
}

/// Hops from one end of a torus to the other.
fn hops(group: &Group) -> f64 {
    match group {
        Group::Switch { .. } => 1.0,
        Group::Torus { bounds, ring_from, .. } => {
            let along = |side: &usize| {
                if side >= ring_from { *side as f64 / 2.0 } else { *side as f64 - 1.0 }
            };
            bounds.iter().map(along).sum()
        }
    }
}

fn latency(group: &Group) -> f64 {
    match group {
        Group::Switch { wire, .. } => wire.latency_secs,
        Group::Torus { link, .. } => link.latency_secs,
    }
}

#[cfg(test)]
mod tests {
    use super::super::RegionLinks;
    use super::*;

    const WIRE: Wire = Wire { latency_secs: 1e-6, bytes_per_sec: 100e9 };
    const NETWORK: Wire = Wire { latency_secs: 10e-6, bytes_per_sec: 10e9 };

    fn cluster(size: usize, num_groups: usize) -> Fabric {
        Fabric {
            group: Group::Switch { size, wire: WIRE },
            num_groups,
            network: NETWORK,
            regions: None,
        }
    }

    #[test]
    fn a_ring_moves_twice_what_a_reduce_scatter_moves() {
        let fabric = cluster(8, 1);
        let n = 1e9;
        let ring = 2.0 * (7.0 * 1e-6 + 7.0 / 8.0 * n / 100e9);
        assert!((all_reduce_by(Algorithm::Ring, &fabric, n) - ring).abs() < 1e-12);
        assert!((reduce_scatter(&fabric, n) - ring / 2.0).abs() < 1e-12);
        assert!((all_gather(&fabric, n) - ring / 2.0).abs() < 1e-12);
    }

    #[test]
    fn a_hierarchy_sends_a_share_over_the_network() {
        let fabric = cluster(8, 4);
        let n = 1e9;
        let group = 7.0 * 1e-6 + 7.0 / 8.0 * n / 100e9;
        let network = 3.0 * 10e-6 + 3.0 / 4.0 * (n / 8.0) / 10e9;
        let expected = 2.0 * (group + network);
        assert!((all_reduce_by(Algorithm::Hierarchical, &fabric, n) - expected).abs() < 1e-12);
    }

    /// 60 ms between two regions: each algorithm pays for the hops that cross, which are 4 of a
    /// ring's 62 over all hosts and devices, and 2 of a tree and of a hierarchy.
    #[test]
    fn only_hops_between_regions_pay_for_what_is_between_them() {
        let near = cluster(8, 4);
        let far = |latency_secs: f64| {
            let wire = Wire { latency_secs, ..NETWORK };
            Fabric { regions: Some(RegionLinks { num_regions: 2, wire }), ..near.clone() }
        };
        for (algorithm, num_hops) in
            [(Algorithm::Ring, 4.0), (Algorithm::Tree, 2.0), (Algorithm::Hierarchical, 2.0)]
        {
            let secs = |latency_secs| all_reduce_by(algorithm, &far(latency_secs), 1e6);
            let more = secs(60e-3 + NETWORK.latency_secs) - secs(NETWORK.latency_secs);
            assert!((more - num_hops * 60e-3).abs() < 1e-9, "{algorithm}: {more}");
            // Alike links in both make no difference to rings and trees.
            let (same, now) = (secs(NETWORK.latency_secs), all_reduce_by(algorithm, &near, 1e6));
            let is_same = algorithm == Algorithm::Hierarchical || (same - now).abs() < 1e-12;
            assert!(is_same && same <= now + 1e-12, "{algorithm}: {same} {now}");
        }
        let permute = seconds(&far(60e-3), "collective_permute", 0.0);
        assert_eq!(permute, 60e-3);
    }

    #[test]
    fn small_messages_go_over_trees_and_large_ones_over_rings() {
        let fabric = cluster(64, 1);
        assert_eq!(all_reduce(&fabric, 1e3).1, Algorithm::Tree);
        assert_eq!(all_reduce(&fabric, 1e9).1, Algorithm::Ring);
        assert_eq!(all_reduce(&cluster(8, 64), 1e3).1, Algorithm::Tree);
    }

    #[test]
    fn a_closed_torus_is_twice_as_fast_as_an_open_one_and_one_device_needs_nothing() {
        let torus = |ring_from| {
            let bounds = vec![16, 16];
            Fabric::single(Group::Torus { die: None, bounds, ring_from, link: WIRE })
        };
        let n = 1e12;
        let (closed, open) = (all_reduce(&torus(16), n).0, all_reduce(&torus(17), n).0);
        assert!((open / closed - 2.0).abs() < 1e-3, "{open} {closed}");
        assert_eq!(all_reduce(&cluster(1, 1), n).0, 0.0);
    }
}
