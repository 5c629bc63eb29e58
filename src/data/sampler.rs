//! The examples of each step: a pure function of the seed, independent of the number of replicas.

use hlo::random::threefry2x32;

/// The order of training examples: a new permutation of all of them in each epoch, cut into
/// batches. The remainder of an epoch that does not fill a batch is dropped; the permutation makes
/// it a different one each time.
///
/// Nothing is stored: batch `k` is computed from (seed, number of examples, global batch, k). A run
/// can therefore continue at any batch, on any number of replicas.
///
/// The permutation is a Feistel network over the smallest even number of bits that holds every id,
/// with threefry as round function, and cycle walking (Black and Rogaway, "Ciphers with Arbitrary
/// Finite Domains", CT-RSA 2002).
///
/// ```
/// use lockstep::data::Sampler;
/// let sampler = Sampler::new(0, 10, 4);
/// assert_eq!(sampler.batches_per_epoch(), 2);
/// assert_eq!(sampler.batch(7).len(), 4);
/// assert_eq!(sampler.batch(7), Sampler::new(0, 10, 4).batch(7));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    key: [u32; 2],
    num_examples: u64,
    global_batch: u64,
}

impl Sampler {
    /// The order for `seed`. If an epoch does not fill a batch, there are no batches.
    pub fn new(seed: u64, num_examples: u64, global_batch: usize) -> Self {
        let key = threefry2x32([seed as u32, (seed >> 32) as u32], [ORDER, 0]);
        Self { key, num_examples, global_batch: global_batch as u64 }
    }

    /// Whole batches per epoch.
    pub fn batches_per_epoch(&self) -> u64 {
        self.num_examples.checked_div(self.global_batch).unwrap_or(0)
    }

    /// The ids of batch `k`, counted from 0 over the whole run; empty if there are no batches.
    pub fn batch(&self, k: u64) -> Vec<u64> {
        if self.batches_per_epoch() == 0 {
            return vec![];
        }
        let first = k % self.batches_per_epoch() * self.global_batch;
        let key = self.epoch_key(self.epoch(k));
        (first..first + self.global_batch).map(|place| self.permute(key, place)).collect()
    }

    /// The epoch that batch `k` belongs to, from 0.
    pub fn epoch(&self, k: u64) -> u64 {
        k.checked_div(self.batches_per_epoch()).unwrap_or(0)
    }

    fn epoch_key(&self, epoch: u64) -> [u32; 2] {
        threefry2x32(self.key, [epoch as u32, (epoch >> 32) as u32])
    }

    /// The id at position `place` of an epoch's permutation.
    fn permute(&self, epoch_key: [u32; 2], place: u64) -> u64 {
        let bits = u64::BITS - self.num_examples.saturating_sub(1).leading_zeros();
        let half_bits = bits.div_ceil(2).max(1);
        let mask = (1u64 << half_bits) - 1;
        let mut value = place;
        // The network permutes at most four times as many values as there are ids, and a cycle that
        // starts at an id returns to one. So the loop ends, after at most four iterations on
        // average.
        loop {
            let (mut left, mut right) = (value >> half_bits, value & mask);
            for round in 0..NUM_ROUNDS {
                let [bits, _] = threefry2x32(epoch_key, [round, right as u32]);
                (left, right) = (right, left ^ (u64::from(bits) & mask));
            }
            value = left << half_bits | right;
            if value < self.num_examples {
                return value;
            }
        }
    }
}

/// Separates the order from other random numbers with the same seed.
const ORDER: u32 = 0x4f524452;

/// Four rounds are enough for large domains (Luby and Rackoff, 1988); small ones need more to mix
/// well.
const NUM_ROUNDS: u32 = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn epoch(sampler: &Sampler, epoch: u64) -> Vec<u64> {
        let per_epoch = sampler.batches_per_epoch();
        (epoch * per_epoch..(epoch + 1) * per_epoch).flat_map(|k| sampler.batch(k)).collect()
    }

    proptest! {
        #[test]
        fn an_epoch_holds_every_id_once(seed: u64, num_examples in 1u64..600, e in 0u64..1 << 40) {
            let mut ids = epoch(&Sampler::new(seed, num_examples, 1), e);
            ids.sort_unstable();
            prop_assert_eq!(ids, (0..num_examples).collect::<Vec<_>>());
        }

        #[test]
        fn the_remainder_is_dropped_and_nothing_comes_twice(
            seed: u64, num_examples in 1u64..600, batch in 1usize..64,
        ) {
            let sampler = Sampler::new(seed, num_examples, batch);
            let mut ids = epoch(&sampler, 3);
            prop_assert_eq!(ids.len() as u64, num_examples / batch as u64 * batch as u64);
            ids.sort_unstable();
            prop_assert!(ids.is_sorted_by(|a, b| a < b) && ids.iter().all(|id| *id < num_examples));
        }

        #[test]
        fn the_order_does_not_depend_on_the_batch(seed: u64, small in 1usize..16) {
            let whole = Sampler::new(seed, 512, 512).batch(2);
            let pieces = epoch(&Sampler::new(seed, 512, small), 2);
            prop_assert_eq!(&whole[..pieces.len()], &pieces[..]);
        }
    }

    #[test]
    fn epochs_and_seeds_differ() {
        let sampler = Sampler::new(0, 1437, 1437);
        let orders = [sampler.batch(0), sampler.batch(1), Sampler::new(1, 1437, 1437).batch(0)];
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            let same = orders[a].iter().zip(&orders[b]).filter(|(a, b)| a == b).count();
            assert!(same < 10, "{same} ids at the same place");
        }
        // Neighbours do not stay neighbours.
        let steps = orders[0].windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count();
        assert!(steps < 15, "{steps}");
    }

    #[test]
    fn huge_and_empty_sets_have_batches_or_none() {
        let sampler = Sampler::new(0, 1 << 50, 8);
        assert!(sampler.batch(1 << 46).iter().all(|id| *id < 1 << 50));
        for (num_examples, batch) in [(0, 4), (3, 4), (3, 0)] {
            let sampler = Sampler::new(0, num_examples, batch);
            assert_eq!((sampler.batches_per_epoch(), sampler.batch(5)), (0, vec![]));
        }
    }

    /// Every place is equally likely to hold an id: chi-square over 4000 seeds, 8 ids, 7 degrees of
    /// freedom; 30 is exceeded once in ten thousand tries.
    #[test]
    fn small_permutations_are_even() {
        let mut counts = [0f64; 8];
        for seed in 0..4000 {
            counts[Sampler::new(seed, 8, 1).batch(0)[0] as usize] += 1.0;
        }
        let chi_square: f64 = counts.iter().map(|count| (count - 500.0).powi(2) / 500.0).sum();
        assert!(chi_square < 30.0, "{chi_square}");
    }
}
