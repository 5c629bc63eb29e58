//! Estimated memory traffic of a graph after a compiler has fused its elementwise ops.
//!
//! A *kernel* computes a value in memory, together with all elementwise ops that lead up to it. The
//! values in memory are the inputs, the outputs, the operands and results of ops that are not fused
//! (dots, convolutions, gathers, collectives, loops), values before a barrier, and the results of
//! reductions and of updates of slices. A kernel reads each value in memory that it depends on
//! once, of a sliced value only the slice, and writes its result once; an update of a slice writes
//! only the slice. What two kernels need is computed twice. Reshapes and other changes of a type
//! move nothing.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::{Graph, Node, Op, ValueId};

/// Bytes read and written by one run of a graph, and its kernels, without dots, convolutions,
/// custom_calls, collectives and the bodies of loops.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub bytes: u64,
    pub num_kernels: u64,
    /// The kernels that can be part of a dot, convolution or custom_call, by its result.
    pub epilogues: HashMap<ValueId, Epilogue>,
}

/// Kernels that read a result and can run as soon as it is there, since they wait for nothing
/// later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Epilogue {
    /// Bytes that they read and write.
    pub bytes: u64,
    /// The part of these that is the result, which a kernel of both does not read from memory.
    pub result_bytes: u64,
}

/// The traffic of `graph`; `unfused` returns the bytes that a node reads and writes if it is not
/// fused.
pub(crate) fn traffic(graph: &Graph, unfused: impl Fn(&Node) -> u64) -> Traffic {
    let mut total = Traffic::default();
    let mut roots: HashSet<ValueId> = HashSet::new();
    let fused =
        |value: &ValueId| Some(source(graph, *value)).filter(|value| is_fused(graph, *value));
    for node in graph.nodes() {
        match kind(&node.op) {
            Kind::View | Kind::Fused => {}
            // The bytes of products are counted with their FLOPs.
            Kind::Kept | Kind::Matmul => roots.extend(node.operands.iter().filter_map(fused)),
            Kind::Reduction => roots.extend(node.results()),
            Kind::Update => {
                roots.extend(node.results());
                roots.extend(fused(&node.operands[0]));
            }
            Kind::Alone => {
                if !is_counted_elsewhere(&node.op) {
                    total.bytes += unfused(node);
                    total.num_kernels += 1;
                }
                roots.extend(node.operands.iter().filter_map(fused));
            }
        }
    }
    roots.extend(graph.outputs().iter().filter_map(|output| fused(&output.value)));
    let stages = stages(graph, &roots);
    for root in &roots {
        let (node, read) = (graph.node_of(*root), reads(graph, *root, &roots));
        let num_read = read.iter().map(|(_, bytes)| bytes).sum::<u64>();
        // A value that depends on nothing in memory is computed where it is used.
        if num_read > 0 || kind(&node.op) != Kind::Fused {
            let written = if kind(&node.op) == Kind::Update { node.operands[1] } else { *root };
            let bytes = num_read + graph.ty(written).num_bytes() as u64;
            total.bytes += bytes;
            total.num_kernels += 1;
            let last = read.iter().max_by_key(|(value, _)| (stages[value.index()], value.index()));
            if let Some((value, result_bytes)) = last
                && graph.node_of(*value).op.is_matmul()
            {
                let epilogue = total.epilogues.entry(*value).or_default();
                epilogue.bytes += bytes;
                epilogue.result_bytes += result_bytes;
            }
        }
    }
    total
}

/// How many kernels, one after the other, each value waits for.
fn stages(graph: &Graph, roots: &HashSet<ValueId>) -> Vec<usize> {
    let mut stages = vec![0; graph.num_values()];
    for node in graph.nodes() {
        let operands = node.operands.iter().map(|value| stages[value.index()]);
        let latest = operands.max().unwrap_or(0);
        for value in node.results() {
            let in_memory = roots.contains(&value) || !is_computed(graph, value);
            stages[value.index()] = latest + usize::from(in_memory);
        }
    }
    stages
}

/// The values in memory that the kernel of `root` reads, and how many bytes of each.
fn reads(graph: &Graph, root: ValueId, roots: &HashSet<ValueId>) -> Vec<(ValueId, u64)> {
    let elements = |value: ValueId| graph.ty(value).num_elements() as u64;
    let mut read = vec![];
    // Elements that the kernel needs of each value. Values are numbered in program order, so the
    // last one's users have all been visited.
    let mut needed = BTreeMap::from([(root, elements(root))]);
    while let Some((value, num_needed)) = needed.pop_last() {
        let num_needed = num_needed.min(elements(value));
        let in_memory = roots.contains(&value) || !is_computed(graph, value);
        if in_memory && value != root {
            read.push((value, num_needed * graph.ty(value).dtype.size_bytes() as u64));
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
    read
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

/// The value that owns the bytes of `value`.
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

/// `true` for ops without memory traffic of their own: inputs move nothing, loops and cases are
/// counted by their bodies, collectives by their bytes on the network.
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
        op if op.is_matmul() => Kind::Matmul,
        // Marks of values with several users, which compilers write once rather than compute for
        // each user.
        Op::FusionBarrier | Op::BlockBoundary => Kind::Kept,
        Op::Reduce { .. } => Kind::Reduction,
        Op::DynamicUpdateSlice => Kind::Update,
        Op::Reshape { .. }
        | Op::BitcastConvert(_)
        | Op::Vary { .. }
        | Op::Replicated { .. }
        | Op::StopGradient => Kind::View,
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
