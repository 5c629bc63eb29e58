//! Long sequences of tokens, cut into examples, for `text` and `tokens`.
//!
//! ```text
//! t0 t1 t2 t3 | t4 t5 t6 t7 | t8 ...      context 3: x = t0 t1 t2, y = t1 t2 t3; x = t4 t5 t6, ...
//! ```
//! Windows do not overlap, so that the splits share no token. Tokens after the last whole window
//! are not used.

use std::ops::Range;

use hlo::DType;

use super::source::checked_index;
use super::{Error, Field};

/// The windows of one split.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    context: usize,
    /// Number of windows before the split.
    first: u64,
    num_windows: u64,
    fields: [Field; 2],
}

impl Windows {
    /// All whole windows of `num_tokens`, each `context` + 1 tokens.
    pub fn new(context: usize, num_tokens: u64) -> Self {
        let field = |name| Field { name, dtype: DType::I32, dims: vec![context] };
        let num_windows = num_tokens / (context as u64 + 1);
        Self { context, first: 0, num_windows, fields: [field("x"), field("y")] }
    }

    /// Splits off the last `eval_fraction` for evaluation, rounded to whole windows. Neither part
    /// is empty; `None` if there are less than two windows.
    pub fn split(self, eval_fraction: f64) -> Option<(Self, Self)> {
        let total = self.num_windows;
        if total < 2 {
            return None;
        }
        let num_eval = ((total as f64 * eval_fraction).round() as u64).clamp(1, total - 1);
        let first = self.first + total - num_eval;
        let eval = Self { first, num_windows: num_eval, ..self.clone() };
        Some((Self { num_windows: total - num_eval, ..self }, eval))
    }

    pub fn num_windows(&self) -> u64 {
        self.num_windows
    }

    /// Which part of the whole sequence these windows are: tokens of a window, windows before the
    /// split, windows.
    pub fn extent(&self) -> [u64; 3] {
        [self.context as u64 + 1, self.first, self.num_windows]
    }

    /// `x` and `y`, each i32 `[context]`.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// The range of an example's tokens in the whole sequence.
    ///
    /// # Errors
    /// If there is no such example.
    pub fn tokens_of(&self, example: u64) -> Result<Range<u64>, Error> {
        checked_index(example, self.num_windows)?;
        let length = self.context as u64 + 1;
        let start = (self.first + example) * length;
        Ok(start..start + length)
    }
}

/// Writes a window: `x` is all but its last token, `y` all but its first.
pub(super) fn write(tokens: &[i32], out: &mut [&mut [u8]]) {
    out[0].copy_from_slice(bytemuck::cast_slice(&tokens[..tokens.len() - 1]));
    out[1].copy_from_slice(bytemuck::cast_slice(&tokens[1..]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_share_no_token_and_lose_no_window() {
        for (num_tokens, fraction, expected) in
            [(8, 0.1, (1, 1)), (11, 0.9, (1, 1)), (100, 0.1, (22, 3)), (100, 0.5, (12, 13))]
        {
            let (train, eval) = Windows::new(3, num_tokens).split(fraction).unwrap();
            assert_eq!((train.num_windows(), eval.num_windows()), expected);
            assert_eq!(train.tokens_of(0).unwrap(), 0..4);
            let last = train.tokens_of(train.num_windows() - 1).unwrap();
            assert_eq!(last.end, eval.tokens_of(0).unwrap().start);
            let last = eval.tokens_of(eval.num_windows() - 1).unwrap().end;
            assert!(last <= num_tokens && last + 4 > num_tokens);
            assert!(train.tokens_of(train.num_windows()).is_err());
        }
        assert!(Windows::new(3, 7).split(0.5).is_none());
    }
}
