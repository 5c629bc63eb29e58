//! The lockstep proof: that all replicas hold the same state.

use std::collections::BTreeMap;

use super::{Error, Trainer};
use crate::pjrt::Arg;

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
        let (min, max) = (min.read(0)?, max.read(0)?);
        let leaves = min.as_slice::<u32>().iter().zip(max.as_slice::<u32>());
        let Some(leaf) = leaves.clone().position(|(min, max)| min != max) else { return Ok(()) };
        let prints = (0..fingerprints.num_replicas())
            .map(|replica| Ok(fingerprints.read(replica)?.as_slice::<u32>()[leaf]))
            .collect::<Result<Vec<_>, Error>>()?;
        Err(Error::LockstepLost {
            step: self.steps_taken(),
            leaf: self.types.paths().nth(leaf).unwrap_or_default().to_owned(),
            replicas: odd_ones_out(&prints),
        })
    }
}

/// The replicas whose value is not the most frequent one; where none is in the majority, who agrees with
/// whom.
fn odd_ones_out(values: &[u32]) -> String {
    let mut groups: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (replica, value) in values.iter().enumerate() {
        groups.entry(*value).or_default().push(replica);
    }
    let list =
        |replicas: &[usize]| replicas.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    match groups.values().find(|group| group.len() * 2 > values.len()) {
        Some(majority) => {
            let odd: Vec<_> = (0..values.len()).filter(|r| !majority.contains(r)).collect();
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
        assert_eq!(odd_ones_out(&[7, 7, 9, 7]), "2");
        assert_eq!(odd_ones_out(&[1, 2]), "{0} against {1}");
        assert_eq!(odd_ones_out(&[5, 5, 6, 6]), "{0, 1} against {2, 3}");
    }
}
