//! Ops that move elements bitwise, including the payloads of NaNs.
//!
//! Elements of operands and results are addressed by [`offsets`]: a first offset and a stride per
//! dim.

use super::{from_ints, ints};
use crate::{DType, Literal, TensorType};

/// `base + index . strides` for each index of `dims`, row-major.
pub(super) fn offsets(base: usize, dims: &[usize], strides: &[usize]) -> Vec<usize> {
    dims.iter().zip(strides).fold(vec![base], |offsets, (size, stride)| {
        offsets.iter().flat_map(|offset| (0..*size).map(move |i| offset + i * stride)).collect()
    })
}

/// The strides of a row-major tensor.
pub(super) fn row_major(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for dim in (1..dims.len()).rev() {
        strides[dim - 1] = strides[dim] * dims[dim];
    }
    strides
}

pub(super) fn iota(dtype: DType, dims: &[usize], dim: usize) -> Literal {
    let mut strides = vec![0; dims.len()];
    strides[dim] = 1;
    let indices = offsets(0, dims, &strides);
    if dtype.is_float() {
        let values: Vec<_> = indices.into_iter().map(|i| i as f64).collect();
        Literal::from_f64(dtype, dims, &values)
    } else {
        let values: Vec<_> = indices.into_iter().map(|i| i as i128).collect();
        from_ints(dtype, dims, &values)
    }
}

/// The same bytes with another type.
pub(super) fn relabel(x: &Literal, ty: &TensorType) -> Literal {
    let mut result = Literal::zeros(ty.dtype, &ty.dims);
    result.bytes_mut().copy_from_slice(x.bytes());
    result
}

pub(super) fn broadcast_in_dim(x: &Literal, dims: &[usize], broadcast_dims: &[usize]) -> Literal {
    let mut strides = vec![0; dims.len()];
    for ((size, stride), dim) in x.dims().iter().zip(row_major(x.dims())).zip(broadcast_dims) {
        strides[*dim] = if *size == 1 { 0 } else { stride };
    }
    read(x, dims, 0, &strides)
}

pub(super) fn transpose(x: &Literal, permutation: &[usize]) -> Literal {
    let strides = row_major(x.dims());
    let permuted = |values: &[usize]| permutation.iter().map(|dim| values[*dim]).collect();
    let [dims, strides]: [Vec<_>; 2] = [permuted(x.dims()), permuted(&strides)];
    read(x, &dims, 0, &strides)
}

/// `dims` are those of the result, which replace the limits.
pub(super) fn slice(x: &Literal, dims: &[usize], start: &[usize], steps: &[usize]) -> Literal {
    let strides = row_major(x.dims());
    let base = start.iter().zip(&strides).map(|(start, stride)| start * stride).sum();
    let strides: Vec<_> = strides.iter().zip(steps).map(|(stride, step)| stride * step).collect();
    read(x, dims, base, &strides)
}

pub(super) fn reverse(x: &Literal, dims: &[usize]) -> Literal {
    let mut from = vec![0];
    for (dim, (size, stride)) in x.dims().iter().zip(row_major(x.dims())).enumerate() {
        let place = |i: usize| if dims.contains(&dim) { size - 1 - i } else { i };
        let along: Vec<_> = (0..*size).map(|i| place(i) * stride).collect();
        from = from.iter().flat_map(|base| along.iter().map(move |i| base + i)).collect();
    }
    let mut result = x.clone();
    for (to, from) in from.into_iter().enumerate() {
        copy(x, from, &mut result, to);
    }
    result
}

pub(super) fn dynamic_slice(x: &Literal, sizes: &[usize], start: &[&Literal]) -> Literal {
    slice(x, sizes, &clamped_start(x.dims(), sizes, start), &vec![1; sizes.len()])
}

pub(super) fn dynamic_update_slice(x: &Literal, update: &Literal, start: &[&Literal]) -> Literal {
    let strides = row_major(x.dims());
    let start = clamped_start(x.dims(), update.dims(), start);
    let base = start.iter().zip(&strides).map(|(start, stride)| start * stride).sum();
    let mut result = x.clone();
    for (from, to) in offsets(base, update.dims(), &strides).into_iter().enumerate() {
        copy(update, from, &mut result, to);
    }
    result
}

/// `start`, clamped so that a slice of `sizes` is within `dims`.
fn clamped_start(dims: &[usize], sizes: &[usize], start: &[&Literal]) -> Vec<usize> {
    let last = dims.iter().zip(sizes).map(|(dim, size)| dim - size);
    last.zip(start).map(|(last, start)| ints(start)[0].clamp(0, last as i128) as usize).collect()
}

/// Piece `index` of `pieces` equal pieces along `dim`.
pub(super) fn piece(x: &Literal, dim: usize, pieces: usize, index: usize) -> Literal {
    let (mut dims, mut start) = (x.dims().to_vec(), vec![0; x.dims().len()]);
    dims[dim] /= pieces;
    start[dim] = index * dims[dim];
    slice(x, &dims, &start, &vec![1; dims.len()])
}

pub(super) fn pad(
    x: &Literal,
    value: &Literal,
    dims: &[usize],
    low: &[i64],
    interior: &[usize],
) -> Literal {
    let mut result = read(value, dims, 0, &vec![0; dims.len()]);
    // The target of each element; `None` if a negative edge cuts it off.
    let mut targets = vec![Some(0)];
    for (dim, stride) in row_major(dims).into_iter().enumerate() {
        let place = |i: usize| {
            let place = i128::from(low[dim]) + i as i128 * (interior[dim] as i128 + 1);
            usize::try_from(place).ok().filter(|place| *place < dims[dim])
        };
        let along: Vec<_> = (0..x.dims()[dim]).map(place).collect();
        let joined = targets.iter().flat_map(|target: &Option<usize>| {
            along.iter().map(move |place| Some((*target)? + (*place)? * stride))
        });
        targets = joined.collect();
    }
    for (from, target) in targets.into_iter().enumerate() {
        if let Some(target) = target {
            copy(x, from, &mut result, target);
        }
    }
    result
}

/// Needs at least one operand.
pub(super) fn concatenate(operands: &[&Literal], dim: usize) -> Literal {
    let mut dims = operands[0].dims().to_vec();
    dims[dim] = operands.iter().map(|x| x.dims()[dim]).sum();
    let mut result = Literal::zeros(operands[0].dtype(), &dims);
    let strides = row_major(&dims);
    let mut base = 0;
    for x in operands {
        for (from, to) in offsets(base, x.dims(), &strides).into_iter().enumerate() {
            copy(x, from, &mut result, to);
        }
        base += x.dims()[dim] * strides[dim];
    }
    result
}

pub(super) fn select(pred: &Literal, on_true: &Literal, on_false: &Literal) -> Literal {
    let mut result = on_false.clone();
    for (i, holds) in pred.bytes().iter().enumerate() {
        if *holds != 0 {
            copy(on_true, i, &mut result, i);
        }
    }
    result
}

fn read(x: &Literal, dims: &[usize], base: usize, strides: &[usize]) -> Literal {
    let mut result = Literal::zeros(x.dtype(), dims);
    for (to, from) in offsets(base, dims, strides).into_iter().enumerate() {
        copy(x, from, &mut result, to);
    }
    result
}

/// Copies element `from` of `x` to element `to` of `result`, which has the same dtype.
fn copy(x: &Literal, from: usize, result: &mut Literal, to: usize) {
    let size = x.dtype().size_bytes();
    let element = &x.bytes()[from * size..][..size];
    result.bytes_mut()[to * size..][..size].copy_from_slice(element);
}
