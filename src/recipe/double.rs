//! The changes of a recipe when the number of replicas doubles.

use hlo::counted;
use serde::Serialize;

use super::{Finding, Recipe, check};
use crate::config::BatchSize;

/// A figure that changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// What.
    pub what: &'static str,
    /// On this number of replicas.
    pub before: String,
    /// On twice as many.
    pub after: String,
}

/// The recipe on twice as many replicas.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Doubling {
    /// Shards of the batch, doubled.
    pub num_batch_shards: usize,
    /// All figures that change.
    pub changes: Vec<Change>,
    /// Findings of rules that had none before.
    pub new_findings: Vec<Finding>,
    /// Why the recipe cannot run, if it cannot.
    pub problem: Option<String>,
}

/// Compares a recipe with itself on twice as many replicas; `num_examples` as for [`Recipe::new`].
pub fn doubling(recipe: &Recipe<'_>, num_examples: Option<usize>) -> Doubling {
    let num_batch_shards = recipe.num_batch_shards.saturating_mul(2);
    let twice = Recipe::new(recipe.config, num_batch_shards, num_examples, recipe.ranks);
    let twice = twice.and_then(|twice| {
        // With a fixed global batch this is where it must divide.
        twice.config.split_batch(num_batch_shards)?;
        Ok(twice)
    });
    match twice {
        Ok(twice) => {
            let known: Vec<_> = check(recipe).into_iter().map(|finding| finding.rule).collect();
            let mut new_findings = check(&twice);
            new_findings.retain(|finding| !known.contains(&finding.rule));
            let changes = changes(recipe, &twice);
            Doubling { num_batch_shards, changes, new_findings, problem: None }
        }
        Err(error) => {
            let problem = Some(error.to_string());
            Doubling { num_batch_shards, changes: vec![], new_findings: vec![], problem }
        }
    }
}

pub(super) fn changes(before: &Recipe<'_>, after: &Recipe<'_>) -> Vec<Change> {
    let batch_per_replica = |recipe: &Recipe<'_>| match recipe.config.train.batch {
        BatchSize::PerReplica(size) => size,
        BatchSize::Global(size) => size / recipe.num_batch_shards.max(1),
    };
    let norm_group = |recipe: &Recipe<'_>| {
        let Some(group) = recipe.config.model.batch_norm_group() else { return String::new() };
        let Ok(split) = recipe.config.split_batch(recipe.num_batch_shards) else {
            return counted(group, "example");
        };
        let microbatch = split.microbatch();
        if microbatch.is_multiple_of(group) {
            return format!("{} on one replica", counted(group, "example"));
        }
        let is_whole = group.is_multiple_of(microbatch)
            && recipe.num_batch_shards.is_multiple_of(group / microbatch);
        match is_whole {
            true => {
                format!("{group} examples on {}", counted(group / microbatch, "replica"))
            }
            false => format!(
                "{}, which {microbatch} on each replica cannot make",
                counted(group, "example")
            ),
        }
    };
    let of_schedule =
        |recipe: &Recipe<'_>, figure: fn(&crate::optim::schedule::Schedule) -> String| {
            recipe.schedule.as_ref().map_or("none".to_owned(), figure)
        };
    let figures = |recipe: &Recipe<'_>| {
        [
            ("global batch", recipe.global_batch().to_string()),
            ("batch per replica", batch_per_replica(recipe).to_string()),
            ("steps", recipe.run.total_steps().to_string()),
            ("peak rate", of_schedule(recipe, |schedule| super::short(schedule.peak()))),
            ("warm-up steps", of_schedule(recipe, |schedule| schedule.warmup_steps().to_string())),
            ("group of batch norm", norm_group(recipe)),
        ]
    };
    let pairs = figures(before).into_iter().zip(figures(after));
    let changed = pairs.filter(|(before, after)| before != after);
    changed.map(|((what, before), (_, after))| Change { what, before, after }).collect()
}
