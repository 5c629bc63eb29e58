//! Progress on stderr: a bar on a terminal, a line every few seconds elsewhere.

use std::io::{self, IsTerminal, Write};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::messages::{BAR, Said, is_text, say};

/// Shows step, loss, examples per second and the remaining time on stderr.
pub struct Progress {
    view: View,
    rate: Rate,
    global_batch: usize,
    total_steps: u64,
    /// The line for the last step.
    last: Option<String>,
}

enum View {
    Bar(ProgressBar, Option<BarWidth>),
    Lines { out: Box<dyn Write + Send>, every: Duration, last: Option<Instant> },
}

/// Characters of a bar; 0 for none.
type BarWidth = usize;

/// Most characters of the bar.
const MAX_BAR: BarWidth = 30;
/// A shorter bar tells nothing.
const MIN_BAR: BarWidth = 5;
/// Columns of a terminal that does not say how many it has.
const COLUMNS: usize = 80;

const LINE_EVERY: Duration = Duration::from_secs(5);
const REDRAWS_PER_SEC: u8 = 10;

impl Progress {
    /// A bar if stderr is a terminal, else a line every five seconds. `first_step` is not 0 if the
    /// run continues another.
    pub fn new(first_step: u64, total_steps: u64, global_batch: usize) -> Self {
        if !io::stderr().is_terminal() || !is_text() {
            return Self::lines(Box::new(Said), LINE_EVERY, first_step, total_steps, global_batch);
        }
        let target = ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SEC);
        let bar = ProgressBar::with_draw_target(Some(total_steps), target);
        let mut width = None;
        draw(&bar, &mut width, &[&format!("{first_step}/{total_steps}")]);
        bar.set_position(first_step);
        *BAR.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.clone());
        let (view, rate) = (View::Bar(bar, width), Rate::new(first_step));
        Self { view, rate, global_batch, total_steps, last: None }
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

    /// Shows that a launch has ended, after `num_steps` steps in all, the last with this mean loss.
    /// The rate is measured between calls, so this must be called once per launch and not once per
    /// step.
    pub fn launch(&mut self, num_steps: u64, loss: f64) {
        let now = Instant::now();
        self.rate.update(num_steps, now);
        let state = || state(&self.rate, self.global_batch, loss);
        let left = || left(&self.rate, self.total_steps.saturating_sub(num_steps));
        match &mut self.view {
            View::Bar(bar, width) => {
                let counter = format!("{num_steps}/{}", self.total_steps);
                let (state, left) = (state(), left());
                let (loss, per_sec) = state.split_at(state.find("  ").unwrap_or(state.len()));
                draw(bar, width, &[&counter, loss, left.trim_start(), per_sec.trim_start()]);
                bar.set_position(num_steps);
                self.last = Some(format!("step {counter} {state}"));
            }
            View::Lines { out, every, last } => {
                let is_due = last.is_none_or(|last| now - last >= *every);
                if is_due || num_steps == self.total_steps {
                    *last = Some(now);
                    // A closed stderr is not an error.
                    let (state, left) = (state(), left());
                    let line = format!("step {num_steps}/{} {state}{left}\n", self.total_steps);
                    let _ = out.write_all(line.as_bytes());
                }
            }
        }
    }

    /// Writes a line of text, above the bar if there is one.
    pub fn message(&mut self, text: &str) {
        match &mut self.view {
            View::Bar(..) => say(text),
            View::Lines { out, .. } => {
                // As above.
                let _ = out.write_all(format!("{text}\n").as_bytes());
            }
        }
    }

    /// Removes the bar and writes its last state as a line. Dropping does the same.
    pub fn finish(&mut self) {
        let View::Bar(bar, _) = &self.view else { return };
        if bar.is_finished() {
            return;
        }
        bar.finish_and_clear();
        BAR.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(last) = self.last.take() {
            say(&last);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The columns of the terminal that stdout is; `None` if it is none, or does not say.
pub fn stdout_columns() -> Option<usize> {
    columns(&Term::stdout())
}

fn columns(terminal: &Term) -> Option<usize> {
    let (_, columns) = terminal.size_checked()?;
    Some(usize::from(columns)).filter(|columns| *columns > 0)
}

/// Shows what fits on a line of the terminal, which may have another width than before.
fn draw(bar: &ProgressBar, last_width: &mut Option<BarWidth>, parts: &[&str]) {
    let (width, text) = fitted(columns(&Term::stderr()).unwrap_or(COLUMNS), parts);
    if *last_width != Some(width) {
        let template =
            if width > 0 { format!("{{bar:{width}}} {{msg}}") } else { "{msg}".to_owned() };
        // If the template did not parse, this would show the default bar.
        let style = ProgressStyle::with_template(&template);
        bar.set_style(style.unwrap_or(ProgressStyle::default_bar()));
        *last_width = Some(width);
    }
    bar.set_message(text);
}

/// As many of the parts as a line has place for, the first ones first, and a bar in what remains.
/// The last column stays free, so that no terminal wraps.
fn fitted(columns: usize, parts: &[&str]) -> (BarWidth, String) {
    let columns = columns.saturating_sub(1);
    let mut text = String::new();
    for part in parts.iter().filter(|part| !part.is_empty()) {
        let with = if text.is_empty() { (*part).to_owned() } else { format!("{text}  {part}") };
        if with.len() > columns {
            break;
        }
        text = with;
    }
    match columns.saturating_sub(text.len() + 1) {
        MIN_BAR.. => (MAX_BAR.min(columns - text.len() - 1), text),
        _ => (0, text),
    }
}

/// `loss 0.1234  5120 examples/s`.
fn state(rate: &Rate, global_batch: usize, loss: f64) -> String {
    let rate = rate.steps_per_sec.map(|steps_per_sec| steps_per_sec * global_batch as f64);
    let rate = rate.map_or(String::new(), |rate| format!("  {rate:.0} examples/s"));
    format!("loss {loss:.4}{rate}")
}

/// `  1m05s left`, or nothing if no steps are left or the rate is not known.
fn left(rate: &Rate, num_steps: u64) -> String {
    let secs = rate.steps_per_sec.filter(|_| num_steps > 0).map(|rate| num_steps as f64 / rate);
    secs.map_or(String::new(), |secs| format!("  {} left", in_words(secs)))
}

/// Steps per second: an exponential moving average.
struct Rate {
    step: u64,
    since: Option<Instant>,
    steps_per_sec: Option<f64>,
}

impl Rate {
    /// Time constant of the average.
    const SECS: f64 = 5.0;
    /// The least time per sample: single short steps are noisy, and several launches may end at
    /// once.
    const SAMPLE: Duration = Duration::from_millis(100);

    fn new(first_step: u64) -> Self {
        Self { step: first_step, since: None, steps_per_sec: None }
    }

    fn update(&mut self, num_steps: u64, now: Instant) {
        // The first launch warms up: the clock starts at its end.
        let Some(since) = self.since else {
            (self.step, self.since) = (num_steps, Some(now));
            return;
        };
        let elapsed = now - since;
        if elapsed < Self::SAMPLE {
            return;
        }
        let sample = num_steps.saturating_sub(self.step) as f64 / elapsed.as_secs_f64();
        let weight = 1.0 - (-elapsed.as_secs_f64() / Self::SECS).exp();
        let before = self.steps_per_sec.unwrap_or(sample);
        self.steps_per_sec = Some(before + weight * (sample - before));
        (self.step, self.since) = (num_steps, Some(now));
    }
}

fn in_words(secs: f64) -> String {
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
    use std::sync::{Arc, Mutex};

    use super::*;

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
        let mut progress = Progress::lines(Box::new(out.clone()), hour, 0, 20, 64);
        for step in 1..=20 {
            progress.launch(step, 1.0 / step as f64);
            if step == 10 {
                progress.message("halfway");
                std::thread::sleep(Rate::SAMPLE);
            }
        }
        progress.finish();
        let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(left(&progress.rate, 0), "");
        assert!(left(&progress.rate, 5).ends_with("s left"));
        assert_eq!(lines[..2], ["step 1/20 loss 1.0000", "halfway"]);
        assert!(lines[2].starts_with("step 20/20 loss 0.0500  "), "{text}");
        assert!(lines[2].ends_with(" examples/s"), "{text}");
    }

    #[test]
    fn the_rate_leaves_the_first_step_out_and_follows() {
        let start = Instant::now();
        let mut rate = Rate::new(0);
        rate.update(1, start + Duration::from_secs(60));
        assert_eq!(rate.steps_per_sec, None);
        rate.update(2, start + Duration::from_secs(60) + Rate::SAMPLE / 1000);
        assert_eq!(rate.steps_per_sec, None, "too short to tell");
        for second in 1..=10 {
            rate.update(1 + 10 * second, start + Duration::from_secs(60 + second));
        }
        assert!((rate.steps_per_sec.unwrap() - 10.0).abs() < 1e-9);
        for second in 11..=40 {
            rate.update(101 + 20 * (second - 10), start + Duration::from_secs(60 + second));
        }
        assert!((rate.steps_per_sec.unwrap() - 20.0).abs() < 0.1);
    }

    #[test]
    fn a_line_fits_the_terminal() {
        let parts = ["120/1320", "loss 0.1234", "1m05s left", "5120 examples/s"];
        for (columns, width, text) in [
            (120, 30, "120/1320  loss 0.1234  1m05s left  5120 examples/s"),
            (80, 28, "120/1320  loss 0.1234  1m05s left  5120 examples/s"),
            (51, 0, "120/1320  loss 0.1234  1m05s left  5120 examples/s"),
            (50, 15, "120/1320  loss 0.1234  1m05s left"),
            (40, 5, "120/1320  loss 0.1234  1m05s left"),
            (24, 0, "120/1320  loss 0.1234"),
            (9, 0, "120/1320"),
            (3, 0, ""),
        ] {
            assert_eq!(fitted(columns, &parts), (width, text.to_owned()), "{columns}");
            assert!(width + usize::from(width > 0) + text.len() < columns, "{columns}");
        }
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
