//! The forward pass.

use super::real::{Real, maximum, sum};
use super::{Attention, KEYS, QUERIES, QueriesKeysValues, WeightsOfQuery};
use crate::gemm::{Matrix, MatrixMut, multiply};
use crate::vectors::vectorized;
use crate::{Element, Pool};

impl Attention {
    /// Writes `y`, rows of heads `[batch * num_positions, num_heads * d]`, and for the backward
    /// pass the logarithms of the sums of the exponentials of each head's scores,
    /// `[batch * num_positions, num_heads]`. `mask` has a number for each row, 0 for a key that is
    /// hidden from all queries. A query from which all keys are hidden weights them equally.
    ///
    /// # Panics
    /// If a slice has another length.
    pub fn forward<T: Element>(
        &self,
        pool: &Pool<'_>,
        y: &mut [T],
        lse: &mut [T],
        operands: QueriesKeysValues<'_, T>,
        mask: Option<&[T]>,
    ) {
        T::attend(self, pool, [y, lse], operands, mask);
    }

    pub(crate) fn compute<T: Real>(
        &self,
        pool: &Pool<'_>,
        y: &mut [T],
        lse: &mut [T],
        operands: QueriesKeysValues<'_, T>,
        mask: Option<&[T]>,
    ) {
        self.check(&operands, y, lse, mask);
        let Self { num_positions, num_heads, head_width, .. } = *self;
        let width = num_heads * head_width;
        if y.is_empty() {
            return;
        }
        // Rows of a block of queries, of all heads, are neighbours.
        let examples =
            y.chunks_mut(num_positions * width).zip(lse.chunks_mut(num_positions * num_heads));
        let blocks = examples.enumerate().flat_map(|(example, (y, lse))| {
            let blocks = y.chunks_mut(QUERIES * width).zip(lse.chunks_mut(QUERIES * num_heads));
            blocks.enumerate().map(move |(block, (y, lse))| (example, block * QUERIES, y, lse))
        });
        pool.for_each(blocks, |_, (example, first_query, y, lse)| {
            let mut block = Block::new(self, lse.len() / num_heads);
            for head in 0..num_heads {
                block.compute(self, example, head, first_query, &operands, mask);
                block.write(y, lse, head, num_heads);
            }
        });
    }
}

/// Buffers and results for a block of queries of one head.
struct Block<T> {
    num_queries: usize,
    head_width: usize,
    /// `[queries, keys]`: scores, then their exponentials.
    scores: Vec<T>,
    /// `[queries, d]`, before the division by the sum of the exponentials.
    y: Vec<T>,
    /// The greatest score of each query so far.
    greatest: Vec<T>,
    /// The sum of exponentials of each query so far, relative to the greatest score.
    sums: Vec<T>,
    keep: Vec<bool>,
}

impl<T: Real> Block<T> {
    fn new(attention: &Attention, num_queries: usize) -> Self {
        let Attention { num_positions, head_width, .. } = *attention;
        let num_keys = num_positions.min(KEYS);
        let zeros = |len: usize| vec![T::default(); len];
        Self {
            num_queries,
            head_width,
            scores: zeros(num_queries * num_keys),
            y: zeros(num_queries * head_width),
            greatest: zeros(num_queries),
            sums: zeros(num_queries),
            keep: vec![false; if attention.dropout.is_some() { num_keys } else { 0 }],
        }
    }

    fn compute(
        &mut self,
        attention: &Attention,
        example: usize,
        head: usize,
        first_query: usize,
        operands: &QueriesKeysValues<'_, T>,
        mask: Option<&[T]>,
    ) {
        let Attention { num_positions, num_heads, num_kv_heads, head_width, .. } = *attention;
        let QueriesKeysValues { queries, keys, values } = operands;
        let (q_stride, kv_stride) = (num_heads * head_width, num_kv_heads * head_width);
        let (num_queries, first_row) = (self.num_queries, example * num_positions);
        let kv_head = head / attention.group();
        let last_key = attention.num_keys(first_query + num_queries);
        self.greatest.fill(T::NEG_INFINITY);
        self.sums.fill(T::default());
        for first_key in (0..last_key).step_by(KEYS) {
            let num_keys = KEYS.min(last_key - first_key);
            multiply(
                MatrixMut {
                    data: &mut self.scores,
                    dims: [num_queries, num_keys],
                    strides: [num_keys, 1],
                },
                Matrix {
                    data: attention.at(queries, num_heads, first_row + first_query, head),
                    dims: [num_queries, head_width],
                    strides: [q_stride, 1],
                },
                Matrix {
                    data: attention.at(keys, num_kv_heads, first_row + first_key, kv_head),
                    dims: [head_width, num_keys],
                    strides: [1, kv_stride],
                },
                false,
            );
            let mask = mask.map(|mask| &mask[first_row + first_key..][..num_keys]);
            self.exponentials(attention, example, head, [first_query, first_key, num_keys], mask);
            multiply(
                MatrixMut {
                    data: &mut self.y,
                    dims: [num_queries, head_width],
                    strides: [head_width, 1],
                },
                Matrix {
                    data: &self.scores,
                    dims: [num_queries, num_keys],
                    strides: [num_keys, 1],
                },
                Matrix {
                    data: attention.at(values, num_kv_heads, first_row + first_key, kv_head),
                    dims: [num_keys, head_width],
                    strides: [kv_stride, 1],
                },
                first_key > 0,
            );
        }
    }

    /// Replaces scores by their exponentials relative to the greatest, and scales what was summed
    /// relative to another.
    fn exponentials(
        &mut self,
        attention: &Attention,
        example: usize,
        head: usize,
        [first_query, first_key, num_keys]: [usize; 3],
        mask: Option<&[T]>,
    ) {
        let Attention { num_positions, head_width, dropout, .. } = *attention;
        let scale = T::from_f64(1.0 / (head_width as f64).sqrt());
        vectorized(
            #[inline(always)]
            || {
                let rows = self.scores.chunks_exact_mut(num_keys).take(self.num_queries);
                for (row, scores) in rows.enumerate() {
                    let query = first_query + row;
                    let num_visible = attention.num_visible(query, first_key, num_keys);
                    let (scores, hidden) = scores.split_at_mut(num_visible);
                    hidden.fill(T::default());
                    match mask {
                        None => {
                            for score in scores.iter_mut() {
                                *score *= scale;
                            }
                        }
                        Some(mask) => {
                            for (score, mask) in scores.iter_mut().zip(mask) {
                                let is_hidden = *mask == T::default();
                                *score = if is_hidden { T::LEAST } else { *score * scale };
                            }
                        }
                    }
                    let before = self.greatest[row];
                    let block = maximum(scores);
                    let greatest = if block > before { block } else { before };
                    for score in scores.iter_mut() {
                        *score = (*score - greatest).exp();
                    }
                    let block_sum = sum(scores);
                    self.greatest[row] = greatest;
                    if first_key == 0 {
                        self.sums[row] = block_sum;
                    } else if greatest > before {
                        let factor = (before - greatest).exp();
                        self.sums[row] = self.sums[row] * factor + block_sum;
                        let y = &mut self.y[row * head_width..][..head_width];
                        for y in y {
                            *y *= factor;
                        }
                    } else {
                        self.sums[row] += block_sum;
                    }
                    if let Some(dropout) = dropout {
                        let keep = &mut self.keep[..num_visible];
                        let of = WeightsOfQuery { example, head, query, num_positions };
                        dropout.keep(keep, of, first_key);
                        let factor = T::from_f64(dropout.scale());
                        for (score, keep) in scores.iter_mut().zip(keep) {
                            *score = if *keep { *score * factor } else { T::default() };
                        }
                    }
                }
            },
        );
    }

    /// Writes the columns of a head.
    fn write(&self, y: &mut [T], lse: &mut [T], head: usize, num_heads: usize) {
        let d = self.head_width;
        vectorized(
            #[inline(always)]
            || {
                for row in 0..self.num_queries {
                    let sum = self.sums[row];
                    lse[row * num_heads + head] = self.greatest[row] + sum.ln();
                    let out = &mut y[(row * num_heads + head) * d..][..d];
                    let factor = T::ONE / sum;
                    for (out, y) in out.iter_mut().zip(&self.y[row * d..][..d]) {
                        *out = *y * factor;
                    }
                }
            },
        );
    }
}
