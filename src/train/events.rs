//! What is due after a step. It depends on the number of steps alone, so that every process launches the same programs
//! in the same order.

use std::ops::Range;

use super::launches;
use crate::config::TrainConfig;

/// The steps of a run after which something is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DueSteps {
    total_steps: u64,
    /// Steps between proofs; 0 for none.
    proof_every: u64,
    /// Steps between evaluations; 0 for one at the end only.
    eval_every: u64,
}

/// What is due after a step, in the order of the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// The lockstep proof.
    pub proof: bool,
    /// An evaluation.
    pub evaluation: bool,
}

impl DueSteps {
    /// The steps of a run of `total_steps` steps after which something is due.
    pub fn new(config: &TrainConfig, total_steps: u64) -> Self {
        let (proof_every, eval_every) = (config.check_lockstep_every, config.eval_every);
        Self { total_steps, proof_every, eval_every }
    }

    /// Steps of the run.
    pub fn total_steps(&self) -> u64 {
        self.total_steps
    }

    /// `true` if the state is proved at all. Then what is saved has been proved.
    pub fn has_proofs(&self) -> bool {
        self.proof_every > 0
    }

    /// What is due after `num_steps` steps. Both are after the last step.
    pub fn after(&self, num_steps: u64) -> Due {
        let is_last = num_steps == self.total_steps;
        let is_at = |every: u64| every > 0 && num_steps.is_multiple_of(every);
        Due {
            proof: is_at(self.proof_every) || is_last && self.has_proofs(),
            evaluation: is_at(self.eval_every) || is_last,
        }
    }

    /// The steps of each launch, of at most `steps_per_launch` steps: something is due only after the last step of one.
    pub fn launches(
        &self,
        steps_per_launch: u64,
    ) -> impl Iterator<Item = Range<u64>> + Send + use<> {
        launches(self.total_steps, steps_per_launch, &[self.proof_every, self.eval_every])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps after which a proof and an evaluation are due.
    fn due(events: &DueSteps) -> [Vec<u64>; 2] {
        let steps = |is_due: fn(Due) -> bool| {
            (1..=events.total_steps).filter(|step| is_due(events.after(*step))).collect()
        };
        [steps(|due| due.proof), steps(|due| due.evaluation)]
    }

    #[test]
    fn multiples_and_the_last_step_are_due() {
        for (total_steps, proof_every, eval_every, proofs, evals) in [
            (10, 0, 0, vec![], vec![10]),
            (10, 3, 0, vec![3, 6, 9, 10], vec![10]),
            (10, 50, 4, vec![10], vec![4, 8, 10]),
            (8, 4, 4, vec![4, 8], vec![4, 8]),
            (1, 0, 1, vec![], vec![1]),
        ] {
            let events = DueSteps { total_steps, proof_every, eval_every };
            assert_eq!(due(&events), [proofs, evals], "{events:?}");
            assert_eq!(events.has_proofs(), proof_every > 0);
        }
    }

    #[test]
    fn nothing_is_due_inside_a_launch() {
        for (proof_every, eval_every) in [(0, 0), (3, 0), (0, 4), (5, 7)] {
            let events = DueSteps { total_steps: 23, proof_every, eval_every };
            let mut next = 0;
            for launch in events.launches(4) {
                assert_eq!(launch.start, next, "{events:?}");
                next = launch.end;
                let inside = launch.start + 1..launch.end;
                assert!(
                    inside.clone().all(|step| events.after(step) == Due::default()),
                    "{events:?}: {inside:?}"
                );
            }
            assert_eq!(next, 23);
        }
    }
}
