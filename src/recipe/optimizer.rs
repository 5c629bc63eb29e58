//! Rules about the update rule and its masks.

use hlo::{DType, LeafSpec};

use super::{Found, Recipe, Severity};
use crate::config::{Adam, AdamW, UpdateRule};
use crate::optim::{self, Mask};

/// Batches from this size on are sensitive to Adam's constants.
const LARGE_BATCH: usize = 1024;

/// Weight decay pulls scales of norms and biases to zero.
pub(super) fn decayed_norm_or_bias(recipe: &Recipe<'_>) -> Vec<Found> {
    let optimizer = &recipe.config.optimizer;
    if optimizer.rule.weight_decay() == 0.0 {
        return vec![];
    }
    let decayed = Mask::new("weight_decay_exclude", optimizer.weight_decay_exclude.as_ref());
    let is_decayed = |(path, rank): &(&str, &usize)| **rank < 2 && decayed.includes(path, **rank);
    let paths: Vec<_> = recipe.ranks.iter().filter(is_decayed).map(|(path, _)| path).collect();
    let Some(first) = paths.first() else { return vec![] };
    vec![Found {
        severity: Severity::Warning,
        reason: format!(
            "weight decay also pulls at {} biases and scales of norms, such as `{first}`",
            paths.len()
        ),
        source: "He et al., Bag of Tricks for Image Classification (2019), section 3.1",
        change:
            "leave optimizer.weight_decay_exclude out, which excludes all of them, or add patterns \
                 for them"
                .to_owned(),
    }]
}

/// A pattern that matches no parameter.
pub(super) fn unmatched_pattern(recipe: &Recipe<'_>) -> Vec<Found> {
    let leaves = recipe.ranks.map(|_, rank| LeafSpec::replicated(DType::F32, &vec![1; *rank]));
    match optim::from_config(&recipe.config.optimizer).check(&leaves) {
        Ok(()) => vec![],
        Err(error) => vec![Found {
            severity: Severity::Error,
            reason: error.to_string(),
            source: "`lockstep train` would refuse it",
            change: "correct the pattern".to_owned(),
        }],
    }
}

/// Constants with which Adam is known to fail.
pub(super) fn adam_constants(recipe: &Recipe<'_>) -> Vec<Found> {
    let (beta1, beta2, epsilon) = match recipe.config.optimizer.rule {
        UpdateRule::Adam(Adam { beta1, beta2, epsilon, .. })
        | UpdateRule::AdamW(AdamW { beta1, beta2, epsilon, .. }) => (beta1, beta2, epsilon),
        _ => return vec![],
    };
    let mut found = vec![];
    if beta1 >= beta2.sqrt() {
        found.push(Found {
            severity: Severity::Error,
            reason: format!("beta1 = {beta1} is not below the root of beta2 = {beta2}: Adam may diverge"),
            source: "Zhang et al., Adam Can Converge Without Any Modification on Update Rules (2022)",
            change: "raise optimizer.beta2 or lower optimizer.beta1".to_owned(),
        });
    }
    let batch = recipe.global_batch();
    if batch < LARGE_BATCH {
        return found;
    }
    if beta2 > 0.99 {
        found.push(Found {
            severity: Severity::Warning,
            reason: format!(
                "beta2 = {beta2} remembers {:.0} steps: at a batch of {batch} the second moments lag behind \
                 the gradients, and the loss spikes",
                1.0 / (1.0 - beta2)
            ),
            source: "Zhai et al., Sigmoid Loss for Language Image Pre-Training (2023)",
            change: "set optimizer.beta2 = 0.95".to_owned(),
        });
    }
    if epsilon > 1e-7 {
        found.push(Found {
            severity: Severity::Warning,
            reason: format!(
                "epsilon = {epsilon:e} is as large as the gradients of large batches and models, which then \
                 change next to nothing"
            ),
            source: "Wortsman et al., Small-scale Proxies for Large-scale Transformer Training \
                     Instabilities (2023)",
            change: "set optimizer.epsilon = 1e-8 or less".to_owned(),
        });
    }
    found
}
