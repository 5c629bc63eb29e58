//! Dropout with a mask that depends on global indices only.

use crate::threefry::threefry2x32;

/// Dropout of attention weights: a weight is kept, divided by `1 - rate`, if the random number of
/// its global index is less than `1 - rate`.
///
/// Random numbers are threefry2x32 of the key and of two words: the row, which is `first_row` plus
/// the number of example and head, and the number of query and key within it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The probability of dropping, in `[0, 1)`.
    pub rate: f64,
    /// The key.
    pub key: [u32; 2],
    /// The row of the first head of the first example in the global batch.
    pub first_row: u32,
}

impl Dropout {
    /// The factor of the weights that are kept.
    pub(super) fn scale(&self) -> f64 {
        1.0 / (1.0 - self.rate)
    }

    /// `true` in `keep` for the weights to keep, of local row `row` and neighbouring indices from
    /// `first` on.
    #[inline(always)]
    pub(super) fn keep(&self, keep: &mut [bool], row: usize, first: usize) {
        // A random number is the upper 24 bits of a word as a fraction. It is compared in f32.
        let probability = (1.0 - self.rate) as f32;
        let threshold = (probability * (1 << 24) as f32).ceil() as u32;
        let row = self.first_row.wrapping_add(row as u32);
        for (i, keep) in keep.iter_mut().enumerate() {
            let index = (first as u32).wrapping_add(i as u32);
            *keep = (threefry2x32(self.key, [row, index])[0] >> 8) < threshold;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_as_many_are_kept_as_the_rate_says_and_the_same_wherever_a_part_begins() {
        let dropout = Dropout { rate: 0.1, key: [1, 2], first_row: 7 };
        let mut whole = vec![false; 10_000];
        dropout.keep(&mut whole, 3, 100);
        let num_kept = whole.iter().filter(|keep| **keep).count();
        assert!((8900..9100).contains(&num_kept), "{num_kept}");
        let mut part = vec![false; 50];
        Dropout { first_row: 0, ..dropout }.keep(&mut part, 10, 300);
        assert_eq!(part, whole[200..250]);
    }
}
