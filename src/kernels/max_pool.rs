//! Maxima over windows of images, and their gradients.

use bytemuck::Pod;
use kernels::{Element, MaxPool, Pool};

use super::{elements, elements_mut};
use crate::pjrt::{KernelCall, MaxPoolSite};

/// Computes a call: from images to the maxima, or from images and a cotangent of the maxima to that
/// of the images.
pub(super) fn run<T: Element + Pod>(
    pool: &Pool<'_>,
    site: MaxPoolSite,
    call: &mut KernelCall<'_>,
) -> Result<(), String> {
    let operands: Vec<_> = call.operand_types().cloned().collect();
    let results: Vec<_> = call.result_types().cloned().collect();
    let (x, y) = match (site.is_gradient, &operands[..], &results[..]) {
        (false, [x], [y]) => (x, y),
        (true, [x, dy], [dx]) if dx == x => (x, dy),
        _ => return Err("the operands are not those of a maximum over windows".to_owned()),
    };
    let (&[batch, height, width, features], &[y_batch, rows, columns, y_features]) =
        (&x.dims[..], &y.dims[..])
    else {
        return Err("a maximum over windows is of images".to_owned());
    };
    if x.dtype != y.dtype || [batch, features] != [y_batch, y_features] {
        return Err(format!("{:?} and {:?} do not fit", x.dims, y.dims));
    }
    let of = MaxPool {
        batch,
        input: [height, width],
        features,
        output: [rows, columns],
        window: site.window,
        stride: site.stride,
        low: site.low,
    };
    let mut buffers = call.buffers();
    let (x, out) = (elements::<T>(buffers.operands[0])?, elements_mut(buffers.results[0])?);
    match site.is_gradient {
        false => of.run(pool, out, x),
        true => of.run_gradient(pool, out, x, elements(buffers.operands[1])?),
    }
    Ok(())
}
