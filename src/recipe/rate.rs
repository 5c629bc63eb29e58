//! Rules about the size of the resolved rate, for optimizers without trust ratios.

use super::figures::{ModelKind, Rates};
use super::{Found, Recipe, Severity, short};
use crate::config::{AutoOr, BatchSize, Peak, Scaling, UpdateRule};

/// From this multiple of the limit on, a rate is certain to diverge.
const CERTAIN: f64 = 6.0;

/// SGD's rate / (1 - momentum) on images: Goyal et al. have 32 at a batch of 8192, and no published
/// recipe has more than 40.
const MAX_LASTING: f64 = 60.0;

/// Parameters from which published rates times widths are lower.
const LARGE_TRANSFORMER: f64 = 1e11;

/// The rate times the width of a transformer: Adam moves each of the W inputs of a sum by the rate,
/// and the sum by up to W times as much.
fn limit_of_adam(width: f64, num_parameters: f64) -> f64 {
    let product = if num_parameters >= LARGE_TRANSFORMER { 3.0 } else { 4.5 };
    product / width
}

/// A rate for Adam that is in the range of published ones for this size, as GPT-3's table 2.1
/// extrapolates it.
pub(super) fn usual_of_adam(recipe: &Recipe<'_>) -> f64 {
    let ModelKind::Transformer { width, num_parameters } = recipe.kind else { return 1e-3 };
    let by_size = 6e-4 * (1.25e8 / num_parameters).cbrt();
    let by_batch = 1.3e-6 * recipe.batch().sqrt();
    by_size.clamp(1e-5, 1e-3).max(by_batch.min(1e-3)).min(2.0 / width)
}

/// A rate for SGD in the range of published ones for this batch and momentum.
fn usual_of_sgd(recipe: &Recipe<'_>) -> f64 {
    let per_256 = recipe.batch() / 256.0 / recipe.momentum_gain();
    match recipe.kind {
        ModelKind::Convolutional { is_small: true } => (2.0 * per_256).min(3.0),
        ModelKind::Convolutional { is_small: false } => per_256.min(8.0),
        ModelKind::Transformer { .. } => 0.1 / recipe.momentum_gain(),
        ModelKind::Mlp { .. } | ModelKind::Linear => 0.5 / recipe.momentum_gain(),
    }
}

/// The highest rate is beyond what diverges.
pub(super) fn too_high(recipe: &Recipe<'_>) -> Vec<Found> {
    let Some(rates) = recipe.rates else { return vec![] };
    let gain = recipe.momentum_gain();
    let rate = short(rates.max);
    let (excess, target, reason) = match (&recipe.config.optimizer.rule, recipe.kind) {
        (_, ModelKind::Linear) | (UpdateRule::Lars(_) | UpdateRule::Lamb(_), _) => return vec![],
        (UpdateRule::Sgd(_), ModelKind::Convolutional { is_small }) => {
            let per_256 = recipe.rate_per_256(&rates);
            let limit = match (is_small, rates.ramp_steps) {
                (true, _) => 12.0,
                // Published rates stop growing with the batch.
                (false, _) if recipe.batch() >= 4096.0 => 2.8,
                (false, 0) => 5.0,
                (false, _) => 8.0,
            };
            let lasting = rates.max * gain;
            let excess = match recipe.is_full_batch() {
                // Without noise the batch does not matter.
                true => lasting / MAX_LASTING,
                // What is certain to diverge does so at any batch.
                false if lasting <= MAX_LASTING => (per_256 / limit).min(CERTAIN),
                false => per_256 / limit,
            };
            let excess = excess.max(rates.max / 20.0);
            let reason = format!(
                "a rate of {rate} at a batch of {} is {} per 256 examples over the momentum (rate \
                 / (1 - momentum)); Goyal et al. have 1, and published recipes at most 5 (10 on \
                 CIFAR)",
                recipe.batch(),
                short(per_256)
            );
            (excess, usual_of_sgd(recipe), reason)
        }
        (UpdateRule::Sgd(_), kind) => {
            let limit = match kind {
                ModelKind::Mlp { has_norm: true } => 50.0,
                ModelKind::Mlp { has_norm: false } => 5.0,
                _ => 6.0,
            };
            let reason = format!(
                "SGD at a rate of {rate} has a lasting step of {} (rate / (1 - momentum)), above 2 \
                 / sharpness of such a model",
                short(rates.max * gain)
            );
            // Clipping bounds how far a step goes: with it, a large step is a doubt, not a
            // certainty.
            let clip = recipe.config.optimizer.clip_grad_norm.unwrap_or(1.0).min(1.0);
            (rates.max * gain * clip / limit, usual_of_sgd(recipe), reason)
        }
        (
            UpdateRule::Adam(_) | UpdateRule::AdamW(_),
            ModelKind::Transformer { width, num_parameters },
        ) => {
            let limit = limit_of_adam(width, num_parameters);
            if rates.max <= limit {
                return too_high_for_few_tokens(recipe, &rates);
            }
            let reason = format!(
                "Adam moves each weight by the rate, {rate} here: rate x width is {}, and \
                 published transformers have at most 3.3 (1.9 from 1e11 parameters on)",
                short(rates.max * width)
            );
            (rates.max / limit, usual_of_adam(recipe), reason)
        }
        (UpdateRule::Adam(_) | UpdateRule::AdamW(_), _) => {
            let reason = format!(
                "Adam moves each weight by the rate, {rate} here at a batch of {}; published \
                 recipes have at most 0.01, and 0.004 in batches of a few",
                recipe.batch()
            );
            // The noise of a step grows as its examples get fewer.
            let limit = match recipe.kind {
                ModelKind::Convolutional { .. } => {
                    0.02 * (recipe.batch() / 256.0).sqrt().clamp(0.2, 1.0)
                }
                _ => 0.02,
            };
            (rates.max / limit, usual_of_adam(recipe), reason)
        }
    };
    if excess <= 1.0 {
        return vec![];
    }
    let severity = if excess > CERTAIN { Severity::Error } else { Severity::Warning };
    let sets = recipe.set_peak(&rates, target);
    vec![Found::new(severity, reason, "lower the rate", sets).beside_published()]
}

/// Tokens of a step below which rates of pre-training are not published.
const FEW_TOKENS: f64 = 15_000.0;
/// Tokens of a step up to which the limit of rate x width grows with their root, as the noise of
/// the mean gradient falls.
const MANY_TOKENS: f64 = 250_000.0;
/// Smaller transformers are trained at higher rates, but few of these are published.
pub(super) const SMALL_TRANSFORMER: f64 = 5e6;

/// A rate of pre-training for a step of few tokens: its gradients are mostly noise.
fn too_high_for_few_tokens(recipe: &Recipe<'_>, rates: &Rates) -> Vec<Found> {
    let ModelKind::Transformer { width, num_parameters } = recipe.kind else { return vec![] };
    let tokens = recipe.total_tokens() / recipe.total_steps().max(1) as f64;
    let is_trained = num_parameters >= 5e7 && recipe.total_tokens() >= 2.0 * num_parameters;
    // Larger models need larger steps.
    let few = FEW_TOKENS * (num_parameters / 1e8).sqrt().max(1.0);
    let is_of_large_steps = tokens < few && rates.max * width >= 0.25 && is_trained;
    let limit = limit_of_adam(width, num_parameters) * (tokens / MANY_TOKENS).sqrt().min(1.0);
    let is_noise = num_parameters >= SMALL_TRANSFORMER && rates.max > limit;
    if !is_of_large_steps && !is_noise {
        return vec![];
    }
    let reason = format!(
        "a rate of {} (rate x width {}) for steps of {} tokens: the noise of a step's gradient \
         grows as its tokens get fewer, and such rates are published for steps of more tokens, \
         most of them half a million",
        short(rates.max),
        short(rates.max * width),
        short(tokens)
    );
    let target = (usual_of_adam(recipe) * (tokens / 5e5).sqrt().min(1.0)).min(0.2 / width);
    let target = target.min(0.5 * limit);
    let change = "lower the rate, or accumulate more microbatches in a larger batch";
    let sets = recipe.set_peak(rates, target);
    vec![Found::new(Severity::Warning, reason, change, sets).beside_published()]
}

/// The highest rate is too low to train from scratch.
pub(super) fn too_low(recipe: &Recipe<'_>) -> Vec<Found> {
    let Some(rates) = recipe.rates else { return vec![] };
    let rate = short(rates.max);
    if rates.max == 0.0 {
        let reason = "the rate is 0 in every step".to_owned();
        let sets = vec!["schedule.name=\"cosine\"".to_owned()];
        return vec![Found::new(Severity::Error, reason, "give the rate another shape", sets)];
    }
    let (reason, target) = match (&recipe.config.optimizer.rule, recipe.kind) {
        (UpdateRule::Sgd(_), ModelKind::Convolutional { .. }) => {
            let per_256 = recipe.rate_per_256(&rates);
            let limit = match recipe.is_from_scratch() {
                true if recipe.batch() >= 1024.0 => 0.28,
                true => 0.08,
                false => 0.002,
            };
            if per_256 >= limit && per_256 < 0.28 && recipe.is_from_scratch() {
                let reason = format!(
                    "a rate of {rate} at a batch of {} is {} per 256 examples over the momentum \
                     (rate / (1 - momentum)); Goyal et al. have 1, and lower ones are published \
                     for networks without batch norm and for contrastive learning",
                    recipe.batch(),
                    short(per_256)
                );
                let change = "consider a higher rate";
                return vec![Found::new(Severity::Note, reason, change, vec![]).beside_published()];
            }
            // Without noise the rate need not grow with the batch.
            if per_256 >= limit || recipe.is_full_batch() {
                return vec![];
            }
            let reason = format!(
                "a rate of {rate} at a batch of {} is {} per 256 examples over the momentum (rate \
                 / (1 - momentum)), where Goyal et al. have 1: {:.0} times less",
                recipe.batch(),
                short(per_256),
                1.0 / per_256
            );
            (reason, usual_of_sgd(recipe))
        }
        (UpdateRule::Sgd(_), ModelKind::Transformer { .. }) => {
            let lasting = rates.max * recipe.momentum_gain();
            if lasting >= 0.01 {
                return vec![];
            }
            let reason = format!(
                "SGD at a rate of {rate} has a lasting step of {} (rate / (1 - momentum)): \
                 gradients of transformers are small, and this is a rate for Adam, which divides \
                 by their size",
                short(lasting)
            );
            (reason, usual_of_sgd(recipe))
        }
        (
            UpdateRule::Adam(_) | UpdateRule::AdamW(_),
            ModelKind::Transformer { width, num_parameters },
        ) => {
            let floor = 1e-6 * recipe.batch().sqrt();
            // E5 and others are trained further, on pairs, for up to 20 thousand steps.
            let is_large = recipe.batch() >= 16384.0
                && recipe.total_steps() >= 30_000
                && rates.max < floor
                && floor * width < 2.0;
            let is_long = is_long_for_fine_tuning(recipe);
            // Narrow transformers are trained from scratch at 1e-4: DETR.
            let is_tiny = rates.max * width < 0.05 && rates.max < 6e-5 && is_long;
            // Rates of large models rest on fewer tests, and are alike.
            let is_below_size = num_parameters >= 1e9
                && is_long
                && recipe.total_tokens() >= 40.0 * num_parameters
                && rates.max < 0.3 * usual_of_adam(recipe);
            if !is_large && !is_tiny && !is_below_size {
                return vec![];
            }
            let reason = format!(
                "a rate of {rate} at a batch of {} is one of fine-tuning or of a far smaller \
                 batch, and the run is long enough to train from scratch",
                recipe.batch()
            );
            (reason, usual_of_adam(recipe))
        }
        (UpdateRule::Adam(_) | UpdateRule::AdamW(_), ModelKind::Convolutional { .. })
            if recipe.is_from_scratch() && rates.max < 2e-5 =>
        {
            let reason = format!(
                "Adam moves each weight by at most {rate} in a step; published recipes from \
                 scratch have 1e-3 to 4e-3"
            );
            (reason, usual_of_adam(recipe))
        }
        _ => return vec![],
    };
    let sets = recipe.set_peak(&rates, target);
    vec![Found::new(Severity::Warning, reason, "raise the rate", sets).beside_published()]
}

/// `true` if data and steps are those of training a transformer from scratch. Vision transformers
/// are fine-tuned on ImageNet for up to 100 epochs.
fn is_long_for_fine_tuning(recipe: &Recipe<'_>) -> bool {
    let Some(num_parameters) = recipe.kind.num_parameters() else { return false };
    let data = recipe.tokens_of_data().unwrap_or(0.0);
    let is_large = data >= 20.0 * num_parameters && recipe.total_tokens() >= 20.0 * num_parameters;
    let is_repeated = recipe.epochs().is_some_and(|epochs| epochs >= 150.0) && data >= 1e8;
    recipe.total_steps() >= 20_000 && (is_large || is_repeated)
}

/// A rate for training from scratch in a run that is too short for it.
pub(super) fn fine_tuning(recipe: &Recipe<'_>) -> Vec<Found> {
    let (Some(rates), ModelKind::Transformer { width, num_parameters }) =
        (recipe.rates, recipe.kind)
    else {
        return vec![];
    };
    let tokens = recipe.total_tokens();
    let is_too_high = rates.max > limit_of_adam(width, num_parameters);
    if !recipe.is_adam() || is_too_high || rates.max * width <= 0.32 {
        return vec![];
    }
    // Small corpora are fine-tuned on for a few epochs, and trained on from scratch for many.
    let is_small = recipe.tokens_of_data().is_some_and(|data| data < num_parameters)
        && recipe.epochs().is_some_and(|epochs| epochs <= 12.0)
        && tokens < 3.0 * num_parameters;
    if tokens >= num_parameters && !is_small {
        return vec![];
    }
    let reason = format!(
        "{} tokens for {} parameters are too few to train from scratch, and a rate of {} is too \
         high to fine-tune",
        short(tokens),
        short(num_parameters),
        short(rates.max)
    );
    let target = 2e-5f64.min(0.1 / width);
    let change = "lower the rate to fine-tune, or lengthen the run to train from scratch";
    let sets = recipe.set_peak(&rates, target);
    vec![Found::new(Severity::Warning, reason, change, sets).beside_published()]
}

/// The declared scaling does not fit.
pub(super) fn not_scaled(recipe: &Recipe<'_>) -> Vec<Found> {
    let batch = recipe.global_batch();
    let scale = recipe.scale().unwrap_or(1.0);
    let off = scale.max(1.0 / scale);
    match recipe.config.schedule.peak {
        Peak::Scaled { base_lr, base_batch, scaling: Scaling::None } if off >= 2.0 => {
            // The rate is then off by 4 in either case.
            let is_far = if recipe.scales_linearly() { off >= 4.0 } else { off >= 16.0 };
            let scaling = if recipe.scales_linearly() { "linear" } else { "sqrt" };
            let sets = vec![format!("schedule.scaling={scaling:?}")];
            let (severity, sets) =
                if is_far { (Severity::Warning, sets) } else { (Severity::Note, vec![]) };
            let reason = format!(
                "the rate stays {base_lr}, which was found at a batch of {base_batch}, for a batch \
                 of {batch}"
            );
            let change = "set schedule.scaling = \"linear\" (or \"sqrt\" for Adam and LAMB)";
            vec![Found::new(severity, reason, change, sets)]
        }
        Peak::Scaled { scaling: Scaling::Sqrt, .. } if recipe.is_sgd() && off >= 4.0 => {
            let reason = format!(
                "the rate of SGD is scaled with the root of the batch over {off:.0} times the \
                 batch; the mean gradient does not grow with the batch, so fewer steps need a rate \
                 in proportion"
            );
            let sets = vec!["schedule.scaling=\"linear\"".to_owned()];
            vec![Found::new(Severity::Warning, reason, "scale linearly", sets)]
        }
        Peak::Scaled { scaling: Scaling::Linear, .. } if recipe.is_adam() && scale >= 16.0 => {
            let reason = format!(
                "the rate of an adaptive optimizer is scaled linearly over {scale:.0} times the \
                 batch; the noise of its updates falls with the root of the batch"
            );
            let change = "scale with the root of the batch, or declare a base batch near the run's";
            // From 256 to 4096 it is published.
            let (severity, sets) = match scale >= 32.0 {
                true => (Severity::Warning, vec!["schedule.scaling=\"sqrt\"".to_owned()]),
                false => (Severity::Note, vec![]),
            };
            vec![Found::new(severity, reason, change, sets)]
        }
        Peak::Rate(peak) if matches!(recipe.config.train.batch, BatchSize::PerReplica(_)) => {
            let mesh = &recipe.config.mesh;
            let is_fixed = mesh.data != AutoOr::Auto && mesh.fsdp != AutoOr::Auto;
            let severity = if is_fixed { Severity::Note } else { Severity::Warning };
            let reason = format!(
                "the batch grows with the replicas, {batch} on {}, but the rate stays {peak}",
                recipe.num_batch_shards
            );
            let scaling = if recipe.scales_linearly() { "linear" } else { "sqrt" };
            let sets = vec![
                format!("schedule.base_lr={peak:?}"),
                format!("schedule.base_batch={batch}"),
                format!("schedule.scaling={scaling:?}"),
            ];
            let change = "give the batch that the rate was found at, or set train.global_batch";
            vec![Found::new(severity, reason, change, sets)]
        }
        _ => vec![],
    }
}

/// SGD on a transformer, at a rate that other rules accept.
pub(super) fn sgd_on_transformer(recipe: &Recipe<'_>) -> Vec<Found> {
    let (true, ModelKind::Transformer { num_parameters, .. }, Some(rates)) =
        (recipe.is_sgd(), recipe.kind, recipe.rates)
    else {
        return vec![];
    };
    // Vision transformers are fine-tuned with SGD on data sets that are small beside their
    // parameters.
    let is_from_scratch = recipe.total_tokens() >= 20.0 * num_parameters
        && recipe.tokens_of_data().is_some_and(|data| data >= 2.0 * num_parameters);
    let reason = "SGD trains transformers from scratch far more slowly than Adam".to_owned();
    let change = "set optimizer.name = \"adamw\" with a rate for it, unless a vision transformer \
                  is fine-tuned";
    let (severity, sets) = match is_from_scratch {
        true => {
            let adam = vec!["optimizer.name=\"adamw\"".to_owned()];
            let usual = recipe.set_peak(&rates, usual_of_adam(recipe));
            (Severity::Warning, [adam, usual].concat())
        }
        false => (Severity::Note, vec![]),
    };
    vec![Found::new(severity, reason, change, sets)]
}

/// The rate times the width from which a transformer is trained from scratch: fine-tuning has 0.005
/// to 0.05.
pub(super) fn limit_of_scratch(recipe: &Recipe<'_>) -> f64 {
    if recipe.is_adam() { 0.07 } else { f64::INFINITY }
}
