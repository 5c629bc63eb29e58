//! The results of a collective from the operands of all replicas of a group.

use hlo::{DType, Reduction};
use rayon::ThreadPool;
use rayon::prelude::*;

use super::{movement, reduce};
use crate::pjrt::{CallBuffers, CollectiveKind, HostCall, HostTensor};

/// Less than this many bytes of results are written by one thread: others take longer to wake up.
const MIN_PARALLEL_BYTES: usize = 1 << 18;

/// Checks that the results of a call have the types that its collective gives, and that all of its group are in this
/// process.
pub(super) fn check(call: &HostCall) -> Result<(), String> {
    let site = call.site();
    let (index, name) = (site.index, site.kind.name());
    let is_here = |replica: &&usize| !call.placement().replicas().any(|here| here == **replica);
    if let Some(missing) = site.groups.iter().find(is_here) {
        return Err(format!(
            "collective {index} ({name}): replica {missing} is not in this process"
        ));
    }
    let expected: Option<Vec<_>> =
        call.operand_types().map(|x| result_type(&site.kind, site.group_size, x)).collect();
    let found: Vec<_> = call.result_types().cloned().collect();
    if expected.as_ref() != Some(&found) {
        let operands: Vec<_> = call.operand_types().collect();
        return Err(format!("collective {index} ({name}): results {found:?} of {operands:?}"));
    }
    Ok(())
}

/// The type of the result, if the collective can be applied to the operand.
fn result_type(kind: &CollectiveKind, group_size: usize, x: &HostTensor) -> Option<HostTensor> {
    let mut result = x.clone();
    let mut divide = |dim: usize| {
        let size = result.dims.get_mut(dim).filter(|size| size.is_multiple_of(group_size))?;
        *size /= group_size;
        Some(())
    };
    match kind {
        CollectiveKind::AllReduce(reduction) => can_reduce(*reduction, x.dtype)?,
        CollectiveKind::AllGather { dim } => *result.dims.get_mut(*dim)? *= group_size,
        CollectiveKind::ReduceScatter { dim, reduction } => {
            can_reduce(*reduction, x.dtype)?;
            divide(*dim)?;
        }
        CollectiveKind::AllToAll { split_dim, concat_dim } => {
            divide(*split_dim)?;
            *result.dims.get_mut(*concat_dim)? *= group_size;
        }
        CollectiveKind::CollectivePermute { .. } => {}
    }
    Some(result)
}

fn can_reduce(reduction: Reduction, dtype: DType) -> Option<()> {
    let is_bitwise = matches!(reduction, Reduction::And | Reduction::Or);
    (!is_bitwise || !dtype.is_float()).then_some(())
}

/// Writes the results of all calls of a group, given by position.
pub(super) fn run(calls: &mut [HostCall], pool: &ThreadPool) -> Result<(), String> {
    let Some((first, others)) = calls.split_first() else { return Ok(()) };
    for other in others {
        let is_same =
            other.site() == first.site() && other.operand_types().eq(first.operand_types());
        if !is_same {
            let (index, one, two) = (first.site().index, first.replica(), other.replica());
            return Err(format!("collective {index} differs between replicas {one} and {two}"));
        }
    }
    let (site, types) = (first.site().clone(), first.operand_types().cloned().collect::<Vec<_>>());
    let mut memories: Vec<CallBuffers<'_>> = calls.iter_mut().map(HostCall::buffers).collect();
    for (index, ty) in types.iter().enumerate() {
        let operands: Vec<&[u8]> = memories.iter().map(|of| of.operands[index]).collect();
        let results: Vec<&mut [u8]> =
            memories.iter_mut().map(|of| &mut *of.results[index]).collect();
        match &site.kind {
            CollectiveKind::AllReduce(reduction) => {
                reduce::all_reduce(*reduction, ty.dtype, &operands, results, pool)?;
            }
            CollectiveKind::ReduceScatter { dim, reduction } => {
                let rows = reduce::Rows::of(ty, *dim, site.group_size);
                reduce::reduce_scatter(*reduction, ty.dtype, rows, &operands, results, pool)?;
            }
            kind => in_parallel(
                pool,
                ty.num_bytes() * site.group_size,
                results.into_iter().enumerate().collect(),
                |(position, result)| movement::write(kind, ty, &operands, position, result),
            ),
        }
    }
    Ok(())
}

/// Runs `work` on each task, in the pool if there is enough to do.
pub(super) fn in_parallel<T: Send>(
    pool: &ThreadPool,
    num_bytes: usize,
    tasks: Vec<T>,
    work: impl Fn(T) + Send + Sync,
) {
    if num_bytes < MIN_PARALLEL_BYTES || tasks.len() < 2 {
        tasks.into_iter().for_each(work);
    } else {
        pool.install(|| tasks.into_par_iter().for_each(work));
    }
}
