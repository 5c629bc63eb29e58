//! Overlap of collectives with compute: a queue for the axis `tensor` and one for the rest, each
//! collective as soon as its operands are known. Compute waits for a result where it is needed: a
//! gathered parameter before its first use, a gradient at the end.

use std::collections::HashMap;

use hlo::rewrites::{self, ReplicaSums, written_all_reduce};
use hlo::{
    Algorithm, Axis, AxisSet, Communication, DType, Graph, Groups, Mesh, Transfer, transfers,
};

use super::{DeviceLayout, Fabric, MeasuredFabric, WhatIf, Work, seconds};
use crate::targets::{Chip, flags};

/// When the collectives of a step can run.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    mesh: Mesh,
    transfers: Vec<Transfer>,
    /// How sums over whole groups are written.
    sums: ReplicaSums,
    replicas_per_host: usize,
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
    /// The timeline of a step's graph. What the graph has as one all_reduce stays one; others wait
    /// for each other as the compiler combines them.
    pub fn of(graph: &Graph) -> Self {
        Self::new(*graph.mesh(), transfers(graph))
    }

    fn new(mesh: Mesh, transfers: Vec<Transfer>) -> Self {
        Self { mesh, transfers, sums: ReplicaSums::Direct, replicas_per_host: 1 }
    }

    /// The same with all_reduces as the messages of algorithms, as
    /// [`hlo::rewrites::write_all_reduces_by`] writes them.
    #[must_use]
    pub fn written_as(self, sums: ReplicaSums, replicas_per_host: usize) -> Self {
        Self { sums, replicas_per_host, ..self }
    }

    /// A timeline for a model that is known by its size only: gradients become final evenly over
    /// the backward pass, which is the last two thirds of the compute, and are all_reduced.
    pub fn even(gradient_bytes: f64) -> Self {
        const PARTS: usize = 64;
        let part = |at: usize| {
            let ready = 1.0 / 3.0 + 2.0 / 3.0 * (at + 1) as f64 / PARTS as f64;
            reduced((gradient_bytes / PARTS as f64) as u64, ready)
        };
        Self::new(Mesh::SINGLE, (0..PARTS).map(part).collect())
    }

    /// The mesh of the step.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Bytes of gradients that a device reduces, over all microbatches: the operands of every
    /// all_reduce, reduce_scatter and all_to_all that is not of activations.
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
        // Parameters are gathered over `fsdp` only; sums that were sent in a narrow dtype, over
        // all that they were taken over.
        let is_gather = |t: &&Transfer| t.kind == "all_gather" && !is_of_layer(t) && !is_of_sums(t);
        let gathers = self.transfers.iter().filter(is_gather);
        gathers.map(|transfer| transfer.whole_bytes).sum()
    }

    fn reductions(&self) -> impl Iterator<Item = &Transfer> + Clone {
        self.transfers.iter().filter(|transfer| is_of_gradients(transfer))
    }

    /// The sum over all replicas of a group with the most bytes, and the bytes of all sums over
    /// these groups by the same kind of collective. Sums among one replica move nothing and are
    /// omitted.
    pub fn all_reduced(&self) -> Option<AllReduced> {
        let moves = |groups: Groups| groups.size(&self.mesh) != Ok(1);
        let all = self.reductions().filter(|t| t.kind != "reduce_scatter" && moves(t.groups));
        let largest = all.clone().max_by_key(|transfer| transfer.whole_bytes)?;
        let (groups, kind) = (largest.groups, largest.kind);
        let same = all.filter(|transfer| transfer.groups == groups && transfer.kind == kind);
        let bytes = same.map(|transfer| transfer.whole_bytes).sum();
        let written = self.messages(largest).map(|(algorithm, _)| algorithm);
        Some(AllReduced { groups, kind, bytes, written })
    }

    /// Predicted time of the step on a chip, with each collective on the links of its own group.
    pub fn step(&self, work: &Work, chip: &Chip, layout: &DeviceLayout) -> StepTime {
        self.on(chip, layout, work.seconds(chip), None)
    }

    /// The same with gradients that are compressed, as a changed network says.
    pub fn step_if(
        &self,
        work: &Work,
        chip: &Chip,
        layout: &DeviceLayout,
        what_if: Option<&WhatIf>,
    ) -> StepTime {
        self.on(chip, layout, work.seconds(chip), what_if)
    }

    fn on(
        &self,
        chip: &Chip,
        layout: &DeviceLayout,
        compute_secs: f64,
        what_if: Option<&WhatIf>,
    ) -> StepTime {
        let mut links: HashMap<(Groups, Option<Algorithm>), Vec<Fabric>> = HashMap::new();
        for transfer in &self.transfers {
            let written = self.messages(transfer).map(|(algorithm, _)| algorithm);
            let of_group = || self.links(layout, transfer.groups, written);
            links.entry((transfer.groups, written)).or_insert_with(of_group);
        }
        let compression = what_if.map_or(1.0, WhatIf::compression);
        let secs = |transfer: &Transfer, bytes: f64| {
            let (written, messages) = self.messages(transfer).unzip();
            let Some(links) = links.get(&(transfer.groups, written)) else { return 0.0 };
            let sent = if is_of_gradients(transfer) || is_of_sums(transfer) {
                bytes / compression
            } else {
                bytes
            };
            let Some(messages) = messages else {
                return seconds(&links[0], transfer.kind, sent);
            };
            let part = sent / transfer.whole_bytes.max(1) as f64;
            let of = |(one, fabric): (&Communication, &Fabric)| {
                one.count as f64 * seconds(fabric, one.kind, part * one.whole_bytes as f64)
            };
            messages.iter().zip(links).map(of).sum()
        };
        let bucket_bytes = |transfer: &Transfer| match self.messages(transfer) {
            // No compiler combines permutes that depend on each other.
            Some((Algorithm::Ring | Algorithm::Tree, _)) => 0.0,
            Some((Algorithm::Hierarchical, _)) => {
                flags::bucket_bytes(chip, "reduce_scatter") as f64
            }
            None => flags::bucket_bytes(chip, transfer.kind) as f64,
        };
        let encode_secs =
            what_if.map_or(0.0, |what_if| what_if.encode_secs(self.gradient_bytes() as f64));
        let secs = |transfer: &Transfer, bytes: f64| (secs(transfer, bytes), 0.0);
        self.simulate(compute_secs + encode_secs, bucket_bytes, secs)
    }

    /// What a sum is written as, if it is.
    fn messages(&self, transfer: &Transfer) -> Option<(Algorithm, Vec<Communication>)> {
        if self.sums == ReplicaSums::Direct {
            return None;
        }
        let Transfer { kind, dtype, groups, whole_bytes, summed_elements, .. } = *transfer;
        let group_size = groups.size(&self.mesh).ok()?;
        let all_reduce = Communication {
            kind,
            dtype,
            groups,
            group_size,
            num_groups: self.mesh.num_replicas() / group_size,
            bytes: whole_bytes,
            whole_bytes,
            count: 1,
            is_backward: true,
            num_senders: group_size,
            summed_elements,
        };
        let choose = |sum| self.sums.algorithm(sum);
        written_all_reduce(&all_reduce, &self.mesh, &choose, self.replicas_per_host)
    }

    /// The links of a group, or those that each of the messages of a written sum over it takes.
    fn links(
        &self,
        layout: &DeviceLayout,
        groups: Groups,
        written: Option<Algorithm>,
    ) -> Vec<Fabric> {
        let group = first_group(&self.mesh, groups);
        let size = || rewrites::replicas_of_host(&self.mesh, groups.axes(), self.replicas_per_host);
        match written {
            None | Some(Algorithm::Ring) => vec![layout.fabric(&group)],
            // A subtree of each level.
            Some(Algorithm::Tree) => {
                let sizes = std::iter::successors(Some(2), |size| Some(2 * size));
                let sizes = sizes.take_while(|size| *size < 2 * group.len());
                sizes.map(|size| layout.fabric(&group[..size.min(group.len())])).collect()
            }
            Some(Algorithm::Hierarchical) => size().map_or(vec![], |size| {
                let of = |part: Groups| layout.fabric(&first_group(&self.mesh, part));
                let inside = of(Groups::contiguous(groups.axes(), size));
                let across = of(Groups::strided(groups.axes(), size));
                vec![inside.clone(), across, inside]
            }),
        }
    }

    /// Predicted seconds of what replicas along `tensor` exchange in the layers of a step, if they
    /// are on several hosts or slices, and the number of these.
    pub fn distant_layers(&self, chip: &Chip, layout: &DeviceLayout) -> Option<(f64, usize)> {
        let fabric = layout.fabric(&first_group(&self.mesh, Axis::Tensor.into()));
        let transfers = self.transfers.iter().filter(|transfer| is_of_layer(transfer));
        let of_layers = Self { transfers: transfers.copied().collect(), ..*self };
        let secs = of_layers.on(chip, layout, 0.0, None).communication_secs;
        (fabric.num_groups > 1).then_some((secs, fabric.num_groups))
    }

    /// Predicted time for a known compute time, with all collectives on the same fabric: buckets of
    /// at least `bucket_bytes` wait for their last gradient and for the previous bucket.
    pub fn overlapped(&self, compute_secs: f64, fabric: &Fabric, bucket_bytes: f64) -> StepTime {
        let secs = |transfer: &Transfer, bytes: f64| (seconds(fabric, transfer.kind, bytes), 0.0);
        self.simulate(compute_secs, |_: &Transfer| bucket_bytes, secs)
    }

    /// Predicted time for a known compute time, with collectives between processes as they were
    /// measured, in the backend's own form. Several at once use the links one after the other, but
    /// their latencies, the time of the smallest size, overlap. `None` if a collective, or groups
    /// of its size, were not measured.
    pub fn measured(&self, compute_secs: f64, fabric: &MeasuredFabric) -> Option<StepTime> {
        let of = |transfer: &Transfer| {
            let is_all = transfer.groups.size(&self.mesh) == Ok(fabric.num_devices);
            fabric.direct(transfer.kind).filter(|_| is_all)
        };
        let moves = |transfer: &&Transfer| transfer.groups.size(&self.mesh) != Ok(1);
        if !self.transfers.iter().filter(moves).all(|transfer| of(transfer).is_some()) {
            return None;
        }
        let secs = |transfer: &Transfer, bytes: f64| {
            of(transfer).map_or((0.0, 0.0), |series| {
                let secs = series.secs(bytes);
                let latency = series.points.first().map_or(0.0, |point| point.secs.min(secs));
                (secs - latency, latency)
            })
        };
        Some(self.simulate(compute_secs, |_: &Transfer| 0.0, secs))
    }

    /// Runs the collectives one after the other, as buckets of the same kind over the same groups.
    fn simulate(
        &self,
        compute_secs: f64,
        bucket_bytes: impl Fn(&Transfer) -> f64,
        secs: impl Fn(&Transfer, f64) -> (f64, f64),
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
                let of = |t: &Transfer| (t.kind, t.groups, self.messages(t).is_some());
                of(&bucket.last) == of(&transfer)
            };
            let at = buckets.iter().position(is_same).unwrap_or_else(|| {
                buckets.push(Bucket { last: transfer, bytes: 0.0 });
                buckets.len() - 1
            });
            let bucket = &mut buckets[at];
            let needed = bucket.last.needed.min(transfer.needed);
            bucket.last = Transfer { needed, ..transfer };
            bucket.bytes += transfer.whole_bytes as f64;
            if bucket.bytes >= bucket_bytes(&transfer) {
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

/// `true` for the sums of gradients: with a narrow dtype an all_to_all, whose parts each replica
/// adds.
fn is_of_gradients(transfer: &Transfer) -> bool {
    match transfer.kind {
        "all_reduce" | "reduce_scatter" => !is_of_activations(transfer) && !is_of_layer(transfer),
        "all_to_all" => transfer.groups.axes().minus(Mesh::BATCH_AXES) == AxisSet::EMPTY,
        _ => false,
    }
}

/// `true` for an all_gather of sums of gradients.
fn is_of_sums(transfer: &Transfer) -> bool {
    transfer.kind == "all_gather" && transfer.groups.axes().contains(Axis::Data)
}

/// A step's largest sum over all replicas of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AllReduced {
    /// The groups.
    pub groups: Groups,
    /// `all_reduce`, or `all_to_all` where another dtype is sent than added.
    pub kind: &'static str,
    /// Bytes of all such sums in a step.
    pub bytes: u64,
    /// The algorithm that stands in the program.
    pub written: Option<Algorithm>,
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
    /// Seconds for which a collective of so many bytes occupies the links, and seconds from then to
    /// its end.
    secs: F,
}

impl<F: Fn(&Transfer, f64) -> (f64, f64)> Queue<F> {
    fn run(&mut self, bucket: &Bucket) {
        let (on_links, after) = (self.secs)(&bucket.last, bucket.bytes);
        let free_at = &mut self.free_at[usize::from(!is_of_layer(&bucket.last))];
        let Transfer { ready, depth, .. } = bucket.last;
        // Where latencies overlap, one that depends on no other collective is there before
        // compute waits for any.
        let ready_at = match depth {
            0 if after > 0.0 => self.compute.begins_to_wait_at(ready),
            _ => self.compute.reaches(ready),
        };
        *free_at = free_at.max(ready_at) + on_links;
        self.compute.waits_at(bucket.last.needed, *free_at + after);
        self.busy_secs += on_links + after;
    }
}

/// The replicas of the first of the groups. The others are in corresponding places.
pub(crate) fn first_group(mesh: &Mesh, groups: Groups) -> Vec<usize> {
    groups.list(mesh).ok().and_then(|groups| groups.into_iter().next()).unwrap_or_default()
}

/// An all_reduce over `data`; the step needs its result at the end.
fn reduced(whole_bytes: u64, ready: f64) -> Transfer {
    Transfer {
        kind: "all_reduce",
        dtype: DType::F32,
        groups: Axis::Data.into(),
        whole_bytes,
        summed_elements: whole_bytes / 4,
        ready,
        needed: 1.0,
        depth: 0,
    }
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

    /// When this fraction of the compute is done, and what it waits for there has come.
    fn reaches(&self, progress: f64) -> f64 {
        self.after(progress, |wait| wait <= progress)
    }

    /// When this fraction of the compute is done.
    fn begins_to_wait_at(&self, progress: f64) -> f64 {
        self.after(progress, |wait| wait < progress)
    }

    fn after(&self, progress: f64, is_before: impl Fn(f64) -> bool) -> f64 {
        let (mut now, mut done) = (0.0f64, 0.0);
        for (at, until) in self.waits.iter().take_while(|wait| is_before(wait.0)) {
            now = (now + (at - done) * self.secs).max(*until);
            done = *at;
        }
        now + (progress - done) * self.secs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::cost::{
        CollectiveSpan, DIRECT, Group, MeasuredCollective, MeasuredPoint, Wire,
    };

    fn timeline(transfers: &[Transfer]) -> Timeline {
        Timeline::new(Mesh::data(2), transfers.to_vec())
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

    /// On links that were measured between two processes: 0.25 s for any message, and 1 ns a byte.
    #[test]
    fn measured_latencies_overlap_and_bytes_do_not() {
        let point = |bytes: u64| MeasuredPoint {
            bytes,
            secs: if bytes == 1024 { 0.25 } else { 0.25 + 1e-9 * bytes as f64 },
            busy: None,
        };
        let series = |algorithm: &str, points: &[MeasuredPoint]| MeasuredCollective {
            kind: "all_reduce".into(),
            algorithm: algorithm.into(),
            span: CollectiveSpan::All,
            fit: None,
            points: points.to_vec(),
        };
        // The other algorithm's are faster, and not what the backend does by itself.
        let ring = MeasuredPoint { bytes: 1024, secs: 1e-9, busy: None };
        let direct = series(DIRECT, &[1024, 100_000_000].map(point));
        let collectives = vec![series("ring", &[ring]), direct];
        let fabric = MeasuredFabric { collectives, ..MeasuredFabric::new("cpu", 2, 2) };
        let exposed = |transfers: &[Transfer]| {
            timeline(transfers).measured(1.0, &fabric).map(|time| time.exposed_secs)
        };
        let is = |found: Option<f64>, expected: f64| {
            assert!((found.unwrap() - expected).abs() < 1e-9, "{found:?}: {expected}");
        };
        let bytes = 100_000_000;
        is(exposed(&[]), 0.0);
        is(exposed(&[reduced(bytes, 1.0)]), 0.35);
        is(exposed(&[reduced(bytes, 1.0), reduced(bytes, 1.0)]), 0.45);
        is(exposed(&[reduced(bytes, 0.5), reduced(bytes, 1.0)]), 0.35);
        is(exposed(&[reduced(bytes, 0.9), reduced(1024, 1.0)]), 0.25);
        let gather = Transfer { kind: "all_gather", ..reduced(bytes, 1.0) };
        assert_eq!(exposed(&[gather]), None, "it was not measured");
        let of_four = Timeline::new(Mesh::data(4), vec![reduced(bytes, 1.0)]);
        assert_eq!(of_four.measured(1.0, &fabric), None, "nor were four replicas");
    }

    #[test]
    fn compute_waits_for_a_gather_only_where_it_is_needed() {
        let wire = Wire { latency_secs: 0.0, bytes_per_sec: 1e9 };
        let fabric = Fabric::single(Group::Switch { size: 2, wire });
        // Half of it is sent: 0.1 s.
        let gather = |ready: f64, needed: f64| {
            let (kind, summed_elements) = ("all_gather", 0);
            Transfer { kind, summed_elements, needed, ..reduced(200_000_000, ready) }
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
