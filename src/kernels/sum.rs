//! Sums over leading dims.

use hlo::DType;
use kernels::{Element, Pool, sum_rows};

use super::{elements, elements_mut};
use crate::pjrt::KernelCall;

/// Computes the sum of an operand, f32 or f64, over the dims that the result does not have.
pub(super) fn run(pool: &Pool<'_>, call: &mut KernelCall<'_>) -> Result<(), String> {
    let operands: Vec<_> = call.operand_types().collect();
    let results: Vec<_> = call.result_types().collect();
    let (&[x], &[out]) = (&operands[..], &results[..]) else {
        return Err("a sum has an operand and a result".to_owned());
    };
    if !x.dims.ends_with(&out.dims) || x.dtype != out.dtype {
        return Err("the result is not a sum over leading dims".to_owned());
    }
    match x.dtype {
        DType::F32 => sum::<f32>(pool, call),
        DType::F64 => sum::<f64>(pool, call),
        dtype => Err(format!("there is no sum of {dtype}")),
    }
}

fn sum<T: Element + bytemuck::Pod>(
    pool: &Pool<'_>,
    call: &mut KernelCall<'_>,
) -> Result<(), String> {
    let mut buffers = call.buffers();
    sum_rows::<T>(pool, elements_mut(buffers.results[0])?, elements(buffers.operands[0])?);
    Ok(())
}
