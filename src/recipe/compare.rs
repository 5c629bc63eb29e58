//! Two recipes side by side.

use serde::Serialize;

use super::{Recipe, short, trust};

/// A figure of two recipes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// What.
    pub what: &'static str,
    /// In this recipe.
    pub ours: String,
    /// In the published one.
    pub published: String,
}

/// The figures that rules judge, of a recipe and of a published one.
pub fn compare(ours: &Recipe<'_>, published: &Recipe<'_>) -> Vec<Comparison> {
    let pairs = figures(ours).into_iter().zip(figures(published));
    pairs.map(|((what, ours), (_, published))| Comparison { what, ours, published }).collect()
}

fn figures(recipe: &Recipe<'_>) -> [(&'static str, String); 16] {
    let rates = recipe.rates;
    let optional = |value: Option<f64>| value.map_or("-".to_owned(), short);
    let of_rates = |figure: fn(&super::Rates) -> f64| optional(rates.as_ref().map(figure));
    let warmup = recipe.schedule.as_ref().ok().map(|schedule| schedule.warmup_steps() as f64);
    let constants = recipe.adam_constants();
    [
        ("model", recipe.config.model.name().to_owned()),
        ("optimizer", recipe.config.optimizer.rule.name().to_owned()),
        ("global batch", recipe.global_batch().to_string()),
        ("steps", recipe.total_steps().to_string()),
        ("epochs", optional(recipe.epochs())),
        ("highest rate", of_rates(|rates| rates.max)),
        (
            "rate / (1 - momentum) per 256",
            optional(rates.filter(|_| recipe.is_sgd()).map(|rates| recipe.rate_per_256(&rates))),
        ),
        ("share of a layer's norm", optional(trust::shares(recipe).map(|(_, lasting)| lasting))),
        ("warm-up steps", optional(warmup)),
        ("shape", recipe.config.schedule.shape.name().to_owned()),
        ("mean / highest rate", of_rates(|rates| rates.mean)),
        ("last / highest rate", of_rates(|rates| rates.last)),
        ("weight decay", short(recipe.config.optimizer.rule.weight_decay())),
        ("beta2", optional(constants.map(|(_, beta2, _)| beta2))),
        ("epsilon", optional(constants.map(|(_, _, epsilon)| epsilon))),
        ("clip_grad_norm", optional(recipe.config.optimizer.clip_grad_norm)),
    ]
}
