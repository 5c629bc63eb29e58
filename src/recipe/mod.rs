//! Checks of a recipe before it is run.
//!
//! A rule is a function from a [`Recipe`] to its [`Finding`]s. Rules judge what the step does, not
//! what the configuration declares: the resolved rates, the size of an update relative to its
//! parameter, and the length of the run in steps, epochs and tokens. Limits come from arithmetic
//! where there is any, and otherwise lie well outside the range of [`published`] recipes. `RULES`
//! is the table of rules. No rule looks at data or devices.
//!
//! Every warning and error has a change as data: `--set` arguments. [`check`] applies them and
//! checks again, so that a change causes no finding of another rule.

mod advice;
mod batch;
mod compare;
mod constants;
mod decay;
mod double;
mod factors;
mod figures;
mod neighbours;
pub mod published;
mod rate;
mod rules;
mod trust;
mod unused;
mod warmup;
mod weight_decay;

use std::fmt;

use hlo::Tree;
use serde::Serialize;

use crate::config::{BatchError, Config, Peak, RunLength, RunLengthError, UpdateRule};
use crate::optim::schedule::{self, Schedule};
use figures::{ModelKind, Rates};

pub use advice::{InvalidChange, apply, merged, repair};
pub use compare::{Comparison, compare};
pub use double::{Change, Doubling, doubling};
pub use rules::{REFUSED, RuleInfo, rule, rules};

/// A configuration, resolved for a number of shards of the batch.
pub struct Recipe<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// Shards of the batch: replicas along `data` times those along `fsdp`.
    pub num_batch_shards: usize,
    /// Length of the run, and the global batch.
    pub run: RunLength,
    /// The learning rates, or the error in the schedule.
    pub schedule: Result<Schedule, schedule::Error>,
    /// The rank of each of the model's parameters.
    pub ranks: &'a Tree<usize>,
    num_examples: Option<usize>,
    kind: ModelKind,
    rates: Option<Rates>,
}

/// A recipe with an invalid batch or length.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The global batch does not divide.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The run cannot be counted in steps.
    #[error(transparent)]
    RunLength(#[from] RunLengthError),
}

impl<'a> Recipe<'a> {
    /// Resolves a configuration; `num_examples` is `None` if it is not known.
    ///
    /// # Errors
    /// A batch that does not divide, or a run with an unknown number of steps.
    pub fn new(
        config: &'a Config,
        num_batch_shards: usize,
        num_examples: Option<usize>,
        ranks: &'a Tree<usize>,
    ) -> Result<Self, Error> {
        let global_batch = config.global_batch(num_batch_shards)?;
        let run = RunLength::new(config.train.length, num_examples, global_batch)?;
        let schedule = Schedule::new(&config.schedule, &run);
        let rates = schedule.as_ref().ok().map(Rates::new);
        let kind = ModelKind::Linear;
        let mut recipe =
            Self { config, num_batch_shards, run, schedule, ranks, num_examples, kind, rates };
        recipe.kind = ModelKind::of(recipe.config);
        Ok(recipe)
    }

    fn global_batch(&self) -> usize {
        self.run.global_batch()
    }

    /// The global batch divided by the one for which the rate was tuned, if the recipe has that.
    fn scale(&self) -> Option<f64> {
        match self.config.schedule.peak {
            Peak::Scaled { base_batch, .. } => {
                Some(self.global_batch() as f64 / base_batch.max(1) as f64)
            }
            Peak::Rate(_) => None,
        }
    }

    fn is_for_images(&self) -> bool {
        self.config.model.takes_images()
    }

    fn is_sgd(&self) -> bool {
        matches!(self.config.optimizer.rule, UpdateRule::Sgd(_))
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The run is refused, diverges, or does nothing.
    Error,
    /// The run is most likely worse than necessary.
    Warning,
    /// Unusual, or worth considering.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        })
    }
}

/// A problem that a rule has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The rule's name.
    pub rule: &'static str,
    /// The problem.
    pub reason: String,
    /// The nearest published recipe, where the finding is about a rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<String>,
    /// The literature on it.
    pub source: &'static str,
    /// The remedy.
    pub change: String,
    /// The change as `--set` arguments; empty if there is none to apply. Those of all errors and
    /// warnings can be given together.
    pub sets: Vec<String>,
    /// The effects of these settings on the rest of the recipe.
    pub effects: Vec<String>,
}

/// The finding of a rule. The rule's name and source are in the table of rules.
struct Found {
    severity: Severity,
    reason: String,
    /// The remedy, in words.
    change: String,
    /// The same as `--set` arguments.
    sets: Vec<String>,
    /// `true` if the nearest published recipe is shown.
    compares: bool,
}

impl Found {
    fn new(severity: Severity, reason: String, change: &str, sets: Vec<String>) -> Self {
        Self { severity, reason, change: change.to_owned(), sets, compares: false }
    }

    /// With the nearest published recipe.
    fn beside_published(self) -> Self {
        Self { compares: true, ..self }
    }
}

/// The findings of all rules, the worst first.
pub fn check(recipe: &Recipe<'_>) -> Vec<Finding> {
    let mut findings = alone(recipe);
    advice::reconcile(recipe, &mut findings);
    findings
}

/// The findings of all rules, the worst first, each with a change as if it were the only one.
fn alone(recipe: &Recipe<'_>) -> Vec<Finding> {
    let found = rules::findings(recipe);
    let known: Vec<_> = found.iter().map(|(rule, found)| (rule.name, found.severity)).collect();
    let mut findings: Vec<_> = found
        .into_iter()
        .map(|(rule, found)| {
            let advice = advice::complete(recipe, rule.name, &found.sets, &known);
            let nearest = found.compares.then(|| published::nearest(recipe)).flatten();
            Finding {
                severity: found.severity,
                rule: rule.name,
                reason: found.reason,
                published: nearest.map(published::PublishedRecipe::describe),
                source: rule.source,
                change: found.change,
                sets: advice.sets,
                effects: advice.effects,
            }
        })
        .collect();
    findings.sort_by_key(|finding| finding.severity);
    findings
}

/// A share as a percentage.
fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}

/// A number to three digits.
fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        1e-3..1e5 => {
            let decimals = (2 - value.abs().log10().floor() as i32).max(0) as usize;
            let text = format!("{value:.decimals$}");
            match text.contains('.') {
                true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
                false => text,
            }
        }
        _ => {
            let text = format!("{value:.2e}");
            let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let digits = match digits.contains('.') {
                true => digits.trim_end_matches('0').trim_end_matches('.'),
                false => digits,
            };
            format!("{digits}e{exponent}")
        }
    }
}
