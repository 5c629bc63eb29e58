//! `y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias`, over the last dim

use hlo::Tensor;

use crate::{Initializer, Scope};

/// Added to the variance.
pub(crate) const LAYER_NORM_EPSILON: f64 = 1e-5;

/// Layer norm of `[b, d]` over d, with parameters `weight` `[d]` (ones) and `bias` `[d]` (zeros).
/// The variance is biased. Computed in f32 or wider for any dtype of x. Ba, Kiros and Hinton,
/// "Layer normalization" (2016).
///
/// ```
/// use hlo::{AxisSet, DType, Mesh, TensorType, trace};
/// use models::{Precision, Scope, layers::layer_norm};
///
/// trace(Mesh::SINGLE, |t| {
///     let x = t.input("x", TensorType::new(DType::F32, &[8, 64]));
///     assert_eq!(layer_norm(&Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY), x).dims(), [8, 64]);
/// })?;
/// # Ok::<(), hlo::Error>(())
/// ```
#[track_caller]
pub fn layer_norm<'g>(scope: &Scope<'g>, x_bd: Tensor<'g>) -> Tensor<'g> {
    layer_norm_with(scope, x_bd, LAYER_NORM_EPSILON)
}

/// [`layer_norm`] with another epsilon.
#[track_caller]
pub fn layer_norm_with<'g>(scope: &Scope<'g>, x_bd: Tensor<'g>, epsilon: f64) -> Tensor<'g> {
    let [_, d] = x_bd.dims();
    let weight_d = scope.of_rows().param_full_precision("weight", &[d], Initializer::Ones);
    let bias_d = scope.of_rows().param_full_precision("bias", &[d], Initializer::Zeros);
    let dtype = x_bd.dtype();
    let x_bd = x_bd.convert(weight_d.dtype());
    let mean = |x_bd: Tensor<'g>| (x_bd.reduce_sum(&[1]) / d as f64).broadcast_like(x_bd, &[0]);
    let centered_bd = x_bd - mean(x_bd);
    let variance_bd = mean(centered_bd * centered_bd);
    let normalized_bd = centered_bd * (variance_bd + epsilon).rsqrt();
    let y_bd =
        normalized_bd * weight_d.broadcast_like(x_bd, &[1]) + bias_d.broadcast_like(x_bd, &[1]);
    y_bd.convert(dtype)
}
