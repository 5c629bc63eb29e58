//! Which inputs the positions of an output see, along one axis.

use std::ops::Range;

/// Output positions `start + period * i` for `i < count`. They see the same taps of the kernel:
/// those that do not fall between the elements of a dilated input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    pub start: usize,
    pub count: usize,
    /// Indices of taps, and the input position that position 0 of the phase sees through each.
    pub taps: Vec<(usize, i64)>,
}

/// An axis of a convolution: position `i` of a phase sees input `i * stride + offset` through a
/// tap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Size of the input.
    pub input: usize,
    /// Size of the output.
    pub output: usize,
    pub stride: usize,
    /// Distance between positions of a phase in the output.
    pub period: usize,
    pub phases: Vec<Phase>,
    /// The least offset of a tap.
    pub first: i64,
    /// Input positions from the least offset to the greatest, at least 1.
    pub span: usize,
}

impl Axis {
    /// Position `p` sees input `(p * stride + k - low) / dilation` through tap `k` of `kernel`, if
    /// that is whole.
    pub fn new(
        [input, output]: [usize; 2],
        kernel: usize,
        stride: usize,
        low: i64,
        dilation: usize,
    ) -> Self {
        let common = greatest_common_divisor(stride, dilation);
        let period = dilation / common;
        let phase = |start: usize| {
            let place = |k: usize| (start * stride + k) as i64 - low;
            let taps = (0..kernel)
                .filter(|k| place(*k).rem_euclid(dilation as i64) == 0)
                .map(|k| (k, place(k).div_euclid(dilation as i64)));
            Phase { start, count: (output - start).div_ceil(period), taps: taps.collect() }
        };
        let phases: Vec<_> = (0..period.min(output)).map(phase).collect();
        let offsets =
            || phases.iter().flat_map(|phase| phase.taps.iter().map(|(_, offset)| *offset));
        let first = offsets().min().unwrap_or(0);
        let span = (offsets().max().unwrap_or(0) - first) as usize + 1;
        Self { input, output, stride: stride / common, period, phases, first, span }
    }

    /// Positions of the longest phase.
    pub fn max_count(&self) -> usize {
        self.phases.iter().map(|phase| phase.count).max().unwrap_or(0)
    }

    /// For each input position modulo the stride, counted from the first, whether a tap sees such.
    pub fn seen(&self) -> Vec<bool> {
        let mut seen = vec![false; self.stride];
        for (_, offset) in self.phases.iter().flat_map(|phase| &phase.taps) {
            seen[(offset - self.first) as usize % self.stride] = true;
        }
        seen
    }

    /// The part of a phase with outputs in a range that starts at a multiple of the period.
    pub fn part(&self, phase: &Phase, range: &Range<usize>) -> Range<usize> {
        let end = range.end.saturating_sub(phase.start).div_ceil(self.period);
        range.start / self.period..end.min(phase.count)
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
