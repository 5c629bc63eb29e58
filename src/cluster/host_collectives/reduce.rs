//! Collectives that combine values.

use bytemuck::Pod;
use half::{bf16, f16};
use hlo::{DType, Reduction};
use rayon::ThreadPool;

use super::compute::in_parallel;
use crate::pjrt::HostTensor;

/// Elements that one task combines: a few fit into a core's cache together.
const BLOCK: usize = 1 << 13;

/// A tensor as rows that are cut into one piece per replica.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    num_rows: usize,
    /// Elements of a piece.
    piece: usize,
}

impl Rows {
    /// The rows of an operand whose `dim` is cut into `num_pieces`.
    pub fn of(ty: &HostTensor, dim: usize, num_pieces: usize) -> Self {
        let num_rows = ty.dims[..dim].iter().product();
        Self { num_rows, piece: ty.dims[dim..].iter().product::<usize>() / num_pieces.max(1) }
    }
}

/// Combines values of one type, in place.
trait Combine: Pod + Send + Sync {
    /// `total[i] = ((x0[i] + x1[i]) + x2[i]) + ..`, or another reduction.
    fn combine(reduction: Reduction, xs: &[&[Self]], total: &mut [Self]);
}

/// Starts with the first operand and adds one after the other.
fn fold<T: Copy>(xs: &[&[T]], total: &mut [T], combine: impl Fn(T, T) -> T) {
    let Some((first, others)) = xs.split_first() else { return };
    total.copy_from_slice(first);
    for x in others {
        total.iter_mut().zip(*x).for_each(|(total, x)| *total = combine(*total, *x));
    }
}

macro_rules! integers {
    ($($ty:ty)*) => { $(
        impl Combine for $ty {
            fn combine(reduction: Reduction, xs: &[&[Self]], total: &mut [Self]) {
                match reduction {
                    Reduction::Sum => fold(xs, total, <$ty>::wrapping_add),
                    Reduction::Max => fold(xs, total, Ord::max),
                    Reduction::Min => fold(xs, total, Ord::min),
                    Reduction::And => fold(xs, total, |x, y| x & y),
                    Reduction::Or => fold(xs, total, |x, y| x | y),
                }
            }
        }
    )* };
}

integers! { i64 i32 i8 u64 u32 u8 }

macro_rules! floats {
    ($($ty:ty)*) => { $(
        impl Combine for $ty {
            fn combine(reduction: Reduction, xs: &[&[Self]], total: &mut [Self]) {
                // IEEE 754's maximum: NaN if either is, and -0 is less than 0.
                let max = |x: $ty, y: $ty| {
                    if x.is_nan() || !y.is_nan() && x.total_cmp(&y).is_gt() { x } else { y }
                };
                match reduction {
                    Reduction::Max => fold(xs, total, max),
                    Reduction::Min => fold(xs, total, |x, y| -max(-x, -y)),
                    _ => fold(xs, total, |x, y| x + y),
                }
            }
        }
    )* };
}

floats! { f64 f32 }

macro_rules! narrow_floats {
    ($($ty:ty)*) => { $(
        impl Combine for $ty {
            fn combine(reduction: Reduction, xs: &[&[Self]], total: &mut [Self]) {
                let wide: Vec<Vec<f32>> =
                    xs.iter().map(|x| x.iter().map(|x| x.to_f32()).collect()).collect();
                let wide: Vec<&[f32]> = wide.iter().map(Vec::as_slice).collect();
                let mut sum = vec![0.0; total.len()];
                f32::combine(reduction, &wide, &mut sum);
                total.iter_mut().zip(sum).for_each(|(total, sum)| *total = <$ty>::from_f32(sum));
            }
        }
    )* };
}

narrow_floats! { bf16 f16 }

/// A `pred` in memory: 0 or 1.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
struct Pred(u8);

impl Combine for Pred {
    fn combine(reduction: Reduction, xs: &[&[Self]], total: &mut [Self]) {
        match reduction {
            Reduction::Sum | Reduction::Max | Reduction::Or => {
                fold(xs, total, |x, y| Self(x.0 | y.0));
            }
            Reduction::Min | Reduction::And => fold(xs, total, |x, y| Self(x.0 & y.0)),
        }
    }
}

/// Calls a function with the type of a dtype's elements.
macro_rules! with_type {
    ($dtype:expr, $function:ident($($argument:expr),*)) => {
        match $dtype {
            DType::F64 => $function::<f64>($($argument),*),
            DType::F32 => $function::<f32>($($argument),*),
            DType::Bf16 => $function::<bf16>($($argument),*),
            DType::F16 => $function::<f16>($($argument),*),
            DType::I64 => $function::<i64>($($argument),*),
            DType::I32 => $function::<i32>($($argument),*),
            DType::I8 => $function::<i8>($($argument),*),
            DType::U64 => $function::<u64>($($argument),*),
            DType::U32 => $function::<u32>($($argument),*),
            DType::U8 => $function::<u8>($($argument),*),
            DType::Pred => $function::<Pred>($($argument),*),
        }
    };
}

/// Writes the reduction of the operands to all results.
pub(super) fn all_reduce(
    reduction: Reduction,
    dtype: DType,
    operands: &[&[u8]],
    results: Vec<&mut [u8]>,
    pool: &ThreadPool,
) -> Result<(), String> {
    with_type!(dtype, reduce_all(reduction, operands, results, pool))
}

/// Writes piece `i` of the reduction of the operands to result `i`.
pub(super) fn reduce_scatter(
    reduction: Reduction,
    dtype: DType,
    rows: Rows,
    operands: &[&[u8]],
    results: Vec<&mut [u8]>,
    pool: &ThreadPool,
) -> Result<(), String> {
    with_type!(dtype, scatter(reduction, rows, operands, results, pool))
}

fn reduce_all<T: Combine>(
    reduction: Reduction,
    operands: &[&[u8]],
    results: Vec<&mut [u8]>,
    pool: &ThreadPool,
) -> Result<(), String> {
    let (operands, results) = (typed::<T>(operands)?, typed_mut::<T>(results)?);
    let num_elements = operands.first().map_or(0, |x| x.len());
    let num_bytes = num_elements * size_of::<T>() * results.len();
    let mut blocks: Vec<_> = results.into_iter().map(|result| result.chunks_mut(BLOCK)).collect();
    let blocks = (0..num_elements.div_ceil(BLOCK))
        .map(|block| (block * BLOCK, blocks.iter_mut().filter_map(Iterator::next).collect()));
    in_parallel(pool, num_bytes, blocks.collect(), |(from, results): (usize, Vec<&mut [T]>)| {
        let mut results = results.into_iter();
        let Some(total) = results.next() else { return };
        let xs: Vec<&[T]> = operands.iter().map(|x| &x[from..from + total.len()]).collect();
        T::combine(reduction, &xs, total);
        results.for_each(|result| result.copy_from_slice(total));
    });
    Ok(())
}

fn scatter<T: Combine>(
    reduction: Reduction,
    Rows { num_rows, piece }: Rows,
    operands: &[&[u8]],
    results: Vec<&mut [u8]>,
    pool: &ThreadPool,
) -> Result<(), String> {
    let (operands, results) = (typed::<T>(operands)?, typed_mut::<T>(results)?);
    let (num_pieces, num_bytes) = (results.len(), num_rows * piece * size_of::<T>());
    if num_bytes == 0 {
        return Ok(());
    }
    // Whole pieces of several rows, or blocks of one piece.
    let rows_per_task = (BLOCK / piece).max(1);
    let mut tasks = vec![];
    for (position, result) in results.into_iter().enumerate() {
        for (task, rows) in result.chunks_mut(rows_per_task * piece).enumerate() {
            tasks.push((position, task * rows_per_task, rows));
        }
    }
    in_parallel(pool, num_bytes * num_pieces, tasks, |(position, first_row, rows)| {
        for (index, total) in rows.chunks_mut(piece).enumerate() {
            let from = ((first_row + index) * num_pieces + position) * piece;
            for (block, total) in total.chunks_mut(BLOCK).enumerate() {
                let from = from + block * BLOCK;
                let xs: Vec<&[T]> = operands.iter().map(|x| &x[from..from + total.len()]).collect();
                T::combine(reduction, &xs, total);
            }
        }
    });
    Ok(())
}

/// An empty slice of bytes need not be aligned.
fn typed<'a, T: Pod>(operands: &[&'a [u8]]) -> Result<Vec<&'a [T]>, String> {
    let cast = |x: &&'a [u8]| match x.is_empty() {
        true => Ok(&[][..]),
        false => bytemuck::try_cast_slice(x).map_err(|error| error.to_string()),
    };
    operands.iter().map(cast).collect()
}

fn typed_mut<T: Pod>(results: Vec<&mut [u8]>) -> Result<Vec<&mut [T]>, String> {
    let mut typed = Vec::with_capacity(results.len());
    for result in results {
        typed.push(match result.is_empty() {
            true => &mut [][..],
            false => bytemuck::try_cast_slice_mut(result).map_err(|error| error.to_string())?,
        });
    }
    Ok(typed)
}
