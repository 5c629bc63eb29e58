//! Rules about LARS and LAMB: their steps are shares of a layer's norm.

use super::figures::ModelKind;
use super::weight_decay::vectors;
use super::{Found, Recipe, Severity, short};
use crate::config::{Lamb, Lars, UpdateRule};
use crate::optim::Mask;

/// The share of its norm that a layer moves in one step at the highest rate:
/// `(in one step, over the momentum)`.
pub(super) fn shares(recipe: &Recipe<'_>) -> Option<(f64, f64)> {
    let rate = recipe.rates?.max;
    match recipe.config.optimizer.rule {
        UpdateRule::Lars(Lars { trust_coefficient, .. }) => {
            let share = rate * trust_coefficient;
            Some((share, share * recipe.momentum_gain()))
        }
        UpdateRule::Lamb(_) => Some((rate, rate)),
        _ => None,
    }
}

/// A share for one step that is in the range of published ones at this batch.
fn usual_share(recipe: &Recipe<'_>) -> f64 {
    let batch = recipe.batch();
    match recipe.config.optimizer.rule {
        UpdateRule::Lars(_) => {
            (0.01 * (batch / 4096.0).sqrt()).clamp(0.0025, 0.03).min(0.3 / recipe.momentum_gain())
        }
        // 6.25e-4 at 512, with the root of the batch: You et al. (2020), table 4.
        _ => (2.76e-5 * batch.sqrt()).clamp(5e-4, 0.01),
    }
}

/// Assignments for a usual share: the coefficient if that is unusual, and the rate.
fn set_usual(recipe: &Recipe<'_>) -> Vec<String> {
    let Some(rates) = recipe.rates else { return vec![] };
    let share = usual_share(recipe);
    match recipe.config.optimizer.rule {
        UpdateRule::Lars(Lars { trust_coefficient, .. }) => {
            let mut sets = vec![];
            if !(1e-4..=0.02).contains(&trust_coefficient) {
                sets.push("optimizer.trust_coefficient=0.001".to_owned());
                if (0.1..=40.0).contains(&rates.max) && rates.max < 60.0 * share * 1000.0 {
                    return sets;
                }
                sets.extend(recipe.set_peak(&rates, share / 0.001));
                return sets;
            }
            recipe.set_peak(&rates, share / trust_coefficient)
        }
        _ => recipe.set_peak(&rates, share),
    }
}

/// Layers move too far in a step.
pub(super) fn too_high(recipe: &Recipe<'_>) -> Vec<Found> {
    let Some((once, lasting)) = shares(recipe) else { return vec![] };
    let is_lars = matches!(recipe.config.optimizer.rule, UpdateRule::Lars(_));
    let (is_high, is_certain) = match is_lars {
        true => (once > 0.05 || lasting > 0.8, once > 1.0),
        // You et al. (2020) have 0.04 for ResNet-50 at 32768.
        false if matches!(recipe.kind, ModelKind::Convolutional { .. }) => {
            (once > 0.06, once > 0.3)
        }
        false => (once > 0.03, once > 0.3),
    };
    if !is_high {
        return vec![];
    }
    let name = recipe.config.optimizer.rule.name();
    let reason = format!(
        "{name} moves each layer by {} of its norm in a step, {} over the momentum",
        short(once),
        short(lasting)
    );
    let severity = if is_certain { Severity::Error } else { Severity::Warning };
    let change = "lower the rate, or the trust coefficient of LARS";
    vec![Found::new(severity, reason, change, set_usual(recipe)).beside_published()]
}

/// No matrix has a trust ratio.
pub(super) fn excluded(recipe: &Recipe<'_>) -> Vec<Found> {
    let (UpdateRule::Lars(Lars { trust_exclude, .. })
    | UpdateRule::Lamb(Lamb { trust_exclude, .. })) = &recipe.config.optimizer.rule
    else {
        return vec![];
    };
    let mask = Mask::new("trust_exclude", trust_exclude.as_ref());
    let mut ranks = recipe.ranks.iter();
    let name = recipe.config.optimizer.rule.name();
    if ranks.any(|(path, rank)| *rank >= 2 && mask.includes(path, *rank)) {
        return vec![];
    }
    let without = if name == "lars" { "SGD with momentum" } else { "Adam" };
    let reason = format!(
        "no layer has a trust ratio, so that {name} is {without} at rates that are shares of a \
         layer's norm"
    );
    let sets = vec![format!("optimizer.trust_exclude={:?}", vectors(recipe))];
    let change = "leave the patterns out (--unset optimizer.trust_exclude), which excludes biases \
                  and norms, or exclude only these";
    vec![Found::new(Severity::Error, reason, change, sets)]
}

/// Layers hardly move in the whole run.
pub(super) fn too_low(recipe: &Recipe<'_>) -> Vec<Found> {
    let (Some((_, lasting)), Some(rates)) = (shares(recipe), recipe.rates) else { return vec![] };
    let steps = recipe.total_steps();
    let all = lasting * rates.mean * steps as f64;
    let is_low = match recipe.config.optimizer.rule {
        UpdateRule::Lars(_) => steps >= 500 && all < 20.0 && lasting < 0.02,
        _ => steps > 2000 && all < 1.0 && lasting < 5e-4,
    };
    if !is_low {
        return vec![];
    }
    let name = recipe.config.optimizer.rule.name();
    let reason = format!(
        "{name} moves each layer by {} of its norm in a step at the highest rate, and by {} times \
         its norm in all {steps} steps",
        short(lasting),
        short(all)
    );
    let change = "raise the rate, or the trust coefficient of LARS";
    vec![Found::new(Severity::Warning, reason, change, set_usual(recipe)).beside_published()]
}
