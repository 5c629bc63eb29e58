//! When collectives can run: from when their operands are known until their result is needed.

use crate::branches::{Branches, TakenBranches};
use crate::count::{matmul_flops, most_expensive};
use crate::region::expand;
use crate::{Communication, DType, Graph, Groups, Node, Op, count};

/// An execution of a collective, and the time in which it can overlap with matmuls. Time is the
/// fraction of the graph's matmul FLOPs that are done, if matmuls run in the order of the graph,
/// and everything else as early as it can.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfer {
    /// StableHLO's name: `all_reduce`, `all_gather`, ...
    pub kind: &'static str,
    /// That of the operands.
    pub dtype: DType,
    /// The replica groups.
    pub groups: Groups,
    /// Bytes of the tensor that a group shares: see [`Communication::whole_bytes`].
    pub whole_bytes: u64,
    /// [`Communication::summed_elements`].
    pub summed_elements: u64,
    /// When its operands are known.
    pub ready: f64,
    /// When the first matmul, loop or output depends on its result.
    pub needed: f64,
    /// How many collectives of the same graph or loop body it depends on, one after the other.
    pub depth: usize,
}

/// Loops with more iterations are counted as if they had this many, with proportionally larger
/// collectives.
const MAX_ITERATIONS: u64 = 256;

/// The collectives, in the order in which their operands are known.
///
/// A collective in a loop is listed once per iteration. It starts and ends within its iteration,
/// since compilers do not move it to another one.
pub fn transfers(graph: &Graph) -> Vec<Transfer> {
    let mut found = vec![];
    let graph = expand(graph);
    let total = collect(&mut found, &graph, 0.0, &Branches::default());
    let progress = |flops: f64| if total > 0.0 { (flops / total).min(1.0) } else { 1.0 };
    for transfer in &mut found {
        transfer.ready = progress(transfer.ready);
        transfer.needed = progress(transfer.needed);
    }
    found.sort_by(|a, b| a.ready.total_cmp(&b.ready));
    found
}

/// Adds the collectives of a graph that starts after `start` FLOPs and takes these branches. Its
/// outputs are needed after its last matmul. Returns the FLOPs at which it ends.
fn collect(found: &mut Vec<Transfer>, graph: &Graph, start: f64, taken: &Branches) -> f64 {
    let flops_of = |node: &Node| match taken.of(node) {
        Some(branch) => count(branch).matmul_flops(),
        None => matmul_flops(graph, node),
    };
    let flops: Vec<f64> = graph.nodes().iter().map(|node| flops_of(node) as f64).collect();
    // FLOPs before each node.
    let mut before = Vec::with_capacity(graph.nodes().len());
    let mut done = start;
    let mut known_at = vec![start; graph.num_values()];
    let mut depths = vec![0; graph.num_values()];
    for (node, flops) in graph.nodes().iter().zip(&flops) {
        before.push(done);
        done += flops;
        let operands = node.operands.iter().map(|value| known_at[value.index()]);
        let known = if *flops > 0.0 { done } else { operands.fold(start, f64::max) };
        let depth = depth(&depths, node) + usize::from(Communication::of(graph, node, 1).is_some());
        for value in node.results() {
            known_at[value.index()] = known;
            depths[value.index()] = depth;
        }
    }
    let end = done;
    let mut needed_at = vec![end; graph.num_values()];
    let all = || graph.nodes().iter().zip(&before).zip(&flops);
    for ((node, before), flops) in all().rev() {
        let results = node.results().map(|value| needed_at[value.index()]);
        let needed = if *flops > 0.0 { *before } else { results.fold(end, f64::min) };
        for operand in &node.operands {
            let at = &mut needed_at[operand.index()];
            *at = at.min(needed);
        }
    }
    for ((node, before), flops) in all() {
        let ready = || {
            let operands = node.operands.iter().map(|value| known_at[value.index()]);
            operands.fold(start, f64::max)
        };
        match &node.op {
            Op::While { .. } => {
                let from = if *flops > 0.0 { *before } else { ready() };
                iterations(found, graph, node, from);
            }
            Op::Case { branches } => {
                if let Some(branch) = taken.of(node).or_else(|| most_expensive(branches)) {
                    collect(found, branch, *before, &Branches::default());
                }
            }
            _ => {
                let needed = node.results().map(|value| needed_at[value.index()]);
                let (ready, needed) = (ready(), needed.fold(end, f64::min));
                let transfer = transfer(graph, node, ready, needed);
                found.extend(transfer.map(|t| Transfer { depth: depth(&depths, node), ..t }));
            }
        }
    }
    done
}

/// The most collectives, one after the other, that a node depends on.
fn depth(depths: &[usize], node: &Node) -> usize {
    node.operands.iter().map(|value| depths[value.index()]).max().unwrap_or(0)
}

/// Adds the collectives of a loop that starts after `from` FLOPs.
fn iterations(found: &mut Vec<Transfer>, graph: &Graph, node: &Node, from: f64) {
    let Op::While { regions, trip_count } = &node.op else { return };
    let (taken, trips) = (TakenBranches::of(graph, node), trip_count.unwrap_or(1));
    let listed = trips.min(MAX_ITERATIONS);
    // Of an iteration that starts at 0, by the branches that it takes.
    let mut known: Vec<(Branches, Vec<Transfer>, f64)> = vec![];
    let mut start = from;
    for i in 0..listed {
        let branches = taken.in_iteration(i * trips / listed);
        let at = known.iter().position(|(of, ..)| *of == branches).unwrap_or_else(|| {
            let mut once = vec![];
            let flops = collect(&mut once, &regions.body, 0.0, &branches);
            known.push((branches, once, flops));
            known.len() - 1
        });
        let (_, once, flops) = &known[at];
        found.extend(once.iter().map(|transfer| Transfer {
            whole_bytes: transfer.whole_bytes.saturating_mul(trips) / listed,
            ready: transfer.ready + start,
            needed: transfer.needed + start,
            ..*transfer
        }));
        start += flops * trips as f64 / listed as f64;
    }
}

fn transfer(graph: &Graph, node: &Node, ready: f64, needed: f64) -> Option<Transfer> {
    let Communication { kind, dtype, groups, whole_bytes, summed_elements, .. } =
        Communication::of(graph, node, 1)?;
    let needed = needed.max(ready);
    Some(Transfer { kind, dtype, groups, whole_bytes, summed_elements, ready, needed, depth: 0 })
}
