//! Estimated memory traffic of a graph after a compiler has fused its elementwise ops.
//!
//! A *kernel* computes a value in memory, together with all elementwise ops that lead up to it. The values in memory
//! are the inputs, the outputs, the operands and results of ops that are not fused (dots, convolutions, gathers,
//! collectives, loops), values before a barrier, and the results of reductions and of updates of slices. A kernel reads
//! each value in memory that it depends on once, of a sliced value only the slice, and writes its result once; an
//! update of a slice writes only the slice. What two kernels need is computed twice. Reshapes and other changes of a
//! type move nothing.

use std::collections::{BTreeMap, HashSet};

use crate::count::is_matmul;
use crate::{Graph, Node, Op, ValueId};

/// Bytes read and written by one run of a graph, and its kernels, without the bodies of loops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// By dots, convolutions and custom_calls.
    pub matmul: u64,
    /// By everything else except collectives.
    pub other: u64,
    /// Dots, convolutions and custom_calls.
    pub num_matmuls: u64,
    /// Kernels of everything else except collectives.
    pub num_others: u64,
}

/// The traffic of `graph`; `unfused` returns the bytes that a node reads and writes if it is not fused.
pub(crate) fn traffic(graph: &Graph, unfused: impl Fn(&Node) -> u64) -> Traffic {
    let mut total = Traffic::default();
    let mut roots: HashSet<ValueId> = HashSet::new();
    let fused =
        |value: &ValueId| Some(source(graph, *value)).filter(|value| is_fused(graph, *value));
    for node in graph.nodes() {
        match kind(&node.op) {
            Kind::View | Kind::Fused => {}
            Kind::Kept => roots.extend(node.operands.iter().filter_map(fused)),
            Kind::Reduction => roots.extend(node.results()),
            Kind::Update => {
                roots.extend(node.results());
                roots.extend(fused(&node.operands[0]));
            }
            Kind::Matmul => {
                total.matmul += unfused(node);
                total.num_matmuls += 1;
                roots.extend(node.operands.iter().filter_map(fused));
            }
            Kind::Alone => {
                if !is_counted_elsewhere(&node.op) {
                    total.other += unfused(node);
                    total.num_others += 1;
                }
                roots.extend(node.operands.iter().filter_map(fused));
            }
        }
    }
    roots.extend(graph.outputs().iter().filter_map(|output| fused(&output.value)));
    for root in &roots {
        let (node, read) = (graph.node_of(*root), bytes_read(graph, *root, &roots));
        // A value that depends on nothing in memory is computed where it is used.
        if read > 0 || kind(&node.op) != Kind::Fused {
            let written = if kind(&node.op) == Kind::Update { node.operands[1] } else { *root };
            total.other += read + graph.ty(written).num_bytes() as u64;
            total.num_others += 1;
        }
    }
    total
}

/// Bytes that the kernel of `root` reads.
fn bytes_read(graph: &Graph, root: ValueId, roots: &HashSet<ValueId>) -> u64 {
    let elements = |value: ValueId| graph.ty(value).num_elements() as u64;
    let mut bytes = 0;
    // Elements that the kernel needs of each value. Values are numbered in program order, so the last one's users have all
    // been visited.
    let mut needed = BTreeMap::from([(root, elements(root))]);
    while let Some((value, num_needed)) = needed.pop_last() {
        let num_needed = num_needed.min(elements(value));
        let in_memory = roots.contains(&value) || !is_computed(graph, value);
        if in_memory && value != root {
            bytes += num_needed * graph.ty(value).dtype.size_bytes() as u64;
            continue;
        }
        let node = graph.node_of(value);
        for (index, operand) in node.operands.iter().enumerate() {
            let at = match &node.op {
                // Updated in position, so the rest is not read.
                Op::DynamicUpdateSlice if index == 0 => continue,
                Op::Reduce { .. } | Op::DynamicUpdateSlice | Op::BitcastConvert(_) => {
                    elements(*operand)
                }
                _ => num_needed,
            };
            let sum = needed.entry(*operand).or_default();
            // Slices of one value are different parts of it.
            let is_part =
                index == 0 && matches!(node.op, Op::Slice { .. } | Op::DynamicSlice { .. });
            *sum = if is_part { sum.saturating_add(at) } else { at.max(*sum) };
        }
    }
    bytes
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The operand's bytes, as another type.
    View,
    /// The operand's bytes, in memory.
    Kept,
    Fused,
    Reduction,
    Update,
    Matmul,
    Alone,
}

/// The value whose bytes `value` has.
fn source(graph: &Graph, mut value: ValueId) -> ValueId {
    while matches!(kind(&graph.node_of(value).op), Kind::View | Kind::Kept) {
        value = graph.node_of(value).operands[0];
    }
    value
}

fn is_fused(graph: &Graph, value: ValueId) -> bool {
    kind(&graph.node_of(value).op) == Kind::Fused
}

/// `true` if kernels that need the value compute it, unless it is in memory.
fn is_computed(graph: &Graph, value: ValueId) -> bool {
    matches!(kind(&graph.node_of(value).op), Kind::View | Kind::Kept | Kind::Fused)
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
        op if is_matmul(op) => Kind::Matmul,
        // Marks of values with several users, which compilers write once rather than compute for each user.
        Op::FusionBarrier | Op::BlockBoundary => Kind::Kept,
        Op::Reduce { .. } => Kind::Reduction,
        Op::DynamicUpdateSlice => Kind::Update,
        Op::Reshape { .. } | Op::BitcastConvert(_) | Op::Vary { .. } | Op::StopGradient => {
            Kind::View
        }
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select
        | Op::Clamp
        | Op::Convert(_)
        | Op::Constant(_)
        | Op::Iota { .. }
        | Op::Threefry(_)
        | Op::BroadcastInDim { .. }
        | Op::Slice { .. }
        | Op::DynamicSlice { .. }
        | Op::Pad { .. }
        | Op::Reverse { .. }
        | Op::Transpose { .. }
        | Op::ReplicaId { .. } => Kind::Fused,
        _ => Kind::Alone,
    }
}
