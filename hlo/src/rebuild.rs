//! Copying a graph node by node with changes, the basis of passes.

use crate::graph::Output;
use crate::{Graph, Node, Op, Origin, ValueId};

/// Copies a graph node by node. `f` gets the new graph, the old node and its new operands, and returns the
/// value of the new graph that replaces the node's first result, or `None` to drop the node. Inputs and
/// outputs are copied automatically.
pub fn rebuild(
    graph: &Graph,
    mut f: impl FnMut(&mut Graph, &Node, &[ValueId]) -> Option<ValueId>,
) -> Graph {
    rebuild_values(graph, |new, node, operands| {
        let first = f(new, node, operands)?;
        Some(new.node_of(first).results().collect())
    })
}

/// [`rebuild`] where a node may become several: `f` returns the values that replace its results, at least as
/// many as it had.
pub(crate) fn rebuild_values(
    graph: &Graph,
    mut f: impl FnMut(&mut Graph, &Node, &[ValueId]) -> Option<Vec<ValueId>>,
) -> Graph {
    let mut new = Graph::new(*graph.mesh());
    let mut map: Vec<Option<ValueId>> = vec![None; graph.num_values()];
    for node in graph.nodes() {
        let operands: Option<Vec<_>> =
            node.operands.iter().map(|operand| map[operand.index()]).collect();
        let results = operands.and_then(|operands| match &node.op {
            Op::Input { index } => {
                let input = &graph.inputs()[*index];
                let ty = graph.ty(input.value).clone();
                Some(vec![new.input(input.name.clone(), ty, node.location)])
            }
            _ => f(&mut new, node, &operands),
        });
        if let Some(results) = results {
            for (old, new) in node.results().zip(results) {
                map[old.index()] = Some(new);
            }
        }
    }
    for output in graph.outputs() {
        if let Some(value) = map[output.value.index()] {
            new.output(Output { value, ..output.clone() });
        }
    }
    new
}

pub(crate) fn push(graph: &mut Graph, node: &Node, op: Op, operands: &[ValueId]) -> ValueId {
    push_at(graph, node.location, op, operands)
}

pub(crate) fn push_at(
    graph: &mut Graph,
    location: Origin,
    op: Op,
    operands: &[ValueId],
) -> ValueId {
    graph.push(op, operands, location).expect("a copied node fits its copied operands")
}
