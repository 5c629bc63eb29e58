//! Rules about the learning rate and its schedule.

use super::{Found, GOYAL, LAMB, Recipe, Severity};
use crate::config::{BatchSize, Peak, Scaling, UpdateRule};
use crate::optim::schedule;

/// The rate of SGD for 256 images: Goyal et al., section 5.1.
const RATE_PER_256_IMAGES: f64 = 0.1;
/// Batches from this size on are large.
const LARGE_BATCH: usize = 1024;
/// A smaller deviation may be intended.
const FAR_OFF: f64 = 4.0;

/// The rate does not scale with the batch.
pub(super) fn not_scaled(recipe: &Recipe<'_>) -> Vec<Found> {
    let batch = recipe.global_batch();
    let found = |severity, reason: String, source, change: String| {
        vec![Found { severity, reason, source, change }]
    };
    match recipe.config.schedule.peak {
        Peak::Scaled { base_lr, base_batch, scaling: Scaling::None } => {
            let ratio = batch as f64 / base_batch as f64;
            let off = ratio.max(1.0 / ratio);
            if off < 2.0 {
                return vec![];
            }
            let severity = match recipe.is_sgd() && off >= FAR_OFF {
                true => Severity::Error,
                false => Severity::Warning,
            };
            let reason = format!(
                "the rate stays {base_lr}, which was found at a batch of {base_batch}, for a batch of {batch}"
            );
            let change =
                "set schedule.scaling = \"linear\" (or \"sqrt\" for Adam and LAMB)".to_owned();
            found(severity, reason, GOYAL, change)
        }
        Peak::Scaled { scaling: Scaling::Linear, .. } if adapts(recipe) => {
            let scale = recipe.scale().unwrap_or(1.0);
            if scale < FAR_OFF {
                return vec![];
            }
            let reason = format!(
                "the rate of an adaptive optimizer is scaled linearly over {scale:.0} times the batch; \
                 its updates have a size of their own, whose noise falls with the root of the batch"
            );
            let change = "set schedule.scaling = \"sqrt\"".to_owned();
            found(Severity::Warning, reason, LAMB, change)
        }
        Peak::Scaled { .. } => vec![],
        Peak::Rate(peak) => {
            let ruled = RATE_PER_256_IMAGES * batch as f64 / 256.0;
            if recipe.is_for_images() && recipe.is_sgd() && batch >= LARGE_BATCH {
                let off = (ruled / peak).max(peak / ruled);
                if off >= FAR_OFF {
                    let reason = format!(
                        "a rate of {peak} for a batch of {batch} is {off:.0} times off the linear \
                         scaling rule, which gives {ruled}"
                    );
                    let change =
                        "set schedule.base_lr = 0.1 and schedule.base_batch = 256 in place of \
                                  schedule.peak"
                            .to_owned();
                    return found(Severity::Error, reason, GOYAL, change);
                }
            }
            if let BatchSize::PerReplica(size) = recipe.config.train.batch {
                let reason = format!(
                    "the batch is {size} on each replica and grows with them, {batch} on {}, but the \
                     rate stays {peak}",
                    recipe.num_replicas
                );
                let change =
                    "set schedule.base_lr and schedule.base_batch in place of schedule.peak, \
                              or train.global_batch in place of train.batch_per_replica"
                        .to_owned();
                return found(Severity::Warning, reason, GOYAL, change);
            }
            vec![]
        }
    }
}

fn adapts(recipe: &Recipe<'_>) -> bool {
    let rule = &recipe.config.optimizer.rule;
    matches!(rule, UpdateRule::Adam(_) | UpdateRule::AdamW(_) | UpdateRule::Lamb(_))
}

/// The schedule is invalid; warm-ups that are too long have their own rule.
pub(super) fn impossible(recipe: &Recipe<'_>) -> Vec<Found> {
    match &recipe.schedule {
        Err(error) if !matches!(error, schedule::Error::Warmup { .. }) => vec![Found {
            severity: Severity::Error,
            reason: error.to_string(),
            source: "`lockstep train` would refuse it",
            change: "as the reason says".to_owned(),
        }],
        _ => vec![],
    }
}

/// The decay ends before or after the end of the run.
pub(super) fn ends_elsewhere(recipe: &Recipe<'_>) -> Vec<Found> {
    let Ok(schedule) = &recipe.schedule else { return vec![] };
    let total = schedule.total_steps();
    let source =
        "Hoffmann et al., Training Compute-Optimal Large Language Models (2022), appendix B";
    let mut found = vec![];
    if let Some(end) = schedule.end_step().filter(|end| *end < total) {
        let rest = total - end;
        let rate = schedule.lr(total - 1);
        let severity = if rate == 0.0 { Severity::Error } else { Severity::Warning };
        found.push(Found {
            severity,
            reason: format!(
                "the schedule ends at step {end}, and the last {rest} of {total} steps have a rate of {rate}"
            ),
            source,
            change: "leave schedule.total_steps (or _epochs, _examples) out, or shorten the run".into(),
        });
    }
    if let Some(end) = schedule.end_step().filter(|end| *end > total) {
        let share = schedule.lr(total - 1) / schedule.peak();
        found.push(Found {
            severity: Severity::Warning,
            reason: format!(
                "the schedule ends at step {end}, after the end of the run at {total}, where the rate is still \
                 {:.0} % of its peak",
                100.0 * share
            ),
            source,
            change: "leave schedule.total_steps (or _epochs, _examples) out, or lengthen the run".into(),
        });
    }
    let unreached: Vec<_> = schedule.boundaries().iter().filter(|step| **step >= total).collect();
    if let Some(first) = unreached.first() {
        found.push(Found {
            severity: Severity::Warning,
            reason: format!(
                "{} of the boundaries are never reached: the run ends at step {total}, the first of them \
                 is at {first}",
                unreached.len()
            ),
            source,
            change: "move the boundaries into the run, or lengthen it".to_owned(),
        });
    }
    found
}

/// Number of steps that are checked.
const MAX_STEPS: u64 = 2_000_000;
/// In a shorter run every step is a jump.
const MIN_STEPS: u64 = 50;

/// The rate changes by more than a quarter of its peak in one step, without a declared boundary.
pub(super) fn undeclared_jump(recipe: &Recipe<'_>) -> Vec<Found> {
    let Ok(schedule) = &recipe.schedule else { return vec![] };
    if schedule.total_steps() < MIN_STEPS {
        return vec![];
    }
    let is_jump = |step: &u64| {
        let change = (schedule.lr(*step) - schedule.lr(step - 1)).abs();
        change > 0.25 * schedule.peak()
            && *step >= schedule.warmup_steps()
            && !schedule.is_declared_jump(*step)
    };
    let Some(step) = (1..schedule.total_steps().min(MAX_STEPS)).find(is_jump) else {
        return vec![];
    };
    let (before, after) = (schedule.lr(step - 1), schedule.lr(step));
    vec![Found {
        severity: if after > before { Severity::Error } else { Severity::Warning },
        reason: format!(
            "the rate jumps from {before:.6} to {after:.6} at step {step}, where the schedule declares no step"
        ),
        source: GOYAL,
        change:
            "let the pieces meet: lengthen the warm-up or the decay, or give the first point after \
                 the warm-up a factor of 1"
                .to_owned(),
    }]
}
