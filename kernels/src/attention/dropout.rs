//! Dropout with a mask that depends on global indices only.

use crate::threefry::threefry2x32;

/// Dropout of attention weights: a weight is kept, divided by `1 - rate`, if the random number of
/// its global index is less than `1 - rate`.
///
/// Random numbers are threefry2x32 of the key and of two words: the number of the example in the
/// global batch, and the row-major index of head, query and key among all heads of the example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The probability of dropping, in `[0, 1)`.
    pub rate: f64,
    /// The key.
    pub key: [u32; 2],
    /// The number of the first example in the global batch.
    pub first_example: u32,
    /// The number of the first head among all heads of the layer.
    pub first_head: u32,
}

/// The weights of a query in a head of an example, by their numbers among those that are here.
#[derive(Clone, Copy, Debug)]
pub(super) struct WeightsOfQuery {
    pub example: usize,
    pub head: usize,
    pub query: usize,
    pub num_positions: usize,
}

impl Dropout {
    /// The factor of the weights that are kept.
    pub(super) fn scale(&self) -> f64 {
        1.0 / (1.0 - self.rate)
    }

    /// `true` in `keep` for the weights to keep, of neighbouring keys from `first_key` on.
    #[inline(always)]
    pub(super) fn keep(&self, keep: &mut [bool], of: WeightsOfQuery, first_key: usize) {
        // A random number is the upper 24 bits of a word as a fraction. It is compared in f32.
        let probability = (1.0 - self.rate) as f32;
        let threshold = (probability * (1 << 24) as f32).ceil() as u32;
        let example = self.first_example.wrapping_add(of.example as u32);
        let head = self.first_head.wrapping_add(of.head as u32);
        let t = of.num_positions as u32;
        let query = head.wrapping_mul(t).wrapping_add(of.query as u32);
        let first = query.wrapping_mul(t).wrapping_add(first_key as u32);
        for (i, keep) in keep.iter_mut().enumerate() {
            let index = first.wrapping_add(i as u32);
            *keep = (threefry2x32(self.key, [example, index])[0] >> 8) < threshold;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_as_many_are_kept_as_the_rate_says_and_the_same_wherever_a_part_begins() {
        let dropout = Dropout { rate: 0.1, key: [1, 2], first_example: 7, first_head: 2 };
        let mut whole = vec![false; 10_000];
        let of = WeightsOfQuery { example: 3, head: 1, query: 5, num_positions: 10_000 };
        dropout.keep(&mut whole, of, 0);
        let num_kept = whole.iter().filter(|keep| **keep).count();
        assert!((8900..9100).contains(&num_kept), "{num_kept}");
        let mut part = vec![false; 50];
        let elsewhere = Dropout { first_example: 10, first_head: 0, ..dropout };
        elsewhere.keep(&mut part, WeightsOfQuery { example: 0, head: 3, ..of }, 200);
        assert_eq!(part, whole[200..250]);
    }
}
