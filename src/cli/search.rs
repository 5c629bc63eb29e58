//! `lockstep plan --search`: which way of sharding, rematerialising and splitting the batch is
//! fastest among those that fit.

use std::process::ExitCode;

use anyhow::{Result, bail};
use serde::Serialize;

use super::args::PlanArgs;
use super::changes::argument;
use super::compile::TargetStep;
use super::{in_words, print_line};
use crate::observe::say;
use crate::targets::{ScalingPrediction, Scenario, Suggestion, Target, candidates, gib};

/// Rows of the table.
const MAX_ROWS: usize = 12;
/// Most steps that are compiled to find one that fits.
const MAX_CHECKS: usize = 3;

/// Settings that are expected to fit, and the predicted step with them.
#[derive(Debug, Serialize)]
struct Found {
    /// Each as `section.key=value` or `--unset section.key`; none for the configuration as it is.
    sets: Vec<String>,
    /// Bytes: of the compiler if it was compiled, otherwise estimated.
    peak_bytes: u64,
    /// Whether it fits; `None` if it was not compiled.
    fits: Option<bool>,
    step_ms: f64,
    examples_per_sec: f64,
}

#[derive(Debug, Serialize)]
struct Search {
    target: String,
    limit_bytes: u64,
    /// Fastest first.
    found: Vec<Found>,
    /// Combinations that were not considered further, because they are estimated not to fit.
    num_too_large: usize,
}

pub fn run(args: &PlanArgs, target: &Target) -> Result<ExitCode> {
    let num_devices = target.num_devices();
    let now = TargetStep::new(&args.config, &[], target, num_devices)?;
    say(&format!("compiling the step for {target}, from which the memory of others is estimated"));
    let report = now.compile(target, None)?;
    let (fitting, num_too_large) = candidates(&report.memory, &now.knobs()?);
    let mut found: Vec<Found> = vec![];
    let mut refused = None;
    for candidate in fitting {
        match predict(args, target, &candidate) {
            // The configuration as it is has been compiled.
            Ok(one) => {
                found.push(Found { fits: one.sets.is_empty().then_some(report.fits), ..one })
            }
            // Another number of shards or microbatches may divide.
            Err(error) => refused = Some(error),
        }
    }
    if found.is_empty() {
        let why = refused.map_or(String::new(), |error| format!(": {}", in_words(&error)));
        bail!(
            "nothing is estimated to fit in {} of {target}; take more devices or a smaller \
             model{why}",
            gib(report.memory.limit_bytes)
        );
    }
    found.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
    found.truncate(MAX_ROWS);
    check(args, target, &mut found)?;
    let limit_bytes = report.memory.limit_bytes;
    let search = Search { target: target.to_string(), limit_bytes, found, num_too_large };
    if args.json {
        print_line(&serde_json::to_string(&search)?)?;
    } else {
        print_line(&table(&search))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn predict(args: &PlanArgs, target: &Target, candidate: &Suggestion) -> Result<Found> {
    let sets = candidate.all_sets();
    let step = TargetStep::new(&args.config, &sets, target, target.num_devices())?;
    let prediction = ScalingPrediction::new(target, &[step.measure()?], None, &Scenario::default());
    let Some(row) = prediction.rows.first() else { bail!("there is no prediction") };
    Ok(Found {
        sets,
        peak_bytes: candidate.peak_bytes,
        fits: None,
        step_ms: row.step_ms,
        examples_per_sec: row.examples_per_sec,
    })
}

/// Compiles the fastest until one fits.
fn check(args: &PlanArgs, target: &Target, found: &mut [Found]) -> Result<()> {
    for one in found.iter_mut().take(MAX_CHECKS) {
        say(&format!("compiling with {} to check that it fits", in_a_row(&one.sets)));
        let step = TargetStep::new(&args.config, &one.sets, target, target.num_devices())?;
        let report = step.compile(target, None)?;
        (one.peak_bytes, one.fits) = (report.memory.peak_bytes, Some(report.fits));
        if report.fits {
            break;
        }
    }
    Ok(())
}

fn in_a_row(sets: &[String]) -> String {
    match sets {
        [] => "nothing changed".to_owned(),
        _ => sets.iter().map(|set| argument(set).join(" ")).collect::<Vec<_>>().join(" "),
    }
}

fn table(search: &Search) -> String {
    let mut lines =
        vec![format!("{:>12} {:>12} {:>14}  {}", "step ms", "examples/s", "peak", "settings")];
    for found in &search.found {
        let how = match found.fits {
            None => " estimated",
            Some(true) => " fits",
            Some(false) => " DOES NOT FIT",
        };
        lines.push(format!(
            "{:>12.2} {:>12.0} {:>14}  {}",
            found.step_ms,
            found.examples_per_sec,
            gib(found.peak_bytes) + how,
            in_a_row(&found.sets)
        ));
    }
    lines.push(format!(
        "{}: {} a device; {} more combinations are estimated not to fit. Step times are predicted; \
         \"fits\" was compiled",
        search.target,
        gib(search.limit_bytes),
        search.num_too_large
    ));
    lines.join("\n")
}
