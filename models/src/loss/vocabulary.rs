//! The cross-entropy of tokens: of logits that replicas along `tensor` have pieces of, and in
//! chunks of rows, so that logits of a large vocabulary are never whole.

use hlo::{Axis, DType, Reduction, Tensor, grad};

use super::{Loss, cross_entropy, rank_metrics, ranks};
use crate::Scope;
use crate::layers::Embedding;

/// Logits of more bytes than this are computed in chunks, unless the number of rows is given.
const MAX_WHOLE_BYTES: usize = 4 << 30;
/// Rows of such a chunk. Few do not pay: each chunk reads and writes the whole gradient of the
/// table in f32, which takes an H100 about as long as the products of 400 rows.
const CHUNK_ROWS: usize = 4096;

/// [`vocabulary_cross_entropy`] of `logits = x E^T` with the table of an embedding.
///
/// - `x_nd`: float `[n, d]`, at the start of a region (see [`Scope::enter`])
/// - `labels_n`: integer `[n]`
/// - `weight_n`: float `[n]`, which gets no gradient
/// - `chunk_rows`: the most rows with logits in memory at once; by default all, or 4096 if the
///   logits of all take more than 4 GiB in the dtype of `x_nd`. Chunks have equally many rows, so
///   the last may be filled up with rows of weight 0.
///
/// In training each chunk's gradients are computed with its value: the logits are neither kept nor
/// computed again, and the backward pass multiplies by the loss's cotangent. What is kept are the
/// gradients of `x_nd` and of the table.
#[track_caller]
pub fn tied_cross_entropy<'g>(
    scope: &Scope<'g>,
    x_nd: Tensor<'g>,
    table: &Embedding<'g>,
    labels_n: Tensor<'g>,
    weight_n: Tensor<'g>,
    vocabulary: usize,
    chunk_rows: Option<usize>,
) -> Loss<'g> {
    let ([n, _], table_vd) = (x_nd.dims(), table.tied());
    let accumulation = x_nd.dtype().accumulation();
    let by_default = match n * table_vd.dim(0) * x_nd.dtype().size_bytes() {
        ..=MAX_WHOLE_BYTES => n,
        _ => CHUNK_ROWS,
    };
    let num_chunks = n.div_ceil(chunk_rows.unwrap_or(by_default).max(1));
    if num_chunks <= 1 {
        return vocabulary_cross_entropy(scope, table.logits(x_nd), labels_n, weight_n, vocabulary);
    }
    let weight_n = weight_n.convert(accumulation).stop_gradient();
    let mut operands = vec![x_nd, labels_n, weight_n, table_vd];
    operands.extend(first_entry(scope, table_vd.dim(0)).map(|first| first.vary(x_nd.varying())));

    let results = match scope.training() {
        None => Chunks { num_chunks, vocabulary, gradients: false }.sums(&operands),
        Some(_) => {
            let chunks = Chunks { num_chunks, vocabulary, gradients: true };
            scope.tracer().custom_vjp(
                &operands,
                |x| chunks.sums(x),
                |x, y, ct| Chunks::scaled(x, y, ct[0]),
            )
        }
    };
    let names = rank_metrics(vocabulary).iter().map(|(name, _)| *name);
    let metrics = names.zip(&results[1..]).map(|(name, sum)| (name, sum.stop_gradient())).collect();
    Loss { sum: results[0], weight: weight_n.sum(), metrics, tally: None, reports_f1: false }
}

/// How [`tied_cross_entropy`] goes over the rows.
#[derive(Clone, Copy)]
struct Chunks {
    num_chunks: usize,
    vocabulary: usize,
    /// `true` if gradients are computed too.
    gradients: bool,
}

impl Chunks {
    /// Of rows, labels, weights, table and first entry, if replicas have different ones: the sums
    /// of the loss and of its metrics, then the gradients of the table and of the rows.
    #[track_caller]
    fn sums<'b>(self, x: &[Tensor<'b>]) -> Vec<Tensor<'b>> {
        let (x_nd, table_vd) = (x[0], x[3]);
        let rows = x_nd.dim(0).div_ceil(self.num_chunks);
        let t = x_nd.tracer();
        // Rows that are missing in the last chunk have weight 0.
        let xs = [x_nd, x[1], x[2]].map(|x| {
            let filled = x.pad_end(0, rows * self.num_chunks);
            filled.reshape(&[&[self.num_chunks, rows], &x.shape()[1..]].concat())
        });
        let wide = table_vd.dtype().accumulation();
        let mut init = vec![t.scalar(x[2].dtype(), 0.0); 1 + rank_metrics(self.vocabulary).len()];
        if self.gradients {
            init.push(t.full(wide, &table_vd.shape(), 0.0));
        }
        let (mut sums, gradients) =
            t.scan(self.num_chunks, &x[3..], &init, &xs, |consts, sums, xs| {
                let (x_rd, table_vd, first) = (xs[0], consts[0], consts.get(1).copied());
                let logits_rv = Embedding::logits_of(table_vd, x_rd);
                let loss = of_entries(logits_rv, xs[1], xs[2], first, self.vocabulary);
                let mut terms = vec![loss.sum];
                terms.extend(loss.metrics.iter().map(|(_, sum)| *sum));
                let mut own = vec![];
                if self.gradients {
                    let gradients = grad(loss.sum, &[table_vd, x_rd]);
                    terms.push(gradients[0].convert(wide));
                    own.push(gradients[1]);
                }
                (sums.iter().zip(terms).map(|(sum, term)| *sum + term).collect(), own)
            });
        if let Some(table) = sums.last_mut().filter(|_| self.gradients) {
            *table = table.convert(table_vd.dtype());
        }
        sums.extend(gradients.iter().map(|gradient_krd| {
            let filled = gradient_krd.reshape(&[rows * self.num_chunks, x_nd.dim(1)]);
            filled.slice_dim(0, 0, x_nd.dim(0))
        }));
        sums
    }

    /// The gradients of rows, weights and table, from the results of [`Self::sums`] and the loss's
    /// cotangent.
    #[track_caller]
    fn scaled<'b>(x: &[Tensor<'b>], sums: &[Tensor<'b>], ct: Tensor<'b>) -> Vec<Tensor<'b>> {
        let [.., table_vd, x_nd] = sums else { return vec![] };
        let by_ct = |gradient: Tensor<'b>| {
            let wide = gradient.convert(ct.dtype());
            (wide * ct.vary(wide.varying()).broadcast_like(wide, &[])).convert(gradient.dtype())
        };
        vec![by_ct(*x_nd), x[2].full_like(0.0), by_ct(*table_vd)]
    }
}

/// [`cross_entropy`] of the logits of a vocabulary, `[b, v]`, of which each replica along `tensor`
/// has those of its own entries; see [`layers::Embedding::logits`](crate::layers::Embedding).
///
/// No replica holds a whole row: two collectives, each of two numbers a row, complete the greatest
/// logit and the label's, then the sum of the exponentials and the number of logits that are as
/// high as the label's. Shoeybi et al., "Megatron-LM" (2019), section 3.
#[track_caller]
pub fn vocabulary_cross_entropy<'g>(
    scope: &Scope<'g>,
    logits_bv: Tensor<'g>,
    labels_b: Tensor<'g>,
    weight_b: Tensor<'g>,
    vocabulary: usize,
) -> Loss<'g> {
    let first = first_entry(scope, logits_bv.dim(1));
    of_entries(logits_bv, labels_b, weight_b, first, vocabulary)
}

/// The index of this replica's first entry, if replicas have different ones: an i32 scalar.
#[track_caller]
fn first_entry<'g>(scope: &Scope<'g>, num_entries: usize) -> Option<Tensor<'g>> {
    let is_cut = scope.num_tensor_replicas() > 1;
    is_cut.then(|| scope.tensor_index().convert(DType::I32) * num_entries as f64)
}

/// [`vocabulary_cross_entropy`] of the entries from `first` on, or of all.
#[track_caller]
fn of_entries<'g>(
    logits_bv: Tensor<'g>,
    labels_b: Tensor<'g>,
    weight_b: Tensor<'g>,
    first: Option<Tensor<'g>>,
    vocabulary: usize,
) -> Loss<'g> {
    let Some(first) = first else { return cross_entropy(logits_bv, labels_b, weight_b) };
    let logits_bv = logits_bv.convert(logits_bv.dtype().accumulation());
    let weight_b = weight_b.convert(logits_bv.dtype());
    let operands = [logits_bv, labels_b.vary(logits_bv.varying()), first.vary(logits_bv.varying())];
    let results = logits_bv.tracer().custom_vjp(
        &operands,
        |x| {
            let (logits_bv, [is_label_bv, exists_bv]) = (x[0], entries(x, vocabulary));
            let least_bv =
                logits_bv.full_like(logits_bv.dtype().least_finite().unwrap_or(f64::MIN));
            let highest_b = exists_bv.select(logits_bv, least_bv).reduce_max(&[1]);
            let label_b = is_label_bv.select(logits_bv, least_bv).reduce_max(&[1]);
            let both = reduced_together([highest_b, label_b], Reduction::Max);
            let [highest_b, label_b] = both.map(|x_b| x_b.vary(Axis::Tensor));
            let zero_bv = logits_bv.full_like(0.0);
            let powers_bv = (logits_bv - highest_b.broadcast_like(logits_bv, &[0])).exponential();
            let sum_b = exists_bv.select(powers_bv, zero_bv).reduce_sum(&[1]);
            let as_high_bv = logits_bv.greater_equal(label_b.broadcast_like(logits_bv, &[0]));
            let as_high_b = as_high_bv.and(exists_bv).convert(logits_bv.dtype()).reduce_sum(&[1]);
            let sums = reduced_together([sum_b, as_high_b], Reduction::Sum);
            let log_sum_b = sums[0].log() + both[0];
            vec![log_sum_b - both[1], sums[1], log_sum_b]
        },
        |x, y, ct| {
            let (logits_bv, [is_label_bv, exists_bv]) = (x[0], entries(x, vocabulary));
            let zero_bv = logits_bv.full_like(0.0);
            let log_sum_bv = y[2].vary(Axis::Tensor).broadcast_like(logits_bv, &[0]);
            let p_bv = exists_bv.select((logits_bv - log_sum_bv).exponential(), zero_bv);
            let ct_bv = ct[0].vary(Axis::Tensor).broadcast_like(logits_bv, &[0]);
            vec![(p_bv - is_label_bv.convert(logits_bv.dtype())) * ct_bv]
        },
    );
    let [loss_b, num_as_high_b] = [results[0], results[1].stop_gradient()];
    let metrics = ranks(num_as_high_b, weight_b, vocabulary);
    let sum = (loss_b * weight_b).sum();
    Loss { sum, weight: weight_b.sum(), metrics, tally: None, reports_f1: false }
}

/// The reductions over `tensor` of two vectors of the same size, by one collective. Not a variadic
/// one: XLA's compiler for GPUs aborts on one in a loop.
#[track_caller]
fn reduced_together<'b>(x_b: [Tensor<'b>; 2], reduction: Reduction) -> [Tensor<'b>; 2] {
    let b = x_b[0].dim(0);
    let both = x_b[0].concatenate(&x_b[1..], 0).all_reduce(reduction, Axis::Tensor);
    [both.slice_dim(0, 0, b), both.slice_dim(0, b, 2 * b)]
}

/// Of logits, labels and the first entry of this replica: which of the logits are the label's, and
/// which stand for an entry of the vocabulary at all.
#[track_caller]
fn entries<'b>(x: &[Tensor<'b>], vocabulary: usize) -> [Tensor<'b>; 2] {
    let [logits_bv, labels_b, first] = [x[0], x[1], x[2]];
    let place_bv = logits_bv.tracer().iota(DType::I32, &logits_bv.shape(), 1);
    let entry_bv = place_bv + first.broadcast_like(place_bv, &[]);
    [entry_bv.equal(labels_b.broadcast_like(entry_bv, &[0])), entry_bv.less(vocabulary as f64)]
}
