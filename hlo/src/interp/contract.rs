//! Reductions and matrix products: each result element is rounded once, at the end.

use std::ops::Range;

use super::elementwise::{float_binary, int_binary};
use super::movement::{offsets, row_major, transpose};
use super::{from_ints, int_range, ints};
use crate::{Binary, DType, DotDims, Literal, Reduction};

/// The op with which a reduction combines two elements.
pub(super) fn step(reduction: Reduction) -> Binary {
    match reduction {
        Reduction::Sum => Binary::Add,
        Reduction::Max => Binary::Maximum,
        Reduction::Min => Binary::Minimum,
        Reduction::And => Binary::And,
        Reduction::Or => Binary::Or,
    }
}

pub(super) fn reduce(reduction: Reduction, x: &Literal, dims: &[usize]) -> Literal {
    let op = step(reduction);
    let kept: Vec<_> = (0..x.dims().len()).filter(|dim| !dims.contains(dim)).collect();
    let result_dims: Vec<_> = kept.iter().map(|dim| x.dims()[*dim]).collect();
    // Elements that differ only along reduced dims have the same target.
    let mut strides = vec![0; x.dims().len()];
    for (dim, stride) in kept.iter().zip(row_major(&result_dims)) {
        strides[*dim] = stride;
    }
    let targets = offsets(0, x.dims(), &strides);
    let num_results = result_dims.iter().product();
    if x.dtype().is_float() {
        let mut results = vec![float_identity(reduction); num_results];
        for (target, x) in targets.into_iter().zip(x.to_f64()) {
            results[target] = float_binary(op, results[target], x);
        }
        Literal::from_f64(x.dtype(), &result_dims, &results)
    } else {
        let mut results = vec![int_identity(reduction, x.dtype()); num_results];
        for (target, value) in targets.into_iter().zip(ints(x)) {
            results[target] = int_binary(op, x.dtype(), results[target], value);
        }
        from_ints(x.dtype(), &result_dims, &results)
    }
}

pub(super) fn float_identity(reduction: Reduction) -> f64 {
    match reduction {
        Reduction::Max => f64::NEG_INFINITY,
        Reduction::Min => f64::INFINITY,
        Reduction::Sum | Reduction::And | Reduction::Or => 0.0,
    }
}

pub(super) fn int_identity(reduction: Reduction, dtype: DType) -> i128 {
    let (least, greatest) = int_range(dtype);
    match reduction {
        Reduction::Max => least,
        Reduction::Min | Reduction::And => greatest,
        Reduction::Sum | Reduction::Or => 0,
    }
}

/// Element ranges of a row of the left and of a row of the right operand.
type RowPair = (Range<usize>, Range<usize>);

/// `dims` are those of the result.
pub(super) fn dot_general(lhs: &Literal, rhs: &Literal, dot: &DotDims, dims: &[usize]) -> Literal {
    let lhs_free = dot.lhs_free(lhs.dims().len());
    let rhs_free = dot.rhs_free(rhs.dims().len());
    let size = |x: &Literal, of: &[usize]| of.iter().map(|dim| x.dims()[*dim]).product::<usize>();
    let (batch, k) = (size(lhs, &dot.lhs_batch), size(lhs, &dot.lhs_contracting));
    let (m, n) = (size(lhs, &lhs_free), size(rhs, &rhs_free));
    // Rows to be multiplied become contiguous: [batch, free, contracting].
    let lhs = transpose(lhs, &[&*dot.lhs_batch, &lhs_free, &dot.lhs_contracting].concat());
    let rhs = transpose(rhs, &[&*dot.rhs_batch, &rhs_free, &dot.rhs_contracting].concat());
    let row = |index: usize| index * k..(index + 1) * k;
    let rows = || {
        let pairs = (0..batch).flat_map(move |b| (0..m).map(move |i| (b, i)));
        pairs.flat_map(move |(b, i)| (0..n).map(move |j| (row(b * m + i), row(b * n + j))))
    };
    if lhs.dtype().is_float() {
        let (x, y) = (lhs.to_f64(), rhs.to_f64());
        let product = |(i, j): RowPair| x[i].iter().zip(&y[j]).fold(0.0, |sum, (x, y)| sum + x * y);
        let values: Vec<_> = rows().map(product).collect();
        Literal::from_f64(lhs.dtype(), dims, &values)
    } else {
        let (x, y) = (ints(&lhs), ints(&rhs));
        let product = |(i, j): RowPair| {
            let products = x[i].iter().zip(&y[j]).map(|(x, y)| x.wrapping_mul(*y));
            products.fold(0, i128::wrapping_add)
        };
        let values: Vec<_> = rows().map(product).collect();
        from_ints(lhs.dtype(), dims, &values)
    }
}
