//! The lockstep proof: that replicas which hold the same piece of the state hold the same bits.

use std::collections::BTreeMap;

use hlo::Literal;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::processes::Processes;
use super::{Error, Trainer};
use crate::pjrt::{Arg, Buffers};
use crate::step::{FINGERPRINTS, MAX, MIN};

/// Replicas that should hold the same piece of a leaf and do not, as one process sees them.
#[derive(Serialize, Deserialize)]
struct Difference {
    /// The leaf's index in the state.
    leaf: usize,
    /// The group's index among those that hold the leaf alike.
    group: usize,
    /// The fingerprint on each replica of the group in this process.
    prints: Vec<(usize, u32)>,
}

impl Trainer {
    /// Compares the replicas that hold the same piece of each leaf. A shard that only one replica
    /// holds has nothing to be compared with.
    ///
    /// # Errors
    /// [`Error::LockstepLost`] with the first leaf that differs and the replicas on which it
    /// differs.
    pub fn prove_lockstep(&self) -> Result<(), Error> {
        self.prove_among(Processes::default(), ()).map(drop)
    }

    /// [`Self::prove_lockstep`] with the replicas of all processes. They tell each other `beside`
    /// in the same messages; returns what all have told, in their order.
    pub(super) fn prove_among<T: Serialize + DeserializeOwned>(
        &self,
        processes: Processes<'_>,
        beside: T,
    ) -> Result<Vec<T>, Error> {
        let differing = self.first_difference()?;
        // Each process sees the groups that it has replicas in.
        let told = processes.gather("proof", (differing, beside))?;
        let (differing, beside): (Vec<_>, Vec<_>) = told.into_iter().unzip();
        let place = |found: &Difference| (found.leaf, found.group);
        let Some(first) = differing.iter().flatten().map(place).min() else { return Ok(beside) };
        let of_group = differing.into_iter().flatten().filter(|found| place(found) == first);
        let prints: Vec<_> = of_group.flat_map(|found| found.prints).collect();
        Err(Error::LockstepLost {
            step: self.steps_taken(),
            leaf: self.state.specs().paths().nth(first.0).unwrap_or_default().to_owned(),
            replicas: odd_ones_out(&prints),
        })
    }

    /// The first leaf with other bits on some replicas of this process than on the rest of their
    /// group.
    fn first_difference(&self) -> Result<Option<Difference>, Error> {
        let proof = self.programs.proof.get()?;
        let mut results = proof.call(self.state.leaves().map(Arg::Borrow), |_| None)?.results;
        let fingerprints = results.take(FINGERPRINTS)?;
        let read = |values: &Buffers| -> Result<BTreeMap<usize, Literal>, Error> {
            let replicas = values.placement().replicas();
            replicas.map(|replica| Ok((replica, values.read(replica)?))).collect()
        };
        let (min, max) = (read(&results.take(MIN)?)?, read(&results.take(MAX)?)?);
        // None for the replicas of other processes.
        let at = |values: &BTreeMap<usize, Literal>, replica: usize, leaf: usize| {
            Some(values.get(&replica)?.as_slice::<u32>()[leaf])
        };
        for (leaf, spec) in self.state.specs().values().enumerate() {
            // The replicas of a group hold the same shard and share a minimum and a maximum.
            let groups = self.state.mesh().groups(spec.held_alike());
            let differs = |group: &Vec<usize>| {
                group.iter().any(|replica| at(&min, *replica, leaf) != at(&max, *replica, leaf))
            };
            if let Some((index, group)) =
                groups.iter().enumerate().find(|(_, group)| differs(group))
            {
                let prints = read(&fingerprints)?;
                let of_replica = |replica: &usize| Some((*replica, at(&prints, *replica, leaf)?));
                let prints = group.iter().filter_map(of_replica).collect();
                return Ok(Some(Difference { leaf, group: index, prints }));
            }
        }
        Ok(None)
    }
}

/// The replicas that do not have the majority's value; without a majority, all groups of replicas
/// that agree.
fn odd_ones_out(values: &[(usize, u32)]) -> String {
    let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (replica, value) in values {
        groups.entry(*value).or_default().push(*replica);
    }
    let list =
        |replicas: &[usize]| replicas.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    match groups.values().find(|group| group.len() * 2 > values.len()) {
        Some(majority) => {
            let all = values.iter().map(|(replica, _)| *replica);
            let odd: Vec<_> = all.filter(|replica| !majority.contains(replica)).collect();
            list(&odd)
        }
        None => {
            // In the order of replicas: that of the values would differ from one processor to
            // another.
            let mut groups: Vec<_> = groups.into_values().collect();
            groups.sort_unstable();
            let groups: Vec<_> =
                groups.iter().map(|group| format!("{{{}}}", list(group))).collect();
            groups.join(" against ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_odd_replica_is_named() {
        assert_eq!(odd_ones_out(&[(0, 7), (1, 7), (2, 9), (3, 7)]), "2");
        assert_eq!(odd_ones_out(&[(0, 1), (1, 2)]), "{0} against {1}");
        assert_eq!(odd_ones_out(&[(0, 2), (1, 1)]), "{0} against {1}");
        assert_eq!(odd_ones_out(&[(1, 5), (3, 5), (5, 6), (7, 6)]), "{1, 3} against {5, 7}");
    }
}
