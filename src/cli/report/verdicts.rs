//! What a run shows, in words: what went well, what did not, and what to change.

use hlo::counted;
use serde::Serialize;

use super::goodput::{self, Goodput};
use super::numbers::{percent, shown};
use super::read::{RunFiles, StepTable};
use crate::observe::{describe_noise, median};

/// A sentence about a run.
#[derive(Serialize)]
pub struct RunVerdict {
    pub kind: VerdictKind,
    pub text: String,
}

/// How good that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VerdictKind {
    Good,
    /// Neither good nor bad.
    Note,
    /// Worth a look.
    Warning,
    Bad,
}

impl VerdictKind {
    /// For people.
    pub fn word(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Note => "note",
            Self::Warning => "look",
            Self::Bad => "bad",
        }
    }
}

/// A share of the steps' time that is worth a look.
const MUCH: f64 = 0.1;
/// A gradient is unusual from this multiple of those before it on.
const SPIKE: f64 = 10.0;
/// Fewest steps for sentences about their course.
const FEW_STEPS: usize = 10;

/// All of them, the outcome first.
pub fn verdicts(run: &RunFiles, goodput: &Goodput) -> Vec<RunVerdict> {
    let mut found = vec![];
    let mut say = |kind, text: String| found.push(RunVerdict { kind, text });
    outcome(run, &mut say);
    learning(run, &mut say);
    evaluations(&run.steps, &mut say);
    gradients(&run.steps, &mut say);
    noise(run, &mut say);
    skipped(run, &mut say);
    proofs(run, &mut say);
    times(run, goodput, &mut say);
    for note in &run.notes {
        say(VerdictKind::Warning, note.clone());
    }
    found
}

type Say<'a> = &'a mut dyn FnMut(VerdictKind, String);

fn outcome(run: &RunFiles, say: Say<'_>) {
    let number = |field| run.number(field).map_or("?".to_owned(), |number| number.to_string());
    let steps = format!("{} of {} steps", number("steps"), number("planned_steps"));
    let reason = run.text("reason").map_or(String::new(), |reason| format!(": {reason}"));
    match run.text("status") {
        Some("done") => say(VerdictKind::Good, format!("The run is done: {steps}.")),
        Some("interrupted") => {
            let text = format!("A signal stopped the run after {steps}; --resume continues it.");
            say(VerdictKind::Note, text);
        }
        Some("failed") => {
            say(VerdictKind::Bad, format!("The run failed after {steps}{reason}"));
        }
        Some("running") => {
            let num = run.steps.step.len();
            let text = format!(
                "The run is running, or its process was killed: {} of {} are recorded.",
                num,
                counted(run.number("planned_steps").unwrap_or(0.0) as u64, "step")
            );
            say(VerdictKind::Note, text);
        }
        _ => say(VerdictKind::Warning, "The outcome is not recorded.".to_owned()),
    }
}

/// The batch that the noise of gradients suggests, beside the one in use.
fn noise(run: &RunFiles, say: Say<'_>) {
    let (Some(scale), Some(batch)) = (run.summary.get("noise_scale"), run.number("global_batch"))
    else {
        return;
    };
    let text = describe_noise(scale.as_f64().unwrap_or(f64::NAN), batch as usize);
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string());
    say(VerdictKind::Note, format!("{}{}.", first.unwrap_or_default(), letters.as_str()));
}

/// The mean of values that are finite.
fn mean(values: &[f64]) -> Option<f64> {
    let finite: Vec<_> = values.iter().copied().filter(|value| value.is_finite()).collect();
    (!finite.is_empty()).then(|| finite.iter().sum::<f64>() / finite.len() as f64)
}

fn learning(run: &RunFiles, say: Say<'_>) {
    let steps = &run.steps;
    let Some(loss) = steps.column("loss") else { return };
    let num_gaps = loss.iter().filter(|loss| !loss.is_finite()).count();
    if num_gaps > 0 {
        let losses = counted(num_gaps as u64, "training loss");
        let be = if num_gaps == 1 { "is" } else { "are" };
        let text =
            format!("{losses} {be} not finite: lower the learning rate, or look at the data.");
        say(VerdictKind::Bad, text);
    }
    if loss.len() < FEW_STEPS {
        say(VerdictKind::Note, "There are too few steps to say whether it learns.".to_owned());
        return;
    }
    let part = loss.len().div_ceil(10);
    let ends = mean(&loss[..part]).zip(mean(&loss[loss.len() - part..]));
    let Some((mut first, last)) = ends else { return };
    let start = mean(&loss[..part.min(3)]).unwrap_or(first);
    let worst = loss.iter().enumerate().filter(|(_, loss)| loss.is_finite());
    let worst = worst.max_by(|a, b| a.1.total_cmp(b.1));
    if let Some((at, worst)) = worst.filter(|(at, worst)| *at > 0 && **worst > 2.0 * start.abs()) {
        let rate = steps.column("lr").and_then(|lr| lr.get(at)).copied();
        let rate = rate.map_or(String::new(), |rate| format!(", at a rate of {}", shown(rate)));
        let has_recovered = last < 0.5 * start.abs();
        let text = format!(
            "The training loss went up to {} in step {}{rate}; it began at {} and is {} at the end \
             (mean of the last {}). Lower the peak of the rate, or lengthen the warm-up.",
            shown(*worst),
            steps.step.get(at).copied().unwrap_or(0),
            shown(start),
            shown(last),
            counted(part as u64, "step")
        );
        say(if has_recovered { VerdictKind::Warning } else { VerdictKind::Bad }, text);
        // Beside such a peak everything later looks small.
        if !has_recovered {
            return;
        }
        if at < part {
            first = start;
        }
    }
    let change = format!(
        "from {} ({}) to {} (of the last)",
        shown(first),
        match first == start {
            true => "at its beginning".to_owned(),
            false => format!("mean of the first {}", counted(part as u64, "step")),
        },
        shown(last)
    );
    let range = first.abs().max(1e-12);
    match (last - first) / range {
        change_by if change_by < -0.02 => {
            say(VerdictKind::Good, format!("The training loss fell {change}."));
        }
        change_by if change_by > 0.02 => say(
            VerdictKind::Bad,
            format!("The training loss rose {change}: the learning rate may be too high."),
        ),
        _ => say(
            VerdictKind::Warning,
            format!(
                "The training loss hardly changed, {change}: the learning rate may be far too high \
                 or too low, or labels may not belong to their examples."
            ),
        ),
    }
}

fn evaluations(steps: &StepTable, say: Say<'_>) {
    let losses =
        steps.evals.iter().filter_map(|(at, values)| Some((*at, *values.get("eval_loss")?)));
    let losses: Vec<_> = losses.filter(|(_, loss)| loss.is_finite()).collect();
    let Some((_, last)) = losses.last() else {
        say(VerdictKind::Note, "No evaluation is recorded.".to_owned());
        return;
    };
    let Some((at, best)) = losses.iter().min_by(|a, b| a.1.total_cmp(&b.1)) else { return };
    if *last > best + 0.1 * best.abs() {
        let step = steps.step.get(*at).copied().unwrap_or(0);
        let text = format!(
            "The loss of evaluations was lowest after step {step} ({}) and is {} at the end: later \
             steps fit the training data only. train.patience ends a run there.",
            shown(*best),
            shown(*last)
        );
        say(VerdictKind::Warning, text);
    }
}

fn gradients(steps: &StepTable, say: Say<'_>) {
    let Some(norms) = steps.column("grad_norm").filter(|norms| norms.len() >= FEW_STEPS) else {
        return;
    };
    // Over all steps norms fall, so that each is compared with those just before it.
    let (mut mean, mut spikes) = (f64::NAN, vec![]);
    for (at, norm) in norms.iter().enumerate().filter(|(_, norm)| norm.is_finite()) {
        if *norm > SPIKE * mean && at > norms.len().div_ceil(10) {
            spikes.push((at, *norm, mean));
        }
        mean = if mean.is_nan() { *norm } else { 0.95 * mean + 0.05 * norm };
    }
    let Some((at, most, mean)) = spikes.iter().max_by(|a, b| (a.1 / a.2).total_cmp(&(b.1 / b.2)))
    else {
        return;
    };
    say(
        VerdictKind::Warning,
        format!(
            "The gradient norm exceeds {SPIKE} times its running mean in {}, most in step {}: {} \
             after {}.",
            counted(spikes.len() as u64, "step"),
            steps.step.get(*at).copied().unwrap_or(0),
            shown(*most),
            shown(*mean)
        ),
    );
}

fn skipped(run: &RunFiles, say: Say<'_>) {
    let recorded = run.steps.column("num_skipped").and_then(|skipped| skipped.last()).copied();
    match recorded.or(run.number("num_skipped")) {
        Some(0.0) => say(VerdictKind::Good, "No update was skipped.".to_owned()),
        Some(num) => say(
            VerdictKind::Warning,
            format!("{}: a value was not finite.", skipped_updates(num as u64)),
        ),
        None => {}
    }
}

fn skipped_updates(num: u64) -> String {
    let be = if num == 1 { "was" } else { "were" };
    format!("{} {be} skipped", counted(num, "update"))
}

/// The steps between two proofs, as configured.
pub fn proof_every(run: &RunFiles) -> Option<i64> {
    run.setting("train.check_lockstep_every")?.as_integer()
}

fn proofs(run: &RunFiles, say: Say<'_>) {
    let Some(every) = proof_every(run) else { return };
    let several = run.number("num_replicas").is_some_and(|num| num > 1.0);
    let passed = run.number("num_proofs").filter(|num| *num > 0.0);
    match (every, several, passed) {
        (_, false, _) => {}
        (0, true, _) => say(
            VerdictKind::Warning,
            "Nothing proves that the replicas are in lockstep: train.check_lockstep_every is 0."
                .to_owned(),
        ),
        (_, true, Some(num)) => say(
            VerdictKind::Good,
            format!(
                "The replicas are in lockstep: {} found the same bits. A run ends where one does \
                 not.",
                counted(num as u64, "proof")
            ),
        ),
        (_, true, None) => say(
            VerdictKind::Note,
            format!("Replicas are compared every {}.", counted(every as u64, "step")),
        ),
    }
}

fn times(run: &RunFiles, goodput: &Goodput, say: Say<'_>) {
    let secs = |id| goodput.secs(id).unwrap_or(0.0);
    let stepped = [goodput::COMPUTE, goodput::DATA, goodput::HOST, goodput::MEMBERS];
    let stepped: f64 = stepped.into_iter().map(secs).sum();
    let of_steps = |id| if stepped > 0.0 { secs(id) / stepped } else { 0.0 };
    let mut found = false;
    let mut look = |id, many: f64, text: &dyn Fn(String) -> String| {
        if of_steps(id) > many {
            found = true;
            say(VerdictKind::Warning, text(percent(of_steps(id))));
        }
    };
    look(goodput::DATA, MUCH, &|share| {
        format!(
            "The devices wait for data in {share} of the steps' time: the input does not keep up. \
             Give it more processor cores, or smaller files: images that are scaled before the run."
        )
    });
    look(goodput::HOST, MUCH, &|share| {
        format!(
            "The devices wait for the host in {share} of the steps' time; train.steps_per_launch \
             gives them more at once."
        )
    });
    look(goodput::MEMBERS, 2.0 * MUCH, &|share| {
        format!("This process waits for others in {share} of the steps' time.")
    });
    look(goodput::CHECKPOINTS, MUCH, &|share| {
        format!(
            "Checkpoints stall the run for {share} of the steps' time: save less often \
             (checkpoint.every_steps, checkpoint.every_secs)."
        )
    });
    // There is one after so many steps, and one before each checkpoint.
    let every = proof_every(run).filter(|every| *every > 0);
    let num_regular = every.map_or(0.0, |every| run.steps.step.len() as f64 / every as f64);
    let are_for_checkpoints = run.number("num_proofs").unwrap_or(0.0) > 2.0 * num_regular;
    look(goodput::PROOFS, MUCH, &|share| {
        let change = match are_for_checkpoints {
            true => {
                "most come before a checkpoint. Save less often (checkpoint.every_steps, \
                 checkpoint.every_secs)"
            }
            false => "prove less often (train.check_lockstep_every)",
        };
        format!(
            "Proofs that the replicas are in lockstep take {share} of the steps' time: {change}."
        )
    });
    look(goodput::EVALUATIONS, 5.0 * MUCH, &|share| {
        format!(
            "Evaluations take {share} of the steps' time: evaluate less often (train.eval_every)."
        )
    });
    for slow in last_verdicts(run) {
        found = true;
        say(VerdictKind::Bad, slow);
    }
    if !found && stepped > 0.0 && run.steps.step.len() >= FEW_STEPS {
        let text = "No wait takes a large part of the steps' time.";
        say(VerdictKind::Good, text.to_owned());
    }
    let Some(ms) = run.steps.column("step_ms").filter(|ms| ms.len() >= 4 * FEW_STEPS) else {
        return;
    };
    let middle = median(ms).unwrap_or(f64::NAN);
    let outliers = ms.iter().enumerate().skip(1).filter(|(_, ms)| **ms > 5.0 * middle);
    let outliers: Vec<_> = outliers.collect();
    let lost: f64 = outliers.iter().map(|(_, ms)| **ms - middle).sum();
    if lost / 1e3 > MUCH * stepped
        && let Some((at, most)) = outliers.iter().max_by(|a, b| a.1.total_cmp(b.1))
    {
        say(
            VerdictKind::Warning,
            format!(
                "{} took more than 5 times the median ({} ms): {} of the steps' time; most step \
                 {} ({} ms).",
                counted(outliers.len() as u64, "step"),
                shown(middle),
                percent(lost / 1e3 / stepped),
                run.steps.step.get(*at).copied().unwrap_or(0),
                shown(**most)
            ),
        );
    }
}

/// What was found of slow processes, of each the last time.
fn last_verdicts(run: &RunFiles) -> Vec<String> {
    let mut last = std::collections::BTreeMap::new();
    last.extend(run.steps.slow.iter().map(|slow| (slow.process_index, slow)));
    let sentence = |slow: &&super::read::SlowRecord| {
        let change = match &*slow.cause {
            "input" => "its batches come late: look at the storage and the processors of that host",
            _ => "look for other programs on that host, and for a processor that is throttled",
        };
        let told = match &*slow.machine {
            "" => String::new(),
            told => format!(" Its machine told: {told}."),
        };
        format!(
            "Process {} on {} is slow: {} times the others' own time since step {}. All others wait \
             for it: {change}.{told}",
            slow.process_index,
            slow.host,
            shown(slow.factor),
            slow.since_step
        )
    };
    last.values().map(sentence).collect()
}
