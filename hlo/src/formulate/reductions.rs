//! Long reductions in stages.

use std::collections::HashSet;

use super::everywhere;
use crate::rebuild::push;
use crate::recompute::is_elementwise;
use crate::{Graph, Op, TensorType, ValueId};

/// Reductions of fewer elements than this are left alone: another launch costs more than it saves.
const MIN_REDUCED: usize = 1 << 14;
/// Neighbours that are reduced side by side, enough for a processor's widest registers.
const MIN_LANES: usize = 8;
/// Lanes from which on longer rows gain nothing.
const MANY_LANES: usize = 64;
/// A reduction into which more elementwise ops than this are fused gets groups of a quarter: the loop over a
/// group is unrolled, with all of them in it. Measured, updates of parameters took a third of the time.
const MAX_SIMPLE_OPS: usize = 4;

/// Each reduction of a whole large tensor to one number in stages: first groups of at most `max_group` elements
/// along one of its dims, many groups side by side; then, while it is large, what is left. For a backend that
/// makes windows of longer reductions and computes these one element after the other. Where no reduced dim
/// has such a divisor, it stays as it is.
///
/// Sums are added up in another order than before, which is the same on every replica and in every run.
pub fn stage_reductions(graph: &Graph, max_group: usize) -> Graph {
    everywhere(graph, &|new, node, operands, result| {
        let Op::Reduce { reduction, dims } = &node.op else { return None };
        if result.rank() > 0 {
            return None;
        }
        let mut x = operands[0];
        while new.ty(x).num_elements() >= MIN_REDUCED {
            let max_group = if is_simple(new, x) { max_group } else { max_group / 4 };
            let ty = new.ty(x).clone();
            let split = dims.iter().filter_map(|dim| Split::of(&ty, *dim, max_group));
            let Some(split) = split.max_by_key(|split| (split.group, split.lanes)) else { break };
            let (grouped, axis) = split.dims(&ty);
            x = push(new, node, Op::Reshape { dims: grouped }, &[x]);
            x = push(new, node, Op::Reduce { reduction: *reduction, dims: vec![axis] }, &[x]);
            // Or the stages would be simplified to one again.
            x = push(new, node, Op::FusionBarrier, &[x]);
        }
        Some(push(new, node, node.op.clone(), &[x]))
    })
}

/// Does a value follow by few elementwise ops from what stands in memory?
fn is_simple(graph: &Graph, value: ValueId) -> bool {
    let mut seen = HashSet::new();
    let mut num_ops = 0;
    let mut left = vec![value];
    while let Some(value) = left.pop() {
        let node = graph.node_of(value);
        if !is_elementwise(&node.op) || matches!(node.op, Op::FusionBarrier) || !seen.insert(value)
        {
            continue;
        }
        num_ops += usize::from(!matches!(node.op, Op::BroadcastInDim { .. } | Op::Reshape { .. }));
        if num_ops > MAX_SIMPLE_OPS {
            return false;
        }
        left.extend(&node.operands);
    }
    true
}

/// A dim that is read as two, one of which is a group.
struct Split {
    dim: usize,
    /// Elements of a group.
    group: usize,
    /// Neighbours in memory that are reduced alike.
    lanes: usize,
    /// Are a group's elements next to each other along the dim, or evenly spread?
    is_inner: bool,
}

impl Split {
    /// The largest group along a dim that leaves enough lanes.
    fn of(ty: &TensorType, dim: usize, max_group: usize) -> Option<Self> {
        let size = ty.dims[dim];
        let after: usize = ty.dims[dim + 1..].iter().product();
        let is_inner = after >= MANY_LANES;
        (2..=max_group.min(size)).rev().filter(|group| size.is_multiple_of(*group)).find_map(
            |group| {
                let lanes = if is_inner { after } else { size / group * after };
                (lanes >= MIN_LANES).then_some(Self { dim, group, lanes, is_inner })
            },
        )
    }

    /// The dims with the group as one of them, and which it is.
    fn dims(&self, ty: &TensorType) -> (Vec<usize>, usize) {
        let num_groups = ty.dims[self.dim] / self.group;
        let (pair, axis) = match self.is_inner {
            true => ([num_groups, self.group], self.dim + 1),
            false => ([self.group, num_groups], self.dim),
        };
        let mut dims = ty.dims.clone();
        dims.splice(self.dim..=self.dim, pair);
        (dims, axis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Literal, Mesh, Node, Reduction, Tensor, interpret, trace};

    fn reduce(dims: &[usize], reduction: Reduction, over: &[usize]) -> Graph {
        let ty = TensorType::new(DType::F32, dims);
        let graph = trace(Mesh::SINGLE, |t| {
            t.output("y", t.input("x", ty).reduce(reduction, over));
        });
        graph.unwrap()
    }

    /// What the reductions of a graph reduce, in order: elements of each result.
    fn groups(graph: &Graph) -> Vec<usize> {
        let of_node = |node: &Node| match &node.op {
            Op::Reduce { dims, .. } => {
                Some(dims.iter().map(|dim| graph.ty(node.operands[0]).dims[*dim]).product())
            }
            _ => None,
        };
        graph.nodes().iter().filter_map(of_node).collect()
    }

    /// Dims, the reduction, the dims it is over, and what its stages reduce.
    type Case = (&'static [usize], Reduction, &'static [usize], &'static [usize]);

    #[test]
    fn large_reductions_begin_with_small_groups_and_give_the_same() {
        use Reduction::{Max, Sum};
        let cases: [Case; 9] = [
            // Along what has a divisor.
            (&[128, 131], Sum, &[0, 1], &[32, 4 * 131]),
            (&[128, 131], Max, &[0, 1], &[32, 4 * 131]),
            (&[131, 160], Sum, &[0, 1], &[20, 131 * 8]),
            (&[1 << 14], Sum, &[0], &[32, 512]),
            (&[4, 8, 64, 64], Sum, &[0, 1, 2, 3], &[32, 4096]),
            // As often as it is large.
            (&[512, 2048], Sum, &[0, 1], &[32, 32, 1024]),
            // Rows, columns, and nothing that divides.
            (&[64, 768], Sum, &[1], &[768]),
            (&[512, 64], Sum, &[0], &[512]),
            (&[131, 131], Sum, &[0, 1], &[131 * 131]),
        ];
        for (dims, reduction, over, expected) in cases {
            let whole = reduce(dims, reduction, over);
            let staged = stage_reductions(&whole, 32);
            assert_eq!(groups(&staged), expected, "{dims:?} over {over:?}");
            // Whole numbers, whose sums are exact in any order.
            let values = (0..dims.iter().product::<usize>()).map(|i| (i * 37 % 101) as f64);
            let x = Literal::from_f64(DType::F32, dims, &values.collect::<Vec<_>>());
            let [of_whole, of_staged] =
                [&whole, &staged].map(|graph| interpret(graph, &[vec![x.clone()]]).unwrap());
            assert_eq!(of_whole, of_staged, "{dims:?} over {over:?}");
        }
        let small = reduce(&[100, 20], Sum, &[0, 1]);
        assert_eq!(groups(&stage_reductions(&small, 32)), [2000]);
    }

    #[test]
    fn what_much_is_fused_into_gets_smaller_groups() {
        type Summand = fn(Tensor<'_>) -> Tensor<'_>;
        let cases: [(Summand, [usize; 2]); 4] = [
            (|x| x, [32, 512]),
            (|x| (x * 2.0) * (x * 3.0), [32, 512]),
            (|x| (x * 2.0).exponential() * (x - 1.0).sqrt() + x, [8, 2048]),
            (|x| ((x * 2.0).exponential() * (x - 1.0).sqrt() + x).fusion_barrier(), [32, 512]),
        ];
        for (case, (value, expected)) in cases.into_iter().enumerate() {
            let graph = trace(Mesh::SINGLE, |t| {
                let x = t.input("x", TensorType::new(DType::F32, &[128, 128]));
                t.output("y", value(x).reduce(Reduction::Sum, &[0, 1]));
            });
            assert_eq!(groups(&stage_reductions(&graph.unwrap(), 32)), expected, "case {case}");
        }
    }
}
