//! The timing of gathers and scatters of parameters, by barriers at the boundaries of blocks.

use std::collections::HashMap;

use crate::ops::custom_vjp::moves_elements;
use crate::passes::eliminate_dead_code;
use crate::rewriter::{Rewriter, push, rebuild, rebuild_values};
use crate::{Graph, Groups, Node, Op, ValueId};

/// Times the all_gathers of inputs by the marks of [`crate::Tensor::block_boundary`], in the
/// forward and in the backward pass, so that the parameters of at most two blocks are whole at a
/// time:
///
/// - An input is gathered for each block that uses it, unless the block before does too. The gather
///   waits for the start of the block before. So it overlaps with that block, and does not begin
///   any earlier.
/// - A reduce_scatter over the same groups ends before the second block after its own begins. So it
///   overlaps with one block, and whole gradients do not wait for the end of the backward pass.
///
/// The barriers that order this replace the marks, and those that [`crate::Tracer::remat`] and
/// [`crate::Tracer::custom_vjp_recomputed`] put before such gathers. Bodies of loops and branches
/// are treated in the same way. Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded
/// data parallel" (2023), section 3.3, call this prefetching and rate limiting.
pub fn tie_gathers(graph: &Graph) -> Graph {
    // Without boundaries, the barriers that are there keep the gathers of the backward pass apart
    // from the others.
    if !graph.nodes().iter().any(|node| node.op == Op::BlockBoundary) {
        return rebuild(graph, |new, node, operands| {
            let op = node.op.with_regions(tie_gathers).unwrap_or_else(|| node.op.clone());
            Some(push(new, node, op, operands))
        });
    }
    let blocks = Blocks::of(graph);
    let mut tied = Tied {
        blocks: &blocks,
        copy: Rewriter::new(graph),
        block: 0,
        shards: HashMap::new(),
        whole: HashMap::new(),
    };
    for node in graph.nodes() {
        match node.op {
            Op::BlockBoundary => tied.boundary(node),
            // Emitted where it is used.
            _ if blocks.gather_of.contains_key(&node.result()) => {}
            _ => tied.copy(node),
        }
    }
    for output in graph.outputs() {
        let value = tied.mapped(output.value);
        tied.copy.set(output.value, value);
    }
    without_unused_barriers(&eliminate_dead_code(&tied.copy.finish()))
}

/// The gathers and scatters of each block. Blocks are numbered from 0, and a boundary begins the
/// next.
#[derive(Default)]
struct Blocks<'a> {
    /// The distinct gathers of inputs.
    gathers: Vec<Gather<'a>>,
    /// The gather that a value is the result of, directly or through ops that only move or convert
    /// elements.
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
    /// The ops on the input before it is gathered, without barriers.
    prepared_by: Vec<&'a Node>,
}

impl<'a> Blocks<'a> {
    fn of(graph: &'a Graph) -> Self {
        let mut blocks = Self::default();
        let mut scatters = vec![];
        let mut block = 0;
        for node in graph.nodes() {
            if let Some(gather) = node.operands.first().and_then(|x| blocks.gather_of.get(x))
                && moves_elements(&node.op)
            {
                blocks.gather_of.insert(node.result(), *gather);
                continue;
            }
            for gather in node.operands.iter().filter_map(|x| blocks.gather_of.get(x)) {
                if blocks.used_in[*gather].last() != Some(&block) {
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

    /// Adds a gather. If an equal one is known, only its result is added.
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
        let ops = self.prepared_by.iter().map(|node| &node.op);
        (self.input, &self.node.op) == (other.input, &other.node.op)
            && ops.eq(other.prepared_by.iter().map(|node| &node.op))
    }
}

/// A graph that is copied with barriers.
struct Tied<'a> {
    blocks: &'a Blocks<'a>,
    /// Has no values of what is gathered.
    copy: Rewriter<'a>,
    /// The number of the current block.
    block: usize,
    /// The operands of gathers, as returned by the barrier of their boundary.
    shards: HashMap<usize, ValueId>,
    /// The latest value of each gather and of what is derived from it, and the last block that used
    /// it. Equal gathers share one.
    whole: HashMap<ValueId, (usize, ValueId)>,
}

impl Tied<'_> {
    fn copy(&mut self, node: &Node) {
        if let Op::Input { index } = node.op {
            return self.copy.input(index);
        }
        let operands: Vec<_> = node.operands.iter().map(|operand| self.mapped(*operand)).collect();
        let op = node.op.with_regions(tie_gathers).unwrap_or_else(|| node.op.clone());
        let first = self.copy.push(node, op, &operands);
        self.copy.set_results(node.results(), first);
    }

    fn mapped(&mut self, value: ValueId) -> ValueId {
        match self.blocks.gather_of.get(&value) {
            Some(gather) => self.gathered(value, *gather),
            None => self.copy.value(value),
        }
    }

    /// A gathered value in the current block: that of the block before, if it used it, or a new
    /// one.
    fn gathered(&mut self, value: ValueId, gather: usize) -> ValueId {
        let node = self.copy.old().node_of(value);
        let is_gather = matches!(node.op, Op::AllGather { .. });
        let key = if is_gather { self.blocks.gathers[gather].node.result() } else { value };
        let found = match self.whole.get(&key) {
            Some((last, found)) if last + 1 >= self.block => *found,
            _ => {
                let operand = match (is_gather, self.shards.get(&gather)) {
                    (true, Some(shard)) => *shard,
                    (true, None) => self.shard(&self.blocks.gathers[gather]),
                    (false, _) => self.gathered(node.operands[0], gather),
                };
                self.copy.push(node, node.op.clone(), &[operand])
            }
        };
        self.whole.insert(key, (self.block, found));
        found
    }

    /// The operand of a gather, from the input.
    fn shard(&mut self, gather: &Gather<'_>) -> ValueId {
        let input = self.copy.value(gather.input);
        let prepare = |value, node: &&Node| self.copy.push(node, node.op.clone(), &[value]);
        gather.prepared_by.iter().fold(input, prepare)
    }

    /// A barrier in place of a mark: for the marked value, the operands of gathers that may begin
    /// after it, and scatters that end before it.
    fn boundary(&mut self, node: &Node) {
        let marked = self.mapped(node.operands[0]);
        self.block += 1;
        let next = self.blocks.gathers_for(self.block + 1);
        let ended = self.block.checked_sub(2).and_then(|block| self.blocks.scatters.get(&block));
        let ended = ended.map_or(&[][..], Vec::as_slice);
        let mut operands = vec![marked];
        for gather in &next {
            operands.push(self.shard(&self.blocks.gathers[*gather]));
        }
        operands.extend(ended.iter().map(|scatter| self.copy.value(*scatter)));
        if operands.len() > 1 {
            let first = self.copy.push(node, Op::OptimizationBarrier, &operands);
            operands = self.copy.copied().node_of(first).results().collect();
        }
        self.copy.set(node.result(), operands[0]);
        let (shards, scattered) = operands[1..].split_at(next.len());
        self.shards.extend(next.into_iter().zip(shards.iter().copied()));
        ended.iter().zip(scattered).for_each(|(old, new)| self.copy.set(*old, *new));
    }
}

/// Removes values that no later op uses from the barriers of a graph, and barriers with a single
/// value left.
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
        // An unused result may be mapped to any value.
        let result =
            |(operand, used): (&ValueId, &bool)| if *used { kept.next() } else { Some(*operand) };
        operands.iter().zip(&used).map(result).collect()
    })
}
