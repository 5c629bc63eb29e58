//! Rules about the shape of the rate after the warm-up.

use hlo::counted;

use super::figures::ModelKind;
use super::rate::limit_of_scratch;
use super::{Found, Recipe, Severity, percent, short};
use crate::config::{Shape, UpdateRule, WarmupKind, Wsd};
use crate::optim::schedule::{self, Schedule};

/// Replaces the shape by one that fits every run.
fn cosine() -> Vec<String> {
    vec!["schedule.name=\"cosine\"".to_owned()]
}

/// The end of the decay at the end of the run.
fn end_with_run(recipe: &Recipe<'_>) -> Vec<String> {
    vec![format!("schedule.total_steps={}", recipe.total_steps())]
}

/// The boundaries in proportion, so that the last is at 90 % of the run. A cosine if they do not
/// fit.
fn rescaled(recipe: &Recipe<'_>) -> Vec<String> {
    let Ok(schedule) = &recipe.schedule else { return cosine() };
    let (total, boundaries) = (recipe.total_steps() as f64, schedule.boundaries());
    let last = boundaries.last().copied().unwrap_or(0).max(1) as f64;
    let share = if matches!(recipe.config.schedule.shape, Shape::Piecewise(_)) { 1.0 } else { 0.9 };
    let moved: Vec<_> = boundaries
        .iter()
        .map(|step| (*step as f64 / last * share * total).round() as u64)
        .collect();
    let rising = moved.is_sorted_by(|a, b| a < b);
    let warmup = schedule.warmup_steps();
    if !rising
        || moved.iter().any(|step| *step > 0 && *step < warmup)
        || moved.is_empty()
        || moved == boundaries
    {
        return cosine();
    }
    vec![format!("schedule.boundaries={moved:?}")]
}

/// The schedule is refused; warm-ups that are too long have their own rule.
pub(super) fn impossible(recipe: &Recipe<'_>) -> Vec<Found> {
    let error = match &recipe.schedule {
        Err(error) if !matches!(error, schedule::Error::Warmup { .. }) => error,
        _ => return vec![],
    };
    let total = recipe.total_steps();
    let sets = match error {
        schedule::Error::NoWarmup { .. } => vec!["schedule.warmup=\"none\"".to_owned()],
        schedule::Error::Total { .. } => {
            let warmup = format!("schedule.warmup_steps={}", (total / 20).max(1));
            [end_with_run(recipe), vec![warmup]].concat()
        }
        schedule::Error::Peak { .. } => vec!["schedule.peak=0.001".to_owned()],
        schedule::Error::Length(_) => vec![],
        _ => cosine(),
    };
    vec![Found::new(Severity::Error, error.to_string(), "as the reason says", sets)]
}

/// The decay ends before the run.
pub(super) fn ends_early(recipe: &Recipe<'_>) -> Vec<Found> {
    let (Ok(schedule), Some(rates)) = (&recipe.schedule, recipe.rates) else { return vec![] };
    let total = schedule.total_steps();
    let Some(end) = schedule.end_step().filter(|end| *end < total) else { return vec![] };
    let rest = total - end;
    let does_nothing = rates.last < 1e-3 && rest as f64 >= 0.02 * total as f64;
    // Published decays that end at a floor end in the last half.
    let is_most = 10 * rest >= 7 * total && rates.last <= 0.5;
    let is_slow = 10 * rest >= 3 * total && rates.last <= 0.02;
    let severity = match (does_nothing, 2 * rest >= total) {
        (true, true) => Severity::Error,
        (true, false) => Severity::Warning,
        (false, _) if is_most || is_slow => Severity::Warning,
        (false, _) => Severity::Note,
    };
    let reason = format!(
        "the schedule ends at step {end}, and the last {rest} of {total} steps ({}) have a rate of \
         {}",
        percent(rest, total),
        short(schedule.lr(total - 1))
    );
    let change = "let the decay end with the run, or shorten the run";
    vec![Found::new(severity, reason, change, end_with_run(recipe))]
}

/// The decay ends after the run.
pub(super) fn ends_late(recipe: &Recipe<'_>) -> Vec<Found> {
    let (Ok(schedule), Some(rates)) = (&recipe.schedule, recipe.rates) else { return vec![] };
    let total = schedule.total_steps();
    let Some(end) = schedule.end_step().filter(|end| *end > total) else { return vec![] };
    let floor = match &recipe.config.schedule.shape {
        Shape::Cosine(decay) | Shape::Linear(decay) => decay.floor,
        Shape::Polynomial(decay) => decay.floor,
        Shape::Wsd(wsd) => wsd.floor,
        _ => 0.0,
    };
    let severity = if rates.last - floor > 0.3 { Severity::Warning } else { Severity::Note };
    let reason = format!(
        "the schedule ends at step {end}, after the end of the run at {total}, where the rate is \
         still {:.0} % of its peak",
        100.0 * rates.last
    );
    let change = "let the decay end with the run, or lengthen the run";
    vec![Found::new(severity, reason, change, end_with_run(recipe))]
}

/// Boundaries after the end of the run.
pub(super) fn unreached(recipe: &Recipe<'_>) -> Vec<Found> {
    let Ok(schedule) = &recipe.schedule else { return vec![] };
    let total = schedule.total_steps();
    // A piecewise curve ends at its last point, which is where the run ends.
    let is_after = |step: &&u64| match recipe.config.schedule.shape {
        Shape::Piecewise(_) => **step > total,
        _ => **step >= total,
    };
    let after: Vec<_> = schedule.boundaries().iter().filter(is_after).collect();
    let Some(first) = after.first() else { return vec![] };
    // Shorter runs are tests of a configuration.
    let severity = if total >= 1000 { Severity::Warning } else { Severity::Note };
    let reason = format!(
        "the run ends at step {total} and never reaches {} of {}, the first at {first}",
        after.len(),
        counted(schedule.boundaries().len(), "boundary")
    );
    let change = "move the boundaries into the run, or lengthen it";
    vec![Found::new(severity, reason, change, rescaled(recipe))]
}

/// The lowest usual mean rate of a run, as a share of the peak.
const MIN_MEAN: f64 = 0.06;
/// Published powers are 0.5 to 2.
const MAX_POWER: f64 = 5.0;
/// Published factors of `step` are 0.1 and above.
const MIN_FACTOR: f64 = 0.02;

/// Most of the run is at a rate far below the peak.
pub(super) fn too_soon(recipe: &Recipe<'_>) -> Vec<Found> {
    let (Ok(schedule), Some(rates)) = (&recipe.schedule, recipe.rates) else { return vec![] };
    let ends_early = schedule.end_step().is_some_and(|end| end < schedule.total_steps());
    if rates.max == 0.0 || ends_early || recipe.total_steps() < 50 {
        return vec![];
    }
    let steep = match &recipe.config.schedule.shape {
        Shape::Polynomial(polynomial) if polynomial.power > MAX_POWER => Some((
            format!(
                "a power of {}: the rate is below a tenth of its peak in most of the run",
                polynomial.power
            ),
            "schedule.power=2.0",
        )),
        Shape::Step(step) if step.factor < MIN_FACTOR => Some((
            format!(
                "each boundary multiplies the rate by {}: after the first the parameters hardly \
                 move",
                step.factor
            ),
            "schedule.factor=0.1",
        )),
        _ => None,
    };
    if let Some((reason, set)) = steep.filter(|_| rates.mean >= MIN_MEAN) {
        let change = "decay more slowly";
        return vec![Found::new(Severity::Warning, reason, change, vec![set.to_owned()])];
    }
    if rates.mean >= MIN_MEAN {
        let boundary = first_boundary(recipe, schedule).or_else(|| last_boundary(recipe, schedule));
        return boundary.into_iter().collect();
    }
    let sets = match &recipe.config.schedule.shape {
        Shape::Polynomial(polynomial) if polynomial.power > 2.0 => {
            vec!["schedule.power=2.0".to_owned()]
        }
        Shape::Step(_) | Shape::Piecewise(_) => rescaled(recipe),
        _ => cosine(),
    };
    let reason = format!(
        "the mean rate of the run is {:.1} % of its peak: the rate falls long before the end of \
         the run",
        100.0 * rates.mean
    );
    vec![Found::new(Severity::Warning, reason, "spread the decay over the run", sets)]
}

/// The share of the run before which no published boundary of `step` is.
const MIN_FIRST: f64 = 0.05;

/// The first boundary of `step` is at the start of the run, after the warm-up.
fn first_boundary(recipe: &Recipe<'_>, schedule: &Schedule) -> Option<Found> {
    let (Shape::Step(step), total) = (&recipe.config.schedule.shape, recipe.total_steps()) else {
        return None;
    };
    let first = *schedule.boundaries().first()?;
    let is_early = (first as f64) < MIN_FIRST * total as f64 && first > schedule.warmup_steps();
    if !is_early || step.factor > 0.5 || total < 1000 {
        return None;
    }
    let reason = format!(
        "the rate is multiplied by {} at step {first} already, of {total}: is it a number of \
         epochs?",
        step.factor
    );
    Some(Found::new(Severity::Warning, reason, "move the boundary", cosine()))
}

/// The share of the run before which the last published boundary of `step` never is, if little of
/// the rate is left after it.
const MIN_LAST: f64 = 0.45;

/// After the last boundary of `step` most of the run is left, at next to no rate.
fn last_boundary(recipe: &Recipe<'_>, schedule: &Schedule) -> Option<Found> {
    let (Shape::Step(step), total) = (&recipe.config.schedule.shape, recipe.total_steps()) else {
        return None;
    };
    let last = *schedule.boundaries().last()?;
    let left = step.factor.powi(i32::try_from(schedule.boundaries().len()).unwrap_or(i32::MAX));
    let is_early = (last as f64) < MIN_LAST * total as f64;
    if !is_early || left > 0.02 || total < 1000 {
        return None;
    }
    let reason = format!(
        "after the last boundary, at step {last} of {total}, {} of the run have {} of the rate: \
         are the boundaries those of a shorter run?",
        percent(total - last, total),
        short(left)
    );
    let change = "move the boundaries to the end of the run";
    Some(Found::new(Severity::Warning, reason, change, rescaled(recipe)))
}

/// The rate hardly decays in a long run.
pub(super) fn never(recipe: &Recipe<'_>) -> Vec<Found> {
    let (Ok(schedule), Some(rates)) = (&recipe.schedule, recipe.rates) else { return vec![] };
    let is_late = schedule.end_step().is_some_and(|end| end > schedule.total_steps());
    // Published floors are up to 0.33, and inverse square roots end higher in short runs.
    let most =
        if matches!(recipe.config.schedule.shape, Shape::InverseSqrt(_)) { 0.5 } else { 0.35 };
    // Averaging the parameters takes the noise out as a decay would, and so does a gradient of all
    // data.
    let is_averaged = recipe.config.optimizer.ema_decay.is_some_and(|decay| decay >= 0.99)
        && (matches!(recipe.config.schedule.shape, Shape::Constant(_)) || rates.last < 0.6);
    if rates.last <= most || is_late || is_averaged || recipe.is_full_batch() {
        return vec![];
    }
    let is_long = match recipe.kind {
        ModelKind::Convolutional { is_small } => {
            let is_known = !is_small || !recipe.is_adam();
            is_known
                && recipe.is_from_scratch()
                && recipe.epochs().is_some_and(|epochs| epochs >= 30.0)
        }
        ModelKind::Transformer { width, num_parameters } => {
            let tokens = recipe.total_tokens();
            // LAMB's steps are relative, and large in all published runs.
            let is_from_scratch = match recipe.config.optimizer.rule {
                UpdateRule::Lamb(_) => rates.max >= 5e-4,
                _ => rates.max * width >= limit_of_scratch(recipe),
            };
            is_from_scratch && tokens >= 20.0 * num_parameters && tokens >= 1e9
        }
        _ => false,
    };
    if !is_long {
        return vec![];
    }
    let sets = match &recipe.config.schedule.shape {
        Shape::Step(_) if schedule.boundaries().iter().all(|step| *step < recipe.total_steps()) => {
            vec!["schedule.factor=0.1".to_owned()]
        }
        Shape::Step(_) => rescaled(recipe),
        Shape::Linear(_) | Shape::Polynomial(_) | Shape::Wsd(_) | Shape::Cosine(_) => {
            vec!["schedule.floor=0.0".to_owned()]
        }
        _ => cosine(),
    };
    let reason = format!(
        "the rate ends at {:.0} % of its peak: noise of the last steps stays in the parameters",
        100.0 * rates.last
    );
    vec![Found::new(Severity::Warning, reason, "let the rate decay", sets)]
}

/// The decay of `wsd` is too short to matter.
pub(super) fn too_short(recipe: &Recipe<'_>) -> Vec<Found> {
    let (Shape::Wsd(wsd), true) = (&recipe.config.schedule.shape, recipe.schedule.is_ok()) else {
        return vec![];
    };
    let total = recipe.total_steps();
    let Ok(steps) = recipe.run.steps(Wsd::decay(wsd), "schedule.decay_epochs") else {
        return vec![];
    };
    if total < 1000 || steps as f64 >= 0.02 * total as f64 {
        return vec![];
    }
    let reason = format!("the decay takes {steps} of {total} steps, {}", percent(steps, total));
    let sets = vec![format!("schedule.decay_steps={}", total / 10)];
    vec![Found::new(Severity::Warning, reason, "decay over a tenth of the run", sets)]
}

/// Number of steps that are checked.
const MAX_STEPS: u64 = 2_000_000;
/// In a shorter run every step is a jump.
const MIN_STEPS: u64 = 50;

/// The largest jump after a published constant warm-up is by 10 (He et al., 2016).
const MAX_JUMP: f64 = 12.0;

/// A constant warm-up ends in a jump.
fn jump_after_warmup(recipe: &Recipe<'_>, schedule: &Schedule) -> Option<Found> {
    let warmup = schedule.warmup_steps();
    let is_inside = warmup > 0 && warmup < schedule.total_steps();
    if recipe.config.schedule.warmup.kind != WarmupKind::Constant || !is_inside {
        return None;
    }
    let (before, after) = (schedule.lr(warmup - 1), schedule.lr(warmup));
    if after <= MAX_JUMP * before {
        return None;
    }
    let reason = format!(
        "the constant warm-up ends with a jump from {} to {}, which the parameters are not \
         prepared for",
        short(before),
        short(after)
    );
    let sets = vec!["schedule.warmup=\"linear\"".to_owned()];
    Some(Found::new(Severity::Warning, reason, "warm up linearly", sets))
}

/// The factors of `piecewise` stay below 1: probably they are rates.
pub(super) fn peak_unreached(recipe: &Recipe<'_>) -> Vec<Found> {
    let Shape::Piecewise(piecewise) = &recipe.config.schedule.shape else { return vec![] };
    let highest = piecewise.factors.iter().copied().fold(0.0, f64::max);
    if highest <= 0.0 || highest >= 0.9 {
        return vec![];
    }
    let reason = format!(
        "the highest factor is {}, so that the peak is never reached; factors multiply the peak, \
         and are not rates",
        short(highest)
    );
    let shares: Vec<_> =
        piecewise.factors.iter().map(|factor| (factor / highest * 1e6).round() / 1e6).collect();
    let sets = vec![format!("schedule.factors={shares:?}")];
    let change = "divide the factors by the highest, or lower the peak and do so";
    vec![Found::new(Severity::Warning, reason, change, sets)]
}

/// The rate jumps without a declared boundary, or `step` raises it.
pub(super) fn jump(recipe: &Recipe<'_>) -> Vec<Found> {
    let (Ok(schedule), Some(rates)) = (&recipe.schedule, recipe.rates) else { return vec![] };
    if let Shape::Step(step) = &recipe.config.schedule.shape
        && step.factor > 1.0
    {
        let reason = format!("the rate is multiplied by {} at each boundary", step.factor);
        let sets = vec!["schedule.factor=0.1".to_owned()];
        return vec![Found::new(Severity::Warning, reason, "set a factor below 1", sets)];
    }
    if schedule.total_steps() < MIN_STEPS {
        return vec![];
    }
    if let Some(found) = jump_after_warmup(recipe, schedule) {
        return vec![found];
    }
    let Some(step) = first_jump(schedule, 0.25 * rates.max) else { return vec![] };
    let (before, after) = (schedule.lr(step - 1), schedule.lr(step));
    let reason = format!(
        "the rate jumps from {} to {} at step {step}, where the schedule declares no step",
        short(before),
        short(after)
    );
    let severity = if after > before { Severity::Warning } else { Severity::Note };
    let change = "let the pieces meet: lengthen the warm-up or the decay, or give the first point \
                  after the warm-up a factor of 1";
    vec![Found::new(severity, reason, change, cosine())]
}

/// The first step after the warm-up at which the rate changes by more than this where no jump is
/// declared.
///
/// The rate rises or falls throughout between the end of the warm-up, the boundaries and the end of
/// the decay. So no step of a piece changes it by more than the whole piece does, and only pieces
/// that change it by more are searched.
fn first_jump(schedule: &Schedule, least: f64) -> Option<u64> {
    let total = schedule.total_steps().min(MAX_STEPS);
    let first = schedule.warmup_steps().max(1) - 1;
    let last = total.checked_sub(1).filter(|last| *last > first)?;
    let bends = schedule.boundaries().iter().copied().chain(schedule.end_step());
    let bends = bends.chain([schedule.warmup_steps()]);
    // A bend and the steps beside it, so that the change at it is a piece of its own.
    let bends = bends.flat_map(|step| [step.saturating_sub(1), step, step.saturating_add(1)]);
    let mut ends: Vec<_> = bends.filter(|step| (first..last).contains(step)).collect();
    ends.extend([first, last]);
    ends.sort_unstable();
    ends.dedup();
    ends.windows(2).find_map(|piece| first_jump_in(schedule, least, piece[0], piece[1]))
}

/// The first jump after step `from`, up to step `to`, between which the rate only rises or falls.
fn first_jump_in(schedule: &Schedule, least: f64, from: u64, to: u64) -> Option<u64> {
    let change = (schedule.lr(to) - schedule.lr(from)).abs();
    if change.is_nan() || change <= least {
        return None;
    }
    if to - from == 1 {
        return (!schedule.is_declared_jump(to)).then_some(to);
    }
    let middle = from + (to - from) / 2;
    let before = first_jump_in(schedule, least, from, middle);
    before.or_else(|| first_jump_in(schedule, least, middle, to))
}
