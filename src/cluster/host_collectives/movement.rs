//! Collectives that move values without changing them.

use super::compute::KnownOperand;
use crate::pjrt::{CollectiveKind, HostTensor};

/// Writes the result at `position` of a group from the operands of all positions, which are of type
/// `ty`.
pub(super) fn write(
    kind: &CollectiveKind,
    ty: &HostTensor,
    operands: &[KnownOperand<'_>],
    position: usize,
    result: &mut [u8],
) {
    match kind {
        CollectiveKind::AllGather { dim } => {
            let operands: Vec<_> = operands.iter().map(KnownOperand::bytes).collect();
            all_gather(ty, *dim, &operands, result);
        }
        CollectiveKind::AllToAll { split_dim, concat_dim } => {
            all_to_all(ty, *split_dim, *concat_dim, operands, position, result);
        }
        CollectiveKind::CollectivePermute { pairs } => {
            match pairs.iter().find(|(_, target)| *target == position) {
                Some((source, _)) => result.copy_from_slice(operands[*source].bytes()),
                None => result.fill(0),
            }
        }
        CollectiveKind::AllReduce(_) | CollectiveKind::ReduceScatter { .. } => {
            unreachable!("computed by `reduce`")
        }
    }
}

fn all_gather(ty: &HostTensor, dim: usize, operands: &[&[u8]], result: &mut [u8]) {
    let row = ty.dims[dim..].iter().product::<usize>() * ty.dtype.size_bytes();
    if row == 0 {
        return;
    }
    for (index, rows) in result.chunks_exact_mut(row * operands.len()).enumerate() {
        for (piece, operand) in rows.chunks_exact_mut(row).zip(operands) {
            piece.copy_from_slice(&operand[index * row..][..row]);
        }
    }
}

/// Copies runs of elements that are neighbours in both the operand and the result: the dims from
/// the later of the two on.
fn all_to_all(
    ty: &HostTensor,
    split_dim: usize,
    concat_dim: usize,
    operands: &[KnownOperand<'_>],
    position: usize,
    result: &mut [u8],
) {
    let num_pieces = operands.len();
    let mut piece = ty.dims.clone();
    piece[split_dim] /= num_pieces;
    let mut joined = piece.clone();
    joined[concat_dim] *= num_pieces;
    let last = split_dim.max(concat_dim);
    let size = |dims: &[usize]| dims[last..].iter().product::<usize>() * ty.dtype.size_bytes();
    let run = size(&piece);
    let num_runs: usize = piece[..last].iter().product();
    // Bytes from the start of a tensor with these dims to run `index`, in the piece with number
    // `shift` along `cut`.
    let offset = |dims: &[usize], mut index: usize, cut: usize, shift: usize| {
        let (mut offset, mut stride) = (0, size(dims));
        if cut == last {
            offset += shift * run;
        }
        for dim in (0..last).rev() {
            let mut coordinate = index % piece[dim];
            index /= piece[dim];
            if cut == dim {
                coordinate += shift * piece[dim];
            }
            offset += coordinate * stride;
            stride *= dims[dim];
        }
        offset
    };
    for (source, operand) in operands.iter().enumerate() {
        let (dims, shift) = match operand {
            KnownOperand::Whole(_) => (&ty.dims, position),
            KnownOperand::Piece(_) | KnownOperand::Absent => (&piece, 0),
        };
        for index in 0..num_runs {
            let from = offset(dims, index, split_dim, shift);
            let to = offset(&joined, index, concat_dim, source);
            result[to..to + run].copy_from_slice(&operand.bytes()[from..from + run]);
        }
    }
}
