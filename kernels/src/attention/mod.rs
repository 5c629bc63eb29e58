//! Self-attention in blocks: nothing of size positions x positions is in memory.
//!
//! Dao, Fu, Ermon, Rudra and Ré, "FlashAttention" (2022), and Dao, "FlashAttention-2" (2023): the
//! softmax of a row of scores is computed block by block with the greatest score so far, and the
//! backward pass computes the weights again from the logarithm of their sum. Blocks that a causal
//! mask hides completely are skipped.

mod backward;
mod dropout;
mod forward;
mod real;

pub use backward::Forward;
pub use dropout::Dropout;
use dropout::WeightsOfQuery;
pub use real::Real;

/// The queries that a block has, which are rows of its scores.
const QUERIES: usize = 64;

/// The keys that a block has at most, which are columns of its scores.
const KEYS: usize = 256;

/// `y = dropout(softmax(q k^T / sqrt(d))) v` in each head of each example, where the scores of
/// hidden keys are the least finite number.
///
/// Rows of all operands are positions, of all examples in order. Scratch memory of a task is 3
/// blocks of `64 x 256` scores, and in the backward pass also the gradients of one head:
/// `2 num_positions * d`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Number of examples.
    pub batch: usize,
    /// Positions of an example.
    pub num_positions: usize,
    /// Number of query heads.
    pub num_heads: usize,
    /// Number of key and value heads, each shared by equally many query heads, which are
    /// neighbours.
    pub num_kv_heads: usize,
    /// d: the width of a head.
    pub head_width: usize,
    /// `true` if a position attends only to itself and earlier ones.
    pub causal: bool,
    /// Dropout of the weights.
    pub dropout: Option<Dropout>,
}

/// Queries, keys and values: matrices with a row for each position and the heads side by side, each
/// of `d` neighbouring columns.
#[derive(Clone, Copy, Debug)]
pub struct QueriesKeysValues<'a, T> {
    /// `[rows, num_heads * d]`
    pub queries: &'a [T],
    /// `[rows, num_kv_heads * d]`
    pub keys: &'a [T],
    /// `[rows, num_kv_heads * d]`
    pub values: &'a [T],
}

/// The gradients of [`QueriesKeysValues`], which are written.
#[derive(Debug)]
pub struct Gradients<'a, T> {
    /// That of the queries.
    pub queries: &'a mut [T],
    /// That of the keys.
    pub keys: &'a mut [T],
    /// That of the values.
    pub values: &'a mut [T],
}

impl Attention {
    /// The elements from head `head` of row `row` on, of a matrix with `num_heads` heads.
    fn at<'a, T>(&self, heads: &'a [T], num_heads: usize, row: usize, head: usize) -> &'a [T] {
        &heads[(row * num_heads + head) * self.head_width..]
    }

    /// Number of rows: positions of all examples.
    fn num_rows(&self) -> usize {
        self.batch * self.num_positions
    }

    /// Query heads that share a key and value head.
    fn group(&self) -> usize {
        self.num_heads / self.num_kv_heads.max(1)
    }

    /// Keys that some of the queries before `last_query` attend to.
    fn num_keys(&self, last_query: usize) -> usize {
        if self.causal { last_query } else { self.num_positions }
    }

    /// The number of keys that a query attends to among the `num_keys` keys from `first_key` on:
    /// these are the first ones.
    fn num_visible(&self, query: usize, first_key: usize, num_keys: usize) -> usize {
        match self.causal {
            true => (query + 1).saturating_sub(first_key).min(num_keys),
            false => num_keys,
        }
    }

    /// # Panics
    /// If key and value heads do not divide the query heads, or a slice has another length.
    fn check<T>(
        &self,
        operands: &QueriesKeysValues<'_, T>,
        y: &[T],
        lse: &[T],
        mask: Option<&[T]>,
    ) {
        let Self { num_heads, num_kv_heads, head_width, .. } = *self;
        assert!(num_kv_heads > 0 && num_heads.is_multiple_of(num_kv_heads), "{self:?}");
        let rows = self.num_rows();
        let QueriesKeysValues { queries, keys, values } = operands;
        for (heads, count) in [(queries, num_heads), (keys, num_kv_heads), (values, num_kv_heads)] {
            assert_eq!(heads.len(), rows * count * head_width, "the length of an operand");
        }
        assert_eq!(y.len(), rows * num_heads * head_width, "the length of y");
        assert_eq!(lse.len(), rows * num_heads, "the length of the logarithms");
        assert!(mask.is_none_or(|mask| mask.len() == rows), "the length of the mask");
    }
}

#[cfg(test)]
mod tests;
