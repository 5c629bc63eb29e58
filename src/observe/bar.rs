//! What stands at the bottom of a terminal: the block of a run, a line about what the program waits
//! for, or both. All other lines, from any thread, go above it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::live::{Live, LivePart, LiveView, fitted, line};
use super::messages::{ProgressForm, progress_form};
use super::passed::{PassedBlock, pass_block};

/// Size of a terminal that does not say how large it is.
const SIZE: (u16, u16) = (24, 80);

const REDRAWS_PER_SEC: u8 = 10;

static BOTTOM: Mutex<Option<Bar>> = Mutex::new(None);

/// Calls `what` with the bottom of the terminal, if something stands there. No other line is
/// written meanwhile.
pub fn with_bottom<T>(what: impl FnOnce(&mut Option<Bar>) -> T) -> T {
    what(&mut BOTTOM.lock().unwrap_or_else(PoisonError::into_inner))
}

/// What stands at the bottom. Dropping removes it.
pub struct Bar {
    place: BarPlace,
    run: Option<ShownRun>,
    /// What the program waits for, and how long it has.
    wait: Option<[String; 2]>,
    drawn: Option<Instant>,
}

enum ShownRun {
    /// Of this process.
    Own(Box<Live>),
    /// Of a worker, as it was when the worker passed it on.
    Passed(LiveView),
}

enum BarPlace {
    Terminal(DrawnBar),
    /// The terminal of the supervisor.
    Supervisor,
}

/// Lines at the bottom of stderr.
struct DrawnBar {
    bar: ProgressBar,
    /// Columns of the bar, as last drawn.
    width: Option<usize>,
}

impl Bar {
    /// The block of a run.
    pub fn of_run(run: Live) -> Self {
        Self::new(Some(ShownRun::Own(Box::new(run))))
    }

    /// Nothing but what the program waits for.
    pub fn of_waits() -> Self {
        Self::new(None)
    }

    fn new(run: Option<ShownRun>) -> Self {
        let place = match progress_form() {
            ProgressForm::Passed => BarPlace::Supervisor,
            _ => BarPlace::Terminal(DrawnBar::new()),
        };
        Self { place, run, wait: None, drawn: None }
    }

    /// `true` if a run is shown.
    pub fn has_run(&self) -> bool {
        self.run.is_some()
    }

    /// Changes the run that is shown, if there is one. It is drawn now, or soon if it was just now.
    pub fn update(&mut self, change: impl FnOnce(&mut Live)) {
        if let Some(ShownRun::Own(run)) = &mut self.run {
            change(run);
        }
        let pause = Duration::from_secs(1) / REDRAWS_PER_SEC.into();
        if self.drawn.is_none_or(|drawn| drawn.elapsed() >= pause) {
            self.draw();
        }
    }

    /// Says what the program waits for and how long it has, or no longer does.
    pub fn set_wait(&mut self, wait: Option<[String; 2]>) {
        self.wait = wait;
        self.draw();
    }

    /// Shows what a worker has passed on.
    pub fn set_passed(&mut self, PassedBlock { run, wait }: PassedBlock) {
        (self.run, self.wait) = (run.map(ShownRun::Passed), wait);
        self.draw();
    }

    /// Draws all of it, as of now and for the present size of the terminal.
    pub fn draw(&mut self) {
        let now = Instant::now();
        self.drawn = Some(now);
        let of_now = match &self.run {
            Some(ShownRun::Own(run)) => Some(run.view(now)),
            _ => None,
        };
        match (&mut self.place, &self.run) {
            (BarPlace::Supervisor, _) => pass_block(of_now, self.wait.clone()),
            (BarPlace::Terminal(drawn), Some(ShownRun::Passed(view))) => {
                drawn.draw(Some(view), self.wait.as_ref());
            }
            (BarPlace::Terminal(drawn), _) => drawn.draw(of_now.as_ref(), self.wait.as_ref()),
        }
    }

    /// Writes other lines, by `write`, where this stands now.
    pub fn below(&self, write: impl FnOnce()) {
        match &self.place {
            BarPlace::Terminal(drawn) => drawn.bar.suspend(write),
            BarPlace::Supervisor => write(),
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        match &self.place {
            BarPlace::Terminal(drawn) => drawn.bar.finish_and_clear(),
            BarPlace::Supervisor => pass_block(None, None),
        }
    }
}

impl DrawnBar {
    fn new() -> Self {
        let target = ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SEC);
        Self { bar: ProgressBar::with_draw_target(None, target), width: None }
    }

    fn draw(&mut self, run: Option<&LiveView>, wait: Option<&[String; 2]>) {
        let (rows, columns) = size(&Term::stderr()).unwrap_or(SIZE);
        // The last column stays free, so that no terminal wraps, and the last row for a cursor.
        let columns = usize::from(columns).saturating_sub(1);
        let max_rows = usize::from(rows).saturating_sub(1 + usize::from(wait.is_some()));
        let (mut width, mut lines) = (0, vec![]);
        if let Some(run) = run {
            (width, lines) = run.rows(columns, max_rows);
        }
        let wait = wait.cloned().map(|parts| parts.map(LivePart::plain).into());
        lines.extend(wait.map(|parts| fitted(columns, parts).1));
        if self.width != Some(width) {
            let template = match width {
                0 => "{msg}".to_owned(),
                _ => format!("{{bar:{width}.cyan}} {{msg}}"),
            };
            // If the template did not parse, this would show the default bar.
            let style = ProgressStyle::with_template(&template);
            self.bar.set_style(style.unwrap_or(ProgressStyle::default_bar()));
            self.width = Some(width);
        }
        let has_colors = console::colors_enabled_stderr();
        let lines: Vec<_> = lines.iter().map(|parts| line(parts, has_colors)).collect();
        self.bar.set_message(lines.join("\n"));
        // Last, because each of these draws what is known by then.
        if let Some((num_steps, total_steps)) = run.map(|run| run.steps) {
            self.bar.set_length(total_steps);
            self.bar.set_position(num_steps);
        }
    }
}

/// Writes lines of others to the terminal, by `write`, above what stands at its bottom.
pub fn above_bottom(write: impl FnOnce()) {
    with_bottom(|bottom| match bottom {
        Some(bar) => bar.below(write),
        None => write(),
    });
}

/// The columns of the terminal that stdout is; `None` if it is none, or does not say.
pub fn stdout_columns() -> Option<usize> {
    size(&Term::stdout()).map(|(_, columns)| columns.into())
}

/// Rows and columns.
fn size(terminal: &Term) -> Option<(u16, u16)> {
    terminal.size_checked().filter(|(_, columns)| *columns > 0)
}
