//! Gradients of kernels.

use std::ops::Range;

use super::pack::{Kernel, LANE, Layout, copy, pack_panels};
use super::tiles::{Gradient, Processor};
use super::{Block, Convolution};
use crate::vectors::{Aligned, Scratch};
use crate::{Pool, Scalar};

/// Tasks of a gradient: enough for many processors.
const NUM_TASKS: usize = 16;

/// The size that partial sums should not exceed, in bytes.
const PARTIAL_BYTES: usize = 8 << 20;

/// The size that a task's packed blocks should have, in bytes.
const BLOCK_BYTES: usize = 384 << 10;

/// Positions of a cotangent with at most so many features are read in place. More would have many
/// of them share few sets of the first-level cache.
const MAX_IN_PLACE: usize = 128;

/// How the work is cut: into chunks of the positions, panels of output features, and groups of
/// input channels. The partial sums of the chunks are added. Each task keeps its sums as `[panel,
/// group, tap, LANE, width]`.
#[derive(Clone, Copy, Debug)]
struct Cut {
    processor: Processor,
    /// Output features of a panel.
    width: usize,
    num_taps: usize,
    /// Numbers of parts.
    chunks: usize,
    panel_parts: usize,
    group_parts: usize,
    /// Panels and groups of a task. The last ones may have fewer.
    panels: usize,
    groups: usize,
}

impl Cut {
    /// Elements of the sums of a group.
    fn group(&self) -> usize {
        self.num_taps * LANE * self.width
    }

    /// Elements of the sums of a task.
    fn task(&self) -> usize {
        self.panels * self.groups * self.group()
    }

    /// Elements of the sums of a chunk.
    fn chunk(&self) -> usize {
        self.panel_parts * self.group_parts * self.task()
    }

    /// Where the sums of an output feature begin in those of a chunk.
    fn feature(&self, feature: usize) -> usize {
        let panel = feature / self.width;
        panel / self.panels * self.group_parts * self.task()
            + panel % self.panels * self.groups * self.group()
            + feature % self.width
    }

    /// Where those of a channel and tap begin in those of a feature.
    fn channel(&self, channel: usize, tap: usize) -> usize {
        let group = channel / LANE;
        group / self.groups * self.task()
            + group % self.groups * self.group()
            + (tap * LANE + channel % LANE) * self.width
    }
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
            let places = vec![0; kernel.dims.iter().product()];
            let features = &places[..self.out_features];
            return scatter(pool, dw, &kernel, &[T::default()], (features, &places));
        }
        let processor = Processor::new::<T>();
        let [rows, columns] = self.axes();
        let layout = Layout::new(rows, columns, self.in_features, 0);
        let cut = self.cut(&layout, processor, size_of::<T>());

        let part = layout.part(0..cut.groups);
        let features = cut.panels * cut.width;
        let block_len = |rows: usize| part.len(rows) + rows * self.output[1] * features;
        let blocks = self.blocks(1, |rows| block_len(rows) * size_of::<T>() <= BLOCK_BYTES);
        let per_chunk = blocks.len().div_ceil(cut.chunks);
        let num_chunks = blocks.len().div_ceil(per_chunk);
        let max_rows = blocks.iter().map(|block| block.rows.len()).max().unwrap_or(0);
        let (inputs, cotangents) = (Scratch::new(), Scratch::new());
        let mut sums = Aligned::new(num_chunks * cut.chunk());
        pool.for_each(sums.chunks_exact_mut(cut.task()), |index, sums| {
            let (chunk, part) = (index / cut.group_parts, index % cut.group_parts);
            let (chunk, panel_part) = (chunk / cut.panel_parts, chunk % cut.panel_parts);
            let layout = layout.part(part * cut.groups..(part + 1) * cut.groups);
            let first = panel_part * features;
            let features = first..(first + features).min(self.out_features);
            let blocks = &blocks[chunk * per_chunk..];
            let blocks = &blocks[..per_chunk.min(blocks.len())];
            if layout.channels > 0 && first < self.out_features {
                self.gradient_task(
                    &layout,
                    &cut,
                    (blocks, max_rows, features),
                    sums,
                    (x, dy),
                    [&inputs, &cotangents],
                );
            }
        });
        let (total, rest) = sums.split_at_mut(cut.chunk());
        let size = cut.chunk().div_ceil(NUM_TASKS).max(1 << 14);
        pool.for_each(total.chunks_mut(size), |index, total| {
            for sums in rest.chunks_exact(cut.chunk()) {
                for (total, sum) in total.iter_mut().zip(&sums[index * size..]) {
                    *total = T::sum(*total, *sum);
                }
            }
        });

        let places = layout.places(self.in_features, self.kernel);
        let places = places.map(|(channel, tap)| cut.channel(channel, tap));
        let places: Vec<usize> = places.collect();
        let features: Vec<usize> = (0..self.out_features).map(|o| cut.feature(o)).collect();
        scatter(pool, dw, &kernel, total, (&features, &places));
    }

    /// Among the ways to cut the work into enough tasks, the one that moves the fewest elements.
    fn cut(&self, layout: &Layout, processor: Processor, element_size: usize) -> Cut {
        let width = processor.panel_vectors(self.out_features) * processor.lanes;
        let num_taps = self.kernel[0] * layout.num_column_taps();
        let (num_panels, num_groups) =
            (self.out_features.div_ceil(width), layout.channels.div_ceil(LANE));
        let cut = |chunks: usize, panel_parts: usize, group_parts: usize| {
            let (panels, groups) =
                (num_panels.div_ceil(panel_parts), num_groups.div_ceil(group_parts));
            Cut {
                processor,
                width,
                num_taps,
                chunks,
                panel_parts: num_panels.div_ceil(panels),
                group_parts: num_groups.div_ceil(groups),
                panels,
                groups,
            }
        };
        let wanted = (self.flops() / super::MIN_TASK).clamp(1, NUM_TASKS);
        let max_chunks = self.batch * self.output[0];
        let positions = max_chunks * self.output[1];
        let cost = |cut: &Cut| {
            let num_tasks = cut.chunks * cut.panel_parts * cut.group_parts;
            // Each part packs its positions once for all parts of the other operand, and sums are
            // written, read and added.
            let packed = cut.panel_parts * layout.channels + cut.group_parts * self.out_features;
            let sums = cut.chunks * cut.chunk();
            (wanted.saturating_sub(num_tasks), 2 * positions * packed + 3 * sums)
        };
        let parts = || (0..5).map(|log| 1 << log);
        let cuts = (1..=NUM_TASKS).flat_map(|chunks| {
            parts().flat_map(move |panels| parts().map(move |groups| (chunks, panels, groups)))
        });
        cuts.filter(|(chunks, panels, groups)| {
            *chunks <= max_chunks && *panels <= num_panels && *groups <= layout.max_parts()
        })
        .map(|(chunks, panels, groups)| cut(chunks, panels, groups))
        .filter(|cut| cut.chunks == 1 || cut.chunks * cut.chunk() * element_size <= PARTIAL_BYTES)
        .min_by_key(cost)
        .unwrap_or(cut(1, 1, 1))
    }

    /// The sums of some blocks, of at most `max_rows` rows, for a range of output features.
    /// `layout` is that of the task's channels.
    fn gradient_task<T: Scalar>(
        &self,
        layout: &Layout,
        cut: &Cut,
        (blocks, max_rows, features): (&[Block], usize, Range<usize>),
        sums: &mut [T],
        (x, dy): (&[T], &[T]),
        scratch: [&Scratch<T>; 2],
    ) {
        let (Some(row_phase), Some(column_phase)) =
            (layout.rows.phases.first(), layout.columns.phases.first())
        else {
            return;
        };
        // For each tap, all groups of channels.
        let taps = self.taps(layout, &row_phase.taps, &column_phase.taps, 0);
        let num_groups = layout.channels.div_ceil(LANE);
        let row_len = self.output[1] * self.out_features;
        // Whole panels of few features are read where they are.
        let in_place =
            self.out_features.is_multiple_of(cut.width) && self.out_features <= MAX_IN_PLACE;
        let num_panels = features.len().div_ceil(cut.width);
        let positions = max_rows * self.output[1];
        let packed_len = if in_place { 0 } else { positions * num_panels * cut.width };
        // Padding is zero in all blocks of one length.
        scratch[0].with(layout.len(max_rows), |input| {
            scratch[1].with(packed_len, |packed| {
                for block in blocks {
                    let rows = block.rows.len();
                    layout.pack(input, self.image(x, block.image), block.rows.start, rows);
                    let dy = &dy[(block.image * self.output[0] + block.rows.start) * row_len..];
                    let dy = &dy[..rows * row_len];
                    let panel_len = rows * self.output[1] * cut.width;
                    if !in_place {
                        let packed = &mut packed[..num_panels * panel_len];
                        pack_panels(packed, dy, self.out_features, features.clone(), cut.width);
                    }
                    let panels = sums.chunks_exact_mut(cut.groups * cut.group()).take(num_panels);
                    for (index, sums) in panels.enumerate() {
                        let (cotangent, cotangent_column) = match in_place {
                            true => (&dy[features.start + index * cut.width..], self.out_features),
                            false => (&packed[index * panel_len..][..panel_len], cut.width),
                        };
                        let sums = sums.chunks_exact_mut(cut.group()).take(num_groups);
                        for (group, sums) in sums.enumerate() {
                            let sums = sums.chunks_exact_mut(LANE * cut.width);
                            let taps = taps.iter().skip(group).step_by(num_groups);
                            for (tap, sums) in taps.zip(sums) {
                                let gradient = Gradient {
                                    input: &input[tap.input..],
                                    input_row: layout.rows.stride * layout.row(),
                                    cotangent,
                                    cotangent_column,
                                    rows,
                                    columns: self.output[1],
                                    sums,
                                    channels: tap.channels,
                                };
                                gradient.run(cut.processor, cut.width / cut.processor.lanes);
                            }
                        }
                    }
                }
            });
        });
    }
}

/// Copies `sums[features[o] + places[i, tap]]` to the places of a kernel's gradient. Taps are
/// numbered row by row.
fn scatter<T: Scalar>(
    pool: &Pool,
    dw: &mut [T],
    kernel: &Kernel,
    sums: &[T],
    (features, places): (&[usize], &[usize]),
) {
    let (dims, strides) = (kernel.dims, kernel.strides);
    let [_, _, rows, columns] = dims;
    // The outermost dimension cuts the gradient into slices, if the others lie within its stride.
    let reach = |dim: usize| (dims[dim] - 1) * strides[dim];
    let outer = (0..4).max_by_key(|dim| reach(*dim)).unwrap_or(0);
    let others = kernel.extent() - reach(outer);
    assert!(
        reach(outer) == 0 || others <= strides[outer],
        "elements of the gradient share a place"
    );
    let inner = |ranges: [Range<usize>; 3], skipped: usize| -> Vec<[usize; 2]> {
        let windows = kernel.windows(ranges);
        windows
            .map(|([i, row, column], at)| {
                [at - skipped, places[(i * rows + row) * columns + column]]
            })
            .collect()
    };
    let [out_features, in_features, num_rows, num_columns] = dims.map(|dim| 0..dim);
    let all = [in_features, num_rows, num_columns];
    let block = LANE * rows * columns;
    let chunk = dims[outer].div_ceil(NUM_TASKS);
    let slices = dw.chunks_mut((chunk * strides[outer]).max(1));
    if outer == 0 {
        let inner = inner(all, 0);
        pool.for_each(slices, |index, dw| {
            let features = features.chunks(chunk).nth(index).unwrap_or_default();
            let outer = features.iter().enumerate().map(|(o, feature)| [o * strides[0], *feature]);
            copy(dw, sums, outer, inner.chunks(block));
        });
    } else {
        pool.for_each(slices, |index, dw| {
            let start = index * chunk;
            let mut ranges = all.clone();
            ranges[outer - 1] = start..(start + chunk).min(dims[outer]);
            let inner = inner(ranges, start * strides[outer]);
            let outer = out_features.clone().map(|o| [o * strides[0], features[o]]);
            copy(dw, sums, outer, inner.chunks(block));
        });
    }
}
