//! `y = x / sqrt(mean(x^2) + eps) * weight`, over the last dim

use hlo::Tensor;

use crate::{Initializer, Scope};

/// RMS norm of `[b, d]` over d, with `epsilon` added to the mean of squares and the parameter
/// `weight` `[d]` (ones). Computed in f32 or wider, for any dtype of x. Zhang and Sennrich, "Root
/// mean square layer normalization" (2019).
///
/// ```
/// use hlo::{AxisSet, DType, Mesh, TensorType, trace};
/// use models::{Precision, Scope, layers::rms_norm};
///
/// trace(Mesh::SINGLE, |t| {
///     let x = t.input("x", TensorType::new(DType::F32, &[8, 64]));
///     let scope = Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY);
///     assert_eq!(rms_norm(&scope, x, 1e-5).dims(), [8, 64]);
/// })?;
/// # Ok::<(), hlo::Error>(())
/// ```
#[track_caller]
pub fn rms_norm<'g>(scope: &Scope<'g>, x_bd: Tensor<'g>, epsilon: f64) -> Tensor<'g> {
    let [_, d] = x_bd.dims();
    let weight_d = scope.of_rows().param_full_precision("weight", &[d], Initializer::Ones);
    let dtype = x_bd.dtype();
    let x_bd = x_bd.convert(weight_d.dtype());
    let mean_square_b = (x_bd * x_bd).reduce_sum(&[1]) / d as f64;
    let scale_bd = (mean_square_b + epsilon).rsqrt().broadcast_like(x_bd, &[0]);
    (x_bd * scale_bd * weight_d.broadcast_like(x_bd, &[1])).convert(dtype)
}
