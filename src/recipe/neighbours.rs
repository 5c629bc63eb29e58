//! The rate beside those that are published for the same optimizer and kind of model at about the same batch.

use super::figures::ModelKind;
use super::published::{PublishedRecipe, recipes};
use super::{Found, Recipe, Severity, rate, short, trust};
use crate::config::{Scaling, UpdateRule};

/// Published batches are compared up to this ratio to ours.
const MAX_BATCH_RATIO: f64 = 16.0;
/// Published transformers are compared up to this ratio of parameters.
const MAX_SIZE_RATIO: f64 = 16.0;
/// Ratio to the second highest published rate from which a rate is reported. The highest is often a single unusual recipe.
const MAX_ABOVE: f64 = 3.0;
/// Ratio of the lowest published rate to ours from which ours is reported.
const MAX_BELOW: f64 = 4.0;
/// Rates of Adam up to this one, twice its default, are usual at any batch.
const USUAL_OF_ADAM: f64 = 2e-3;

/// How far a gradient moves the parameters in the end, for a rate of this recipe: the share of a layer's norm for LARS and
/// LAMB, the rate for Adam.
fn effective_rate(recipe: &Recipe<'_>) -> Option<f64> {
    match (&recipe.config.optimizer.rule, recipe.kind) {
        (UpdateRule::Lars(_) | UpdateRule::Lamb(_), kind) if kind != ModelKind::Linear => {
            trust::shares(recipe).map(|(_, lasting)| lasting)
        }
        (UpdateRule::Adam(_) | UpdateRule::AdamW(_), ModelKind::Convolutional { .. }) => {
            recipe.rates.map(|rates| rates.max)
        }
        _ => None,
    }
}

/// The effective rates of published recipes near this one, each scaled to our batch as its papers scale it; rising.
fn published_rates(recipe: &Recipe<'_>) -> Vec<f64> {
    let is_near = |a: f64, b: f64, most: f64| (a / b).max(b / a) <= most;
    let has_size = |published: &PublishedRecipe| {
        let sizes = published.parameters.zip(recipe.kind.num_parameters());
        sizes.is_none_or(|(theirs, ours)| is_near(theirs, ours, MAX_SIZE_RATIO))
    };
    let mut rates: Vec<_> = recipes()
        .iter()
        .filter(|published| published.is_comparable(recipe) && has_size(published))
        .filter(|published| is_near(published.batch as f64, recipe.batch(), MAX_BATCH_RATIO))
        .map(|published| {
            let ratio = recipe.batch() / published.batch as f64;
            let scale = match published.scaling {
                Scaling::Linear => ratio,
                _ => ratio.sqrt(),
            };
            published.effective_rate() * scale
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    rates
}

/// `true` if a rule with a limit for all batches says so already.
fn is_known(recipe: &Recipe<'_>) -> bool {
    let rules = [trust::too_high, trust::too_low, rate::too_high, rate::too_low];
    rules.iter().any(|find| !find(recipe).is_empty())
}

/// The rate is far from those of the published recipes at about this batch.
pub(super) fn unlike_published(recipe: &Recipe<'_>) -> Vec<Found> {
    let (Some(ours), Some(rates)) = (effective_rate(recipe), recipe.rates) else { return vec![] };
    if ours <= 0.0 || is_known(recipe) {
        return vec![];
    }
    let published = published_rates(recipe);
    // Fewer than three recipes are not a range.
    let [lowest, .., second, _] = published[..] else { return vec![] };
    let is_usual = recipe.is_adam() && ours <= USUAL_OF_ADAM;
    let (how, change) = match () {
        () if ours > MAX_ABOVE * second && !is_usual => {
            (format!("{} times above all but one of them", short(ours / second)), "lower the rate")
        }
        () if ours < lowest / MAX_BELOW && !recipe.is_adam() => {
            (format!("{} times below all of them", short(lowest / ours)), "raise the rate")
        }
        () => return vec![],
    };
    let reason = format!(
        "{} published recipes with {} for such models have batches of {:.0} to {:.0}; scaled to {}, their rates are such that {} is {how}",
        published.len(),
        recipe.config.optimizer.rule.name(),
        recipe.batch() / MAX_BATCH_RATIO,
        recipe.batch() * MAX_BATCH_RATIO,
        recipe.global_batch(),
        short(rates.max)
    );
    let median = published.get(published.len() / 2).copied().unwrap_or(second);
    let sets = recipe.set_peak(&rates, rates.max * median / ours);
    vec![Found::new(Severity::Warning, reason, change, sets).beside_published()]
}
