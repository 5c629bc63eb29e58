//! The graph: an append-only arena of nodes, operands before users.

use crate::infer::infer;
use crate::{AxisSet, Error, Mesh, Op, Origin, TensorType};

/// One value of a [`Graph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(u32);

impl ValueId {
    /// Position among the graph's values.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// An op applied to values.
#[derive(Clone, Debug)]
pub struct Node {
    /// The op.
    pub op: Op,
    /// Its operands; all are results of earlier nodes.
    pub operands: Vec<ValueId>,
    /// Where it was recorded.
    pub location: Origin,
    first_result: u32,
    num_results: u32,
}

impl Node {
    /// The values this node produces.
    pub fn results(&self) -> impl ExactSizeIterator<Item = ValueId> + use<> {
        (self.first_result..self.first_result + self.num_results).map(ValueId)
    }

    /// The first result, and for most ops the only one.
    pub fn result(&self) -> ValueId {
        ValueId(self.first_result)
    }
}

#[derive(Clone, Debug)]
struct Value {
    ty: TensorType,
    node: u32,
    is_gradient_free: bool,
}

/// A named input.
#[derive(Clone, Debug)]
pub struct Input {
    /// The leaf's path.
    pub name: String,
    /// Its value.
    pub value: ValueId,
}

/// A named output.
#[derive(Clone, Debug)]
pub struct Output {
    /// The leaf's path.
    pub name: String,
    /// Its value.
    pub value: ValueId,
    /// The axes over which the value may vary; [`crate::verify`] rejects others.
    pub varying: AxisSet,
    /// The input whose memory this output reuses, if it is the next state of that leaf.
    pub donated_input: Option<usize>,
}

/// A traced program: nodes in topological order, named inputs and outputs.
#[derive(Clone, Debug)]
pub struct Graph {
    mesh: Mesh,
    nodes: Vec<Node>,
    values: Vec<Value>,
    inputs: Vec<Input>,
    outputs: Vec<Output>,
}

impl Graph {
    /// A graph without nodes, for the replicas of `mesh`.
    pub fn new(mesh: Mesh) -> Self {
        Self { mesh, nodes: vec![], values: vec![], inputs: vec![], outputs: vec![] }
    }

    /// The mesh; types and collectives refer to its axes.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// Nodes, in topological order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Inputs, in order.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// Outputs, in order.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// Number of values: every [`ValueId::index`] is below it.
    pub fn num_values(&self) -> usize {
        self.values.len()
    }

    /// Type of a value.
    pub fn ty(&self, value: ValueId) -> &TensorType {
        &self.values[value.index()].ty
    }

    /// The node that produces a value.
    pub fn node_of(&self, value: ValueId) -> &Node {
        &self.nodes[self.values[value.index()].node as usize]
    }

    /// `true` if the value is computed from constants, integers and `pred` alone, so that no
    /// gradient flows through it to parameters.
    pub fn is_gradient_free(&self, value: ValueId) -> bool {
        self.values[value.index()].is_gradient_free
    }

    /// Appends a named input.
    pub fn input(
        &mut self,
        name: impl Into<String>,
        ty: TensorType,
        location: impl Into<Origin>,
    ) -> ValueId {
        let op = Op::Input { index: self.inputs.len() };
        let value = self.append(op, &[], vec![ty], location.into());
        self.inputs.push(Input { name: name.into(), value });
        value
    }

    /// Declares that an input of a region is computed from constants, integers and `pred` alone.
    pub(crate) fn mark_gradient_free(&mut self, input: ValueId) {
        self.values[input.index()].is_gradient_free = true;
    }

    /// Appends a node and infers its result types.
    ///
    /// # Errors
    /// If the operands do not fit the op.
    pub fn push(
        &mut self,
        op: Op,
        operands: &[ValueId],
        location: impl Into<Origin>,
    ) -> Result<ValueId, Error> {
        let location = location.into();
        let types: Vec<_> = operands.iter().map(|value| self.ty(*value)).collect();
        match infer(&op, &types, &self.mesh) {
            Ok(results) => Ok(self.append(op, operands, results, location)),
            Err(message) => Err(Error {
                op: op.name(),
                operands: types.into_iter().cloned().collect(),
                message,
                location: location.line,
            }),
        }
    }

    /// Appends a named output.
    pub fn output(&mut self, output: Output) {
        self.outputs.push(output);
    }

    /// The same graph, as part of a backward pass.
    #[must_use]
    pub(crate) fn in_backward(mut self) -> Self {
        for node in &mut self.nodes {
            node.location.is_backward = true;
        }
        self
    }

    fn append(
        &mut self,
        op: Op,
        operands: &[ValueId],
        results: Vec<TensorType>,
        location: Origin,
    ) -> ValueId {
        let is_input = matches!(op, Op::Input { .. });
        let from_gradient_free =
            !is_input && operands.iter().all(|operand| self.is_gradient_free(*operand));
        let node = self.nodes.len() as u32;
        let first_result = self.values.len() as u32;
        self.nodes.push(Node {
            op,
            operands: operands.to_vec(),
            location,
            first_result,
            num_results: results.len() as u32,
        });
        self.values.extend(results.into_iter().map(|ty| {
            let is_gradient_free = from_gradient_free || !ty.dtype.is_float();
            Value { ty, node, is_gradient_free }
        }));
        ValueId(first_result)
    }
}
