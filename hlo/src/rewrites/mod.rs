//! Passes that rewrite a graph into an equivalent form that some backend runs faster. The caller
//! chooses the passes for its backend.

mod all_reduces;
mod gathers;
mod in_place;
mod isolate;
mod order;
mod reductions;
mod replica_sums;
mod scatters;

use crate::region::prepare;
use crate::rewriter::{push, rebuild};
use crate::{Graph, Node, Op, TensorType, ValueId};

pub use all_reduces::{
    MIN_WRITTEN_ELEMENTS, ReplicaSum, replicas_of_host, write_all_reduces, write_all_reduces_by,
    written_all_reduce,
};
pub use gathers::tie_gathers;
pub use in_place::update_in_place;
pub(crate) use isolate::isolate;
pub use order::order_collectives;
pub use reductions::stage_reductions;
pub use replica_sums::{ReplicaSums, SumsBySize};
pub use scatters::scatter_by_line;

/// Removes the hints of [`crate::Tensor::fusion_barrier`], for backends that fuse well without
/// them.
pub fn without_fusion_barriers(graph: &Graph) -> Graph {
    everywhere(graph, &|_, node, operands, _| match node.op {
        Op::FusionBarrier => Some(operands[0]),
        _ => None,
    })
}

/// Removes the marks of [`crate::Tensor::block_boundary`].
pub fn without_block_boundaries(graph: &Graph) -> Graph {
    // Merges a scan with the one that extends it, which names it by its identity. A copy has
    // another.
    everywhere(&prepare(graph), &|_, node, operands, _| match node.op {
        Op::BlockBoundary => Some(operands[0]),
        _ => None,
    })
}

/// Returns a node's replacement, if any, from the new graph, the node, its new operands and its
/// result's type.
type Replace<'a> = dyn Fn(&mut Graph, &Node, &[ValueId], &TensorType) -> Option<ValueId> + 'a;

/// Replaces nodes with one result, in loops and branches too.
fn everywhere(graph: &Graph, replace: &Replace<'_>) -> Graph {
    rebuild(graph, |new, node, operands| {
        if let Some(op) = node.op.with_regions(|region| everywhere(region, replace)) {
            return Some(push(new, node, op, operands));
        }
        let replaced = replace(new, node, operands, graph.ty(node.result()));
        Some(replaced.unwrap_or_else(|| push(new, node, node.op.clone(), operands)))
    })
}
