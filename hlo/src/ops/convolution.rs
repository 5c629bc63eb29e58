//! Convolutions of any number of spatial dims, and their gradients, which are convolutions too.
//!
//! `y[n, o, s] = sum over i, k of x[n, i, s * stride + k * rhs_dilation - low] * w[o, i, k]`: the
//! kernel is not flipped. The order of dims is free ([`ConvolutionDims`]), so that gradients need
//! no transposes:
//!
//! - **input gradient**: the cotangent, dilated by the stride (`base_dilation`), convolved with the
//!   kernel, which is reversed and has its two feature dims exchanged;
//! - **kernel gradient**: the input convolved with the cotangent as kernel, with batch and feature
//!   exchanged in both. Feature groups become batch groups, and vice versa.
//!
//! Dumoulin and Visin, "A guide to convolution arithmetic for deep learning" (2016), chapter 4.

use crate::window::dilated;
use crate::{Op, Tensor, TensorType, WindowDim};

/// The roles of the dims of a convolution's operands and result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConvolutionDims {
    /// Dims of the input: batch, feature, then spatial dims.
    pub lhs: Vec<usize>,
    /// Dims of the kernel: output feature, input feature, then spatial dims.
    pub rhs: Vec<usize>,
    /// Dims of the result: batch, feature, then spatial dims.
    pub result: Vec<usize>,
}

/// The attributes of a convolution.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Convolution {
    /// The roles of the dims.
    pub dims: ConvolutionDims,
    /// The window of each spatial dim.
    pub window: Vec<WindowDim>,
    /// Input and output features are divided into this many groups; a group of outputs depends only
    /// on its group of inputs.
    pub feature_group_count: usize,
    /// The batch and the output features are divided into this many groups; a group of outputs
    /// depends only on its part of the batch.
    pub batch_group_count: usize,
}

impl Convolution {
    /// Input and result `[batch, feature, spatial..]`, kernel `[output, input, spatial..]` (for
    /// images NCHW and OIHW), stride 1, no padding.
    pub fn new(num_spatial_dims: usize) -> Self {
        let in_order: Vec<_> = (0..num_spatial_dims + 2).collect();
        let [lhs, rhs, result] = [in_order.clone(), in_order.clone(), in_order];
        Self {
            dims: ConvolutionDims { lhs, rhs, result },
            window: vec![WindowDim::default(); num_spatial_dims],
            feature_group_count: 1,
            batch_group_count: 1,
        }
    }

    /// Input and result `[batch, spatial.., feature]` (for images NHWC); the kernel's layout is
    /// unchanged.
    #[must_use]
    pub fn features_last(mut self) -> Self {
        let num_spatial_dims = self.window.len();
        let roles: Vec<_> =
            [0, num_spatial_dims + 1].into_iter().chain(1..=num_spatial_dims).collect();
        (self.dims.lhs, self.dims.result) = (roles.clone(), roles);
        self
    }

    /// The same stride along every spatial dim.
    #[must_use]
    pub fn stride(mut self, stride: usize) -> Self {
        self.window.iter_mut().for_each(|dim| dim.stride = stride);
        self
    }

    /// The same padding on both sides of every spatial dim.
    #[must_use]
    pub fn padding(mut self, padding: i64) -> Self {
        self.window.iter_mut().for_each(|dim| (dim.low, dim.high) = (padding, padding));
        self
    }

    /// Sets the number of feature groups.
    #[must_use]
    pub fn groups(self, feature_group_count: usize) -> Self {
        Self { feature_group_count, ..self }
    }

    /// The type of the result.
    ///
    /// # Errors
    /// If the operands do not fit.
    pub(crate) fn infer(&self, lhs: &TensorType, rhs: &TensorType) -> Result<TensorType, String> {
        let Self { dims, window, feature_group_count, batch_group_count } = self;
        let rank = window.len() + 2;
        if window.is_empty() {
            return Err("needs spatial dims; without them use dot_general".into());
        }
        if lhs.dtype != rhs.dtype || lhs.dtype == crate::DType::Pred {
            return Err("input and kernel must have the same numeric dtype".into());
        }
        for (ty, name) in [(lhs, "input"), (rhs, "kernel")] {
            if ty.rank() != rank {
                return Err(format!(
                    "with {} spatial dims, the {name} needs {rank} dims, but has {}",
                    window.len(),
                    ty.rank()
                ));
            }
        }
        for roles in [&dims.lhs, &dims.rhs, &dims.result] {
            let mut sorted = roles.clone();
            sorted.sort_unstable();
            if !sorted.into_iter().eq(0..rank) {
                return Err(format!("{roles:?} does not give each of {rank} dims one role"));
            }
        }
        let (groups, parts) = (*feature_group_count, *batch_group_count);
        if groups == 0 || parts == 0 || groups > 1 && parts > 1 {
            return Err(format!(
                "group counts must be at least 1, and not both above 1; got {groups} feature \
                 groups and {parts} batch groups"
            ));
        }
        let (batch, inputs) = (lhs.dims[dims.lhs[0]], lhs.dims[dims.lhs[1]]);
        let (outputs, taken) = (rhs.dims[dims.rhs[0]], rhs.dims[dims.rhs[1]]);
        if taken.checked_mul(groups) != Some(inputs) {
            return Err(format!(
                "the input has {inputs} features, but the kernel takes {taken} in each of {groups} \
                 feature groups"
            ));
        }
        if !outputs.is_multiple_of(groups * parts) || !batch.is_multiple_of(parts) {
            return Err(format!(
                "{outputs} output features and a batch of {batch} do not divide into {groups} \
                 feature groups and {parts} batch groups"
            ));
        }
        let mut result = vec![0; rank];
        result[dims.result[0]] = batch / parts;
        result[dims.result[1]] = outputs;
        for (i, window) in window.iter().enumerate() {
            let (base, size) = (lhs.dims[dims.lhs[i + 2]], rhs.dims[dims.rhs[i + 2]]);
            let positions = window.num_positions(base, size);
            result[dims.result[i + 2]] =
                positions.map_err(|message| format!("spatial dim {i}: {message}"))?;
        }
        Ok(lhs.with_dims(&result))
    }

    /// Number of multiplications with elements of the input, for one output feature, one input
    /// feature and one example. Products with padding and dilation zeros are not counted.
    pub(crate) fn num_products(&self, lhs: &TensorType, rhs: &TensorType, y: &TensorType) -> u64 {
        let along = |(i, window): (usize, &WindowDim)| {
            let size = |ty: &TensorType, roles: &[usize]| ty.dims[roles[i + 2]];
            let positions = size(y, &self.dims.result);
            window.num_covered(positions, size(rhs, &self.dims.rhs), size(lhs, &self.dims.lhs))
        };
        self.window.iter().enumerate().map(along).fold(1, u64::saturating_mul)
    }
}

impl<'g> Tensor<'g> {
    /// Convolution with `kernel`.
    ///
    /// ```
    /// use hlo::{Convolution, DType, Mesh, TensorType, trace};
    ///
    /// trace(Mesh::SINGLE, |t| {
    ///     let x = t.input("x", TensorType::new(DType::F32, &[8, 3, 32, 32]));
    ///     let w = t.input("w", TensorType::new(DType::F32, &[16, 3, 3, 3]));
    ///     let y = x.convolution(w, Convolution::new(2).stride(2).padding(1));
    ///     assert_eq!(y.dims(), [8, 16, 16, 16]);
    /// })?;
    /// # Ok::<(), hlo::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn convolution(self, kernel: Tensor<'g>, convolution: Convolution) -> Tensor<'g> {
        self.tracer().apply(Op::Convolution(convolution), &[self, kernel])
    }

    /// Reverses the elements along `dims`.
    #[must_use]
    #[track_caller]
    pub fn reverse(self, dims: &[usize]) -> Tensor<'g> {
        self.tracer().apply(Op::Reverse { dims: dims.to_vec() }, &[self])
    }
}

/// The cotangents of input and kernel; zeros if an operand or the result is empty.
pub(crate) fn vjp<'g>(
    forward: &Convolution,
    lhs: Tensor<'g>,
    rhs: Tensor<'g>,
    ct: Tensor<'g>,
) -> [Tensor<'g>; 2] {
    if [lhs, rhs, ct].iter().any(|x| x.num_elements() == 0) {
        return [lhs, rhs].map(|x| x.full_like(0.0));
    }
    [input_cotangent(forward, lhs, rhs, ct), kernel_cotangent(forward, lhs, rhs, ct)]
}

fn input_cotangent<'g>(
    forward: &Convolution,
    lhs: Tensor<'g>,
    rhs: Tensor<'g>,
    ct: Tensor<'g>,
) -> Tensor<'g> {
    let ConvolutionDims { lhs: lhs_dims, rhs: rhs_dims, result: result_dims } = &forward.dims;
    let Convolution { feature_group_count, batch_group_count, .. } = forward;
    // One of the counts is 1. A group of inputs only affects its group of outputs, so the kernel's
    // output features are divided into groups, which move to its input features: the outputs of
    // this convolution.
    let groups = feature_group_count * batch_group_count;
    let kernel = regroup(rhs, rhs_dims[0], rhs_dims[1], groups);
    // A separate op, since XLA's CPU backend has no fast path for reversed windows.
    let kernel = kernel.reverse(&sorted(&rhs_dims[2..]));
    let window = forward.window.iter().enumerate().map(|(i, dim)| {
        let base = dilated(lhs.dim(lhs_dims[i + 2]), dim.base_dilation);
        let spread = dilated(ct.dim(result_dims[i + 2]), dim.stride);
        let kernel = dilated(rhs.dim(rhs_dims[i + 2]), dim.window_dilation);
        let low = kernel - 1 - i128::from(dim.low);
        let high = base + kernel - 1 - spread - low;
        WindowDim {
            stride: dim.base_dilation,
            base_dilation: dim.stride,
            window_dilation: dim.window_dilation,
            low: low as i64,
            high: high as i64,
        }
    });
    let backward = Convolution {
        window: window.collect(),
        dims: ConvolutionDims {
            lhs: result_dims.clone(),
            rhs: with_first_two_exchanged(rhs_dims),
            result: lhs_dims.clone(),
        },
        feature_group_count: groups,
        batch_group_count: 1,
    };
    regroup(ct.convolution(kernel, backward), lhs_dims[1], lhs_dims[0], *batch_group_count)
}

fn kernel_cotangent<'g>(
    forward: &Convolution,
    lhs: Tensor<'g>,
    rhs: Tensor<'g>,
    ct: Tensor<'g>,
) -> Tensor<'g> {
    let ConvolutionDims { lhs: lhs_dims, rhs: rhs_dims, result: result_dims } = &forward.dims;
    let window = forward.window.iter().enumerate().map(|(i, dim)| {
        let base = dilated(lhs.dim(lhs_dims[i + 2]), dim.base_dilation);
        let spread = dilated(ct.dim(result_dims[i + 2]), dim.stride);
        let kernel = dilated(rhs.dim(rhs_dims[i + 2]), dim.window_dilation);
        // Gives as many positions, `window_dilation` apart, as the kernel has elements.
        let high = spread - base + kernel - 1 - i128::from(dim.low);
        WindowDim {
            stride: dim.window_dilation,
            base_dilation: dim.base_dilation,
            window_dilation: dim.stride,
            low: dim.low,
            high: high as i64,
        }
    });
    let backward = Convolution {
        window: window.collect(),
        dims: ConvolutionDims {
            lhs: with_first_two_exchanged(lhs_dims),
            rhs: with_first_two_exchanged(result_dims),
            result: with_first_two_exchanged(rhs_dims),
        },
        feature_group_count: forward.batch_group_count,
        batch_group_count: forward.feature_group_count,
    };
    lhs.convolution(ct, backward)
}

fn with_first_two_exchanged(roles: &[usize]) -> Vec<usize> {
    [&[roles[1], roles[0]], &roles[2..]].concat()
}

fn sorted(dims: &[usize]) -> Vec<usize> {
    let mut dims = dims.to_vec();
    dims.sort_unstable();
    dims
}

/// Splits `groups` off dim `from` and merges them into dim `to` as its major part: `[groups * f]`
/// and `[t]` become `[f]` and `[groups * t]`.
fn regroup<'g>(x: Tensor<'g>, from: usize, to: usize, groups: usize) -> Tensor<'g> {
    let mut dims = x.shape();
    // After an error the rank is 0.
    if groups == 1 || dims.is_empty() {
        return x;
    }
    let mut cut = dims.clone();
    cut[from] /= groups;
    cut.insert(from, groups);
    // In the split tensor the groups are dim `from`, and dims from there on have moved up by one.
    let position = |dim: usize| if dim < from { dim } else { dim + 1 };
    let order = (0..dims.len()).flat_map(|dim| {
        let groups_first = (dim == to).then_some(from);
        groups_first.into_iter().chain([position(dim)])
    });
    let order: Vec<_> = order.collect();
    dims[from] /= groups;
    dims[to] *= groups;
    x.reshape(&cut).transpose(&order).reshape(&dims)
}
