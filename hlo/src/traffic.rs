//! Estimated memory traffic of a graph after a compiler has fused its elementwise ops.
//!
//! A *kernel* computes a value in memory, together with all elementwise ops that lead up to it. The values in
//! memory are the inputs, the outputs, the operands and results of ops that are not fused (dots, convolutions,
//! gathers, collectives, loops), and the results of reductions. A kernel reads each value in memory that it
//! depends on once, and writes its result once; what two kernels need is computed twice.

use std::collections::HashSet;

use crate::{Graph, Node, Op, ValueId};

/// Bytes read and written by one run of a graph, without the bodies of loops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// By dots and convolutions.
    pub matmul: u64,
    /// By everything else except collectives.
    pub other: u64,
}

/// The traffic of `graph`; `unfused` returns the bytes that a node reads and writes if it is not fused.
pub(crate) fn traffic(graph: &Graph, unfused: impl Fn(&Node) -> u64) -> Traffic {
    let mut total = Traffic::default();
    let mut roots: HashSet<ValueId> = HashSet::new();
    for node in graph.nodes() {
        match kind(&node.op) {
            Kind::Fused => {}
            Kind::Reduction => roots.extend(node.results()),
            Kind::Matmul | Kind::Alone => {
                let bytes = unfused(node);
                match kind(&node.op) {
                    Kind::Matmul => total.matmul += bytes,
                    _ if is_counted_elsewhere(&node.op) => {}
                    _ => total.other += bytes,
                }
                roots.extend(node.operands.iter().filter(|value| is_fused(graph, **value)));
            }
        }
    }
    roots.extend(graph.outputs().iter().map(|output| output.value));
    let in_memory = |value: ValueId| roots.contains(&value) || !is_fused(graph, value);
    for root in roots.iter().filter(|root| kind(&graph.node_of(**root).op) != Kind::Alone) {
        if kind(&graph.node_of(*root).op) == Kind::Matmul {
            continue;
        }
        let mut bytes = graph.ty(*root).num_bytes() as u64;
        let mut pending = graph.node_of(*root).operands.clone();
        let mut reached = HashSet::new();
        while let Some(value) = pending.pop() {
            if !reached.insert(value) {
                continue;
            }
            if in_memory(value) {
                bytes += graph.ty(value).num_bytes() as u64;
            } else {
                pending.extend(&graph.node_of(value).operands);
            }
        }
        // A value that depends on nothing in memory is computed where it is used.
        if bytes > graph.ty(*root).num_bytes() as u64
            || kind(&graph.node_of(*root).op) != Kind::Fused
        {
            total.other += bytes;
        }
    }
    total
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Fused,
    Reduction,
    Matmul,
    Alone,
}

fn is_fused(graph: &Graph, value: ValueId) -> bool {
    kind(&graph.node_of(value).op) == Kind::Fused
}

/// `true` for ops without memory traffic of their own: inputs move nothing, loops and cases are counted by their
/// bodies, collectives by their bytes on the network.
fn is_counted_elsewhere(op: &Op) -> bool {
    matches!(
        op,
        Op::Input { .. }
            | Op::While { .. }
            | Op::Case { .. }
            | Op::OptimizationBarrier
            | Op::AllReduce { .. }
            | Op::AllGather { .. }
            | Op::ReduceScatter { .. }
            | Op::AllToAll { .. }
            | Op::CollectivePermute { .. }
    )
}

fn kind(op: &Op) -> Kind {
    match op {
        Op::DotGeneral(_) | Op::Convolution(_) => Kind::Matmul,
        Op::Reduce { .. } => Kind::Reduction,
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select
        | Op::Clamp
        | Op::Convert(_)
        | Op::Constant(_)
        | Op::Iota { .. }
        | Op::BroadcastInDim { .. }
        | Op::Reshape { .. }
        | Op::BitcastConvert(_)
        | Op::Slice { .. }
        | Op::Pad { .. }
        | Op::Reverse { .. }
        | Op::Transpose { .. }
        | Op::ReplicaId { .. }
        | Op::Vary { .. }
        | Op::StopGradient => Kind::Fused,
        _ => Kind::Alone,
    }
}
