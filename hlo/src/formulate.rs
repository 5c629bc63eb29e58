//! Passes that write the same in the form that a backend is fastest with. Which one gets which is the
//! caller's to say.

use crate::passes::{push, rebuild};
use crate::{Binary, Convolution, Graph, Node, Op, TensorType, ValueId};

/// Without the hints that [`crate::Tensor::fusion_barrier`] gives: for a backend that fuses as it should.
pub fn without_fusion_barriers(graph: &Graph) -> Graph {
    everywhere(graph, &|_, node, operands, _| match node.op {
        Op::FusionBarrier => Some(operands[0]),
        _ => None,
    })
}

/// Each convolution that is a kernel's gradient, a sum over the examples of the batch, as the sum of
/// `num_chunks` convolutions over parts of the batch: for a backend that runs one convolution on one
/// thread, and several side by side. Where the batch does not divide, and in dtypes that are added up in a
/// wider one, it stays as it is.
pub fn split_kernel_gradients(graph: &Graph, num_chunks: usize) -> Graph {
    everywhere(graph, &|new, node, operands, result| {
        let Op::Convolution(convolution) = &node.op else { return None };
        let types = [operands[0], operands[1]].map(|operand| new.ty(operand).clone());
        let dims = [convolution.dims.lhs[1], convolution.dims.rhs[1]];
        let splits = num_chunks > 1
            && types[0].dtype.accumulation() == types[0].dtype
            && is_kernel_gradient(convolution, &types[1], result)
            && types[0].dims[dims[0]].is_multiple_of(num_chunks);
        splits.then(|| {
            let chunk = |new: &mut Graph, chunk: usize| {
                let parts = [0, 1].map(|i| {
                    let op = part(&types[i], dims[i], chunk, num_chunks);
                    push(new, node, op, &[operands[i]])
                });
                push(new, node, node.op.clone(), &parts)
            };
            let first = chunk(new, 0);
            (1..num_chunks).fold(first, |sum, index| {
                let next = chunk(new, index);
                push(new, node, Op::Binary(Binary::Add), &[sum, next])
            })
        })
    })
}

/// What a kernel's gradient looks like: the cotangent stands as a kernel that is larger than the result.
fn is_kernel_gradient(convolution: &Convolution, kernel: &TensorType, result: &TensorType) -> bool {
    let places = |ty: &TensorType, roles: &[usize]| -> usize {
        roles[2..].iter().map(|dim| ty.dims[*dim]).product()
    };
    let Convolution { dims, feature_group_count, batch_group_count, .. } = convolution;
    *feature_group_count == 1
        && *batch_group_count == 1
        && places(result, &dims.result) < places(kernel, &dims.rhs)
}

/// The slice that takes part `index` of `num_parts` along a dim.
fn part(ty: &TensorType, dim: usize, index: usize, num_parts: usize) -> Op {
    let size = ty.dims[dim] / num_parts;
    let (mut start, mut limit) = (vec![0; ty.rank()], ty.dims.clone());
    (start[dim], limit[dim]) = (index * size, (index + 1) * size);
    Op::Slice { start, limit, strides: vec![1; ty.rank()] }
}

/// What takes a node's place: from the new graph, the node, its new operands and its result's type.
type Replace<'a> = dyn Fn(&mut Graph, &Node, &[ValueId], &TensorType) -> Option<ValueId> + 'a;

/// Replaces nodes with one result, in loops and branches too.
fn everywhere(graph: &Graph, replace: &Replace<'_>) -> Graph {
    rebuild(graph, |new, node, operands| {
        if let Some(op) = node.op.with_regions(|region| everywhere(region, replace)) {
            return Some(push(new, node, op, operands));
        }
        let replaced = replace(new, node, operands, graph.ty(node.result()));
        Some(replaced.unwrap_or_else(|| push(new, node, node.op.clone(), operands)))
    })
}
