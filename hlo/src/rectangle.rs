//! Copies of rectangles between row-major arrays.

use crate::Literal;

/// Elements that are contiguous in both arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContiguousRun {
    /// Index of the first element in the array that is read.
    pub from: usize,
    /// Index of the first element in the array that is written.
    pub to: usize,
    /// Number of elements.
    pub len: usize,
}

/// A place in a row-major array: the array's dims, and the index of a rectangle's first element in
/// each dim.
#[derive(Clone, Copy, Debug)]
pub struct Corner<'a> {
    /// Size of each dim of the array.
    pub dims: &'a [usize],
    /// Index of the rectangle's first element, for each dim.
    pub start: &'a [usize],
}

/// The longest contiguous runs of a rectangle of these `dims` that is copied between two arrays of
/// the same rank, in row-major order. Empty if the rectangle has no elements.
///
/// ```
/// use hlo::{ContiguousRun, Corner, contiguous_runs};
///
/// // The right half of a 2x4 array, copied to an array of its own.
/// let from = Corner { dims: &[2, 4], start: &[0, 2] };
/// let to = Corner { dims: &[2, 2], start: &[0, 0] };
/// let found: Vec<_> = contiguous_runs(&[2, 2], from, to).collect();
/// let run = |from, to| ContiguousRun { from, to, len: 2 };
/// assert_eq!(found, [run(2, 0), run(6, 2)]);
/// ```
///
/// # Panics
/// If the ranks differ, or the rectangle does not lie in both arrays.
pub fn contiguous_runs(
    dims: &[usize],
    from: Corner<'_>,
    to: Corner<'_>,
) -> impl Iterator<Item = ContiguousRun> + use<> {
    let rank = dims.len();
    for corner in [from, to] {
        let lies_in = |dim: usize| corner.start[dim] + dims[dim] <= corner.dims[dim];
        let is_inside = corner.dims.len() == rank && corner.start.len() == rank;
        assert!(
            is_inside && (0..rank).all(lies_in),
            "a rectangle {dims:?} does not lie in {corner:?}"
        );
    }
    // A run covers this dim and all inner ones, which are whole in both arrays.
    let is_cut = |dim: &usize| [from, to].iter().any(|corner| corner.dims[*dim] != dims[*dim]);
    let inner = (0..rank).rev().find(is_cut).unwrap_or(0);
    let len = dims[inner..].iter().product();
    let num_runs = if len == 0 { 0 } else { dims[..inner].iter().product() };
    let [from_strides, to_strides] = [from, to].map(|corner| strides(corner.dims));
    let first = |corner: Corner<'_>, strides: &[usize]| {
        corner.start.iter().zip(strides).map(|(start, stride)| start * stride).sum::<usize>()
    };
    let mut run =
        ContiguousRun { from: first(from, &from_strides), to: first(to, &to_strides), len };
    let outer_dims = dims[..inner].to_vec();
    let mut index = vec![0; inner];
    (0..num_runs).map(move |_| {
        let found = run;
        // The next index of the outer dims, innermost first.
        for dim in (0..inner).rev() {
            index[dim] += 1;
            run.from += from_strides[dim];
            run.to += to_strides[dim];
            if index[dim] < outer_dims[dim] {
                break;
            }
            run.from -= index[dim] * from_strides[dim];
            run.to -= index[dim] * to_strides[dim];
            index[dim] = 0;
        }
        found
    })
}

/// Elements between neighbours along each dim.
fn strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for dim in (1..dims.len()).rev() {
        strides[dim - 1] = strides[dim] * dims[dim];
    }
    strides
}

impl Literal {
    /// The rectangle of these `dims` that starts at `start`.
    ///
    /// # Panics
    /// If it does not lie in this literal.
    #[must_use]
    pub fn slice(&self, start: &[usize], dims: &[usize]) -> Self {
        let mut piece = Self::zeros(self.dtype(), dims);
        let to = Corner { dims, start: &vec![0; dims.len()] };
        copy(self, &mut piece, contiguous_runs(dims, Corner { dims: self.dims(), start }, to));
        piece
    }

    /// Writes `piece` over the rectangle that starts at `start`.
    ///
    /// # Panics
    /// If the piece has another dtype, or does not lie in this literal.
    pub fn paste(&mut self, piece: &Self, start: &[usize]) {
        assert_eq!(self.dtype(), piece.dtype(), "dtype of a piece");
        let from = Corner { dims: piece.dims(), start: &vec![0; piece.dims().len()] };
        let runs = contiguous_runs(piece.dims(), from, Corner { dims: self.dims(), start });
        copy(piece, self, runs);
    }
}

fn copy(from: &Literal, to: &mut Literal, runs: impl Iterator<Item = ContiguousRun>) {
    let size = from.dtype().size_bytes();
    for run in runs {
        let read = &from.bytes()[run.from * size..][..run.len * size];
        to.bytes_mut()[run.to * size..][..run.len * size].copy_from_slice(read);
    }
}

/// The index in each dim of an element of a row-major array.
pub fn unravel(mut index: usize, sizes: &[usize]) -> Vec<usize> {
    let mut indices = vec![0; sizes.len()];
    for (dim, size) in sizes.iter().enumerate().rev() {
        (indices[dim], index) = (index % size, index / size);
    }
    indices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rectangle_of_any_rank_is_cut_out_and_put_back() {
        let whole: Vec<f32> = (0..4 * 3 * 5).map(|i| i as f32).collect();
        let whole = Literal::from_slice(&[4, 3, 5], &whole);
        for (start, dims) in [
            ([0, 0, 0], [4, 3, 5]),
            ([1, 0, 0], [2, 3, 5]),
            ([1, 1, 0], [3, 2, 5]),
            ([0, 2, 3], [4, 1, 2]),
            ([3, 0, 4], [1, 3, 1]),
            ([2, 1, 1], [2, 0, 3]),
        ] {
            let mut expected = vec![];
            for i in start[0]..start[0] + dims[0] {
                for j in start[1]..start[1] + dims[1] {
                    let row = (i * 3 + j) * 5 + start[2];
                    expected.extend_from_slice(&whole.as_slice::<f32>()[row..row + dims[2]]);
                }
            }
            let piece = whole.slice(&start, &dims);
            assert_eq!(piece.as_slice::<f32>(), expected, "{start:?} {dims:?}");
            let mut blank = Literal::zeros(whole.dtype(), whole.dims());
            blank.paste(&piece, &start);
            assert_eq!(blank.slice(&start, &dims), piece);
            let total = |literal: &Literal| literal.to_f64().iter().sum::<f64>();
            assert_eq!(total(&blank), total(&piece), "nothing else is written");
        }
        let scalar = Literal::scalar(7u32);
        assert_eq!(scalar.slice(&[], &[]), scalar);
        let mut other = Literal::scalar(8u32);
        other.paste(&scalar, &[]);
        assert_eq!(other, scalar);
    }

    #[test]
    fn rectangles_of_whole_rows_are_one_run() {
        let of = |dims: &[usize], whole: &[usize]| {
            let zeros = vec![0; dims.len()];
            let from = Corner { dims: whole, start: &zeros };
            contiguous_runs(dims, from, Corner { dims, start: &zeros }).count()
        };
        assert_eq!(of(&[2, 3, 5], &[4, 3, 5]), 1);
        assert_eq!(of(&[2, 1, 5], &[4, 3, 5]), 2);
        assert_eq!(of(&[2, 3, 4], &[4, 3, 5]), 6);
    }
}
