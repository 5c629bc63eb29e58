//! Rules about running means with a longer memory than the run.

use super::{Found, Recipe, Severity};
use crate::config::{Adam, AdamW, Lamb, Lars, Sgd, UpdateRule};

/// A running mean with decay d remembers about `1 / (1 - d)` steps.
pub(super) fn longer_than_run(recipe: &Recipe<'_>) -> Vec<Found> {
    let total = recipe.run.total_steps();
    let optimizer = &recipe.config.optimizer;
    let mut decays = match optimizer.rule {
        UpdateRule::Sgd(Sgd { momentum, .. }) | UpdateRule::Lars(Lars { momentum, .. }) => {
            vec![("momentum", momentum)]
        }
        UpdateRule::Adam(Adam { beta1, beta2, .. })
        | UpdateRule::AdamW(AdamW { beta1, beta2, .. })
        | UpdateRule::Lamb(Lamb { beta1, beta2, .. }) => vec![("beta1", beta1), ("beta2", beta2)],
    };
    decays.extend(optimizer.ema_decay.map(|decay| ("ema_decay", decay)));
    let horizon = |decay: f64| 1.0 / (1.0 - decay);
    let too_long = decays.into_iter().filter(|(_, decay)| horizon(*decay) > total as f64);
    too_long
        .map(|(key, decay)| Found {
            severity: Severity::Warning,
            reason: format!(
                "optimizer.{key} = {decay} remembers {:.0} steps, and the run has {total}",
                horizon(decay)
            ),
            source: "Busbridge et al., How to Scale Your EMA (2023): the decay goes to the power of the \
                     batch's scale",
            change: format!("lower optimizer.{key}, below {:.4}", 1.0 - 1.0 / (total.max(1) as f64)),
        })
        .collect()
}
