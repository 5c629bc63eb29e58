//! Layouts in which tiles read their operands without gaps.

use std::ops::Range;

use super::axis::{Axis, Phase};
use crate::vectors::{Aligned, vectorized};
use crate::{Pool, Scalar};

/// Channels of a group. The innermost loops address them as arrays.
pub const LANE: usize = 16;

/// How a block of rows of an input is packed: `[row, group, column, LANE]`, with zeros where a tap
/// sees padding. Columns are sorted by their place within a stride, so that neighbours in the
/// output have their inputs side by side.
#[derive(Clone, Debug)]
pub struct Layout {
    pub rows: Axis,
    pub columns: Axis,
    /// Packed channels.
    pub channels: usize,
    /// The first packed channel of an image.
    first_channel: usize,
    /// Channels of an image.
    image_channels: usize,
    /// Columns of the kernel count as channels: for images of few channels.
    folded: bool,
    /// For each column within a stride, where such columns begin, if any tap sees them.
    places: Vec<Option<usize>>,
    /// Rows within a stride that a tap sees.
    seen: Vec<bool>,
    num_columns: usize,
}

impl Layout {
    /// Tiles may reach `slack` columns beyond the last.
    pub fn new(rows: Axis, columns: Axis, channels: usize, slack: usize) -> Self {
        let is_dense = |phase: &Phase| {
            phase.taps.len() == columns.span && (0..).zip(&phase.taps).all(|(i, tap)| i == tap.0)
        };
        let folded = columns.phases.len() == 1
            && columns.phases.iter().all(is_dense)
            && channels < LANE / 2
            && channels * columns.span <= 2 * LANE;
        let (stride, span) = if folded { (1, 1) } else { (columns.stride, columns.span) };
        let per_place = columns.max_count() + slack + (span - 1) / stride;
        let mut num_columns = 0;
        let places = columns.seen().into_iter().take(stride).map(|seen| {
            let place = num_columns;
            num_columns += if seen { per_place } else { 0 };
            seen.then_some(place)
        });
        let places = if folded { vec![Some(0)] } else { places.collect() };
        let num_columns = if folded { per_place } else { num_columns };
        Self {
            seen: rows.seen(),
            channels: if folded { channels * columns.span } else { channels },
            first_channel: 0,
            image_channels: channels,
            rows,
            columns,
            folded,
            places,
            num_columns,
        }
    }

    /// The parts that channels may be cut into: groups, but not of folded columns.
    pub fn max_parts(&self) -> usize {
        if self.folded { 1 } else { self.channels.div_ceil(LANE) }
    }

    /// The layout of some groups of the channels.
    pub fn part(&self, groups: Range<usize>) -> Self {
        let first = (groups.start * LANE).min(self.channels);
        let end = (groups.end * LANE).min(self.channels);
        Self { channels: end - first, first_channel: first, ..self.clone() }
    }

    /// Columns of the kernel that are not folded.
    pub fn num_column_taps(&self) -> usize {
        let num_taps = self.columns.phases.first().map_or(0, |phase| phase.taps.len());
        if self.folded { num_taps.min(1) } else { num_taps }
    }

    /// The packed channel and tap of each `[input feature, row, column]` of a kernel.
    pub fn places(
        &self,
        in_features: usize,
        [rows, columns]: [usize; 2],
    ) -> impl Iterator<Item = (usize, usize)> {
        let place = move |index: usize| {
            let (i, row, column) =
                (index / columns / rows, index / columns % rows, index % columns);
            match self.folded {
                true => (column * in_features + i, row),
                false => (i, row * columns + column),
            }
        };
        (0..in_features * rows * columns).map(place)
    }

    /// Distance between groups of channels.
    pub fn group(&self) -> usize {
        self.num_columns * LANE
    }

    /// Distance between rows.
    pub fn row(&self) -> usize {
        self.channels.div_ceil(LANE) * self.group()
    }

    /// Length of a block for so many rows of each phase of the output.
    pub fn len(&self, rows: usize) -> usize {
        (rows.max(1).saturating_sub(1) * self.rows.stride + self.rows.span) * self.row()
    }

    /// The columns of the kernel that weights are packed for, and the features of each.
    pub fn column_taps<'a>(&self, taps: &'a [(usize, i64)]) -> &'a [(usize, i64)] {
        if self.folded { &taps[..taps.len().min(1)] } else { taps }
    }

    /// Where the first position of a phase finds its input, for a tap with these offsets.
    pub fn offset(&self, row: i64, column: i64) -> usize {
        let row = (row - self.rows.first) as usize * self.row();
        if self.folded {
            return row;
        }
        let column = (column - self.columns.first) as usize;
        let stride = self.columns.stride;
        row + (self.places[column % stride].unwrap_or(0) + column / stride) * LANE
    }

    /// Packs the inputs of rows `first..first + rows` of each phase. `image` is
    /// `[rows, columns, channels]`. What is beyond the columns of the image must be zero in `block`
    /// before.
    pub fn pack<T: Scalar>(&self, block: &mut [T], image: &[T], first: usize, rows: usize) {
        let (row_len, stride) = (self.row(), self.rows.stride);
        if row_len == 0 || rows == 0 {
            return;
        }
        let num_rows = (rows - 1) * stride + self.rows.span;
        for (row, block) in block.chunks_exact_mut(row_len).take(num_rows).enumerate() {
            if !self.seen[row % stride] {
                continue;
            }
            let row = (first * stride + row) as i64 + self.rows.first;
            if row < 0 || row >= self.rows.input as i64 {
                block.fill(T::default());
                continue;
            }
            let len = image.len() / self.rows.input;
            let image = &image[row as usize * len..][..len];
            if self.folded {
                vectorized(
                    #[inline(always)]
                    || self.pack_folded(block, image),
                );
            } else {
                vectorized(
                    #[inline(always)]
                    || self.pack_row(block, image),
                );
            }
        }
    }

    /// One row: `[columns, channels]` to `[group, column, LANE]`.
    #[inline(always)]
    fn pack_row<T: Scalar>(&self, block: &mut [T], image: &[T]) {
        let stride = self.columns.stride;
        for (within, place) in self.places.iter().enumerate() {
            let Some(place) = *place else { continue };
            // The first column of this kind that is in the image.
            let column = self.columns.first + within as i64;
            let skipped = (-column).max(0) as usize;
            let skipped = skipped.div_ceil(stride);
            let column = (column + (skipped * stride) as i64) as usize;
            let width = self.num_columns / self.places.iter().flatten().count().max(1);
            let count = self.columns.input.saturating_sub(column).div_ceil(stride);
            let count = count.min(width.saturating_sub(skipped));
            if count == 0 {
                continue;
            }
            let image = &image[column * self.image_channels + self.first_channel..];
            for (group, block) in block.chunks_exact_mut(self.group()).enumerate() {
                let block = &mut block[(place + skipped) * LANE..][..count * LANE];
                let block = block.as_chunks_mut::<LANE>().0;
                let channels = group * LANE..((group + 1) * LANE).min(self.channels);
                let images = image.chunks(self.image_channels * stride);
                if channels.len() == LANE {
                    for (block, image) in block.iter_mut().zip(images) {
                        if let Some(image) = image[channels.start..].first_chunk::<LANE>() {
                            *block = *image;
                        }
                    }
                } else {
                    for (block, image) in block.iter_mut().zip(images) {
                        block[..channels.len()].copy_from_slice(&image[channels.clone()]);
                    }
                }
            }
        }
    }

    /// One row; its channels are the columns that a position sees.
    #[inline(always)]
    fn pack_folded<T: Scalar>(&self, block: &mut [T], image: &[T]) {
        let columns = &self.columns;
        let channels = self.image_channels;
        for position in 0..columns.output {
            let first = (position * columns.stride) as i64 + columns.first;
            let (left, right) =
                (first.max(0), (first + columns.span as i64).min(columns.input as i64));
            if left >= right {
                continue;
            }
            let padding = (left - first) as usize * channels;
            let image = &image[left as usize * channels..];
            let len = (right - left) as usize * channels;
            let mut block = block[position * LANE..].chunks_mut(self.group());
            // Channels beyond the last may have any values, so that most copies have a fixed size.
            match image.first_chunk::<{ 2 * LANE }>() {
                Some(image) if len == self.channels => {
                    for (block, image) in block.zip(image.as_chunks::<LANE>().0) {
                        block[..LANE].copy_from_slice(image);
                    }
                }
                _ => {
                    let within = LANE.saturating_sub(padding).min(len);
                    if let Some(block) = block.next() {
                        block[padding.min(LANE)..][..within].copy_from_slice(&image[..within]);
                    }
                    if let Some(block) = block.next() {
                        let padding = padding.saturating_sub(LANE);
                        block[padding..][..len - within].copy_from_slice(&image[within..len]);
                    }
                }
            }
        }
    }
}

/// Dims and strides of a kernel: output features, input features, rows and columns.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    pub dims: [usize; 4],
    pub strides: [usize; 4],
}

impl Kernel {
    /// The elements that the kernel reaches over.
    pub fn extent(&self) -> usize {
        if self.dims.contains(&0) {
            return 0;
        }
        self.dims.iter().zip(self.strides).map(|(dim, stride)| (dim - 1) * stride).sum::<usize>()
            + 1
    }

    /// Length of a panel: `[rows, columns, input features, width]`.
    pub fn panel(&self, width: usize) -> usize {
        self.dims[1..].iter().product::<usize>() * width
    }

    /// The input features, rows and columns in some ranges, and their offsets.
    pub fn windows(
        &self,
        [in_features, rows, columns]: [Range<usize>; 3],
    ) -> impl Iterator<Item = ([usize; 3], usize)> {
        let [_, s_in, s_row, s_column] = self.strides;
        in_features.flat_map(move |i| {
            let columns = columns.clone();
            rows.clone().flat_map(move |row| {
                let at = move |column| i * s_in + row * s_row + column * s_column;
                columns.clone().map(move |column| ([i, row, column], at(column)))
            })
        })
    }

    /// Packs panels of `width` output features, and zeros after the last feature.
    pub fn pack<T: Scalar>(&self, pool: &Pool, width: usize, weights: &[T]) -> Aligned<T> {
        let [out_features, in_features, rows, columns] = self.dims;
        let len = self.panel(width);
        let mut packed = Aligned::new(out_features.div_ceil(width) * len);
        if packed.is_empty() {
            return packed;
        }
        let inner: Vec<_> = self
            .windows([in_features, rows, columns].map(|size| 0..size))
            .map(|([i, row, column], at)| {
                [((row * columns + column) * in_features + i) * width, at]
            })
            .collect();
        pool.for_each(packed.chunks_exact_mut(len), |panel, packed| {
            let features = panel * width..((panel + 1) * width).min(out_features);
            let outer = features.map(|o| [o % width, o * self.strides[0]]);
            copy(packed, weights, outer, inner.chunks(LANE * rows * columns));
        });
        packed
    }
}

/// Copies elements to and from the sums of an outer and an inner offset. A chunk of inner ones at a
/// time, so that neither side leaves the first-level cache, whatever the strides.
pub fn copy<'a, T: Copy>(
    to: &mut [T],
    from: &[T],
    outer: impl Iterator<Item = [usize; 2]> + Clone,
    inner: impl Iterator<Item = &'a [[usize; 2]]>,
) {
    for inner in inner {
        for [to_first, from_first] in outer.clone() {
            let (to, from) = (&mut to[to_first..], &from[from_first..]);
            for [to_at, from_at] in inner {
                to[*to_at] = from[*from_at];
            }
        }
    }
}

/// Packs positions `[position, features]` as panels `[panel, position, width]`. What is beyond the
/// last feature must be zero before.
pub fn pack_panels<T: Scalar>(
    packed: &mut [T],
    positions: &[T],
    num_features: usize,
    features: Range<usize>,
    width: usize,
) {
    let count = positions.len() / num_features.max(1);
    vectorized(
        #[inline(always)]
        || {
            for (panel, packed) in packed.chunks_exact_mut(count * width).enumerate() {
                let start = features.start + panel * width;
                let end = (start + width).min(features.end);
                let positions = positions.chunks_exact(num_features);
                if end - start == LANE {
                    for (packed, position) in packed.chunks_exact_mut(width).zip(positions) {
                        packed[..LANE].copy_from_slice(&position[start..end][..LANE]);
                    }
                } else {
                    for (packed, position) in packed.chunks_exact_mut(width).zip(positions) {
                        packed[..end - start].copy_from_slice(&position[start..end]);
                    }
                }
            }
        },
    );
}
