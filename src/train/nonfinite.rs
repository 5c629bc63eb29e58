//! Updates that were skipped because a value was not finite.

use super::{Error, StepResult};
use crate::config::OnNonfinite;
use crate::observe::RunProgress;

/// Follows which updates are skipped, and stops the run at the first one unless it is to go on.
pub(super) struct SkippedUpdates {
    on_nonfinite: OnNonfinite,
    /// If the update of the last step was skipped: which value was not finite, and how many were
    /// skipped so far.
    last: Option<(String, u64)>,
}

impl SkippedUpdates {
    /// For a run that has come to `progress`.
    pub fn new(on_nonfinite: OnNonfinite, progress: &RunProgress) -> Self {
        let last = progress.last_skipped.clone().map(|what| (what, progress.num_skipped));
        Self { on_nonfinite, last }
    }

    /// Checks the steps of the next launch, and calls `report` with each skipped step and the value
    /// that was not finite.
    ///
    /// # Errors
    /// [`Error::NonFinite`] for a step that stops the run. The steps after it have changed nothing:
    /// they are removed.
    pub fn check(
        &mut self,
        results: &mut Vec<StepResult>,
        mut report: impl FnMut(&StepResult, &str),
    ) -> Result<(), Error> {
        for (index, result) in results.iter().enumerate() {
            self.last = (!result.is_finite()).then(|| (describe(result), result.num_skipped));
            let Some((what, _)) = &self.last else { continue };
            if self.on_nonfinite == OnNonfinite::Stop {
                let (step, what) = (result.step, what.clone());
                results.truncate(index + 1);
                return Err(Error::NonFinite { step, what });
            }
            report(result, what);
        }
        Ok(())
    }

    /// Checks the last of `num_steps` steps.
    ///
    /// # Errors
    /// [`Error::LastSkipped`] if its update was skipped.
    pub fn check_last(&self, num_steps: u64) -> Result<(), Error> {
        let Some((what, num_skipped)) = self.last.clone() else { return Ok(()) };
        let step = num_steps.saturating_sub(1);
        Err(Error::LastSkipped { step, what, num_skipped, num_steps })
    }
}

/// Which value was not finite: the loss of some replicas, the mean loss, the gradient, or else a
/// leaf of the next state.
fn describe(result: &StepResult) -> String {
    let replicas: Vec<_> = result.nonfinite_replicas.iter().map(usize::to_string).collect();
    match (&replicas[..], &result.nonfinite_leaf) {
        ([], _) if !result.loss.is_finite() => format!("the loss is {}", result.loss),
        ([], Some(leaf)) if result.grad_norm.is_finite() => {
            format!("the next value of `{leaf}` is not finite")
        }
        ([], _) => format!("the gradient's norm is {}", result.grad_norm),
        ([one], _) => format!("the loss is not finite on replica {one}"),
        (many, _) => format!("the loss is not finite on replicas {}", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(step: u64, num_skipped: u64) -> StepResult {
        StepResult { step, loss: 1.0, grad_norm: 1.0, num_skipped, ..StepResult::default() }
    }

    /// The steps that are kept and those that are reported, and the error.
    fn check(
        skipped: &mut SkippedUpdates,
        mut results: Vec<StepResult>,
    ) -> (usize, Vec<String>, Result<(), Error>) {
        let mut reported = vec![];
        let report =
            |result: &StepResult, what: &str| reported.push(format!("{}: {what}", result.step));
        let checked = skipped.check(&mut results, report);
        (results.len(), reported, checked)
    }

    #[test]
    fn the_first_update_that_is_left_out_stops_the_run() {
        let mut skipped = SkippedUpdates::new(OnNonfinite::Stop, &RunProgress::default());
        let bad = StepResult { grad_norm: f64::INFINITY, ..result(1, 1) };
        let (num_kept, reported, checked) =
            check(&mut skipped, vec![result(0, 0), bad, result(2, 2), result(3, 3)]);
        assert_eq!((num_kept, reported.len()), (2, 0));
        let error = checked.unwrap_err().to_string();
        assert!(error.starts_with("step 1: the gradient's norm is inf; "), "{error}");
    }

    #[test]
    fn only_a_last_update_that_was_left_out_is_an_error() {
        let mut skipped = SkippedUpdates::new(OnNonfinite::Skip, &RunProgress::default());
        let bad = StepResult { grad_norm: f64::INFINITY, ..result(0, 1) };
        let (num_kept, reported, checked) = check(&mut skipped, vec![bad, result(1, 1)]);
        assert_eq!((num_kept, reported), (2, vec!["0: the gradient's norm is inf".to_owned()]));
        checked.unwrap();
        skipped.check_last(2).unwrap();

        let mut skipped = SkippedUpdates::new(OnNonfinite::Skip, &RunProgress::default());
        let leaf = Some("params.w".to_owned());
        let bad = StepResult { nonfinite_leaf: leaf, ..result(1, 1) };
        let (num_kept, reported, checked) = check(&mut skipped, vec![result(0, 0), bad]);
        let reason = "the next value of `params.w` is not finite";
        assert_eq!((num_kept, reported), (2, vec![format!("1: {reason}")]));
        checked.unwrap();
        let error = skipped.check_last(2).unwrap_err().to_string();
        assert!(error.contains(&format!("in step 1: {reason}. 1 of 2 updates")), "{error}");
    }

    #[test]
    fn the_replicas_come_before_other_reasons() {
        let bad = StepResult { loss: f64::NAN, ..result(0, 1) };
        assert_eq!(describe(&bad), "the loss is NaN");
        let on = |replicas: &[usize]| {
            describe(&StepResult { nonfinite_replicas: replicas.to_vec(), ..bad.clone() })
        };
        assert_eq!(on(&[2]), "the loss is not finite on replica 2");
        assert_eq!(on(&[0, 3]), "the loss is not finite on replicas 0, 3");
    }
}
