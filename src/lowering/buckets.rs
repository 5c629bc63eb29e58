//! Bucketing: combining the sums of a finished graph.
//!
//! The step has one sum per parameter. TPUs and GPUs keep them, since XLA's own combiner groups
//! them and overlaps them with the backward pass. On the CPU each collective is a rendezvous of
//! threads, and between processes a message with its delay, so a few large ones are fastest.

use std::collections::HashMap;

use hlo::{
    Axis, AxisSet, DType, Graph, Groups, Node, Op, Reduction, Rewriter, TensorType, ValueId,
};

/// Combines what is independent, over the same whole groups and of the same dtype into collectives
/// of up to `bucket_bytes` operand bytes, in program order: summing all_reduces into variadic
/// ones, and the all_to_alls and all_gathers of narrow and compressed sums over `data` into those
/// of joined operands. One that is larger by itself gets its own bucket.
///
/// Each element and the order in which replicas are summed stay the same, so results are equal bit
/// for bit.
pub fn group_sums(graph: &Graph, bucket_bytes: u64) -> Graph {
    let bucket_of = assign(graph, bucket_bytes);
    let mut members: HashMap<usize, Vec<usize>> = HashMap::new();
    for (node, bucket) in bucket_of.iter().enumerate() {
        if let Some(bucket) = bucket {
            members.entry(*bucket).or_default().push(node);
        }
    }
    let mut builder =
        Builder { copy: Rewriter::new(graph), bucket_of, members, producer: producers(graph) };
    // All inputs first, in order: they are the program's signature.
    for (index, node) in graph.nodes().iter().enumerate() {
        if matches!(node.op, Op::Input { .. }) {
            builder.emit(index);
        }
    }
    for index in 0..graph.nodes().len() {
        builder.emit(index);
    }
    builder.copy.finish()
}

/// What a collective can be combined with.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Kind {
    /// How elements move.
    movement: Movement,
    groups: Groups,
    /// Replicas of a group.
    group_size: usize,
    dtype: DType,
    /// Operands that are joined must vary alike.
    varying: AxisSet,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Movement {
    /// A summing all_reduce.
    Sum,
    /// An all_gather along dim 0.
    Gather,
    /// An all_to_all that cuts and joins dim 0.
    Exchange,
}

impl Kind {
    /// `None` for what is never combined. Gathers of parameters are not: their shards are along
    /// other axes than `data`, and each is needed, and held, at another time.
    fn of(graph: &Graph, node: &Node) -> Option<Self> {
        let (movement, groups) = match node.op {
            Op::AllReduce { reduction: Reduction::Sum, groups } => (Movement::Sum, groups),
            Op::AllGather { dim: 0, groups } => (Movement::Gather, groups),
            Op::AllToAll { split_dim: 0, concat_dim: 0, groups } => (Movement::Exchange, groups),
            _ => return None,
        };
        let of_gradient = node.location.is_backward && groups.axes().contains(Axis::Data);
        let TensorType { dtype, varying, .. } = *graph.ty(node.operands[0]);
        let (combines, varying) = match movement {
            Movement::Sum => (true, AxisSet::EMPTY),
            Movement::Gather | Movement::Exchange => (of_gradient, varying),
        };
        let group_size = groups.size(graph.mesh()).ok()?;
        let kind = Self { movement, groups, group_size, dtype, varying };
        (combines && groups.is_whole()).then_some(kind)
    }
}

/// The bucket of each node that is to be grouped. On the longest path to each member of a bucket
/// there are equally many such nodes, so no member depends on another and grouping creates no
/// cycle.
fn assign(graph: &Graph, bucket_bytes: u64) -> Vec<Option<usize>> {
    let mut level = vec![0usize; graph.num_values()];
    let mut open: HashMap<(Kind, usize), (usize, u64)> = HashMap::new();
    let mut num_buckets = 0;
    let mut assigned = vec![];
    for node in graph.nodes() {
        let below = node.operands.iter().map(|operand| level[operand.index()]).max().unwrap_or(0);
        let bucket = Kind::of(graph, node).map(|kind| {
            let tys = node.operands.iter().map(|operand| graph.ty(*operand));
            let bytes: u64 = tys.map(|ty| ty.num_bytes() as u64).sum();
            let (bucket, filled) = open.entry((kind, below)).or_insert((num_buckets, 0));
            if *bucket == num_buckets {
                num_buckets += 1;
            } else if *filled + bytes > bucket_bytes {
                (*bucket, *filled) = (num_buckets, 0);
                num_buckets += 1;
            }
            *filled += bytes;
            *bucket
        });
        for result in node.results() {
            level[result.index()] = below + usize::from(bucket.is_some());
        }
        assigned.push(bucket);
    }
    assigned
}

fn producers(graph: &Graph) -> Vec<usize> {
    let mut producer = vec![0; graph.num_values()];
    for (index, node) in graph.nodes().iter().enumerate() {
        for result in node.results() {
            producer[result.index()] = index;
        }
    }
    producer
}

struct Builder<'a> {
    copy: Rewriter<'a>,
    bucket_of: Vec<Option<usize>>,
    members: HashMap<usize, Vec<usize>>,
    producer: Vec<usize>,
}

impl Builder<'_> {
    /// Copies a node after the producers of its operands. For a member of a bucket, copies all
    /// members at once.
    fn emit(&mut self, target: usize) {
        // An explicit stack: a graph may be deeper than the thread's stack allows.
        let mut stack = vec![target];
        while let Some(index) = stack.last().copied() {
            let group = self.group(index);
            if group.iter().all(|node| self.is_done(*node)) {
                stack.pop();
                continue;
            }
            let needed = group.iter().flat_map(|node| &self.copy.old().nodes()[*node].operands);
            let missing: Vec<_> = needed
                .filter(|operand| self.copy.get(**operand).is_none())
                .map(|operand| self.producer[operand.index()])
                .collect();
            if missing.is_empty() {
                self.copy(&group);
                stack.pop();
            } else {
                stack.extend(missing.into_iter().rev());
            }
        }
    }

    fn group(&self, node: usize) -> Vec<usize> {
        match self.bucket_of[node] {
            Some(bucket) => self.members[&bucket].clone(),
            None => vec![node],
        }
    }

    fn is_done(&self, node: usize) -> bool {
        self.copy.get(self.copy.old().nodes()[node].result()).is_some()
    }

    /// Copies one node, or several collectives as one.
    fn copy(&mut self, group: &[usize]) {
        let old = self.copy.old();
        let [first, others @ ..] = group else { return };
        let first = &old.nodes()[*first];
        if others.is_empty() {
            return self.copy.copy(first);
        }
        let nodes: Vec<_> = group.iter().map(|node| &old.nodes()[*node]).collect();
        match Kind::of(old, first) {
            Some(Kind { movement: Movement::Gather, group_size, .. }) => {
                self.join(&nodes, 1, group_size);
            }
            Some(Kind { movement: Movement::Exchange, group_size, .. }) => {
                self.join(&nodes, group_size, group_size);
            }
            _ => {
                let operands = nodes.iter().flat_map(|node| &node.operands);
                let operands: Vec<_> = operands.map(|operand| self.copy.value(*operand)).collect();
                let new_first = self.copy.push(first, first.op.clone(), &operands);
                self.copy.set_results(nodes.iter().flat_map(|node| node.results()), new_first);
            }
        }
    }

    /// Copies collectives along dim 0 as one. The elements of an operand are `num_sent` rows, which
    /// go to one replica each, or one for all; those of a result a row from each replica. The rows
    /// of the operands are joined.
    fn join(&mut self, nodes: &[&Node], num_sent: usize, num_received: usize) {
        let old = self.copy.old();
        let [first, ..] = *nodes else { return };
        let width = |node: &Node| old.ty(node.operands[0]).num_elements() / num_sent;
        let rows: Vec<ValueId> = nodes
            .iter()
            .map(|node| {
                let reshape = Op::Reshape { dims: vec![num_sent, width(node)] };
                let operand = self.copy.value(node.operands[0]);
                self.copy.push(node, reshape, &[operand])
            })
            .collect();
        let joined = self.copy.push(first, Op::Concatenate { dim: 1 }, &rows);
        let received = self.copy.push(first, first.op.clone(), &[joined]);
        let mut start = 0;
        for node in nodes {
            let end = start + width(node);
            let slice = Op::Slice {
                start: vec![0, start],
                limit: vec![num_received, end],
                strides: vec![1, 1],
            };
            let own = self.copy.push(node, slice, &[received]);
            let reshape = Op::Reshape { dims: old.ty(node.result()).dims.clone() };
            let own = self.copy.push(node, reshape, &[own]);
            self.copy.set(node.result(), own);
            start = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo::{Literal, Mesh, Tensor, communication, interpret, trace, verify};

    fn count_all_reduces(graph: &Graph) -> usize {
        graph.nodes().iter().filter(|node| matches!(node.op, Op::AllReduce { .. })).count()
    }

    /// Two independent all_reduces, one that needs their result, and an early user of the first.
    fn example() -> Graph {
        trace(Mesh::data(2), |t| {
            let ty = TensorType::new(DType::F32, &[2]).varying(Axis::Data.into());
            let (a, b) = (t.input("a", ty.clone()), t.input("b", ty));
            let sum_a = a.all_reduce(Reduction::Sum, Axis::Data);
            let early = (sum_a * 2.0).vary(Axis::Data);
            let sum_b = (b + 1.0).all_reduce(Reduction::Sum, Axis::Data);
            let sum_early = (early * b).all_reduce(Reduction::Sum, Axis::Data);
            t.output("sum", sum_a + sum_b + sum_early);
        })
        .unwrap()
    }

    #[test]
    fn independent_all_reduces_are_combined_with_the_same_values() {
        let graph = example();
        let grouped = group_sums(&graph, u64::MAX);
        verify(&grouped).unwrap();
        assert_eq!((count_all_reduces(&graph), count_all_reduces(&grouped)), (3, 2));
        let values = |x: f32, y: f32| vec![Literal::from_slice(&[2], &[x, y]); 2];
        let inputs = [values(1.0, 2.0), values(3.0, -1.0)];
        let expected = interpret(&graph, &inputs).unwrap();
        assert_eq!(interpret(&grouped, &inputs).unwrap(), expected);
    }

    /// The sum of replicas, sent in bf16.
    fn narrow(x: Tensor<'_>) -> Tensor<'_> {
        let (sent, n) = (x.convert(DType::Bf16).all_to_all(0, 0, Axis::Data), x.dim(0) / 2);
        let [mine, theirs] =
            [0, n].map(|start| sent.slice_dim(0, start, start + n).convert(DType::F32));
        (mine + theirs).convert(DType::Bf16).all_gather(0, Axis::Data)
    }

    /// Two narrow sums, in the backward pass or not, and a gather that is not.
    fn narrow_example(in_backward: bool) -> Graph {
        trace(Mesh::data(2), |t| {
            let of = |name, dims: &[usize]| {
                let ty = TensorType::new(DType::F32, dims).varying(Axis::Data.into());
                t.input(name, ty)
            };
            let sums = || {
                let (a, b) = (narrow(of("a", &[6])), narrow(of("b", &[4, 3])));
                t.output_varying("a", a, Axis::Data.into());
                t.output_varying("b", b, Axis::Data.into());
            };
            if in_backward {
                t.in_backward(sums)
            } else {
                sums()
            }
            let other = of("c", &[2]).convert(DType::Bf16).all_gather(0, Axis::Data);
            t.output_varying("c", other, Axis::Data.into());
        })
        .unwrap()
    }

    #[test]
    fn messages_of_narrow_sums_are_joined_with_the_same_values() {
        let moves = |graph: &Graph| {
            let found = communication(graph).into_iter();
            found.map(|moved| (moved.kind, moved.count, moved.bytes)).collect::<Vec<_>>()
        };
        let graph = narrow_example(true);
        let grouped = group_sums(&graph, u64::MAX);
        verify(&grouped).unwrap();
        let expected = [("all_gather", 1, 4), ("all_gather", 1, 18), ("all_to_all", 1, 36)];
        let mut found = moves(&grouped);
        found.sort_unstable();
        assert_eq!(found, expected);
        let values = |n: usize, dims: &[usize], factor: usize| -> Vec<Literal> {
            let of = |replica: usize| {
                let values: Vec<_> = (0..n).map(|i| (i * factor + replica * 31) as f64).collect();
                Literal::from_f64(DType::F32, dims, &values)
            };
            (0..2).map(of).collect()
        };
        let inputs = [values(6, &[6], 3), values(12, &[4, 3], 5), values(2, &[2], 7)];
        assert_eq!(interpret(&grouped, &inputs).unwrap(), interpret(&graph, &inputs).unwrap());
        // A full bucket is closed.
        assert_eq!(moves(&group_sums(&graph, 1)), moves(&graph));
        // What does not sum gradients is left alone.
        let graph = narrow_example(false);
        assert_eq!(moves(&group_sums(&graph, u64::MAX)), moves(&graph));
    }

    #[test]
    fn all_reduces_over_subgroups_are_not_combined() {
        let graph = trace(Mesh::data(4), |t| {
            let ty = TensorType::new(DType::F32, &[2]).varying(Axis::Data.into());
            let pairs = Groups::contiguous(Axis::Data, 2);
            for name in ["a", "b"] {
                let sum = t.input(name, ty.clone()).all_reduce(Reduction::Sum, pairs);
                t.output_varying(name, sum, Axis::Data.into());
            }
        });
        assert_eq!(count_all_reduces(&group_sums(&graph.unwrap(), u64::MAX)), 2);
    }

    #[test]
    fn a_full_bucket_is_closed() {
        assert_eq!(count_all_reduces(&group_sums(&example(), 8)), 3);
        assert_eq!(count_all_reduces(&group_sums(&example(), 16)), 2);
    }
}
