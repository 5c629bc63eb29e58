//! Where the time of a run went, from what its directory records. Everything else is said to be not
//! recorded.
//!
//! `summary.json` has times of the last process: how long it took to the end of its first launch,
//! and in all; and of the starts of earlier attempts under the same supervisor. `step_ms` of
//! `metrics.jsonl` has neither evaluations nor proofs nor checkpoints: those lie between the steps.

use std::ops::Range;

use serde::Serialize;

use super::read::{RunFiles, StepTable, generation_starts};
use crate::observe::GenerationStart;

/// Where the time went.
#[derive(Serialize)]
pub struct Goodput {
    /// From the start of the job, or of the process if it had one; if that is not recorded for a
    /// run that was continued, from its first recorded step; to its end, in seconds.
    pub total_secs: Option<f64>,
    /// The share of this in which steps were computed that count.
    pub share: Option<f64>,
    /// The same share without what comes before the end of the first launch.
    pub share_after_start: Option<f64>,
    /// What the time went to. They add up to the total.
    pub parts: Vec<TimePart>,
}

/// A part of the time.
#[derive(Serialize)]
pub struct TimePart {
    /// Its name for programs.
    pub id: &'static str,
    /// What it was.
    pub what: &'static str,
    /// Seconds; `None` if that is not recorded.
    pub secs: Option<f64>,
    /// What it contains, or why it is not known.
    pub note: String,
}

/// Ids of parts.
pub const COMPUTE: &str = "compute";
pub const START: &str = "start";
pub const DATA: &str = "data";
pub const HOST: &str = "host";
pub const MEMBERS: &str = "members";
pub const CHECKPOINTS: &str = "checkpoints";
pub const EVALUATIONS: &str = "evaluations";
pub const PROOFS: &str = "proofs";
pub const OTHER: &str = "other";
pub const REPEATED: &str = "repeated_and_down";
pub const EARLIER: &str = "between_steps_of_earlier_attempts";

impl Goodput {
    /// The part of this id, in seconds.
    pub fn secs(&self, id: &str) -> Option<f64> {
        self.parts.iter().find(|part| part.id == id)?.secs
    }

    /// Accounts for the time of a run.
    pub fn of(run: &RunFiles) -> Self {
        let steps = &run.steps;
        let attempt = Attempt::last_of(run);
        let earlier = EarlierStart::of(run, attempt.first);
        let is_first_launch =
            |index| earlier.iter().any(|earlier| earlier.first_launch.contains(&index));
        let from = attempt.first_counted;
        let split = StepSplit::of(steps, |index| {
            (index < attempt.first || index >= from) && !is_first_launch(index)
        });
        let mut parts = vec![];
        let mut add = |id, what, secs: Option<f64>, note: String| {
            parts.push(TimePart { id, what, secs, note });
        };
        let has_steps = !steps.step.is_empty();
        add(
            COMPUTE,
            "steps that count",
            has_steps.then_some(split.compute),
            "the steps' time without the waits below".to_owned(),
        );
        let start_note = "reading the data, opening the devices, compiling, and the first launch; \
                          compiling alone is not recorded";
        let has_all = earlier.first().is_some_and(|earlier| earlier.first_launch.start == 0);
        let start_note = match (attempt.start_secs, attempt.first) {
            (None, _) => "not recorded".to_owned(),
            (Some(_), 0) => start_note.to_owned(),
            (Some(_), _) if has_all => format!("{start_note}; in all attempts that left steps"),
            (Some(_), _) => format!("{start_note}. Starts of earlier attempts are not recorded"),
        };
        let earlier_starts: f64 = earlier.iter().map(|earlier| earlier.secs).sum();
        let start_secs = attempt.start_secs.map(|secs| secs + earlier_starts);
        add(START, "start and compilation", start_secs, start_note);
        add(DATA, "waiting for data", split.data, idle_note(split.data, "batches"));
        add(HOST, "waiting for the host", split.host, idle_note(split.host, "the host's own work"));
        let members_note = match split.members {
            Some(_) => "this process in collectives: others were not there yet".to_owned(),
            None => "not recorded: one process, or collectives of the plugin".to_owned(),
        };
        add(MEMBERS, "waiting for other processes", split.members, members_note);
        let checkpoint_note = match (attempt.between.checkpoints, run.number("num_checkpoints")) {
            (None, _) => "not recorded before the run ends".to_owned(),
            (Some(_), Some(num)) => format!("{num} saved; steps waited for copies of the state"),
            (Some(_), None) => "steps waited for copies of the state".to_owned(),
        };
        let Between { checkpoints, evaluations, proofs, other } = attempt.between;
        add(CHECKPOINTS, "checkpoint stalls", checkpoints, checkpoint_note);
        let known = |secs: Option<f64>, note: &str| match secs {
            Some(_) => note.to_owned(),
            None => "not recorded apart".to_owned(),
        };
        let note = "steps waited for them; the first one may have waited for its program";
        add(EVALUATIONS, "evaluations", evaluations, known(evaluations, note));
        let note = "comparing the replicas";
        add(PROOFS, "lockstep proofs", proofs, known(proofs, note));
        let apart = [checkpoints, evaluations, proofs].iter().all(Option::is_some);
        let note = match (other, apart) {
            (None, _) => "not recorded",
            (Some(_), true) => "between steps and after them: recording, writing the last files",
            (Some(_), false) => "all time between steps and after them that is not recorded apart",
        };
        add(OTHER, "other time between steps", other, note.to_owned());
        let (repeated, repeated_note) = repeated(run, &attempt);
        add(REPEATED, "repeated steps, and down", repeated, repeated_note);
        if attempt.first > 0 {
            let note = "evaluations, proofs, checkpoints, and breaks before the last one";
            let secs = earlier_secs(steps, &attempt, &earlier);
            add(EARLIER, "between steps of earlier attempts", secs, note.to_owned());
        }
        let known = parts.iter().filter_map(|part| part.secs);
        let total_secs = (has_steps && attempt.start_secs.is_some()).then(|| known.sum::<f64>());
        let share = |of: f64| (of > 0.0).then_some(split.compute / of);
        Self {
            total_secs,
            share: total_secs.and_then(share),
            share_after_start: total_secs
                .and_then(|total| share(total - start_secs.unwrap_or(0.0))),
            parts,
        }
    }
}

fn idle_note(secs: Option<f64>, what: &str) -> String {
    match secs {
        Some(_) => format!("this process kept its devices idle for {what}"),
        None => "not recorded".to_owned(),
    }
}

/// The process that the summary is about.
struct Attempt {
    /// Index of its first step.
    first: usize,
    /// Index of its first step after the first launch.
    first_counted: usize,
    /// Seconds from its start to the end of the first launch.
    start_secs: Option<f64>,
    between: Between,
}

/// Time between the steps and after them, in seconds.
#[derive(Default)]
struct Between {
    checkpoints: Option<f64>,
    evaluations: Option<f64>,
    proofs: Option<f64>,
    /// What is left.
    other: Option<f64>,
}

impl Attempt {
    fn last_of(run: &RunFiles) -> Self {
        let steps = &run.steps;
        let resumed = run.text("resumed_from").and_then(step_of);
        let first = resumed.map_or(0, |step| steps.step.partition_point(|other| *other < step));
        let times = steps.column("time").unwrap_or(&[]);
        // The steps of a launch become known together.
        let later = times.get(first..).unwrap_or(&[]);
        let launched = later.iter().take_while(|time| Some(*time) == later.first()).count();
        let first_counted = first + launched;
        let stepped = steps.secs("step_ms", first_counted);
        let wall = run.number("wall_secs");
        if run.text("status").is_some_and(|status| status != "running") {
            let start_secs = run.number("first_step_secs");
            let [checkpoints, evaluations, proofs] =
                ["checkpoint_wait_secs", "evaluation_secs", "proof_secs"]
                    .map(|field| run.number(field));
            let apart = [checkpoints, evaluations, proofs].into_iter().flatten().sum::<f64>();
            let other = wall.zip(start_secs).zip(stepped);
            let other =
                other.map(|((wall, start), stepped)| (wall - start - stepped - apart).max(0.0));
            let between = Between { checkpoints, evaluations, proofs, other };
            return Self { first, first_counted, start_secs, between };
        }
        // The summary of a run that is not done was written when its first step was next, and the
        // first launch is one of the steps.
        let span = later.first().zip(later.last()).map(|(first, last)| last - first);
        let other = span.filter(|span| span.is_finite()).zip(stepped);
        let other = other.map(|(span, stepped)| (span - stepped).max(0.0));
        let between = Between { other, ..Between::default() };
        Self { first, first_counted: first, start_secs: wall, between }
    }
}

/// The steps before a checkpoint, by its name: `.../step_00000044`.
fn step_of(checkpoint: &str) -> Option<u64> {
    let name = checkpoint.trim_end_matches('/').rsplit('/').next()?;
    name.strip_prefix("step_")?.parse().ok()
}

/// How the time of steps divides, in seconds.
struct StepSplit {
    compute: f64,
    data: Option<f64>,
    host: Option<f64>,
    members: Option<f64>,
}

impl StepSplit {
    fn of(steps: &StepTable, is_counted: impl Fn(usize) -> bool) -> Self {
        let column = |name| steps.column(name);
        let sum = |value: &dyn Fn(usize) -> f64| -> f64 {
            let counted = (0..steps.step.len()).filter(|index| is_counted(*index));
            counted.map(value).filter(|ms| ms.is_finite()).sum::<f64>() / 1e3
        };
        let at = |of: &[f64], index: usize| of.get(index).copied().unwrap_or(f64::NAN);
        let (delay, wait) = (column("launch_delay_ms"), column("data_wait_ms"));
        let data = delay.zip(wait).map(|(delay, wait)| {
            // A batch that is waited for while devices compute costs nothing.
            sum(&|index| at(delay, index).min(at(wait, index)))
        });
        let delay = delay.map(|delay| sum(&|index| at(delay, index)));
        let host = delay.zip(data).map(|(delay, data)| (delay - data).max(0.0));
        let members = column("collective_wait_ms").map(|wait| sum(&|index| at(wait, index)));
        let whole = column("step_ms").map_or(0.0, |ms| sum(&|index| at(ms, index)));
        let lost = [data, host, members].into_iter().flatten().sum::<f64>();
        Self { compute: (whole - lost).max(0.0), data, host, members }
    }
}

/// The time between the last step that was kept and the start of the last process, and what is
/// known of it.
fn repeated(run: &RunFiles, attempt: &Attempt) -> (Option<f64>, String) {
    let failed = run.summary.get("failed_generations").and_then(|failed| failed.as_array());
    let last_failed = failed.and_then(|failed| failed.last());
    let steps = &run.steps;
    if attempt.first == 0 {
        return match last_failed {
            Some(_) => {
                let note = "not recorded: earlier attempts left no step that was kept";
                (None, note.to_owned())
            }
            None => (Some(0.0), "the run was not continued, as far as is recorded".to_owned()),
        };
    }
    let times = steps.column("time").unwrap_or(&[]);
    let ends = attempt.first.checked_sub(1).and_then(|last| times.get(last));
    let ends = ends.zip(times.get(attempt.first)).zip(attempt.start_secs);
    let secs = ends.map(|((last, next), start)| (next - start - last).max(0.0));
    let secs = secs.filter(|secs| secs.is_finite());
    let first = steps.step.get(attempt.first).copied().unwrap_or(0);
    let mut note = format!(
        "from the last step that was kept to the start of the process that went on from there, \
         with step {first}"
    );
    match last_failed.and_then(|failed| failed["step"].as_u64()) {
        // Reports come now and then: the checkpoint may have been saved after the last.
        Some(reported) if reported > first => {
            // It may have been launched ahead.
            let num = reported - first;
            note += &format!("; the attempt before was at step {reported}: about {num} repeated");
        }
        _ => note += "; how many steps were repeated is not recorded",
    }
    (secs, note)
}

/// The time between the steps of attempts before the last.
fn earlier_secs(steps: &StepTable, attempt: &Attempt, earlier: &[EarlierStart]) -> Option<f64> {
    let times = steps.column("time")?.get(..attempt.first)?;
    // The first launch of all ended where the span begins.
    let first = times.iter().take_while(|time| Some(*time) == times.first()).count();
    let is_started = |index: &usize| {
        earlier.iter().any(|earlier| earlier.first_launch.contains(index)) || *index < first
    };
    let step_ms = steps.column("step_ms")?;
    let stepped = (0..attempt.first).filter(|index| !is_started(index));
    let stepped = stepped.filter_map(|index| step_ms.get(index)).filter(|ms| ms.is_finite());
    let started = earlier.iter().filter(|earlier| earlier.first_launch.start > 0);
    let started: f64 = started.map(|earlier| earlier.secs).sum();
    let span = times.last()? - times.first()?;
    let left = span - stepped.sum::<f64>() / 1e3 - started;
    Some(left.max(0.0)).filter(|secs| secs.is_finite())
}

/// How an attempt before the last began: one under the same supervisor that left steps.
struct EarlierStart {
    /// Indices of the steps of its first launch.
    first_launch: Range<usize>,
    /// Until the end of that launch.
    secs: f64,
}

impl EarlierStart {
    /// Those with steps among the first `end`.
    fn of(run: &RunFiles, end: usize) -> Vec<Self> {
        let starts = generation_starts(&run.summary);
        let steps = &run.steps;
        let index_of = |step: u64| steps.step.partition_point(|other| *other < step);
        let times = steps.column("time").unwrap_or(&[]);
        let start_of = |(place, start): (usize, &GenerationStart)| {
            let first = index_of(start.step);
            let later = starts.get(place + 1..)?.iter().map(|later| index_of(later.step));
            let own = times.get(first..later.min()?.min(end))?;
            let launched = own.iter().take_while(|time| Some(*time) == own.first()).count();
            let GenerationStart { join_secs, plugin_secs, programs_secs, state_secs, .. } = start;
            let secs = join_secs + plugin_secs + programs_secs + state_secs;
            // Later ones agreed while the run was down.
            let agreed = if place == 0 { start.agree_secs } else { 0.0 };
            let secs = agreed + secs + start.first_step_secs?;
            (launched > 0).then_some(Self { first_launch: first..first + launched, secs })
        };
        starts.iter().enumerate().filter_map(start_of).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::report::read::StepColumn;

    fn run(summary: serde_json::Value, steps: &[[f64; 5]]) -> RunFiles {
        let column = |name: &str, place: usize| {
            StepColumn::new(name, steps.iter().map(|step| step[place]).collect())
        };
        let columns = vec![
            column("time", 1),
            column("step_ms", 2),
            column("launch_delay_ms", 3),
            column("data_wait_ms", 4),
        ];
        let step = steps.iter().map(|step| step[0] as u64).collect();
        RunFiles {
            name: "a".to_owned(),
            dir: "a".into(),
            summary: summary.as_object().unwrap().clone(),
            config_text: None,
            config: toml::Table::new(),
            steps: StepTable { step, columns, ..StepTable::default() },
            layers: vec![],
            process_times: vec![],
            notes: vec![],
        }
    }

    /// By hand: the process starts at 100, the first launch ends at 110; steps of 2 s, of which 0.5
    /// wait for data and 0.25 for the host; an evaluation of 3 s, checkpoints of 1 s and a proof of
    /// 0.5 s; the end is at 120.
    #[test]
    fn the_parts_of_a_run_add_up_to_its_time() {
        let steps = [
            [0.0, 110.0, 1000.0, 0.0, 0.0],
            [1.0, 112.0, 2000.0, 750.0, 500.0],
            [2.0, 117.0, 2000.0, 0.0, 900.0],
        ];
        let summary = json!({
            "status": "done", "wall_secs": 20.0, "first_step_secs": 10.0,
            "checkpoint_wait_secs": 1.0, "num_checkpoints": 2, "evaluation_secs": 3.0,
            "num_proofs": 1, "proof_secs": 0.5,
        });
        let goodput = Goodput::of(&run(summary, &steps));
        let found = [COMPUTE, START, DATA, HOST, CHECKPOINTS, EVALUATIONS, PROOFS, OTHER];
        let found = found.map(|id| goodput.secs(id).unwrap());
        assert_eq!(found, [3.25, 10.0, 0.5, 0.25, 1.0, 3.0, 0.5, 1.5]);
        assert_eq!(goodput.total_secs, Some(20.0));
        assert_eq!((goodput.secs(MEMBERS), goodput.secs(REPEATED)), (None, Some(0.0)));
        assert!((goodput.share.unwrap() - 3.25 / 20.0).abs() < 1e-12);
        assert!((goodput.share_after_start.unwrap() - 0.325).abs() < 1e-12);
    }

    /// Steps 0 and 1 are kept of an attempt that was at step 4; the next process starts at 130.
    #[test]
    fn a_break_is_lost_time() {
        let steps = [
            [0.0, 100.0, 1000.0, 0.0, 0.0],
            [1.0, 102.0, 1000.0, 0.0, 0.0],
            [2.0, 140.0, 500.0, 0.0, 0.0],
            [3.0, 141.0, 1000.0, 0.0, 0.0],
        ];
        let summary = json!({
            "status": "done", "wall_secs": 12.0, "first_step_secs": 10.0,
            "checkpoint_wait_secs": 0.0, "resumed_from": "/a/checkpoints/step_00000002",
            "failed_generations": [{"generation": 1, "processes": [1], "reason": "", "step": 4}],
        });
        let goodput = Goodput::of(&run(summary, &steps));
        assert_eq!(goodput.secs(REPEATED), Some(28.0));
        assert_eq!(goodput.secs(EARLIER), Some(1.0));
        // The first step of all, and the last process to its end at 142.
        assert_eq!(goodput.total_secs, Some(1.0 + 42.0));
        let repeated = goodput.parts.iter().find(|part| part.id == REPEATED).unwrap();
        assert!(repeated.note.ends_with("at step 4: about 2 repeated"), "{}", repeated.note);
    }

    /// The same with a supervisor, which knows how the first attempt began: at 95.
    #[test]
    fn the_starts_of_earlier_attempts_are_no_steps() {
        let steps = [
            [0.0, 100.0, 1000.0, 0.0, 0.0],
            [1.0, 102.0, 1500.0, 0.0, 0.0],
            // Another attempt, which began with its processes at 110.
            [2.0, 115.0, 900.0, 0.0, 0.0],
            [3.0, 116.0, 1000.0, 0.0, 0.0],
            [4.0, 140.0, 500.0, 0.0, 0.0],
            [5.0, 141.0, 1000.0, 0.0, 0.0],
        ];
        let start = |step: u64, agree: f64, join: f64, first: Option<f64>| {
            json!({
                "generation": 1, "after": "start", "num_hosts": 1, "num_processes": 2,
                "step": step, "agree_secs": agree, "join_secs": join, "plugin_secs": 1.0,
                "programs_secs": 1.0, "state_secs": 0.0, "first_step_secs": first,
            })
        };
        let summary = json!({
            "status": "done", "wall_secs": 12.0, "first_step_secs": 10.0,
            "checkpoint_wait_secs": 0.0, "resumed_from": "/a/checkpoints/step_00000004",
            "generation_starts": [
                start(0, 1.0, 1.0, Some(1.0)),
                // This one failed before it was anywhere.
                start(2, 3.0, 2.0, None),
                start(2, 3.0, 2.0, Some(1.0)),
                start(4, 1.0, 1.0, Some(1.0)),
            ],
        });
        let goodput = Goodput::of(&run(summary, &steps));
        // Steps 1, 3 and 5.
        assert_eq!(goodput.secs(COMPUTE), Some(3.5));
        assert_eq!(goodput.secs(START), Some(5.0 + 5.0 + 10.0));
        assert_eq!(goodput.secs(REPEATED), Some(14.0));
        // From 100 to 116 there are 2.5 s of steps and a start of 5 s.
        assert_eq!(goodput.secs(EARLIER), Some(8.5));
        assert_eq!(goodput.total_secs, Some(142.0 - 95.0));
    }
}
