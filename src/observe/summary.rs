//! `summary.json`: the state and the outcome of a run, for programs.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use super::{Error, EvalMetrics, replace_file};

/// A run as a whole. What is not known, was not measured or is not finite is `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// What has become of it.
    pub status: Status,
    /// Why it failed.
    pub reason: Option<String>,
    /// Steps taken.
    pub steps: u64,
    /// Steps that the configuration asks for.
    pub planned_steps: u64,
    /// Replicas that took them.
    pub num_replicas: usize,
    /// Processes that the replicas were in.
    pub num_processes: usize,
    /// Sizes of the mesh's axes, by name.
    pub mesh: BTreeMap<&'static str, usize>,
    /// Examples per step.
    pub global_batch: usize,
    /// Mean training loss of the last step.
    pub final_loss: Option<f64>,
    /// Mean loss over the evaluation split, after step `eval_step`.
    pub eval_loss: Option<f64>,
    /// Share of the evaluation split that is classified correctly, 0 to 1.
    pub eval_accuracy: Option<f64>,
    /// Share of it whose label is among the five classes of the highest score, 0 to 1.
    pub eval_top5_accuracy: Option<f64>,
    /// Index, from 0, of the step after which the last evaluation was made.
    pub eval_step: Option<u64>,
    /// The best evaluation so far.
    pub best_eval: Option<StepEval>,
    /// Median step time in milliseconds.
    pub median_step_ms: Option<f64>,
    /// Seconds from process start to the end of the first step.
    pub first_step_secs: Option<f64>,
    /// Seconds from process start to the writing of this.
    pub wall_secs: f64,
    /// Examples per second over all replicas, in all launches but the first; evaluations do not count.
    pub examples_per_sec: Option<f64>,
    /// Numbers in the model's parameters.
    pub num_params: u64,
    /// Hexadecimal digest of the bits of the final parameters, and of the model state with them.
    pub params_fingerprint: Option<String>,
    /// Updates left out because something was not finite.
    pub num_skipped: u64,
    /// What every random choice follows from.
    pub seed: u64,
    /// Dtypes of parameters and arithmetic: `f32`, `bf16` or `f64`.
    pub precision: String,
    /// The backend, as the configuration names it.
    pub backend: String,
    /// The kind of its devices, as the plugin names it.
    pub device: String,
    /// The version of this program.
    pub version: &'static str,
}

/// What has become of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It is under way, or its process was killed.
    #[default]
    Running,
    /// It took all its steps, and all is well.
    Done,
    /// A signal stopped it.
    Interrupted,
    /// An error ended it, or it ended with values that are not finite.
    Failed,
}

/// An evaluation, and the step after which it was made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepEval {
    /// Index of the step, from 0.
    pub step: u64,
    /// What was found.
    #[serde(flatten)]
    pub eval: EvalMetrics,
}

impl Summary {
    /// The name of the file.
    pub const FILE: &'static str = "summary.json";

    /// Takes note of an evaluation after the step with index `step`. It is the best one if its accuracy is
    /// the highest or, where the model has none, its loss the lowest; of equal ones the first.
    pub fn evaluated(&mut self, step: u64, eval: EvalMetrics) {
        let EvalMetrics { eval_loss, eval_accuracy, eval_top5_accuracy } = eval;
        (self.eval_loss, self.eval_accuracy) = (Some(eval_loss), eval_accuracy);
        (self.eval_top5_accuracy, self.eval_step) = (eval_top5_accuracy, Some(step));
        let beats = |best: &StepEval| match (eval_accuracy, best.eval.eval_accuracy) {
            (Some(accuracy), Some(best)) => accuracy > best,
            _ => eval_loss < best.eval.eval_loss,
        };
        if eval_loss.is_finite() && self.best_eval.as_ref().is_none_or(beats) {
            self.best_eval = Some(StepEval { step, eval });
        }
    }

    /// Writes `DIR/summary.json`, or leaves the one that is there.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), Error> {
        let path = dir.join(Self::FILE);
        let write = || {
            let mut text = serde_json::to_vec_pretty(self)?;
            text.push(b'\n');
            replace_file(&path, &text)
        };
        write().map_err(|source| Error::Write { path: path.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_file_is_whole_replaced_and_valid_json() {
        let dir = tempfile::tempdir().unwrap();
        let mut summary = Summary { steps: 3, final_loss: Some(f64::NAN), ..Summary::default() };
        summary.save(dir.path()).unwrap();
        summary.steps = 4;
        summary.status = Status::Interrupted;
        summary.save(dir.path()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let path = dir.path().join(Summary::FILE);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o600, 0o600);
        let text = std::fs::read_to_string(path).unwrap();
        let read: serde_json::Map<_, _> = serde_json::from_str(&text).unwrap();
        assert_eq!((&read["steps"], &read["status"]), (&4.into(), &"interrupted".into()));
        assert!(read["final_loss"].is_null() && read["eval_loss"].is_null());
        let error = summary.save(&dir.path().join("gone")).unwrap_err().to_string();
        assert!(error.contains("gone/summary.json"), "{error}");
    }

    #[test]
    fn the_best_evaluation_is_the_first_of_the_most_accurate_or_of_the_lowest_loss() {
        let eval = |eval_loss: f64, eval_accuracy: Option<f64>| EvalMetrics {
            eval_loss,
            eval_accuracy,
            eval_top5_accuracy: None,
        };
        let best = |evals: &[EvalMetrics]| {
            let mut summary = Summary::default();
            for (step, eval) in (0..).zip(evals) {
                summary.evaluated(step, *eval);
            }
            assert_eq!(summary.eval_step, (evals.len() as u64).checked_sub(1));
            summary.best_eval.map(|best| best.step)
        };
        let accuracies = [(0.9, 0.5), (0.7, 0.8), (0.6, 0.8), (0.5, 0.7)];
        assert_eq!(best(&accuracies.map(|(loss, accuracy)| eval(loss, Some(accuracy)))), Some(1));
        let losses = [f64::NAN, 0.9, 0.5, 0.5, f64::NEG_INFINITY];
        assert_eq!(best(&losses.map(|loss| eval(loss, None))), Some(2));
        assert_eq!(best(&[eval(f64::INFINITY, Some(0.1))]), None);
        assert_eq!(best(&[]), None);
    }
}
