//! Rules about the warm-up, judged on the resolved rates: how many steps they take to rise.

use hlo::counted;

use super::figures::{ModelKind, Rates};
use super::{Found, Recipe, Severity, percent, short, trust};
use crate::config::UpdateRule;
use crate::optim::schedule;

/// Warm-ups with fewer steps are as good as none.
const MIN_STEPS: u64 = 50;
/// The same for LAMB: its published recipes with few steps warm up quickly.
const MIN_STEPS_OF_LAMB: u64 = 20;
/// The rate times the width of a transformer up to which published runs with Adam have no warm-up.
const MIN_OF_ADAM: f64 = 0.3;
/// Published warm-ups of Adam are up to 40000 steps.
const MAX_STEPS: u64 = 60_000;
/// In a shorter run there is no room for a warm-up.
const MIN_TOTAL: u64 = 500;

/// Why the recipe needs a warm-up, if it does.
fn need(recipe: &Recipe<'_>, rates: &Rates) -> Option<String> {
    let rate = short(rates.max);
    match (&recipe.config.optimizer.rule, recipe.kind) {
        (UpdateRule::Lars(_), _) => {
            let (_, lasting) = trust::shares(recipe)?;
            (lasting >= 0.03).then(|| {
                format!(
                    "LARS moves each layer by {} of its norm over the momentum, in directions of \
                     initial values and noise",
                    short(lasting)
                )
            })
        }
        (UpdateRule::Lamb(_), _) => (rates.max >= 5e-4).then(|| {
            format!(
                "LAMB moves each layer by {rate} of its norm, by moments that rest on few steps"
            )
        }),
        (UpdateRule::Sgd(_), ModelKind::Linear) => None,
        (UpdateRule::Sgd(_), _) => {
            let lasting = rates.max * recipe.momentum_gain();
            (lasting > 6.01).then(|| {
                format!(
                    "SGD at a rate of {rate} has a lasting step of {} (rate / (1 - momentum)), \
                     more than an untrained network takes",
                    short(lasting)
                )
            })
        }
        (_, ModelKind::Transformer { width, num_parameters }) => {
            let is_from_scratch = rates.max * width >= MIN_OF_ADAM
                && num_parameters >= 1e7
                && recipe.total_tokens() >= 5.0 * num_parameters;
            // Mosbach et al. (2021) and others report collapse to the majority class.
            let is_unstable = num_parameters >= 2e8
                && recipe.batch() <= 32.0
                && recipe.num_examples.is_some_and(|number| number < 20_000)
                && rates.max >= 1e-5;
            (is_from_scratch || is_unstable).then(|| {
                format!(
                    "Adam moves each weight of a transformer by {rate}, while its second moments \
                     rest on few steps"
                )
            })
        }
        (_, ModelKind::Convolutional { .. }) => (rates.max >= 2e-3 && recipe.batch() >= 1024.0)
            .then(|| format!("Adam starts at a rate of {rate} at a batch of {}", recipe.batch())),
        _ => None,
    }
}

/// A linear warm-up of 5 % of the run, or 5 epochs if that is less than a fifth of it.
fn usual(recipe: &Recipe<'_>) -> Vec<String> {
    let total = recipe.total_steps();
    let five_epochs = recipe.run.steps_per_epoch().map(|steps| 5 * steps);
    let by_epochs = five_epochs.filter(|steps| recipe.is_for_images() && *steps <= total / 5);
    let steps = by_epochs.unwrap_or(total / 20).clamp(2 * MIN_STEPS, 10_000).min(total / 4).max(1);
    let boundaries = recipe.schedule.as_ref().map(|schedule| schedule.boundaries().to_vec());
    let is_inside = |step: &u64| *step > 0 && *step < steps;
    let mut sets = vec![];
    if boundaries.is_ok_and(|boundaries| boundaries.iter().any(is_inside)) {
        sets.push("schedule.name=\"cosine\"".to_owned());
    }
    sets.push(format!("schedule.warmup_steps={steps}"));
    sets.push("schedule.warmup=\"linear\"".to_owned());
    sets.push("schedule.warmup_factor=0.0".to_owned());
    sets
}

/// There is no warm-up, but the recipe needs one.
pub(super) fn missing(recipe: &Recipe<'_>) -> Vec<Found> {
    let Some(rates) = recipe.rates else { return vec![] };
    if rates.ramp_steps > 0 || rates.max == 0.0 {
        return vec![];
    }
    let change = "warm up linearly from 0";
    match need(recipe, &rates) {
        Some(why) if recipe.total_steps() >= MIN_TOTAL => {
            let reason = format!("the run starts at more than half of its highest rate: {why}");
            vec![Found::new(Severity::Warning, reason, change, usual(recipe))]
        }
        _ if recipe.is_adam() => {
            let reason = "Adam starts at its peak rate, while its second moments rest on few steps"
                .to_owned();
            vec![Found::new(Severity::Note, reason, change, vec![])]
        }
        _ => vec![],
    }
}

/// The warm-up takes few steps.
pub(super) fn too_short(recipe: &Recipe<'_>) -> Vec<Found> {
    let Some(rates) = recipe.rates else { return vec![] };
    let total = recipe.total_steps();
    let least = match recipe.config.optimizer.rule {
        UpdateRule::Lamb(_) => MIN_STEPS_OF_LAMB,
        _ if recipe.kind.num_parameters().is_some() => MIN_STEPS.max((total / 2000).min(200)),
        _ => MIN_STEPS,
    };
    if rates.ramp_steps == 0 || rates.ramp_steps >= least || total < MIN_TOTAL {
        return vec![];
    }
    let Some(why) = need(recipe, &rates) else { return vec![] };
    let reason = format!(
        "the rate rises within {} of {total} steps ({}): {why}",
        rates.ramp_steps,
        percent(rates.ramp_steps, total)
    );
    vec![Found::new(Severity::Warning, reason, "warm up for longer", usual(recipe))]
}

/// The warm-up is most of the run or more.
pub(super) fn too_long(recipe: &Recipe<'_>) -> Vec<Found> {
    let total = recipe.total_steps();
    let (severity, reason) = match &recipe.schedule {
        Err(error @ schedule::Error::Warmup { .. }) => (Severity::Error, error.to_string()),
        Ok(schedule) => {
            let warmup = schedule.warmup_steps();
            if warmup > total {
                let end = schedule.end_step().unwrap_or(total);
                let reason = format!(
                    "the run of {total} steps ends inside the warm-up of {warmup} steps, as the \
                     first part of a schedule of {end}"
                );
                let change = "leave it if the run is to be continued, or shorten the warm-up";
                return vec![Found::new(Severity::Note, reason, change, vec![])];
            }
            let share = warmup as f64 / total.max(1) as f64;
            let severity = match share {
                _ if total < 20 => return vec![],
                0.6.. => Severity::Warning,
                // Steps, not shares, are what moments and norms need.
                0.15.. if warmup > MAX_STEPS && recipe.is_adam() => Severity::Warning,
                0.2.. => Severity::Note,
                _ => return vec![],
            };
            let share = percent(warmup, total);
            (severity, format!("the warm-up takes {warmup} of {total} steps, {share}"))
        }
        _ => return vec![],
    };
    let mut sets = vec![format!("schedule.warmup_steps={}", (total / 10).max(1))];
    if recipe.schedule.is_err() {
        sets.push(format!("schedule.warmup_factor={:?}", recipe.config.schedule.warmup.factor));
    }
    vec![Found::new(severity, reason, "shorten the warm-up, or lengthen the run", sets)]
}

/// A boundary lies inside the warm-up.
pub(super) fn boundary_inside(recipe: &Recipe<'_>) -> Vec<Found> {
    let Ok(schedule) = &recipe.schedule else { return vec![] };
    let warmup = schedule.warmup_steps();
    let inside = schedule.boundaries().iter().find(|step| **step > 0 && **step < warmup);
    let Some(step) = inside else { return vec![] };
    let reason = format!(
        "the boundary at step {step} lies inside the warm-up of {}, which passes over it; after \
         the warm-up the rate is not the peak",
        counted(warmup, "step")
    );
    let sets = vec!["schedule.name=\"cosine\"".to_owned()];
    let change = "move the boundary past the warm-up, or use a smooth decay";
    vec![Found::new(Severity::Warning, reason, change, sets)]
}
