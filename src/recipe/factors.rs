//! Rules about factors of the rate for single parameters.

use hlo::{DType, LeafSpec};

use super::figures::{ModelKind, two_digits};
use super::rate::limit_of_scratch;
use super::{Found, Recipe, Severity, short};
use crate::optim;

/// Published factors are up to 10 for a new head.
const MAX_FACTOR: f64 = 40.0;
/// A rate of Adam at which single parameters do not converge. Published heads have at most 0.01.
const MAX_RATE_OF_ADAM: f64 = 0.05;
/// The lowest layers of published fine-tuning have a thousandth of the rate.
const MIN_FINE_TUNED: f64 = 1e-4;
/// The same from scratch, where no factor below 1 is published.
const MIN_FROM_SCRATCH: f64 = 0.1;

/// Some parameters have far more or far less than the rate.
pub(super) fn unusual(recipe: &Recipe<'_>) -> Vec<Found> {
    let Some(rates) = recipe.rates else { return vec![] };
    let optimizer = &recipe.config.optimizer;
    if optimizer.lr_factors.is_empty() && optimizer.layer_decay == 1.0 {
        return vec![];
    }
    let leaves = recipe.ranks.map(|_, rank| LeafSpec::replicated(DType::F32, &vec![1; *rank]));
    let link = optim::scale_rates(optimizer.lr_factors.clone(), optimizer.layer_decay);
    let factors = link.factors(&leaves);
    let mut found = vec![];
    let most = factors.iter().max_by(|a, b| a.1.total_cmp(b.1));
    if let Some((path, factor)) = most.filter(|(_, factor)| {
        **factor > MAX_FACTOR
            || **factor > 1.0 && recipe.is_adam() && **factor * rates.max > MAX_RATE_OF_ADAM
    }) {
        let reason = format!(
            "`{path}` has {} times the rate, {}; published heads have up to 10 times",
            short(*factor),
            short(factor * rates.max)
        );
        let usual = if recipe.is_adam() { (0.01 / rates.max).min(10.0) } else { 10.0 };
        let usual = two_digits(usual.max(1.0));
        let entry =
            |(pattern, factor): (&str, f64)| format!("{pattern:?} = {:?}", factor.min(usual));
        let entries: Vec<_> = optimizer.lr_factors.iter().map(entry).collect();
        let sets = vec![format!("optimizer.lr_factors={{ {} }}", entries.join(", "))];
        found.push(Found::new(Severity::Warning, reason, "lower the factor", sets));
    }
    let lowest = factors.values().copied().filter(|factor| *factor > 0.0).fold(1.0, f64::min);
    let is_from_scratch = match recipe.kind {
        ModelKind::Transformer { width, num_parameters } => {
            rates.max * width >= limit_of_scratch(recipe)
                && recipe.tokens_of_data().is_some_and(|data| data >= 20.0 * num_parameters)
                && recipe.total_tokens() >= 20.0 * num_parameters
        }
        _ => recipe.is_from_scratch(),
    };
    let least = if is_from_scratch { MIN_FROM_SCRATCH } else { MIN_FINE_TUNED };
    if optimizer.layer_decay < 1.0 && lowest < least {
        let what =
            if is_from_scratch { "which are trained from scratch" } else { "which hardly move" };
        let reason = format!(
            "with layer_decay = {} the lowest layers have {} of the rate, {what}",
            optimizer.layer_decay,
            short(lowest)
        );
        let usual = if is_from_scratch { 1.0 } else { 0.9 };
        let sets = vec![format!("optimizer.layer_decay={usual:?}")];
        let change = "raise layer_decay; 1 from scratch";
        found.push(Found::new(Severity::Warning, reason, change, sets));
    }
    found
}
