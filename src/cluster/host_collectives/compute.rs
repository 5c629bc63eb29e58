//! The results of a collective from the operands of all replicas of a group, and the messages
//! between its processes.

use std::collections::HashMap;
use std::sync::Arc;

use hlo::{DType, Reduction};
use rayon::ThreadPool;
use rayon::prelude::*;

use super::call::ReplicaCall;
use super::frame::{MAX_PAYLOAD_BYTES, Payload, PayloadBuffers};
use super::reduce::{ReducedPiece, Rows};
use super::span::{GroupSpan, Piece, Plan, Segment};
use super::{movement, reduce};
use crate::pjrt::{CallBuffers, CollectiveKind, HostTensor};

/// Less than this many bytes of results are written by one thread: others take longer to wake up.
const MIN_PARALLEL_BYTES: usize = 1 << 18;

/// Bytes that one task copies.
const BLOCK_BYTES: usize = 1 << 18;

/// Payloads by process.
pub(super) type Payloads = HashMap<usize, Payload>;

/// What is known of a position's operand.
#[derive(Clone, Copy, Debug)]
pub(super) enum KnownOperand<'a> {
    /// All of it.
    Whole(&'a [u8]),
    /// The piece that goes to the position whose result is computed.
    Piece(&'a [u8]),
    /// The result does not depend on it.
    Absent,
}

impl<'a> KnownOperand<'a> {
    pub fn bytes(&self) -> &'a [u8] {
        match self {
            Self::Whole(bytes) | Self::Piece(bytes) => bytes,
            Self::Absent => &[],
        }
    }
}

/// Checks that the results of a call have the types that its collective gives.
pub(super) fn check(call: &impl ReplicaCall) -> Result<(), String> {
    let site = call.site();
    let (index, name) = (site.index, site.kind.name());
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

/// What the processes of a group exchange, from the calls of all replicas here.
///
/// # Errors
/// If the calls differ, or a message would be too long.
pub(super) fn plan(calls: &[impl ReplicaCall], span: GroupSpan) -> Result<Plan, String> {
    let Some((first, others)) = calls.split_first() else {
        return Err("a collective has no calls".to_owned());
    };
    for other in others {
        let is_same =
            other.site() == first.site() && other.operand_types().eq(first.operand_types());
        if !is_same {
            let (index, one, two) = (first.site().index, first.replica(), other.replica());
            return Err(format!("collective {index} differs between replicas {one} and {two}"));
        }
    }
    let plan = Plan::new(first.site().clone(), first.operand_types().cloned().collect(), span);
    let own = plan.span.own;
    let longest = plan.span.others().map(|(other, _)| plan.operands(own, other).1).max();
    if longest.is_some_and(|num_bytes| num_bytes > MAX_PAYLOAD_BYTES) {
        return Err(format!(
            "collective {} ({}) would send messages of more than {MAX_PAYLOAD_BYTES} bytes",
            plan.site.index,
            plan.site.kind.name()
        ));
    }
    Ok(plan)
}

/// The first message to a process of the span.
pub(super) fn pack(
    calls: &mut [impl ReplicaCall],
    plan: &Plan,
    to: usize,
    buffers: &Arc<PayloadBuffers>,
    pool: &ThreadPool,
) -> Payload {
    let positions = &plan.span.own().positions;
    let memories: Vec<CallBuffers<'_>> = calls.iter_mut().map(ReplicaCall::buffers).collect();
    let operands: HashMap<_, _> =
        positions.iter().zip(&memories).map(|(position, of)| (*position, &of.operands)).collect();
    let (segments, num_bytes) = plan.operands(plan.span.own, to);
    let mut payload = Payload::new(num_bytes, buffers);
    let (mut copies, mut cuts) = (vec![], vec![]);
    for (segment, place) in segments.iter().zip(places(&segments, payload.bytes_mut())) {
        let operand = operands[&segment.position][segment.operand];
        match &segment.piece {
            Piece::Whole => copies.extend(blocks(place, operand)),
            Piece::Slice(range) => copies.extend(blocks(place, &operand[range.clone()])),
            Piece::Cut { rows, position } => {
                let size = plan.types[segment.operand].dtype.size_bytes();
                cuts.push((rows, operand, size, *position, place));
            }
        }
    }
    in_parallel(pool, num_bytes, copies, |(to, from)| to.copy_from_slice(from));
    in_parallel(pool, num_bytes, cuts, |(rows, operand, size, position, place)| {
        rows.copy_piece(operand, size, position, place);
    });
    payload
}

/// What one task copies.
fn blocks<'a>(to: &'a mut [u8], from: &'a [u8]) -> impl Iterator<Item = (&'a mut [u8], &'a [u8])> {
    to.chunks_mut(BLOCK_BYTES).zip(from.chunks(BLOCK_BYTES))
}

/// The memory of each segment, which are in ascending order.
fn places<'p>(segments: &[Segment], mut rest: &'p mut [u8]) -> Vec<&'p mut [u8]> {
    let mut at = 0;
    let mut places = Vec::with_capacity(segments.len());
    for segment in segments {
        let (_, after) = rest.split_at_mut(segment.bytes.start - at);
        let (place, after) = after.split_at_mut(segment.bytes.len());
        places.push(place);
        (rest, at) = (after, segment.bytes.end);
    }
    places
}

/// Writes the results of all calls from their operands and the first messages of the others. With
/// slices only this process's slice of them, which is returned: the second message.
pub(super) fn combine(
    calls: &mut [impl ReplicaCall],
    plan: &Plan,
    received: &Payloads,
    buffers: &Arc<PayloadBuffers>,
    pool: &ThreadPool,
) -> Result<Option<Payload>, String> {
    let Plan { site, types, span, is_sliced } = plan;
    let own = span.own;
    let mut memories: Vec<CallBuffers<'_>> = calls.iter_mut().map(ReplicaCall::buffers).collect();
    // What came from others: by operand and position, the pieces in the order of the positions
    // here.
    let mut remote: HashMap<(usize, usize), Vec<&[u8]>> = HashMap::new();
    for (index, part) in span.others() {
        let Some(payload) = received.get(&part.process) else { continue };
        for segment in plan.operands(index, own).0 {
            let pieces = remote.entry((segment.operand, segment.position)).or_default();
            pieces.push(&payload.bytes()[segment.bytes]);
        }
    }
    let (total_segments, total_bytes) = plan.totals(own);
    let mut totals = is_sliced.then(|| Payload::new(total_bytes, buffers));
    let totals_memory = totals.as_mut().map_or(&mut [][..], Payload::bytes_mut);
    let mut total_places = match is_sliced {
        true => places(&total_segments, totals_memory),
        false => vec![],
    }
    .into_iter();
    for (index, ty) in types.iter().enumerate() {
        let mut local = vec![None; site.group_size];
        for (position, of) in span.own().positions.iter().zip(&memories) {
            local[*position] = Some(of.operands[index]);
        }
        let results = memories.iter_mut().map(|of| &mut *of.results[index]);
        // The operands from which the `place`th replica here gets its result.
        let operands = |place: usize| {
            let operand = |position: usize| match (local[position], remote.get(&(index, position)))
            {
                (Some(bytes), _) => KnownOperand::Whole(bytes),
                (None, None) => KnownOperand::Absent,
                (None, Some(pieces)) => match &site.kind {
                    CollectiveKind::ReduceScatter { .. } | CollectiveKind::AllToAll { .. } => {
                        KnownOperand::Piece(pieces[place])
                    }
                    _ => KnownOperand::Whole(pieces[0]),
                },
            };
            (0..site.group_size).map(operand).collect::<Vec<_>>()
        };
        match &site.kind {
            CollectiveKind::AllReduce(reduction) if *is_sliced => {
                let slice = plan.slice(ty, own);
                let all = operands(0);
                let of_slice = |position: usize| match local[position] {
                    Some(bytes) => &bytes[slice.clone()],
                    None => all[position].bytes(),
                };
                let operands: Vec<_> = (0..site.group_size).map(of_slice).collect();
                let results = results.map(|result| &mut result[slice.clone()]);
                let results = results.chain(total_places.next()).collect();
                reduce::all_reduce(*reduction, ty.dtype, &operands, results, pool)?;
            }
            CollectiveKind::AllReduce(reduction) => {
                let operands: Vec<_> = operands(0).iter().map(KnownOperand::bytes).collect();
                reduce::all_reduce(*reduction, ty.dtype, &operands, results.collect(), pool)?;
            }
            CollectiveKind::ReduceScatter { dim, reduction } => {
                let rows = Rows::of(ty, *dim, site.group_size);
                let pieces = span.own().positions.iter().zip(results).enumerate();
                let pieces = pieces.map(|(place, (position, result))| ReducedPiece {
                    position: *position,
                    operands: operands(place),
                    result,
                });
                reduce::reduce_scatter(*reduction, ty.dtype, rows, pieces.collect(), pool)?;
            }
            kind => {
                let tasks = span.own().positions.iter().zip(results).enumerate();
                let num_bytes = ty.num_bytes() * span.own().positions.len();
                in_parallel(pool, num_bytes, tasks.collect(), |(place, (position, result))| {
                    movement::write(kind, ty, &operands(place), *position, result);
                });
            }
        }
    }
    Ok(totals)
}

/// Writes the slices of the others, their second messages, to the results of all calls.
pub(super) fn finish(
    calls: &mut [impl ReplicaCall],
    plan: &Plan,
    received: &Payloads,
    pool: &ThreadPool,
) {
    let mut memories: Vec<CallBuffers<'_>> = calls.iter_mut().map(ReplicaCall::buffers).collect();
    let messages = plan.span.parts.iter().enumerate().map(|(index, part)| {
        let payload = received.get(&part.process).filter(|_| index != plan.span.own);
        (plan.totals(index).0, payload)
    });
    let messages: Vec<_> = messages.collect();
    let mut copies = vec![];
    for of in &mut memories {
        for (operand, result) in of.results.iter_mut().enumerate() {
            let mut rest = &mut **result;
            // The slices of the processes, in order.
            for (segments, payload) in &messages {
                let bytes = segments[operand].bytes.clone();
                let (place, after) = rest.split_at_mut(bytes.len());
                rest = after;
                if let Some(payload) = payload {
                    copies.extend(blocks(place, &payload.bytes()[bytes]));
                }
            }
        }
    }
    let num_bytes = copies.iter().map(|(to, _)| to.len()).sum();
    in_parallel(pool, num_bytes, copies, |(to, from)| to.copy_from_slice(from));
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
