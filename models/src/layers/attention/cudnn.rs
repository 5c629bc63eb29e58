//! Attention by cuDNN, forward and backward, as custom calls of XLA's CUDA backend: nothing of size
//! positions x positions is in memory.
//!
//! Legend: b batch, t position, h head, d width of a head.

use hlo::{CustomCall, DType, Layouts, Tensor, TensorType};

use super::Heads;
use crate::{AttentionKernels, Scope};

/// The widest heads that all of cuDNN's kernels for training take.
const MAX_HEAD_WIDTH: usize = 128;

const FORWARD: &str = "__cudnn$fmhaSoftmax";
const BACKWARD: &str = "__cudnn$fmhaSoftmaxBackward";

/// Dims from minor to major of `[b, t, h, d]` row by row, and of `[b, h, t, d]` that lies in memory
/// as `[b, t, h, d]`.
const BTHD: [usize; 4] = [3, 2, 1, 0];
const BHTD_AS_BTHD: [usize; 4] = [3, 1, 2, 0];

impl<'g> Heads<'g> {
    /// `true` if cuDNN has kernels for queries like `q_nw`. cuDNN draws dropout by a generator of
    /// its own, with masks that would depend on the number of devices, so attention with dropout is
    /// written as ops; so are queries of some positions only, for which its causal mask is wrong.
    pub(super) fn are_for_cudnn(
        &self,
        scope: &Scope<'_>,
        q_nw: Tensor<'_>,
        mask_bs: Option<Tensor<'_>>,
    ) -> bool {
        let d = q_nw.dim(1) / self.num_heads;
        let has_dropout = scope.training().is_some() && self.rate > 0.0;
        scope.options().attention == AttentionKernels::Cudnn
            && mask_bs.is_none()
            && matches!(q_nw.dtype(), DType::F16 | DType::Bf16)
            && d <= MAX_HEAD_WIDTH
            && d.is_multiple_of(8)
            && !has_dropout
            && self.own_positions().is_none()
    }

    /// See [`super::dot_product_attention`].
    #[track_caller]
    pub(super) fn attend_by_cudnn(self, qkv_nw: [Tensor<'g>; 3]) -> Tensor<'g> {
        let Self { num_positions: t, num_heads, .. } = self;
        let [n, width] = qkv_nw[0].dims();
        let (batch, d) = (n / t, width / num_heads);
        let qkv_bthd = qkv_nw.map(|x_nw| x_nw.reshape(&[batch, t, x_nw.dim(1) / d, d]));
        let config = |gradient| self.cudnn_config(qkv_bthd[0].dtype(), batch, d, gradient);
        let (forward, backward) = (config(false), config(true));
        let y = qkv_bthd[0].tracer().custom_vjp(
            &qkv_bthd,
            |x| {
                let y_bhtd = x[0].ty().with_dims(&[batch, num_heads, t, d]);
                // For each row of scores, for the backward pass.
                let statistics = TensorType::new(DType::F32, &[batch, num_heads, t]);
                let results = vec![(y_bhtd, BHTD_AS_BTHD.to_vec()), (statistics, vec![2, 1, 0])];
                let flops = self.flops(batch, d, 2);
                let mut y = call(FORWARD, &forward, flops, x, results);
                y[0] = y[0].transpose(&[0, 2, 1, 3]);
                y
            },
            |x, y, ct| {
                let operands = [x[0], x[1], x[2], y[1], ct[0], y[0]];
                let results = x.iter().map(|x| {
                    let [batch, t, heads, d] = x.dims();
                    (x.ty().with_dims(&[batch, heads, t, d]), BHTD_AS_BTHD.to_vec())
                });
                let flops = self.flops(batch, d, 5);
                let gradients = call(BACKWARD, &backward, flops, &operands, results.collect());
                gradients.iter().map(|gradient| gradient.transpose(&[0, 2, 1, 3])).collect()
            },
        );
        y[0].reshape(&[n, width])
    }

    /// The configuration of a call: `xla.gpu.GpuBackendConfig` as JSON, with 64-bit integers as
    /// strings.
    fn cudnn_config(&self, dtype: DType, batch: usize, d: usize, gradient: bool) -> String {
        let Self { num_positions: t, num_heads, causal, .. } = *self;
        let element = if dtype == DType::F16 { "F16" } else { "BF16" };
        let scale = 1.0 / (d as f64).sqrt();
        let mask = if causal { "CAUSAL" } else { "NO_MASK" };
        // Contracting dims. Scores p are [b, h, t, s], everything else is [b, t, h, d].
        let products: &[(&str, [usize; 2])] = match gradient {
            // q k^T, and p v.
            false => &[("bmm1", [3, 3]), ("bmm2", [3, 1])],
            // dp^T q, dp k, p^T dy, and dy v^T.
            true => &[
                ("bmm1_grad_gemm1", [2, 1]),
                ("bmm1_grad_gemm2", [3, 1]),
                ("bmm2_grad_gemm1", [2, 1]),
                ("bmm2_grad_gemm2", [3, 3]),
            ],
        };
        let products = products.iter().map(|(name, [lhs, rhs])| {
            let lhs_heads = if [lhs, rhs] == [&3, &3] { 2 } else { 1 };
            format!(
                ",\"{name}_dot_dimension_numbers\":{{\"lhs_contracting_dimensions\":[\"{lhs}\"],\
                 \"rhs_contracting_dimensions\":[\"{rhs}\"],\"lhs_batch_dimensions\":[\"0\",\"{lhs_heads}\"],\
                 \"rhs_batch_dimensions\":[\"0\",\"2\"]}}"
            )
        });
        let products: String = products.collect();
        format!(
            "{{\"operation_queue_id\":\"0\",\"cudnn_fmha_backend_config\":{{\
             \"algorithm\":{{\"algo_id\":\"0\",\"math_type\":\"TENSOR_OP_MATH\",\"tuning_knobs\":{{\"17\":\"1\",\"24\":\"0\"}},\
             \"is_cudnn_frontend\":true,\"workspace_size\":\"0\"}},\"fmha_scale\":{scale},\
             \"intermediate_tensor_shape\":{{\"element_type\":\"{element}\",\
             \"dimensions\":[\"{batch}\",\"{num_heads}\",\"{t}\",\"{t}\"],\"tuple_shapes\":[],\
             \"layout\":{{\"minor_to_major\":[\"3\",\"2\",\"1\",\"0\"]}},\
             \"is_dynamic_dimension\":[false,false,false,false]}},\"is_flash_attention\":true,\"mask_type\":\"{mask}\",\
             \"dropout_rate\":0,\"seed\":\"0\",\"sliding_window_length\":0,\"max_seg_per_batch\":1,\
             \"is_paged_attention\":false{products}}}}}"
        )
    }
}

/// A call with row-major operands and results of the given types and layouts.
#[track_caller]
fn call<'g>(
    target: &str,
    config: &str,
    flops: u64,
    operands: &[Tensor<'g>],
    mut results: Vec<(TensorType, Vec<usize>)>,
) -> Vec<Tensor<'g>> {
    // XLA makes it as large as the kernel that it chooses needs.
    results.push((TensorType::new(DType::U8, &[0]), vec![0]));
    let num_results = results.len();
    let (types, result_layouts) = results.into_iter().unzip();
    let layout = |x: &Tensor<'g>| if x.rank() == 4 { BTHD.to_vec() } else { vec![2, 1, 0] };
    let operand_layouts = operands.iter().map(layout).collect();
    let call = CustomCall {
        backend_config: config.to_owned(),
        api_version: 2,
        layouts: Some(Layouts { operands: operand_layouts, results: result_layouts }),
        flops,
        ..CustomCall::new(target, types)
    };
    let mut results = operands[0].tracer().custom_call(call, operands);
    results.truncate(num_results - 1);
    results
}
