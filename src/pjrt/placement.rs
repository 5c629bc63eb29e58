//! Which replicas of a program this process runs, and on which of its devices.

use std::fmt;
use std::sync::Arc;

/// The place of a process among those that run a program together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its index, from 0.
    pub index: usize,
    /// The number of processes.
    pub num_processes: usize,
}

impl Process {
    /// The only process.
    pub const ONLY: Self = Self { index: 0, num_processes: 1 };
}

/// The replicas of a program that run in this process, each with its addressable device. A value
/// that is an argument or a result of the program lies on the same devices.
///
/// Replicas are numbered over all processes; with one process every replica is here.
#[derive(Clone, PartialEq, Eq)]
pub struct Placement {
    num_replicas: usize,
    /// `(replica, index into [`super::Client::devices`])`, in the order in which PJRT takes
    /// arguments.
    pairs: Arc<[(usize, usize)]>,
}

impl Placement {
    pub(super) fn new(
        num_replicas: usize,
        pairs: impl IntoIterator<Item = (usize, usize)>,
    ) -> Self {
        Self { num_replicas, pairs: pairs.into_iter().collect() }
    }

    /// Replicas of the program, in all processes.
    pub fn num_replicas(&self) -> usize {
        self.num_replicas
    }

    /// Replicas that run in this process.
    pub fn num_addressable(&self) -> usize {
        self.pairs.len()
    }

    /// The replicas that run in this process, each with the index of its device in
    /// [`Client::devices`](super::Client::devices).
    pub fn pairs(&self) -> &[(usize, usize)] {
        &self.pairs
    }

    /// The replicas that run in this process.
    pub fn replicas(&self) -> impl Iterator<Item = usize> {
        self.pairs.iter().map(|(replica, _)| *replica)
    }

    /// The place of a replica among those of this process.
    pub(super) fn position(&self, replica: usize) -> Option<usize> {
        match self.pairs.get(replica) {
            // Always so with one process.
            Some((found, _)) if *found == replica => Some(replica),
            _ => self.replicas().position(|found| found == replica),
        }
    }

    /// Equality that usually only compares two pointers.
    pub(super) fn is(&self, other: &Self) -> bool {
        (Arc::ptr_eq(&self.pairs, &other.pairs) && self.num_replicas == other.num_replicas)
            || self == other
    }
}

/// `[2, 0]`: the devices of replicas 0 and 1. Where these are not all replicas in order, they are
/// named: `{4: 2, 5: 0} of 8`.
impl fmt::Debug for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_whole = self.replicas().eq(0..self.num_replicas);
        if is_whole {
            return f.debug_list().entries(self.pairs.iter().map(|(_, device)| device)).finish();
        }
        f.debug_map().entries(self.pairs.iter().copied()).finish()?;
        write!(f, " of {}", self.num_replicas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_numbered_over_all_processes() {
        // The second of two processes; its devices are in another order than its replicas.
        let placement = Placement::new(4, [(2, 1), (3, 0)]);
        assert_eq!((placement.num_replicas(), placement.num_addressable()), (4, 2));
        assert_eq!(
            [0, 1, 2, 3, 4].map(|r| placement.position(r)),
            [None, None, Some(0), Some(1), None]
        );
        assert_eq!(format!("{placement:?}"), "{2: 1, 3: 0} of 4");
        assert_eq!(format!("{:?}", Placement::new(2, [(0, 2), (1, 0)])), "[2, 0]");
    }

    #[test]
    fn equal_devices_of_other_replicas_are_another_placement() {
        let placement = Placement::new(4, [(0, 0), (1, 1)]);
        assert!(placement.is(&placement.clone()));
        assert!(placement.is(&Placement::new(4, [(0, 0), (1, 1)])));
        for other in [Placement::new(4, [(2, 0), (3, 1)]), Placement::new(2, [(0, 0), (1, 1)])] {
            assert!(!placement.is(&other), "{other:?}");
        }
    }
}
