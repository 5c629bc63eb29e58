//! The algorithms by which a program sums over replicas.

use std::fmt;

use super::{MIN_WRITTEN_ELEMENTS, ReplicaSum};
use crate::Algorithm;

/// Most sizes from which another algorithm is taken.
const MAX_CHANGES: usize = 8;

/// Which sums over replicas are written as the messages of an algorithm. The backend computes the
/// others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplicaSums {
    /// None.
    #[default]
    Direct,
    /// All of at least 1024 elements.
    By(Algorithm),
    /// Those over groups of one size, by the number of their bytes.
    BySize(SumsBySize),
}

/// The algorithm of a sum by the number of its bytes, for groups of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumsBySize {
    group_size: usize,
    /// From so many bytes on, ascending; `None` is for the backend.
    changes: [Option<(u64, Option<Algorithm>)>; MAX_CHANGES],
}

impl SumsBySize {
    /// `changes` are ascending: from so many bytes on an algorithm, `None` for the backend. Those
    /// after the 8th are left out.
    pub fn new(group_size: usize, changes: &[(u64, Option<Algorithm>)]) -> Self {
        let mut kept = [None; MAX_CHANGES];
        kept.iter_mut().zip(changes).for_each(|(kept, change)| *kept = Some(*change));
        Self { group_size, changes: kept }
    }

    fn changes(&self) -> impl Iterator<Item = (u64, Option<Algorithm>)> {
        self.changes.iter().flatten().copied()
    }
}

impl ReplicaSums {
    /// The algorithm of a sum; `None` leaves it to the backend.
    pub fn algorithm(&self, sum: ReplicaSum) -> Option<Algorithm> {
        match self {
            _ if sum.num_elements < MIN_WRITTEN_ELEMENTS => None,
            Self::Direct => None,
            Self::By(algorithm) => Some(*algorithm),
            Self::BySize(sizes) if sizes.group_size == sum.group_size => {
                let below = sizes.changes().take_while(|(from, _)| *from <= sum.bytes as u64);
                below.last()?.1
            }
            Self::BySize(_) => None,
        }
    }

    /// `true` if some may be hierarchical.
    pub fn is_hierarchical(&self) -> bool {
        let is_it = |algorithm| algorithm == Some(Algorithm::Hierarchical);
        match self {
            Self::Direct => false,
            Self::By(algorithm) => is_it(Some(*algorithm)),
            Self::BySize(sizes) => sizes.changes().any(|(_, algorithm)| is_it(algorithm)),
        }
    }
}

/// `ring`, or `direct, ring from 65536 bytes`.
impl fmt::Display for ReplicaSums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |algorithm: Option<Algorithm>| algorithm.map_or("direct", Algorithm::name);
        match self {
            Self::Direct => f.write_str(name(None)),
            Self::By(algorithm) => f.write_str(name(Some(*algorithm))),
            Self::BySize(sizes) => {
                for (index, (from, algorithm)) in sizes.changes().enumerate() {
                    let separator = if index > 0 { ", " } else { "" };
                    write!(f, "{separator}{}", name(algorithm))?;
                    if from > 0 {
                        write!(f, " from {from} bytes")?;
                    }
                }
                write!(f, " over {} replicas", sizes.group_size)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_goes_by_the_algorithm_of_its_size() {
        let changes = [(0, None), (8192, Some(Algorithm::Tree)), (1 << 20, Some(Algorithm::Ring))];
        let sums = ReplicaSums::BySize(SumsBySize::new(4, &changes));
        let of = |bytes: usize, group_size| {
            sums.algorithm(ReplicaSum { num_elements: bytes / 4, bytes, group_size })
        };
        assert_eq!(of(8191, 4), None);
        assert_eq!(of(8192, 4), Some(Algorithm::Tree));
        assert_eq!(of(1 << 30, 4), Some(Algorithm::Ring));
        assert_eq!(of(1 << 30, 2), None, "it says nothing of other groups");
        assert_eq!(
            ReplicaSums::By(Algorithm::Ring).algorithm(ReplicaSum {
                num_elements: 1023,
                bytes: 4092,
                group_size: 4,
            }),
            None
        );
        let words = "direct, tree from 8192 bytes, ring from 1048576 bytes over 4 replicas";
        assert_eq!(sums.to_string(), words);
    }
}
