//! `y = x W^T + b`

use hlo::{Axis, DotDims, Tensor};

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

/// [`linear`] at the start of a region: each replica along `tensor` computes its piece of the
/// columns of the result, `[b, num_out / replicas]`, from all of `x_bi`. See `tensor_parallel.rs`.
#[track_caller]
pub fn column_linear<'g>(
    scope: &Scope<'g>,
    x_bi: Tensor<'g>,
    num_out: usize,
    initializer: Initializer,
) -> Tensor<'g> {
    linear(&scope.cut(0), x_bi, num_out, initializer)
}

/// [`linear`] at the end of a region, from this replica's piece of the columns, `[b, i]`, to
/// `[b, num_out]` for what is between regions. The bias is added once, after the sum.
#[track_caller]
pub fn row_linear<'g>(
    scope: &Scope<'g>,
    x_bi: Tensor<'g>,
    num_out: usize,
    initializer: Initializer,
) -> Tensor<'g> {
    let num_in = x_bi.dim(1) * scope.num_column_pieces();
    let weight_oi = scope.cut(1).param("weight", &[num_out, num_in], initializer);
    let bias_o = scope.of_rows().param("bias", &[num_out], Initializer::Zeros);
    let y_bo = scope.leave(x_bi.dot_general(weight_oi, DotDims::contract(&[1], &[1])));
    y_bo + bias_o.broadcast_like(y_bo, &[1])
}

/// [`linear`] that is a region of its own, if the replicas along `tensor` divide `num_out`: each
/// computes its piece of the columns of the result, which are then gathered.
#[track_caller]
pub(super) fn gathered_linear<'g>(
    scope: &Scope<'g>,
    x_bi: Tensor<'g>,
    num_out: usize,
    initializer: Initializer,
) -> Tensor<'g> {
    let num_pieces = scope.num_tensor_replicas();
    if num_pieces == 1 || !num_out.is_multiple_of(num_pieces) {
        return linear(scope, x_bi, num_out, initializer);
    }
    let own_bo = column_linear(scope, x_bi.vary(Axis::Tensor), num_out, initializer);
    own_bo.all_gather_replicated(1, Axis::Tensor)
}

/// [`linear`] between regions: of this replica's rows with sequence parallelism, or else as
/// [`gathered_linear`].
#[track_caller]
pub fn linear_between<'g>(
    scope: &Scope<'g>,
    x_bi: Tensor<'g>,
    num_out: usize,
    initializer: Initializer,
) -> Tensor<'g> {
    match scope.cuts_rows() {
        true => linear(&scope.of_rows(), x_bi, num_out, initializer),
        false => gathered_linear(scope, x_bi, num_out, initializer),
    }
}
