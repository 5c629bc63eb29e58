//! The progress of a run as checkpoints record it.

use serde_json::{Value, json};

use crate::observe::{EvalResult, NoiseAverages, RunProgress, StepEval};

/// The progress, for the manifest of a checkpoint.
pub(super) fn progress_to_json(progress: &RunProgress) -> Value {
    json!({
        "num_skipped": progress.num_skipped,
        "last_skipped": progress.last_skipped,
        "final_loss": progress.final_loss,
        "eval": progress.eval.as_ref().map(eval_to_json),
        "best_eval": progress.best_eval.as_ref().map(eval_to_json),
        "noise": [progress.noise.variance, progress.noise.square],
    })
}

fn eval_to_json(StepEval { step, eval }: &StepEval) -> Value {
    json!({ "step": step, "loss": eval.loss, "metrics": eval.metrics })
}

/// The inverse of [`progress_to_json`], after `num_steps` steps. Metrics that the model no longer
/// has are omitted.
pub(super) fn progress_of(num_steps: u64, value: &Value, metrics: &[&'static str]) -> RunProgress {
    // Values that are not finite are `null` in JSON.
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let eval = |value: &Value| {
        let step = value["step"].as_u64()?;
        let found =
            metrics.iter().filter_map(|name| Some((*name, number(value["metrics"].get(name)?))));
        let (loss, metrics) = (number(&value["loss"]), found.collect());
        Some(StepEval { step, eval: EvalResult { loss, metrics, ..EvalResult::default() } })
    };
    RunProgress {
        num_steps,
        num_skipped: value["num_skipped"].as_u64().unwrap_or_default(),
        last_skipped: value["last_skipped"].as_str().map(str::to_owned),
        final_loss: value["final_loss"].as_f64(),
        eval: eval(&value["eval"]),
        best_eval: eval(&value["best_eval"]),
        noise: NoiseAverages {
            variance: value["noise"][0].as_f64().unwrap_or(0.0),
            square: value["noise"][1].as_f64().unwrap_or(0.0),
        },
    }
}
