//! Bucketing: combining the all_reduces of a finished graph.
//!
//! The step has one all_reduce per parameter. TPUs and GPUs keep them, since XLA's own combiner
//! groups them and overlaps them with the backward pass. On the CPU each collective is a rendezvous
//! of threads, so a few variadic ones are fastest.

use std::collections::HashMap;

use hlo::{DType, Graph, Groups, Op, Reduction, Rewriter};

/// Combines independent summing all_reduces over the same whole groups and of the same dtype into
/// variadic ones of up to `bucket_bytes` operand bytes, in program order. One that is larger by
/// itself gets its own bucket.
///
/// Each element and the order in which replicas are summed stay the same, so results are equal bit
/// for bit.
pub fn group_all_reduces(graph: &Graph, bucket_bytes: u64) -> Graph {
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

/// The bucket of each node that is an all_reduce to be grouped. On the longest path to each member
/// of a bucket there are equally many such nodes, so no member depends on another and grouping
/// creates no cycle.
fn assign(graph: &Graph, bucket_bytes: u64) -> Vec<Option<usize>> {
    let mut level = vec![0usize; graph.num_values()];
    let mut open: HashMap<(Groups, DType, usize), (usize, u64)> = HashMap::new();
    let mut num_buckets = 0;
    let mut assigned = vec![];
    for node in graph.nodes() {
        let below = node.operands.iter().map(|operand| level[operand.index()]).max().unwrap_or(0);
        let bucket = match &node.op {
            Op::AllReduce { reduction: Reduction::Sum, groups } if groups.is_whole() => {
                let tys = || node.operands.iter().map(|operand| graph.ty(*operand));
                let bytes: u64 = tys().map(|ty| ty.num_bytes() as u64).sum();
                let key = (*groups, graph.ty(node.operands[0]).dtype, below);
                let (bucket, filled) = open.entry(key).or_insert((num_buckets, 0));
                if *bucket == num_buckets {
                    num_buckets += 1;
                } else if *filled + bytes > bucket_bytes {
                    (*bucket, *filled) = (num_buckets, 0);
                    num_buckets += 1;
                }
                *filled += bytes;
                Some(*bucket)
            }
            _ => None,
        };
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

    /// Copies one node, or several all_reduces as a variadic one.
    fn copy(&mut self, group: &[usize]) {
        let old = self.copy.old();
        let [first, others @ ..] = group else { return };
        let first = &old.nodes()[*first];
        if others.is_empty() {
            return self.copy.copy(first);
        }
        let nodes: Vec<_> = group.iter().map(|node| &old.nodes()[*node]).collect();
        let operands = nodes.iter().flat_map(|node| &node.operands);
        let operands: Vec<_> = operands.map(|operand| self.copy.value(*operand)).collect();
        let new_first = self.copy.push(first, first.op.clone(), &operands);
        self.copy.set_results(nodes.iter().flat_map(|node| node.results()), new_first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo::{Axis, Literal, Mesh, TensorType, interpret, trace, verify};

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
        let grouped = group_all_reduces(&graph, u64::MAX);
        verify(&grouped).unwrap();
        assert_eq!((count_all_reduces(&graph), count_all_reduces(&grouped)), (3, 2));
        let values = |x: f32, y: f32| vec![Literal::from_slice(&[2], &[x, y]); 2];
        let inputs = [values(1.0, 2.0), values(3.0, -1.0)];
        let expected = interpret(&graph, &inputs).unwrap();
        assert_eq!(interpret(&grouped, &inputs).unwrap(), expected);
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
        assert_eq!(count_all_reduces(&group_all_reduces(&graph.unwrap(), u64::MAX)), 2);
    }

    #[test]
    fn a_full_bucket_is_closed() {
        assert_eq!(count_all_reduces(&group_all_reduces(&example(), 8)), 3);
        assert_eq!(count_all_reduces(&group_all_reduces(&example(), 16)), 2);
    }
}
