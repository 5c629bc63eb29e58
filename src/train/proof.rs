//! The lockstep proof: that all replicas hold the same state.

use std::collections::BTreeMap;

use hlo::Literal;

use super::{Error, Trainer};
use crate::pjrt::{Arg, Buffers};
use crate::step;

impl Trainer {
    /// Compares the state of all replicas: the lockstep proof.
    ///
    /// # Errors
    /// [`Error::LockstepLost`] with the first leaf that differs and the replicas it differs on.
    pub fn prove_lockstep(&self) -> Result<(), Error> {
        let args = self.state.values().map(Arg::Borrow).collect();
        let outputs = self.programs.proof.get()?.execute(args)?.outputs;
        let [fingerprints, min, max] = &outputs[..] else {
            unreachable!("the proof's program has three outputs");
        };
        let read = |values: &Buffers| -> Result<Vec<Literal>, Error> {
            values.placement().replicas().map(|replica| Ok(values.read(replica)?)).collect()
        };
        let (min, max) = (read(min)?, read(max)?);
        let at = |values: &[Literal], replica: usize, leaf: usize| {
            values[replica].as_slice::<u32>()[leaf]
        };
        for (leaf, (path, ty)) in self.types.iter().enumerate() {
            // Each group holds the leaf alike, and has a minimum and a maximum of its own.
            let groups = self.step_graph().mesh().groups(step::held_alike(ty));
            let differs =
                |group: &&Vec<usize>| at(&min, group[0], leaf) != at(&max, group[0], leaf);
            if let Some(group) = groups.iter().find(differs) {
                let prints = read(fingerprints)?;
                let prints = group.iter().map(|replica| (*replica, at(&prints, *replica, leaf)));
                return Err(Error::LockstepLost {
                    step: self.steps_taken(),
                    leaf: path.to_owned(),
                    replicas: odd_ones_out(&prints.collect::<Vec<_>>()),
                });
            }
        }
        Ok(())
    }
}

/// The replicas whose value is not the most frequent one; where none is in the majority, who agrees with
/// whom.
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
            let groups: Vec<_> =
                groups.values().map(|group| format!("{{{}}}", list(group))).collect();
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
        assert_eq!(odd_ones_out(&[(1, 5), (3, 5), (5, 6), (7, 6)]), "{1, 3} against {5, 7}");
    }
}
