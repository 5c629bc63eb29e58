//! Sums of the rows of a matrix.

use crate::vectors::vectorized;
use crate::{Element, Pool, Real};

/// Rows that a task adds up: their sums are added in the order of the tasks.
const ROWS: usize = 128;

/// Columns that a task adds up, which stay in the first cache.
const COLUMNS: usize = 1024;

/// `out[j] = sum over i of x[i, j]`, where `x` has as many columns as `out` has elements.
///
/// # Panics
/// If `x` has no whole number of rows.
pub fn sum_rows<T: Element>(pool: &Pool<'_>, out: &mut [T], x: &[T]) {
    T::sum_rows(pool, out, x);
}

pub(crate) fn compute<T: Real>(pool: &Pool<'_>, out: &mut [T], x: &[T]) {
    let width = out.len();
    if width == 0 {
        return;
    }
    assert!(x.len().is_multiple_of(width), "{} elements in rows of {width}", x.len());
    let num_parts = x.len().div_ceil(width * ROWS);
    let mut parts = vec![T::default(); num_parts * width];
    let columns = parts.chunks_mut(width).enumerate().flat_map(|(part, sums)| {
        sums.chunks_mut(COLUMNS).enumerate().map(move |(i, sums)| (part, i * COLUMNS, sums))
    });
    pool.for_each(columns, |_, (part, first_column, sums)| {
        let rows = x[part * ROWS * width..].chunks_exact(width).take(ROWS);
        add_rows(sums, rows.map(|row| &row[first_column..]));
    });
    out.fill(T::default());
    add_rows(out, parts.chunks_exact(width));
}

fn add_rows<'a, T: Real>(sums: &mut [T], mut rows: impl Iterator<Item = &'a [T]>) {
    vectorized(
        #[inline(always)]
        || {
            for row in &mut rows {
                for (sum, x) in sums.iter_mut().zip(row) {
                    *sum += *x;
                }
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_all_rows() {
        for (rows, columns) in [(0, 5), (1, 1), (127, 16), (128, 3), (300, 1030), (1000, 40)] {
            let x: Vec<f64> = (0..rows * columns).map(|i| (i * 31 % 17) as f64 - 8.0).collect();
            let expected: Vec<f64> = (0..columns)
                .map(|column| (0..rows).map(|row| x[row * columns + column]).sum())
                .collect();
            for num_helpers in [0, 2] {
                let mut out = vec![7.0; columns];
                sum_rows(&Pool::new(num_helpers).unwrap(), &mut out, &x);
                assert_eq!(out, expected, "{rows} x {columns}");
            }
        }
    }
}
