//! `lockstep schedule --check`: problems of a recipe, and what changes with twice as many replicas.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use hlo::{AxisSet, DType, Mesh, TensorType, Tree, counted, row_specs, trace};
use models::{Batch, Precision, Scope};
use serde::Serialize;

use super::Examples;
use crate::cli::{print_line, print_lines};
use crate::config::{Config, near_names, shorten};
use crate::observe::stdout_columns;
use crate::recipe::{self, Doubling, Finding, REFUSED, Recipe, RuleInfo, Severity};
use crate::train;

/// Columns of a line of text.
const WIDTH: usize = 100;

/// The output of `--json`.
#[derive(Serialize)]
struct Report {
    num_batch_shards: usize,
    findings: Vec<Finding>,
    /// The ignored rules, with the reasons.
    ignored: BTreeMap<String, String>,
    when_replicas_double: Doubling,
}

/// Checks a recipe and prints what is found; the exit code is 1 if there is an error among it.
pub fn run(config: &Config, json: bool) -> Result<ExitCode> {
    check_ignored(config)?;
    let examples = Examples::of(config);
    let ranks = parameter_ranks(config)?;
    let recipe = resolve(config, &examples, &ranks)?;
    let num_batch_shards = recipe.num_batch_shards;
    let findings = findings_of(&recipe, &examples);
    let when_replicas_double = recipe::doubling(&recipe, examples.count());
    let ignored = config.check.ignored_rules.clone();
    let report = Report { num_batch_shards, findings, ignored, when_replicas_double };
    if json {
        print_line(&serde_json::to_string(&report)?)?;
    } else {
        print_lines(text(&report).into_iter())?;
    }
    let is_error = |finding: &Finding| finding.severity == Severity::Error;
    Ok(ExitCode::from(u8::from(report.findings.iter().any(is_error))))
}

/// The findings that `schedule --check` prints, the worst first: those of the rules, and what
/// `train` would refuse the recipe with.
///
/// # Errors
/// A recipe without a report: a batch that does not divide, a run of unknown length, an ignored
/// rule that does not exist.
pub fn findings(config: &Config) -> Result<Vec<Finding>> {
    check_ignored(config)?;
    let examples = Examples::of(config);
    let ranks = parameter_ranks(config)?;
    Ok(findings_of(&resolve(config, &examples, &ranks)?, &examples))
}

fn findings_of(recipe: &Recipe<'_>, examples: &Examples) -> Vec<Finding> {
    let mut findings = recipe::check(recipe);
    if let Some(refused) = refused(recipe.config, examples.count(), &findings) {
        findings.push(refused);
        findings.sort_by_key(|finding| finding.severity);
    }
    findings
}

/// Refuses ignored rules that do not exist or cannot be ignored.
fn check_ignored(config: &Config) -> Result<()> {
    for name in config.check.ignored_rules.keys() {
        if name == REFUSED.name {
            bail!(
                "check.ignore: {name} cannot be left out, as the run would still be refused; \
                 change what the reason of the error says"
            );
        }
        known_rule(name).context("check.ignore")?;
    }
    Ok(())
}

/// The error with which `train` would refuse the configuration, unless a finding says so already.
fn refused(config: &Config, num_examples: Option<usize>, findings: &[Finding]) -> Option<Finding> {
    let reason = train::check_config(config, num_examples).err()?.to_string();
    let says_so = |finding: &Finding| finding.reason.contains(&reason);
    let mut errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
    (!errors.any(says_so)).then(|| Finding {
        severity: Severity::Error,
        rule: REFUSED.name,
        reason,
        published: None,
        source: REFUSED.source,
        change: "as the reason says".to_owned(),
        sets: vec![],
        effects: vec![],
    })
}

/// Describes a rule.
pub fn explain(name: &str) -> Result<ExitCode> {
    let rule = if name == REFUSED.name { &REFUSED } else { known_rule(name)? };
    let mut lines = vec![rule.name.to_owned()];
    lines.extend(wrapped("    ", rule.about));
    lines.extend(wrapped("    source: ", rule.source));
    if name != REFUSED.name {
        let reason = format!("to leave it out, with a reason: --set 'check.ignore.{name}=\"..\"'");
        lines.extend(wrapped("    ", &reason));
    }
    print_lines(lines.into_iter())?;
    Ok(ExitCode::SUCCESS)
}

/// The rule with this name, or an error that lists all.
fn known_rule(name: &str) -> Result<&'static RuleInfo> {
    match recipe::rule(name) {
        Some(rule) => Ok(rule),
        None => {
            let names: Vec<_> = recipe::rules().map(|rule| rule.name).collect();
            let near = near_names(name, names.iter().copied()).first().copied();
            let meant = near.map_or(String::new(), |near| format!(", did you mean {near}?"));
            let name = shorten(name);
            bail!("there is no rule {name:?}{meant}; the rules are {}", names.join(", "))
        }
    }
}

/// The recipe of a configuration, with the error that explains why there is none.
pub fn resolve<'a>(
    config: &'a Config,
    examples: &Examples,
    ranks: &'a Tree<usize>,
) -> Result<Recipe<'a>> {
    let num_batch_shards = train::mesh_on_host(config).num_batch_shards();
    let recipe = Recipe::new(config, num_batch_shards, examples.count(), ranks);
    recipe.map_err(|error| match error {
        recipe::Error::RunLength(error) => examples.explain(error),
        error => error.into(),
    })
}

fn text(report: &Report) -> Vec<String> {
    let mut lines: Vec<_> = report.findings.iter().flat_map(describe).collect();
    let count = |severity| report.findings.iter().filter(|f| f.severity == severity).count();
    let counts = [Severity::Error, Severity::Warning, Severity::Note]
        .map(|severity| counted(count(severity), &severity.to_string()));
    for (rule, reason) in &report.ignored {
        lines.extend(wrapped("ignored  ", &format!("{rule}: {reason}")));
    }
    lines.push(counts.join(", "));
    let Doubling { num_batch_shards, changes, new_findings, problem } =
        &report.when_replicas_double;
    let before = report.num_batch_shards;
    lines.push(String::new());
    lines.push(format!("from {before} to {num_batch_shards} shards of the batch:"));
    if let Some(problem) = problem {
        lines.extend(wrapped("    ", &format!("cannot run: {problem}")));
    }
    for change in changes {
        lines.push(format!("    {:<20} {} -> {}", change.what, change.before, change.after));
    }
    if changes.is_empty() && problem.is_none() {
        lines.push("    nothing changes".to_owned());
    }
    if !new_findings.is_empty() {
        lines.push("    and these problems are new:".to_owned());
        lines.extend(new_findings.iter().flat_map(describe));
    }
    lines
}

fn describe(finding: &Finding) -> Vec<String> {
    let mut lines = vec![format!("{:<8} {}", finding.severity, finding.rule)];
    lines.extend(wrapped("         ", &finding.reason));
    if let Some(published) = &finding.published {
        lines.extend(wrapped("         published: ", published));
    }
    lines.extend(wrapped("         source: ", finding.source));
    lines.extend(wrapped("         change: ", &finding.change));
    for set in &finding.sets {
        // Not wrapped, so that it can be copied.
        lines.push(format!("             --set '{set}'"));
    }
    if !finding.effects.is_empty() {
        lines.extend(wrapped("         then: ", &finding.effects.join("; ")));
    }
    lines
}

/// [`wrapped_to`] lines of [`WIDTH`] columns, or those of a narrower terminal.
fn wrapped(first: &str, text: &str) -> Vec<String> {
    wrapped_to(stdout_columns().map_or(WIDTH, |columns| columns.min(WIDTH)), first, text)
}

/// Wraps text to lines of at most `width`; the lines after the first are indented by as much as
/// `first`. Longer words remain whole.
pub fn wrapped_to(width: usize, first: &str, text: &str) -> Vec<String> {
    let indent = " ".repeat(first.len());
    let mut lines = vec![first.to_owned()];
    for word in text.split_whitespace() {
        let Some(line) = lines.last_mut() else { break };
        let is_empty = line.len() == first.len();
        if !is_empty && line.len() + 1 + word.len() > width {
            lines.push(format!("{indent}{word}"));
        } else {
            if !is_empty {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

/// The rank of each parameter of the model. Names and ranks do not depend on the data, so the
/// model's own example and a fixed number of classes take their place.
pub fn parameter_ranks(config: &Config) -> Result<Tree<usize>> {
    const NUM_EXAMPLES: usize = 2;
    let model = config.model.build(10);
    let mut ranks = Tree::new();
    trace(Mesh::SINGLE, |t| {
        let scope = Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY);
        let fields = config.model.example().into_iter().map(|(name, ty)| {
            let ty = TensorType::new(ty.dtype, &[&[NUM_EXAMPLES], &ty.dims[..]].concat());
            (name.to_owned(), t.input(format!("batch.{name}"), ty))
        });
        let fields = fields.collect();
        let weight = t.full(DType::F32, &[NUM_EXAMPLES], 1.0);
        model.loss(&scope, &Batch { fields, weight });
        let parameters = row_specs(&scope.parameters().map(|_, parameter| parameter.leaf()));
        ranks = parameters.map(|_, parameter| parameter.dims.len());
    })?;
    Ok(ranks)
}
