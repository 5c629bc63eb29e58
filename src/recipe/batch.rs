//! Rules about the batch and its parts.

use hlo::counted;

use super::figures::ModelKind;
use super::{Found, Recipe, Severity};
use crate::config::{ModelConfig, UpdateRule};

/// The largest batch that is published for SGD and Adam alike.
const MAX_WITHOUT_TRUST_RATIOS: usize = 32 * 1024;
/// Batches of more images are published with label smoothing.
const MAX_WITHOUT_SMOOTHING: usize = 8 * 1024;
/// Epochs with fewer steps are reported.
const MIN_STEPS_PER_EPOCH: u64 = 8;
/// Microbatches of one example are reported from this number on.
const MANY_MICROBATCHES: usize = 64;

/// The batch is larger than those published for optimizers with one rate for all parameters.
pub(super) fn without_trust_ratios(recipe: &Recipe<'_>) -> Vec<Found> {
    let batch = recipe.global_batch();
    let rule = &recipe.config.optimizer.rule;
    let severity = match rule {
        _ if batch <= MAX_WITHOUT_TRUST_RATIOS => return vec![],
        UpdateRule::Lars(_) | UpdateRule::Lamb(_) => return vec![],
        UpdateRule::Sgd(_) if matches!(recipe.kind, ModelKind::Mlp { .. } | ModelKind::Linear) => {
            Severity::Note
        }
        UpdateRule::Sgd(_) => Severity::Warning,
        UpdateRule::Adam(_) | UpdateRule::AdamW(_) => Severity::Note,
    };
    let name = rule.name();
    let reason = format!("a batch of {batch} with {name}, which has one rate for all parameters");
    let change = "use LARS for images or LAMB for transformers, or lower the batch to 32768";
    let sets = match severity {
        Severity::Warning => vec!["optimizer.name=\"lars\"".to_owned()],
        _ => vec![],
    };
    vec![Found::new(severity, reason, change, sets)]
}

/// Batch norm over few examples, or over very many.
pub(super) fn norm_group(recipe: &Recipe<'_>) -> Vec<Found> {
    let Some(group) = recipe.config.model.batch_norm_group() else { return vec![] };
    let (severity, what) = match group {
        0..8 => (Severity::Warning, "whose statistics are noise"),
        8..16 => (Severity::Note, "whose statistics are noisy"),
        1024.. if recipe.is_sgd() => {
            (Severity::Warning, "whose statistics have no noise left to regularize")
        }
        1025.. => (Severity::Note, "whose statistics have no noise left to regularize"),
        _ => return vec![],
    };
    let reason = format!("batch norm normalizes groups of {}, {what}", counted(group, "example"));
    let sets = usual_group(recipe).map(|group| format!("model.batch_norm_group={group}"));
    let change = "normalize groups of 32; a group may lie on several replicas";
    vec![Found::new(severity, reason, change, sets.into_iter().collect())]
}

/// The group nearest to 32, from 16 to 256, that the microbatches can be made of.
fn usual_group(recipe: &Recipe<'_>) -> Option<usize> {
    let split = recipe.config.split_batch(recipe.num_batch_shards).ok()?;
    let fits = |group: &usize| split.makes_groups_of(*group);
    (16..=256).filter(fits).min_by_key(|group| group.abs_diff(32))
}

/// Too much label smoothing, or none for a large batch of images.
pub(super) fn label_smoothing(recipe: &Recipe<'_>) -> Vec<Found> {
    let Some(smoothing) = recipe.config.model.label_smoothing() else { return vec![] };
    let batch = recipe.global_batch();
    if smoothing >= 0.3 {
        let reason = format!(
            "label smoothing spreads {:.0} % of each label over all classes; published recipes \
             have 10 to 20 %",
            100.0 * smoothing
        );
        let sets = vec!["model.label_smoothing=0.1".to_owned()];
        return vec![Found::new(Severity::Warning, reason, "smooth by 0.1", sets)];
    }
    if batch <= MAX_WITHOUT_SMOOTHING || smoothing > 0.0 || !recipe.is_for_images() {
        return vec![];
    }
    let reason = format!("a batch of {batch} images without label smoothing");
    let change = "consider model.label_smoothing = 0.1";
    vec![Found::new(Severity::Note, reason, change, vec![])]
}

/// Too much dropout.
pub(super) fn dropout(recipe: &Recipe<'_>) -> Vec<Found> {
    let (rate, most, published) = match &recipe.config.model {
        ModelConfig::Mlp(mlp) => (mlp.dropout, 0.6, "at most 0.5"),
        ModelConfig::Gpt(gpt) => (gpt.model().dropout, 0.35, "0 to 0.3"),
        ModelConfig::Bert(bert) => (bert.model(2).dropout, 0.35, "0 to 0.3"),
        ModelConfig::DistilBert(bert) => (bert.model(2).dropout, 0.35, "0 to 0.3"),
        ModelConfig::ResNet(_) => return vec![],
    };
    if rate <= most {
        return vec![];
    }
    let reason = format!(
        "dropout sets {:.0} % of the values to 0; published recipes of such models have \
         {published}",
        100.0 * rate
    );
    let sets = vec!["model.dropout=0.1".to_owned()];
    vec![Found::new(Severity::Warning, reason, "lower the dropout", sets)]
}

/// The batch is a large part of the data, or made of many small parts.
pub(super) fn shape(recipe: &Recipe<'_>) -> Vec<Found> {
    let mut found = vec![];
    if let Some(steps) = recipe.run.steps_per_epoch().filter(|steps| *steps < MIN_STEPS_PER_EPOCH) {
        let reason = format!(
            "an epoch is {} of {}: lengths in epochs are coarse, and gradients are nearly those of \
             all data",
            counted(steps, "step"),
            counted(recipe.global_batch(), "example")
        );
        let change = "lower the batch, or count in steps";
        found.push(Found::new(Severity::Note, reason, change, vec![]));
    }
    if let Ok(split) = recipe.config.split_batch(recipe.num_batch_shards)
        && split.microbatch() == 1
        && split.num_microbatches() >= MANY_MICROBATCHES
    {
        let reason = format!(
            "{} microbatches of a single example: correct, but as slow as it can be",
            split.num_microbatches()
        );
        let change = match recipe.config.train.microbatch {
            Some(_) => "raise train.microbatch as far as memory allows",
            None => "lower train.num_microbatches as far as memory allows",
        };
        found.push(Found::new(Severity::Note, reason, change, vec![]));
    }
    found
}
