//! Rules about the optimizer's constants and masks.

use hlo::{DType, LeafSpec};

use super::figures::ModelKind;
use super::{Found, Recipe, Severity, short, weight_decay};
use crate::config::{Lars, PrecisionConfig, Sgd, UpdateRule};
use crate::optim;

/// A pattern that matches no parameter.
pub(super) fn unmatched_pattern(recipe: &Recipe<'_>) -> Vec<Found> {
    let leaves = recipe.ranks.map(|_, rank| LeafSpec::replicated(DType::F32, &vec![1; *rank]));
    let Err(error) = optim::from_config(&recipe.config.optimizer).check(&leaves) else {
        return vec![];
    };
    let optimizer = &recipe.config.optimizer;
    let vectors = weight_decay::vectors(recipe);
    let mut sets = vec![];
    if optimizer.weight_decay_exclude.is_some() {
        sets.push(format!("optimizer.weight_decay_exclude={vectors:?}"));
    }
    if let UpdateRule::Lars(Lars { trust_exclude: Some(_), .. }) = &optimizer.rule {
        sets.push(format!("optimizer.trust_exclude={vectors:?}"));
    }
    if let UpdateRule::Lamb(lamb) = &optimizer.rule
        && lamb.trust_exclude.is_some()
    {
        sets.push(format!("optimizer.trust_exclude={vectors:?}"));
    }
    vec![Found::new(Severity::Error, error.to_string(), "correct the pattern", sets)]
}

/// `beta1` and `beta2` out of the range in which Adam works.
pub(super) fn betas(recipe: &Recipe<'_>) -> Vec<Found> {
    let Some((beta1, beta2, _)) = recipe.adam_constants() else { return vec![] };
    let reason = match () {
        () if beta1 >= beta2.sqrt() => format!(
            "beta1 = {beta1} is not below the root of beta2 = {beta2}, {}: Adam may diverge",
            short(beta2.sqrt())
        ),
        () if beta2 < 0.8 => format!(
            "beta2 = {beta2} remembers {}, whose noise the step is divided by",
            memory(beta2)
        ),
        () if beta2 > 0.9995 => format!(
            "beta2 = {beta2} remembers {}: second moments lag behind gradients, and the loss \
             spikes",
            memory(beta2)
        ),
        () if beta1 > 0.98 => {
            format!("beta1 = {beta1} remembers {}: updates lag behind gradients", memory(beta1))
        }
        () => return vec![],
    };
    let usual = if matches!(recipe.kind, ModelKind::Transformer { .. }) { 0.95 } else { 0.999 };
    let is_inside = (0.88..=0.9995).contains(&beta2);
    let mut sets = vec![];
    if beta1 > 0.9 {
        sets.push("optimizer.beta1=0.9".to_owned());
    }
    if !is_inside || 0.9f64.min(beta1) >= beta2.sqrt() || beta1 >= beta2.sqrt() {
        sets.push(format!("optimizer.beta2={usual:?}"));
    }
    vec![Found::new(Severity::Warning, reason, "set usual betas", sets)]
}

/// nnU-Net and networks for translation have 0.99 with SGD.
const MAX_MOMENTUM: f64 = 0.991;

/// Momentum that is probably a typing error, or missing.
pub(super) fn momentum(recipe: &Recipe<'_>) -> Vec<Found> {
    let (
        UpdateRule::Sgd(Sgd { momentum, .. }) | UpdateRule::Lars(Lars { momentum, .. }),
        Some(rates),
    ) = (&recipe.config.optimizer.rule, recipe.rates)
    else {
        return vec![];
    };
    let gain = short(1.0 / (1.0 - momentum));
    let reason = match () {
        () if *momentum > 0.0 && *momentum < 0.4 => format!(
            "a momentum of {momentum} multiplies the lasting step by {gain} only; 0.9, with which \
             rates are published, by 10"
        ),
        () if *momentum == 0.0
            && recipe.is_sgd()
            && recipe.is_from_scratch()
            && recipe.rate_per_256(&rates) <= 0.25 =>
        {
            format!(
                "without momentum a rate of {} at a batch of {} is {} of what it is with 0.9, for \
                 which rates are published",
                short(rates.max),
                recipe.batch(),
                short(0.1)
            )
        }
        () if *momentum > MAX_MOMENTUM && recipe.is_sgd() => format!(
            "a momentum of {momentum} multiplies the lasting step by {gain}, and remembers as many \
             steps; published recipes have 0.9 to 0.99"
        ),
        () if *momentum > 0.98 && !recipe.is_sgd() => format!(
            "a momentum of {momentum} multiplies the lasting step of LARS by {gain}; published \
             recipes have 0.9 to 0.97"
        ),
        () => return vec![],
    };
    let sets = vec!["optimizer.momentum=0.9".to_owned()];
    let change = "set a momentum of 0.9, or change the rate as much the other way";
    vec![Found::new(Severity::Warning, reason, change, sets)]
}

/// An epsilon as large as the gradients.
pub(super) fn epsilon(recipe: &Recipe<'_>) -> Vec<Found> {
    let Some((_, _, epsilon)) = recipe.adam_constants() else { return vec![] };
    // With a gradient norm of 1, each of 1e8 parameters has 1e-4.
    let limit = if matches!(recipe.kind, ModelKind::Transformer { .. }) { 1e-4 } else { 1e-3 };
    if epsilon < limit {
        return vec![];
    }
    let (severity, usual) = match recipe.config.optimizer.rule {
        UpdateRule::Lamb(_) => (Severity::Note, "1e-6"),
        _ => (Severity::Warning, "1e-8"),
    };
    let reason = format!(
        "an epsilon of {epsilon} is larger than most gradients: the update is the mean gradient \
         divided by epsilon"
    );
    let sets = vec![format!("optimizer.epsilon={usual}")];
    vec![Found::new(severity, reason, "lower epsilon", sets)]
}

/// Running means that remember more than half of the run.
pub(super) fn long_memory(recipe: &Recipe<'_>) -> Vec<Found> {
    let total = recipe.total_steps();
    let optimizer = &recipe.config.optimizer;
    let is_long = |decay: f64| 2.0 / (1.0 - decay) > total as f64;
    // Means of parameters are often corrected for their start by a decay that grows, which is not
    // said here.
    let severity = |key: &str, decay: f64| match key {
        "ema_decay" if 1.0 / (1.0 - decay) <= total as f64 => Severity::Note,
        _ => Severity::Warning,
    };
    let reason = |key: &str, decay: f64| {
        format!("optimizer.{key} = {decay} remembers {}, and the run has {total}", memory(decay))
    };
    // A twentieth of the run, so that the means are those of its end.
    let shorter = 1.0 - 20.0 / total.max(40) as f64;
    let mut found = vec![];
    let uncorrected = match optimizer.rule {
        UpdateRule::Sgd(Sgd { momentum, .. }) | UpdateRule::Lars(Lars { momentum, .. }) => {
            Some(("momentum", momentum, 0.9))
        }
        _ => None,
    };
    let ema = optimizer.ema_decay.map(|decay| ("ema_decay", decay, (shorter * 1e4).floor() / 1e4));
    // Shorter runs are tests of a configuration.
    let checked = uncorrected.into_iter().chain(ema).filter(|_| total >= 40);
    for (key, decay, usual) in checked.filter(|(_, decay, _)| is_long(*decay)) {
        let sets = vec![format!("optimizer.{key}={usual:?}")];
        let severity = severity(key, decay);
        found.push(Found::new(severity, reason(key, decay), "lower the decay", sets));
    }
    if let Some((_, beta2, _)) = recipe.adam_constants()
        && is_long(beta2)
        && found.is_empty()
    {
        let change = "nothing: Adam corrects its moments for their start";
        found.push(Found::new(Severity::Note, reason("beta2", beta2), change, vec![]));
    }
    found
}

/// The steps that a running mean with this decay remembers.
fn memory(decay: f64) -> String {
    match short(1.0 / (1.0 - decay)).as_str() {
        "1" => "1 step".to_owned(),
        steps => format!("{steps} steps"),
    }
}

/// A running mean of the parameters that forgets at once.
pub(super) fn short_memory(recipe: &Recipe<'_>) -> Vec<Found> {
    let Some(decay) = recipe.config.optimizer.ema_decay.filter(|decay| *decay < 0.9) else {
        return vec![];
    };
    let total = recipe.total_steps();
    let reason = format!(
        "optimizer.ema_decay = {decay} averages the parameters of {}, and the run has {total}: it \
         is the share that is kept, not the share of the new",
        memory(decay)
    );
    let usual = 0.9999f64.min(1.0 - 20.0 / total.max(400) as f64);
    let sets = vec![format!("optimizer.ema_decay={:?}", (usual * 1e4).floor() / 1e4)];
    let change = "raise the decay, or leave the averaging out";
    vec![Found::new(Severity::Warning, reason, change, sets)]
}

/// f64 in a run that is not a test.
pub(super) fn double_precision(recipe: &Recipe<'_>) -> Vec<Found> {
    let total = recipe.total_steps();
    if recipe.config.train.precision != PrecisionConfig::F64 || total < 1000 {
        return vec![];
    }
    let reason = format!(
        "all {total} steps are in f64, which most devices compute many times more slowly than f32, \
         and training does not need"
    );
    let sets = vec!["train.precision=\"f32\"".to_owned()];
    vec![Found::new(Severity::Warning, reason, "train in f32 or bf16", sets)]
}

/// Adam's updates do not depend on how far all gradients are clipped, so that this is a note.
fn unusual_clipping(limit: f64) -> Option<Found> {
    (limit < 0.005).then(|| {
        let reason = format!(
            "gradients are clipped at a norm of {limit}, every one of them; published limits are \
             0.01 to 5, so that outliers stand out"
        );
        Found::new(Severity::Note, reason, "consider clipping at 1", vec![])
    })
}

/// Clipping that bounds what the run can do, or is missing.
pub(super) fn clipping(recipe: &Recipe<'_>) -> Vec<Found> {
    let Some(rates) = recipe.rates else { return vec![] };
    let sets = vec!["optimizer.clip_grad_norm=1.0".to_owned()];
    let change = "clip at 1";
    let Some(limit) = recipe.config.optimizer.clip_grad_norm else {
        let lasting = rates.max * recipe.momentum_gain();
        let is_transformer = recipe.kind.num_parameters().is_some();
        if !recipe.is_sgd() || !is_transformer || lasting < 0.5 {
            return vec![];
        }
        let reason = format!(
            "SGD takes steps of {} times the gradient (rate / (1 - momentum)), and the gradients \
             of transformers have heavy tails: without clipping one of them can end the run",
            short(lasting)
        );
        return vec![Found::new(Severity::Warning, reason, change, sets)];
    };
    if let UpdateRule::Sgd(_) = recipe.config.optimizer.rule {
        let steps = recipe.total_steps() as f64;
        let all = limit * rates.max * rates.mean * steps * recipe.momentum_gain();
        let is_idle = all < 10.0 && limit < 0.05 && recipe.is_from_scratch();
        if limit >= 0.05 && !is_idle {
            return vec![];
        }
        let severity = if is_idle { Severity::Error } else { Severity::Warning };
        let reason = format!(
            "gradients are clipped at a norm of {limit}: a step moves all parameters together by \
             at most {}, all steps by {}",
            short(limit * rates.max * recipe.momentum_gain()),
            short(all)
        );
        return vec![Found::new(severity, reason, change, sets)];
    }
    // Adam divides by the size of the gradients, unless that is below epsilon.
    let (Some((_, _, epsilon)), Some(num_parameters)) =
        (recipe.adam_constants().filter(|_| recipe.is_adam()), recipe.kind.num_parameters())
    else {
        return vec![];
    };
    let each = limit / num_parameters.sqrt();
    if each >= epsilon / 30.0 || epsilon >= 1e-4 {
        return unusual_clipping(limit).into_iter().collect();
    }
    let severity = if each < epsilon / 1e4 { Severity::Error } else { Severity::Warning };
    let reason = format!(
        "gradients are clipped at a norm of {limit}, {} for each of {} parameters: below epsilon = \
         {epsilon}, so that updates are {} of the rate",
        short(each),
        short(num_parameters),
        short(each / epsilon)
    );
    vec![Found::new(severity, reason, change, sets)]
}
