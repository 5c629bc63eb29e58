//! `y[n, s, c] = max (or mean) over k of x[n, s * stride + k - padding, c]`

use hlo::{Reduction, Tensor, Window};

/// Maximum of each window of images `[n, h, w, c]`; padding is ignored. Among equal elements the
/// first has the gradient, within the limits that [`Tensor::select_and_scatter`] names.
///
/// ```
/// use hlo::{DType, Mesh, TensorType, trace};
/// use models::layers::{avg_pool, global_avg_pool, max_pool};
///
/// trace(Mesh::SINGLE, |t| {
///     let x = t.input("x", TensorType::new(DType::F32, &[8, 112, 112, 64]));
///     assert_eq!(max_pool(x, 3, 2, 1).dims(), [8, 56, 56, 64]);
///     assert_eq!(avg_pool(x, 2, 2, 0).dims(), [8, 56, 56, 64]);
///     assert_eq!(global_avg_pool(x).dims(), [8, 64]);
/// })?;
/// # Ok::<(), hlo::Error>(())
/// ```
#[must_use]
#[track_caller]
pub fn max_pool(x_nhwc: Tensor<'_>, size: usize, stride: usize, padding: i64) -> Tensor<'_> {
    x_nhwc.reduce_window(Reduction::Max, Window::nhwc(size, stride, padding))
}

/// Mean of each window of images `[n, h, w, c]`; padding is ignored (PyTorch's
/// `count_include_pad=False`).
#[must_use]
#[track_caller]
pub fn avg_pool(x_nhwc: Tensor<'_>, size: usize, stride: usize, padding: i64) -> Tensor<'_> {
    let window = || Window::nhwc(size, stride, padding);
    let [_, h, w, _] = x_nhwc.dims();
    let ones = x_nhwc.tracer().full(x_nhwc.dtype(), &[1, h, w, 1], 1.0);
    let count = ones.reduce_window(Reduction::Sum, window());
    let sum_nhwc = x_nhwc.reduce_window(Reduction::Sum, window());
    sum_nhwc / count.broadcast_like(sum_nhwc, &[0, 1, 2, 3])
}

/// Mean over h and w: `[n, h, w, c] -> [n, c]`.
#[must_use]
#[track_caller]
pub fn global_avg_pool(x_nhwc: Tensor<'_>) -> Tensor<'_> {
    let [_, h, w, _] = x_nhwc.dims();
    x_nhwc.reduce_sum(&[1, 2]) / (h * w) as f64
}
