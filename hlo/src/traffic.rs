//! Memory traffic of a graph whose elementwise ops are fused: what a compiler leaves of it.
//!
//! A *kernel* is a value that has to stand in memory with everything elementwise that leads up to it. In
//! memory stand the inputs, the outputs, the results of ops that nothing fuses with (dots, convolutions,
//! gathers, collectives, loops), what these read, and the results of reductions. A kernel reads each value
//! in memory that it reaches once, and writes its result once; what two kernels need is computed twice.

use std::collections::HashSet;

use crate::{Graph, Node, Op, ValueId};

/// Bytes read and written, of one run of a graph; bodies of loops not included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// By dots and convolutions.
    pub matmul: u64,
    /// By everything else that is no collective.
    pub other: u64,
}

/// The traffic of `graph`; `unfused` says what a node reads and writes by itself.
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
        // What is made of nothing that stands in memory is made where it is used.
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

/// Their bytes are their own business: inputs move nothing, loops and cases are their bodies, collectives go over
/// other wires.
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
