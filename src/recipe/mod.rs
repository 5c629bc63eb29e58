//! Checks of a recipe before it is run.
//!
//! Large batches change the optimization silently. Each rule here is a function from a [`Recipe`] to its
//! [`Finding`]s: the problem, the paper that describes it, and what to change. `RULES` is the table of rules. No
//! rule looks at data or devices.

mod batch;
mod double;
mod horizon;
mod optimizer;
mod rate;
mod warmup;

use std::fmt;

use hlo::Tree;
use serde::Serialize;

use crate::config::{BatchError, Config, Peak, RunLength, RunLengthError, UpdateRule};
use crate::optim::schedule::{self, Schedule};

pub use double::{Change, Doubling, doubling};

/// A configuration, resolved for a number of replicas.
pub struct Recipe<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// Replicas.
    pub num_replicas: usize,
    /// Length of the run, and the global batch.
    pub run: RunLength,
    /// The learning rates, or the error in the schedule.
    pub schedule: Result<Schedule, schedule::Error>,
    /// The rank of each of the model's parameters.
    pub ranks: &'a Tree<usize>,
}

/// A recipe whose batch or length is invalid.
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
    /// A batch that does not divide, a run whose number of steps is not known.
    pub fn new(
        config: &'a Config,
        num_replicas: usize,
        num_examples: Option<usize>,
        ranks: &'a Tree<usize>,
    ) -> Result<Self, Error> {
        let global_batch = config.global_batch(num_replicas)?;
        let run = RunLength::new(config.train.length, num_examples, global_batch)?;
        let schedule = Schedule::new(&config.schedule, &run);
        Ok(Self { config, num_replicas, run, schedule, ranks })
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

    fn has_trust_ratios(&self) -> bool {
        matches!(self.config.optimizer.rule, UpdateRule::Lars(_) | UpdateRule::Lamb(_))
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The run would fail or be wasted.
    Error,
    /// The run would probably be worse than necessary.
    Warning,
    /// Worth considering.
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
    /// The paper that describes it.
    pub source: &'static str,
    /// What to change.
    pub change: String,
}

/// A finding without the name of its rule.
struct Found {
    severity: Severity,
    reason: String,
    source: &'static str,
    change: String,
}

type Rule = fn(&Recipe<'_>) -> Vec<Found>;

/// All rules, with their names.
const RULES: [(&str, Rule); 16] = [
    ("rate-not-scaled", rate::not_scaled),
    ("schedule-impossible", rate::impossible),
    ("schedule-ends-elsewhere", rate::ends_elsewhere),
    ("undeclared-jump", rate::undeclared_jump),
    ("warmup-missing", warmup::missing),
    ("warmup-too-short", warmup::too_short),
    ("warmup-too-long", warmup::too_long),
    ("boundary-inside-warmup", warmup::boundary_inside),
    ("decayed-norm-or-bias", optimizer::decayed_norm_or_bias),
    ("unmatched-pattern", optimizer::unmatched_pattern),
    ("adam-constants", optimizer::adam_constants),
    ("batch-without-trust-ratios", batch::without_trust_ratios),
    ("batch-norm-group", batch::norm_group),
    ("no-label-smoothing", batch::no_label_smoothing),
    ("short-epoch", batch::short_epoch),
    ("long-horizon", horizon::longer_than_run),
];

/// The names of all rules.
pub fn rules() -> impl Iterator<Item = &'static str> {
    RULES.iter().map(|(rule, _)| *rule)
}

/// The findings of all rules, the worst first.
pub fn check(recipe: &Recipe<'_>) -> Vec<Finding> {
    let of_rule = |(rule, find): &(&'static str, Rule)| {
        let rule = *rule;
        find(recipe).into_iter().map(move |found| {
            let Found { severity, reason, source, change } = found;
            Finding { severity, rule, reason, source, change }
        })
    };
    let mut findings: Vec<_> = RULES.iter().flat_map(of_rule).collect();
    findings.sort_by_key(|finding| finding.severity);
    findings
}

const GOYAL: &str = "Goyal et al., Accurate, Large Minibatch SGD (2017)";
const LARS: &str =
    "You, Gitman and Ginsburg, Large Batch Training of Convolutional Networks (2017)";
const LAMB: &str = "You et al., Large Batch Optimization for Deep Learning (2020)";

/// A share as a percentage.
fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}
