//! Attention as calls of the process's kernels, forward and backward: nothing of size positions x
//! positions is in memory.

use hlo::{
    CustomCall, DType, HOST_KERNEL_TARGET, HOST_KERNELS_VERSION, Layouts, Tensor, TensorType,
};

use super::Heads;
use crate::{AttentionKernels, Scope};

impl<'g> Heads<'g> {
    /// `true` if the process has kernels for tensors like `x`: f32 and f64, with queries of all
    /// positions. Between ops a backend
    /// may keep values of narrower types unrounded, but it rounds the operands of a kernel, so
    /// results would depend on the ops that it fuses.
    pub(super) fn are_for_host(&self, scope: &Scope<'_>, x: Tensor<'_>) -> bool {
        scope.options().attention == AttentionKernels::Host
            && x.dtype() == x.dtype().accumulation()
            && self.own_positions().is_none()
    }

    /// See [`super::dot_product_attention`].
    #[track_caller]
    pub(super) fn attend_on_host(
        self,
        scope: &Scope<'g>,
        qkv_nw: [Tensor<'g>; 3],
        mask_bs: Option<Tensor<'g>>,
    ) -> Tensor<'g> {
        let varying = qkv_nw[0].varying();
        let mut operands = qkv_nw.to_vec();
        if let Some(mask_bs) = mask_bs {
            let num_rows = mask_bs.num_elements();
            let visible_bs = mask_bs.not_equal(0.0).convert(qkv_nw[0].dtype()).vary(varying);
            operands.push(visible_bs.reshape(&[num_rows]));
        }
        let words = self.drawn(scope).map(|drawn| {
            let [high, low] = drawn.key.words();
            let first_head =
                drawn.first_head.unwrap_or_else(|| scope.tracer().scalar(DType::U32, 0.0));
            let word = |word: Tensor<'g>| word.vary(varying).reshape(&[1]);
            word(high).concatenate(&[low, drawn.first_example, first_head].map(word), 0)
        });
        operands.extend(words);
        let config =
            |gradient: bool| self.host_config(gradient, mask_bs.is_some(), words.is_some());
        let (forward, backward) = (config(false), config(true));
        let y_nw = scope.tracer().custom_vjp(
            &operands,
            |x| {
                let [num_rows, width] = x[0].dims();
                let results =
                    [width, self.num_heads].map(|width| x[0].ty().with_dims(&[num_rows, width]));
                let flops = self.flops(num_rows / self.num_positions, width / self.num_heads, 2);
                call(&forward, flops, x, results.to_vec())
            },
            |x, y, ct| {
                let operands = [x, y, &ct[..1]].concat();
                let results = x[..3].iter().map(Tensor::ty).collect();
                let [num_rows, width] = y[0].dims();
                let flops = self.flops(num_rows / self.num_positions, width / self.num_heads, 5);
                let mut gradients = call(&backward, flops, &operands, results);
                // No gradient goes through the mask.
                let others = x[3..].iter().filter(|x| x.dtype().is_float());
                gradients.extend(others.map(|x| x.full_like(0.0)));
                gradients
            },
        );
        y_nw[0]
    }

    /// FLOPs of so many products of queries and keys on the blocks that a causal mask leaves.
    pub(super) fn flops(&self, batch: usize, head_width: usize, num_products: u64) -> u64 {
        let t = self.num_positions as u64;
        let scores = if self.causal { t * (t + 1) / 2 } else { t * t };
        let heads = (batch * self.num_heads) as u64;
        2 * num_products * heads * scores * head_width as u64
    }

    fn host_config(&self, gradient: bool, masked: bool, random: bool) -> String {
        let Self { num_positions, num_heads, num_kv_heads, causal, rate, .. } = *self;
        let kind = if gradient { "attention_gradient" } else { "attention" };
        let rate = if random { rate } else { 0.0 };
        let flag = u8::from;
        format!(
            "{{kind = \"{kind}\", version = {HOST_KERNELS_VERSION} : i64, num_positions = \
             {num_positions} : i64, num_heads = {num_heads} : i64, num_kv_heads = {num_kv_heads} : \
             i64, causal = {} : i64, masked = {} : i64, dropout = \"{rate}\"}}",
            flag(causal),
            flag(masked),
        )
    }
}

#[track_caller]
fn call<'g>(
    config: &str,
    flops: u64,
    operands: &[Tensor<'g>],
    results: Vec<TensorType>,
) -> Vec<Tensor<'g>> {
    let row_major = |rank: usize| (0..rank).rev().collect();
    let layouts = Layouts {
        operands: operands.iter().map(|x| row_major(x.rank())).collect(),
        results: results.iter().map(|ty| row_major(ty.rank())).collect(),
    };
    let call = CustomCall {
        backend_config: config.to_owned(),
        api_version: 4,
        layouts: Some(layouts),
        flops,
        ..CustomCall::new(HOST_KERNEL_TARGET, results)
    };
    operands[0].tracer().custom_call(call, operands)
}
