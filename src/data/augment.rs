//! Random numbers for data augmentation. They depend on seed, epoch and example id only, so that an
//! example is augmented in the same way on any number of replicas and after a restart.

use hlo::random::threefry2x32;

/// The stream of random numbers for one example in one epoch.
pub(super) struct Draws {
    key: [u32; 2],
    count: u32,
}

/// Separates these random numbers from others with the same seed.
const AUGMENT: u32 = 0x4155_474d;

impl Draws {
    pub fn new(seed: u64, epoch: u64, example: u64) -> Self {
        let words = |number: u64| [number as u32, (number >> 32) as u32];
        let key = threefry2x32(words(seed), [AUGMENT, 0]);
        let key = threefry2x32(threefry2x32(key, words(epoch)), words(example));
        Self { key, count: 0 }
    }

    fn word(&mut self) -> u32 {
        let [word, _] = threefry2x32(self.key, [self.count, 0]);
        self.count += 1;
        word
    }

    /// Uniform over the integers 0 to `end - 1`, to within 2^-32.
    pub fn below(&mut self, end: u32) -> u32 {
        ((u64::from(self.word()) * u64::from(end)) >> 32) as u32
    }

    /// Uniform in [0, 1), in steps of 2^-32.
    pub fn unit(&mut self) -> f64 {
        f64::from(self.word()) / 2f64.powi(32)
    }

    /// `low * (high / low)^u` with u uniform in [0, 1): the logarithm is uniform. Computed with one
    /// square root per binary digit of u: unlike a library's exponential, square roots are rounded
    /// the same on all machines.
    pub fn log_uniform(&mut self, low: f64, high: f64) -> f64 {
        let word = self.word();
        let (mut value, mut factor) = (low, high / low);
        for bit in (0..u32::BITS).rev() {
            factor = factor.sqrt();
            if word >> bit & 1 == 1 {
                value *= factor;
            }
        }
        value
    }

    /// `true` or `false`, equally likely.
    pub fn coin(&mut self) -> bool {
        self.below(2) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_from_seed_epoch_and_example() {
        let draws = |seed, epoch, example| {
            let mut draws = Draws::new(seed, epoch, example);
            [0; 4].map(|_| draws.below(1 << 31))
        };
        let all = [draws(0, 0, 0), draws(1, 0, 0), draws(0, 1, 0), draws(0, 0, 1), draws(1, 1, 0)];
        for (index, one) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| other != one));
            assert!(one.windows(2).all(|pair| pair[0] != pair[1]));
        }
        assert_eq!(draws(7, 1 << 40, 3), draws(7, 1 << 40, 3));
        assert_ne!(draws(7, 1 << 40, 3), draws(7, 0, 3));
    }

    #[test]
    fn the_logarithm_is_uniform() {
        let mut sum = 0.0;
        for example in 0..4000 {
            let value = Draws::new(0, 0, example).log_uniform(0.75, 4.0 / 3.0);
            let mut again = Draws::new(0, 0, example);
            let expected = 0.75 * (16f64 / 9.0).powf(again.unit());
            assert!((value / expected - 1.0).abs() < 1e-12);
            sum += value.ln();
        }
        assert!((sum / 4000.0).abs() < 0.01, "{sum}");
    }

    /// Chi-square over 9000 examples, 8 degrees of freedom; 32 is exceeded once in ten thousand
    /// tries.
    #[test]
    fn draws_are_even() {
        let mut counts = [0f64; 9];
        for example in 0..9000 {
            counts[Draws::new(0, 3, example).below(9) as usize] += 1.0;
        }
        let chi_square: f64 = counts.iter().map(|count| (count - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi_square < 32.0, "{chi_square}");
    }
}
