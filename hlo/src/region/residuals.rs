//! Selection of the residuals of a scan that are recomputed instead of kept.

use crate::{Binary, Graph, Op, Unary, ValueId};

/// The values that the backward pass recomputes: residuals that cheap ops compute from other values
/// that it has, and the intermediate values. `at_hand` is true for values that the backward pass
/// has without keeping anything.
///
/// A residual is written in one loop and read in another, once per iteration, and its stack lives
/// from one loop to the other. Elementwise ops without transcendentals are fused into their users.
pub(super) fn recomputed(graph: &Graph, at_hand: &[bool], is_residual: &[bool]) -> Vec<ValueId> {
    let mut available = at_hand.to_vec();
    let mut is_dropped = vec![false; graph.num_values()];
    for node in graph.nodes() {
        let follows = is_cheap(&node.op)
            && !node.operands.is_empty()
            && node.operands.iter().all(|operand| available[operand.index()]);
        for result in node.results().map(ValueId::index) {
            is_dropped[result] = is_residual[result] && follows && !at_hand[result];
            available[result] |= is_residual[result] || follows;
        }
    }
    // Adds the values from which the dropped residuals are computed, back to values at hand or
    // kept.
    let mut again = is_dropped;
    for node in graph.nodes().iter().rev() {
        let result = node.result().index();
        if again[result] {
            for operand in node.operands.iter().map(|operand| operand.index()) {
                again[operand] |= !at_hand[operand] && !is_residual[operand];
            }
        }
    }
    let values = graph.nodes().iter().flat_map(|node| node.results());
    values.filter(|value| again[value.index()]).collect()
}

/// `true` if the op is cheaper than writing its result to memory and reading it again.
fn is_cheap(op: &Op) -> bool {
    match op {
        Op::Unary(op) => matches!(op, Unary::Abs | Unary::Negate | Unary::Not | Unary::Sign),
        Op::Binary(op) => !matches!(op, Binary::Divide | Binary::Power | Binary::Remainder),
        Op::Compare(_)
        | Op::Select
        | Op::Clamp
        | Op::Convert(_)
        | Op::BroadcastInDim { .. }
        | Op::Reshape { .. }
        | Op::Vary { .. }
        | Op::Replicated { .. }
        | Op::StopGradient => true,
        _ => false,
    }
}
