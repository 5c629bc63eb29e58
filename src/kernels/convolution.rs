//! Convolutions of images, and the gradients of their kernels.

use bytemuck::Pod;
use kernels::{Convolution, Element, Pool};

use super::{elements, elements_mut, strides};
use crate::pjrt::{ConvolutionSite, KernelCall};

/// Computes a call: from images and a kernel to images, or from images and a cotangent to the
/// gradient of the kernel.
pub(super) fn run<T: Element + Pod>(
    pool: &Pool<'_>,
    site: ConvolutionSite,
    call: &mut KernelCall<'_>,
) -> Result<(), String> {
    let operands: Vec<_> = call.operand_types().cloned().collect();
    let results: Vec<_> = call.result_types().cloned().collect();
    let ([first, second], [result]) = (&operands[..], &results[..]) else {
        return Err("a convolution has two operands and one result".to_owned());
    };
    let (y, kernel) = if site.is_gradient { (second, result) } else { (result, second) };
    let misfit = || format!("{:?}, {:?} and {:?} do not fit", first.dims, y.dims, kernel.dims);
    let is_same = second.dtype == first.dtype && result.dtype == first.dtype;
    let (&[batch, height, width, in_features], &[y_batch, rows, columns, out_features]) =
        (&first.dims[..], &y.dims[..])
    else {
        return Err(misfit());
    };
    if !is_same || y_batch != batch || kernel.dims.len() != 4 {
        return Err(misfit());
    }
    let kernel_strides = strides(&kernel.dims);
    let strides = site.kernel.map(|dim| kernel_strides[dim]);
    let [outputs, inputs, kernel_rows, kernel_columns] = site.kernel.map(|dim| kernel.dims[dim]);
    if [outputs, inputs] != [out_features, in_features] {
        return Err(misfit());
    }
    let convolution = Convolution {
        batch,
        input: [height, width],
        in_features,
        output: [rows, columns],
        out_features,
        kernel: [kernel_rows, kernel_columns],
        stride: site.stride,
        low: site.low,
        base_dilation: site.base_dilation,
    };
    let mut buffers = call.buffers();
    let (first, second) = (elements::<T>(buffers.operands[0])?, elements(buffers.operands[1])?);
    let out = elements_mut(buffers.results[0])?;
    match site.is_gradient {
        false => convolution.run(pool, out, first, second, strides),
        true => convolution.run_kernel_gradient(pool, out, strides, first, second),
    }
    Ok(())
}
