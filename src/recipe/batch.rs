//! Rules about the size of the batch.

use super::{Found, GOYAL, LARS, Recipe, Severity};

/// The largest batch with which plain SGD and Adam are known to train well.
const MAX_WITHOUT_TRUST_RATIOS: usize = 32 * 1024;
/// The largest batch of images that needs no label smoothing.
const MAX_WITHOUT_SMOOTHING: usize = 8 * 1024;
/// Statistics of fewer examples are too noisy for batch norm.
const MIN_NORM_GROUP: usize = 16;
/// Epochs with fewer steps are reported.
const MIN_STEPS: u64 = 8;

/// The batch is too large for optimizers with one rate for all parameters.
pub(super) fn without_trust_ratios(recipe: &Recipe<'_>) -> Vec<Found> {
    let batch = recipe.global_batch();
    if batch <= MAX_WITHOUT_TRUST_RATIOS || recipe.has_trust_ratios() {
        return vec![];
    }
    let name = recipe.config.optimizer.rule.name();
    vec![Found {
        severity: Severity::Error,
        reason: format!("a batch of {batch} with {name}, which has one rate for all parameters"),
        source: LARS,
        change: "set optimizer.name = \"lars\" for images, \"lamb\" for transformers, or lower the batch \
                 to 32768"
            .to_owned(),
    }]
}

/// Batch norm over few examples.
pub(super) fn norm_group(recipe: &Recipe<'_>) -> Vec<Found> {
    let Some(group) = recipe.config.model.batch_norm_group() else { return vec![] };
    if group >= MIN_NORM_GROUP {
        return vec![];
    }
    vec![Found {
        severity: Severity::Warning,
        reason: format!(
            "batch norm normalises groups of {group} examples, whose statistics are noise"
        ),
        source: "Wu and He, Group Normalization (2018), figure 1",
        change: "set model.batch_norm_group = 32; a group may lie on several replicas".to_owned(),
    }]
}

/// A large batch of images without label smoothing.
pub(super) fn no_label_smoothing(recipe: &Recipe<'_>) -> Vec<Found> {
    let Some(smoothing) = recipe.config.model.label_smoothing() else { return vec![] };
    let batch = recipe.global_batch();
    if batch <= MAX_WITHOUT_SMOOTHING || smoothing > 0.0 || !recipe.is_for_images() {
        return vec![];
    }
    vec![Found {
        severity: Severity::Warning,
        reason: format!("a batch of {batch} images without label smoothing"),
        source: "He et al., Bag of Tricks for Image Classification (2019), section 5.2",
        change: "set model.label_smoothing = 0.1".to_owned(),
    }]
}

/// The batch is a large part of the data.
pub(super) fn short_epoch(recipe: &Recipe<'_>) -> Vec<Found> {
    let Some(steps) = recipe.run.steps_per_epoch().filter(|steps| *steps < MIN_STEPS) else {
        return vec![];
    };
    vec![Found {
        severity: Severity::Warning,
        reason: format!(
            "an epoch is {steps} steps of {} examples: schedules in epochs are coarse, and gradients are \
             nearly those of all data",
            recipe.global_batch()
        ),
        source: GOYAL,
        change: "lower the batch, or count in steps".to_owned(),
    }]
}
