//! Changes as data: applying them, and checking what they do to the rest of a recipe.

use std::path::Path;

use super::double::changes;
use super::{Finding, Recipe, Severity, alone, rules};
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

/// Adds to a change whatever resolves the findings of other rules that it causes, so that it can be
/// followed as it is. `known` are the findings before the change. No `--set` arguments remain if
/// the configuration does not take them.
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
        let changed =
            Recipe::new(&config, recipe.num_batch_shards, recipe.num_examples, recipe.ranks);
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
        sets = merged(&sets, &found.sets);
    }
    nothing()
}

/// `--set` arguments without the earlier ones of a key that a later one sets again.
pub fn merged<'s>(earlier: &[String], later: impl IntoIterator<Item = &'s String>) -> Vec<String> {
    let key = |set: &str| set.split('=').next().unwrap_or_default().to_owned();
    let mut sets = earlier.to_vec();
    for set in later {
        sets.retain(|earlier| key(earlier) != key(set));
        sets.push(set.clone());
    }
    sets
}

/// Makes the changes of errors and warnings ones that can be followed together, the worst first: a
/// change that others make unnecessary becomes theirs, and one that should be another after them
/// includes them.
pub(super) fn reconcile(recipe: &Recipe<'_>, findings: &mut [Finding]) {
    let known: Vec<_> = findings.iter().map(|found| (found.rule, found.severity)).collect();
    let known = &known[..];
    let mut together: Vec<String> = vec![];
    for at in 0..findings.len() {
        let (earlier, rest) = findings.split_at_mut(at);
        let Some(finding) = rest.first_mut() else { return };
        if finding.severity >= Severity::Note || finding.sets.is_empty() {
            continue;
        }
        if !together.is_empty() {
            let Some(after) = sets_after(recipe, finding.rule, &together, known) else { continue };
            match after {
                Some(sets) if sets == finding.sets => {}
                Some(sets) => {
                    let all = merged(&together, &sets);
                    let advice = complete(recipe, finding.rule, &all, known);
                    if !advice.sets.is_empty() {
                        (finding.sets, finding.effects) = (advice.sets, advice.effects);
                    }
                }
                None => {
                    let is_enough = |other: &&Finding| {
                        let after = sets_after(recipe, finding.rule, &other.sets, known);
                        !other.sets.is_empty() && after == Some(None)
                    };
                    let (sets, whose) = match earlier.iter().find(is_enough) {
                        Some(other) => {
                            (other.sets.clone(), format!("the change for {}", other.rule))
                        }
                        None => (together.clone(), "the changes above together".to_owned()),
                    };
                    finding.change = format!("{whose} is enough for this, too");
                    finding.effects = complete(recipe, finding.rule, &sets, known).effects;
                    finding.sets = sets;
                }
            }
        }
        together = merged(&together, &finding.sets);
    }
}

/// The settings that a rule advises after a change. The inner `None`: it finds nothing then; the
/// outer: the configuration does not take the change.
fn sets_after(
    recipe: &Recipe<'_>,
    rule: &str,
    sets: &[String],
    known: &[(&str, Severity)],
) -> Option<Option<Vec<String>>> {
    let config = apply(recipe.config, sets).ok()?;
    let changed =
        Recipe::new(&config, recipe.num_batch_shards, recipe.num_examples, recipe.ranks).ok()?;
    let found = rules::findings(&changed);
    let again =
        found.iter().find(|(other, found)| other.name == rule && found.severity < Severity::Note);
    Some(again.map(|(_, found)| complete(&changed, rule, &found.sets, known).sets))
}

/// Follows the change of the worst finding until no warning or error with a change is left.
///
/// # Errors
/// A change that the configuration does not take.
pub fn repair(recipe: &Recipe<'_>) -> Result<Config, InvalidChange> {
    let mut config = recipe.config.clone();
    for _ in 0..2 * MAX_ROUNDS {
        let changed =
            Recipe::new(&config, recipe.num_batch_shards, recipe.num_examples, recipe.ranks);
        let Ok(changed) = changed else { break };
        let findings = alone(&changed);
        let worst = findings
            .iter()
            .find(|finding| finding.severity < Severity::Note && !finding.sets.is_empty());
        let Some(worst) = worst else { break };
        config = apply(&config, &worst.sets)?;
    }
    Ok(config)
}
