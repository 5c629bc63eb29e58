//! `y = x W^T + b`

use hlo::{DotDims, Tensor};

use crate::{Initializer, Scope};

/// Linear layer: `[b, in] -> [b, out]`, with parameters `weight` `[out, in]` and `bias` `[out]`
/// (zeros).
///
/// ```
/// use hlo::{AxisSet, DType, Mesh, TensorType, trace};
/// use models::{Initializer, Precision, Scope, layers::linear};
///
/// trace(Mesh::SINGLE, |t| {
///     let x = t.input("x", TensorType::new(DType::F32, &[8, 64]));
///     let y = linear(&Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY), x, 10, Initializer::lecun_normal(64));
///     assert_eq!(y.dims(), [8, 10]);
/// })?;
/// # Ok::<(), hlo::Error>(())
/// ```
#[track_caller]
pub fn linear<'g>(
    scope: &Scope<'g>,
    x_bi: Tensor<'g>,
    num_out: usize,
    initializer: Initializer,
) -> Tensor<'g> {
    let [_, num_in] = x_bi.dims();
    let weight_oi = scope.param("weight", &[num_out, num_in], initializer);
    let bias_o = scope.param("bias", &[num_out], Initializer::Zeros);
    let y_bo = x_bi.dot_general(weight_oi, DotDims::contract(&[1], &[1]));
    y_bo + bias_o.broadcast_like(y_bo, &[1])
}
