//! Gradients of kernels.

use std::ops::Range;

use super::pack::{Kernel, LANE, Layout, pack_panels};
use super::tiles::{Gradient, Processor};
use super::{Block, Convolution};
use crate::vectors::Aligned;
use crate::{Pool, Scalar};

/// Tasks of a gradient: enough for many processors.
const NUM_TASKS: usize = 16;

/// The size that partial sums should not exceed, in bytes.
const PARTIAL_BYTES: usize = 2 << 20;

/// Positions of a cotangent with at most so many features are read in place. More would have many of them share few sets of the
/// first-level cache.
const MAX_IN_PLACE: usize = 128;

/// The partial sums of a chunk of blocks: `[panel, tap, channel, width]`, channels rounded up to groups.
#[derive(Clone, Copy, Debug)]
struct Sums {
    width: usize,
    num_panels: usize,
    /// Elements of a panel.
    panel: usize,
    /// Elements of a tap.
    tap: usize,
}

impl Convolution {
    pub(super) fn gradient_blocks<T: Scalar>(
        &self,
        pool: &Pool,
        dw: &mut [T],
        dw_strides: [usize; 4],
        x: &[T],
        dy: &[T],
    ) {
        let kernel = self.kernel(dw_strides);
        let dw = &mut dw[..kernel.extent()];
        let (x, dy) = (&x[..self.input_len()], &dy[..self.output_len()]);
        if dw.is_empty() {
            return;
        }
        if x.is_empty() || dy.is_empty() {
            return scatter(pool, dw, &kernel, |_, _, _| T::default());
        }
        let processor = Processor::new::<T>();
        let vectors = processor.panel_vectors(self.out_features);
        let [rows, columns] = self.axes();
        let layout = Layout::new(rows, columns, self.in_features, 0);
        let column_taps = match layout.columns.phases.first() {
            Some(phase) => layout.column_taps(&phase.taps).len(),
            None => 0,
        };
        let width = vectors * processor.lanes;
        let tap = layout.channels.next_multiple_of(LANE) * width;
        let sums = Sums {
            width,
            num_panels: self.out_features.div_ceil(width),
            panel: self.kernel[0] * column_taps * tap,
            tap,
        };
        let blocks = self.blocks(&layout, size_of::<T>());

        // The work is cut into chunks of blocks as far as their partial sums are small, and then into groups of panels.
        let bytes = sums.num_panels * sums.panel * size_of::<T>();
        let worth = (self.flops() / super::MIN_TASK).clamp(1, NUM_TASKS);
        let num_chunks = worth.min(PARTIAL_BYTES / bytes.max(1)).clamp(1, blocks.len().max(1));
        let per_chunk = blocks.len().div_ceil(num_chunks).max(1);
        let num_groups = worth.div_ceil(num_chunks).min(sums.num_panels);
        let per_group = sums.num_panels.div_ceil(num_groups);
        let num_chunks = blocks.len().div_ceil(per_chunk);

        let len = sums.num_panels * sums.panel;
        let mut partial = Aligned::new(len * num_chunks);
        if len > 0 {
            let parts = partial.chunks_exact_mut(len).zip(blocks.chunks(per_chunk));
            let parts = parts.flat_map(|(partial, blocks)| {
                let panels = partial.chunks_mut(per_group * sums.panel).enumerate();
                panels.map(move |(group, partial)| (blocks, group * per_group, partial))
            });
            pool.for_each(parts, |_, (blocks, panel, partial)| {
                self.gradient_task(&layout, sums, processor, (blocks, panel), partial, (x, dy));
            });
            let (total, rest) = partial.split_at_mut(len);
            let size = len.div_ceil(NUM_TASKS).max(1 << 14);
            pool.for_each(total.chunks_mut(size), |index, total| {
                for partial in rest.chunks_exact(len) {
                    for (total, partial) in total.iter_mut().zip(&partial[index * size..]) {
                        *total = T::sum(*total, *partial);
                    }
                }
            });
        }
        // Folded columns are channels.
        let (tap, column) = match column_taps == self.kernel[1] {
            true => (sums.tap, sums.tap),
            false => (sums.tap, self.in_features * width),
        };
        let offsets: Vec<usize> = (0..self.kernel[0] * self.kernel[1])
            .map(|index| {
                let (row, column_index) = (index / self.kernel[1], index % self.kernel[1]);
                row * column_taps * tap + column_index * column
            })
            .collect();
        scatter(pool, dw, &kernel, |o, i, tap| {
            partial[o / width * sums.panel + offsets[tap] + i * width + o % width]
        });
    }

    /// The sums of some blocks, for the panels from `panel`.
    fn gradient_task<T: Scalar>(
        &self,
        layout: &Layout,
        sums: Sums,
        processor: Processor,
        (blocks, panel): (&[Block], usize),
        partial: &mut [T],
        (x, dy): (&[T], &[T]),
    ) {
        let (Some(row_phase), Some(column_phase)) =
            (layout.rows.phases.first(), layout.columns.phases.first())
        else {
            return;
        };
        let vectors = sums.width / processor.lanes;
        let taps = self.taps(layout, &row_phase.taps, &column_phase.taps, 0);
        let max_rows = blocks.iter().map(|block| block.rows.len()).max().unwrap_or(0);
        let num_panels = partial.len() / sums.panel;
        let features: Range<usize> = {
            let start = panel * sums.width;
            start..(start + num_panels * sums.width).min(self.out_features)
        };
        let mut input = Aligned::new(layout.len(max_rows));
        let row_len = self.output[1] * self.out_features;
        // Whole panels of few features are read where they are.
        let in_place =
            self.out_features.is_multiple_of(sums.width) && self.out_features <= MAX_IN_PLACE;
        let positions = max_rows * self.output[1];
        let packed_len = if in_place { 0 } else { positions * num_panels * sums.width };
        let mut packed = Aligned::new(packed_len);
        for block in blocks {
            let rows = block.rows.len();
            layout.pack(&mut input, self.image(x, block.image), block.rows.start, rows);
            let dy = &dy[(block.image * self.output[0] + block.rows.start) * row_len..];
            let dy = &dy[..rows * row_len];
            let panel_len = rows * self.output[1] * sums.width;
            if !in_place {
                let packed = &mut packed[..num_panels * panel_len];
                pack_panels(packed, dy, self.out_features, features.clone(), sums.width);
            }
            for (index, partial) in partial.chunks_exact_mut(sums.panel).enumerate() {
                let (cotangent, cotangent_column) = match in_place {
                    true => (&dy[features.start + index * sums.width..], self.out_features),
                    false => (&packed[index * panel_len..][..panel_len], sums.width),
                };
                let groups = partial.chunks_exact_mut(LANE * sums.width);
                for (tap, partial) in taps.iter().zip(groups) {
                    let gradient = Gradient {
                        input: &input[tap.input..],
                        input_row: layout.rows.stride * layout.row(),
                        cotangent,
                        cotangent_column,
                        rows,
                        columns: self.output[1],
                        sums: partial,
                        channels: tap.channels,
                    };
                    gradient.run(processor, vectors);
                }
            }
        }
    }
}

/// Writes `value(o, i, tap)` to the places of a kernel's gradient. Taps are numbered row by row.
fn scatter<T: Scalar>(
    pool: &Pool,
    dw: &mut [T],
    kernel: &Kernel,
    value: impl Fn(usize, usize, usize) -> T + Sync,
) {
    let (dims, strides) = (kernel.dims, kernel.strides);
    // The outermost dimension cuts the gradient into slices, if the others lie within its stride.
    let reach = |dim: usize| (dims[dim] - 1) * strides[dim];
    let outer = (0..4).max_by_key(|dim| reach(*dim)).unwrap_or(0);
    let others = kernel.extent() - reach(outer);
    assert!(
        reach(outer) == 0 || others <= strides[outer],
        "elements of the gradient share a place"
    );
    let chunk = dims[outer].div_ceil(NUM_TASKS);
    pool.for_each(dw.chunks_mut((chunk * strides[outer]).max(1)), |index, dw| {
        let mut part = Kernel { dims, strides };
        let start = index * chunk;
        part.dims[outer] = chunk.min(dims[outer] - start);
        let first = [0, 1, 2, 3].map(|dim| if dim == outer { start } else { 0 });
        part.for_each(|[o, i, row, column], at| {
            let tap = (first[2] + row) * dims[3] + first[3] + column;
            dw[at] = value(first[0] + o, first[1] + i, tap);
        });
    });
}
