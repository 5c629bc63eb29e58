//! Passes: graphs from graphs.

use std::collections::HashMap;

use crate::rebuild::{push, rebuild};
use crate::region::prepare;
use crate::{Graph, Op, ValueId};

/// Removes nodes that no output depends on, but for those with a side effect. Inputs stay, since they are the program's signature.
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

/// Merges nodes that compute the same from the same operands, in loops and branches too.
///
/// An `optimization_barrier` is never merged, so values on its two sides stay apart: what is recomputed
/// behind it is recomputed. A `fusion_barrier` is only a hint, and is merged. So are collectives, since
/// equal ones on equal operands give equal results.
pub fn merge_common_subexpressions(graph: &Graph) -> Graph {
    let mut seen: HashMap<(Op, Vec<ValueId>), ValueId> = HashMap::new();
    rebuild(graph, |new, node, operands| {
        // What a region's gradient was traced with and does not need goes with it.
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

/// [`merge_common_subexpressions`] and [`eliminate_dead_code`], after gradients' regions are put in order: what is lowered, and what `lockstep hlo`
/// prints.
pub fn simplify(graph: &Graph) -> Graph {
    eliminate_dead_code(&merge_common_subexpressions(&prepare(graph)))
}
