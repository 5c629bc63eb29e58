//! `lockstep compare`: where two runs begin to differ.

use std::process::ExitCode;

use anyhow::Result;
use hlo::counted;
use serde::Serialize;

use super::args::CompareArgs;
use super::plot::names;
use super::report::{Difference, RunFiles, differences};
use super::{print_line, print_lines};

/// What two runs have in common: the output of `--json`.
#[derive(Serialize)]
struct Comparison {
    runs: [String; 2],
    /// `true` if nothing that follows from the configuration differs.
    are_same: bool,
    /// Settings that differ.
    config_differences: Vec<Difference>,
    /// Fields of `summary.json` that say what the runs ran on, and differ.
    environment_differences: Vec<Difference>,
    /// Steps that both have recorded.
    num_common_steps: usize,
    /// Steps recorded by each.
    num_steps: [usize; 2],
    /// The first number of a step that is not the same in both.
    first_difference: Option<StepDifference>,
    /// The step with the largest difference of the loss, relative to the larger one.
    largest_loss_difference: Option<LossDifference>,
    /// `true` if the final parameters are the same bits; `None` if that is not recorded.
    same_params: Option<bool>,
    /// What is missing or damaged in each.
    notes: [Vec<String>; 2],
}

#[derive(Serialize)]
struct StepDifference {
    step: u64,
    field: String,
    values: [Option<f64>; 2],
}

#[derive(Serialize)]
struct LossDifference {
    step: u64,
    relative: f64,
}

/// Fields of the summary that say what a run ran on.
const ENVIRONMENT: [&str; 8] = [
    "version",
    "backend",
    "device",
    "precision",
    "seed",
    "global_batch",
    "num_replicas",
    "num_processes",
];

/// Runs the command: exit code 1 if the runs differ.
pub fn run(args: &CompareArgs) -> Result<ExitCode> {
    let dirs = [args.a.clone(), args.b.clone()];
    let [a, b] = &names(&dirs)[..] else { return Ok(ExitCode::FAILURE) };
    let runs = [RunFiles::read(&args.a, a.clone())?, RunFiles::read(&args.b, b.clone())?];
    let comparison = Comparison::of(&runs);
    match args.json {
        true => print_line(&serde_json::to_string(&comparison)?)?,
        false => print_lines(comparison.lines().into_iter())?,
    }
    Ok(if comparison.are_same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Comparison {
    fn of(runs: &[RunFiles; 2]) -> Self {
        let [a, b] = runs;
        let value = |run: &RunFiles, field: &str| Some(run.summary.get(field)?.to_string());
        let environment = ENVIRONMENT.iter().map(|field| Difference {
            key: (*field).to_owned(),
            values: vec![value(a, field), value(b, field)],
        });
        let environment: Vec<_> =
            environment.filter(|one| one.values[0] != one.values[1]).collect();
        let common = common(runs);
        let first_difference = first_difference(runs, &common);
        let fingerprints = a.text("params_fingerprint").zip(b.text("params_fingerprint"));
        let same_params = fingerprints.map(|(a, b)| a == b);
        let num_steps = [a.steps.step.len(), b.steps.step.len()];
        let are_same = first_difference.is_none()
            && same_params != Some(false)
            && num_steps == [common.len(); 2];
        Self {
            runs: [a.name.clone(), b.name.clone()],
            are_same,
            config_differences: differences(runs),
            environment_differences: environment,
            num_common_steps: common.len(),
            num_steps,
            first_difference,
            largest_loss_difference: largest_loss_difference(runs, &common),
            same_params,
            notes: [a.notes.clone(), b.notes.clone()],
        }
    }

    /// For people.
    fn lines(&self) -> Vec<String> {
        let [a, b] = &self.runs;
        let mut lines = vec![];
        for (name, notes) in self.runs.iter().zip(&self.notes) {
            lines.extend(notes.iter().map(|note| format!("{name}: {note}")));
        }
        let mut list = |what: &str, differences: &[Difference]| {
            if differences.is_empty() {
                lines.push(format!("{what}: the same"));
                return;
            }
            lines.push(format!("{what}: {}", counted(differences.len() as u64, "difference")));
            for Difference { key, values } in differences {
                let values = values.iter().map(|value| value.as_deref().unwrap_or("not set"));
                lines.push(format!("  {key}  {}", values.collect::<Vec<_>>().join(" | ")));
            }
        };
        list("configuration", &self.config_differences);
        list("environment", &self.environment_differences);
        let steps = counted(self.num_common_steps as u64, "common step");
        let shown = |value: Option<f64>| value.map_or("none".to_owned(), |value| value.to_string());
        match &self.first_difference {
            None => lines.push(format!("metrics: the same bits in {steps}")),
            Some(StepDifference { step, field, values }) => {
                let [first, second] = values.map(shown);
                lines.push(format!(
                    "metrics: step {step} is the first of {steps} that differs: {field} {first} in \
                     {a}, {second} in {b}"
                ));
            }
        }
        if self.num_steps[0] != self.num_steps[1] {
            let [first, second] = self.num_steps;
            lines.push(format!("steps: {first} in {a}, {second} in {b}"));
        }
        if let Some(LossDifference { step, relative }) = &self.largest_loss_difference {
            lines.push(format!("loss: the largest difference is {relative:.2e}, in step {step}"));
        }
        lines.push(match self.same_params {
            Some(true) => "parameters: the same bits".to_owned(),
            Some(false) => "parameters: different".to_owned(),
            None => "parameters: not recorded".to_owned(),
        });
        lines
    }
}

/// The indices of the steps that both runs have.
fn common([a, b]: &[RunFiles; 2]) -> Vec<[usize; 2]> {
    let (mut other, mut found) = (0, vec![]);
    for (index, step) in a.steps.step.iter().enumerate() {
        while b.steps.step.get(other).is_some_and(|found| found < step) {
            other += 1;
        }
        if b.steps.step.get(other) == Some(step) {
            found.push([index, other]);
        }
    }
    found
}

/// `true` for a number that follows from the configuration, and not from the clock.
fn is_determined(field: &str) -> bool {
    !field.ends_with("_ms") && !["time", "examples_per_sec"].contains(&field)
}

/// Equal, or both not finite.
fn are_equal(a: f64, b: f64) -> bool {
    a == b || (!a.is_finite() && !b.is_finite())
}

fn first_difference([a, b]: &[RunFiles; 2], common: &[[usize; 2]]) -> Option<StepDifference> {
    let columns = a.steps.columns.iter().filter(|column| is_determined(&column.name));
    // A field that only one run has is one of another version.
    let columns = columns
        .filter_map(|column| Some((&column.name, &column.values, b.steps.column(&column.name)?)));
    let columns: Vec<_> = columns.collect();
    let evals = |run: &RunFiles, index: usize| {
        let found = run.steps.evals.binary_search_by_key(&index, |(index, _)| *index);
        found.ok().map(|place| run.steps.evals[place].1.clone()).unwrap_or_default()
    };
    let finite = |value: f64| value.is_finite().then_some(value);
    common.iter().find_map(|[first, second]| {
        let step = a.steps.step[*first];
        let columns = columns.iter().find_map(|(field, a, b)| {
            let (a, b) = (*a.get(*first)?, *b.get(*second)?);
            let values = [finite(a), finite(b)];
            (!are_equal(a, b)).then(|| StepDifference { step, field: (*field).clone(), values })
        });
        columns.or_else(|| {
            let (a, b) = (evals(a, *first), evals(b, *second));
            a.into_iter().find_map(|(field, a)| {
                let b = *b.get(&field)?;
                let values = [finite(a), finite(b)];
                (!are_equal(a, b)).then_some(StepDifference { step, field, values })
            })
        })
    })
}

fn largest_loss_difference(runs: &[RunFiles; 2], common: &[[usize; 2]]) -> Option<LossDifference> {
    let [a, b] = runs;
    let (first, second) = (a.steps.column("loss")?, b.steps.column("loss")?);
    let differences = common.iter().filter_map(|[i, j]| {
        let (x, y) = (*first.get(*i)?, *second.get(*j)?);
        let relative = (x - y).abs() / x.abs().max(y.abs());
        let step = *a.steps.step.get(*i)?;
        (relative.is_finite() && relative > 0.0).then_some(LossDifference { step, relative })
    });
    differences.max_by(|a, b| a.relative.total_cmp(&b.relative))
}
