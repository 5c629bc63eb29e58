//! The events that are due after a step. They depend on the number of steps alone, so that every
//! process launches the same programs in the same order.

use std::ops::Range;

use super::{ObservedSteps, launches};
use crate::config::Config;

/// The steps of a run after which something is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DueSteps {
    total_steps: u64,
    /// Steps between proofs; 0 for none.
    proof_every: u64,
    /// Steps between evaluations; 0 for one at the end only.
    eval_every: u64,
    /// Steps between checkpoints; 0 for one at the end only.
    checkpoint_every: u64,
    /// `true` if the best state is saved.
    saves_best: bool,
    /// Steps between probes of the devices; 0 for none.
    probe_every: u64,
    /// Steps from one outer step to the next, 1 if replicas meet in each step.
    outer_every: u64,
    /// The steps that are launched alone.
    observed: ObservedSteps,
}

/// The events that are due after a step, in the order of the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// The lockstep proof.
    pub proof: bool,
    /// An evaluation.
    pub evaluation: bool,
    /// A checkpoint.
    pub checkpoint: bool,
    /// A probe of the devices.
    pub probe: bool,
}

impl DueSteps {
    /// The steps of a run of `total_steps` steps after which something is due.
    pub fn new(config: &Config, total_steps: u64) -> Self {
        Self {
            total_steps,
            proof_every: config.train.check_lockstep_every,
            eval_every: config.train.eval_every,
            checkpoint_every: config.checkpoint.every_steps,
            probe_every: config.observe.probe_every_steps,
            saves_best: config.checkpoint.keep_best,
            outer_every: config.sync.every,
            observed: ObservedSteps::new(&config.observe),
        }
    }

    /// Steps of the run.
    pub fn total_steps(&self) -> u64 {
        self.total_steps
    }

    /// `true` if the state is proved at all. Then what is saved has been proved.
    pub fn has_proofs(&self) -> bool {
        self.proof_every > 0
    }

    /// `true` if replicas have met in the last of `num_steps` steps. Only then may something be
    /// due.
    pub fn have_met_after(&self, num_steps: u64) -> bool {
        num_steps.is_multiple_of(self.outer_every)
    }

    /// The events that are due after `num_steps` steps. All are due after the last step, and a
    /// proof comes with every save. What would be due between two outer steps waits for the next.
    pub fn after(&self, num_steps: u64) -> Due {
        if !self.have_met_after(num_steps) {
            return Due::default();
        }
        let is_last = num_steps == self.total_steps;
        let before = num_steps.saturating_sub(self.outer_every);
        let is_at = |every: u64| every > 0 && num_steps / every > before / every;
        let checkpoint = is_at(self.checkpoint_every) || is_last;
        let evaluation = is_at(self.eval_every) || is_last;
        // An evaluation may be followed by a checkpoint.
        let may_save = checkpoint || evaluation && self.saves_best;
        let proof = is_at(self.proof_every) || may_save && self.has_proofs();
        let probe = is_at(self.probe_every) && !is_last;
        Due { proof, evaluation, checkpoint, probe }
    }

    /// The steps of each launch from `first` on, of at most `steps_per_launch` steps: something is
    /// due only after the last step of one. A step that is observed is one by itself.
    pub fn launches(
        &self,
        first: u64,
        steps_per_launch: u64,
    ) -> impl Iterator<Item = Range<u64>> + Send + use<> {
        let outer = if self.outer_every > 1 { self.outer_every } else { 0 };
        let Self { proof_every, eval_every, checkpoint_every, probe_every, .. } = *self;
        let stops = [proof_every, eval_every, checkpoint_every, probe_every, outer];
        let (observed, total_steps) = (self.observed, self.total_steps);
        let stops = [&stops[..], &observed.stops()].concat();
        launches(first..total_steps, steps_per_launch, &stops).flat_map(move |launch| {
            let is_observed = launch.clone().any(|step| observed.is_observed(step));
            let size = if is_observed { 1 } else { launch.end - launch.start };
            launch.step_by(size.max(1) as usize).map(move |start| start..start + size)
        })
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
            let mut events = DueSteps {
                total_steps,
                proof_every,
                eval_every,
                checkpoint_every: 0,
                saves_best: false,
                probe_every: 0,
                outer_every: 1,
                observed: ObservedSteps::default(),
            };
            assert_eq!(due(&events), [proofs, evals.clone()], "{events:?}");
            assert_eq!(events.has_proofs(), proof_every > 0);
            events.saves_best = true;
            let is_proved = |step: &u64| proof_every == 0 || due(&events)[0].contains(step);
            assert!(evals.iter().all(is_proved), "{events:?}");
        }
    }

    #[test]
    fn what_is_due_waits_for_the_next_outer_step() {
        let events = DueSteps {
            total_steps: 30,
            proof_every: 7,
            eval_every: 10,
            checkpoint_every: 0,
            saves_best: false,
            probe_every: 0,
            outer_every: 5,
            observed: ObservedSteps::default(),
        };
        assert_eq!(due(&events), [vec![10, 15, 25, 30], vec![10, 20, 30]]);
        let launches: Vec<_> = events.launches(0, 4).map(|launch| launch.end).collect();
        assert_eq!(launches, [4, 5, 6, 7, 8, 9, 10, 14, 15, 19, 20, 21, 25, 26, 27, 28, 29, 30]);
    }

    #[test]
    fn steps_that_are_observed_are_launched_alone() {
        let events = DueSteps {
            total_steps: 23,
            proof_every: 0,
            eval_every: 0,
            checkpoint_every: 0,
            saves_best: false,
            probe_every: 0,
            outer_every: 1,
            observed: ObservedSteps { layers_every: 10, ..ObservedSteps::default() },
        };
        let launches: Vec<_> = events.launches(0, 4).map(|launch| launch.end).collect();
        assert_eq!(launches, [4, 8, 9, 10, 14, 18, 19, 20, 21, 22, 23]);
        let events = DueSteps {
            observed: ObservedSteps { noise_every: 8, ..ObservedSteps::default() },
            ..events
        };
        let launches: Vec<_> = events.launches(0, 4).map(|launch| launch.end).collect();
        assert_eq!(launches, [4, 5, 6, 7, 8, 12, 13, 14, 15, 16, 20, 21, 22, 23]);
    }

    #[test]
    fn nothing_is_due_inside_a_launch() {
        for (proof_every, eval_every) in [(0, 0), (3, 0), (0, 4), (5, 7)] {
            let events = DueSteps {
                total_steps: 23,
                proof_every,
                eval_every,
                checkpoint_every: 6,
                saves_best: true,
                probe_every: 0,
                outer_every: 1,
                observed: ObservedSteps::default(),
            };
            let mut next = 0;
            for launch in events.launches(0, 4) {
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
