//! Rules about weight decay. They judge the share of a parameter that decays in a step and in the
//! run.

use hlo::counted;

use super::figures::ModelKind;
use super::rate::limit_of_scratch;
use super::{Found, Recipe, Severity, short};
use crate::config::UpdateRule;
use crate::optim::Mask;

/// Decay takes too much in a step.
pub(super) fn too_strong(recipe: &Recipe<'_>) -> Vec<Found> {
    let Some(rates) = recipe.rates else { return vec![] };
    let rule = &recipe.config.optimizer.rule;
    let decay = rule.weight_decay();
    // The share of a parameter that a step takes, where the rate multiplies it.
    let share = match rule {
        UpdateRule::Sgd(_) => rates.max * decay * recipe.momentum_gain(),
        _ => rates.max * decay,
    };
    let (is_strong, is_certain, usual) = match rule {
        UpdateRule::Sgd(_) => (share > 0.02 || decay >= 5e-3, share > 1.0, 1e-4),
        UpdateRule::Adam(_) => (decay >= 0.01, false, 1e-4),
        UpdateRule::AdamW(_) => {
            let usual = (1e-3 / rates.max.max(1e-12)).min(0.1);
            (share > 5e-3 || decay >= 1.0, share > 0.02, usual)
        }
        UpdateRule::Lars(_) => (decay >= 1e-3, false, 1e-4),
        UpdateRule::Lamb(_) => (decay > 0.5, false, 0.01),
    };
    if !is_strong {
        return vec![];
    }
    let reason = match rule {
        UpdateRule::Sgd(_) | UpdateRule::AdamW(_) => format!(
            "a decay of {decay} takes {} % of each weight in a step at the highest rate",
            short(100.0 * share)
        ),
        UpdateRule::Adam(_) => format!(
            "a decay of {decay} is added to the gradient, which it exceeds; divided by its own \
             size it is a constant pull to 0"
        ),
        UpdateRule::Lars(_) | UpdateRule::Lamb(_) => {
            format!("a decay of {decay} is larger than the gradient's share of the update")
        }
    };
    let severity = if is_certain { Severity::Error } else { Severity::Warning };
    let usual = match rule {
        UpdateRule::Sgd(_) => usual.min(0.01 / (rates.max * recipe.momentum_gain()).max(1e-9)),
        _ => usual,
    };
    let sets = vec![format!("optimizer.weight_decay={:?}", super::figures::two_digits(usual))];
    vec![Found::new(severity, reason, "lower the decay", sets)]
}

/// Decay does nothing in the whole run.
pub(super) fn too_weak(recipe: &Recipe<'_>) -> Vec<Found> {
    let Some(rates) = recipe.rates else { return vec![] };
    let rule = &recipe.config.optimizer.rule;
    let decay = rule.weight_decay();
    let travelled = rates.max * rates.mean * recipe.total_steps() as f64;
    let exponent = travelled * recipe.momentum_gain() * decay;
    match (rule, recipe.kind) {
        (UpdateRule::Sgd(_), ModelKind::Convolutional { .. }) => {
            let is_long = recipe.epochs().is_some_and(|epochs| epochs >= 60.0);
            // A rate that is too low is the fault then.
            let is_moving = recipe.rate_per_256(&rates) >= 0.2 && !recipe.is_full_batch();
            if !is_long || !recipe.is_from_scratch() || exponent >= 0.5 || !is_moving {
                return vec![];
            }
            let reason = format!(
                "a decay of {decay} shrinks weights by a factor of exp(-{}) in the whole run; \
                 published recipes have exponents of 5 to 40",
                short(exponent)
            );
            // Published decays of SGD are up to 5e-4 for long runs and to 1e-3 for short ones.
            let usual = if decay > 0.0 { (decay / exponent).clamp(1e-4, 1e-3) } else { 1e-4 };
            let sets =
                vec![format!("optimizer.weight_decay={:?}", super::figures::two_digits(usual))];
            vec![Found::new(Severity::Warning, reason, "raise the decay", sets)]
        }
        (UpdateRule::Lars(_), ModelKind::Convolutional { .. }) => {
            if decay > 0.0 || !recipe.is_from_scratch() {
                return vec![];
            }
            let reason = "LARS moves each layer by a share of its norm, at right angles to it: \
                          without decay norms only grow, whatever the rate"
                .to_owned();
            let sets = vec!["optimizer.weight_decay=0.0001".to_owned()];
            vec![Found::new(Severity::Warning, reason, "set a decay", sets)]
        }
        (UpdateRule::AdamW(_), ModelKind::Transformer { width, num_parameters }) => {
            let is_from_scratch = rates.max * width >= limit_of_scratch(recipe);
            let is_long = recipe.total_tokens() >= 20.0 * num_parameters;
            if !is_from_scratch || decay > 1e-3 || exponent >= 0.5 || (decay == 0.0 && !is_long) {
                return vec![];
            }
            let reason = format!(
                "a decay of {decay}, multiplied by the rate, does next to nothing; was it meant \
                 for an AdamW that does not multiply by the rate?"
            );
            let change = "consider optimizer.weight_decay = 0.1";
            vec![Found::new(Severity::Note, reason, change, vec![])]
        }
        _ => vec![],
    }
}

/// Weight decay pulls scales of norms and biases to zero.
pub(super) fn norm_or_bias(recipe: &Recipe<'_>) -> Vec<Found> {
    let optimizer = &recipe.config.optimizer;
    if optimizer.rule.weight_decay() == 0.0 {
        return vec![];
    }
    let decayed = Mask::new("weight_decay_exclude", optimizer.weight_decay_exclude.as_ref());
    let is_decayed = |(path, rank): &(&str, &usize)| **rank < 2 && decayed.includes(path, **rank);
    let paths: Vec<_> = recipe.ranks.iter().filter(is_decayed).map(|(path, _)| path).collect();
    let Some(first) = paths.first() else { return vec![] };
    let reason = format!(
        "weight decay also pulls at {}: biases and scales of norms, such as `{first}`",
        counted(paths.len(), "parameter")
    );
    let change = "leave the patterns out (--unset optimizer.weight_decay_exclude), which excludes \
                  all of them, or exclude these too";
    let sets = vec![format!("optimizer.weight_decay_exclude={:?}", vectors(recipe))];
    vec![Found::new(Severity::Warning, reason, change, sets)]
}

/// Patterns that match all parameters of rank below 2 and no other.
pub(super) fn vectors(recipe: &Recipe<'_>) -> Vec<String> {
    let ending = |path: &str| {
        let names: Vec<_> = path.rsplit('.').take(2).collect();
        names.into_iter().rev().collect::<Vec<_>>().join(".")
    };
    let of_rank = |is_vector: bool| {
        recipe.ranks.iter().filter(move |(_, rank)| (**rank < 2) == is_vector).map(|(path, _)| path)
    };
    let mut patterns: Vec<String> = vec![];
    for path in of_rank(true) {
        let ending = ending(path);
        let is_unique = !of_rank(false).any(|other| other.ends_with(&ending));
        let pattern = if is_unique { format!("*{ending}") } else { path.to_owned() };
        if !patterns.contains(&pattern) {
            patterns.push(pattern);
        }
    }
    patterns
}
