//! Whole-graph invariants as executable checks.

use crate::infer::infer;
use crate::{AxisSet, Graph, Op, TensorType};

/// A graph that breaks an invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// A value that must be the same on all replicas may differ.
    #[error(
        "`{name}` would lose lockstep: its value {ty} may differ between replicas over {excess}, \
         where it must be the same; reduce it over these axes with `all_reduce` (for gradients: \
         take `grad` with respect to the replicated parameter)"
    )]
    LosesLockstep {
        /// The output's path.
        name: String,
        /// Type of its value.
        ty: TensorType,
        /// The axes over which it must not vary.
        excess: AxisSet,
    },
    /// The next state of a leaf has another type than the leaf.
    #[error("`{name}` is state of type {expected}, but its next value is {actual}")]
    StateType {
        /// The leaf's path.
        name: String,
        /// Type of the input.
        expected: TensorType,
        /// Type of the output.
        actual: TensorType,
    },
    /// Two outputs reuse the same input's memory.
    #[error("`{name}` has two next values")]
    DonatedTwice {
        /// The leaf's path.
        name: String,
    },
    /// Two inputs or two outputs have the same name.
    #[error("two {kind}s are named `{name}`")]
    DuplicateName {
        /// Input or output.
        kind: &'static str,
        /// The leaf's path.
        name: String,
    },
    /// A loop with collectives inside may run a different number of times on different replicas, or
    /// a case may take different branches.
    #[error(
        "the loop or case at {location} contains a collective over {axes}, but its condition or \
         index may differ between these replicas: some would wait forever"
    )]
    DivergentCollective {
        /// The caller's source line.
        location: &'static std::panic::Location<'static>,
        /// The axes over which they would wait.
        axes: AxisSet,
    },
    /// A node's types do not follow from its op and operands: a bug in a transformation.
    #[error("node {node} ({op}) is malformed: {message}")]
    Malformed {
        /// Position of the node.
        node: usize,
        /// Its op.
        op: &'static str,
        /// The problem.
        message: String,
    },
}

/// Checks that every node's types follow from its operands, that the replicas stay in lockstep, and
/// that no collective can hang.
///
/// An output may vary over the axes it was declared with and no others; the next value of a state
/// leaf may vary over the axes of the leaf's input. The types are sound, so a graph that passes
/// keeps replicated state equal on all replicas.
///
/// # Errors
/// The first invariant that does not hold.
pub fn verify(graph: &Graph) -> Result<(), VerifyError> {
    nodes(graph)?;
    unique(graph.inputs().iter().map(|input| &input.name), "input")?;
    unique(graph.outputs().iter().map(|output| &output.name), "output")?;
    let mut donated = vec![false; graph.inputs().len()];
    for output in graph.outputs() {
        let ty = graph.ty(output.value);
        if let Some(index) = output.donated_input {
            let name = || graph.inputs()[index].name.clone();
            let expected = graph.ty(graph.inputs()[index].value);
            if (expected.dtype, &expected.dims) != (ty.dtype, &ty.dims) {
                let (expected, actual) = (expected.clone(), ty.clone());
                return Err(VerifyError::StateType { name: name(), expected, actual });
            }
            if std::mem::replace(&mut donated[index], true) {
                return Err(VerifyError::DonatedTwice { name: name() });
            }
        }
        let excess = ty.varying.minus(output.varying);
        if !excess.is_empty() {
            let (name, ty) = (output.name.clone(), ty.clone());
            return Err(VerifyError::LosesLockstep { name, ty, excess });
        }
    }
    Ok(())
}

fn nodes(graph: &Graph) -> Result<(), VerifyError> {
    for (index, node) in graph.nodes().iter().enumerate() {
        let malformed =
            |message| VerifyError::Malformed { node: index, op: node.op.name(), message };
        if node.operands.iter().any(|operand| *operand >= node.result()) {
            return Err(malformed("an operand comes after its user".into()));
        }
        if matches!(node.op, Op::Input { .. }) {
            continue;
        }
        let operands: Vec<_> = node.operands.iter().map(|operand| graph.ty(*operand)).collect();
        let inferred = infer(&node.op, &operands, graph.mesh()).map_err(malformed)?;
        if !inferred.iter().eq(node.results().map(|result| graph.ty(result))) {
            return Err(malformed("its results do not have the types that its op gives".into()));
        }
        for region in node.op.regions() {
            nodes(region)?;
        }
        let diverges = match &node.op {
            Op::While { regions, .. } => regions.cond.ty(regions.cond.outputs()[0].value).varying,
            Op::Case { .. } => graph.ty(node.operands[0]).varying,
            _ => AxisSet::EMPTY,
        };
        let axes = all_collective_axes(&node.op).intersection(diverges);
        if !axes.is_empty() {
            return Err(VerifyError::DivergentCollective { location: node.location.line, axes });
        }
    }
    Ok(())
}

/// The axes of all collectives in an op, including those in its regions.
fn all_collective_axes(op: &Op) -> AxisSet {
    let inner = op.regions().into_iter().flat_map(Graph::nodes);
    inner.fold(op.collective_axes(), |all, node| all | all_collective_axes(&node.op))
}

/// The axes of the collectives that each run of a graph executes: those that stand in no branch of
/// a case.
pub fn unconditional_collectives(graph: &Graph) -> AxisSet {
    let nodes = graph.nodes().iter().filter(|node| !matches!(node.op, Op::Case { .. }));
    nodes.fold(AxisSet::EMPTY, |all, node| {
        let inner = node.op.regions().into_iter().map(unconditional_collectives);
        inner.fold(all | node.op.collective_axes(), |all, axes| all | axes)
    })
}

fn unique<'a>(
    names: impl Iterator<Item = &'a String>,
    kind: &'static str,
) -> Result<(), VerifyError> {
    let mut seen = std::collections::HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(VerifyError::DuplicateName { kind, name: name.clone() });
        }
    }
    Ok(())
}
