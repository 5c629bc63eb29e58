//! Convolutions of images: the direct product of packed blocks, without a matrix of all windows.
//!
//! A block of rows of an input is packed once, with its padding, and stays in the second-level
//! cache. Tiles of some positions and one or two vectors of output features are then summed over
//! the kernel's taps in registers.

mod axis;
mod gradient;
mod pack;
mod tiles;

use std::ops::Range;

use axis::Axis;
use pack::{Kernel, LANE, Layout};
use tiles::{Forward, Processor, Tap};

use crate::vectors::Scratch;
use crate::{Element, Pool, Scalar};

/// A convolution of two spatial dimensions.
///
/// Besides its operands, a call keeps a packed copy of the kernel and, on each thread, a packed
/// block of the input: at most 320 KiB, or the input rows that one row of the output sees (with a
/// dilated input: those that `base_dilation` rows see), if those are more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Convolution {
    /// Number of images.
    pub batch: usize,
    /// Rows and columns of the input, before it is dilated.
    pub input: [usize; 2],
    /// Features of the input.
    pub in_features: usize,
    /// Rows and columns of the output. Beyond the input there are zeros.
    pub output: [usize; 2],
    /// Features of the output.
    pub out_features: usize,
    /// Rows and columns of the kernel.
    pub kernel: [usize; 2],
    /// Distance of windows, at least 1.
    pub stride: [usize; 2],
    /// Rows and columns of padding before the input. Negative padding takes some away.
    pub low: [i64; 2],
    /// The input's elements are that far apart, with zeros between them. At least 1.
    pub base_dilation: [usize; 2],
}

/// The size that a packed block of an input should have together with its output, in bytes: they
/// share the second-level cache with the kernel.
const BLOCK_BYTES: usize = 320 << 10;

/// The least work of a task, in floating-point operations: enough to outweigh handing it to a
/// thread.
const MIN_TASK: usize = 1 << 22;

/// Some rows of the output of an image.
struct Block {
    image: usize,
    rows: Range<usize>,
}

impl Convolution {
    /// Number of floating-point operations, as if there were no padding: a multiplication and an
    /// addition for each term.
    pub fn flops(&self) -> usize {
        let terms = self.kernel[0] * self.kernel[1] * self.in_features;
        let dilation = self.base_dilation[0] * self.base_dilation[1];
        2 * self.batch * self.output[0] * self.output[1] * self.out_features * terms
            / dilation.max(1)
    }

    /// `x` is `[batch, rows, columns, in_features]`, `y` is `[batch, rows, columns, out_features]`,
    /// and `weights` have strides for output features, input features, rows and columns:
    /// `y[n, p, q, o] = sum(x[n, r, c, i] * weights[o, i, kh, kw])` over `i`, `kh`, `kw`, where
    /// `r = (p * stride + kh - low) / base_dilation` is a row of the input (without remainder), and
    /// `c` likewise a column.
    ///
    /// # Panics
    /// If a slice is too short, or if a stride or dilation is 0.
    pub fn run<T: Element>(
        &self,
        pool: &Pool<'_>,
        y: &mut [T],
        x: &[T],
        weights: &[T],
        weight_strides: [usize; 4],
    ) {
        T::convolve(self, pool, y, x, (weights, weight_strides));
    }

    pub(crate) fn compute<T: Scalar>(
        &self,
        pool: &Pool<'_>,
        y: &mut [T],
        x: &[T],
        weights: &[T],
        weight_strides: [usize; 4],
    ) {
        self.flattened().run_blocks(pool, y, x, weights, weight_strides);
    }

    fn run_blocks<T: Scalar>(
        &self,
        pool: &Pool<'_>,
        y: &mut [T],
        x: &[T],
        weights: &[T],
        weight_strides: [usize; 4],
    ) {
        let kernel = self.kernel(weight_strides);
        let y = &mut y[..self.output_len()];
        let x = &x[..self.input_len()];
        let weights = &weights[..kernel.extent()];
        if y.is_empty() {
            return;
        }
        let processor = Processor::new::<T>();
        let vectors = processor.panel_vectors(self.out_features);
        let width = vectors * processor.lanes;
        let axes = self.axes();
        let positions = processor.tile_positions(axes[1].max_count(), vectors);
        let [rows, columns] = axes;
        let layout = Layout::new(rows, columns, self.in_features, positions);
        if layout.row() == 0 {
            // No features, or no column of the input is seen.
            return y.fill(T::default());
        }
        let packed_kernel = kernel.pack(pool, width, weights);
        let panel = kernel.panel(width);

        let row_len = self.output[1] * self.out_features;
        let block_len = |rows: usize| layout.len(rows) + rows * layout.rows.period * row_len;
        let fits = |rows: usize| block_len(rows) * size_of::<T>() <= BLOCK_BYTES;
        let blocks = self.blocks(layout.rows.period, fits);
        let max_rows = blocks.iter().map(|block| block.rows.len()).max().unwrap_or(0);
        let scratch_len = layout.len(max_rows.div_ceil(layout.rows.period)) + layout.group();
        // Padding is zero in all blocks of this layout.
        let scratch = Scratch::new();
        pool.for_each(tasks(y, &blocks, row_len, self.flops()), |_, (blocks, mut y)| {
            scratch.with(scratch_len, |scratch| {
                for block in blocks {
                    let (out, rest) = y.split_at_mut(block.rows.len() * row_len);
                    y = rest;
                    let image = self.image(x, block.image);
                    let first = block.rows.start / layout.rows.period;
                    let num_rows = block.rows.len().div_ceil(layout.rows.period);
                    layout.pack(scratch, image, first, num_rows);
                    for row_phase in &layout.rows.phases {
                        let part = layout.rows.part(row_phase, &block.rows);
                        for column_phase in &layout.columns.phases {
                            let taps =
                                self.taps(&layout, &row_phase.taps, &column_phase.taps, width);
                            for (panel, weights) in
                                panels(&packed_kernel, panel, self.out_features.div_ceil(width))
                            {
                                let feature = panel * width;
                                let out_first = row_phase.start * row_len
                                    + column_phase.start * self.out_features
                                    + feature;
                                if part.is_empty() {
                                    continue;
                                }
                                let forward = Forward {
                                    input: scratch,
                                    input_row: layout.rows.stride * layout.row(),
                                    weights,
                                    taps: &taps,
                                    rows: part.len(),
                                    columns: column_phase.count,
                                    out: &mut out[out_first..],
                                    out_row: layout.rows.period * row_len,
                                    out_column: layout.columns.period * self.out_features,
                                    features: width.min(self.out_features - feature),
                                };
                                forward.run(positions, vectors);
                            }
                        }
                    }
                }
            });
        });
    }

    /// `dw[o, i, kh, kw] = sum(x[n, r, c, i] * dy[n, p, q, o])` over `n`, `p`, `q`, where
    /// `r = p * stride + kh - low` is a row of the input, and `c` likewise a column: the gradient
    /// of [`Self::run`]'s weights for the cotangent `dy` of its result. Elements of `dw` between
    /// strides keep their values.
    ///
    /// Besides its operands, a call keeps partial sums of at most 8 MiB or one padded copy of the
    /// kernel and, for each thread, packed blocks of `x` and `dy`: at most 384 KiB, or what one row
    /// of the output takes, if that is more. Twice that if features are cut into parts of two
    /// sizes.
    ///
    /// # Panics
    /// If a slice is too short, if a stride is 0, if `base_dilation` is not 1, or if elements of
    /// `dw` share a place.
    pub fn run_kernel_gradient<T: Element>(
        &self,
        pool: &Pool<'_>,
        dw: &mut [T],
        dw_strides: [usize; 4],
        x: &[T],
        dy: &[T],
    ) {
        T::kernel_gradient(self, pool, (dw, dw_strides), x, dy);
    }

    pub(crate) fn compute_kernel_gradient<T: Scalar>(
        &self,
        pool: &Pool<'_>,
        dw: &mut [T],
        dw_strides: [usize; 4],
        x: &[T],
        dy: &[T],
    ) {
        assert_eq!(self.base_dilation, [1, 1], "no gradient of a kernel over a dilated input");
        self.flattened().gradient_blocks(pool, dw, dw_strides, x, dy);
    }

    fn axes(&self) -> [Axis; 2] {
        [0, 1].map(|axis| {
            Axis::new(
                [self.input[axis], self.output[axis]],
                self.kernel[axis],
                self.stride[axis],
                self.low[axis],
                self.base_dilation[axis],
            )
        })
    }

    fn kernel(&self, strides: [usize; 4]) -> Kernel {
        let [rows, columns] = self.kernel;
        Kernel { dims: [self.out_features, self.in_features, rows, columns], strides }
    }

    fn input_len(&self) -> usize {
        self.batch * self.input[0] * self.input[1] * self.in_features
    }

    fn output_len(&self) -> usize {
        self.batch * self.output[0] * self.output[1] * self.out_features
    }

    fn image<'a, T>(&self, x: &'a [T], image: usize) -> &'a [T] {
        let len = self.input[0] * self.input[1] * self.in_features;
        &x[image * len..][..len]
    }

    /// The same convolution with long rows, if it is a product: one image of rows that tiles fit.
    fn flattened(&self) -> Self {
        let mut flat = self.clone();
        let is_product = self.kernel == [1, 1]
            && self.stride == [1, 1]
            && self.low == [0, 0]
            && self.base_dilation == [1, 1]
            && self.input == self.output;
        if is_product {
            let positions = self.batch * self.input[0] * self.input[1];
            let divides = |columns: &usize| positions.is_multiple_of(*columns);
            let columns = [112, 64, 56, 48, 32, 28, 16].into_iter().find(divides);
            if let Some(columns) = columns {
                flat.batch = 1;
                flat.input = [positions / columns, columns];
                flat.output = flat.input;
            }
        }
        flat
    }

    /// Cuts the output into blocks of as many rows of each phase as `fits` allows, at least 1.
    fn blocks(&self, period: usize, fits: impl Fn(usize) -> bool) -> Vec<Block> {
        let mut rows = self.output[0].div_ceil(period);
        if !fits(rows) {
            let most = (1..rows).rev().find(|rows| fits(*rows)).unwrap_or(1);
            // Blocks of about the same size.
            rows = rows.div_ceil(rows.div_ceil(most));
        }
        let rows = rows * period;
        let starts = (0..self.output[0]).step_by(rows.max(1));
        let blocks = |image| {
            let end = |start: usize| (start + rows).min(self.output[0]);
            starts.clone().map(move |start| Block { image, rows: start..end(start) })
        };
        (0..self.batch).flat_map(blocks).collect()
    }

    /// Where tiles find inputs and weights.
    fn taps(
        &self,
        layout: &Layout,
        rows: &[(usize, i64)],
        columns: &[(usize, i64)],
        width: usize,
    ) -> Vec<Tap> {
        let columns = layout.column_taps(columns);
        let mut taps = Vec::new();
        for (row, row_offset) in rows {
            for (column, column_offset) in columns {
                let input = layout.offset(*row_offset, *column_offset);
                let weights = (row * self.kernel[1] + column) * self.in_features * width;
                taps.extend((0..layout.channels.div_ceil(LANE)).map(|group| Tap {
                    input: input + group * layout.group(),
                    weights: weights + group * LANE * width,
                    channels: LANE.min(layout.channels - group * LANE),
                }));
            }
        }
        taps
    }
}

/// The panels of a kernel with their numbers.
fn panels<T>(packed: &[T], len: usize, count: usize) -> impl Iterator<Item = (usize, &[T])> {
    (0..count).map(move |panel| (panel, &packed[panel * len..][..len]))
}

/// Runs of blocks of enough work for a task, with their parts of `y`.
fn tasks<'a, 'b, T>(
    mut y: &'a mut [T],
    blocks: &'b [Block],
    row_len: usize,
    flops: usize,
) -> Vec<(&'b [Block], &'a mut [T])> {
    let per_task = MIN_TASK.div_ceil((flops / blocks.len().max(1)).max(1));
    let mut tasks = Vec::new();
    for blocks in blocks.chunks(per_task) {
        let len = blocks.iter().map(|block| block.rows.len() * row_len).sum();
        let (part, rest) = y.split_at_mut(len);
        y = rest;
        tasks.push((blocks, part));
    }
    tasks
}
