//! Simplifying passes.

use std::collections::HashMap;

use crate::region::prepare;
use crate::rewriter::{push, rebuild};
use crate::{Graph, Op, ValueId};

/// Removes nodes without side effects that no output depends on. Inputs stay, since they are the
/// program's signature.
pub fn eliminate_dead_code(graph: &Graph) -> Graph {
    let mut live = vec![false; graph.num_values()];
    for output in graph.outputs() {
        live[output.value.index()] = true;
    }
    for node in graph.nodes().iter().rev() {
        if node.op.has_side_effect() || node.results().any(|result| live[result.index()]) {
            for operand in &node.operands {
                live[operand.index()] = true;
            }
        }
    }
    rebuild(graph, |new, node, operands| {
        let keep = node.op.has_side_effect() || node.results().any(|result| live[result.index()]);
        keep.then(|| push(new, node, node.op.clone(), operands))
    })
}

/// Merges nodes with the same op and the same operands, in loops and branches too.
///
/// An `optimization_barrier` is never merged, so a recomputation after it is not merged with the
/// original. A `fusion_barrier` is only a hint, and is merged. So are collectives, since equal ones
/// on equal operands give equal results.
pub fn merge_common_subexpressions(graph: &Graph) -> Graph {
    let mut seen: HashMap<(Op, Vec<ValueId>), ValueId> = HashMap::new();
    rebuild(graph, |new, node, operands| {
        // Tracing a region's gradient leaves dead code in it.
        let inner = |region: &Graph| eliminate_dead_code(&merge_common_subexpressions(region));
        if let Some(op) = node.op.with_regions(inner) {
            return Some(push(new, node, op, operands));
        }
        let op = match &node.op {
            Op::OptimizationBarrier | Op::Remat(_) | Op::CustomVjp(_) => {
                return Some(push(new, node, node.op.clone(), operands));
            }
            op => op.clone(),
        };
        if op.has_side_effect() {
            return Some(push(new, node, op, operands));
        }
        let key = (op, operands.to_vec());
        if let Some(value) = seen.get(&key) {
            return Some(*value);
        }
        let value = push(new, node, key.0.clone(), operands);
        seen.insert(key, value);
        Some(value)
    })
}

/// Prepares the regions of gradients, then applies [`merge_common_subexpressions`] and
/// [`eliminate_dead_code`]. The result is what is lowered and what `lockstep hlo` prints.
pub fn simplify(graph: &Graph) -> Graph {
    eliminate_dead_code(&merge_common_subexpressions(&prepare(graph)))
}
