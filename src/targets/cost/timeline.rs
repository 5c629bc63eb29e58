//! Overlap of collectives with compute: a queue for the axis `tensor` and one for the rest, each
//! collective as soon as its operands are known. Compute waits for a result where it is needed: a
//! gathered parameter before its first use, a gradient at the end.

use std::collections::HashMap;

use hlo::{Axis, Graph, Groups, Mesh, Transfer, transfers};

use super::{DeviceLayout, Fabric, Work, seconds};
use crate::targets::{Chip, flags};

/// When the collectives of a step can run.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    mesh: Mesh,
    transfers: Vec<Transfer>,
}

/// Predicted time of a step, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTime {
    /// Compute.
    pub compute_secs: f64,
    /// All collectives, including overlapped ones.
    pub communication_secs: f64,
    /// The part of the collectives that does not overlap with compute.
    pub exposed_secs: f64,
}

impl StepTime {
    /// Total time of a step.
    pub fn total_secs(&self) -> f64 {
        self.compute_secs + self.exposed_secs
    }
}

impl Timeline {
    /// The timeline of a step's graph before its all_reduces are bucketed.
    pub fn of(graph: &Graph) -> Self {
        Self { mesh: *graph.mesh(), transfers: transfers(graph) }
    }

    /// A timeline for a model that is known by its size only: gradients become final evenly over
    /// the backward pass, which is the last two thirds of the compute, and are all_reduced.
    pub fn even(gradient_bytes: f64) -> Self {
        const PARTS: usize = 64;
        let part = |at: usize| {
            let ready = 1.0 / 3.0 + 2.0 / 3.0 * (at + 1) as f64 / PARTS as f64;
            reduced((gradient_bytes / PARTS as f64) as u64, ready)
        };
        Self { mesh: Mesh::SINGLE, transfers: (0..PARTS).map(part).collect() }
    }

    /// The mesh of the step.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Bytes of gradients that a device reduces, over all microbatches: the operands of every
    /// all_reduce and reduce_scatter that is not of activations.
    pub fn gradient_bytes(&self) -> u64 {
        self.reductions().map(|transfer| transfer.whole_bytes).sum()
    }

    /// The part of [`Self::gradient_bytes`] that is known after a fraction of the compute.
    pub fn gradient_bytes_by(&self, progress: f64) -> u64 {
        let early = self.reductions().filter(|transfer| transfer.ready <= progress);
        early.map(|transfer| transfer.whole_bytes).sum()
    }

    /// Bytes of all parameters that a device gathers.
    pub fn gathered_bytes(&self) -> u64 {
        let is_gather = |t: &&Transfer| t.kind == "all_gather" && !is_of_layer(t);
        let gathers = self.transfers.iter().filter(is_gather);
        gathers.map(|transfer| transfer.whole_bytes).sum()
    }

    fn reductions(&self) -> impl Iterator<Item = &Transfer> + Clone {
        self.transfers.iter().filter(|transfer| {
            ["all_reduce", "reduce_scatter"].contains(&transfer.kind)
                && !is_of_activations(transfer)
                && !is_of_layer(transfer)
        })
    }

    /// The groups of the all_reduce with the most bytes, and the bytes of all all_reduces over
    /// these groups. All_reduces among one replica move nothing and are omitted.
    pub fn all_reduced(&self) -> Option<(Groups, u64)> {
        let moves = |groups: Groups| groups.size(&self.mesh) != Ok(1);
        let all = self.reductions().filter(|t| t.kind == "all_reduce" && moves(t.groups));
        let groups = all.clone().max_by_key(|transfer| transfer.whole_bytes)?.groups;
        let same = all.filter(|transfer| transfer.groups == groups);
        Some((groups, same.map(|transfer| transfer.whole_bytes).sum()))
    }

    /// Predicted time of the step on a chip, with each collective on the links of its own group.
    pub fn step(&self, work: &Work, chip: &Chip, layout: &DeviceLayout) -> StepTime {
        self.on(chip, layout, work.seconds(chip))
    }

    fn on(&self, chip: &Chip, layout: &DeviceLayout, compute_secs: f64) -> StepTime {
        let mut fabrics: HashMap<Groups, Fabric> = HashMap::new();
        for transfer in &self.transfers {
            let fabric = || layout.fabric(&first_group(&self.mesh, transfer.groups));
            fabrics.entry(transfer.groups).or_insert_with(fabric);
        }
        let secs = |transfer: &Transfer, bytes: f64| {
            fabrics.get(&transfer.groups).map_or(0.0, |f| seconds(f, transfer.kind, bytes))
        };
        let bucket_bytes = |kind: &str| flags::bucket_bytes(chip, kind) as f64;
        self.simulate(compute_secs, bucket_bytes, secs)
    }

    /// Predicted seconds of what replicas along `tensor` exchange in the layers of a step, if they
    /// are on several hosts or slices, and the number of these.
    pub fn distant_layers(&self, chip: &Chip, layout: &DeviceLayout) -> Option<(f64, usize)> {
        let fabric = layout.fabric(&first_group(&self.mesh, Axis::Tensor.into()));
        let transfers = self.transfers.iter().filter(|transfer| is_of_layer(transfer));
        let of_layers = Self { mesh: self.mesh, transfers: transfers.copied().collect() };
        let secs = of_layers.on(chip, layout, 0.0).communication_secs;
        (fabric.num_groups > 1).then_some((secs, fabric.num_groups))
    }

    /// Predicted time for a known compute time, with all collectives on the same fabric: buckets of
    /// at least `bucket_bytes` wait for their last gradient and for the previous bucket.
    pub fn overlapped(&self, compute_secs: f64, fabric: &Fabric, bucket_bytes: f64) -> StepTime {
        let secs = |transfer: &Transfer, bytes: f64| seconds(fabric, transfer.kind, bytes);
        self.simulate(compute_secs, |_| bucket_bytes, secs)
    }

    /// Runs the collectives one after the other, as buckets of the same kind over the same groups.
    fn simulate(
        &self,
        compute_secs: f64,
        bucket_bytes: impl Fn(&str) -> f64,
        secs: impl Fn(&Transfer, f64) -> f64,
    ) -> StepTime {
        let mut order = self.transfers.clone();
        order.sort_by(|a, b| {
            a.ready.total_cmp(&b.ready).then_with(|| a.needed.total_cmp(&b.needed))
        });
        let compute = Compute { secs: compute_secs, waits: vec![] };
        let mut queue = Queue { compute, free_at: [0.0; 2], busy_secs: 0.0, secs };
        let mut buckets: Vec<Bucket> = vec![];
        for transfer in combined(order) {
            // No bucket waits for what is known only after the bucket is needed.
            buckets.retain(|bucket| {
                let waits = bucket.last.needed >= transfer.ready;
                if !waits {
                    queue.run(bucket);
                }
                waits
            });
            // Later reductions depend on it, and compilers leave it synchronous.
            if is_of_activations(&transfer) {
                let last = Transfer { needed: transfer.ready, ..transfer };
                queue.run(&Bucket { last, bytes: transfer.whole_bytes as f64 });
                continue;
            }
            let is_same = |bucket: &Bucket| {
                (bucket.last.kind, bucket.last.groups) == (transfer.kind, transfer.groups)
            };
            let at = buckets.iter().position(is_same).unwrap_or_else(|| {
                buckets.push(Bucket { last: transfer, bytes: 0.0 });
                buckets.len() - 1
            });
            let bucket = &mut buckets[at];
            let needed = bucket.last.needed.min(transfer.needed);
            bucket.last = Transfer { needed, ..transfer };
            bucket.bytes += transfer.whole_bytes as f64;
            if bucket.bytes >= bucket_bytes(transfer.kind) {
                queue.run(&buckets.remove(at));
            }
        }
        buckets.iter().for_each(|bucket| queue.run(bucket));
        StepTime {
            compute_secs,
            communication_secs: queue.busy_secs,
            exposed_secs: (queue.compute.reaches(1.0) - compute_secs).max(0.0),
        }
    }
}

/// All_reduces of activations that are ready at the same time and do not depend on each other are
/// one, as compilers combine them.
fn combined(transfers: Vec<Transfer>) -> Vec<Transfer> {
    let mut found: Vec<Transfer> = vec![];
    for transfer in transfers {
        let key = |t: &Transfer| (t.groups, t.ready, t.depth);
        let is_same = |other: &&mut Transfer| {
            is_of_activations(other) && is_of_activations(&transfer) && key(other) == key(&transfer)
        };
        match found.iter_mut().rev().take_while(|other| other.ready == transfer.ready).find(is_same)
        {
            Some(same) => {
                same.whole_bytes += transfer.whole_bytes;
                same.needed = same.needed.min(transfer.needed);
            }
            None => found.push(transfer),
        }
    }
    found
}

/// `true` for an all_reduce over a part of a group, such as that of batch statistics.
fn is_of_activations(transfer: &Transfer) -> bool {
    transfer.kind == "all_reduce" && !transfer.groups.is_whole()
}

/// `true` for what the replicas along `tensor` exchange in a layer.
fn is_of_layer(transfer: &Transfer) -> bool {
    transfer.groups.axes() == Axis::Tensor.into()
}

/// Collectives that run as one.
struct Bucket {
    /// The last one to be ready. It is needed when the first of them is needed.
    last: Transfer,
    bytes: f64,
}

/// The links, which run one bucket at a time, but what replicas along `tensor` exchange beside the
/// rest: no matmul of a layer waits behind gradients.
struct Queue<F> {
    compute: Compute,
    /// For layers, and for the rest.
    free_at: [f64; 2],
    busy_secs: f64,
    /// Seconds of a collective with these bytes.
    secs: F,
}

impl<F: Fn(&Transfer, f64) -> f64> Queue<F> {
    fn run(&mut self, bucket: &Bucket) {
        let secs = (self.secs)(&bucket.last, bucket.bytes);
        let free_at = &mut self.free_at[usize::from(!is_of_layer(&bucket.last))];
        *free_at = free_at.max(self.compute.reaches(bucket.last.ready)) + secs;
        self.compute.waits_at(bucket.last.needed, *free_at);
        self.busy_secs += secs;
    }
}

/// The replicas of the first of the groups. The others are in corresponding places.
pub(crate) fn first_group(mesh: &Mesh, groups: Groups) -> Vec<usize> {
    groups.list(mesh).ok().and_then(|groups| groups.into_iter().next()).unwrap_or_default()
}

/// An all_reduce over `data`; the step needs its result at the end.
fn reduced(whole_bytes: u64, ready: f64) -> Transfer {
    let groups = Axis::Data.into();
    Transfer { kind: "all_reduce", groups, whole_bytes, ready, needed: 1.0, depth: 0 }
}

/// The clock of the compute, which stops where it waits for a collective.
struct Compute {
    /// Seconds without waiting.
    secs: f64,
    /// At this fraction of the compute it waits until this time, in order.
    waits: Vec<(f64, f64)>,
}

impl Compute {
    fn waits_at(&mut self, progress: f64, until: f64) {
        let at = self.waits.partition_point(|wait| wait.0 <= progress);
        self.waits.insert(at, (progress, until));
    }

    /// When this fraction of the compute is done.
    fn reaches(&self, progress: f64) -> f64 {
        let (mut now, mut done) = (0.0f64, 0.0);
        for (at, until) in self.waits.iter().take_while(|wait| wait.0 <= progress) {
            now = (now + (at - done) * self.secs).max(*until);
            done = *at;
        }
        now + (progress - done) * self.secs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::cost::{Group, Wire};

    fn timeline(transfers: &[Transfer]) -> Timeline {
        Timeline { mesh: Mesh::data(2), transfers: transfers.to_vec() }
    }

    #[test]
    fn what_is_there_early_is_hidden_and_what_is_there_last_is_not() {
        let wire = Wire { latency_secs: 0.0, bytes_per_sec: 1e9 };
        let fabric = Fabric::single(Group::Switch { size: 2, wire });
        // Each of the two devices sends n bytes: 0.1 s each.
        let bytes = 100_000_000;
        let gradients = [0.5, 1.0].map(|ready| reduced(bytes, ready));
        let time = timeline(&gradients).overlapped(1.0, &fabric, 1.0);
        assert!((time.communication_secs - 0.2).abs() < 1e-9, "{time:?}");
        assert!((time.exposed_secs - 0.1).abs() < 1e-9, "{time:?}");
        // In one bucket, nothing overlaps.
        let late = timeline(&gradients).overlapped(1.0, &fabric, 1e12);
        assert!((late.exposed_secs - 0.2).abs() < 1e-9, "{late:?}");
    }

    /// Batch statistics: the variance depends on the mean, and their cotangents do not depend on
    /// each other.
    #[test]
    fn all_reduces_of_activations_run_one_after_the_other_unless_they_are_independent() {
        let wire = Wire { latency_secs: 1e-6, bytes_per_sec: 1e12 };
        let fabric = Fabric::single(Group::Switch { size: 2, wire });
        let statistic = |ready: f64, depth: usize| {
            let groups = Groups::contiguous(Axis::Data, 2);
            Transfer { groups, needed: ready, depth, ..reduced(64, ready) }
        };
        let once = timeline(&[statistic(0.2, 0)]).overlapped(1.0, &fabric, 1e12);
        let times = |transfers: &[Transfer]| {
            let time = timeline(transfers).overlapped(1.0, &fabric, 1e12);
            assert!((time.communication_secs - time.exposed_secs).abs() < 1e-12, "{time:?}");
            (time.communication_secs / once.communication_secs).round()
        };
        assert_eq!(times(&[statistic(0.2, 0), statistic(0.2, 1), statistic(0.4, 2)]), 3.0);
        assert_eq!(times(&[statistic(0.2, 0), statistic(0.2, 0), statistic(0.4, 2)]), 2.0);
        // They are no gradients.
        assert_eq!(timeline(&[statistic(0.2, 0)]).gradient_bytes(), 0);
    }

    #[test]
    fn compute_waits_for_a_gather_only_where_it_is_needed() {
        let wire = Wire { latency_secs: 0.0, bytes_per_sec: 1e9 };
        let fabric = Fabric::single(Group::Switch { size: 2, wire });
        // Half of it is sent: 0.1 s.
        let gather = |ready: f64, needed: f64| {
            let (kind, groups) = ("all_gather", Axis::Data.into());
            Transfer { kind, groups, whole_bytes: 200_000_000, ready, needed, depth: 0 }
        };
        let exposed =
            |transfers: &[Transfer]| timeline(transfers).overlapped(1.0, &fabric, 1.0).exposed_secs;
        let is = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found}");
        is(exposed(&[gather(0.0, 0.0)]), 0.1);
        is(exposed(&[gather(0.0, 0.5)]), 0.0);
        is(exposed(&[gather(0.5, 0.55)]), 0.05);
        // The first is waited for, and hides half of the second.
        is(exposed(&[gather(0.0, 0.0), gather(0.0, 0.05)]), 0.15);
        // A gradient that follows the second has time until the end.
        is(exposed(&[gather(0.0, 0.0), gather(0.0, 0.05), reduced(100_000_000, 0.9)]), 0.15);
        is(exposed(&[gather(0.0, 0.0), reduced(100_000_000, 1.0)]), 0.2);
    }
}
