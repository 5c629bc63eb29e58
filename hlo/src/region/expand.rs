//! Expansion of scan, remat and custom VJPs into other ops.

use std::borrow::Cow;
use std::sync::Arc;

use super::{Scan, stacked};
use crate::op::Regions;
use crate::rewriter::{self, rebuild_values};
use crate::tensor::Tracer;
use crate::{AxisSet, DType, Graph, Literal, Node, Op, Tensor, TensorType, ValueId};

/// Replaces every scan by a `while`, and every remat and custom VJP by its body's ops, in loops and
/// branches too.
pub(crate) fn expand(graph: &Graph) -> Cow<'_, Graph> {
    if !needs_expansion(graph) {
        return Cow::Borrowed(graph);
    }
    Cow::Owned(rebuild_values(graph, |new, node, operands| {
        Some(match &node.op {
            Op::Scan(scan) => as_while(new, scan, node, operands),
            op => match op.inlined_body() {
                Some(body) => {
                    inline(new, &expand(&body.graph), operands, node.location.is_backward)
                }
                None => {
                    let inner = op.with_regions(|region| expand(region).into_owned());
                    push(new, node, inner.unwrap_or_else(|| op.clone()), operands)
                }
            },
        })
    }))
}

fn needs_expansion(graph: &Graph) -> bool {
    graph.nodes().iter().any(|node| match &node.op {
        Op::Scan(_) => true,
        op => op.inlined_body().is_some() || op.regions().into_iter().any(needs_expansion),
    })
}

/// Appends a graph's nodes, with these values as its inputs. Returns its outputs. With
/// `is_backward`, the nodes belong to the backward pass.
pub(crate) fn inline(
    new: &mut Graph,
    graph: &Graph,
    inputs: &[ValueId],
    is_backward: bool,
) -> Vec<ValueId> {
    // Indexed by the old values, which are numbered in node order.
    let mut map: Vec<ValueId> = Vec::with_capacity(graph.num_values());
    for node in graph.nodes() {
        if let Op::Input { index } = &node.op {
            map.push(inputs[*index]);
            continue;
        }
        let operands: Vec<_> = node.operands.iter().map(|operand| map[operand.index()]).collect();
        let location = node.location.or_backward(is_backward);
        let first = rewriter::push_at(new, location, node.op.clone(), &operands);
        map.extend(new.node_of(first).results());
    }
    graph.outputs().iter().map(|output| map[output.value.index()]).collect()
}

/// The loop carries a counter, the constants, the carried values, the stacks that are read and
/// those that are written. Returns the scan's results.
fn as_while(new: &mut Graph, scan: &Scan, node: &Node, operands: &[ValueId]) -> Vec<ValueId> {
    let (num_operands, num_carried) = (operands.len(), scan.num_carried);
    let body = expand(&scan.body.graph);
    let mut carried = vec![push(new, node, Op::Constant(Arc::new(Literal::scalar(0u32))), &[])[0]];
    carried.extend(operands);
    let ys = body.outputs()[num_carried..].iter();
    let ys: Vec<_> = ys.map(|y| stacked(body.ty(y.value), scan.length)).collect();
    carried.extend(ys.iter().map(|ty| zeros(new, node, ty)));

    let types: Vec<_> = carried.iter().map(|value| new.ty(*value).clone()).collect();
    let region = |f: &dyn for<'b> Fn(&'b Tracer, &[Tensor<'b>]) -> Vec<Tensor<'b>>| {
        let t = Tracer::new(*new.mesh());
        t.at(node.location, || {
            let inputs = types.iter().enumerate();
            let inputs: Vec<_> =
                inputs.map(|(i, ty)| t.input(format!("carried.{i}"), ty.clone())).collect();
            for (i, output) in f(&t, &inputs).into_iter().enumerate() {
                t.output_varying(format!("carried.{i}"), output, AxisSet::ALL);
            }
        });
        t.finish().expect("a scan's types were checked")
    };
    let cond = region(&|_, carried| vec![carried[0].less(scan.length as f64)]);
    let body = region(&|t, carried| {
        let (counter, rest) = (carried[0], &carried[1..]);
        let index = if scan.reverse { (scan.length - 1) as f64 - counter } else { counter };
        let (inputs, stacks) = rest.split_at(num_operands);
        let (whole, xs) = inputs.split_at(scan.num_consts + num_carried);
        let slices = xs.iter().map(|x| x.index_leading(index));
        let inputs: Vec<_> = whole.iter().copied().chain(slices).collect();
        let outputs = t.inline(&body, &inputs);
        let (next, slices) = outputs.split_at(num_carried);
        let written = stacks.iter().zip(slices).map(|(stack, slice)| {
            let mut start = vec![t.scalar(DType::U32, 0.0); stack.rank()];
            start[0] = index;
            let slice = slice.reshape(&[&[1], &slice.shape()[..]].concat());
            stack.dynamic_update_slice(slice, &start)
        });
        let consts = &whole[..scan.num_consts];
        let mut all = vec![counter + 1.0];
        all.extend(consts.iter().chain(next).chain(xs).copied().chain(written));
        all
    });
    let op = Op::While {
        regions: Arc::new(Regions { cond, body }),
        trip_count: Some(scan.length as u64),
    };
    let left = push(new, node, op, &carried);
    let first = 1 + scan.num_consts;
    let ys = &left[1 + num_operands..];
    left[first..first + num_carried].iter().chain(ys).copied().collect()
}

fn zeros(new: &mut Graph, node: &Node, ty: &TensorType) -> ValueId {
    let zero = Op::Constant(Arc::new(Literal::zeros(ty.dtype, &[])));
    let zero = push(new, node, zero, &[])[0];
    let op = Op::BroadcastInDim { dims: ty.dims.clone(), broadcast_dims: vec![] };
    let zeros = push(new, node, op, &[zero])[0];
    match ty.varying.is_empty() {
        true => zeros,
        false => push(new, node, Op::Vary { axes: ty.varying }, &[zeros])[0],
    }
}

pub(super) fn push(new: &mut Graph, node: &Node, op: Op, operands: &[ValueId]) -> Vec<ValueId> {
    let first = rewriter::push(new, node, op, operands);
    new.node_of(first).results().collect()
}
