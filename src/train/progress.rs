//! `Progress`: what a run has come to, and what follows from it.

use super::StepResult;
use crate::config::{Config, TrainConfig};
use crate::observe::{EvalResult, RunProgress, StepEval};

/// Follows what a run has come to. It alone decides which evaluation is the best and whether the
/// run ends early; sinks report that. All of it follows from reduced values and from what
/// checkpoints hold, so it is alike in all processes.
pub(super) struct Progress {
    run: RunProgress,
    /// The last skipped update: its step, and why it was skipped.
    skipped: Option<(u64, String)>,
    /// See [`TrainConfig::best_metric`].
    best_metric: Option<String>,
    patience: u64,
    eval_every: u64,
    keeps_best: bool,
}

impl Progress {
    /// Of a run that has come to `run` and goes on.
    pub fn new(config: &Config, run: RunProgress) -> Self {
        let TrainConfig { best_metric, patience, eval_every, .. } = &config.train;
        Self {
            run,
            skipped: None,
            best_metric: best_metric.clone(),
            patience: *patience,
            eval_every: *eval_every,
            keeps_best: config.checkpoint.keep_best,
        }
    }

    /// What the run has come to.
    pub fn run(&self) -> &RunProgress {
        &self.run
    }

    /// Adds what a step has measured of the noise of its gradient, in a batch of so many examples
    /// and parts; and returns the batch that all such steps suggest.
    pub fn measured(&mut self, result: &StepResult, batch: usize, num_parts: usize) -> Option<f64> {
        if let Some(of_part) = result.part_squares.filter(|_| result.is_finite()) {
            self.run.noise.add(batch, num_parts, of_part, result.grad_norm.powi(2));
        }
        self.run.noise.scale()
    }

    /// Adds steps that have ended.
    pub fn launched(&mut self, results: &[StepResult]) {
        if let Some(last) = results.last() {
            let Self { run, skipped, .. } = self;
            (run.num_steps, run.num_skipped) = (last.step + 1, last.num_skipped);
            run.final_loss = Some(last.loss);
            let skipped = skipped.as_ref().filter(|(step, _)| *step == last.step);
            run.last_skipped = skipped.map(|(_, reason)| reason.clone());
        }
    }

    /// Adds that the update of a step was skipped. Comes before [`Self::launched`] with that step.
    pub fn skipped(&mut self, step: u64, reason: &str) {
        self.skipped = Some((step, reason.to_owned()));
    }

    /// Adds an evaluation. `true` if it is the best so far: of equally good ones the first is the
    /// best, and one whose loss is not finite is none.
    pub fn evaluated(&mut self, found: &StepEval) -> bool {
        let best = self.run.best_eval.as_ref();
        let beats = |best: &StepEval| self.is_better(&found.eval, &best.eval);
        let is_best = found.eval.loss.is_finite() && best.is_none_or(beats);
        if is_best {
            self.run.best_eval = Some(found.clone());
        }
        self.run.eval = Some(found.clone());
        is_best
    }

    /// `true` if `found` is better than `other`: by a metric where more is better, or by the loss.
    fn is_better(&self, found: &EvalResult, other: &EvalResult) -> bool {
        let metric = self.best_metric.as_deref().unwrap_or("accuracy");
        match (found.metrics.get(metric), other.metrics.get(metric)) {
            (Some(found), Some(best)) => found > best || best.is_nan() && !found.is_nan(),
            _ => found.loss < other.loss,
        }
    }

    /// `true` if the last `train.patience` evaluations were not better than the best one.
    pub fn ends_early(&self) -> bool {
        let Some(eval) = self.run.eval.as_ref().filter(|_| self.patience > 0) else { return false };
        let best = self.run.best_eval.as_ref().map_or(0, |best| best.step + 1);
        (eval.step + 1).saturating_sub(best) >= self.patience.saturating_mul(self.eval_every)
    }

    /// `true` if the state after `num_steps` steps is to be saved as the best one.
    pub fn saves_best(&self, num_steps: u64) -> bool {
        let best = self.run.best_eval.as_ref();
        self.keeps_best && best.is_some_and(|best| best.step + 1 == num_steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(patience: u64) -> Progress {
        Progress {
            run: RunProgress::default(),
            skipped: None,
            best_metric: None,
            patience,
            eval_every: 10,
            keeps_best: true,
        }
    }

    fn eval(loss: f64, accuracy: Option<f64>) -> EvalResult {
        let metrics = accuracy.map(|accuracy| ("accuracy", accuracy)).into_iter().collect();
        EvalResult { loss, metrics, ..EvalResult::default() }
    }

    #[test]
    fn the_best_evaluation_is_the_first_of_the_most_accurate_or_of_the_lowest_loss() {
        let best = |evals: &[EvalResult]| {
            let mut progress = progress(0);
            for (step, eval) in (0..).zip(evals) {
                let is_best = progress.evaluated(&StepEval { step, eval: eval.clone() });
                assert_eq!(is_best, progress.saves_best(step + 1));
                assert_eq!(progress.run().eval.as_ref().map(|eval| eval.step), Some(step));
            }
            progress.run.best_eval.map(|best| best.step)
        };
        let accuracies = [(0.9, 0.5), (0.7, 0.8), (0.6, 0.8), (0.5, 0.7)];
        assert_eq!(best(&accuracies.map(|(loss, accuracy)| eval(loss, Some(accuracy)))), Some(1));
        let losses = [f64::NAN, 0.9, 0.5, 0.5, f64::NEG_INFINITY];
        assert_eq!(best(&losses.map(|loss| eval(loss, None))), Some(2));
        assert_eq!(best(&[eval(f64::INFINITY, Some(0.1))]), None);
        assert_eq!(best(&[]), None);
    }

    #[test]
    fn a_run_ends_early_after_as_many_evaluations_without_a_better_one() {
        let ends_after = |patience: u64, losses: &[f64]| {
            let mut progress = progress(patience);
            assert!(!progress.ends_early());
            let mut ends = losses.iter().zip(1..).filter_map(|(loss, index)| {
                let (step, eval) = (10 * index - 1, eval(*loss, None));
                progress.evaluated(&StepEval { step, eval });
                progress.ends_early().then_some(index)
            });
            ends.next()
        };
        assert_eq!(ends_after(2, &[3.0, 2.0, 2.5, 2.5, 1.0]), Some(4));
        assert_eq!(ends_after(2, &[3.0, 2.0, 2.5, 1.5, 2.5]), None);
        assert_eq!(ends_after(1, &[3.0, 3.0]), Some(2));
        assert_eq!(ends_after(2, &[f64::NAN, f64::NAN]), Some(2));
        assert_eq!(ends_after(0, &[1.0, 2.0, 3.0]), None);
    }

    #[test]
    fn a_skipped_update_counts_if_it_is_the_last() {
        let mut progress = progress(0);
        let result = |step| StepResult { step, loss: 0.5, num_skipped: 1, ..StepResult::default() };
        progress.skipped(0, "the loss is NaN");
        progress.launched(&[result(0), result(1)]);
        assert_eq!(progress.run().last_skipped, None);
        progress.skipped(2, "the loss is NaN");
        progress.launched(&[result(2)]);
        assert_eq!(progress.run().last_skipped.as_deref(), Some("the loss is NaN"));
        progress.launched(&[result(3)]);
        let expected = RunProgress {
            num_steps: 4,
            num_skipped: 1,
            final_loss: Some(0.5),
            ..Default::default()
        };
        assert_eq!(progress.run(), &expected);
    }
}
