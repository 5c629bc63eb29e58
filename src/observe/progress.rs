//! Progress on stderr: a block on a terminal, a line every few seconds elsewhere.

use std::io::Write;
use std::time::{Duration, Instant};

use super::bar::{Bar, with_bottom};
use super::live::{Live, shown};
use super::messages::{ProgressForm, Said, progress_form, say};
use super::{LaunchMetrics, MetricValues, RunEvent};

/// Shows the step, its metrics, examples per second and the remaining time on stderr, and on a
/// terminal more of what happens.
pub struct ProgressDisplay {
    view: View,
    rate: Rate,
    global_batch: usize,
    total_steps: u64,
    /// The line for the last step.
    last: Option<String>,
}

enum View {
    /// At the bottom of a terminal.
    Block,
    Lines {
        out: Box<dyn Write + Send>,
        every: Duration,
        last: Option<Instant>,
    },
    Nothing,
}

const LINE_EVERY: Duration = Duration::from_secs(5);

impl ProgressDisplay {
    /// In the form that the process has. `first_step` is not 0 if the run continues another.
    pub fn new(first_step: u64, total_steps: u64, global_batch: usize) -> Self {
        let view = match progress_form() {
            ProgressForm::Lines => {
                View::Lines { out: Box::new(Said), every: LINE_EVERY, last: None }
            }
            ProgressForm::Block | ProgressForm::Passed => {
                let mut bar = Bar::of_run(Live::new(first_step, total_steps));
                bar.draw();
                with_bottom(|bottom| *bottom = Some(bar));
                View::Block
            }
            ProgressForm::Nothing => View::Nothing,
        };
        Self { view, rate: Rate::new(first_step), global_batch, total_steps, last: None }
    }

    /// Lines written to `out`, at most one per `every`.
    pub fn lines(
        out: Box<dyn Write + Send>,
        every: Duration,
        first_step: u64,
        total_steps: u64,
        global_batch: usize,
    ) -> Self {
        let view = View::Lines { out, every, last: None };
        let rate = Rate::new(first_step);
        Self { view, rate, global_batch, total_steps, last: None }
    }

    /// Shows that a launch has ended. Its duration is without evaluations and the like.
    pub fn launch(&mut self, launch: &LaunchMetrics) {
        let Some(last_step) = launch.steps.last() else { return };
        let (num_steps, metrics) = (last_step.step + 1, &last_step.values);
        let now = Instant::now();
        self.rate.update(num_steps, launch.duration);
        let total_steps = self.total_steps;
        let per_sec = || per_sec(&self.rate, self.global_batch);
        let left = || left(&self.rate, total_steps.saturating_sub(num_steps));
        let line = || format!("step {num_steps}/{total_steps} {}{}", describe(metrics), per_sec());
        match &mut self.view {
            View::Block => {
                let [per_sec, left] = [per_sec(), left()].map(|text| text.trim_start().to_owned());
                with_bottom(|bottom| {
                    if let Some(bar) = bottom {
                        bar.update(|run| run.launch(launch, num_steps, per_sec, left));
                    }
                });
                self.last = Some(line());
            }
            View::Lines { out, every, last } => {
                let is_due = last.is_none_or(|last| now - last >= *every);
                if is_due || num_steps == total_steps {
                    *last = Some(now);
                    // A closed stderr is not an error.
                    let _ = out.write_all(format!("{}{}\n", line(), left()).as_bytes());
                }
            }
            View::Nothing => {}
        }
    }

    /// Shows something else of the run in the block, if there is one.
    pub fn event(&mut self, event: &RunEvent) {
        if let View::Block = self.view {
            let now = Instant::now();
            with_bottom(|bottom| {
                if let Some(bar) = bottom {
                    bar.update(|run| run.event(event, now));
                }
            });
        }
    }

    /// Writes a line of text, above the block if there is one.
    pub fn message(&mut self, text: &str) {
        match &mut self.view {
            View::Block | View::Nothing => say(text),
            View::Lines { out, .. } => {
                // As above.
                let _ = out.write_all(format!("{text}\n").as_bytes());
            }
        }
    }

    /// Removes the block and writes its last state as a line. Dropping does the same.
    pub fn finish(&mut self) {
        if let View::Block = self.view {
            with_bottom(|bottom| drop(bottom.take()));
        }
        if let Some(last) = self.last.take() {
            say(&last);
        }
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        self.finish();
    }
}

/// `loss 0.1234`, and what else the terminal shows.
fn describe(metrics: &MetricValues) -> String {
    shown(metrics).map(|(_, text)| text).collect::<Vec<_>>().join("  ")
}

/// `  5120 examples/s`, or nothing if the rate is not known.
fn per_sec(rate: &Rate, global_batch: usize) -> String {
    let rate = rate.steps_per_sec.map(|steps_per_sec| steps_per_sec * global_batch as f64);
    rate.map_or(String::new(), |rate| {
        let digits = if rate < 10.0 { 2 } else { 0 };
        format!("  {rate:.digits$} examples/s")
    })
}

/// `  1m05s left`, or nothing if no steps are left or the rate is not known.
fn left(rate: &Rate, num_steps: u64) -> String {
    let secs = rate.steps_per_sec.filter(|_| num_steps > 0).map(|rate| num_steps as f64 / rate);
    secs.map_or(String::new(), |secs| format!("  {} left", in_words(secs)))
}

/// Steps per second of time in launches: an exponential moving average.
struct Rate {
    step: u64,
    /// Time since that step; `None` before the first launch has ended.
    elapsed: Option<Duration>,
    steps_per_sec: Option<f64>,
}

impl Rate {
    /// Time constant of the average.
    const SECS: f64 = 5.0;
    /// The least time per sample: single short steps are noisy, and several launches may end at
    /// once.
    const SAMPLE: Duration = Duration::from_millis(100);

    fn new(first_step: u64) -> Self {
        Self { step: first_step, elapsed: None, steps_per_sec: None }
    }

    fn update(&mut self, num_steps: u64, duration: Duration) {
        // The first launch warms up: the clock starts at its end.
        let Some(elapsed) = &mut self.elapsed else {
            (self.step, self.elapsed) = (num_steps, Some(Duration::ZERO));
            return;
        };
        *elapsed += duration;
        if *elapsed < Self::SAMPLE {
            return;
        }
        let secs = elapsed.as_secs_f64();
        let sample = num_steps.saturating_sub(self.step) as f64 / secs;
        let weight = 1.0 - (-secs / Self::SECS).exp();
        let before = self.steps_per_sec.unwrap_or(sample);
        self.steps_per_sec = Some(before + weight * (sample - before));
        (self.step, self.elapsed) = (num_steps, Some(Duration::ZERO));
    }
}

/// `1m05s`.
pub(super) fn in_words(secs: f64) -> String {
    // The conversion saturates: with a rate of 0 the time is infinite.
    let secs = secs.round() as u64;
    match (secs / 3600, secs / 60 % 60, secs % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s:02}s"),
        (h, m, _) if h < 10_000 => format!("{h}h{m:02}m"),
        _ => "a long time".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::observe::{Metric, StepMetrics};

    static LOSS: Metric = Metric::number(Metric::LOSS).on_terminal(4);
    static HIDDEN: Metric = Metric::number("hidden");
    static COUNT: Metric = Metric::count("dropped").on_terminal(0);

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_come_now_and_then_and_at_the_end() {
        let out = Shared::default();
        let hour = Duration::from_secs(3600);
        let mut progress = ProgressDisplay::lines(Box::new(out.clone()), hour, 0, 20, 64);
        for num_steps in 1..=20 {
            let values = [(&LOSS, 1.0 / num_steps as f64), (&HIDDEN, 7.0), (&COUNT, 3.0)];
            let step = StepMetrics { step: num_steps - 1, values: values.into_iter().collect() };
            progress.launch(&LaunchMetrics {
                steps: vec![step],
                duration: Rate::SAMPLE,
                ..LaunchMetrics::default()
            });
            if num_steps == 10 {
                progress.message("halfway");
            }
        }
        progress.finish();
        let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(left(&progress.rate, 0), "");
        assert!(left(&progress.rate, 5).ends_with("s left"));
        assert_eq!(lines[..2], ["step 1/20 loss 1.0000  dropped 3", "halfway"]);
        assert!(lines[2].starts_with("step 20/20 loss 0.0500  dropped 3  "), "{text}");
        assert!(lines[2].ends_with(" examples/s"), "{text}");
    }

    #[test]
    fn the_rate_leaves_the_first_step_out_and_follows() {
        let second = Duration::from_secs(1);
        let mut rate = Rate::new(0);
        rate.update(1, 60 * second);
        assert_eq!(rate.steps_per_sec, None);
        rate.update(2, Rate::SAMPLE / 1000);
        assert_eq!(rate.steps_per_sec, None, "too short to tell");
        for i in 1..=10 {
            rate.update(1 + 10 * i, second);
        }
        assert!((rate.steps_per_sec.unwrap() - 10.0).abs() < 0.01);
        for i in 1..=30 {
            rate.update(101 + 20 * i, second);
        }
        assert!((rate.steps_per_sec.unwrap() - 20.0).abs() < 0.1);
    }

    #[test]
    fn times_are_short() {
        let cases =
            [(0.4, "0s"), (65.0, "1m05s"), (7260.0, "2h01m"), (f64::INFINITY, "a long time")];
        for (secs, expected) in cases {
            assert_eq!(in_words(secs), expected);
        }
    }
}
