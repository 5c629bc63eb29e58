//! Gather and scatter; for their shapes see `ops::gather`.

use super::elementwise::binary;
use super::ints;
use crate::{Binary, Literal};

/// `dims` are those of the result.
pub(super) fn gather(x: &Literal, indices: &Literal, num_batch: usize, dims: &[usize]) -> Literal {
    let Rows { size, num_bytes, per_batch } = Rows::new(x, indices, num_batch);
    let mut result = Literal::zeros(x.dtype(), dims);
    for (to, index) in ints(indices).into_iter().enumerate() {
        let row = to / per_batch * size + index.clamp(0, size as i128 - 1) as usize;
        let taken = &x.bytes()[row * num_bytes..][..num_bytes];
        result.bytes_mut()[to * num_bytes..][..num_bytes].copy_from_slice(taken);
    }
    result
}

/// Updates are added in order; the sum is rounded after each.
pub(super) fn scatter(
    x: &Literal,
    indices: &Literal,
    updates: &Literal,
    num_batch: usize,
) -> Literal {
    let Rows { size, num_bytes, per_batch } = Rows::new(x, indices, num_batch);
    let mut result = x.clone();
    for (from, index) in ints(indices).into_iter().enumerate() {
        if !(0..size as i128).contains(&index) {
            continue;
        }
        let row = from / per_batch * size + index as usize;
        let [before, update] = [(&result, row), (updates, from)].map(|(rows, index)| {
            let mut row = Literal::zeros(x.dtype(), &[num_bytes / x.dtype().size_bytes()]);
            row.bytes_mut().copy_from_slice(&rows.bytes()[index * num_bytes..][..num_bytes]);
            row
        });
        let sum = binary(Binary::Add, &before, &update);
        result.bytes_mut()[row * num_bytes..][..num_bytes].copy_from_slice(sum.bytes());
    }
    result
}

/// An operand as contiguous rows.
struct Rows {
    /// Rows in each batch.
    size: usize,
    /// Bytes of a row.
    num_bytes: usize,
    /// Indices in each batch.
    per_batch: usize,
}

impl Rows {
    fn new(x: &Literal, indices: &Literal, num_batch: usize) -> Self {
        let num_elements: usize = x.dims()[num_batch + 1..].iter().product();
        Self {
            size: x.dims()[num_batch],
            num_bytes: num_elements * x.dtype().size_bytes(),
            per_batch: indices.dims()[num_batch..].iter().product(),
        }
    }
}
