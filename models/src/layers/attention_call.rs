//! Attention as calls of kernels, forward and backward: nothing of size positions x positions is in
//! memory. Here by the process.

use hlo::{CustomCall, HOST_KERNEL_TARGET, HOST_KERNELS_VERSION, Layouts, Tensor, TensorType};

use crate::{AttentionKernels, Scope};

/// The kernels compute `dropout(softmax(q k^T / sqrt(d))) v` in each head, without the positions
/// that a mask hides.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionCall {
    /// Positions of an example.
    pub num_positions: usize,
    /// Number of query heads.
    pub num_heads: usize,
    /// Number of key and value heads.
    pub num_kv_heads: usize,
    /// `true` if a position attends only to itself and earlier ones.
    pub causal: bool,
    /// Dropout rate of the weights.
    pub rate: f64,
}

impl AttentionCall {
    /// `true` if the process has kernels for tensors like `x`: f32 and f64. Between ops a backend
    /// may keep values of narrower types unrounded, but it rounds the operands of a kernel, so
    /// results would depend on the ops that it fuses.
    pub fn is_for(scope: &Scope<'_>, x: Tensor<'_>) -> bool {
        scope.attention() == AttentionKernels::Host && x.dtype() == x.dtype().accumulation()
    }

    /// From queries, keys and values, as one `[n, (heads + 2 kv_heads) * d]` or as three, to
    /// `[n, heads * d]`. `mask_bs` is 0 for padding.
    #[track_caller]
    pub fn attend<'g>(
        self,
        scope: &Scope<'g>,
        qkv: &[Tensor<'g>],
        mask_bs: Option<Tensor<'g>>,
    ) -> Tensor<'g> {
        let num_qkv = qkv.len();
        let mut operands = qkv.to_vec();
        if let Some(mask_bs) = mask_bs {
            let num_rows = mask_bs.num_elements();
            let visible_bs = mask_bs.not_equal(0.0).convert(qkv[0].dtype());
            operands.push(visible_bs.reshape(&[num_rows]));
        }
        let random = self.random(scope, qkv[0].dim(0));
        operands.extend(random);
        let forward = |gradient: bool| {
            self.config(gradient, num_qkv == 1, mask_bs.is_some(), random.is_some())
        };
        let (forward, backward) = (forward(false), forward(true));
        let y_nw = qkv[0].tracer().custom_vjp(
            &operands,
            |x| {
                let num_rows = x[0].dim(0);
                let width = match num_qkv {
                    1 => x[0].dim(1) / (self.num_heads + 2 * self.num_kv_heads) * self.num_heads,
                    _ => x[0].dim(1),
                };
                let results =
                    [width, self.num_heads].map(|width| x[0].ty().with_dims(&[num_rows, width]));
                let flops = self.flops(num_rows / self.num_positions, width / self.num_heads, 2);
                call(&forward, flops, x, results.to_vec())
            },
            |x, y, ct| {
                let operands = [x, y, &ct[..1]].concat();
                let results = x[..num_qkv].iter().map(Tensor::ty).collect();
                let [num_rows, width] = y[0].dims();
                let flops = self.flops(num_rows / self.num_positions, width / self.num_heads, 5);
                let mut gradients = call(&backward, flops, &operands, results);
                // No gradient goes through the mask.
                let others = x[num_qkv..].iter().filter(|x| x.dtype().is_float());
                gradients.extend(others.map(|x| x.full_like(0.0)));
                gradients
            },
        );
        y_nw[0]
    }

    /// FLOPs of so many products of queries and keys on the blocks that a causal mask leaves.
    pub fn flops(&self, batch: usize, head_width: usize, num_products: u64) -> u64 {
        let t = self.num_positions as u64;
        let scores = if self.causal { t * (t + 1) / 2 } else { t * t };
        let heads = (batch * self.num_heads) as u64;
        2 * num_products * heads * scores * head_width as u64
    }

    /// The inputs of dropout, if there is any: two words of the key, and the first row of the plain
    /// form's weights `[examples * heads, ..]` in the global batch.
    #[track_caller]
    fn random<'g>(&self, scope: &Scope<'g>, num_rows: usize) -> Option<Tensor<'g>> {
        let training = scope.training().filter(|_| self.rate > 0.0)?;
        let rows = num_rows / self.num_positions * self.num_heads;
        let rows_per_example = rows / training.num_examples.max(1);
        let first_row = training.first_example * rows_per_example as f64;
        let [high, low] = scope.at("weights").random_key("dropout")?.words();
        let axes = first_row.varying();
        let word = |word: Tensor<'g>| word.vary(axes).reshape(&[1]);
        Some(word(high).concatenate(&[word(low), first_row.reshape(&[1])], 0))
    }

    fn config(&self, gradient: bool, packed: bool, masked: bool, random: bool) -> String {
        let Self { num_positions, num_heads, num_kv_heads, causal, rate } = *self;
        let kind = if gradient { "attention_gradient" } else { "attention" };
        let rate = if random { rate } else { 0.0 };
        let flag = u8::from;
        format!(
            "{{kind = \"{kind}\", version = {HOST_KERNELS_VERSION} : i64, num_positions = \
             {num_positions} : i64, num_heads = {num_heads} : i64, num_kv_heads = {num_kv_heads} : \
             i64, causal = {} : i64, packed = {} : i64, masked = {} : i64, dropout = \"{rate}\"}}",
            flag(causal),
            flag(packed),
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
