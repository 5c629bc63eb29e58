//! `synthetic_tokens`: generated sequences of tokens of any size, for experiments.
//!
//! ```text
//! t0 = random token      t_(i+1) = successor(t_i) with probability 1/2, else a random token
//! ```
//! Each token has one successor, which depends on the seed. So the task can be learned down to a
//! known loss: with a large vocabulary of v tokens, it is `ln 2 + ln(v) / 2` nats per token.

use hlo::DType;
use hlo::random::threefry2x32;

use super::fingerprint::Fingerprinter;
use super::source::checked_index;
use super::{Error, Field, Source, windows};

/// One split of a synthetic task. Fields `x` and `y` are i32 `[context]`; `y` is `x` shifted by one
/// token.
pub struct SyntheticTokens {
    successors_key: [u32; 2],
    tokens_key: [u32; 2],
    num_examples: u64,
    vocab_size: usize,
    context: usize,
    fields: [Field; 2],
}

impl SyntheticTokens {
    /// A training split of `num_examples`, and an evaluation split of a fifth as many other
    /// examples, at least one.
    ///
    /// Examples, positions and tokens are counted in 32 bits; the configuration limits them to
    /// that.
    pub fn splits(
        seed: u64,
        num_examples: usize,
        context: usize,
        vocab_size: usize,
    ) -> (Self, Self) {
        let seed_key = [seed as u32, (seed >> 32) as u32];
        let field = |name| Field { name, dtype: DType::I32, dims: vec![context] };
        let split = |index: u32, num_examples: usize| Self {
            // Both splits have the same successors, or there would be nothing to learn.
            successors_key: threefry2x32(seed_key, [TOKENS, 0]),
            tokens_key: threefry2x32(seed_key, [TOKENS, 1 + index]),
            num_examples: num_examples as u64,
            vocab_size,
            context,
            fields: [field("x"), field("y")],
        };
        (split(0, num_examples), split(1, (num_examples / 5).max(1)))
    }

    fn successor(&self, token: u32) -> u32 {
        self.token(threefry2x32(self.successors_key, [token, 0])[0])
    }

    /// Maps 32 random bits to a token.
    fn token(&self, bits: u32) -> u32 {
        ((u64::from(bits) * self.vocab_size as u64) >> 32) as u32
    }
}

impl Source for SyntheticTokens {
    fn num_examples(&self) -> u64 {
        self.num_examples
    }

    fn num_outputs(&self) -> usize {
        self.vocab_size
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn fingerprint(&self) -> Result<Option<u128>, Error> {
        let keys = [self.successors_key, self.tokens_key].concat();
        let sizes = [self.num_examples, self.vocab_size as u64, self.context as u64];
        let all = Fingerprinter::new("synthetic_tokens").numbers(keys.into_iter().map(u64::from));
        Ok(Some(all.numbers(sizes).finish()))
    }

    fn read(&self, example: u64, _epoch: Option<u64>, out: &mut [&mut [u8]]) -> Result<(), Error> {
        let id = checked_index(example, self.num_examples)? as u32;
        let mut before = None;
        let tokens: Vec<_> = (0..=self.context as u32)
            .map(|position| {
                let [any, coin] = threefry2x32(self.tokens_key, [id, position]);
                let token = match before {
                    Some(before) if coin & 1 == 1 => self.successor(before),
                    _ => self.token(any),
                };
                before = Some(token);
                // The configuration limits the vocabulary to i32.
                token as i32
            })
            .collect();
        windows::write(&tokens, out);
        Ok(())
    }
}

/// Separates these random numbers from others with the same seed.
const TOKENS: u32 = 0x544f_4b53;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(source: &SyntheticTokens, id: u64) -> [Vec<i32>; 2] {
        let mut fields = [vec![0; source.context], vec![0; source.context]];
        let [x, y] = &mut fields;
        source
            .read(id, None, &mut [bytemuck::cast_slice_mut(x), bytemuck::cast_slice_mut(y)])
            .unwrap();
        fields
    }

    #[test]
    fn examples_follow_from_the_seed_and_the_splits_differ() {
        let (train, eval) = SyntheticTokens::splits(7, 100, 8, 50);
        assert_eq!((train.num_examples(), eval.num_examples()), (100, 20));
        assert_eq!(read(&train, 3), read(&SyntheticTokens::splits(7, 100, 8, 50).0, 3));
        assert_ne!(read(&train, 3), read(&SyntheticTokens::splits(8, 100, 8, 50).0, 3));
        assert_ne!(read(&train, 3), read(&eval, 3));
        assert!(train.read(100, None, &mut [&mut [0; 32], &mut [0; 32]]).is_err());
    }

    /// Half of the tokens, and of the others one in fifty by chance, are successors, in either
    /// split.
    #[test]
    fn every_second_token_is_a_successor() {
        let (train, eval) = SyntheticTokens::splits(0, 100, 512, 50);
        for source in [&train, &eval] {
            let mut followed = 0;
            for id in 0..20 {
                let [x, y] = read(source, id);
                assert_eq!(x[1..], y[..511]);
                assert!(x.iter().chain(&y).all(|token| (0..50).contains(token)));
                let is_successor =
                    |(x, y): &(&i32, &i32)| train.successor(**x as u32) == **y as u32;
                followed += x.iter().zip(&y).filter(is_successor).count();
            }
            let share = followed as f64 / (20.0 * 512.0);
            assert!((share - 0.51).abs() < 0.02, "{share}");
        }
    }
}
