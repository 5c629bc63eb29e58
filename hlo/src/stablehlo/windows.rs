//! StableHLO text of ops with sliding windows.

use super::{RegionContext, mlir_type, reducer};
use crate::{Convolution, Node, Reduction, TensorType, Window, WindowDim};

/// `result` is the result type in the text.
pub(super) fn convolution(
    context: &RegionContext<'_>,
    node: &Node,
    convolution: &Convolution,
    result: &str,
) -> String {
    let Convolution { dims, window, feature_group_count, batch_group_count } = convolution;
    // The role of each dim, in the order of the dims.
    let roles = |roles: &[usize], first_two: [&str; 2]| {
        let mut names = vec![String::new(); roles.len()];
        for (i, dim) in roles.iter().enumerate() {
            names[*dim] =
                first_two.get(i).map_or_else(|| (i - 2).to_string(), |name| (*name).into());
        }
        format!("[{}]", names.join(", "))
    };
    let each = |of: fn(&WindowDim) -> usize| window.iter().map(of).collect::<Vec<_>>();
    let pad: Vec<_> = window.iter().map(|dim| [dim.low, dim.high]).collect();
    format!(
        "stablehlo.convolution({}) dim_numbers = {}x{}->{}, window = {{stride = {:?}, pad = \
         {pad:?}, lhs_dilate = {:?}, rhs_dilate = {:?}}} {{batch_group_count = {batch_group_count} \
         : i64, feature_group_count = {feature_group_count} : i64}} : ({}) -> {result}",
        context.list(&node.operands),
        roles(&dims.lhs, ["b", "f"]),
        roles(&dims.rhs, ["o", "i"]),
        roles(&dims.result, ["b", "f"]),
        each(|dim| dim.stride),
        each(|dim| dim.base_dilation),
        each(|dim| dim.window_dilation),
        context.types(node.operands.iter().copied()),
    )
}

pub(super) fn reduce_window(
    context: &RegionContext<'_>,
    node: &Node,
    reduction: Reduction,
    window: &Window,
    identity: &str,
) -> String {
    let ty = context.graph.ty(node.operands[0]);
    format!(
        "\"stablehlo.reduce_window\"({}, {identity}) <{{base_dilations = {}, {}, \
         window_dilations = {}, {}}}> {} : ({}, {}) -> {}",
        context.list(&node.operands),
        window_array(window, |dim| dim.base_dilation),
        window_padding(window),
        window_array(window, |dim| dim.window_dilation),
        window_sizes_and_strides(window),
        reducer(reduction, ty.dtype),
        context.types(node.operands.iter().copied()),
        mlir_type(&TensorType::new(ty.dtype, &[])),
        context.types(node.results()),
    )
}

pub(super) fn select_and_scatter(
    context: &RegionContext<'_>,
    node: &Node,
    window: &Window,
    zero: &str,
) -> String {
    let dtype = context.graph.ty(node.operands[0]).dtype;
    let ty = mlir_type(&TensorType::new(dtype, &[]));
    let add = reducer(Reduction::Sum, dtype);
    format!(
        "\"stablehlo.select_and_scatter\"({}, {zero}) <{{{}, {}}}> ({{ ^bb0(%x: {ty}, %y: {ty}): \
         %r = stablehlo.compare GE, %x, %y, FLOAT : ({ty}, {ty}) -> tensor<i1> \
         stablehlo.return %r : tensor<i1> }}, {} : ({}, {ty}) -> {}",
        context.list(&node.operands),
        window_padding(window),
        window_sizes_and_strides(window),
        add.trim_start_matches('('),
        context.types(node.operands.iter().copied()),
        context.types(node.results()),
    )
}

fn window_padding(window: &Window) -> String {
    let pad: Vec<_> = window.dims.iter().map(|dim| [dim.low, dim.high]).collect();
    format!("padding = dense<{pad:?}> : tensor<{}x2xi64>", pad.len())
}

fn window_sizes_and_strides(window: &Window) -> String {
    format!(
        "window_dimensions = {}, window_strides = {}",
        i64_array(&window.sizes),
        window_array(window, |dim| dim.stride)
    )
}

fn window_array(window: &Window, of: fn(&WindowDim) -> usize) -> String {
    i64_array(&window.dims.iter().map(of).collect::<Vec<_>>())
}

fn i64_array(values: &[usize]) -> String {
    let values: Vec<_> = values.iter().map(usize::to_string).collect();
    format!("array<i64: {}>", values.join(", "))
}
