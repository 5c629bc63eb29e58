//! The timing of gathers and scatters of parameters, by barriers at the boundaries of blocks.

use std::collections::HashMap;

use crate::passes::eliminate_dead_code;
use crate::rebuild::{push, rebuild_values};
use crate::{Graph, Groups, Node, Op, Output, ValueId};

/// Times the all_gathers of inputs by the marks of [`crate::Tensor::block_boundary`], in the forward and in the
/// backward pass, so that the parameters of at most two blocks are whole at a time:
///
/// - An input is gathered for each block that uses it, unless the block before does too. The gather waits for the
///   start of the block before. So it overlaps with that block, and does not begin any earlier.
/// - A reduce_scatter over the same groups ends before the second block after its own begins. So it overlaps with one
///   block, and whole gradients do not wait for the end of the backward pass.
///
/// The barriers that order this replace the marks, and those that [`crate::Tracer::remat`] and
/// [`crate::Tracer::custom_vjp_recomputed`] put before such gathers. In loops and branches too. Zhao et al., "PyTorch
/// FSDP: experiences on scaling fully sharded data parallel" (2023), section 3.3, calls this prefetching and rate
/// limiting.
pub fn tie_gathers(graph: &Graph) -> Graph {
    let blocks = Blocks::of(graph);
    let mut tied = Tied { old: graph, new: Graph::new(*graph.mesh()), map: HashMap::new() };
    // The operand of each gather after the barrier of its boundary, and the gather's result in the latest block.
    let mut shards: HashMap<usize, ValueId> = HashMap::new();
    let mut whole: HashMap<usize, (usize, ValueId)> = HashMap::new();
    let mut block = 0;
    for node in graph.nodes() {
        if let Op::BlockBoundary = node.op {
            block += 1;
            let next = blocks.gathers_for(block + 1);
            let ended = block.checked_sub(2).and_then(|ended| blocks.scatters.get(&ended));
            tied.boundary(
                node,
                &blocks.gathers,
                &next,
                ended.map_or(&[][..], Vec::as_slice),
                &mut shards,
            );
            continue;
        }
        if blocks.gather_of.contains_key(&node.result()) {
            continue;
        }
        for operand in &node.operands {
            let Some(gather) = blocks.gather_of.get(operand) else { continue };
            let value = match whole.get(gather) {
                Some((last, value)) if last + 1 >= block => *value,
                _ => tied.gather(&blocks.gathers[*gather], shards.get(gather).copied()),
            };
            whole.insert(*gather, (block, value));
            tied.map.insert(*operand, value);
        }
        tied.copy(node);
    }
    for output in graph.outputs() {
        let value = match blocks.gather_of.get(&output.value) {
            Some(gather) => tied.gather(&blocks.gathers[*gather], None),
            None => tied.map[&output.value],
        };
        tied.new.output(Output { value, ..output.clone() });
    }
    without_unused_barriers(&eliminate_dead_code(&tied.new))
}

/// The gathers and scatters of each block. Blocks are numbered from 0, and a boundary begins the next.
#[derive(Default)]
struct Blocks<'a> {
    /// All different gathers of inputs.
    gathers: Vec<Gather<'a>>,
    /// The gather that a value is the result of.
    gather_of: HashMap<ValueId, usize>,
    /// The blocks that use each gather.
    used_in: Vec<Vec<usize>>,
    /// The results of a block's scatters.
    scatters: HashMap<usize, Vec<ValueId>>,
}

/// An all_gather of an input.
struct Gather<'a> {
    node: &'a Node,
    input: ValueId,
    /// What is done to the input before it is gathered, without barriers.
    prepared_by: Vec<&'a Node>,
}

impl<'a> Blocks<'a> {
    fn of(graph: &'a Graph) -> Self {
        let mut blocks = Self::default();
        let mut scatters = vec![];
        let mut block = 0;
        for node in graph.nodes() {
            for operand in &node.operands {
                if let Some(gather) = blocks.gather_of.get(operand)
                    && blocks.used_in[*gather].last() != Some(&block)
                {
                    blocks.used_in[*gather].push(block);
                }
            }
            match &node.op {
                Op::BlockBoundary => block += 1,
                Op::AllGather { .. } => blocks.extend(Gather::of_input(graph, node)),
                Op::ReduceScatter { groups, .. } => scatters.push((block, *groups, node.result())),
                _ => {}
            }
        }
        let is_gathered = |groups: &Groups| {
            blocks.gathers.iter().any(|gather| gather.node.op.groups() == Some(*groups))
        };
        scatters.retain(|(_, groups, _)| is_gathered(groups));
        for (block, _, result) in scatters {
            blocks.scatters.entry(block).or_default().push(result);
        }
        blocks
    }

    /// Adds a gather, or the result to an equal one.
    fn extend(&mut self, gather: Option<Gather<'a>>) {
        let Some(gather) = gather else { return };
        let result = gather.node.result();
        let equal = self.gathers.iter().position(|other| other.is_same(&gather));
        let index = equal.unwrap_or_else(|| {
            self.gathers.push(gather);
            self.used_in.push(vec![]);
            self.gathers.len() - 1
        });
        self.gather_of.insert(result, index);
    }

    /// The gathers that a block uses, but not the block before.
    fn gathers_for(&self, block: usize) -> Vec<usize> {
        let is_new = |used_in: &Vec<usize>| {
            let before = block.checked_sub(1);
            used_in.contains(&block) && !before.is_some_and(|before| used_in.contains(&before))
        };
        (0..self.gathers.len()).filter(|gather| is_new(&self.used_in[*gather])).collect()
    }
}

impl<'a> Gather<'a> {
    /// `None` if the operand is computed.
    fn of_input(graph: &'a Graph, node: &'a Node) -> Option<Self> {
        let mut value = node.operands[0];
        let mut prepared_by = vec![];
        loop {
            let before = graph.node_of(value);
            value = match before.op {
                Op::Input { .. } => break,
                Op::OptimizationBarrier => {
                    let place = before.results().position(|result| result == value)?;
                    before.operands[place]
                }
                Op::FusionBarrier => before.operands[0],
                Op::Convert(_) | Op::Vary { .. } | Op::Reshape { .. } | Op::Transpose { .. } => {
                    prepared_by.push(before);
                    before.operands[0]
                }
                _ => return None,
            };
        }
        prepared_by.reverse();
        Some(Self { node, input: value, prepared_by })
    }

    fn is_same(&self, other: &Self) -> bool {
        let ops = |gather: &Self| -> Vec<Op> {
            gather.prepared_by.iter().map(|node| node.op.clone()).collect()
        };
        (self.input, &self.node.op) == (other.input, &other.node.op) && ops(self) == ops(other)
    }
}

/// A graph that is copied, and the new values of the old ones.
struct Tied<'a> {
    old: &'a Graph,
    new: Graph,
    map: HashMap<ValueId, ValueId>,
}

impl Tied<'_> {
    fn copy(&mut self, node: &Node) {
        if let Op::Input { index } = node.op {
            let input = &self.old.inputs()[index];
            let ty = self.old.ty(input.value).clone();
            let value = self.new.input(input.name.clone(), ty, node.location);
            self.map.insert(input.value, value);
            return;
        }
        let operands: Vec<_> = node.operands.iter().map(|operand| self.map[operand]).collect();
        let op = node.op.with_regions(tie_gathers).unwrap_or_else(|| node.op.clone());
        let first = push(&mut self.new, node, op, &operands);
        self.map.extend(node.results().zip(self.new.node_of(first).results()));
    }

    /// A barrier in the place of a mark: for the marked value, the operands of gathers that may begin after it, and
    /// scatters that end before it.
    fn boundary(
        &mut self,
        node: &Node,
        gathers: &[Gather<'_>],
        next: &[usize],
        ended: &[ValueId],
        shards: &mut HashMap<usize, ValueId>,
    ) {
        let mut operands = vec![self.map[&node.operands[0]]];
        operands.extend(next.iter().map(|gather| self.operand(&gathers[*gather])));
        operands.extend(ended.iter().map(|scatter| self.map[scatter]));
        if operands.len() > 1 {
            let first = push(&mut self.new, node, Op::OptimizationBarrier, &operands);
            operands = self.new.node_of(first).results().collect();
        }
        self.map.insert(node.result(), operands[0]);
        shards.extend(next.iter().copied().zip(operands[1..].iter().copied()));
        self.map.extend(ended.iter().copied().zip(operands[1 + next.len()..].iter().copied()));
    }

    /// The operand of a gather, from the input.
    fn operand(&mut self, gather: &Gather<'_>) -> ValueId {
        let input = self.map[&gather.input];
        let prepare = |value, node: &&Node| push(&mut self.new, node, node.op.clone(), &[value]);
        gather.prepared_by.iter().fold(input, prepare)
    }

    fn gather(&mut self, gather: &Gather<'_>, shard: Option<ValueId>) -> ValueId {
        let operand = shard.unwrap_or_else(|| self.operand(gather));
        push(&mut self.new, gather.node, gather.node.op.clone(), &[operand])
    }
}

/// Removes what no later op uses from the barriers of a graph, and the barriers of which one value is left.
fn without_unused_barriers(graph: &Graph) -> Graph {
    let mut is_used = vec![false; graph.num_values()];
    for node in graph.nodes() {
        for operand in &node.operands {
            is_used[operand.index()] = true;
        }
    }
    for output in graph.outputs() {
        is_used[output.value.index()] = true;
    }
    rebuild_values(graph, |new, node, operands| {
        let results = |new: &Graph, first| new.node_of(first).results().collect();
        let used: Vec<_> = node.results().map(|result| is_used[result.index()]).collect();
        if node.op != Op::OptimizationBarrier || used.iter().all(|used| *used) {
            let first = push(new, node, node.op.clone(), operands);
            return Some(results(new, first));
        }
        let kept: Vec<_> = operands.iter().zip(&used).filter(|(_, used)| **used).collect();
        let kept: Vec<_> = kept.into_iter().map(|(operand, _)| *operand).collect();
        let mut kept = match kept.len() {
            0 | 1 => kept.into_iter(),
            _ => {
                let first = push(new, node, Op::OptimizationBarrier, &kept);
                results(new, first).into_iter()
            }
        };
        // A result that nothing uses may stand for any value.
        let result =
            |(operand, used): (&ValueId, &bool)| if *used { kept.next() } else { Some(*operand) };
        operands.iter().zip(&used).map(result).collect()
    })
}
