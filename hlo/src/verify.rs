//! Whole-graph invariants as executable checks.

use crate::infer::infer;
use crate::{AxisSet, Graph, Op, Scan, TensorType};

/// A graph that breaks an invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// The replicas would go different ways.
    #[error(
        "`{name}` would lose lockstep: its value {ty} may differ between replicas over {excess}, where \
         it must be the same; reduce it over them with `all_reduce` (gradients: take `grad` with \
         respect to the replicated parameter)"
    )]
    LosesLockstep {
        /// The output's path.
        name: String,
        /// Type of its value.
        ty: TensorType,
        /// The axes that are too many.
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
    /// Two outputs take over one input's memory.
    #[error("`{name}` is given two next values")]
    DonatedTwice {
        /// The leaf's path.
        name: String,
    },
    /// A name stands for two inputs or two outputs.
    #[error("the {kind} `{name}` is named twice")]
    DuplicateName {
        /// Input or output.
        kind: &'static str,
        /// The leaf's path.
        name: String,
    },
    /// A loop with collectives inside may run a different number of times on different replicas.
    #[error(
        "the loop at {location} holds a collective over {axes}, but its condition may differ between \
         these replicas: some would wait for ever"
    )]
    DivergentCollective {
        /// The caller's line.
        location: &'static std::panic::Location<'static>,
        /// The axes over which they would wait.
        axes: AxisSet,
    },
    /// A node's types are not those of its op: a transformation made a mistake.
    #[error("node {node} ({op}) is malformed: {message}")]
    Malformed {
        /// Position of the node.
        node: usize,
        /// Its op.
        op: &'static str,
        /// What is wrong.
        message: String,
    },
}

/// Checks that every node's types follow from its operands, that the replicas stay in lockstep, and
/// that no collective can hang.
///
/// An output may vary over the axes it was declared with and no others; the next value of a state
/// leaf may vary over the axes of the leaf's input. The types are sound, so a graph that passes keeps
/// replicated state equal on all replicas.
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
            return Err(malformed("its results have other types than its op gives".into()));
        }
        if let Op::Scan(Scan { body, .. }) = &node.op {
            nodes(&body.graph)?;
        }
        if let Some(body) = node.op.inlined_body() {
            nodes(&body.graph)?;
        }
        if let Op::While { regions, .. } = &node.op {
            nodes(&regions.cond)?;
            nodes(&regions.body)?;
            let decides = regions.cond.outputs()[0].value;
            let diverges = regions.cond.ty(decides).varying;
            let axes = collective_axes(&regions.body) | collective_axes(&regions.cond);
            let axes = axes.intersection(diverges);
            if !axes.is_empty() {
                return Err(VerifyError::DivergentCollective { location: node.location, axes });
            }
        }
    }
    Ok(())
}

/// The axes over which a graph, loops included, holds collectives.
fn collective_axes(graph: &Graph) -> AxisSet {
    graph.nodes().iter().fold(AxisSet::EMPTY, |all, node| {
        let inner = match &node.op {
            Op::While { regions, .. } => {
                collective_axes(&regions.cond) | collective_axes(&regions.body)
            }
            Op::Scan(Scan { body, .. }) => collective_axes(&body.graph),
            op => match op.inlined_body() {
                Some(body) => collective_axes(&body.graph),
                None => op.collective_axes(),
            },
        };
        all | inner
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
