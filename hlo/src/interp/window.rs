//! Sliding windows: convolutions and pooling, element by element.

use super::contract::{float_identity, int_identity, step};
use super::elementwise::{float_binary, int_binary};
use super::movement::{offsets, row_major};
use super::{from_ints, ints};
use crate::{Convolution, Literal, Reduction, Window, WindowDim};

/// The offsets of a product's factors in input and kernel.
type Product = (usize, usize);

/// `dims` are those of the result.
pub(super) fn convolution(
    lhs: &Literal,
    rhs: &Literal,
    convolution: &Convolution,
    dims: &[usize],
) -> Literal {
    let products = products(lhs.dims(), rhs.dims(), convolution, dims);
    if lhs.dtype().is_float() {
        let (x, w) = (lhs.to_f64(), rhs.to_f64());
        let sum =
            |products: &Vec<Product>| products.iter().fold(0.0, |s, (i, j)| s + x[*i] * w[*j]);
        Literal::from_f64(lhs.dtype(), dims, &products.iter().map(sum).collect::<Vec<_>>())
    } else {
        let (x, w) = (ints(lhs), ints(rhs));
        let sum = |products: &Vec<Product>| {
            let products = products.iter().map(|(i, j)| x[*i].wrapping_mul(w[*j]));
            products.fold(0, i128::wrapping_add)
        };
        from_ints(lhs.dtype(), dims, &products.iter().map(sum).collect::<Vec<_>>())
    }
}

/// For each element of the result, row-major, the products that add up to it.
fn products(
    lhs: &[usize],
    rhs: &[usize],
    convolution: &Convolution,
    result: &[usize],
) -> Vec<Vec<Product>> {
    let roles = &convolution.dims;
    let [lhs_strides, rhs_strides] = [row_major(lhs), row_major(rhs)];
    let (inputs, outputs) = (rhs[roles.rhs[1]], rhs[roles.rhs[0]]);
    let batch = result[roles.result[0]];
    let of_group = |output: usize, groups: usize| output / (outputs / groups);
    let products = |at: Vec<usize>| {
        let (example, output) = (at[roles.result[0]], at[roles.result[1]]);
        let example = of_group(output, convolution.batch_group_count) * batch + example;
        let first_input = of_group(output, convolution.feature_group_count) * inputs;
        let from = (
            example * lhs_strides[roles.lhs[0]] + first_input * lhs_strides[roles.lhs[1]],
            output * rhs_strides[roles.rhs[0]],
        );
        let (x, w) = (lhs_strides[roles.lhs[1]], rhs_strides[roles.rhs[1]]);
        let mut products: Vec<_> = (0..inputs).map(|i| (from.0 + i * x, from.1 + i * w)).collect();
        for (i, window) in convolution.window.iter().enumerate() {
            let (x, w) = (lhs_strides[roles.lhs[i + 2]], rhs_strides[roles.rhs[i + 2]]);
            let (base, size) = (lhs[roles.lhs[i + 2]], rhs[roles.rhs[i + 2]]);
            let covered = covered(window, at[roles.result[i + 2]], size, base);
            products = products
                .iter()
                .flat_map(|from| covered.iter().map(move |(b, k)| (from.0 + b * x, from.1 + k * w)))
                .collect();
        }
        products
    };
    indices(result).map(products).collect()
}

/// `(index in the base, index in the window)` for each window element that covers an element of the
/// base.
fn covered(window: &WindowDim, position: usize, size: usize, base: usize) -> Vec<(usize, usize)> {
    (0..size).filter_map(|k| Some((window.base_index(position, k, base)?, k))).collect()
}

/// Every index of a tensor, row-major.
fn indices(dims: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    let strides = row_major(dims);
    offsets(0, dims, &strides).into_iter().map(move |offset| {
        strides.iter().zip(dims).map(|(stride, dim)| offset / stride % dim).collect()
    })
}

/// For each position of the window, row-major, the offsets of the elements that it covers,
/// row-major.
fn covered_at_each_position(
    base: &[usize],
    window: &Window,
    positions: &[usize],
) -> Vec<Vec<usize>> {
    let strides = row_major(base);
    let at_place = |at: Vec<usize>| {
        let along = (0..base.len())
            .map(|i| covered(&window.dims[i], at[i], window.sizes[i], base[i]).into_iter());
        along.zip(&strides).fold(vec![0], |offsets, (covered, stride)| {
            let covered: Vec<_> = covered.map(|(index, _)| index * stride).collect();
            offsets.iter().flat_map(|from| covered.iter().map(move |by| from + by)).collect()
        })
    };
    indices(positions).map(at_place).collect()
}

/// `dims` are those of the result.
pub(super) fn reduce_window(
    reduction: Reduction,
    x: &Literal,
    window: &Window,
    dims: &[usize],
) -> Literal {
    let op = step(reduction);
    let windows = covered_at_each_position(x.dims(), window, dims);
    if x.dtype().is_float() {
        let (x, dtype) = (x.to_f64(), x.dtype());
        let identity = float_identity(reduction);
        let reduced = |at: &Vec<usize>| at.iter().fold(identity, |r, i| float_binary(op, r, x[*i]));
        Literal::from_f64(dtype, dims, &windows.iter().map(reduced).collect::<Vec<_>>())
    } else {
        let (x, dtype) = (ints(x), x.dtype());
        let identity = int_identity(reduction, dtype);
        let reduced =
            |at: &Vec<usize>| at.iter().fold(identity, |r, i| int_binary(op, dtype, r, x[*i]));
        from_ints(dtype, dims, &windows.iter().map(reduced).collect::<Vec<_>>())
    }
}

/// Among equals the first is selected. A comparison with NaN is false and selects the later
/// element.
pub(super) fn select_and_scatter(x: &Literal, source: &Literal, window: &Window) -> Literal {
    let (values, source_values) = (x.to_f64(), source.to_f64());
    let mut result = vec![0.0; values.len()];
    let windows = covered_at_each_position(x.dims(), window, source.dims());
    for (at, value) in windows.into_iter().zip(source_values) {
        let selected =
            at.into_iter().reduce(|best, i| if values[best] >= values[i] { best } else { i });
        if let Some(selected) = selected {
            result[selected] += value;
        }
    }
    Literal::from_f64(x.dtype(), x.dims(), &result)
}
