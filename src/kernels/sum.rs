//! Sums over leading dims.

use bytemuck::Pod;
use kernels::{Element, Pool, sum_rows};

use super::{elements, elements_mut};
use crate::pjrt::KernelCall;

/// Computes the sum of an operand over the dims that the result does not have.
pub(super) fn run<T: Element + Pod>(
    pool: &Pool<'_>,
    call: &mut KernelCall<'_>,
) -> Result<(), String> {
    let operands: Vec<_> = call.operand_types().collect();
    let results: Vec<_> = call.result_types().collect();
    let (&[x], &[out]) = (&operands[..], &results[..]) else {
        return Err("a sum has an operand and a result".to_owned());
    };
    if !x.dims.ends_with(&out.dims) || x.dtype != out.dtype {
        return Err("the result is not a sum over leading dims".to_owned());
    }
    let mut buffers = call.buffers();
    sum_rows::<T>(pool, elements_mut(buffers.results[0])?, elements(buffers.operands[0])?);
    Ok(())
}
