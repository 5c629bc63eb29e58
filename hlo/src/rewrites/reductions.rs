//! Staging of long reductions.

use std::collections::HashSet;

use super::everywhere;
use crate::recompute::is_elementwise;
use crate::rewriter::push;
use crate::{Graph, Op, TensorType, ValueId};

/// Reductions of fewer elements than this are left alone: a second loop costs more than it saves.
const MIN_REDUCED: usize = 1 << 14;
/// Least number of neighbours that are reduced in parallel: enough for the widest vector registers.
const MIN_LANES: usize = 8;
/// Number of lanes beyond which longer rows gain nothing.
const MANY_LANES: usize = 64;
/// Reductions into which more elementwise ops than this are fused get groups of a quarter of the
/// size: the loop over a group is unrolled together with these ops. Measured: parameter updates
/// took a third of the time.
const MAX_SIMPLE_OPS: usize = 4;

/// Reduces each large tensor that is reduced to a scalar in stages: first in groups of at most
/// `max_group` elements along one of its dims, many groups in parallel, and again while the result
/// is large. For a backend that turns longer reductions into windows and computes those one element
/// at a time. Unchanged if no reduced dim has a suitable divisor.
///
/// The order of summation changes, but is the same on every replica and in every run.
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
            // Keeps the compiler from merging the stages again.
            x = push(new, node, Op::FusionBarrier, &[x]);
        }
        Some(push(new, node, node.op.clone(), &[x]))
    })
}

/// `true` if a value is computed from values in memory by at most [`MAX_SIMPLE_OPS`] elementwise
/// ops.
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

/// A dim reshaped to two: a group, and the rest.
struct Split {
    dim: usize,
    /// Elements of a group.
    group: usize,
    /// Neighbours in memory that are reduced in parallel.
    lanes: usize,
    /// `true` if a group's elements are contiguous along the dim, `false` if they are evenly
    /// spread.
    is_inner: bool,
}

impl Split {
    /// The largest group along a dim with at least [`MIN_LANES`] lanes.
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

    /// The reshaped dims, and the index of the group dim.
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

    /// Elements per result element of each reduction of a graph, in order.
    fn groups(graph: &Graph) -> Vec<usize> {
        let of_node = |node: &Node| match &node.op {
            Op::Reduce { dims, .. } => {
                Some(dims.iter().map(|dim| graph.ty(node.operands[0]).dims[*dim]).product())
            }
            _ => None,
        };
        graph.nodes().iter().filter_map(of_node).collect()
    }

    /// Dims, reduction, reduced dims, and the group size of each stage.
    type Case = (&'static [usize], Reduction, &'static [usize], &'static [usize]);

    #[test]
    fn large_reductions_are_staged_and_their_values_are_unchanged() {
        use Reduction::{Max, Sum};
        let cases: [Case; 9] = [
            // Along a dim with a divisor.
            (&[128, 131], Sum, &[0, 1], &[32, 4 * 131]),
            (&[128, 131], Max, &[0, 1], &[32, 4 * 131]),
            (&[131, 160], Sum, &[0, 1], &[20, 131 * 8]),
            (&[1 << 14], Sum, &[0], &[32, 512]),
            (&[4, 8, 64, 64], Sum, &[0, 1, 2, 3], &[32, 4096]),
            // Repeatedly while it is large.
            (&[512, 2048], Sum, &[0, 1], &[32, 32, 1024]),
            // Rows, columns, and dims without a divisor.
            (&[64, 768], Sum, &[1], &[768]),
            (&[512, 64], Sum, &[0], &[512]),
            (&[131, 131], Sum, &[0, 1], &[131 * 131]),
        ];
        for (dims, reduction, over, expected) in cases {
            let whole = reduce(dims, reduction, over);
            let staged = stage_reductions(&whole, 32);
            assert_eq!(groups(&staged), expected, "{dims:?} over {over:?}");
            // Whole numbers: their sums are exact in any order.
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
    fn reductions_of_many_fused_ops_get_smaller_groups() {
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
