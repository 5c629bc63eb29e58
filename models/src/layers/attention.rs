//! `y = softmax(q k^T / sqrt(d)) v`, in heads, between two linear layers, where scores of hidden
//! positions are replaced by the least finite number
//!
//! Legend: b batch, t position, n = b * t, m = b * heads, w width, d width of a head.

use hlo::{DType, DotDims, Tensor, Tracer};

use super::attention_call::AttentionCall;
use crate::layers::{dropout, linear, rotary};
use crate::{Initializer, Scope};

/// Parameters of [`attention`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Positions of one example. The rows of the input are the positions of all examples, in order.
    pub num_positions: usize,
    /// Number of query heads; it divides the width.
    pub num_heads: usize,
    /// Number of key and value heads, each shared by equally many query heads.
    pub num_kv_heads: usize,
    /// `true` if a position attends only to itself and earlier ones.
    pub causal: bool,
    /// `true` for rotary position embeddings.
    pub rotary: bool,
    /// Dropout rate of the attention weights.
    pub dropout: f64,
    /// Initializer of the layer for queries, keys and values.
    pub qkv: Initializer,
    /// Initializer of the output layer.
    pub out: Initializer,
}

/// Multi-head attention of `[n, w]` within each example's positions, with parameters `qkv.*`
/// `[(num_heads + 2 num_kv_heads) * d, w]` (queries, keys, values) and `out.*` `[w, w]`. Softmax is
/// in f32 or wider.
///
/// Vaswani et al., "Attention is all you need" (2017); grouped queries: Ainslie et al., "GQA"
/// (2023). Activations have two dims except inside the heads, and queries are scaled instead of
/// scores: this form was the fastest in measurements on XLA's CPU backend.
///
/// ```
/// use hlo::{AxisSet, DType, Mesh, TensorType, trace};
/// use models::{Initializer, Precision, Scope, layers::{Attention, attention}};
///
/// trace(Mesh::SINGLE, |t| {
///     // Two examples of 8 positions.
///     let x = t.input("x", TensorType::new(DType::F32, &[16, 64]));
///     let normal = Initializer::Normal { std: 0.02 };
///     let (num_heads, num_kv_heads) = (4, 2);
///     let parts = Attention {
///         num_positions: 8, num_heads, num_kv_heads, causal: true, rotary: false, dropout: 0.0, qkv: normal,
///         out: normal,
///     };
///     let scope = Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY);
///     assert_eq!(attention(&scope, x, parts).dims(), [16, 64]);
///     assert_eq!(scope.parameters()["qkv.weight"].dims, [(4 + 2 * 2) * 16, 64]);
/// })?;
/// # Ok::<(), hlo::Error>(())
/// ```
#[track_caller]
pub fn attention<'g>(scope: &Scope<'g>, x_nw: Tensor<'g>, parts: Attention) -> Tensor<'g> {
    let Attention { num_positions: t, num_heads, num_kv_heads, .. } = parts;
    let [n, width] = x_nw.dims();
    if t == 0 || num_heads == 0 || num_kv_heads == 0 {
        x_nw.reject("attention", "positions and heads must be at least 1");
        return x_nw;
    }
    let divides = n.is_multiple_of(t)
        && width.is_multiple_of(num_heads)
        && num_heads.is_multiple_of(num_kv_heads);
    if !divides {
        let message = format!(
            "{n} rows must be a multiple of {t} positions, the width {width} of {num_heads} heads, \
             and these of {num_kv_heads} key and value heads"
        );
        x_nw.reject("attention", message);
        return x_nw;
    }
    let (batch, d) = (n / t, width / num_heads);
    let (query_width, kv_width) = (num_heads * d, num_kv_heads * d);

    let qkv = linear(&scope.at("qkv"), x_nw, query_width + 2 * kv_width, parts.qkv);
    let call = AttentionCall {
        num_positions: t,
        num_heads,
        num_kv_heads,
        causal: parts.causal,
        rate: parts.dropout,
    };
    if AttentionCall::is_for(scope, qkv) && !parts.rotary {
        let y_nw = call.attend(scope, &[qkv], None);
        return linear(&scope.at("out"), y_nw, width, parts.out);
    }
    let heads = |first: usize, num_heads: usize| -> Tensor<'g> {
        into_heads(qkv.slice_dim(1, first, first + num_heads * d), t, num_heads)
    };
    let turned = |x_mtd: Tensor<'g>| if parts.rotary { rotary(x_mtd) } else { x_mtd };
    let shared = |x_mtd: Tensor<'g>| share(x_mtd, num_heads / num_kv_heads);
    let q_mtd = turned(heads(0, num_heads));
    let k_mtd = turned(heads(query_width, num_kv_heads));
    let v_mtd = heads(query_width + kv_width, num_kv_heads);
    if call.is_for_cudnn(scope, qkv, d) {
        let qkv_bthd = [q_mtd, k_mtd, v_mtd].map(|x_mtd| {
            let x_bhtd = x_mtd.reshape(&[batch, x_mtd.dim(0) / batch, t, d]);
            x_bhtd.transpose(&[0, 2, 1, 3])
        });
        let y_bthd = call.attend_by_cudnn(qkv_bthd);
        return linear(&scope.at("out"), y_bthd.reshape(&[n, width]), width, parts.out);
    }
    let (k_mtd, v_mtd) = (shared(k_mtd), shared(v_mtd));
    let visible_ts = parts.causal.then(|| not_later(x_nw.tracer(), t));
    let y_mtd = attend(scope, [q_mtd, k_mtd, v_mtd], parts.dropout, |scores_mts| {
        visible_ts.map(|visible_ts| visible_ts.broadcast_in_dim(&scores_mts.shape(), &[1, 2]))
    });
    let y_bthd = y_mtd.reshape(&[batch, num_heads, t, d]).transpose(&[0, 2, 1, 3]);
    linear(&scope.at("out"), y_bthd.reshape(&[n, width]), width, parts.out)
}

/// Multi-head attention of `[n, w]` over the positions of each example that are not padding, with
/// parameters `query.*`, `key.*`, `value.*` and `out.*`, `[w, w]` each. `mask_bs` is integer
/// `[b, s]`, 0 for padding; there are `n / b` positions. Softmax is in f32 or wider. Devlin, Chang,
/// Lee and Toutanova, "BERT" (2019), section 3.
#[track_caller]
pub fn masked_attention<'g>(
    scope: &Scope<'g>,
    x_nw: Tensor<'g>,
    mask_bs: Tensor<'g>,
    num_heads: usize,
    rate: f64,
    initializer: Initializer,
) -> Tensor<'g> {
    let ([n, width], [batch, t]) = (x_nw.dims(), mask_bs.dims());
    if n != batch * t || num_heads == 0 || !width.is_multiple_of(num_heads) {
        let message = format!(
            "{n} rows must be {batch} examples of {t} positions, and the width {width} a multiple \
             of {num_heads} heads"
        );
        x_nw.reject("masked_attention", message);
        return x_nw;
    }
    let heads =
        ["query", "key", "value"].map(|name| linear(&scope.at(name), x_nw, width, initializer));
    if AttentionCall::is_for(scope, x_nw) {
        let num_kv_heads = num_heads;
        let call = AttentionCall { num_positions: t, num_heads, num_kv_heads, causal: false, rate };
        let y_nw = call.attend(scope, &heads, Some(mask_bs));
        return linear(&scope.at("out"), y_nw, width, initializer);
    }
    let heads = heads.map(|x_nw| into_heads(x_nw, t, num_heads));
    let y_mtd = attend(scope, heads, rate, |scores_mts| {
        let visible_bs = mask_bs.not_equal(0.0);
        let visible = visible_bs.broadcast_in_dim(&[batch, num_heads, t, t], &[0, 3]);
        Some(visible.reshape(&scores_mts.shape()))
    });
    let y_bthd = y_mtd.reshape(&[batch, num_heads, t, width / num_heads]).transpose(&[0, 2, 1, 3]);
    linear(&scope.at("out"), y_bthd.reshape(&[n, width]), width, initializer)
}

/// `[b * t, heads * d] -> [b * heads, t, d]`
#[track_caller]
fn into_heads(x_nw: Tensor<'_>, t: usize, num_heads: usize) -> Tensor<'_> {
    let [n, width] = x_nw.dims();
    let (batch, d) = (n / t, width / num_heads);
    let x_bthd = x_nw.reshape(&[batch, t, num_heads, d]);
    x_bthd.transpose(&[0, 2, 1, 3]).reshape(&[batch * num_heads, t, d])
}

/// `softmax(q k^T / sqrt(d)) v` in each head, all `[m, t, d]`. `visible` gets the scores
/// `[m, t, s]`, and returns which of them count, pred of that shape.
///
/// The others are replaced, because no number is small enough to be added to scores of any size.
/// The least finite number, unlike infinity, gives equal weights to a query that sees nothing, and
/// not NaN.
#[track_caller]
fn attend<'g>(
    scope: &Scope<'g>,
    [q_mtd, k_mtd, v_mtd]: [Tensor<'g>; 3],
    rate: f64,
    visible: impl FnOnce(Tensor<'g>) -> Option<Tensor<'g>>,
) -> Tensor<'g> {
    let q_mtd = q_mtd * (1.0 / (q_mtd.dim(2) as f64).sqrt());
    let scores_mts = q_mtd.dot_general(k_mtd, DotDims::contract(&[2], &[2]).batch(&[0], &[0]));
    let mut scores_mts = scores_mts.convert(scores_mts.dtype().accumulation());
    if let Some(visible_mts) = visible(scores_mts) {
        let least = scores_mts.dtype().least_finite().unwrap_or(f64::MIN);
        scores_mts = visible_mts.select(scores_mts, scores_mts.full_like(least));
    }
    let weights_mts = softmax(scores_mts).convert(v_mtd.dtype());
    let weights_mts = dropout(&scope.at("weights"), weights_mts, rate);
    weights_mts.dot_general(v_mtd, DotDims::contract(&[2], &[1]).batch(&[0], &[0]))
}

/// Repeats each head `size` times.
#[track_caller]
fn share(x_mtd: Tensor<'_>, size: usize) -> Tensor<'_> {
    let [m, t, d] = x_mtd.dims();
    if size == 1 {
        return x_mtd;
    }
    x_mtd.broadcast_in_dim(&[m, size, t, d], &[0, 2, 3]).reshape(&[m * size, t, d])
}

/// Pred `[t, s]`: whether position s is at most t.
#[track_caller]
fn not_later(tracer: &Tracer, t: usize) -> Tensor<'_> {
    let [row, column] = [0, 1].map(|dim| tracer.iota(DType::I32, &[t, t], dim));
    row.greater_equal(column)
}

/// Softmax over the last dim. Its VJP `p * (dp - sum(p * dp))` needs only the result p, which is
/// kept anyway for the product with the values.
#[track_caller]
fn softmax(x_mts: Tensor<'_>) -> Tensor<'_> {
    let results = x_mts.tracer().custom_vjp(
        &[x_mts],
        |x| {
            let powers_mts =
                (x[0] - x[0].reduce_max(&[2]).broadcast_like(x[0], &[0, 1])).exponential();
            let sum_mt = powers_mts.reduce_sum(&[2]);
            vec![powers_mts / sum_mt.broadcast_like(powers_mts, &[0, 1])]
        },
        |_, p, dp| {
            let (p, dp) = (p[0], dp[0]);
            let sum_mt = (p * dp).reduce_sum(&[2]);
            vec![p * (dp - sum_mt.broadcast_like(p, &[0, 1]))]
        },
    );
    results[0]
}

#[cfg(test)]
mod tests {
    use hlo::random::threefry2x32;
    use hlo::{Literal, Mesh, TensorType, grad, interpret, trace};

    use super::*;
    use crate::Precision;

    const N: usize = 8;
    const WIDTH: usize = 12;

    fn uniform(stream: usize, count: usize) -> Vec<f64> {
        let word = |i: usize| threefry2x32([7, stream as u32], [0, i as u32])[0];
        (0..count).map(|i| f64::from(word(i)) / 2f64.powi(31) - 1.0).collect()
    }

    /// The rows of y, of two examples of 4 positions, then those of the gradient of x, where the
    /// positions in `wanted` have a cotangent. Weights of queries and keys are so large that scores
    /// are far beyond 1e4.
    fn outputs(x: &[f64], mask: Option<[i32; N]>, wanted: &[usize]) -> [Vec<Vec<f64>>; 2] {
        let graph = trace(Mesh::SINGLE, |t| {
            let f64s =
                |dims: &[usize], values: &[f64]| t.constant(Literal::from_slice(dims, values));
            let weight = |name: &str, scale: f64, rows: usize| {
                let values = uniform(name.len(), rows * WIDTH).into_iter().enumerate();
                // Only queries and keys, which are the first rows of a packed weight, are scaled.
                let value = |(i, x)| if i < 2 * WIDTH * WIDTH { scale * x } else { x };
                f64s(&[rows, WIDTH], &values.map(value).collect::<Vec<_>>())
            };
            let names: &[(&str, f64, usize)] = match mask {
                None => &[("qkv", 300.0, 3 * WIDTH), ("out", 1.0, WIDTH)],
                Some(_) => &[
                    ("query", 300.0, WIDTH),
                    ("key", 300.0, WIDTH),
                    ("value", 1.0, WIDTH),
                    ("out", 1.0, WIDTH),
                ],
            };
            let params = names.iter().flat_map(|(name, scale, rows)| {
                let bias = t.full(DType::F64, &[*rows], 0.25);
                [
                    (format!("{name}.weight"), weight(name, *scale, *rows)),
                    (format!("{name}.bias"), bias),
                ]
            });
            let scope = Scope::bind(t, Precision::uniform(DType::F64), params.collect(), None);
            let x = t.input("x", TensorType::new(DType::F64, &[N, WIDTH]));
            let zeros = Initializer::Zeros;
            let y = match mask {
                Some(mask) => {
                    let mask = t.constant(Literal::from_slice(&[2, N / 2], &mask));
                    masked_attention(&scope, x, mask, 3, 0.0, zeros)
                }
                None => {
                    let parts = Attention {
                        num_positions: N / 2,
                        num_heads: 3,
                        num_kv_heads: 3,
                        causal: true,
                        rotary: false,
                        dropout: 0.0,
                        qkv: zeros,
                        out: zeros,
                    };
                    attention(&scope, x, parts)
                }
            };
            let rows: Vec<_> =
                wanted.iter().map(|row| y.slice_dim(0, *row, row + 1).sum()).collect();
            let sum = rows.into_iter().reduce(|a, b| a + b).unwrap();
            t.output("y", y);
            t.output("gradient", grad(sum, &[x])[0]);
        });
        let x = vec![Literal::from_slice(&[N, WIDTH], x)];
        let outputs = interpret(&graph.unwrap(), &[x]).unwrap();
        [0, 1].map(|i| outputs[i][0].to_f64().chunks(WIDTH).map(<[_]>::to_vec).collect())
    }

    #[test]
    fn scores_of_any_size_are_hidden() {
        let causal: (Option<[i32; N]>, &[usize], usize) = (None, &[0, 1, 4, 5, 6, 7], 3);
        let padded: (_, &[usize], _) = (Some([1, 0, 1, 1, 1, 1, 1, 1]), &[0, 2, 3, 4, 5, 6, 7], 1);
        for (mask, wanted, hidden) in [causal, padded] {
            let mut x = uniform(0, N * WIDTH);
            let [y, gradient] = outputs(&x, mask, wanted);
            // The hidden position changes nothing, and has no gradient.
            assert!(gradient[hidden].iter().all(|g| *g == 0.0), "{:?}", gradient[hidden]);
            assert!(gradient[0].iter().any(|g| *g != 0.0));
            x[hidden * WIDTH..][..WIDTH].fill(5.0);
            let [moved_y, moved_gradient] = outputs(&x, mask, wanted);
            for row in wanted {
                assert_eq!((&y[*row], &gradient[*row]), (&moved_y[*row], &moved_gradient[*row]));
            }
        }
    }

    #[test]
    fn an_example_of_padding_alone_weights_all_positions_equally() {
        let x = uniform(0, N * WIDTH);
        let [y, gradient] = outputs(&x, Some([1, 1, 1, 1, 0, 0, 0, 0]), &[4, 5]);
        assert!(y[5..].iter().all(|row| *row == y[4]) && y[4].iter().all(|y| y.is_finite()));
        assert!(gradient[5..].iter().all(|row| *row == gradient[4]), "{gradient:?}");
    }
}
