//! `lockstep preflight`: the questions to answer before paying for a target. Does the step fit, do the collectives hide behind the
//! arithmetic, is the recipe sound, does the input keep up, and what does the run cost?

mod page;

use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use hlo::counted;

use super::args::{ConfigArgs, PreflightArgs};
use super::compile::{TargetStep, check_advice, steps};
use super::schedule::parameter_ranks;
use super::{figure, in_words, print_line};
use crate::config::BatchSize;
use crate::data::{Source, TrainBatches};
use crate::observe::say;
use crate::recipe::{self, Recipe, Severity};
use crate::targets::{CompileReport, ScalingPrediction, Scenario, Target, gib};
use page::{
    Preflight, PreflightAnswer, PreflightAnswers, PreflightVerdict, RunCost, milliseconds, number,
};

/// The part of a step that may wait for collectives.
const MAX_EXPOSED: f64 = 0.1;
/// How long the input is measured.
const MEASURE_FOR: Duration = Duration::from_secs(2);
/// Most examples of a batch with which it is measured.
const MAX_MEASURED_BATCH: usize = 256;
/// Larger batches that are tried where the step waits for collectives.
const LARGER: [usize; 4] = [2, 4, 8, 16];

pub fn run(args: &PreflightArgs) -> Result<ExitCode> {
    let target: Target = args.target.parse()?;
    let plot = figure::file(args.plot.as_deref(), args.overwrite)?;
    let num_devices = target.num_devices();
    let step = TargetStep::new(&args.config, &[], &target, num_devices)?;
    say(&format!("compiling the step for {target}"));
    let mut report = step.compile(&target, None)?;
    if !report.fits {
        check_advice(&args.config, &target, &mut report.advice)?;
    }
    let rows = rows(&args.config, &target)?;
    let num_steps = step.run.length.total_steps();
    let hours = num_steps as f64 * report.predicted_step_ms / 3.6e6;
    let cost = RunCost { num_steps, hours, device_hours: hours * num_devices as f64 };
    let answers = PreflightAnswers {
        memory: memory(&report),
        communication: communication(&args.config, &target, &report, &step, &rows),
        recipe: recipe_is_sound(&step, num_devices)?,
        input: input(args, &target, &report, &step),
        cost: answer_to_cost(args, &cost),
    };
    let page = Preflight {
        config: args.config.config.display().to_string(),
        target: target.to_string(),
        num_devices,
        num_hosts: target.num_hosts(),
        global_batch: step.run.batch.global_batch(),
        step_ms: report.predicted_step_ms,
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

fn communication(
    config: &ConfigArgs,
    target: &Target,
    report: &CompileReport,
    step: &TargetStep,
    rows: &ScalingPrediction,
) -> PreflightAnswer {
    let exposed = report.exposed_ms / report.predicted_step_ms;
    let is_hidden = exposed <= MAX_EXPOSED;
    let mut details = vec![format!(
        "arithmetic {}, of which {} in the backward pass; collectives {}, of which {} are hidden",
        milliseconds(report.compute_ms),
        milliseconds(report.backward_ms),
        milliseconds(report.communication_ms),
        milliseconds((report.communication_ms - report.exposed_ms).max(0.0)),
    )];
    details.extend(report.collective_sums.iter().map(|sum| {
        format!(
            "{} {} ({}) over groups of {}, {:.1} MB: {}, {} beside matmuls",
            number(sum.count as f64),
            sum.kind,
            sum.phase,
            sum.group_size,
            sum.bytes as f64 / 1e6,
            milliseconds(sum.predicted_ms),
            number(sum.overlapped_count as f64),
        )
    }));
    let mut changes = vec![];
    if !is_hidden {
        changes.extend(larger_batch(config, target, step));
        let enough = rows.rows.iter().rfind(|row| row.exposed_ms <= MAX_EXPOSED * row.step_ms);
        changes.extend(enough.map(|row| {
            format!(
                "up to {} of this target the step waits for less than that",
                counted(row.num_devices, "device")
            )
        }));
    }
    let (waits, step_ms) = (report.exposed_ms, report.predicted_step_ms);
    let summary = format!(
        "waits {} of {} for collectives ({:.0} %)",
        milliseconds(waits),
        milliseconds(step_ms),
        100.0 * exposed
    );
    PreflightAnswer { verdict: PreflightVerdict::of(is_hidden), summary, details, changes }
}

/// The least larger batch with which the step is predicted to wait for little.
fn larger_batch(config: &ConfigArgs, target: &Target, step: &TargetStep) -> Option<String> {
    let (key, now) = match step.loaded.config.train.batch {
        BatchSize::Global(batch) => ("train.global_batch", batch),
        BatchSize::PerReplica(batch) => ("train.batch_per_replica", batch),
    };
    LARGER.into_iter().find_map(|factor| {
        let set = format!("{key}={}", now.checked_mul(factor)?);
        let step = TargetStep::new(config, std::slice::from_ref(&set), target, target.num_devices());
        let measured = step.and_then(|step| step.measure()).ok()?;
        let rows = ScalingPrediction::new(target, &[measured], None, &Scenario::default()).rows;
        let exposed = rows.first().map(|row| row.exposed_ms / row.step_ms)?;
        (exposed <= MAX_EXPOSED).then(|| {
            format!(
                "--set {set} (predicted to wait {:.0} %; ask again, because memory and recipe depend on it)",
                100.0 * exposed
            )
        })
    })
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
    let sets = bad().flat_map(|finding| finding.sets.iter());
    let sets: Vec<_> = sets.map(|set| format!("--set '{set}'")).collect();
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
        let enough = (needed / rate * here as f64).ceil();
        changes.push(format!(
            "--host-processors, if a host has at least {}; otherwise smaller or fewer files, less augmentation, or more hosts",
            number(enough)
        ));
    }
    let summary = format!("a host must read {} examples/s", number(needed));
    PreflightAnswer { verdict: PreflightVerdict::of(is_enough), summary, details, changes }
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

fn answer_to_cost(args: &PreflightArgs, cost: &RunCost) -> PreflightAnswer {
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
    let details =
        vec!["without startup, evaluation, checkpoints, waiting for input and failures".to_owned()];
    PreflightAnswer { verdict, summary, details, changes }
}

/// The predicted step on every part of the target that has one.
fn rows(config: &ConfigArgs, target: &Target) -> Result<ScalingPrediction> {
    let (steps, _) = steps(config, target)?;
    Ok(ScalingPrediction::new(target, &steps, None, &Scenario::default()))
}
