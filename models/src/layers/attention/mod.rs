//! `y = softmax(q k^T / sqrt(d)) v`, in heads, between linear layers for queries, keys, values and
//! the result.
//!
//! This file has the layer. `dot_product_attention` decides what computes the middle: kernels of
//! the process (`host.rs`), those of cuDNN (`cudnn.rs`), or ops (`plain.rs`). The choice is made
//! while the layer is traced: what is kept for the backward pass depends on it.
//!
//! Legend: b batch, t position, n = b * t, h head, m = b * heads, w width, d width of a head.

mod cudnn;
mod host;
mod own_rows;
mod plain;

use hlo::{ActivationRows, Axis, Groups, Tensor};

use crate::layers::linear::{column_linear, row_linear};
use crate::layers::rotary::rotary_from;
use crate::layers::{Rotary, rms_norm};
use crate::{Initializer, Scope};
use own_rows::{OwnPositions, OwnRows};

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
    /// The epsilon of an RMS norm of each head's queries and keys, if there is one. Dehghani et
    /// al., "Scaling vision transformers to 22 billion parameters" (2023), section 2.
    pub qk_norm: Option<f64>,
    /// Rotary position embeddings of queries and keys, if any.
    pub rotary: Option<Rotary>,
    /// Dropout rate of the attention weights.
    pub dropout: f64,
    /// Initializer of the layers for queries, keys and values.
    pub qkv: Initializer,
    /// Initializer of the output layer.
    pub out: Initializer,
}

/// Multi-head attention of `[n, w]` within each example's positions, with parameters `query.*`
/// `[num_heads * d, w]`, `key.*` and `value.*` `[num_kv_heads * d, w]`, and `out.*` `[w, w]`.
/// With norms of queries and keys, there are `query_norm.weight` and `key_norm.weight` `[d]` too.
/// `mask_bs` is integer `[b, s]`, 0 for padding, to which no position attends. Softmax is in f32 or
/// wider.
///
/// On a mesh with the axis `tensor` each replica computes some of the query heads: queries, keys
/// and values are cut by columns of the result, `out` by rows. Where there are fewer key and value
/// heads than replicas, those that share a head have pieces of it and gather them. With
/// [`ActivationRows::CutThroughout`] each replica computes all heads of its own rows instead;
/// replicas that have positions of the same example gather keys and values.
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
///         num_positions: 8, num_heads, num_kv_heads, causal: true, qk_norm: None, rotary: None, dropout: 0.0,
///         qkv: normal, out: normal,
///     };
///     let scope = Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY);
///     assert_eq!(attention(&scope, x, None, parts).dims(), [16, 64]);
///     assert_eq!(scope.parameters()["key.weight"].dims, [2 * 16, 64]);
/// })?;
/// # Ok::<(), hlo::Error>(())
/// ```
#[track_caller]
pub fn attention<'g>(
    scope: &Scope<'g>,
    x_nw: Tensor<'g>,
    mask_bs: Option<Tensor<'g>>,
    parts: Attention,
) -> Tensor<'g> {
    let Attention { num_positions: t, num_heads, num_kv_heads, .. } = parts;
    if let Some(reason) = misfit(scope, x_nw, mask_bs, parts) {
        x_nw.reject("attention", reason);
        return x_nw;
    }
    let width = x_nw.dim(1);
    let d = width / num_heads;
    let entered_nw = scope.enter(x_nw);
    let num_pieces = scope.num_column_pieces();
    let own = OwnRows::new(scope, entered_nw.dim(0), t);
    let positions = own.and_then(|own| own.positions);
    let project = |name: &str, num_heads: usize| {
        let x_nw = column_linear(&scope.at(name), entered_nw, num_heads * d, parts.qkv);
        match num_pieces / num_heads {
            // Replicas that share a head have pieces of it.
            num_sharing @ 2.. => x_nw.all_gather(1, Groups::contiguous(Axis::Tensor, num_sharing)),
            _ => x_nw,
        }
    };
    let turned = |name: &str, x_nw: Tensor<'g>| {
        let x_nw = match parts.qk_norm {
            None => x_nw,
            Some(epsilon) => {
                let [n, width] = x_nw.dims();
                let x_md = x_nw.reshape(&[n * width / d, d]);
                rms_norm(&scope.at(name).varying(), x_md, epsilon).reshape(&[n, width])
            }
        };
        let first = positions.map(|own| own.first);
        let num = positions.map_or(t, |own| own.num);
        parts.rotary.map_or(x_nw, |how| rotated(x_nw, num, first, d, how))
    };
    let of_example = |x_nw: Tensor<'g>| positions.map_or(x_nw, |own| own.gathered(x_nw));
    let qkv_nw = [
        turned("query_norm", project("query", num_heads)),
        of_example(turned("key_norm", project("key", num_kv_heads))),
        of_example(project("value", num_kv_heads)),
    ];
    let mask_bs = match (mask_bs, own) {
        (Some(mask_bs), Some(own)) => Some(own.of_mask(mask_bs, entered_nw.dim(0))),
        (mask_bs, _) => mask_bs,
    };
    let heads = Heads {
        num_positions: t,
        num_heads: num_heads / num_pieces,
        num_kv_heads: (num_kv_heads / num_pieces).max(1),
        causal: parts.causal,
        rate: parts.dropout,
        own,
    };
    let y_nw = dot_product_attention(scope, qkv_nw, mask_bs, heads);
    row_linear(&scope.at("out"), y_nw, width, parts.out)
}

/// Why the sizes do not fit, if they do not.
fn misfit(
    scope: &Scope<'_>,
    x_nw: Tensor<'_>,
    mask_bs: Option<Tensor<'_>>,
    parts: Attention,
) -> Option<String> {
    let Attention { num_positions: t, num_heads, num_kv_heads, .. } = parts;
    let [rows, width] = x_nw.dims();
    let num_pieces = scope.num_column_pieces();
    let n = if scope.cuts_rows() { rows * scope.num_tensor_replicas() } else { rows };
    if t == 0 || num_heads == 0 || num_kv_heads == 0 {
        return Some("positions and heads must be at least 1".to_owned());
    }
    let divides = n.is_multiple_of(t)
        && width.is_multiple_of(num_heads)
        && num_heads.is_multiple_of(num_kv_heads);
    if !divides {
        return Some(format!(
            "{n} rows must be a multiple of {t} positions, the width {width} of {num_heads} heads, \
             and these of {num_kv_heads} key and value heads"
        ));
    }
    let shares = rows.is_multiple_of(t) || t.is_multiple_of(rows);
    if scope.options().rows == ActivationRows::CutThroughout && !shares {
        return Some(format!(
            "context parallelism cuts {} examples of {t} positions into {rows} rows for each of \
             mesh.tensor = {} replicas; these must be whole examples, or divide one evenly",
            n / t,
            scope.num_tensor_replicas()
        ));
    }
    if let Some(mask_bs) = mask_bs
        && mask_bs.shape() != [n / t, t]
    {
        let dims = mask_bs.shape();
        return Some(format!("a mask {dims:?} does not fit {} examples of {t} positions", n / t));
    }
    let is_allowed = |num_pieces: usize| {
        let shares =
            num_kv_heads.is_multiple_of(num_pieces) || num_pieces.is_multiple_of(num_kv_heads);
        let kv_width = width / num_heads * num_kv_heads;
        shares && num_heads.is_multiple_of(num_pieces) && kv_width.is_multiple_of(num_pieces)
    };
    (!is_allowed(num_pieces)).then(|| {
        let allowed: Vec<_> =
            (1..=num_heads).filter(|n| is_allowed(*n)).map(|n| n.to_string()).collect();
        format!(
            "mesh.tensor = {num_pieces} does not fit {num_heads} heads with {num_kv_heads} key and \
             value heads; {} do",
            allowed.join(", ")
        )
    })
}

/// Heads of a layer that are computed together: all, or those of this replica.
#[derive(Clone, Copy, Debug)]
struct Heads<'g> {
    /// Positions of an example, to which queries attend.
    num_positions: usize,
    /// Number of query heads.
    num_heads: usize,
    /// Number of key and value heads.
    num_kv_heads: usize,
    /// `true` if a position attends only to itself and earlier ones.
    causal: bool,
    /// Dropout rate of the weights.
    rate: f64,
    /// The queries, if they are not those of all rows.
    own: Option<OwnRows<'g>>,
}

/// `dropout(softmax(q k^T / sqrt(d))) v` in each head, without the positions that a mask hides:
/// from queries `[n, num_heads * d]`, keys and values `[n, num_kv_heads * d]` to
/// `[n, num_heads * d]`.
#[track_caller]
fn dot_product_attention<'g>(
    scope: &Scope<'g>,
    qkv_nw: [Tensor<'g>; 3],
    mask_bs: Option<Tensor<'g>>,
    heads: Heads<'g>,
) -> Tensor<'g> {
    if heads.are_for_host(scope, qkv_nw[0]) {
        heads.attend_on_host(scope, qkv_nw, mask_bs)
    } else if heads.are_for_cudnn(scope, qkv_nw[0], mask_bs) {
        heads.attend_by_cudnn(qkv_nw)
    } else {
        heads.attend_by_ops(scope, qkv_nw, mask_bs)
    }
}

/// Rotary embedding of each head of `[n, heads * d]`, of `t` positions from `first` on (a u32
/// scalar; `None` is 0).
#[track_caller]
fn rotated<'g>(
    x_nw: Tensor<'g>,
    t: usize,
    first: Option<Tensor<'g>>,
    d: usize,
    how: Rotary,
) -> Tensor<'g> {
    let [n, width] = x_nw.dims();
    let heads = width / d;
    let x_bthd = x_nw.reshape(&[n / t, t, heads, d]);
    let x_mtd = x_bthd.transpose(&[0, 2, 1, 3]).reshape(&[n / t * heads, t, d]);
    let x_bhtd = rotary_from(x_mtd, first, how).reshape(&[n / t, heads, t, d]);
    x_bhtd.transpose(&[0, 2, 1, 3]).reshape(&[n, width])
}

impl<'g> Heads<'g> {
    /// The positions of queries here, if they are not all of an example.
    fn own_positions(self) -> Option<OwnPositions<'g>> {
        self.own.and_then(|own| own.positions)
    }

    /// The global indices of the weights `[examples, num_heads, t, t]` of this replica's examples
    /// and heads, and the key of their dropout. `None` if nothing is dropped.
    #[track_caller]
    fn drawn(self, scope: &Scope<'g>) -> Option<Drawn<'g>> {
        let training = scope.training().filter(|_| self.rate > 0.0)?;
        let key = scope.at("weights").random_key("dropout")?;
        let first_head =
            (scope.num_column_pieces() > 1).then(|| scope.tensor_index() * self.num_heads as f64);
        let first_example = self
            .own
            .map_or(training.first_example, |own| training.first_example + own.first_example);
        Some(Drawn { key, first_example, first_head })
    }
}

/// What the dropout of attention weights depends on.
struct Drawn<'g> {
    key: hlo::random::Key<'g>,
    /// Index of the first example in the global batch: a u32 scalar.
    first_example: Tensor<'g>,
    /// Index of the first head among all heads of the layer, if that is not 0: a u32 scalar.
    first_head: Option<Tensor<'g>>,
}

#[cfg(test)]
mod tests {
    use hlo::random::threefry2x32;
    use hlo::{DType, Literal, Mesh, TensorType, grad, interpret, trace};

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
            let weight = |name: &str, scale: f64| {
                let values = uniform(name.len(), WIDTH * WIDTH).into_iter().map(|x| scale * x);
                f64s(&[WIDTH, WIDTH], &values.collect::<Vec<_>>())
            };
            let names = [("query", 300.0), ("key", 300.0), ("value", 1.0), ("out", 1.0)];
            let params = names.iter().flat_map(|(name, scale)| {
                let bias = t.full(DType::F64, &[WIDTH], 0.25);
                [(format!("{name}.weight"), weight(name, *scale)), (format!("{name}.bias"), bias)]
            });
            let scope = Scope::bind(t, Precision::uniform(DType::F64), params.collect(), None);
            let x = t.input("x", TensorType::new(DType::F64, &[N, WIDTH]));
            let zeros = Initializer::Zeros;
            let mask_bs = mask.map(|mask| t.constant(Literal::from_slice(&[2, N / 2], &mask)));
            let parts = Attention {
                num_positions: N / 2,
                num_heads: 3,
                num_kv_heads: 3,
                causal: mask.is_none(),
                qk_norm: None,
                rotary: None,
                dropout: 0.0,
                qkv: zeros,
                out: zeros,
            };
            let y = attention(&scope, x, mask_bs, parts);
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
