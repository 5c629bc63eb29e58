//! Random bits.

use hlo::{DType, Threefry};
use kernels::{Pool, RandomBits};

use super::{elements, elements_mut};
use crate::pjrt::KernelCall;

/// Computes the words of a key and of a grid of counters.
pub(super) fn run(
    pool: &Pool<'_>,
    threefry: &Threefry,
    call: &mut KernelCall<'_>,
) -> Result<(), String> {
    let Threefry { dims, strides, num_words } = threefry;
    if call.operand_types().chain(call.result_types()).any(|ty| ty.dtype != DType::U32) {
        return Err("random bits are u32".to_owned());
    }
    let mut buffers = call.buffers();
    let words: Result<Vec<&[u32]>, _> =
        buffers.operands.iter().map(|operand| elements(operand)).collect();
    let words: [&[u32]; 4] =
        words?.try_into().map_err(|_| "random bits have four operands".to_owned())?;
    let num_streams = words.iter().map(|words| words.len()).max().unwrap_or(1);
    let is_given = |words: &&[u32]| words.len() == 1 || words.len() == num_streams;
    let size = dims.iter().try_fold(num_streams, |size, dim| size.checked_mul(*dim));
    let mut results = buffers.results.iter_mut().map(|result| elements_mut::<u32>(result));
    let (first, second) = (results.next(), results.next());
    let (first, second) = (first.ok_or("no result")??, second.transpose()?.unwrap_or_default());
    let fits = words.iter().all(is_given)
        && strides.len() == dims.len().saturating_sub(1)
        && Some(first.len()) == size
        && second.len() == first.len() * (num_words - 1);
    if !fits || results.next().is_some() {
        return Err(format!("the operands and results are not those of {threefry:?}"));
    }
    RandomBits { words, dims, strides }.run(pool, first, second);
    Ok(())
}
