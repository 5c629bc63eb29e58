//! What stands at the bottom of a terminal: the block of a run, a line about what the program waits
//! for, or both. All other lines, from any thread, go above it.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use console::Term;

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

/// Lines at the bottom of stderr, with the cursor at the end of the last one. Each begins a row of
/// its own, so that a terminal that is made wider does not join them.
struct DrawnBar {
    /// As last drawn.
    lines: Vec<String>,
    /// See [`wraps`].
    wraps: bool,
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
    pub fn below(&mut self, write: impl FnOnce()) {
        match &mut self.place {
            BarPlace::Terminal(drawn) => drawn.suspend(write),
            BarPlace::Supervisor => write(),
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        match &self.place {
            BarPlace::Terminal(drawn) => drawn.erase(),
            BarPlace::Supervisor => pass_block(None, None),
        }
    }
}

impl DrawnBar {
    fn new() -> Self {
        let variable = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let term = std::env::var("TERM").unwrap_or_default();
        Self { lines: vec![], wraps: wraps(&term, variable) }
    }

    fn draw(&mut self, run: Option<&LiveView>, wait: Option<&[String; 2]>) {
        let (rows, columns) = size(&Term::stderr()).unwrap_or(SIZE);
        // The last column stays free, so that no terminal wraps, and the last row for a cursor.
        let width = usize::from(columns).saturating_sub(1);
        let max_rows = usize::from(rows).saturating_sub(1 + usize::from(wait.is_some()));
        let (mut bar, mut parts) = (0, vec![]);
        if let Some(run) = run {
            (bar, parts) = run.rows(width, max_rows);
        }
        let wait = wait.cloned().map(|parts| parts.map(LivePart::plain).into());
        parts.extend(wait.map(|parts| fitted(width, parts).1));
        let has_colors = console::colors_enabled_stderr();
        let mut lines: Vec<_> = parts.iter().map(|parts| line(parts, has_colors)).collect();
        if let (1.., Some(run), Some(first)) = (bar, run, lines.first_mut()) {
            *first = format!("{} {first}", line(&[run.bar(bar)], has_colors));
        }
        let text = self.erased(columns.into()) + &lines.join("\r\n");
        self.lines = lines;
        write_stderr(&text);
    }

    /// Writes other lines, by `write`, where this stands now.
    fn suspend(&mut self, write: impl FnOnce()) {
        self.erase();
        write();
        write_stderr(&self.lines.join("\r\n"));
    }

    fn erase(&self) {
        let (_, columns) = size(&Term::stderr()).unwrap_or(SIZE);
        write_stderr(&self.erased(columns.into()));
    }

    /// What goes to a terminal of so many columns to remove the lines.
    fn erased(&self, columns: usize) -> String {
        let widths = self.lines.iter().map(|line| console::measure_text_width(line));
        let rows = match self.wraps {
            true => rows_of(widths, columns),
            false => self.lines.len(),
        };
        match rows {
            0 => String::new(),
            1 => format!("\r{ERASE_BELOW}"),
            rows => format!("\r\u{1b}[{}A{ERASE_BELOW}", rows - 1),
        }
    }
}

/// Erases from the cursor to the end of the screen.
const ERASE_BELOW: &str = "\u{1b}[J";

/// The rows that lines of these widths take on a terminal that has been made narrower, and wraps
/// what has become too long.
fn rows_of(widths: impl Iterator<Item = usize>, columns: usize) -> usize {
    widths.map(|width| width.div_ceil(columns.max(1)).max(1)).sum()
}

/// Whether a terminal that is made narrower wraps lines, as nearly all do; the others cut them, so
/// that more rows must not be erased than were written: xterm, the console of Linux, and screen.
/// tmux, whose `TERM` may be the same as of screen, wraps.
fn wraps(term: &str, has_variable: impl Fn(&str) -> bool) -> bool {
    let is_screen = has_variable("STY") || term.starts_with("screen") && !has_variable("TMUX");
    !(has_variable("XTERM_VERSION") || is_screen || term == "linux")
}

/// A terminal that has gone shows nothing, which is no reason to fail.
fn write_stderr(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn terminal(columns: u16) -> vt100::Parser {
        let [rows, columns] = [24, columns].map(|size| size.try_into().unwrap());
        vt100::Parser::new(rows, columns, 0)
    }

    /// What a terminal of 80 columns shows when it has others: it wraps rows that are too long, or
    /// cuts them, and the cursor stays behind the last character.
    fn resized(from: &vt100::Parser, columns: u16, wraps: bool) -> vt100::Parser {
        let kept = if wraps { 80 } else { columns };
        let mut text: Vec<String> = from.screen().rows(0, kept).collect();
        while text.last().is_some_and(String::is_empty) {
            text.pop();
        }
        let mut changed = terminal(columns);
        changed.process(text.join("\r\n").as_bytes());
        changed
    }

    /// A block of three lines below two of others, on a terminal that changes its size.
    #[test]
    fn nothing_of_a_block_is_left_and_no_other_line_is_lost_when_the_size_changes() {
        let block = ["█".repeat(60), "b".repeat(79), "c".repeat(30)];
        for (wraps, columns) in
            [(true, 40), (true, 25), (true, 10), (true, 200), (false, 40), (false, 200)]
        {
            let mut before = terminal(80);
            before.process(format!("first\r\nsecond\r\n{}", block.join("\r\n")).as_bytes());
            let mut terminal = resized(&before, columns, wraps);
            let drawn = DrawnBar { lines: block.to_vec(), wraps };
            terminal.process(drawn.erased(columns.into()).as_bytes());
            terminal.process(b"third");
            let rows: Vec<_> = terminal.screen().rows(0, columns).take(4).collect();
            assert_eq!(rows, ["first", "second", "third", ""], "{wraps} {columns}");
        }
        assert_eq!(DrawnBar { lines: vec![], wraps: true }.erased(80), "");
    }

    #[test]
    fn terminals_that_cut_lines_are_known() {
        let with = |name: &'static str| move |other: &str| other == name;
        assert!(wraps("xterm-256color", with("VTE_VERSION")) && wraps("", with("")));
        assert!(wraps("screen-256color", with("TMUX")) && wraps("tmux-256color", with("TMUX")));
        assert!(!wraps("xterm-256color", with("XTERM_VERSION")) && !wraps("linux", with("")));
        assert!(!wraps("screen.xterm-256color", with("STY")) && !wraps("screen", with("")));
    }
}
