//! What the terminal shows of a run while it takes steps: a block of a few lines.
//!
//! ```text
//! ██████████░░░░░░░░░░░░░░░░░░░░ 440/1320  1m05s left  33%
//! loss 0.1234 ▇▆▅▅▄▄▃▃▂▂▂▁▁▁▁▁  accuracy 0.9710
//! 5120 examples/s  lr 0.0123  waits for data 2%
//! proved 12s ago  checkpoint 1m05s ago
//! process 3  others wait for it 14%
//! ```
//! [`Live::view`] is a function of what has happened and of the time; [`LiveView::rows`] fits it
//! into a terminal, which may be that of another process.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use console::Style;
use serde::{Deserialize, Serialize};

use super::progress::in_words;
use super::{LaunchMetrics, MetricValues, RunEvent, SlowProcess};

/// Most columns of the bar and of the curve of the loss.
const MAX_DRAWN: usize = 30;
/// Fewer columns tell nothing.
const MIN_DRAWN: usize = 5;
/// Most lines about processes.
const MAX_PROCESSES: usize = 4;
/// The least share of the time that others wait for a process, to be worth a line.
const WORTH_A_LINE: f64 = 0.01;
/// From this share of the time on, waiting is a warning.
const TOO_LONG: f64 = 0.1;

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A run as the terminal shows it.
pub struct Live {
    num_steps: u64,
    total_steps: u64,
    metrics: MetricValues,
    losses: Curve,
    /// `5120 examples/s`; empty if it is not known.
    per_sec: String,
    /// `1m05s left`; empty if it is not known.
    left: String,
    data_wait: Share,
    /// Of the time, how much others waited for each process.
    waited_for: BTreeMap<usize, Share>,
    /// The last verdict about each process, and when it came.
    slow: BTreeMap<usize, (SlowProcess, Instant)>,
    proved: Option<Instant>,
    saved: Option<Instant>,
}

/// What is shown of a run at some time, on a terminal of any size.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct LiveView {
    /// Steps taken, and all.
    pub steps: (u64, u64),
    /// Beside the bar.
    progress: Vec<LivePart>,
    /// Losses since the start, for the curve beside the numbers; at most [`MAX_DRAWN`].
    losses: Vec<f64>,
    /// The numbers of the last step, the loss first.
    numbers: Vec<LivePart>,
    /// The lines below.
    others: Vec<Vec<LivePart>>,
}

/// A piece of a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LivePart {
    text: String,
    tone: Tone,
}

/// How a part looks where there are colors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Tone {
    Plain,
    Quiet,
    Drawn,
    Warning,
}

impl Live {
    /// A run of so many steps, of which some may have been taken before.
    pub fn new(num_steps: u64, total_steps: u64) -> Self {
        Self {
            num_steps,
            total_steps,
            metrics: MetricValues::default(),
            losses: Curve::default(),
            per_sec: String::new(),
            left: String::new(),
            data_wait: Share::default(),
            waited_for: BTreeMap::new(),
            slow: BTreeMap::new(),
            proved: None,
            saved: None,
        }
    }

    /// Takes in a launch that has ended, after `num_steps` steps in all, with the throughput and
    /// the remaining time as text.
    pub fn launch(
        &mut self,
        launch: &LaunchMetrics,
        num_steps: u64,
        per_sec: String,
        left: String,
    ) {
        (self.num_steps, self.per_sec, self.left) = (num_steps, per_sec, left);
        for step in &launch.steps {
            self.losses.extend(step.values.get(super::Metric::LOSS));
        }
        if let Some(last) = launch.steps.last() {
            self.metrics = last.values.clone();
        }
        let Some(spans) = &launch.spans else { return };
        let whole = launch.duration;
        self.data_wait.add(spans.data.end.saturating_duration_since(spans.data.start), whole);
        for (process, _) in &spans.waited_for {
            self.waited_for.entry(*process).or_default();
        }
        for (process, share) in &mut self.waited_for {
            let waited = spans.waited_for.iter().find(|(index, _)| index == process);
            share.add(waited.map_or(Duration::ZERO, |(_, waited)| *waited), whole);
        }
    }

    /// Takes in what else happens in a run.
    pub fn event(&mut self, event: &RunEvent, now: Instant) {
        match event {
            RunEvent::LockstepProved { .. } => self.proved = Some(now),
            RunEvent::CheckpointSaved(_) => self.saved = Some(now),
            RunEvent::ProcessSlow(slow) => {
                self.slow.insert(slow.process_index, (slow.clone(), now));
            }
            _ => {}
        }
    }

    /// What is shown now.
    pub fn view(&self, now: Instant) -> LiveView {
        let others = [self.speed(), self.ages(now)].into_iter().chain(self.processes(now));
        LiveView {
            steps: (self.num_steps, self.total_steps),
            progress: self.progress(),
            losses: self.losses.condensed(MAX_DRAWN),
            numbers: self.numbers(),
            others: others.collect(),
        }
    }

    fn progress(&self) -> Vec<LivePart> {
        let Self { num_steps, total_steps, .. } = self;
        let percent = num_steps.saturating_mul(100).checked_div(*total_steps);
        let percent = percent.map_or(String::new(), |percent| format!("{percent}%"));
        vec![
            LivePart::plain(format!("{num_steps}/{total_steps}")),
            LivePart::plain(self.left.clone()),
            LivePart::new(percent, Tone::Quiet),
        ]
    }

    /// The loss first.
    fn numbers(&self) -> Vec<LivePart> {
        let (loss, others): (Vec<_>, Vec<_>) =
            shown(&self.metrics).partition(|(name, _)| *name == super::Metric::LOSS);
        loss.into_iter().chain(others).map(|(_, text)| LivePart::plain(text)).collect()
    }

    fn speed(&self) -> Vec<LivePart> {
        let rate = self.metrics.get("lr").map(|lr| match lr {
            0.0 => "lr 0".to_owned(),
            1e-3.. => format!("lr {lr:.4}"),
            _ => format!("lr {lr:.2e}"),
        });
        let waits = self.data_wait.share().map(|share| LivePart::share("waits for data", share));
        let rate = rate.map(LivePart::plain);
        [Some(LivePart::plain(self.per_sec.clone())), rate, waits].into_iter().flatten().collect()
    }

    fn ages(&self, now: Instant) -> Vec<LivePart> {
        let part = |what: &str, since: Option<Instant>| {
            Some(LivePart::new(format!("{what} {} ago", age(now, since?)), Tone::Quiet))
        };
        let parts = [part("proved", self.proved), part("checkpoint", self.saved)];
        parts.into_iter().flatten().collect()
    }

    /// A line for each process that others wait for, those that they wait for longest first.
    fn processes(&self, now: Instant) -> Vec<Vec<LivePart>> {
        let shares = self.waited_for.iter().filter_map(|(process, share)| {
            Some((*process, share.share().filter(|share| *share >= WORTH_A_LINE)?))
        });
        let shares: BTreeMap<_, _> = shares.collect();
        let mut indices: Vec<_> = shares.keys().chain(self.slow.keys()).copied().collect();
        let share = |process: &usize| shares.get(process).copied().unwrap_or(0.0);
        indices.sort_unstable();
        indices.dedup();
        indices.sort_by(|a, b| share(b).total_cmp(&share(a)));
        let line = |process: &usize| {
            let mut parts = vec![LivePart::plain(format!("process {process}"))];
            if let Some(share) = shares.get(process) {
                parts.push(LivePart::share("others wait for it", *share));
            }
            if let Some((slow, since)) = self.slow.get(process) {
                let age = age(now, *since);
                let text = format!("{:.1} x slower {age} ago, on {}", slow.factor, slow.host);
                parts.push(LivePart::new(text, Tone::Warning));
            }
            parts
        };
        let mut lines: Vec<_> = indices.iter().take(MAX_PROCESSES).map(line).collect();
        if let Some(others) = indices.len().checked_sub(MAX_PROCESSES).filter(|n| *n > 0) {
            lines.push(vec![LivePart::new(format!("and {others} others"), Tone::Quiet)]);
        }
        lines
    }
}

impl LiveView {
    /// The columns of the bar, 0 for none, and the lines; the bar stands before the first one.
    /// None is longer than `columns`, and there are at most `max_rows`.
    pub fn rows(&self, columns: usize, max_rows: usize) -> (usize, Vec<Vec<LivePart>>) {
        let (bar, progress) = fitted(columns, self.progress.clone());
        let mut rows = vec![progress];
        let (curve, mut numbers) = fitted(columns, self.numbers.clone());
        if let (Some(loss), true) = (numbers.first_mut(), curve > 0) {
            let curve = LivePart::new(drawn(&condensed(&self.losses, curve)), Tone::Drawn);
            let loss = std::mem::replace(loss, curve);
            numbers.insert(0, loss);
        }
        rows.push(numbers);
        rows.extend(self.others.iter().map(|parts| fitted(columns, parts.clone()).1));
        rows.retain(|row| !row.is_empty());
        rows.truncate(max_rows.max(1));
        (bar, rows)
    }

    /// The steps that are done as a bar of so many columns.
    pub fn bar(&self, columns: usize) -> LivePart {
        let (done, total) = self.steps;
        let share = done.min(total) as f64 / total.max(1) as f64;
        let filled = (share * columns as f64) as usize;
        let text = "█".repeat(filled) + &"░".repeat(columns.saturating_sub(filled));
        LivePart::new(text, Tone::Drawn)
    }
}

fn age(now: Instant, since: Instant) -> String {
    in_words(now.saturating_duration_since(since).as_secs_f64())
}

/// The metrics that the terminal shows, by name and as text: `loss 0.1234`.
pub fn shown(metrics: &MetricValues) -> impl Iterator<Item = (&'static str, String)> {
    metrics.iter().filter_map(|(metric, value)| {
        let digits = metric.terminal_digits?;
        Some((metric.name, format!("{} {value:.digits$}", metric.name)))
    })
}

impl LivePart {
    fn new(text: String, tone: Tone) -> Self {
        Self { text, tone }
    }

    /// In the terminal's own color.
    pub fn plain(text: String) -> Self {
        Self::new(text, Tone::Plain)
    }

    fn share(what: &str, share: f64) -> Self {
        let tone = if share >= TOO_LONG { Tone::Warning } else { Tone::Plain };
        Self::new(format!("{what} {:.0}%", 100.0 * share), tone)
    }

    fn columns(&self) -> usize {
        self.text.chars().count()
    }
}

/// The parts as text, with the codes of a terminal for colors if there are any.
pub fn line(parts: &[LivePart], has_colors: bool) -> String {
    let mut text = String::new();
    for (number, part) in parts.iter().enumerate() {
        // The curve stands close to its number.
        text += match part.tone {
            _ if number == 0 => "",
            Tone::Drawn => " ",
            _ => "  ",
        };
        let style = match part.tone {
            Tone::Plain => Style::new(),
            Tone::Quiet => Style::new().dim(),
            Tone::Drawn => Style::new().cyan(),
            Tone::Warning => Style::new().yellow(),
        };
        text += &style.force_styling(has_colors).apply_to(&part.text).to_string();
    }
    text
}

/// As many of the parts as a line has columns for, the first ones first, and what remains for
/// something that is drawn beside them; 0 if that is too little. A first part that is too long is
/// cut.
pub fn fitted(columns: usize, parts: Vec<LivePart>) -> (usize, Vec<LivePart>) {
    let (mut used, mut fitting) = (0, vec![]);
    for mut part in parts.into_iter().filter(|part| !part.text.is_empty()) {
        let with = if fitting.is_empty() { part.columns() } else { used + 2 + part.columns() };
        if with > columns && !fitting.is_empty() {
            break;
        }
        if with > columns {
            let kept = columns.saturating_sub(1);
            part.text = part.text.chars().take(kept).chain((columns > 0).then_some('…')).collect();
        }
        used = with.min(columns);
        fitting.push(part);
    }
    match columns.saturating_sub(used + 1) {
        left @ MIN_DRAWN.. => (left.min(MAX_DRAWN), fitting),
        _ => (0, fitting),
    }
}

/// The losses since the start as means over equally many steps.
#[derive(Default)]
struct Curve {
    means: Vec<f64>,
    /// Of the steps after those: their sum, and how many they are.
    rest: (f64, usize),
    /// Steps of a mean are 2 to the power of this.
    doublings: u32,
}

impl Curve {
    /// The most means that are kept.
    const MAX: usize = 8 * MAX_DRAWN;

    /// Values that are not finite are left out.
    fn extend(&mut self, losses: impl IntoIterator<Item = f64>) {
        for loss in losses.into_iter().filter(|loss| loss.is_finite()) {
            self.rest = (self.rest.0 + loss, self.rest.1 + 1);
            if self.rest.1 < 1 << self.doublings {
                continue;
            }
            self.means.push(self.rest.0 / self.rest.1 as f64);
            self.rest = (0.0, 0);
            if self.means.len() == Self::MAX {
                let pairs = self.means.chunks(2);
                self.means = pairs.map(|pair| pair.iter().sum::<f64>() / 2.0).collect();
                self.doublings += 1;
            }
        }
    }

    /// As so many values, or fewer if there are fewer.
    fn condensed(&self, num: usize) -> Vec<f64> {
        condensed(&self.means, num)
    }
}

/// Means of values in a row, as many as asked for, or fewer if there are fewer values.
fn condensed(values: &[f64], num: usize) -> Vec<f64> {
    let num = num.min(values.len());
    let bounds = |place: usize| place * values.len() / num;
    let means = (0..num).map(|place| {
        let of_place = &values[bounds(place)..bounds(place + 1)];
        of_place.iter().sum::<f64>() / of_place.len() as f64
    });
    means.collect()
}

/// A column for each value, from the least to the largest.
fn drawn(values: &[f64]) -> String {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let top = (BLOCKS.len() - 1) as f64;
    // Halves, because the difference of two finite numbers may be infinite.
    let level = |value: f64| (value / 2.0 - low / 2.0) / (high / 2.0 - low / 2.0) * top;
    // A curve that is flat lies at the bottom: the conversion makes 0 of what is no number.
    values.iter().map(|value| BLOCKS[level(*value).round() as usize]).collect()
}

/// A part of the time: an average in which what is longer ago counts less.
#[derive(Default)]
struct Share {
    part: f64,
    whole: f64,
}

impl Share {
    /// Time constant of the average.
    const SECS: f64 = 10.0;

    fn add(&mut self, part: Duration, whole: Duration) {
        let kept = (-whole.as_secs_f64() / Self::SECS).exp();
        self.part = self.part * kept + part.as_secs_f64();
        self.whole = self.whole * kept + whole.as_secs_f64();
    }

    /// From 0 to 1; `None` if no time has passed.
    fn share(&self) -> Option<f64> {
        (self.whole > 0.0).then(|| (self.part / self.whole).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::{LaunchSpans, Metric, SavedCheckpoint, StepMetrics};

    static LOSS: Metric = Metric::number(Metric::LOSS).on_terminal(4);
    static ACCURACY: Metric = Metric::number("accuracy").on_terminal(4);
    static LR: Metric = Metric::number("lr");

    const SECOND: Duration = Duration::from_secs(1);

    /// A run of three processes, of which the last is slow, and the time at which it is shown.
    fn run() -> (Live, Instant) {
        let start = Instant::now();
        let mut run = Live::new(0, 1320);
        for step in 0..440_u64 {
            let begun = start + SECOND * step as u32;
            let data = begun..begun + SECOND / 50;
            let spans = LaunchSpans {
                data: data.clone(),
                host: data.clone(),
                whole: data.clone(),
                compute: data,
                waits: vec![],
                waited_for: vec![(1, SECOND / 1000), (2, SECOND / 4)],
                ops: vec![],
            };
            let loss = if step == 300 { f64::NAN } else { 2.0 / (1.0 + step as f64 / 50.0) };
            let values = [(&LR, 0.0123), (&LOSS, loss), (&ACCURACY, 0.5)];
            let launch = LaunchMetrics {
                steps: vec![StepMetrics { step, values: values.into_iter().collect() }],
                duration: SECOND,
                spans: Some(Box::new(spans)),
                ..LaunchMetrics::default()
            };
            run.launch(&launch, step + 1, "5120 examples/s".into(), "14m40s left".into());
        }
        let end = start + 440 * SECOND;
        let ago = |secs: u32| end - secs * SECOND;
        let (took, process_times) = (SECOND, vec![]);
        run.event(&RunEvent::LockstepProved { num_steps: 400, took, process_times }, ago(12));
        let (waited, written) = (SECOND, SECOND);
        let saved = SavedCheckpoint { num_steps: 400, begun: ago(66), waited, written };
        run.event(&RunEvent::CheckpointSaved(saved), ago(65));
        let slow = SlowProcess {
            process_index: 2,
            host: "node-7".to_owned(),
            factor: 1.5,
            since_step: 90,
            cause: "device",
            machine: String::new(),
            text: String::new(),
        };
        run.event(&RunEvent::ProcessSlow(slow), ago(30));
        (run, end)
    }

    fn lines(columns: usize, max_rows: usize) -> (usize, Vec<String>) {
        let (run, now) = run();
        let (bar, rows) = run.view(now).rows(columns, max_rows);
        for row in &rows {
            let plain = line(row, false);
            assert_eq!(console::strip_ansi_codes(&line(row, true)), plain);
            assert!(!plain.contains('\u{1b}') && plain.chars().count() <= columns, "{plain}");
        }
        (bar, rows.iter().map(|row| line(row, false)).collect())
    }

    #[test]
    fn a_block_at_three_widths() {
        // A terminal of 40, 80 and 120 columns has one less.
        let (bar, narrow) = lines(39, 24);
        assert_eq!(bar, 12);
        let (view, now) = run();
        assert_eq!(line(&[view.view(now).bar(12)], false), "████░░░░░░░░");
        assert_eq!(
            narrow,
            [
                "440/1320  14m40s left  33%",
                "loss 0.2045 █▅▃▃▂▂▁▁▁▁  accuracy 0.5000",
                "5120 examples/s  lr 0.0123",
                "proved 12s ago  checkpoint 1m05s ago",
                "process 2  others wait for it 25%",
            ]
        );
        let (bar, usual) = lines(79, 24);
        let (_, wide) = lines(119, 24);
        assert_eq!(bar, 30);
        assert_eq!(usual[4], "process 2  others wait for it 25%  1.5 x slower 30s ago, on node-7");
        assert_eq!(usual, wide);
        let (run, now) = run();
        let colored: Vec<_> =
            run.view(now).rows(79, 24).1.iter().map(|row| line(row, true)).collect();
        assert!(colored[1].contains("\u{1b}[36m█"), "{}", colored[1]);
        assert!(colored[4].contains("\u{1b}[33mothers wait for it 25%"), "{}", colored[4]);
    }

    #[test]
    fn a_small_terminal_shows_what_it_has_place_for() {
        assert_eq!(lines(79, 2).1.len(), 2);
        for columns in 1..40 {
            let (bar, rows) = lines(columns, 24);
            let first = rows[0].chars().count();
            assert!(bar == 0 || bar + 1 + first <= columns, "{columns}: {bar} and {rows:?}");
        }
        assert_eq!(lines(6, 24).1[0], "440/1…");
    }

    #[test]
    fn of_many_processes_the_worst_are_shown() {
        let (mut run, now) = run();
        for process in 3..20_usize {
            run.waited_for.insert(process, Share { part: process as f64, whole: 100.0 });
        }
        let lines: Vec<_> = run.processes(now).iter().map(|row| line(row, false)).collect();
        assert_eq!(lines.len(), 5);
        assert!(lines[0].starts_with("process 2  others wait for it 25%"), "{lines:#?}");
        assert_eq!(lines[1], "process 19  others wait for it 19%");
        assert_eq!(lines[4], "and 14 others");
    }

    #[test]
    fn a_curve_keeps_its_shape_however_long_it_is() {
        let curve = |num_steps: u32, columns: usize| {
            let mut curve = Curve::default();
            curve.extend((0..num_steps).map(|step| f64::from(step) / f64::from(num_steps)));
            drawn(&curve.condensed(columns))
        };
        assert_eq!(curve(0, 8), "");
        assert_eq!(curve(1, 8), "▁");
        for num_steps in [8, 1_000, 100_000] {
            assert_eq!(curve(num_steps, 8), "▁▂▃▄▅▆▇█", "{num_steps} steps");
        }
        let mut flat = Curve::default();
        flat.extend([0.5, f64::NAN, 0.5, f64::INFINITY]);
        assert_eq!(drawn(&flat.condensed(8)), "▁▁");
    }

    #[test]
    fn a_share_forgets() {
        let mut share = Share::default();
        assert_eq!(share.share(), None);
        share.add(SECOND, SECOND);
        assert_eq!(share.share(), Some(1.0));
        for _ in 0..60 {
            share.add(Duration::ZERO, SECOND);
        }
        assert!(share.share().unwrap() < 0.01);
    }
}
