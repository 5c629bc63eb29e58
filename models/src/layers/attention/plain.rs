//! Attention as ops.

use hlo::random::GlobalSlice;
use hlo::{DType, DotDims, Tensor};

use super::own_rows::OwnPositions;
use super::{Drawn, Heads};
use crate::Scope;
use crate::layers::dropout::dropped;

impl<'g> Heads<'g> {
    /// See [`super::dot_product_attention`].
    ///
    /// Scores of hidden positions are replaced, because no number is small enough to be added to
    /// scores of any size. The least finite number, unlike infinity, gives equal weights to a query
    /// that sees nothing, and not NaN.
    #[track_caller]
    pub(super) fn attend_by_ops(
        self,
        scope: &Scope<'g>,
        qkv_nw: [Tensor<'g>; 3],
        mask_bs: Option<Tensor<'g>>,
    ) -> Tensor<'g> {
        let Self { num_positions: t, num_heads, num_kv_heads, .. } = self;
        let own = self.own_positions();
        let num_queries = own.map_or(t, |own| own.num);
        let [n, width] = qkv_nw[0].dims();
        let batch = n / num_queries;
        let [q_nw, k_nw, v_nw] = qkv_nw;
        let shared = |x_mtd: Tensor<'g>| share(x_mtd, num_heads / num_kv_heads);
        let q_mtd = into_heads(q_nw, num_queries, num_heads);
        let k_mtd = shared(into_heads(k_nw, t, num_kv_heads));
        let v_mtd = shared(into_heads(v_nw, t, num_kv_heads));
        let q_mtd = q_mtd * (1.0 / (q_mtd.dim(2) as f64).sqrt());
        let scores_mts = q_mtd.dot_general(k_mtd, DotDims::contract(&[2], &[2]).batch(&[0], &[0]));
        let mut scores_mts = scores_mts.convert(scores_mts.dtype().accumulation());
        for visible_mts in self.visible(scores_mts, mask_bs) {
            let least = scores_mts.dtype().least_finite().unwrap_or(f64::MIN);
            scores_mts = visible_mts.select(scores_mts, scores_mts.full_like(least));
        }
        let weights_mts = softmax(scores_mts).convert(v_mtd.dtype());
        let weights_mts = match self.drawn(scope) {
            None => weights_mts,
            Some(Drawn { key, first_example, first_head }) => {
                let start = [Some(first_example), first_head, own.map(|own| own.first), None];
                let all_heads = num_heads * scope.num_column_pieces();
                let dims = [batch, num_heads, num_queries, t];
                let slice = GlobalSlice::from(&start, &dims, &[batch, all_heads, t, t]);
                dropped(scope, weights_mts, self.rate, key, slice)
            }
        };
        let y_mtd = weights_mts.dot_general(v_mtd, DotDims::contract(&[2], &[1]).batch(&[0], &[0]));
        let y_bhtd = y_mtd.reshape(&[batch, num_heads, num_queries, width / num_heads]);
        y_bhtd.transpose(&[0, 2, 1, 3]).reshape(&[n, width])
    }

    /// Which of the scores `[m, t, s]` count: pred of that shape, for each reason to hide some.
    #[track_caller]
    fn visible(
        self,
        scores_mts: Tensor<'g>,
        mask_bs: Option<Tensor<'g>>,
    ) -> impl Iterator<Item = Tensor<'g>> {
        let dims = scores_mts.shape();
        let earlier = self.causal.then(|| {
            let not_later_ts = not_later(scores_mts, self.own_positions());
            not_later_ts.broadcast_in_dim(&dims, &[1, 2])
        });
        let unmasked = mask_bs.map(|mask_bs| {
            let visible_bs = mask_bs.not_equal(0.0).vary(scores_mts.varying());
            let dims_bhts = [mask_bs.dim(0), self.num_heads, dims[1], dims[2]];
            visible_bs.broadcast_in_dim(&dims_bhts, &[0, 3]).reshape(&dims)
        });
        earlier.into_iter().chain(unmasked)
    }
}

/// `[b * t, heads * d] -> [b * heads, t, d]`
#[track_caller]
fn into_heads(x_nw: Tensor<'_>, t: usize, num_heads: usize) -> Tensor<'_> {
    let [n, width] = x_nw.dims();
    let (batch, d) = (n / t, width / num_heads);
    let x_bthd = x_nw.reshape(&[batch, t, num_heads, d]);
    x_bthd.transpose(&[0, 2, 1, 3]).reshape(&[batch * num_heads, t, d])
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

/// Pred `[t, s]`: whether position s is at most that of the query in row t of each head's scores.
#[track_caller]
fn not_later<'g>(scores_mts: Tensor<'g>, own: Option<OwnPositions<'g>>) -> Tensor<'g> {
    let [_, t, s] = scores_mts.dims();
    let [row, column] = [0, 1].map(|dim| scores_mts.tracer().iota(DType::I32, &[t, s], dim));
    match own {
        None => row.greater_equal(column),
        Some(own) => {
            let (first, varying) = (own.first.convert(DType::I32), scores_mts.varying());
            let row = row.vary(varying) + first.vary(varying).broadcast_like(row, &[]);
            row.greater_equal(column.vary(varying))
        }
    }
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
