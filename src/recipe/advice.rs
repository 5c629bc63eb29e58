//! Changes as data: applying them, and checking what they do to the rest of a recipe.

use std::path::Path;

use super::double::changes;
use super::{Recipe, Severity, check, rules};
use crate::config::{self, Config};

/// Rounds in which findings that a change causes are resolved.
const MAX_ROUNDS: usize = 8;

/// A change that the configuration does not take.
#[derive(Debug, thiserror::Error)]
pub enum InvalidChange {
    /// The configuration cannot be written as TOML.
    #[error("the configuration cannot be written: {0}")]
    Write(#[from] toml::ser::Error),
    /// The changed configuration is invalid.
    #[error(transparent)]
    Config(#[from] config::Error),
}

/// The configuration with some `--set` arguments applied.
///
/// # Errors
/// Arguments that make it invalid.
pub fn apply(config: &Config, sets: &[String]) -> Result<Config, InvalidChange> {
    Ok(Config::parse(&config.to_toml()?, Path::new("/recipe.toml"), sets)?)
}

/// A change with what follows from it.
pub(super) struct Advice {
    pub sets: Vec<String>,
    pub effects: Vec<String>,
}

/// Adds to a change whatever resolves the findings of other rules that it causes, so that it can be followed as it is.
/// `known` are the findings before the change. No `--set` arguments remain if the configuration does not take them.
pub(super) fn complete(
    recipe: &Recipe<'_>,
    rule: &str,
    sets: &[String],
    known: &[(&str, Severity)],
) -> Advice {
    let mut sets = sets.to_vec();
    let nothing = || Advice { sets: vec![], effects: vec![] };
    if sets.is_empty() {
        return nothing();
    }
    let is_new = |name: &str| name == rule || !known.iter().any(|(known, _)| *known == name);
    for round in 0.. {
        let Ok(config) = apply(recipe.config, &sets) else { return nothing() };
        let changed = Recipe::new(&config, recipe.num_replicas, recipe.num_examples, recipe.ranks);
        let Ok(changed) = changed else { return nothing() };
        let mut caused = rules::findings(&changed);
        caused.retain(|(rule, found)| found.severity < Severity::Note && is_new(rule.name));
        let next = caused.iter().find(|(_, found)| !found.sets.is_empty());
        let Some((_, found)) = next.filter(|_| round < MAX_ROUNDS) else {
            let mut effects: Vec<_> = changes(recipe, &changed)
                .into_iter()
                .map(|change| format!("{} {} -> {}", change.what, change.before, change.after))
                .collect();
            effects.extend(caused.iter().map(|(rule, found)| {
                format!("{} of {}: {}", found.severity, rule.name, found.reason)
            }));
            return Advice { sets, effects };
        };
        for set in &found.sets {
            let key = |set: &str| set.split('=').next().unwrap_or_default().to_owned();
            sets.retain(|earlier| key(earlier) != key(set));
            sets.push(set.clone());
        }
    }
    nothing()
}

/// Follows the change of the worst finding until no warning or error with a change is left.
///
/// # Errors
/// A change that the configuration does not take.
pub fn repair(recipe: &Recipe<'_>) -> Result<Config, InvalidChange> {
    let mut config = recipe.config.clone();
    for _ in 0..2 * MAX_ROUNDS {
        let changed = Recipe::new(&config, recipe.num_replicas, recipe.num_examples, recipe.ranks);
        let Ok(changed) = changed else { break };
        let findings = check(&changed);
        let worst = findings
            .iter()
            .find(|finding| finding.severity < Severity::Note && !finding.sets.is_empty());
        let Some(worst) = worst else { break };
        config = apply(&config, &worst.sets)?;
    }
    Ok(config)
}
