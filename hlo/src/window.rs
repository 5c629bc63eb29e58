//! Windows that slide over a tensor's dims: what convolutions and pooling share.
//!
//! Along one dim the base is dilated (zeros, or the identity of the reduction, between its elements) and
//! padded; the window's elements stand `window_dilation` apart; the window moves by `stride`:
//!
//! ```text
//! result[r] takes base[p / base_dilation], p = r * stride + w * window_dilation - low, for each w
//! ```
//! where `p` is a whole multiple of `base_dilation` and within the base. Semantics are those of
//! StableHLO's `convolution` and `reduce_window`.

/// No edge, step or extent is greater: sums and differences of them fit an i64, and those of gradients too.
pub(crate) const MAX_EXTENT: i128 = 1 << 60;

/// How a window moves along one dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowDim {
    /// Step between two places of the window, at least 1.
    pub stride: usize,
    /// Padding before the first element; negative cuts off.
    pub low: i64,
    /// Padding behind the last element; negative cuts off.
    pub high: i64,
    /// Distance between neighbours of the base, at least 1.
    pub base_dilation: usize,
    /// Distance between neighbours of the window, at least 1.
    pub window_dilation: usize,
}

impl Default for WindowDim {
    /// Every place, no padding, no dilation.
    fn default() -> Self {
        Self { stride: 1, low: 0, high: 0, base_dilation: 1, window_dilation: 1 }
    }
}

impl WindowDim {
    /// How many places a window of `window` elements has over `base` elements, or what is wrong.
    pub(crate) fn num_places(&self, base: usize, window: usize) -> Result<usize, String> {
        if self.stride == 0 || self.base_dilation == 0 || self.window_dilation == 0 {
            return Err("strides and dilations are at least 1".into());
        }
        // Wide, since padding and dilations may be anything.
        let (spread, extent) =
            (dilated(base, self.base_dilation), dilated(window, self.window_dilation));
        let padded = spread + i128::from(self.low) + i128::from(self.high);
        let numbers = [self.low.into(), self.high.into(), self.stride as i128, spread, extent];
        if numbers.iter().any(|number| number.abs() > MAX_EXTENT) {
            return Err("padding, strides and dilations reach further than 2^60".into());
        }
        if padded < 0 {
            return Err(format!(
                "padding {} and {} leaves {padded} of {base} elements",
                self.low, self.high
            ));
        }
        let room = padded - extent;
        let places = if room < 0 { 0 } else { room / self.stride as i128 + 1 };
        usize::try_from(places).map_err(|_| format!("a window has {places} places"))
    }

    /// Which of `base` elements the window's element `window` meets at place `place`: none in the padding
    /// and between the elements of a dilated base.
    pub(crate) fn base_index(&self, place: usize, window: usize, base: usize) -> Option<usize> {
        let p = place as i128 * self.stride as i128 + window as i128 * self.window_dilation as i128
            - i128::from(self.low);
        let dilation = self.base_dilation as i128;
        let index = usize::try_from(p / dilation).ok().filter(|_| p >= 0 && p % dilation == 0);
        index.filter(|index| *index < base)
    }

    /// How often an element of the base is met, from all places together.
    pub(crate) fn num_met(&self, places: usize, window: usize, base: usize) -> u64 {
        let is_met = |place, w| self.base_index(place, w, base).is_some();
        let meets = |place| (0..window).filter(|w| is_met(place, *w)).count();
        (0..places).map(|place| meets(place) as u64).sum()
    }
}

/// The extent of `size` elements that stand `dilation` apart.
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
        // Base 1 0 1 0 1 with one zero before: 0 1 0 1 0 1; a window of 2 spread to 3, every second place.
        let dim = WindowDim { stride: 2, low: 1, high: 0, base_dilation: 2, window_dilation: 2 };
        assert_eq!(dim.num_places(3, 2), Ok(2));
        let indices = |place| [0, 1].map(|window| dim.base_index(place, window, 3));
        assert_eq!([indices(0), indices(1)], [[None, None], [None, None]]);
        let shifted = WindowDim { low: 2, ..dim };
        assert_eq!([0, 1].map(|window| shifted.base_index(0, window, 3)), [None, Some(0)]);
        assert_eq!([0, 1].map(|window| shifted.base_index(1, window, 3)), [Some(0), Some(1)]);
    }

    #[test]
    fn a_window_that_does_not_fit_has_no_place_and_padding_cannot_take_more_than_there_is() {
        assert_eq!(WindowDim::default().num_places(2, 3), Ok(0));
        let cut = WindowDim { low: -2, high: -1, ..WindowDim::default() };
        assert_eq!(cut.num_places(3, 1), Ok(0));
        assert!(cut.num_places(2, 1).unwrap_err().contains("leaves -1 of 2 elements"));
    }
}
