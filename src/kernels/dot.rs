//! Generalised matrix products.

use bytemuck::Pod;
use hlo::DotDims;
use kernels::{Element, Pool, Product};

use super::{elements, elements_mut, strides};
use crate::pjrt::KernelCall;

/// Computes the product of two operands.
pub(super) fn run<T: Element + Pod>(
    pool: &Pool<'_>,
    dims: &DotDims,
    call: &mut KernelCall<'_>,
) -> Result<(), String> {
    let operands: Vec<_> = call.operand_types().collect();
    let results: Vec<_> = call.result_types().collect();
    let (&[a, b], &[out]) = (&operands[..], &results[..]) else {
        return Err("a product has two operands and one result".to_owned());
    };
    if [b.dtype, out.dtype] != [a.dtype; 2] {
        return Err(format!("there is no product of {} and {} in {}", a.dtype, b.dtype, out.dtype));
    }
    let product = product(dims, &a.dims, &b.dims, &out.dims)?;
    let mut buffers = call.buffers();
    let (a, b) = (elements(buffers.operands[0])?, elements(buffers.operands[1])?);
    product.run::<T>(pool, elements_mut(buffers.results[0])?, a, b);
    Ok(())
}

/// Neighbouring dims of a row-major tensor as one: its size and its stride.
#[derive(Clone, Copy)]
struct Merged {
    size: usize,
    stride: usize,
}

/// The product of `a` and `b` as products of matrices at strides. Batch dims become loops, and so
/// do free dims that do not merge with the last of them.
fn product(dims: &DotDims, a: &[usize], b: &[usize], out: &[usize]) -> Result<Product, String> {
    let misfit = || format!("{a:?} and {b:?} do not give {out:?} by {dims:?}");
    let is_inside = |dims: &[usize], rank: usize| dims.iter().all(|dim| *dim < rank);
    let pairs = dims.lhs_batch.len() == dims.rhs_batch.len()
        && dims.lhs_contracting.len() == dims.rhs_contracting.len();
    let inside = is_inside(&dims.lhs_batch, a.len())
        && is_inside(&dims.lhs_contracting, a.len())
        && is_inside(&dims.rhs_batch, b.len())
        && is_inside(&dims.rhs_contracting, b.len());
    if !pairs || !inside {
        return Err(misfit());
    }
    let (a_free, b_free) = (dims.lhs_free(a.len()), dims.rhs_free(b.len()));
    let sizes =
        |of: &[usize], listed: &[usize]| listed.iter().map(|dim| of[*dim]).collect::<Vec<_>>();
    let batch = sizes(a, &dims.lhs_batch);
    let expected = [&batch[..], &sizes(a, &a_free), &sizes(b, &b_free)].concat();
    let fits = batch == sizes(b, &dims.rhs_batch)
        && sizes(a, &dims.lhs_contracting) == sizes(b, &dims.rhs_contracting);
    if !fits || expected != out {
        return Err(misfit());
    }
    let (a_strides, b_strides, out_strides) = (strides(a), strides(b), strides(out));
    let mut loops = vec![];
    for (i, (a_dim, b_dim)) in dims.lhs_batch.iter().zip(&dims.rhs_batch).enumerate() {
        loops.push((a[*a_dim], [a_strides[*a_dim], b_strides[*b_dim], out_strides[i]]));
    }
    let one = |of: &[usize], dims: &[usize]| match &merge(of, dims)[..] {
        [] => Ok(Merged { size: 1, stride: 0 }),
        [merged] => Ok(*merged),
        _ => Err(format!("contracting dims {dims:?} are not neighbours")),
    };
    let (a_k, b_k) = (one(a, &dims.lhs_contracting)?, one(b, &dims.rhs_contracting)?);
    // Free dims have the strides of a row-major tensor in the result, so those that merge in an
    // operand merge there.
    let width: usize = sizes(b, &b_free).iter().product();
    let mut rows = merge(a, &a_free);
    let mut columns = merge(b, &b_free);
    let last = |merged: &mut Vec<Merged>| merged.pop().unwrap_or(Merged { size: 1, stride: 0 });
    let (m, n) = (last(&mut rows), last(&mut columns));
    let mut out_stride = width * m.size;
    for row in rows.iter().rev() {
        loops.push((row.size, [row.stride, 0, out_stride]));
        out_stride *= row.size;
    }
    let mut out_stride = n.size;
    for column in columns.iter().rev() {
        loops.push((column.size, [0, column.stride, out_stride]));
        out_stride *= column.size;
    }
    let strides = [[m.stride, a_k.stride], [b_k.stride, n.stride], [width, 1]];
    Product::new([m.size, n.size, a_k.size], strides, loops).ok_or_else(misfit)
}

/// Dims of a row-major tensor, with neighbours merged into one and without dims of size 1.
fn merge(of: &[usize], dims: &[usize]) -> Vec<Merged> {
    let strides = strides(of);
    let mut merged: Vec<Merged> = vec![];
    for dim in dims {
        let (size, stride) = (of[*dim], strides[*dim]);
        match merged.last_mut() {
            _ if size == 1 => {}
            Some(outer) if outer.stride == size * stride => {
                *outer = Merged { size: outer.size * size, stride };
            }
            _ => merged.push(Merged { size, stride }),
        }
    }
    merged
}
