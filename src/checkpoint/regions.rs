//! Which parts of the saved leaves make up a rectangle of a leaf as it is declared now: the same
//! leaf, a row of a stack, or the rows of one.

use hlo::{ContiguousRun, Corner, LeafSpec, StackedRow, Tree, contiguous_runs, row_paths, unravel};

use super::PieceRecord;

/// A rectangle of a saved leaf, and its place in the values that are read. All vectors have the
/// same number of dims: where the leaf or the values have fewer, dims of size 1 are in front.
#[derive(Debug)]
pub struct SavedRegion {
    /// Index of the saved leaf.
    pub leaf: usize,
    start: Vec<usize>,
    dims: Vec<usize>,
    /// Dims of the values.
    to_dims: Vec<usize>,
    to_start: Vec<usize>,
}

/// The regions of the rectangle of these `dims` at `start` in the leaf `path`, declared as `spec`.
/// `saved` are the leaves of the checkpoint, and `rows` their rows. The error is the path of a row
/// that was not saved.
pub fn regions(
    saved: &Tree<LeafSpec>,
    rows: &Tree<StackedRow>,
    (path, spec): (&str, &LeafSpec),
    start: &[usize],
    dims: &[usize],
) -> Result<Vec<SavedRegion>, String> {
    if let Some(leaf) = saved.index_of(path)
        && saved[path].dims == spec.dims
    {
        let (to_dims, to_start) = (dims.to_vec(), vec![0; dims.len()]);
        return Ok(vec![SavedRegion {
            leaf,
            start: start.into(),
            dims: dims.into(),
            to_dims,
            to_start,
        }]);
    }
    let (row_start, row_dims) = (&start[spec.num_stacked..], &dims[spec.num_stacked..]);
    let mut found = vec![];
    for (index, path) in row_paths(path, spec).into_iter().enumerate() {
        let index = unravel(index, spec.stack_sizes());
        let inside =
            index.iter().zip(start).zip(dims).map(|((index, start), size)| {
                index.checked_sub(*start).filter(|place| place < size)
            });
        let Some(place) = inside.collect::<Option<Vec<_>>>() else { continue };
        let Some(row) = rows.get(&path) else { return Err(path) };
        let Some(leaf) = saved.index_of(&row.leaf) else { return Err(path) };
        let saved_index = unravel(row.index, saved[&*row.leaf].stack_sizes());
        let rank = saved_index.len().max(place.len()) + row_dims.len();
        found.push(SavedRegion {
            leaf,
            start: pad(&[&saved_index, row_start].concat(), rank, 0),
            dims: pad(row_dims, rank, 1),
            to_dims: pad(dims, rank, 1),
            to_start: pad(&place, rank - row_dims.len(), 0)
                .into_iter()
                .chain(row_dims.iter().map(|_| 0))
                .collect(),
        });
    }
    Ok(found)
}

/// The overlap of the regions with a piece of their leaf, in bytes, sorted by the position in the
/// piece.
pub fn runs_in(
    piece: &PieceRecord,
    regions: &[SavedRegion],
    size_bytes: usize,
) -> Vec<ContiguousRun> {
    let mut found: Vec<ContiguousRun> = vec![];
    for region in regions {
        let rank = region.dims.len();
        let (piece_start, piece_dims) = (pad(&piece.start, rank, 0), pad(&piece.dims, rank, 1));
        let both = |dim: usize| {
            let start = region.start[dim].max(piece_start[dim]);
            let end =
                (region.start[dim] + region.dims[dim]).min(piece_start[dim] + piece_dims[dim]);
            (start < end).then(|| (start, end - start))
        };
        let Some(both) = (0..rank).map(both).collect::<Option<Vec<_>>>() else { continue };
        let (start, dims): (Vec<_>, Vec<_>) = both.into_iter().unzip();
        let from: Vec<_> = start.iter().zip(&piece_start).map(|(at, start)| at - start).collect();
        let place = start.iter().zip(&region.start).map(|(at, start)| at - start);
        let to: Vec<_> = place.zip(&region.to_start).map(|(at, start)| at + start).collect();
        let from = Corner { dims: &piece_dims, start: &from };
        let to = Corner { dims: &region.to_dims, start: &to };
        found.extend(contiguous_runs(&dims, from, to).map(|run| ContiguousRun {
            from: run.from * size_bytes,
            to: run.to * size_bytes,
            len: run.len * size_bytes,
        }));
    }
    found.sort_by_key(|run| run.from);
    // Neighbouring rows of a stack.
    found.dedup_by(|next, run| {
        let follows = run.from + run.len == next.from && run.to + run.len == next.to;
        run.len += if follows { next.len } else { 0 };
        follows
    });
    found
}

fn pad(dims: &[usize], rank: usize, fill: usize) -> Vec<usize> {
    [&vec![fill; rank - dims.len()], dims].concat()
}
