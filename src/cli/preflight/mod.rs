//! `lockstep preflight`: the questions to answer before paying for a target. Does the step fit, do
//! the collectives hide behind the arithmetic, is the recipe sound, does the input keep up, and
//! what does the run cost?

mod communication;
mod page;

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use hlo::counted;

use super::args::{ConfigArgs, PreflightArgs};
use super::compile::{Steps, TargetStep, check_advice};
use super::fabric::with_fabric;
use super::schedule::parameter_ranks;
use super::{in_words, picture, print_line};
use crate::config::DataConfig;
use crate::data::{Source, TrainBatches};
use crate::observe::say;
use crate::recipe::{self, Recipe, Severity};
use crate::targets::{CompileReport, ScalingPrediction, Scenario, Target, gib};
use page::{Preflight, PreflightAnswer, PreflightAnswers, PreflightVerdict, RunCost, number};

/// How long the input is measured.
const MEASURE_FOR: Duration = Duration::from_secs(2);
/// Most examples of a batch with which it is measured.
const MAX_MEASURED_BATCH: usize = 256;
/// Processors of the largest hosts.
const MAX_PROCESSORS: f64 = 512.0;

pub fn run(args: &PreflightArgs) -> Result<ExitCode> {
    let target: Target = args.target.parse()?;
    let plot = picture::file(args.plot.as_deref(), args.overwrite)?;
    let num_devices = target.num_devices();
    let config = with_fabric(&args.config, args.fabric.as_deref())?;
    let step = TargetStep::new(&config, &[], &target, num_devices)?;
    say(&format!("compiling the step for {target}"));
    let mut report = step.compile(&target, None)?;
    if !report.fits {
        check_advice(&config, &target, &mut report.advice)?;
    }
    let scenario = Scenario { network: step.network, ..Scenario::default() };
    let rows = rows(&config, &target, &scenario)?;
    let num_steps = step.run.length.total_steps();
    let hours = num_steps as f64 * report.predicted_step_ms / 3.6e6;
    let cost = RunCost { num_steps, hours, device_hours: hours * num_devices as f64 };
    let answers = PreflightAnswers {
        memory: memory(&report),
        communication: communication::answer(&config, &target, &report, &step, &rows),
        recipe: recipe_is_sound(&step, num_devices)?,
        input: input(args, &target, &report, &step),
        cost: answer_to_cost(args, &cost, &report.accuracy),
    };
    let page = Preflight {
        config: args.config.config.display().to_string(),
        target: target.to_string(),
        num_devices,
        num_hosts: target.num_hosts(),
        global_batch: step.run.batch.global_batch(),
        step_ms: report.predicted_step_ms,
        plan_step_ms: rows.of(num_devices).map(|row| row.step_ms),
        cost,
        answers,
    };
    if let Some(file) = plot {
        page::plot(file, &page, &step.run.schedule, &rows)?;
    }
    if args.json {
        print_line(&serde_json::to_string(&page)?)?;
    } else {
        print_line(&page.to_string())?;
    }
    let is_ready = page.answers.iter().all(|(_, answer)| answer.verdict != PreflightVerdict::No);
    Ok(if is_ready { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn memory(report: &CompileReport) -> PreflightAnswer {
    let memory = &report.memory;
    let [peak, limit] = [memory.peak_bytes, memory.limit_bytes].map(gib);
    let parts = [
        ("parameters", memory.parameters_bytes),
        ("optimizer", memory.optimizer_bytes),
        ("temporaries", memory.temporaries_bytes),
    ];
    let parts = parts.map(|(name, bytes)| format!("{name} {}", gib(bytes))).join(", ");
    PreflightAnswer {
        verdict: PreflightVerdict::of(report.fits),
        summary: format!("peak {peak} of {limit}"),
        details: vec![parts],
        changes: report.advice.lines().collect(),
    }
}

fn recipe_is_sound(step: &TargetStep, num_devices: usize) -> Result<PreflightAnswer> {
    let config = &step.loaded.config;
    let ranks = parameter_ranks(config)?;
    let num_examples = usize::try_from(step.loaded.splits.train.num_examples()).ok();
    let found = recipe::check(&Recipe::new(config, num_devices, num_examples, &ranks)?);
    let of = |severity: Severity| found.iter().filter(move |finding| finding.severity == severity);
    let [errors, warnings] =
        [Severity::Error, Severity::Warning].map(|of_kind| of(of_kind).count());
    let bad = || of(Severity::Error).chain(of(Severity::Warning));
    let details =
        bad().map(|finding| format!("{} {}: {}", finding.severity, finding.rule, finding.reason));
    let sets = recipe::merged(&[], bad().flat_map(|finding| &finding.sets));
    let sets: Vec<_> = sets.iter().map(|set| format!("--set '{set}'")).collect();
    Ok(PreflightAnswer {
        verdict: PreflightVerdict::of(errors == 0),
        summary: format!(
            "{} and {} at a batch of {}",
            counted(errors, "error"),
            counted(warnings, "warning"),
            step.run.batch.global_batch()
        ),
        details: details.collect(),
        changes: if sets.is_empty() { vec![] } else { vec![sets.join(" ")] },
    })
}

fn input(
    args: &PreflightArgs,
    target: &Target,
    report: &CompileReport,
    step: &TargetStep,
) -> PreflightAnswer {
    let per_second = 1e3 * step.run.batch.global_batch() as f64 / report.predicted_step_ms;
    let needed = per_second / target.num_hosts() as f64;
    let here = thread::available_parallelism().map_or(1, usize::from);
    let source = &step.loaded.splits.train;
    say("measuring how fast the training data are read");
    let rate = match examples_per_sec(source, step.loaded.config.train.seed, step) {
        Ok(rate) => rate,
        Err(error) => {
            let summary = format!("the training data cannot be read: {}", in_words(&error));
            return PreflightAnswer {
                verdict: PreflightVerdict::No,
                summary,
                details: vec![],
                changes: vec![],
            };
        }
    };
    let processors = args.host_processors.map_or(here, std::num::NonZeroUsize::get);
    let expected = rate * processors as f64 / here as f64;
    let is_enough = expected >= needed;
    let mut details = vec![format!(
        "measured: {} examples/s with {} here",
        number(rate),
        counted(here, "processor")
    )];
    if args.host_processors.is_some() {
        let on_host = number(expected);
        details.push(format!(
            "so {on_host} with the {} of a host, if each adds as much",
            counted(processors, "processor")
        ));
    }
    let mut changes = vec![];
    if !is_enough {
        changes.push(faster_input(&step.loaded.config.data, (needed / rate * here as f64).ceil()));
    }
    let summary = format!("a host must read {} examples/s", number(needed));
    PreflightAnswer { verdict: PreflightVerdict::of(is_enough), summary, details, changes }
}

/// Advice if a host needs so many processors to read the data.
fn faster_input(data: &DataConfig, num_processors: f64) -> String {
    let needed = number(num_processors);
    match data {
        DataConfig::Synthetic(_) | DataConfig::SyntheticTokens(_) => format!(
            "measure with the data of the run, by --set data.source=..: synthetic examples are \
             computed, which would take {needed} processors"
        ),
        _ if num_processors <= MAX_PROCESSORS => format!(
            "--host-processors {num_processors}, if a host has as many; otherwise smaller files or \
             less augmentation"
        ),
        DataConfig::ImageFolder(_) => format!(
            "store the images at the size of data.size, which decodes faster, or take fewer \
             devices: no host has the {needed} processors that reading would take"
        ),
        _ => format!(
            "tokenize or decode the data once, before the run, or take fewer devices: no host has \
             the {needed} processors that reading would take"
        ),
    }
}

/// Examples per second of the training data, in batches on this machine.
fn examples_per_sec(source: &Arc<dyn Source>, seed: u64, step: &TargetStep) -> Result<f64> {
    let num_examples = usize::try_from(source.num_examples()).unwrap_or(usize::MAX);
    let batch = step.run.batch.global_batch().min(MAX_MEASURED_BATCH).min(num_examples).max(1);
    let batches = TrainBatches::new(source.clone(), seed, batch, 1)?;
    batches.get(0)?;
    let started = Instant::now();
    let mut num_batches = 0;
    while started.elapsed() < MEASURE_FOR {
        num_batches += 1;
        batches.get(num_batches)?;
    }
    Ok(num_batches as f64 * batch as f64 / started.elapsed().as_secs_f64())
}

fn answer_to_cost(args: &PreflightArgs, cost: &RunCost, accuracy: &str) -> PreflightAnswer {
    let RunCost { num_steps, hours, device_hours } = *cost;
    let allowed = args.max_device_hours;
    let verdict =
        allowed.map_or(PreflightVerdict::NotAsked, |max| PreflightVerdict::of(device_hours <= max));
    let summary = format!(
        "{} device hours: {} {} in {}",
        number(device_hours),
        number(num_steps as f64),
        if num_steps == 1 { "step" } else { "steps" },
        page::duration(hours)
    );
    let mut changes = vec![];
    if verdict == PreflightVerdict::No {
        let max = number(allowed.unwrap_or_default());
        changes.push(format!("fewer steps, or more than {max} device hours"));
    }
    let details = vec![
        "without startup, evaluation, checkpoints, waiting for input and failures".to_owned(),
        format!("step time: {accuracy}"),
    ];
    PreflightAnswer { verdict, summary, details, changes }
}

/// The predicted step on every part of the target that has one.
fn rows(config: &ConfigArgs, target: &Target, scenario: &Scenario) -> Result<ScalingPrediction> {
    let Steps { steps, .. } = Steps::new(config, target)?;
    Ok(ScalingPrediction::new(target, &steps, None, scenario))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    #[test]
    fn no_host_is_said_to_need_thousands_of_processors() {
        let advice = |example: &str, num_processors: f64| {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{example}"));
            faster_input(&Config::load(&path, &[]).unwrap().data, num_processors)
        };
        assert!(advice("digits.toml", 96.0).contains("--host-processors 96"));
        for (example, change) in [
            ("digits.toml", "before the run"),
            ("gpt-bytes.toml", "before the run"),
            ("resnet20-synthetic.toml", "data.source="),
        ] {
            let found = advice(example, 14_094.0);
            assert!(found.contains(change) && !found.contains("--host-processors"), "{found}");
        }
    }
}
