//! The timing of gathers and scatters of parameters, by barriers at the boundaries of blocks.

use std::collections::HashMap;

use crate::rebuild::push;
use crate::{Graph, Groups, Node, Op, ValueId};

/// Replaces the marks of [`crate::Tensor::block_boundary`] by barriers, so that the parameters of at most two blocks
/// are whole at a time, in the forward and in the backward pass:
///
/// - An all_gather of an input waits for the start of the block before the one that contains it. So it overlaps with
///   that block, and does not begin any earlier.
/// - A reduce_scatter over the same groups ends before the second block after its own begins. So it overlaps with one
///   block, and whole gradients do not wait for the end of the backward pass.
///
/// Barriers before such an all_gather, which [`crate::Tracer::remat`] and [`crate::Tracer::custom_vjp_recomputed`] put
/// there, give way to the one at the boundary. In loops and branches too. Zhao et al., "PyTorch FSDP: experiences on
/// scaling fully sharded data parallel" (2023), section 3.3, calls this prefetching and rate limiting.
pub fn tie_gathers(graph: &Graph) -> Graph {
    let blocks = Blocks::of(graph);
    let mut new = Graph::new(*graph.mesh());
    let mut map: Vec<Option<ValueId>> = vec![None; graph.num_values()];
    // The operands of gathers after the barrier of their boundary.
    let mut shards: HashMap<ValueId, ValueId> = HashMap::new();
    let mut block = 0;
    for node in graph.nodes() {
        if let Op::Input { index } = node.op {
            let input = &graph.inputs()[index];
            let ty = graph.ty(input.value).clone();
            map[input.value.index()] = Some(new.input(input.name.clone(), ty, node.location));
            continue;
        }
        let mut operands: Vec<_> = node.operands.iter().map(|value| mapped(&map, *value)).collect();
        let results = match &node.op {
            Op::BlockBoundary => {
                block += 1;
                let gathers = blocks.gathers.get(&(block + 1)).map_or(&[][..], Vec::as_slice);
                let ended = block.checked_sub(2).and_then(|ended| blocks.scatters.get(&ended));
                let scatters = ended.map_or(&[][..], Vec::as_slice);
                operands.extend(gathers.iter().map(|gather| gather.shard(&mut new, &map)));
                operands.extend(scatters.iter().map(|scatter| mapped(&map, *scatter)));
                if operands.len() > 1 {
                    let first = push(&mut new, node, Op::OptimizationBarrier, &operands);
                    operands = new.node_of(first).results().collect();
                    let (at_hand, ended) = operands[1..].split_at(gathers.len());
                    shards.extend(gathers.iter().map(|gather| gather.result).zip(at_hand.to_vec()));
                    for (scatter, value) in scatters.iter().zip(ended) {
                        map[scatter.index()] = Some(*value);
                    }
                }
                vec![operands[0]]
            }
            op => {
                if let Some(shard) = shards.get(&node.result()) {
                    operands = vec![*shard];
                }
                let op = op.with_regions(tie_gathers).unwrap_or_else(|| op.clone());
                let first = push(&mut new, node, op, &operands);
                new.node_of(first).results().collect()
            }
        };
        for (old, new) in node.results().zip(results) {
            map[old.index()] = Some(new);
        }
    }
    for output in graph.outputs() {
        new.output(crate::Output { value: mapped(&map, output.value), ..output.clone() });
    }
    new
}

fn mapped(map: &[Option<ValueId>], value: ValueId) -> ValueId {
    map[value.index()].expect("operands precede their users")
}

/// The collectives of each block. Blocks are numbered from 0, and a boundary begins the next.
#[derive(Default)]
struct Blocks<'a> {
    gathers: HashMap<usize, Vec<Gather<'a>>>,
    scatters: HashMap<usize, Vec<ValueId>>,
}

/// An all_gather of an input.
struct Gather<'a> {
    result: ValueId,
    input: ValueId,
    /// What is done to the input before it is gathered, without barriers.
    prepared_by: Vec<&'a Node>,
}

impl<'a> Blocks<'a> {
    fn of(graph: &'a Graph) -> Self {
        let mut blocks = Self::default();
        let mut groups: Vec<Groups> = vec![];
        let mut scatters = vec![];
        let mut block = 0;
        for node in graph.nodes() {
            match &node.op {
                Op::BlockBoundary => block += 1,
                Op::AllGather { groups: of_it, .. } => {
                    if let Some(gather) = Gather::of_input(graph, node) {
                        blocks.gathers.entry(block).or_default().push(gather);
                        groups.push(*of_it);
                    }
                }
                Op::ReduceScatter { groups, .. } => scatters.push((block, *groups, node.result())),
                _ => {}
            }
        }
        for (block, _, result) in scatters.into_iter().filter(|(_, of, _)| groups.contains(of)) {
            blocks.scatters.entry(block).or_default().push(result);
        }
        blocks
    }
}

impl<'a> Gather<'a> {
    /// `None` if the operand is computed.
    fn of_input(graph: &'a Graph, gather: &Node) -> Option<Self> {
        let mut value = gather.operands[0];
        let mut prepared_by = vec![];
        loop {
            let node = graph.node_of(value);
            value = match node.op {
                Op::Input { .. } => break,
                Op::OptimizationBarrier => {
                    let place = node.results().position(|result| result == value)?;
                    node.operands[place]
                }
                Op::FusionBarrier => node.operands[0],
                Op::Convert(_) | Op::Vary { .. } | Op::Reshape { .. } | Op::Transpose { .. } => {
                    prepared_by.push(node);
                    node.operands[0]
                }
                _ => return None,
            };
        }
        prepared_by.reverse();
        Some(Self { result: gather.result(), input: value, prepared_by })
    }

    /// The operand of the gather, from the input.
    fn shard(&self, new: &mut Graph, map: &[Option<ValueId>]) -> ValueId {
        let input = mapped(map, self.input);
        self.prepared_by
            .iter()
            .fold(input, |value, node| push(new, node, node.op.clone(), &[value]))
    }
}
