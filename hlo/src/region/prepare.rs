//! Preparation of regions before a graph is simplified.

use std::collections::HashMap;
use std::sync::Arc;

use super::expand::{inline, push};
use super::{Region, Scan};
use crate::rewriter::rebuild_values;
use crate::{Graph, Node, Op, ValueId};

/// Replaces remats and custom VJPs by their bodies' ops, and merges each scan with the scans that
/// extend it, so that the forward pass runs once and keeps the residuals. In loops and branches
/// too.
///
/// Each recomputation follows a barrier of its own, so later passes do not merge it with the
/// original.
pub(crate) fn prepare(graph: &Graph) -> Graph {
    let has = |is: fn(&Op) -> bool| graph.nodes().iter().any(|node| is(&node.op));
    if !has(|op| !op.regions().is_empty()) {
        return graph.clone();
    }
    if has(|op| op.inlined_body().is_some()) {
        // A body may contain such ops itself.
        return prepare(&rebuild_values(graph, |new, node, operands| {
            Some(match node.op.inlined_body() {
                Some(body) => inline(new, &body.graph, operands, node.location.is_backward),
                None => push(new, node, node.op.clone(), operands),
            })
        }));
    }
    let longest = extended(graph);
    let mut written: HashMap<ValueId, Vec<ValueId>> = HashMap::new();
    rebuild_values(graph, |new, node, operands| {
        let op = match &node.op {
            Op::Scan(_) => {
                let longest = longest.get(&node.result()).copied().unwrap_or(node);
                if let Some(values) = written.get(&longest.result()) {
                    return Some(values.clone());
                }
                let Op::Scan(scan) = &longest.op else { return None };
                let body = Arc::new(Region { graph: prepare(&scan.body.graph), extends: None });
                let values = push(new, node, Op::Scan(Scan { body, ..scan.clone() }), operands);
                written.insert(longest.result(), values.clone());
                return Some(values);
            }
            op => op.with_regions(prepare).unwrap_or_else(|| op.clone()),
        };
        Some(push(new, node, op, operands))
    })
}

/// For each scan that is extended by another scan on the same operands, the last of the chain.
fn extended(graph: &Graph) -> HashMap<ValueId, &Node> {
    let mut of_body: HashMap<(*const Region, &[ValueId]), &Node> = HashMap::new();
    let mut longest: HashMap<ValueId, &Node> = HashMap::new();
    // Extensions follow the scans that they extend, so in reverse order the rest of a chain is
    // known.
    for node in graph.nodes().iter().rev() {
        let Op::Scan(scan) = &node.op else { continue };
        if let Some(extension) = of_body.get(&(Arc::as_ptr(&scan.body), &*node.operands)) {
            let last = longest.get(&extension.result()).copied().unwrap_or(*extension);
            longest.insert(node.result(), last);
        }
        if let Some(extends) = &scan.body.extends {
            of_body.insert((Arc::as_ptr(extends), &*node.operands), node);
        }
    }
    longest
}
