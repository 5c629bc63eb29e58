//! `y[n, c, s] = max (or mean) over k of x[n, c, s * stride + k - padding]`

use hlo::{Reduction, Tensor, Window};

/// Greatest element of each window of images `[n, c, h, w]`; padding counts for nothing.
///
/// ```
/// use hlo::{DType, Mesh, TensorType, trace};
/// use models::layers::{avg_pool, global_avg_pool, max_pool};
///
/// trace(Mesh::SINGLE, |t| {
///     let x = t.input("x", TensorType::new(DType::F32, &[8, 64, 112, 112]));
///     assert_eq!(max_pool(x, 3, 2, 1).dims(), [8, 64, 56, 56]);
///     assert_eq!(avg_pool(x, 2, 2, 0).dims(), [8, 64, 56, 56]);
///     assert_eq!(global_avg_pool(x).dims(), [8, 64]);
/// })?;
/// # Ok::<(), hlo::Error>(())
/// ```
#[must_use]
#[track_caller]
pub fn max_pool(x_nchw: Tensor<'_>, size: usize, stride: usize, padding: i64) -> Tensor<'_> {
    x_nchw.reduce_window(Reduction::Max, Window::nchw(size, stride, padding))
}

/// Mean of each window: the sum of the elements it meets divided by their number, so that padding counts
/// for nothing (PyTorch's `count_include_pad=False`).
#[must_use]
#[track_caller]
pub fn avg_pool(x_nchw: Tensor<'_>, size: usize, stride: usize, padding: i64) -> Tensor<'_> {
    let window = || Window::nchw(size, stride, padding);
    let [_, _, h, w] = x_nchw.dims();
    let ones = x_nchw.tracer().full(x_nchw.dtype(), &[1, 1, h, w], 1.0);
    let count = ones.reduce_window(Reduction::Sum, window());
    let sum_nchw = x_nchw.reduce_window(Reduction::Sum, window());
    sum_nchw / count.broadcast_like(sum_nchw, &[0, 1, 2, 3])
}

/// Mean over h and w: `[n, c, h, w] -> [n, c]`.
#[must_use]
#[track_caller]
pub fn global_avg_pool(x_nchw: Tensor<'_>) -> Tensor<'_> {
    let [_, _, h, w] = x_nchw.dims();
    x_nchw.reduce_sum(&[2, 3]) / (h * w) as f64
}
