//! `synthetic`: a generated classification task of any size, for experiments.
//!
//! Each class has a center, and each example is the center of its class plus noise; both depend on
//! the seed. Noise is a sum of four uniform values, which approximates a normal distribution.
//! Unlike a method that needs a library's logarithm, it is exact in f32: every machine generates
//! the same examples.

use hlo::DType;
use hlo::random::threefry2x32;

use super::fingerprint::Fingerprinter;
use super::source::checked_index;
use super::{Error, Field, Source};

/// One split of a synthetic task. Field `x` is f32 with the given dims: center plus noise, each
/// with variance 1. `y` is i32 `[]`.
pub struct Synthetic {
    centres_key: [u32; 2],
    noise_key: [u32; 2],
    labels_key: [u32; 2],
    num_examples: u64,
    num_classes: usize,
    fields: [Field; 2],
}

impl Synthetic {
    /// A training split of `num_examples`, and an evaluation split of a fifth as many other
    /// examples, at least one.
    ///
    /// Examples, features and classes are counted in 32 bits; the configuration limits them to
    /// that.
    pub fn splits(
        seed: u64,
        num_examples: usize,
        dims: &[usize],
        num_classes: usize,
    ) -> (Self, Self) {
        let seed_key = [seed as u32, (seed >> 32) as u32];
        let split = |index: u32, num_examples: usize| Self {
            // Both splits have the same centers, or there would be nothing to learn.
            centres_key: threefry2x32(seed_key, [SYNTHETIC, 0]),
            noise_key: threefry2x32(seed_key, [SYNTHETIC, 1 + 2 * index]),
            labels_key: threefry2x32(seed_key, [SYNTHETIC, 2 + 2 * index]),
            num_examples: num_examples as u64,
            num_classes,
            fields: [
                Field { name: "x", dtype: DType::F32, dims: dims.to_vec() },
                Field { name: "y", dtype: DType::I32, dims: vec![] },
            ],
        };
        (split(0, num_examples), split(1, (num_examples / 5).max(1)))
    }
}

impl Source for Synthetic {
    fn num_examples(&self) -> u64 {
        self.num_examples
    }

    fn num_outputs(&self) -> usize {
        self.num_classes
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn fingerprint(&self) -> Result<Option<u128>, Error> {
        let keys = [self.centres_key, self.noise_key, self.labels_key].concat();
        let [x, _] = &self.fields;
        let all = Fingerprinter::new("synthetic").numbers(keys.into_iter().map(u64::from));
        let all = all.numbers([self.num_examples, self.num_classes as u64]);
        Ok(Some(all.numbers(x.dims.iter().map(|size| *size as u64)).finish()))
    }

    fn read(&self, example: u64, _epoch: Option<u64>, out: &mut [&mut [u8]]) -> Result<(), Error> {
        let id = checked_index(example, self.num_examples)? as u32;
        let [bits, _] = threefry2x32(self.labels_key, [id, 0]);
        let label = ((u64::from(bits) * self.num_classes as u64) >> 32) as u32;
        for (feature, bytes) in out[0].chunks_exact_mut(size_of::<f32>()).enumerate() {
            let feature = feature as u32;
            let centre = bell(threefry2x32(self.centres_key, [label, feature]));
            let noise = bell(threefry2x32(self.noise_key, [id, feature]));
            bytes.copy_from_slice(&(centre + noise).to_ne_bytes());
        }
        out[1].copy_from_slice(&(label as i32).to_ne_bytes());
        Ok(())
    }
}

/// Separates these random numbers from others with the same seed.
const SYNTHETIC: u32 = 0x53594e54;

/// The sum of four uniform values, with mean 0 and variance 1 (to within 1e-9).
fn bell(bits: [u32; 2]) -> f32 {
    let sum: u32 = bits.iter().map(|word| (word & 0xffff) + (word >> 16)).sum();
    // Each half word has mean 65535/2 and variance 65536^2/12; the sum of four has standard
    // deviation 65536/sqrt(3).
    (sum as f32 - 131_070.0) * (1.732_050_8 / 65_536.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(source: &Synthetic, id: u64) -> (Vec<f32>, i32) {
        let mut x = vec![0f32; source.fields()[0].dims[0]];
        let mut y = [0i32];
        let mut out = [bytemuck::cast_slice_mut(&mut x), bytemuck::cast_slice_mut(&mut y)];
        source.read(id, None, &mut out).unwrap();
        (x, y[0])
    }

    #[test]
    fn examples_follow_from_the_seed_and_the_splits_differ() {
        let (train, eval) = Synthetic::splits(7, 100, &[4], 3);
        assert_eq!((train.num_examples(), eval.num_examples()), (100, 20));
        assert_eq!(read(&train, 3), read(&Synthetic::splits(7, 100, &[4], 3).0, 3));
        assert_ne!(read(&train, 3), read(&Synthetic::splits(8, 100, &[4], 3).0, 3));
        assert_ne!(read(&train, 3), read(&eval, 3));
        assert!(train.read(100, None, &mut [&mut [0; 16], &mut [0; 4]]).is_err());
    }

    #[test]
    fn noise_has_unit_variance() {
        let values: Vec<_> =
            (0..10_000).map(|i| f64::from(bell(threefry2x32([1, 2], [i, 0])))).collect();
        let mean = values.iter().sum::<f64>() / 1e4;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 1e4;
        assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }

    /// The nearest mean of the training examples classifies the others.
    #[test]
    fn the_task_can_be_learned() {
        let (train, eval) = Synthetic::splits(0, 1000, &[32], 5);
        let mut means = vec![(vec![0.0; 32], 0.0); 5];
        for id in 0..1000 {
            let (x, y) = read(&train, id);
            let (sum, count) = &mut means[y as usize];
            sum.iter_mut().zip(&x).for_each(|(sum, x)| *sum += f64::from(*x));
            *count += 1.0;
        }
        assert!(means.iter().all(|(_, count)| *count > 150.0));
        let distance = |class: usize, x: &[f32]| -> f64 {
            let (sum, count) = &means[class];
            sum.iter().zip(x).map(|(sum, x)| (sum / count - f64::from(*x)).powi(2)).sum()
        };
        let correct = (0..200).filter(|id| {
            let (x, y) = read(&eval, *id);
            let nearest = (0..5).min_by(|a, b| distance(*a, &x).total_cmp(&distance(*b, &x)));
            nearest == Some(y as usize)
        });
        assert!(correct.count() > 190);
    }
}
