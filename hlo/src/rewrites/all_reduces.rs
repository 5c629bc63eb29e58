//! Sums over replicas written as the messages of an algorithm.

use crate::region::inline;
use crate::rewriter::{push, rebuild_values};
use crate::tensor::Tracer;
use crate::{
    Algorithm, AxisSet, Communication, Graph, Groups, Mesh, Node, Op, Reduction, Tensor, TensorType,
};

/// Sums of fewer elements than this are better left as one op: they cost as many messages as large
/// ones.
pub const MIN_WRITTEN_ELEMENTS: usize = 1024;

/// A sum over replicas, as far as the choice of an algorithm depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaSum {
    /// Number of elements on each replica.
    pub num_elements: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Number of replicas of a group.
    pub group_size: usize,
}

/// [`write_all_reduces_by`] with one algorithm for all sums of at least [`MIN_WRITTEN_ELEMENTS`].
#[must_use]
pub fn write_all_reduces(graph: &Graph, algorithm: Algorithm, replicas_per_host: usize) -> Graph {
    let choose = |sum: ReplicaSum| (sum.num_elements >= MIN_WRITTEN_ELEMENTS).then_some(algorithm);
    write_all_reduces_by(graph, &choose, replicas_per_host)
}

/// Writes each sum over whole groups as the collectives of the algorithm that `choose` returns,
/// with the replicas numbered so that each host has `replicas_per_host` neighbors. All replicas of
/// a group get the same bits, of a sum that is taken in the algorithm's order.
///
/// | | steps | elements that a replica sends, for n over p replicas |
/// |---|---|---|
/// | ring | 2 (p - 1) permutes of a p-th | 2 (p - 1)/p n |
/// | tree | 2 ceil(log2 p) permutes of all: up a binomial tree and down | up to ceil(log2 p) n down, n up |
/// | hierarchical | reduce_scatter in each host, all_reduce of the shards between hosts, all_gather in each host | |
///
/// Unchanged are sums for which `choose` returns `None`, and with the hierarchical algorithm groups
/// that have a replica on each host, or not as many on each.
#[must_use]
pub fn write_all_reduces_by(
    graph: &Graph,
    choose: &dyn Fn(ReplicaSum) -> Option<Algorithm>,
    replicas_per_host: usize,
) -> Graph {
    let mesh = *graph.mesh();
    rebuild_values(graph, |new, node, operands| {
        let copy = |new: &mut Graph, op: Op| {
            let first = push(new, node, op, operands);
            new.node_of(first).results().collect()
        };
        if let Some(op) =
            node.op.with_regions(|region| write_all_reduces_by(region, choose, replicas_per_host))
        {
            return Some(copy(new, op));
        }
        let types: Vec<_> = operands.iter().map(|operand| new.ty(*operand).clone()).collect();
        let Some(body) = messages(node, &types, &mesh, choose, replicas_per_host) else {
            return Some(copy(new, node.op.clone()));
        };
        Some(inline(new, &body, operands, node.location.is_backward))
    })
}

/// The algorithm as which [`write_all_reduces_by`] writes an all_reduce, and its collectives;
/// `None` if it stays. Those of a ring and of a level of a tree stand once, with their count: a
/// program need not be written to know what it sends.
pub fn written_all_reduce(
    all_reduce: &Communication,
    mesh: &Mesh,
    choose: &dyn Fn(ReplicaSum) -> Option<Algorithm>,
    replicas_per_host: usize,
) -> Option<(Algorithm, Vec<Communication>)> {
    let Communication { groups, group_size: p, summed_elements: n, bytes, count, .. } = *all_reduce;
    if n == 0 || p == 1 {
        return None;
    }
    let sum = ReplicaSum { num_elements: n as usize, bytes: bytes as usize, group_size: p };
    let algorithm = choose(sum)?;
    let element_bytes = bytes / n;
    let permute = |elements: u64, num_senders: usize, times: u64| {
        let bytes = elements * element_bytes;
        Communication {
            kind: "collective_permute",
            bytes,
            whole_bytes: bytes,
            count: count.saturating_mul(times),
            num_senders,
            summed_elements: 0,
            ..all_reduce.clone()
        }
    };
    let messages = match algorithm {
        Algorithm::Ring => vec![permute(n.div_ceil(p as u64), p, 2 * (p as u64 - 1))],
        Algorithm::Tree => {
            distances(p).map(|distance| permute(n, pairs_apart(p, distance).count(), 2)).collect()
        }
        Algorithm::Hierarchical => {
            let size = replicas_of_host(mesh, groups.axes(), replicas_per_host)?;
            let whole = n.next_multiple_of(size as u64) * element_bytes;
            let shard = whole / size as u64;
            let of = |kind, groups, group_size, bytes, whole_bytes| Communication {
                kind,
                groups,
                group_size,
                num_groups: mesh.num_replicas() / group_size,
                bytes,
                whole_bytes,
                num_senders: group_size,
                summed_elements: 0,
                ..all_reduce.clone()
            };
            let inside = Groups::contiguous(groups.axes(), size);
            let across = Groups::strided(groups.axes(), size);
            vec![
                of("reduce_scatter", inside, size, whole, whole),
                of("all_reduce", across, p / size, shard, shard),
                of("all_gather", inside, size, shard, whole),
            ]
        }
    };
    Some((algorithm, messages))
}

/// How far apart the replicas of a pair are, by the level of a binomial tree over `p`.
fn distances(p: usize) -> impl DoubleEndedIterator<Item = usize> + Clone {
    let depth = p.next_power_of_two().trailing_zeros();
    (0..depth).map(|level| 1 << level)
}

/// The pairs that a level of a binomial tree over `p` joins.
fn pairs_apart(p: usize, distance: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..p).step_by(2 * distance).map(move |i| (i, i + distance)).filter(move |(_, j)| *j < p)
}

/// The graph of an all_reduce's messages, from its operands to its results; `None` if it stays.
fn messages(
    node: &Node,
    types: &[TensorType],
    mesh: &Mesh,
    choose: &dyn Fn(ReplicaSum) -> Option<Algorithm>,
    replicas_per_host: usize,
) -> Option<Graph> {
    let Op::AllReduce { reduction: Reduction::Sum, groups } = node.op else { return None };
    let axes = groups.axes();
    let group_size = mesh.group_size(axes);
    if !groups.is_whole() || group_size == 1 {
        return None;
    }
    let num_elements: usize = types.iter().map(TensorType::num_elements).sum();
    let bytes = types.iter().map(|ty| ty.num_elements() * ty.dtype.size_bytes()).sum();
    let algorithm = choose(ReplicaSum { num_elements, bytes, group_size })?;
    let per_host = match algorithm {
        Algorithm::Hierarchical => replicas_of_host(mesh, axes, replicas_per_host)?,
        Algorithm::Ring | Algorithm::Tree => 1,
    };
    let t = Tracer::new(*mesh);
    t.at(node.location, || {
        let inputs = t.region_inputs(types, &vec![true; types.len()]);
        let flat: Vec<_> = inputs.iter().map(|x| x.reshape(&[x.num_elements()])).collect();
        let all = if flat.len() == 1 { flat[0] } else { flat[0].concatenate(&flat[1..], 0) };
        let sum = match algorithm {
            Algorithm::Ring => ring(all, axes),
            Algorithm::Tree => tree(all, axes),
            Algorithm::Hierarchical => hierarchical(all, axes, per_host),
        };
        let mut start = 0;
        for (i, ty) in types.iter().enumerate() {
            let end = start + ty.num_elements();
            let part = if flat.len() == 1 { sum } else { sum.slice_dim(0, start, end) };
            t.output_varying(format!("output.{i}"), part.reshape(&ty.dims), AxisSet::ALL);
            start = end;
        }
    });
    t.finish().ok()
}

/// The number of neighbors in a group along `axes` that share a host; `None` if it is not the same
/// everywhere, or 1.
pub fn replicas_of_host(mesh: &Mesh, axes: AxisSet, replicas_per_host: usize) -> Option<usize> {
    let host = |replica: &usize| replica / replicas_per_host.max(1);
    let groups = mesh.groups(axes);
    let size = groups[0].iter().take_while(|replica| host(replica) == host(&groups[0][0])).count();
    let is_even = groups.iter().all(|group| {
        let mut hosts: Vec<_> = group.chunks(size).map(|chunk| host(&chunk[0])).collect();
        let is_on_one = group.chunks(size).all(|chunk| {
            chunk.len() == size && chunk.iter().all(|replica| host(replica) == host(&chunk[0]))
        });
        hosts.sort_unstable();
        let num_hosts = hosts.len();
        hosts.dedup();
        is_on_one && hosts.len() == num_hosts
    });
    (is_even && size > 1).then_some(size)
}

/// Parts with another one at an index.
#[track_caller]
fn written<'t>(parts: Tensor<'t>, part: Tensor<'t>, index: Tensor<'t>) -> Tensor<'t> {
    let zero = index.full_like(0.0);
    parts.dynamic_update_slice(part.reshape(&[1, part.dim(0)]), &[index, zero])
}

/// Each replica sends a part to the next, which adds its own: after p - 1 steps replica i has the
/// sum of part i + 1. The sums then go around likewise. Patarasuk and Yuan, "Bandwidth optimal
/// all-reduce algorithms for clusters of workstations" (2009).
#[track_caller]
fn ring(x: Tensor<'_>, axes: AxisSet) -> Tensor<'_> {
    let (t, n) = (x.tracer(), x.dim(0));
    let p = t.mesh().group_size(axes);
    let part = n.div_ceil(p);
    let parts = x.pad_end(0, part * p).reshape(&[p, part]);
    let own = t.replica_id(axes);
    let pairs: Vec<_> = (0..p).map(|i| (i, (i + 1) % p)).collect();
    let sum = (0..p - 1).fold(parts.index_leading(own), |sum, step| {
        let received = sum.collective_permute(&pairs, axes);
        received + parts.index_leading((own + (2 * p - 1 - step) as f64).remainder(p as f64))
    });
    let start = written(parts, sum, (own + 1.0).remainder(p as f64));
    let (all, _) = (0..p - 1).fold((start, sum), |(all, sum), step| {
        let received = sum.collective_permute(&pairs, axes);
        (written(all, received, (own + (p - step) as f64).remainder(p as f64)), received)
    });
    all.reshape(&[part * p]).slice_dim(0, 0, n).replicated(axes)
}

/// Sums go up a binomial tree to the first replica of a group, and the whole sum goes down it.
#[track_caller]
fn tree(x: Tensor<'_>, axes: AxisSet) -> Tensor<'_> {
    let t = x.tracer();
    let p = t.mesh().group_size(axes);
    let own = t.replica_id(axes);
    let pairs = |distance: usize| pairs_apart(p, distance).collect::<Vec<_>>();
    // Whether this replica is the `first` or the second of one of the pairs.
    let is_in = |distance: usize, first: bool| {
        let pairs = pairs_apart(p, distance).map(|(i, j)| if first { i } else { j });
        let found = pairs.map(|i| own.equal(i as f64)).reduce(|a, b| a.or(b));
        found.unwrap_or_else(|| own.less(0.0))
    };
    let up = distances(p).fold(x, |sum, distance| {
        let back: Vec<_> = pairs(distance).into_iter().map(|(i, j)| (j, i)).collect();
        let received = sum.collective_permute(&back, axes);
        is_in(distance, true).select(sum + received, sum)
    });
    let down = distances(p).rev().fold(up, |sum, distance| {
        let received = sum.collective_permute(&pairs(distance), axes);
        is_in(distance, false).select(received, sum)
    });
    down.replicated(axes)
}

/// A reduce_scatter among the replicas of a host, an all_reduce of the shards among the hosts, an
/// all_gather among the replicas of a host.
#[track_caller]
fn hierarchical(x: Tensor<'_>, axes: AxisSet, per_host: usize) -> Tensor<'_> {
    let n = x.dim(0);
    let [inside, across] = [Groups::contiguous(axes, per_host), Groups::strided(axes, per_host)];
    let shard = x.pad_end(0, n.next_multiple_of(per_host)).reduce_scatter(0, inside);
    let sum = shard.all_reduce(Reduction::Sum, across);
    sum.all_gather(0, inside).slice_dim(0, 0, n).replicated(axes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::rewrites::ReplicaSums;
    use crate::{Axis, DType, Literal, communication, interpret, trace};

    /// Two tensors in one all_reduce, one in a loop, and one too small to be written.
    fn summed(mesh: Mesh, axes: AxisSet, n: usize, dtype: DType) -> Graph {
        let graph = trace(mesh, |t| {
            let ty = TensorType::new(dtype, &[n]).varying(AxisSet::ALL);
            let x = t.input("x", ty);
            let pair = t.all_reduce(&[x, (x * 2.0).reshape(&[n, 1])], Reduction::Sum, axes);
            t.output_varying("one", pair[0], AxisSet::ALL);
            t.output_varying("two", pair[1], AxisSet::ALL);
            let looped =
                t.fori_loop(2, &[x], |_, x| vec![x[0].all_reduce(Reduction::Sum, axes).vary(axes)]);
            t.output_varying("looped", looped[0], AxisSet::ALL);
            let few = x.slice_dim(0, 0, 3).all_reduce(Reduction::Sum, axes);
            t.output_varying("few", few, AxisSet::ALL);
        });
        graph.unwrap()
    }

    fn values(mesh: Mesh, n: usize, dtype: DType, scale: f64) -> Vec<Literal> {
        let value = |replica: usize, i: usize| ((i * 37 + replica * 101) % 211) as f64 * scale;
        let of = |replica| (0..n).map(|i| value(replica, i)).collect::<Vec<_>>();
        (0..mesh.num_replicas()).map(|r| Literal::from_f64(dtype, &[n], &of(r))).collect()
    }

    fn meshes() -> Vec<(Mesh, AxisSet)> {
        use Axis::{Data, Fsdp, Pipeline, Tensor};
        let mesh = |sizes: &[(Axis, usize)]| Mesh::new(sizes);
        vec![
            (mesh(&[(Data, 2)]), Data.into()),
            (mesh(&[(Data, 3)]), Data.into()),
            (mesh(&[(Data, 8)]), Data.into()),
            (mesh(&[(Data, 7)]), Data.into()),
            (mesh(&[(Data, 4), (Tensor, 2)]), Data.into()),
            (mesh(&[(Data, 2), (Fsdp, 4)]), AxisSet::of(&[Data, Fsdp])),
            (mesh(&[(Data, 2), (Fsdp, 2), (Tensor, 2)]), AxisSet::of(&[Data, Tensor])),
            (mesh(&[(Pipeline, 2), (Data, 3)]), AxisSet::of(&[Pipeline, Data])),
        ]
    }

    #[test]
    fn whole_numbers_have_the_same_sum_by_every_algorithm() {
        for ((mesh, axes), n) in meshes().into_iter().flat_map(|m| [1024, 1031].map(|n| (m, n))) {
            let direct = summed(mesh, axes, n, DType::F32);
            let xs = [values(mesh, n, DType::F32, 1.0)];
            let expected = interpret(&direct, &xs).unwrap();
            for algorithm in Algorithm::ALL {
                for per_host in [1, 2, 4] {
                    let graph = write_all_reduces(&direct, algorithm, per_host);
                    crate::verify(&graph).unwrap();
                    let found = interpret(&graph, &xs).unwrap();
                    assert_eq!(found, expected, "{algorithm} on {mesh:?} over {axes}, n = {n}");
                }
            }
        }
    }

    /// The interpreter refuses `Replicated` of values that are not, so replicas have equal bits.
    #[test]
    fn other_numbers_have_the_same_sum_but_for_rounding() {
        for (mesh, axes) in meshes() {
            let direct = summed(mesh, axes, 1024, DType::F64);
            let xs = [values(mesh, 1024, DType::F64, 0.1)];
            let expected = interpret(&direct, &xs).unwrap();
            for algorithm in Algorithm::ALL {
                let found = interpret(&write_all_reduces(&direct, algorithm, 2), &xs).unwrap();
                for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                    for (a, b) in found.to_f64().iter().zip(expected.to_f64()) {
                        assert!((a - b).abs() <= 1e-12 * b.abs(), "{algorithm}: {a} {b}");
                    }
                }
            }
        }
    }

    #[test]
    fn each_algorithm_sends_what_its_formula_says() {
        let (mesh, n) = (Mesh::data(8), 1024u64);
        let graph = trace(mesh, |t| {
            let x = t.input("x", TensorType::new(DType::F32, &[1024]).varying(Axis::Data.into()));
            t.output("sum", x.all_reduce(Reduction::Sum, Axis::Data));
        });
        let graph = graph.unwrap();
        let sent = |algorithm| {
            let found = communication(&write_all_reduces(&graph, algorithm, 4));
            let calls: u64 = found.iter().map(|c| c.count).sum();
            let bytes: u64 = found.iter().map(|c| c.total_bytes_on_wire()).sum();
            (calls, bytes)
        };
        assert_eq!(sent(Algorithm::Ring), (14, 2 * 7 * 4 * n / 8));
        assert_eq!(sent(Algorithm::Tree).0, 6);
        // 3/4 n each in the host, and 2 (1/2) of a quarter between the two.
        let [inside, across] = [2 * 3 * n, n];
        assert_eq!(sent(Algorithm::Hierarchical), (3, inside + across));
        let found = communication(&write_all_reduces(&graph, Algorithm::Hierarchical, 4));
        let across = found.iter().find(|c| c.kind == "all_reduce").unwrap();
        assert_eq!((across.groups, across.bytes), (Groups::strided(Axis::Data, 4), n));
    }

    /// By kind, groups, bytes and senders: the number of calls.
    fn calls(found: &[Communication]) -> BTreeMap<String, u64> {
        let mut calls = BTreeMap::new();
        for one in found {
            let Communication { kind, groups, bytes, whole_bytes, num_senders, .. } = one;
            let what = format!("{kind} {groups:?} {bytes} {whole_bytes} {num_senders}");
            *calls.entry(what).or_default() += one.count;
        }
        calls
    }

    #[test]
    fn what_is_said_to_be_written_is_written() {
        for ((mesh, axes), n) in meshes().into_iter().flat_map(|m| [1024, 1031].map(|n| (m, n))) {
            let direct = summed(mesh, axes, n, DType::F32);
            for (algorithm, per_host) in
                Algorithm::ALL.into_iter().flat_map(|a| [1, 2, 4].map(|per_host| (a, per_host)))
            {
                let found = communication(&write_all_reduces(&direct, algorithm, per_host));
                let choose = |sum| ReplicaSums::By(algorithm).algorithm(sum);
                let said = communication(&direct).into_iter().flat_map(|one| {
                    let written = written_all_reduce(&one, &mesh, &choose, per_host);
                    written.map_or_else(|| vec![one], |(_, messages)| messages)
                });
                let said: Vec<_> = said.collect();
                assert_eq!(calls(&said), calls(&found), "{algorithm} {mesh:?} {axes} {per_host}");
            }
        }
    }

    #[test]
    fn replicas_of_a_host_are_neighbors_in_their_group() {
        let mesh = Mesh::new(&[(Axis::Data, 4), (Axis::Tensor, 2)]);
        let of = |axis: Axis, per_host| replicas_of_host(&mesh, axis.into(), per_host);
        assert_eq!((of(Axis::Data, 4), of(Axis::Tensor, 4)), (Some(2), Some(2)));
        assert_eq!((of(Axis::Data, 2), of(Axis::Tensor, 2)), (None, Some(2)));
        assert_eq!(of(Axis::Data, 8), Some(4));
        assert_eq!(of(Axis::Data, 3), None, "hosts with one and with two of a group");
    }
}
