//! The greatest elements of each row, sorted.

use std::cmp::Reverse;

use super::ints;
use crate::Literal;

/// The values and their i32 indices; equal elements keep their order.
pub(super) fn top_k(x: &Literal, k: usize) -> [Literal; 2] {
    let Some((n, batch)) = x.dims().split_last() else { unreachable!("infer rejects scalars") };
    let keys = if x.dtype().is_float() { total_order(x) } else { ints(x) };
    let width = x.dtype().size_bytes();
    let dims = [batch, &[k]].concat();
    let mut values = Literal::zeros(x.dtype(), &dims);
    let mut indices = vec![];
    for (row, keys) in keys.chunks(*n).enumerate() {
        let mut order: Vec<usize> = (0..*n).collect();
        // Stable, so that equal elements keep their order.
        order.sort_by_key(|index| Reverse(keys[*index]));
        for index in &order[..k] {
            let (from, to) = ((row * n + index) * width, indices.len() * width);
            values.bytes_mut()[to..to + width].copy_from_slice(&x.bytes()[from..from + width]);
            indices.push(*index as i32);
        }
    }
    [values, Literal::from_slice(&dims, &indices)]
}

/// Integers in the same order as the floats in IEEE 754's total order.
fn total_order(x: &Literal) -> Vec<i128> {
    let (width, sign) = (x.dtype().size_bytes(), 1i128 << (x.dtype().size_bits() - 1));
    let key = |bytes: &[u8]| {
        let bits = bytes.iter().rev().fold(0i128, |bits, byte| bits << 8 | i128::from(*byte));
        // -0 is just below 0.
        if bits & sign == 0 { bits } else { sign - 1 - bits }
    };
    x.bytes().chunks(width).map(key).collect()
}
