//! Which parts of the saved leaves make up a rectangle of a leaf as it is declared now: the same
//! leaf, a row of a stack, or the rows of one.

use hlo::{
    ContiguousRun, Corner, Fused, LeafSpec, StackedRow, Tree, contiguous_runs, row_paths, rows,
    unravel,
};

use super::PieceRecord;

/// A row of a saved leaf: a parameter of the model, or what belongs to one.
#[derive(Clone, Debug)]
pub struct SavedRow {
    /// Its leaf, and its index there.
    row: StackedRow,
    /// Its dtype and dims.
    pub spec: LeafSpec,
    /// Where it begins along its first dim: it may be a part of a fused row.
    first: usize,
    /// `true` for such a part.
    pub is_part: bool,
}

/// All rows of the saved leaves by their paths, and the parts of those that are fused.
pub fn saved_rows(saved: &Tree<LeafSpec>) -> Tree<SavedRow> {
    let mut all = Tree::new();
    for (path, row) in rows(saved) {
        let spec = saved[&*row.leaf].row();
        let whole = SavedRow { row, spec, first: 0, is_part: false };
        for part in Fused::parts(&path).into_iter().flatten() {
            let (Some(fused), Some(num_rows)) = (Fused::of(&part), whole.spec.dims.first()) else {
                continue;
            };
            let range = fused.rows(*num_rows);
            let mut spec = whole.spec.clone();
            spec.dims[0] = range.len();
            all.insert(part, SavedRow { spec, first: range.start, is_part: true, ..whole.clone() });
        }
        all.insert(path, whole);
    }
    all
}

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
    rows: &Tree<SavedRow>,
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
        let Some(SavedRow { row, first, .. }) = rows.get(&path) else { return Err(path) };
        let Some(leaf) = saved.index_of(&row.leaf) else { return Err(path) };
        let saved_index = unravel(row.index, saved[&*row.leaf].stack_sizes());
        let rank = saved_index.len().max(place.len()) + row_dims.len();
        let mut row_start = row_start.to_vec();
        if let Some(start) = row_start.first_mut() {
            *start += first;
        }
        found.push(SavedRegion {
            leaf,
            start: pad(&[saved_index, row_start].concat(), rank, 0),
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
