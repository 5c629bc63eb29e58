//! The backward pass.

use super::real::{Real, dot};
use super::{Attention, Gradients, KEYS, QUERIES, QueriesKeysValues, WeightsOfQuery};
use crate::gemm::{Matrix, MatrixMut, multiply};
use crate::vectors::vectorized;
use crate::{Element, Pool};

/// Values from the forward pass, and the cotangent of its result.
#[derive(Clone, Copy, Debug)]
pub struct Forward<'a, T> {
    /// The result, rows of heads.
    pub y: &'a [T],
    /// The logarithms of sums of exponentials, `[batch * num_positions, num_heads]`.
    pub lse: &'a [T],
    /// The cotangent of `y`.
    pub cotangent: &'a [T],
}

impl Attention {
    /// Writes the gradients of queries, keys and values.
    ///
    /// # Panics
    /// If a slice has another length.
    pub fn backward<T: Element>(
        &self,
        pool: &Pool<'_>,
        gradients: Gradients<'_, T>,
        operands: QueriesKeysValues<'_, T>,
        forward: Forward<'_, T>,
        mask: Option<&[T]>,
    ) {
        T::attention_gradients(self, pool, gradients, operands, forward, mask);
    }

    pub(crate) fn compute_gradients<T: Real>(
        &self,
        pool: &Pool<'_>,
        gradients: Gradients<'_, T>,
        operands: QueriesKeysValues<'_, T>,
        forward: Forward<'_, T>,
        mask: Option<&[T]>,
    ) {
        self.check(&operands, forward.y, forward.lse, mask);
        assert_eq!(forward.cotangent.len(), forward.y.len(), "the length of the cotangent");
        if self.num_rows() == 0 || self.head_width == 0 {
            return;
        }
        // A task for each key and value head of each example, which writes columns of its own.
        pool.for_each(self.deal(gradients), |task, out| {
            let (example, kv_head) = (task / self.num_kv_heads, task % self.num_kv_heads);
            let pass = Pass { attention: self, operands, forward, mask };
            Head::new(self).compute(&pass, example, kv_head, out);
        });
    }

    /// The columns that each task writes, by rows.
    fn deal<'a, T>(&self, gradients: Gradients<'a, T>) -> Vec<Columns<'a, T>> {
        let (num_tasks, group) = (self.batch * self.num_kv_heads, self.group());
        let with_capacity = || Columns {
            queries: Vec::with_capacity(self.num_positions * group),
            keys: Vec::with_capacity(self.num_positions),
            values: Vec::with_capacity(self.num_positions),
        };
        let mut tasks: Vec<_> = (0..num_tasks).map(|_| with_capacity()).collect();
        let (num_heads, num_kv_heads, d) = (self.num_heads, self.num_kv_heads, self.head_width);
        let Gradients { queries, keys, values } = gradients;
        assert_eq!(queries.len(), self.num_rows() * num_heads * d, "the length of dq");
        assert_eq!(keys.len(), self.num_rows() * num_kv_heads * d, "the length of dk");
        assert_eq!(values.len(), keys.len(), "the length of dv");
        let first_task = |row: usize| row / self.num_positions * num_kv_heads;
        for (row, queries) in queries.chunks_mut(num_heads * d).enumerate() {
            for (head, out) in queries.chunks_mut(d).enumerate() {
                tasks[first_task(row) + head / group].queries.push(out);
            }
        }
        let heads = keys.chunks_mut(d).zip(values.chunks_mut(d));
        for (index, (key, value)) in heads.enumerate() {
            let (row, head) = (index / num_kv_heads, index % num_kv_heads);
            let task = &mut tasks[first_task(row) + head];
            task.keys.push(key);
            task.values.push(value);
        }
        tasks
    }
}

/// The places of the gradients of a key and value head of an example.
struct Columns<'a, T> {
    /// By row, then by query head.
    queries: Vec<&'a mut [T]>,
    keys: Vec<&'a mut [T]>,
    values: Vec<&'a mut [T]>,
}

/// The inputs of all tasks.
struct Pass<'a, T> {
    attention: &'a Attention,
    operands: QueriesKeysValues<'a, T>,
    forward: Forward<'a, T>,
    mask: Option<&'a [T]>,
}

/// Scratch memory of a task.
struct Head<T> {
    /// `[queries, keys]`: scores, then weights.
    weights: Vec<T>,
    /// `[queries, keys]`: cotangents of weights, then of scores.
    cotangents: Vec<T>,
    /// `[queries, keys]`: weights after dropout.
    dropped: Vec<T>,
    keep: Vec<bool>,
    /// `[queries, d]`
    queries: Vec<T>,
    /// `[positions, d]`
    keys: Vec<T>,
    /// `[positions, d]`
    values: Vec<T>,
}

/// A block of scores.
#[derive(Clone, Copy)]
struct Place {
    example: usize,
    head: usize,
    first_query: usize,
    num_queries: usize,
    first_key: usize,
    num_keys: usize,
}

impl<T: Real> Head<T> {
    fn new(attention: &Attention) -> Self {
        let Attention { num_positions, head_width, .. } = *attention;
        let zeros = |len: usize| vec![T::default(); len];
        let block = num_positions.min(QUERIES) * num_positions.min(KEYS);
        let dropped = if attention.dropout.is_some() { block } else { 0 };
        Self {
            weights: zeros(block),
            cotangents: zeros(block),
            dropped: zeros(dropped),
            keep: vec![false; dropped.min(KEYS)],
            queries: zeros(num_positions.min(QUERIES) * head_width),
            keys: zeros(num_positions * head_width),
            values: zeros(num_positions * head_width),
        }
    }

    fn compute(
        mut self,
        pass: &Pass<'_, T>,
        example: usize,
        kv_head: usize,
        mut out: Columns<'_, T>,
    ) {
        let attention = pass.attention;
        let Attention { num_positions, head_width: d, .. } = *attention;
        let group = attention.group();
        for (index, head) in (kv_head * group..(kv_head + 1) * group).enumerate() {
            for first_query in (0..num_positions).step_by(QUERIES) {
                let num_queries = QUERIES.min(num_positions - first_query);
                let last_key = attention.num_keys(first_query + num_queries);
                for first_key in (0..last_key).step_by(KEYS) {
                    let num_keys = KEYS.min(last_key - first_key);
                    let place =
                        Place { example, head, first_query, num_queries, first_key, num_keys };
                    self.block(pass, place, kv_head);
                }
                for row in 0..num_queries {
                    let out = &mut out.queries[(first_query + row) * group + index];
                    out.copy_from_slice(&self.queries[row * d..][..d]);
                }
            }
        }
        for (out, found) in [(&mut out.keys, &self.keys), (&mut out.values, &self.values)] {
            for (out, found) in out.iter_mut().zip(found.chunks_exact(d)) {
                out.copy_from_slice(found);
            }
        }
    }

    /// Adds what one block of scores contributes.
    fn block<'a>(&mut self, pass: &Pass<'a, T>, place: Place, kv_head: usize) {
        let Pass { attention, operands, forward, .. } = pass;
        let Attention { num_positions, num_heads, num_kv_heads, head_width: d, .. } = **attention;
        let Place { example, head, first_query, num_queries, first_key, num_keys } = place;
        let first_row = example * num_positions;
        let of_queries = |data: &'a [T]| Matrix {
            data: attention.at(data, num_heads, first_row + first_query, head),
            dims: [num_queries, d],
            strides: [num_heads * d, 1],
        };
        let of_keys = |data: &'a [T]| Matrix {
            data: attention.at(data, num_kv_heads, first_row + first_key, kv_head),
            dims: [num_keys, d],
            strides: [num_kv_heads * d, 1],
        };
        let (q, dy) = (of_queries(operands.queries), of_queries(forward.cotangent));
        let (k, v) = (of_keys(operands.keys), of_keys(operands.values));
        let (dims, strides) = ([num_queries, num_keys], [num_keys, 1]);
        multiply(MatrixMut { data: &mut self.weights, dims, strides }, q, transposed(k), false);
        multiply(MatrixMut { data: &mut self.cotangents, dims, strides }, dy, transposed(v), false);
        self.differentiate(pass, place);
        let weights = if self.dropped.is_empty() { &self.weights } else { &self.dropped };
        let weights = Matrix { data: &weights[..], dims, strides };
        let ds = Matrix { data: &self.cotangents[..], dims, strides };
        let dims = [num_keys, d];
        let values = &mut self.values[first_key * d..];
        multiply(MatrixMut { data: values, dims, strides: [d, 1] }, transposed(weights), dy, true);
        let keys = &mut self.keys[first_key * d..];
        multiply(MatrixMut { data: keys, dims, strides: [d, 1] }, transposed(ds), q, true);
        let dims = [num_queries, d];
        let queries = MatrixMut { data: &mut self.queries, dims, strides: [d, 1] };
        multiply(queries, ds, k, first_key > 0);
    }

    /// From scores to weights, and from cotangents of weights to those of products of queries and
    /// keys.
    fn differentiate(&mut self, pass: &Pass<'_, T>, place: Place) {
        let Pass { attention, forward, mask, .. } = pass;
        let Attention { num_positions, num_heads, head_width: d, dropout, .. } = **attention;
        let Place { example, head, first_query, num_queries, first_key, num_keys } = place;
        let scale = T::from_f64(1.0 / (d as f64).sqrt());
        let first = example * num_positions + first_key;
        let mask = mask.map(|mask| &mask[first..][..num_keys]);
        vectorized(
            #[inline(always)]
            || {
                for row in 0..num_queries {
                    let query = first_query + row;
                    let entry = (example * num_positions + query) * num_heads + head;
                    let (y, dy) =
                        (&forward.y[entry * d..][..d], &forward.cotangent[entry * d..][..d]);
                    // The sum over keys of weights and their cotangents.
                    let (lse, weighted) = (forward.lse[entry], dot(y, dy));
                    let num_visible = attention.num_visible(query, first_key, num_keys);
                    let part = row * num_keys..(row + 1) * num_keys;
                    let (weights, hidden) = self.weights[part.clone()].split_at_mut(num_visible);
                    hidden.fill(T::default());
                    match mask {
                        None => {
                            for p in weights.iter_mut() {
                                *p = (*p * scale - lse).exp();
                            }
                        }
                        Some(mask) => {
                            // All weights of a query are equal if all keys are hidden from it.
                            let hidden_weight = if lse == T::LEAST {
                                T::ONE / T::from_f64(attention.num_keys(query + 1) as f64)
                            } else {
                                T::default()
                            };
                            for (p, mask) in weights.iter_mut().zip(mask) {
                                let is_hidden = *mask == T::default();
                                *p = if is_hidden {
                                    hidden_weight
                                } else {
                                    (*p * scale - lse).exp()
                                };
                            }
                        }
                    }
                    let (cotangents, hidden) =
                        self.cotangents[part.clone()].split_at_mut(num_visible);
                    hidden.fill(T::default());
                    if let Some(dropout) = dropout {
                        let (dropped, hidden) = self.dropped[part].split_at_mut(num_visible);
                        hidden.fill(T::default());
                        let keep = &mut self.keep[..num_visible];
                        let of = WeightsOfQuery { example, head, query, num_positions };
                        dropout.keep(keep, of, first_key);
                        let factor = T::from_f64(dropout.scale());
                        let values = dropped.iter_mut().zip(cotangents.iter_mut());
                        for ((dropped, ct), (p, keep)) in values.zip(weights.iter().zip(keep)) {
                            let factor = if *keep { factor } else { T::default() };
                            *dropped = *p * factor;
                            *ct *= factor;
                        }
                    }
                    for (ct, p) in cotangents.iter_mut().zip(weights.iter()) {
                        *ct = *p * (*ct - weighted) * scale;
                    }
                    // Scores of hidden keys are constants.
                    for (ct, mask) in cotangents.iter_mut().zip(mask.unwrap_or_default()) {
                        *ct = if *mask == T::default() { T::default() } else { *ct };
                    }
                }
            },
        );
    }
}

fn transposed<T>(matrix: Matrix<'_, T>) -> Matrix<'_, T> {
    let ([m, n], [row, column]) = (matrix.dims, matrix.strides);
    Matrix { data: matrix.data, dims: [n, m], strides: [column, row] }
}
