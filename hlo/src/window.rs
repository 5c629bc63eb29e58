//! Sliding windows, shared by convolutions and pooling.
//!
//! Along one dim the base is dilated (with zeros, or the identity of the reduction, between its
//! elements) and padded; the window's elements are `window_dilation` apart; the window moves by
//! `stride`:
//!
//! ```text
//! result[r] takes base[p / base_dilation], p = r * stride + w * window_dilation - low, for each w
//! ```
//! if `p` is a multiple of `base_dilation` and within the base. Semantics are those of
//! StableHLO's `convolution` and `reduce_window`.

use std::ops::Range;

/// The largest edge, step and extent: their sums and differences, also in gradients, fit an i64.
pub(crate) const MAX_EXTENT: i128 = 1 << 60;

/// Stride, padding and dilations of a window along one dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowDim {
    /// Distance between neighbouring positions of the window, at least 1.
    pub stride: usize,
    /// Padding before the first element; negative padding cuts elements off.
    pub low: i64,
    /// Padding after the last element; negative padding cuts elements off.
    pub high: i64,
    /// Distance between neighbouring elements of the base, at least 1.
    pub base_dilation: usize,
    /// Distance between neighbouring elements of the window, at least 1.
    pub window_dilation: usize,
}

impl Default for WindowDim {
    /// Stride 1, no padding, no dilation.
    fn default() -> Self {
        Self { stride: 1, low: 0, high: 0, base_dilation: 1, window_dilation: 1 }
    }
}

impl WindowDim {
    /// Number of positions of a window of `window` elements over `base` elements.
    pub(crate) fn num_positions(&self, base: usize, window: usize) -> Result<usize, String> {
        if self.stride == 0 || self.base_dilation == 0 || self.window_dilation == 0 {
            return Err("strides and dilations must be at least 1".into());
        }
        // In i128, since padding and dilations are unbounded.
        let (spread, extent) =
            (dilated(base, self.base_dilation), dilated(window, self.window_dilation));
        let padded = spread + i128::from(self.low) + i128::from(self.high);
        let numbers = [self.low.into(), self.high.into(), self.stride as i128, spread, extent];
        if numbers.iter().any(|number| number.abs() > MAX_EXTENT) {
            return Err("padding, strides and dilations exceed 2^60".into());
        }
        if padded < 0 {
            return Err(format!(
                "padding {} and {} leaves {padded} of {base} elements",
                self.low, self.high
            ));
        }
        let room = padded - extent;
        let positions = if room < 0 { 0 } else { room / self.stride as i128 + 1 };
        usize::try_from(positions).map_err(|_| format!("a window has {positions} positions"))
    }

    /// The base elements that negative padding leaves, and the same positions over them without
    /// negative padding. Where padding cuts into the gap between two elements of a dilated base,
    /// the rest of the gap is padding.
    pub(crate) fn without_cuts(self, base: usize) -> (Range<usize>, Self) {
        let dilation = self.base_dilation as i128;
        let [low, high] = [self.low, self.high].map(i128::from);
        // Elements and gaps that an edge cuts off.
        let num_cut = |edge: i128| if edge < 0 { (-edge + dilation - 1) / dilation } else { 0 };
        let first = num_cut(low);
        let end = base as i128 - num_cut(high);
        if first >= end {
            let all = dilated(base, self.base_dilation) + low + high;
            return (0..0, Self { low: all as i64, high: 0, ..self });
        }
        let low = low + first * dilation;
        let high = high + num_cut(high) * dilation;
        (first as usize..end as usize, Self { low: low as i64, high: high as i64, ..self })
    }

    /// Index of the base element that the window's element `window` covers at position `position`;
    /// `None` in the padding and between the elements of a dilated base.
    pub(crate) fn base_index(&self, position: usize, window: usize, base: usize) -> Option<usize> {
        let p = position as i128 * self.stride as i128
            + window as i128 * self.window_dilation as i128
            - i128::from(self.low);
        let dilation = self.base_dilation as i128;
        let index = usize::try_from(p / dilation).ok().filter(|_| p >= 0 && p % dilation == 0);
        index.filter(|index| *index < base)
    }

    /// Number of base elements that the windows of all positions cover, with multiplicity.
    pub(crate) fn num_covered(&self, positions: usize, window: usize, base: usize) -> u64 {
        let is_covered = |position, w| self.base_index(position, w, base).is_some();
        let num_covered_at = |position| (0..window).filter(|w| is_covered(position, *w)).count();
        (0..positions).map(|position| num_covered_at(position) as u64).sum()
    }
}

/// The extent of `size` elements that are `dilation` apart.
pub(crate) fn dilated(size: usize, dilation: usize) -> i128 {
    if size == 0 {
        0
    } else {
        (size as i128 - 1).saturating_mul(dilation as i128).saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_indices_are_those_of_padding_dilation_and_stride() {
        // Base 1 0 1 0 1 with one zero before: 0 1 0 1 0 1; a window of 2 dilated to 3, stride 2.
        let dim = WindowDim { stride: 2, low: 1, high: 0, base_dilation: 2, window_dilation: 2 };
        assert_eq!(dim.num_positions(3, 2), Ok(2));
        let indices = |position| [0, 1].map(|window| dim.base_index(position, window, 3));
        assert_eq!([indices(0), indices(1)], [[None, None], [None, None]]);
        let shifted = WindowDim { low: 2, ..dim };
        assert_eq!([0, 1].map(|window| shifted.base_index(0, window, 3)), [None, Some(0)]);
        assert_eq!([0, 1].map(|window| shifted.base_index(1, window, 3)), [Some(0), Some(1)]);
    }

    #[test]
    fn without_negative_padding_the_same_elements_are_covered() {
        for (low, high, base_dilation, stride) in (-7..4).flat_map(|low| {
            (-7..4).flat_map(move |high| [(low, high, 1, 1), (low, high, 3, 2), (low, high, 2, 1)])
        }) {
            let dim = WindowDim { stride, low, high, base_dilation, window_dilation: 1 };
            for (base, window) in [(1, 1), (3, 1), (3, 2), (5, 3)] {
                let Ok(num_positions) = dim.num_positions(base, window) else { continue };
                let (kept, whole) = dim.without_cuts(base);
                assert!(whole.low >= 0 && whole.high >= 0, "{dim:?}");
                assert_eq!(whole.num_positions(kept.len(), window), Ok(num_positions), "{dim:?}");
                for (at, w) in (0..num_positions).flat_map(|at| (0..window).map(move |w| (at, w))) {
                    let index = whole.base_index(at, w, kept.len()).map(|index| index + kept.start);
                    assert_eq!(index, dim.base_index(at, w, base), "{dim:?} of {base}");
                }
            }
        }
    }

    #[test]
    fn a_window_that_does_not_fit_has_no_place_and_padding_cannot_take_more_than_there_is() {
        assert_eq!(WindowDim::default().num_positions(2, 3), Ok(0));
        let cut = WindowDim { low: -2, high: -1, ..WindowDim::default() };
        assert_eq!(cut.num_positions(3, 1), Ok(0));
        assert!(cut.num_positions(2, 1).unwrap_err().contains("leaves -1 of 2 elements"));
    }
}
