//! Passes that write the same in the form that a backend is fastest with. Which one gets which is the
//! caller's to say.

mod in_place;
mod reductions;

use crate::rebuild::{push, rebuild};
use crate::{Graph, Node, Op, TensorType, ValueId};

pub use in_place::update_in_place;
pub use reductions::stage_reductions;

/// Without the hints that [`crate::Tensor::fusion_barrier`] gives: for a backend that fuses as it should.
pub fn without_fusion_barriers(graph: &Graph) -> Graph {
    everywhere(graph, &|_, node, operands, _| match node.op {
        Op::FusionBarrier => Some(operands[0]),
        _ => None,
    })
}

/// What takes a node's place: from the new graph, the node, its new operands and its result's type.
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
