//! Rules about keys that are declared and do nothing in this run.

use super::{Found, Recipe, Severity, short, weight_decay};
use crate::optim::Mask;

/// Weight decay that applies to no matrix.
pub(super) fn weight_decay(recipe: &Recipe<'_>) -> Vec<Found> {
    let optimizer = &recipe.config.optimizer;
    let decay = optimizer.rule.weight_decay();
    if decay == 0.0 || !optimizer.weight_decays.is_empty() {
        return vec![];
    }
    let decayed = Mask::new("weight_decay_exclude", optimizer.weight_decay_exclude.as_ref());
    let mut matrices = recipe.ranks.iter().filter(|(_, rank)| **rank >= 2).peekable();
    if matrices.peek().is_none() || matrices.any(|(path, rank)| decayed.includes(path, *rank)) {
        return vec![];
    }
    let reason = format!(
        "a decay of {decay} is declared, and weight_decay_exclude excludes all weights from it"
    );
    let change = "leave the patterns out (--unset optimizer.weight_decay_exclude), which excludes \
                  biases and norms, or exclude only these";
    let vectors = weight_decay::vectors(recipe);
    let sets = vec![format!("optimizer.weight_decay_exclude={vectors:?}")];
    vec![Found::new(Severity::Warning, reason, change, sets)]
}

/// Evaluations that are further apart than the run is long.
pub(super) fn evaluations(recipe: &Recipe<'_>) -> Vec<Found> {
    let (train, total) = (&recipe.config.train, recipe.total_steps());
    // Shorter runs are tests of a configuration.
    if train.eval_every <= total || total < 1000 {
        return vec![];
    }
    let (severity, effect) = match train.patience {
        0 => (Severity::Note, "it is evaluated at its end only"),
        _ => (Severity::Warning, "it can never end early, which train.patience asks for"),
    };
    let reason = format!(
        "evaluations are {} steps apart, and the run has {total}: {effect}",
        train.eval_every
    );
    let sets = vec![format!("train.eval_every={}", total / 20)];
    vec![Found::new(severity, reason, "evaluate more often", sets)]
}

/// Published factors of the rate are 0.01 and above: what has less than this hardly moves.
const MIN_FACTOR: f64 = 1e-3;

/// Parameters with so small a factor of the rate that they hardly move.
pub(super) fn factors(recipe: &Recipe<'_>) -> Vec<Found> {
    let factors = &recipe.config.optimizer.lr_factors;
    let least = factors.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    let (Some((pattern, factor)), Some(rates)) = (least, recipe.rates) else { return vec![] };
    if factor >= MIN_FACTOR {
        return vec![];
    }
    let reason = format!(
        "`{pattern}` has {} of the rate, {}, and hardly moves; published factors are 0.01 and \
         above",
        short(factor),
        short(factor * rates.max)
    );
    let raised = factors.iter().map(|(pattern, factor)| {
        format!("{pattern:?} = {:?}", if factor < MIN_FACTOR { 0.1 } else { factor })
    });
    let raised: Vec<_> = raised.collect();
    let sets = vec![format!("optimizer.lr_factors={{ {} }}", raised.join(", "))];
    let change = "raise the factor, or leave these parameters as they are with optimizer.freeze";
    vec![Found::new(Severity::Warning, reason, change, sets)]
}
