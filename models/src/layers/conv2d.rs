//! `y[n, s, o] = sum over i, k of x[n, s * stride + k - padding, i] * w[o, i, k]`

use hlo::{Convolution, Tensor};

use crate::{Initializer, Scope};

/// Parameters of [`conv2d`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2d {
    /// Number of output channels.
    pub num_out: usize,
    /// Height and width of the kernel.
    pub size: usize,
    /// Stride of the kernel.
    pub stride: usize,
}

/// Convolution of images `[n, h, w, c]`, with parameter `weight` `[out, c, size, size]`, no bias (a
/// norm follows) and zero padding of `(size - 1) / 2`, so that an odd kernel with stride 1 keeps h
/// and w. The weights' initial values are normal with variance `2 / (out * size * size)`, which
/// keeps the variance of gradients through ReLU: He, Zhang, Ren and Sun, "Delving deep into
/// rectifiers" (2015), section 2.2, backward case.
///
/// ```
/// use hlo::{AxisSet, DType, Mesh, TensorType, trace};
/// use models::{Precision, Scope, layers::{Conv2d, conv2d}};
///
/// trace(Mesh::SINGLE, |t| {
///     let x = t.input("x", TensorType::new(DType::F32, &[8, 32, 32, 3]));
///     let scope = Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY);
///     let y = conv2d(&scope, x, Conv2d { num_out: 16, size: 3, stride: 2 });
///     assert_eq!(y.dims(), [8, 16, 16, 16]);
/// })?;
/// # Ok::<(), hlo::Error>(())
/// ```
#[track_caller]
pub fn conv2d<'g>(scope: &Scope<'g>, x_nhwc: Tensor<'g>, conv: Conv2d) -> Tensor<'g> {
    let [_, _, _, num_in] = x_nhwc.dims();
    let Conv2d { num_out, size, stride } = conv;
    let he = Initializer::he_normal(num_out * size * size);
    let weight_oihw = scope.param("weight", &[num_out, num_in, size, size], he);
    let padding = (size.saturating_sub(1) / 2) as i64;
    let convolution = Convolution::new(2).features_last().stride(stride).padding(padding);
    x_nhwc.convolution(weight_oihw, convolution).fusion_barrier()
}
