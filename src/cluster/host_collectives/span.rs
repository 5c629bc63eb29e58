//! Which process holds which replicas of a group, and which bytes go from one process to another.
//!
//! Two schemes reduce. *Whole*: every process gets all operands and computes its own results, one
//! message each way. *Sliced*: the elements are cut into one slice per process, which gets that
//! slice of all operands, reduces it, and sends the result to the others. Less is sent and added,
//! but each pair of processes exchanges two messages, the second after the first.

use std::ops::Range;

use super::reduce::Rows;
use crate::pjrt::{CollectiveKind, CollectiveSite, HostTensor};

/// An all_reduce of fewer bytes than this, counted over the whole group, is exchanged whole. Over
/// the loopback interface, the second message costs more up to about this size, among 2 and 4
/// processes.
const MIN_SLICED_BYTES: usize = 1 << 18;

/// Where the replicas of a group are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupSpan {
    /// The processes that hold some, by index.
    pub parts: Vec<Part>,
    /// The index of this process in `parts`.
    pub own: usize,
}

/// The replicas of a group that one process holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub process: usize,
    /// Their positions in the group, ascending.
    pub positions: Vec<usize>,
}

impl GroupSpan {
    /// Where the replicas of a group are if each process holds as many as this one, which are
    /// `local`.
    ///
    /// # Errors
    /// If `local` is not what one of several processes holds, or the group does not fit.
    pub fn of(
        group: &[usize],
        num_replicas: usize,
        local: impl Iterator<Item = usize>,
    ) -> Result<Self, String> {
        let local: Vec<usize> = local.collect();
        let (first, count) = (local.first().copied().unwrap_or(0), local.len());
        let is_contiguous = local.iter().copied().eq(first..first + count);
        let is_share = count > 0
            && first.is_multiple_of(count)
            && num_replicas.is_multiple_of(count)
            && first + count <= num_replicas;
        if !is_contiguous || !is_share {
            return Err(format!(
                "this process holds replicas {local:?} of {num_replicas}, but all processes must \
                 hold the same number, one process after the other"
            ));
        }
        if let Some(other) = group.iter().find(|replica| **replica >= num_replicas) {
            return Err(format!("a group has replica {other} of {num_replicas}"));
        }
        let mut parts: Vec<Part> = vec![];
        for (position, replica) in group.iter().enumerate() {
            let process = replica / count;
            match parts.iter_mut().find(|part| part.process == process) {
                Some(part) => part.positions.push(position),
                None => parts.push(Part { process, positions: vec![position] }),
            }
        }
        parts.sort_by_key(|part| part.process);
        let own = parts.iter().position(|part| part.process == first / count);
        let own = own.ok_or_else(|| format!("no replica of {group:?} is in this process"))?;
        Ok(Self { parts, own })
    }

    pub fn is_local(&self) -> bool {
        self.parts.len() == 1
    }

    pub fn own(&self) -> &Part {
        &self.parts[self.own]
    }

    /// The other processes.
    pub fn others(&self) -> impl Iterator<Item = (usize, &Part)> {
        self.parts.iter().enumerate().filter(|(index, _)| *index != self.own)
    }
}

/// What the processes of a group exchange for one collective.
#[derive(Debug)]
pub(super) struct Plan {
    pub site: CollectiveSite,
    /// The types of the operands.
    pub types: Vec<HostTensor>,
    pub span: GroupSpan,
    /// `true` for the scheme of slices.
    pub is_sliced: bool,
}

/// A part of an operand, or of a result in the second message, and where it is in a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// The index of the operand.
    pub operand: usize,
    /// The position that holds the operand. Of no meaning in the second message.
    pub position: usize,
    pub piece: Piece,
    /// The place in the payload.
    pub bytes: Range<usize>,
}

/// A part of an operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Whole,
    /// A range of its bytes.
    Slice(Range<usize>),
    /// What goes to a position of the group.
    Cut {
        rows: Rows,
        position: usize,
    },
}

impl Plan {
    pub fn new(site: CollectiveSite, types: Vec<HostTensor>, span: GroupSpan) -> Self {
        let is_sliced = match site.kind {
            CollectiveKind::AllReduce(_) if !span.is_local() => {
                let num_bytes: usize = types.iter().map(HostTensor::num_bytes).sum();
                num_bytes.saturating_mul(site.group_size) >= MIN_SLICED_BYTES
            }
            _ => false,
        };
        Self { site, types, span, is_sliced }
    }

    /// `true` if the first message is the same to all processes.
    pub fn sends_same_operands(&self) -> bool {
        match self.site.kind {
            CollectiveKind::AllReduce(_) => !self.is_sliced,
            CollectiveKind::AllGather { .. } => true,
            _ => false,
        }
    }

    /// The segments of the first message from one process to another, and the length of its
    /// payload. Both by index in the span.
    pub fn operands(&self, from: usize, to: usize) -> (Vec<Segment>, usize) {
        let mut layout = Layout::default();
        let to_positions = &self.span.parts[to].positions;
        for (operand, ty) in self.types.iter().enumerate() {
            for position in &self.span.parts[from].positions {
                let mut add = |piece, num_bytes| layout.add(operand, *position, piece, num_bytes);
                match &self.site.kind {
                    CollectiveKind::AllReduce(_) if self.is_sliced => {
                        let slice = self.slice(ty, to);
                        let num_bytes = slice.len();
                        add(Piece::Slice(slice), num_bytes);
                    }
                    CollectiveKind::AllReduce(_) | CollectiveKind::AllGather { .. } => {
                        add(Piece::Whole, ty.num_bytes());
                    }
                    CollectiveKind::ReduceScatter { dim, .. }
                    | CollectiveKind::AllToAll { split_dim: dim, .. } => {
                        let rows = Rows::of(ty, *dim, self.site.group_size);
                        for to in to_positions {
                            let piece = Piece::Cut { rows, position: *to };
                            add(piece, rows.num_elements() * ty.dtype.size_bytes());
                        }
                    }
                    CollectiveKind::CollectivePermute { pairs } => {
                        let is_needed = |(source, target)| {
                            source == *position && to_positions.contains(&target)
                        };
                        if pairs.iter().copied().any(is_needed) {
                            add(Piece::Whole, ty.num_bytes());
                        }
                    }
                }
            }
        }
        (layout.segments, layout.num_bytes)
    }

    /// The segments of the second message, which a process sends to all others, and the length of
    /// its payload.
    pub fn totals(&self, from: usize) -> (Vec<Segment>, usize) {
        let mut layout = Layout::default();
        for (operand, ty) in self.types.iter().enumerate() {
            let slice = self.slice(ty, from);
            let num_bytes = slice.len();
            layout.add(operand, 0, Piece::Slice(slice), num_bytes);
        }
        (layout.segments, layout.num_bytes)
    }

    /// The bytes of an operand that a process of the span reduces.
    pub fn slice(&self, ty: &HostTensor, index: usize) -> Range<usize> {
        let (size, num_parts) = (ty.dtype.size_bytes(), self.span.parts.len());
        let num_elements: usize = ty.dims.iter().product();
        // Without overflow, and no two differ by more than an element.
        let (each, rest) = (num_elements / num_parts, num_elements % num_parts);
        let from = |index: usize| (each * index + rest.min(index)) * size;
        from(index)..from(index + 1)
    }
}

#[derive(Default)]
struct Layout {
    segments: Vec<Segment>,
    num_bytes: usize,
}

impl Layout {
    /// Each segment begins at a multiple of 8 bytes, which is good for every dtype.
    fn add(&mut self, operand: usize, position: usize, piece: Piece, num_bytes: usize) {
        let from = self.num_bytes.next_multiple_of(8);
        self.num_bytes = from + num_bytes;
        self.segments.push(Segment { operand, position, piece, bytes: from..self.num_bytes });
    }
}

#[cfg(test)]
mod tests {
    use hlo::{DType, Reduction};

    use super::*;

    #[test]
    fn a_group_is_spread_over_the_processes_that_hold_its_replicas() {
        let span = GroupSpan::of(&[5, 0, 4, 1], 8, 4..6).unwrap();
        let part = |process, positions: &[usize]| Part { process, positions: positions.to_vec() };
        assert_eq!(span, GroupSpan { parts: vec![part(0, &[1, 3]), part(2, &[0, 2])], own: 1 });
        assert!(!span.is_local());
        assert!(GroupSpan::of(&[5, 4], 8, 4..6).unwrap().is_local());
        let replicas = |replicas: &'static [usize]| replicas.iter().copied();
        for (group, num_replicas, local, expected) in [
            (&[0, 1][..], 4, &[0, 2][..], "one process after the other"),
            (&[0, 1], 4, &[1, 2], "one process after the other"),
            (&[0, 1], 5, &[0, 1], "one process after the other"),
            (&[0, 1], 4, &[], "one process after the other"),
            (&[0, 4], 4, &[0, 1], "replica 4 of 4"),
            (&[2, 3], 4, &[0, 1], "in this process"),
        ] {
            let error = GroupSpan::of(group, num_replicas, replicas(local)).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn slices_and_pieces_cover_an_operand_once() {
        let site =
            |kind| CollectiveSite { index: 0, kind, groups: (0..6).collect(), group_size: 6 };
        let span = GroupSpan::of(&[0, 1, 2, 3, 4, 5], 6, 2..4).unwrap();
        let types: Vec<_> = [vec![6, 20_003], vec![6], vec![]]
            .map(|dims| HostTensor { dtype: DType::Bf16, dims })
            .into();
        let kind = CollectiveKind::AllReduce(Reduction::Sum);
        let plan = Plan::new(site(kind), types.clone(), span.clone());
        assert!(plan.is_sliced);
        for ty in &types {
            let slices: Vec<_> = (0..3).map(|index| plan.slice(ty, index)).collect();
            assert_eq!((slices[0].start, slices[2].end), (0, ty.num_bytes()));
            assert!(slices.windows(2).all(|two| two[0].end == two[1].start));
        }
        // Operands of two replicas, each with slices of 80,012, 4 and 2 bytes.
        let (segments, num_bytes) = plan.operands(1, 0);
        let bytes: Vec<_> = segments.iter().map(|segment| segment.bytes.clone()).collect();
        let expected = [
            0..80_012,
            80_016..160_028,
            160_032..160_036,
            160_040..160_044,
            160_048..160_050,
            160_056..160_058,
        ];
        assert_eq!((&bytes[..], num_bytes), (&expected[..], 160_058));
        let kind = CollectiveKind::ReduceScatter { dim: 0, reduction: Reduction::Sum };
        let plan = Plan::new(site(kind), types[..2].to_vec(), span.clone());
        let positions: Vec<_> = plan.operands(1, 2).0.into_iter().map(|x| x.position).collect();
        assert_eq!(positions, [2, 2, 3, 3, 2, 2, 3, 3]);
        let kind = CollectiveKind::CollectivePermute { pairs: vec![(2, 0), (2, 1), (3, 5)] };
        let plan = Plan::new(site(kind), types[..1].to_vec(), span);
        assert_eq!(plan.operands(1, 0).1, types[0].num_bytes());
        assert_eq!(plan.operands(1, 2).1, types[0].num_bytes());
        assert_eq!(plan.operands(0, 1), (vec![], 0));
    }
}
