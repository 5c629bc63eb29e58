//! Copying a graph node by node with changes, the basis of passes.

use crate::graph::Output;
use crate::{Graph, Node, Op, Origin, ValueId};

/// A graph that is copied with changes. It knows the new value of each old value that has one.
///
/// A pass that visits nodes in their order is a call of [`rebuild`]. A `Rewriter` is for passes
/// with another order, or with a choice of values of their own.
pub struct Rewriter<'a> {
    old: &'a Graph,
    new: Graph,
    values: Vec<Option<ValueId>>,
}

impl<'a> Rewriter<'a> {
    /// A copy on the same mesh, empty at first.
    pub fn new(old: &'a Graph) -> Self {
        Self { old, new: Graph::new(*old.mesh()), values: vec![None; old.num_values()] }
    }

    /// The graph that is copied.
    pub fn old(&self) -> &'a Graph {
        self.old
    }

    /// The copy so far.
    pub fn copied(&self) -> &Graph {
        &self.new
    }

    /// The copy so far, for nodes without counterpart in the old graph.
    pub fn copied_mut(&mut self) -> &mut Graph {
        &mut self.new
    }

    /// The new value of an old one, if it has one yet.
    pub fn get(&self, old: ValueId) -> Option<ValueId> {
        self.values[old.index()]
    }

    /// The new value of an old one.
    ///
    /// # Panics
    /// If the old one has not been copied: operands must be copied before their users.
    pub fn value(&self, old: ValueId) -> ValueId {
        self.get(old).expect("operands are copied before their users")
    }

    /// `new` takes the place of `old`.
    pub fn set(&mut self, old: ValueId, new: ValueId) {
        self.values[old.index()] = Some(new);
    }

    /// The results of a new node, by its first, take the places of `old`, in order.
    pub fn set_results(&mut self, old: impl IntoIterator<Item = ValueId>, first: ValueId) {
        for (old, new) in old.into_iter().zip(self.new.node_of(first).results()) {
            self.values[old.index()] = Some(new);
        }
    }

    /// Adds an op for an old node, and returns its first result. It takes no place of an old value
    /// yet.
    pub fn push(&mut self, node: &Node, op: Op, operands: &[ValueId]) -> ValueId {
        push(&mut self.new, node, op, operands)
    }

    /// Copies input number `index` of the old graph as the next input.
    pub fn input(&mut self, index: usize) {
        let input = &self.old.inputs()[index];
        let (ty, location) = (self.old.ty(input.value), self.old.node_of(input.value).location);
        let value = self.new.input(input.name.clone(), ty.clone(), location);
        self.set(input.value, value);
    }

    /// Copies a node as it is, with its operands' new values; an input as the next input.
    ///
    /// # Panics
    /// If an operand has not been copied.
    pub fn copy(&mut self, node: &Node) {
        if let Op::Input { index } = node.op {
            return self.input(index);
        }
        let operands: Vec<_> = node.operands.iter().map(|operand| self.value(*operand)).collect();
        let first = self.push(node, node.op.clone(), &operands);
        self.set_results(node.results(), first);
    }

    /// The copy, with those of the old outputs that have new values.
    pub fn finish(mut self) -> Graph {
        for output in self.old.outputs() {
            if let Some(value) = self.get(output.value) {
                self.new.output(Output { value, ..output.clone() });
            }
        }
        self.new
    }

    /// The copy, without outputs.
    pub fn finish_without_outputs(self) -> Graph {
        self.new
    }
}

/// Copies a graph node by node. `f` gets the new graph, the old node and its new operands, and
/// returns the value of the new graph that replaces the node's first result, or `None` to drop the
/// node. Inputs and outputs are copied automatically.
pub fn rebuild(
    graph: &Graph,
    mut f: impl FnMut(&mut Graph, &Node, &[ValueId]) -> Option<ValueId>,
) -> Graph {
    rebuild_values(graph, |new, node, operands| {
        let first = f(new, node, operands)?;
        Some(new.node_of(first).results().collect())
    })
}

/// [`rebuild`] where a node may become several: `f` returns the values that replace its results, at
/// least as many as it had.
pub(crate) fn rebuild_values(
    graph: &Graph,
    mut f: impl FnMut(&mut Graph, &Node, &[ValueId]) -> Option<Vec<ValueId>>,
) -> Graph {
    let mut copy = Rewriter::new(graph);
    for node in graph.nodes() {
        if let Op::Input { index } = node.op {
            copy.input(index);
            continue;
        }
        let operands: Option<Vec<_>> =
            node.operands.iter().map(|operand| copy.get(*operand)).collect();
        let results = operands.and_then(|operands| f(&mut copy.new, node, &operands));
        for (old, new) in node.results().zip(results.into_iter().flatten()) {
            copy.set(old, new);
        }
    }
    copy.finish()
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
