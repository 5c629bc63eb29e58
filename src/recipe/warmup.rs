//! Rules about the warm-up.

use super::{Found, GOYAL, LAMB, LARS, Recipe, Severity, percent};
use crate::config::UpdateRule;
use crate::optim::schedule;

/// Batches this many times the one for which the rate was tuned need a warm-up: 2048 for 256 images.
const LARGE_SCALE: f64 = 8.0;
/// For recipes that do not say for which batch their rate was tuned.
const LARGE_BATCH: usize = 2048;

/// `true` if the batch is that much larger than the one for which the rate was tuned.
fn is_large(recipe: &Recipe<'_>) -> bool {
    match recipe.scale() {
        Some(scale) => scale >= LARGE_SCALE,
        None => recipe.global_batch() >= LARGE_BATCH,
    }
}

/// There is no warm-up, but the recipe needs one.
pub(super) fn missing(recipe: &Recipe<'_>) -> Vec<Found> {
    let Ok(schedule) = &recipe.schedule else { return vec![] };
    if schedule.warmup_steps() > 0 {
        return vec![];
    }
    let batch = recipe.global_batch();
    let change = "set schedule.warmup_epochs = 5 (or schedule.warmup_steps)".to_owned();
    if recipe.has_trust_ratios() {
        let source = match recipe.config.optimizer.rule {
            UpdateRule::Lars(_) => LARS,
            _ => LAMB,
        };
        let reason = format!(
            "{} has no warm-up; its first trust ratios come from initial values and noise",
            recipe.config.optimizer.rule.name()
        );
        return vec![Found { severity: Severity::Error, reason, source, change }];
    }
    if is_large(recipe) {
        let severity = if recipe.is_sgd() { Severity::Error } else { Severity::Warning };
        let reason = format!("a batch of {batch} starts at its peak rate of {}", schedule.peak());
        return vec![Found { severity, reason, source: GOYAL, change }];
    }
    if let UpdateRule::Adam(_) | UpdateRule::AdamW(_) = recipe.config.optimizer.rule {
        let reason =
            "Adam starts at its peak rate, while its second moments rest on few steps".to_owned();
        let source =
            "Ma and Yarats, On the Adequacy of Untuned Warmup for Adaptive Optimization (2021)";
        return vec![Found { severity: Severity::Note, reason, source, change }];
    }
    vec![]
}

/// The warm-up is short for the batch.
pub(super) fn too_short(recipe: &Recipe<'_>) -> Vec<Found> {
    let Ok(schedule) = &recipe.schedule else { return vec![] };
    let (warmup, total) = (schedule.warmup_steps(), schedule.total_steps());
    if warmup == 0 || !is_large(recipe) {
        return vec![];
    }
    // Five epochs of ninety are 5.6 %.
    let is_short = (warmup as f64) < 0.01 * total as f64;
    let epochs = recipe.run.steps_per_epoch().map(|steps| warmup as f64 / steps as f64);
    let few_epochs = recipe.is_for_images() && epochs.is_some_and(|epochs| epochs < 2.0);
    if !is_short && !few_epochs {
        return vec![];
    }
    let reason = format!(
        "a warm-up of {warmup} steps, {} of the run, is short for a batch of {}",
        percent(warmup, total),
        recipe.global_batch()
    );
    let change = "set schedule.warmup_epochs = 5, or 2 to 6 % of the run".to_owned();
    vec![Found { severity: Severity::Warning, reason, source: GOYAL, change }]
}

/// The warm-up is most of the run or more.
pub(super) fn too_long(recipe: &Recipe<'_>) -> Vec<Found> {
    let (severity, reason) = match &recipe.schedule {
        Err(error @ schedule::Error::Warmup { .. }) => (Severity::Error, error.to_string()),
        Ok(schedule) if 2 * schedule.warmup_steps() > schedule.total_steps() => {
            let (warmup, total) = (schedule.warmup_steps(), schedule.total_steps());
            (Severity::Warning, format!("the warm-up takes {warmup} of {total} steps"))
        }
        _ => return vec![],
    };
    let change = "shorten the warm-up, or lengthen the run".to_owned();
    vec![Found { severity, reason, source: GOYAL, change }]
}

/// A boundary lies inside the warm-up.
pub(super) fn boundary_inside(recipe: &Recipe<'_>) -> Vec<Found> {
    let Ok(schedule) = &recipe.schedule else { return vec![] };
    let warmup = schedule.warmup_steps();
    let inside = schedule.boundaries().iter().find(|step| **step > 0 && **step < warmup);
    let Some(step) = inside else { return vec![] };
    vec![Found {
        severity: Severity::Error,
        reason: format!(
            "the boundary at step {step} lies inside the warm-up of {warmup} steps, which passes over it; \
             after the warm-up the rate is not the peak"
        ),
        source: GOYAL,
        change: "move the boundary past the warm-up".to_owned(),
    }]
}
