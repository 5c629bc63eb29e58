//! One all_reduce for a stack of gradients.
//!
//! The gradient of blocks that run as a scan is a stack. It is sliced into the gradients of the blocks'
//! parameters, each with its own all_reduce. All slices are complete at the same time, when the loop ends, so
//! reducing the whole stack is the same work in fewer collectives.

use std::collections::HashMap;

use hlo::{Graph, Groups, Op, Reduction, ValueId, rebuild};

/// Finds values that are sliced along a dim into adjacent pieces, each only summed over the same axes, and sums the
/// whole value before it is sliced.
///
/// Each element and the order in which replicas are summed stay the same, so results are equal bit for bit.
pub fn reduce_whole_stacks(graph: &Graph) -> Graph {
    let stacks = stacks(graph);
    let mut reduced: HashMap<ValueId, ValueId> = HashMap::new();
    rebuild(graph, |new, node, operands| {
        let copy = |new: &mut Graph, op: Op, operands: &[ValueId]| {
            new.push(op, operands, node.location).expect("a copied node fits its copied operands")
        };
        let stack_of = |value: &ValueId| match graph.node_of(*value).op {
            Op::Slice { .. } => stacks.get(&graph.node_of(*value).operands[0]).copied(),
            _ => None,
        };
        Some(match &node.op {
            Op::Slice { .. } if stack_of(&node.result()).is_some() => {
                let groups = stacks[&node.operands[0]];
                let op = Op::AllReduce { reduction: Reduction::Sum, groups };
                let whole = *reduced.entry(operands[0]).or_insert_with(|| copy(new, op, operands));
                copy(new, node.op.clone(), &[whole])
            }
            Op::AllReduce { .. } if stack_of(&node.operands[0]).is_some() => operands[0],
            op => copy(new, op.clone(), operands),
        })
    })
}

/// The values to be summed as a whole, and the groups to sum over.
fn stacks(graph: &Graph) -> HashMap<ValueId, Groups> {
    let mut users: Vec<Vec<usize>> = vec![vec![]; graph.num_values()];
    for (index, node) in graph.nodes().iter().enumerate() {
        for operand in &node.operands {
            users[operand.index()].push(index);
        }
    }
    let mut is_output = vec![false; graph.num_values()];
    for output in graph.outputs() {
        is_output[output.value.index()] = true;
    }
    // The groups over which a piece is summed, if that is all that happens to it.
    let summed_over = |piece: ValueId| {
        let [user] = users[piece.index()][..] else { return None };
        let node = &graph.nodes()[user];
        match node.op {
            Op::AllReduce { reduction: Reduction::Sum, groups }
                if node.operands.len() == 1 && !is_output[piece.index()] =>
            {
                Some(groups)
            }
            _ => None,
        }
    };
    let whole = |value: ValueId| {
        let pieces: Vec<_> =
            users[value.index()].iter().map(|user| &graph.nodes()[*user]).collect();
        let groups = summed_over(pieces.first()?.result())?;
        let mut ranges = vec![];
        for piece in &pieces {
            let Op::Slice { start, limit, strides } = &piece.op else { return None };
            if strides.iter().any(|stride| *stride != 1)
                || summed_over(piece.result()) != Some(groups)
            {
                return None;
            }
            ranges.push((start, limit));
        }
        let fits = pieces.len() > 1 && !is_output[value.index()];
        (fits && are_neighbours(&graph.ty(value).dims, ranges)).then_some(groups)
    };
    let values = graph.nodes().iter().flat_map(|node| node.results());
    values.filter_map(|value| Some((value, whole(value)?))).collect()
}

/// `true` if the ranges cover the dims, one after the other along one of them.
fn are_neighbours(dims: &[usize], mut ranges: Vec<(&Vec<usize>, &Vec<usize>)>) -> bool {
    let is_cut = |dim: &usize| ranges[0].0[*dim] != 0 || ranges[0].1[*dim] != dims[*dim];
    let Some(cut) = (0..dims.len()).find(is_cut) else { return false };
    ranges.sort_unstable();
    let mut end = 0;
    for (start, limit) in ranges {
        let fits = |dim: usize| match dim == cut {
            true => start[dim] == end,
            false => start[dim] == 0 && limit[dim] == dims[dim],
        };
        if !(0..dims.len()).all(fits) {
            return false;
        }
        end = limit[cut];
    }
    end == dims[cut]
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo::{Axis, AxisSet, DType, Literal, Mesh, Tensor, TensorType, interpret, trace, verify};

    fn num_all_reduces(graph: &Graph) -> usize {
        graph.nodes().iter().filter(|node| matches!(node.op, Op::AllReduce { .. })).count()
    }

    /// `x` `[4]` on two replicas, with the results of `pieces(x)` as outputs.
    fn cut(pieces: impl for<'g> FnOnce(Tensor<'g>) -> Vec<Tensor<'g>>) -> Graph {
        let graph = trace(Mesh::data(2), |t| {
            let ty = TensorType::new(DType::F32, &[4]).varying(Axis::Data.into());
            for (i, piece) in pieces(t.input("x", ty)).into_iter().enumerate() {
                t.output_varying(format!("piece.{i}"), piece, AxisSet::ALL);
            }
        });
        graph.unwrap()
    }

    fn sum(x: Tensor<'_>) -> Tensor<'_> {
        x.all_reduce(Reduction::Sum, Axis::Data)
    }

    fn halves(x: Tensor<'_>) -> [Tensor<'_>; 2] {
        [x.slice_dim(0, 0, 2), x.slice_dim(0, 2, 4)]
    }

    #[test]
    fn the_slices_of_a_stack_are_summed_at_once_with_the_same_values() {
        let graph = cut(|x| vec![sum(x.slice_dim(0, 1, 4)), sum(x.slice_dim(0, 0, 1))]);
        let whole = reduce_whole_stacks(&graph);
        verify(&whole).unwrap();
        assert_eq!((num_all_reduces(&graph), num_all_reduces(&whole)), (2, 1));
        let x = |start: f32| Literal::from_slice(&[4], &[start, 0.1, 0.2, 0.3]);
        let inputs = [vec![x(1.0), x(0.7)]];
        assert_eq!(interpret(&whole, &inputs).unwrap(), interpret(&graph, &inputs).unwrap());
    }

    #[test]
    fn a_stack_that_is_not_summed_whole_is_left_alone() {
        let left_alone = [
            cut(|x| vec![sum(halves(x)[0])]),
            cut(|x| vec![sum(x.slice_dim(0, 0, 3)), sum(x.slice_dim(0, 2, 4))]),
            cut(|x| halves(x).iter().flat_map(|half| [sum(*half), *half]).collect()),
            cut(|x| vec![sum(halves(x)[0]), sum(halves(x)[1]), x]),
            cut(|x| vec![sum(halves(x)[0]), halves(x)[1]]),
            cut(|x| vec![sum(x.slice_dim(0, 0, 4)), sum(x.slice_dim(0, 0, 4)) * 2.0]),
        ];
        for (i, graph) in left_alone.iter().enumerate() {
            let whole = reduce_whole_stacks(graph);
            assert_eq!(num_all_reduces(&whole), num_all_reduces(graph), "case {i}");
        }
    }
}
