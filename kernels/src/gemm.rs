//! Products of matrices with strides: a safe form of the crate `gemm`.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ops::Range;

use ::gemm::Parallelism;

use crate::vectors::{Vectors, vectorized};
use crate::{Element, Pool};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// An element type that products are computed in.
pub trait Scalar:
    sealed::Sealed + Vectors + Copy + Send + Sync + Default + PartialEq + std::fmt::Debug + 'static
{
    /// 1.
    const ONE: Self;

    /// `a + b`.
    fn sum(a: Self, b: Self) -> Self;
}

impl Scalar for f32 {
    const ONE: Self = 1.0;

    fn sum(a: Self, b: Self) -> Self {
        a + b
    }
}

impl Scalar for f64 {
    const ONE: Self = 1.0;

    fn sum(a: Self, b: Self) -> Self {
        a + b
    }
}

/// A matrix with `data[i * row_stride + j * column_stride]` as element (i, j).
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a, T> {
    /// The elements, from the first.
    pub data: &'a [T],
    /// Rows and columns.
    pub dims: [usize; 2],
    /// Distances between rows and between columns, in elements. 0 repeats a row or column.
    pub strides: [usize; 2],
}

/// The matrix that a product is written to. No element may be the place of two.
#[derive(Debug)]
pub struct MatrixMut<'a, T> {
    /// The elements, from the first.
    pub data: &'a mut [T],
    /// Rows and columns.
    pub dims: [usize; 2],
    /// Distances between rows and between columns, in elements.
    pub strides: [usize; 2],
}

/// The number of elements that a matrix reaches over, `usize::MAX` if that is more than the address
/// space.
fn extent(dims: [usize; 2], strides: [usize; 2]) -> usize {
    if dims.contains(&0) {
        return 0;
    }
    let last = |i: usize| (dims[i] - 1).checked_mul(strides[i]);
    let extent =
        last(0).zip(last(1)).and_then(|(row, column)| row.checked_add(column)?.checked_add(1));
    extent.unwrap_or(usize::MAX)
}

/// `out = a b`, or `out += a b` to accumulate. `[m, k] x [k, n] -> [m, n]`, computed on the calling
/// thread. Each element is a sum over `k` in an order that depends on `k` alone, unless `m` or `n`
/// is 1.
///
/// # Panics
/// If the dims do not fit each other, if a matrix reaches beyond its data, or if elements of `out`
/// share a place.
pub fn multiply<T: Scalar>(
    out: MatrixMut<'_, T>,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    accumulate: bool,
) {
    let ([m, n], k) = (out.dims, a.dims[1]);
    assert!(a.dims[0] == m && b.dims == [k, n], "{:?} x {:?} -> {:?}", a.dims, b.dims, out.dims);
    assert!(extent(a.dims, a.strides) <= a.data.len(), "the first operand is too short");
    assert!(extent(b.dims, b.strides) <= b.data.len(), "the second operand is too short");
    assert!(extent(out.dims, out.strides) <= out.data.len(), "the result is too short");
    let places = vec![(out.strides[0], m), (out.strides[1], n)];
    assert!(are_distinct(places), "elements of the result share a place");
    // SAFETY: the result is borrowed mutably, so nothing else reads or writes it, and it overlaps
    // no operand. All elements are within their slices, as was just asserted.
    unsafe {
        multiply_raw(
            Place { data: out.data.as_mut_ptr(), strides: out.strides },
            (a.data.as_ptr(), a.strides),
            (b.data.as_ptr(), b.strides),
            [m, n, k],
            accumulate,
        );
    }
}

/// `true` if elements at different indices are at different places. `dims` are strides and sizes.
/// May be `false` for an unusual layout in which they are.
fn are_distinct(mut dims: Vec<(usize, usize)>) -> bool {
    if dims.iter().any(|(_, size)| *size == 0) {
        return true;
    }
    dims.retain(|(_, size)| *size > 1);
    dims.sort_unstable();
    // Each stride must be beyond what all smaller ones reach over.
    let mut reached = 0usize;
    for (stride, size) in dims {
        let reach = stride.checked_mul(size - 1).and_then(|reach| reach.checked_add(reached));
        match reach {
            Some(reach) if stride > reached => reached = reach,
            _ => return false,
        }
    }
    true
}

/// Where a product is written.
#[derive(Clone, Copy)]
struct Place<T> {
    data: *mut T,
    strides: [usize; 2],
}

impl<T> Place<T> {
    /// # Safety
    /// As [`pointer::add`].
    unsafe fn at(&self, offset: usize) -> *mut T {
        // SAFETY: by this function's contract.
        unsafe { self.data.add(offset) }
    }
}

// SAFETY: a place is only an address. Whoever writes there says why that is allowed.
unsafe impl<T: Send> Send for Place<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Place<T> {}

/// [`multiply`], of `[m, n, k]`, without its checks.
///
/// # Safety
/// All elements must be valid: those of the operands for reads, and those of the result for writes,
/// by nobody else. The result must overlap no operand, and its elements not each other.
unsafe fn multiply_raw<T: Scalar>(
    out: Place<T>,
    (a, a_strides): (*const T, [usize; 2]),
    (b, b_strides): (*const T, [usize; 2]),
    [m, n, k]: [usize; 3],
    accumulate: bool,
) {
    let signed = |strides: [usize; 2]| strides.map(|stride| stride as isize);
    let [out_row, out_column] = signed(out.strides);
    let ([a_row, a_column], [b_row, b_column]) = (signed(a_strides), signed(b_strides));
    // SAFETY: by this function's contract. Strides of matrices within a slice fit an `isize`.
    unsafe {
        ::gemm::gemm(
            m,
            n,
            k,
            out.data,
            out_column,
            out_row,
            accumulate,
            a,
            a_column,
            a_row,
            b,
            b_column,
            b_row,
            T::ONE,
            T::ONE,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// `out[..] = a[..] b[..]` in each iteration of some loops, on all threads:
/// `[m, k] x [k, n] -> [m, n]`, at strides of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Product {
    dims: [usize; 3],
    strides: [[usize; 2]; 3],
    /// Size of each loop, and its strides in `a`, `b` and `out`.
    loops: Vec<(usize, [usize; 3])>,
}

/// The least work of a task, in floating-point operations: enough to outweigh handing it to a
/// thread.
const MIN_TASK: usize = 1 << 22;

/// The least rows and columns of a tile, unless the whole result has fewer. Sums of smaller ones
/// can have another order: the crate's kernels for vectors and for small matrices begin below 65
/// rows or columns.
const MIN_TILE: usize = 96;

/// Tiles begin at multiples of this, so that they fill vectors.
const ALIGNMENT: usize = 16;

/// If the result has fewer rows or columns, the tasks do not depend on the number of threads: the
/// order of sums may depend on them.
const MIN_MATRIX: usize = 16;

/// The tasks of such a result.
const NUM_VECTOR_TASKS: usize = 16;

impl Product {
    /// `dims` are m, n and k. `strides` are those of rows and columns of `a`, `b` and `out`.
    /// `loops` are sizes, and strides in `a`, `b` and `out`. `None` if elements of the result could
    /// share a place.
    pub fn new(
        dims: [usize; 3],
        strides: [[usize; 2]; 3],
        loops: Vec<(usize, [usize; 3])>,
    ) -> Option<Self> {
        let [_, _, out] = strides;
        let mut places = vec![(out[0], dims[0]), (out[1], dims[1])];
        places.extend(loops.iter().map(|(size, [.., out])| (*out, *size)));
        are_distinct(places).then_some(Self { dims, strides, loops })
    }

    /// Number of floating-point operations: a multiplication and an addition for each term.
    pub fn flops(&self) -> usize {
        2 * self.num_iterations() * self.dims.iter().product::<usize>()
    }

    fn num_iterations(&self) -> usize {
        self.loops.iter().map(|(size, _)| *size).product()
    }

    /// Offsets in `a`, `b` and `out` of an iteration.
    fn offsets(&self, mut iteration: usize) -> [usize; 3] {
        let mut offsets = [0; 3];
        for (size, strides) in self.loops.iter().rev() {
            let index = iteration % size;
            iteration /= size;
            for (offset, stride) in offsets.iter_mut().zip(strides) {
                *offset += index * stride;
            }
        }
        offsets
    }

    /// The elements that an operand (0 or 1) or the result (2) reaches over.
    fn extent(&self, which: usize) -> usize {
        let [m, n, k] = self.dims;
        let dims = [[m, k], [k, n], [m, n]][which];
        if dims.contains(&0) || self.num_iterations() == 0 {
            return 0;
        }
        let loops: usize =
            self.loops.iter().map(|(size, strides)| (size - 1) * strides[which]).sum();
        loops + extent(dims, self.strides[which])
    }

    /// Into how many tiles the rows and the columns of a result are cut: a tile for each thread,
    /// and as square as possible, because each tile packs its part of both operands.
    fn num_tiles(&self, num_threads: usize) -> [usize; 2] {
        let [m, n, k] = self.dims;
        let wanted = match m.min(n) < MIN_MATRIX {
            true => NUM_VECTOR_TASKS,
            false => num_threads.div_ceil(self.num_iterations()),
        };
        let most = [m, n].map(|size| (size / (MIN_TILE + ALIGNMENT)).max(1));
        let most_tasks = wanted.min(2 * m * n * k / MIN_TASK).min(most[0] * most[1]);
        let cuts = |num_tasks: usize| {
            let counts =
                (1..=num_tasks).rev().filter(move |num_m| num_tasks.is_multiple_of(*num_m));
            let cuts = counts.map(move |num_m| [num_m, num_tasks / num_m]);
            let cuts = cuts.filter(|[num_m, num_n]| *num_m <= most[0] && *num_n <= most[1]);
            cuts.min_by_key(|[num_m, num_n]| m / num_m + n / num_n)
        };
        (1..=most_tasks).rev().find_map(cuts).unwrap_or([1, 1])
    }

    /// Whether `a` and `b` are to be transposed first, if the result is cut into so many tiles.
    /// Each column of tiles packs `a` again, and each row `b`, which reads rows faster than
    /// columns.
    fn transposes(&self, [num_m, num_n]: [usize; 2]) -> [bool; 2] {
        let ([_, _, k], [a, b, _]) = (self.dims, self.strides);
        let is_large = self.loops.is_empty() && k >= 64;
        let is_by_columns = |strides: [usize; 2]| strides[0] == 1 && strides[1] > 1;
        let is_packed_again = |times: usize| times > 1;
        [
            is_large && is_by_columns(a) && is_packed_again(num_n),
            is_large && is_by_columns(b) && is_packed_again(num_m),
        ]
    }

    /// Computes the results. Elements between them keep their values.
    ///
    /// # Panics
    /// If a slice is too short.
    pub fn run<T: Element>(&self, pool: &Pool<'_>, out: &mut [T], a: &[T], b: &[T]) {
        T::multiply(self, pool, out, a, b);
    }

    pub(crate) fn compute<T: Scalar>(&self, pool: &Pool<'_>, out: &mut [T], a: &[T], b: &[T]) {
        assert!(self.extent(0) <= a.len(), "the first operand is too short");
        assert!(self.extent(1) <= b.len(), "the second operand is too short");
        assert!(self.extent(2) <= out.len(), "the result is too short");
        let [m, n, k] = self.dims;
        let [a_strides, b_strides, out_strides] = self.strides;
        let num_iterations = self.num_iterations();
        if m == 0 || n == 0 || num_iterations == 0 {
            return;
        }
        let [num_m, num_n] = self.num_tiles(pool.num_threads());
        let num_tiles = num_iterations * num_m * num_n;
        let work_of_tile = 2 * m * n * k / (num_m * num_n);
        let tiles_per_task = MIN_TASK.div_ceil(work_of_tile.max(1)).min(num_tiles);
        let out = Place { data: out.as_mut_ptr(), strides: out_strides };
        let transposes = self.transposes([num_m, num_n]);
        let (by_rows_a, by_rows_b);
        let (mut a, mut a_strides, mut b, mut b_strides) = (a, a_strides, b, b_strides);
        if transposes[0] {
            by_rows_a = transposed(pool, a, [m, k], a_strides[1]);
            (a, a_strides) = (&by_rows_a, [k, 1]);
        }
        if transposes[1] {
            by_rows_b = transposed(pool, b, [k, n], b_strides[1]);
            (b, b_strides) = (&by_rows_b, [n, 1]);
        }
        pool.run(num_tiles.div_ceil(tiles_per_task), |task| {
            let first = task * tiles_per_task;
            for tile in first..(first + tiles_per_task).min(num_tiles) {
                let (iteration, tile) = (tile / (num_m * num_n), tile % (num_m * num_n));
                let rows = tile_of(tile / num_n, num_m, m);
                let columns = tile_of(tile % num_n, num_n, n);
                let (row, column) = (rows.start, columns.start);
                let [a_offset, b_offset, out_offset] = self.offsets(iteration);
                let a_offset = a_offset + row * a_strides[0];
                let b_offset = b_offset + column * b_strides[1];
                let out_offset = out_offset + row * out_strides[0] + column * out_strides[1];
                let dims = [rows.len(), columns.len(), k];
                // SAFETY: the operands and the result are live slices, the result is borrowed
                // mutably, and `extent` has shown that all elements lie within. By `new`, the
                // places of the result are distinct, and each is in the tile of one task.
                unsafe {
                    let out = Place { data: out.at(out_offset), strides: out_strides };
                    let a = (a.as_ptr().add(a_offset), a_strides);
                    let b = (b.as_ptr().add(b_offset), b_strides);
                    multiply_raw(out, a, b, dims, false);
                }
            }
        });
    }
}

/// The rows or columns of a tile, of so many that are cut out of `size`.
fn tile_of(index: usize, num_tiles: usize, size: usize) -> Range<usize> {
    let start = |index: usize| match index {
        _ if index == num_tiles => size,
        _ => index * size / num_tiles / ALIGNMENT * ALIGNMENT,
    };
    start(index)..start(index + 1)
}

/// `[columns, rows]` at `stride` between its rows, as `[rows, columns]` without gaps.
fn transposed<T: Scalar>(
    pool: &Pool<'_>,
    from: &[T],
    [rows, columns]: [usize; 2],
    stride: usize,
) -> Box<[T]> {
    const BLOCKS: usize = 4;
    let mut out = Box::new_uninit_slice(rows * columns);
    pool.for_each(out.chunks_mut(BLOCKS * BLOCK * columns), |chunk, out| {
        vectorized(
            #[inline(always)]
            || {
                for first_column in (0..columns).step_by(BLOCK) {
                    for (block, out) in out.chunks_mut(BLOCK * columns).enumerate() {
                        let first_row = (BLOCKS * chunk + block) * BLOCK;
                        let from = &from[first_column * stride + first_row..];
                        let dims = [out.len() / columns, BLOCK.min(columns - first_column)];
                        transpose_block(&mut out[first_column..], columns, from, stride, dims);
                    }
                }
            },
        );
    });
    // SAFETY: the blocks of all chunks cover every row and column.
    unsafe { out.assume_init() }
}

/// Rows and columns of the blocks that matrices are transposed in: in f32, a line of the cache.
/// Lines of neighbouring rows may displace each other, so each is read once and written once.
const BLOCK: usize = 16;

/// Writes the transpose of a block at the start of `from` to the start of `out`. `columns` and
/// `stride` are the distances between rows of `out` and of `from`; `dims` are the block's rows and
/// columns in `out`.
#[inline(always)]
fn transpose_block<T: Scalar>(
    out: &mut [MaybeUninit<T>],
    columns: usize,
    from: &[T],
    stride: usize,
    [num_rows, num_columns]: [usize; 2],
) {
    if [num_rows, num_columns] != [BLOCK; 2] {
        for row in 0..num_rows {
            for column in 0..num_columns {
                out[row * columns + column].write(from[column * stride + row]);
            }
        }
        return;
    }
    let mut block = [[T::default(); BLOCK]; BLOCK];
    for (column, line) in block.iter_mut().enumerate() {
        line.copy_from_slice(&from[column * stride..][..BLOCK]);
    }
    // Element (8 a + i, 8 b + j) moves to (2 i + b, 2 j + a): the first binary digit of each index
    // becomes the last of the other. After as many times as there are digits, rows are columns.
    for _ in 0..BLOCK.ilog2() {
        let before = block;
        const HALF: usize = BLOCK / 2;
        for i in 0..HALF {
            for j in 0..HALF {
                block[2 * i][2 * j] = before[i][j];
                block[2 * i][2 * j + 1] = before[i + HALF][j];
                block[2 * i + 1][2 * j] = before[i][j + HALF];
                block[2 * i + 1][2 * j + 1] = before[i + HALF][j + HALF];
            }
        }
    }
    for (row, line) in block.iter().enumerate() {
        for (out, value) in out[row * columns..][..BLOCK].iter_mut().zip(line) {
            out.write(*value);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Small integers: their products and sums are exact.
    fn integers(len: usize, seed: usize) -> Vec<f64> {
        (0..len).map(|i| ((i * 7 + seed * 13) % 11) as f64 - 5.0).collect()
    }

    proptest! {
        #[test]
        fn a_product_is_the_sum_of_its_terms(
            m in 0usize..40, n in 0usize..40, k in 0usize..20, batch in 1usize..4,
            transposed in any::<[bool; 3]>(), gap in 0usize..3, num_helpers in 0usize..3,
        ) {
            // Row-major or column-major, with a gap between rows or columns.
            let strides = |rows: usize, columns: usize, transposed: bool| match transposed {
                true => [1, rows + gap],
                false => [columns + gap, 1],
            };
            let strides = [
                strides(m, k, transposed[0]), strides(k, n, transposed[1]), strides(m, n, transposed[2]),
            ];
            let size = [(m + gap) * (k + gap), (k + gap) * (n + gap), (m + gap) * (n + gap)];
            let product = Product::new([m, n, k], strides, vec![(batch, size)]).unwrap();
            let (a, b) = (integers(batch * size[0], 1), integers(batch * size[1], 2));
            let mut out = vec![77.0; batch * size[2]];
            let mut expected = out.clone();
            for i in 0..batch {
                for row in 0..m {
                    for column in 0..n {
                        let term = |l: usize| {
                            a[i * size[0] + row * strides[0][0] + l * strides[0][1]]
                                * b[i * size[1] + l * strides[1][0] + column * strides[1][1]]
                        };
                        expected[i * size[2] + row * strides[2][0] + column * strides[2][1]] =
                            (0..k).map(term).sum();
                    }
                }
            }
            let pool = Pool::new(num_helpers).unwrap();
            product.run(&pool, &mut out, &a, &b);
            prop_assert_eq!(&out, &expected);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn bits_do_not_depend_on_the_number_of_threads(
            m in 1usize..700, n in 1usize..700, k in 1usize..1200,
            by_columns in any::<[bool; 2]>(), num_helpers in 1usize..20, num_iterations in 1usize..4,
        ) {
            let strides = |rows: usize, columns: usize, by_columns| match by_columns {
                true => [1, rows],
                false => [columns, 1],
            };
            let strides = [strides(m, k, by_columns[0]), strides(k, n, by_columns[1]), [n, 1]];
            let product =
                Product::new([m, n, k], strides, vec![(num_iterations, [0, 0, m * n])]).unwrap();
            let value = |i: usize| ((i * 2_654_435_761) % 1000) as f32 / 1000.0 - 0.5;
            let a: Vec<f32> = (0..m * k).map(value).collect();
            let b: Vec<f32> = (1..=k * n).map(value).collect();
            let [one, many] = [0, num_helpers].map(|num_helpers| {
                let mut out = vec![0f32; num_iterations * m * n];
                product.run(&Pool::new(num_helpers).unwrap(), &mut out, &a, &b);
                out
            });
            prop_assert!(one == many);
        }
    }

    #[test]
    fn results_do_not_depend_on_the_number_of_threads() {
        for ([m, n, k], by_columns) in [
            ([300, 400, 50], [false, false]),
            ([1, 3000, 1000], [false, false]),
            ([97, 97, 3000], [false, false]),
            ([2000, 16, 700], [false, true]),
            ([300, 200, 601], [false, true]),
            ([203, 1000, 101], [true, false]),
            ([200, 801, 77], [true, true]),
        ] {
            let value = |i: usize| ((i * 2_654_435_761) % 1000) as f32 / 1000.0 - 0.5;
            let a: Vec<f32> = (0..m * k).map(value).collect();
            let b: Vec<f32> = (0..k * n).map(value).collect();
            let a_strides = if by_columns[0] { [1, m] } else { [k, 1] };
            let b_strides = if by_columns[1] { [1, k] } else { [n, 1] };
            let strides = [a_strides, b_strides, [n, 1]];
            let product = Product::new([m, n, k], strides, vec![]).unwrap();
            let computed = [0, 1, 3].map(|num_helpers| {
                let mut out = vec![0f32; m * n];
                product.run(&Pool::new(num_helpers).unwrap(), &mut out, &a, &b);
                out
            });
            for (row, column) in (0..m).step_by(7).zip((0..n).step_by(3).cycle()) {
                let a = |l: usize| a[row * a_strides[0] + l * a_strides[1]];
                let b = |l: usize| b[l * b_strides[0] + column * b_strides[1]];
                let expected: f32 = (0..k).map(|l| a(l) * b(l)).sum();
                let error = (computed[0][row * n + column] - expected).abs();
                assert!(error < 1e-3, "{m} x {n} x {k} at {row}, {column}");
            }
            assert!(computed.iter().all(|out| *out == computed[0]), "{m} x {n} x {k}");
        }
    }

    #[test]
    fn transposes_have_every_element_of_whole_and_partial_blocks() {
        for ([rows, columns], gap) in [([48, 64], 0), ([16, 16], 3), ([67, 35], 5), ([5, 100], 0)] {
            let stride = rows + gap;
            let from = integers(columns * stride, 3);
            for num_helpers in [0, 2] {
                let pool = Pool::new(num_helpers).unwrap();
                let by_rows = transposed(&pool, &from, [rows, columns], stride);
                let element = |i: usize| from[i % columns * stride + i / columns];
                assert_eq!(by_rows, (0..rows * columns).map(element).collect());
            }
        }
    }

    #[test]
    fn elements_of_a_result_must_be_apart() {
        let out = |strides, size, stride| {
            Product::new([4, 5, 6], [[6, 1], [5, 1], strides], vec![(size, [24, 30, stride])])
        };
        assert!(out([5, 1], 3, 20).is_some());
        // Rows of all matrices side by side.
        assert!(out([15, 1], 3, 5).is_some());
        assert!(out([4, 1], 1, 0).is_none());
        assert!(out([5, 1], 3, 19).is_none());
        assert!(out([5, 1], 2, 0).is_none());
    }

    #[test]
    #[should_panic(expected = "the second operand is too short")]
    fn operands_must_be_long_enough() {
        let (a, b, mut out) = ([0f32; 6], [0f32; 11], [0f32; 8]);
        multiply(
            MatrixMut { data: &mut out, dims: [2, 4], strides: [4, 1] },
            Matrix { data: &a, dims: [2, 3], strides: [3, 1] },
            Matrix { data: &b, dims: [3, 4], strides: [4, 1] },
            false,
        );
    }
}
