//! The line at the bottom of a terminal: a bar, or only text. All other lines, from any thread, go
//! above it.

use std::sync::{Mutex, PoisonError};

use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Characters of a bar; 0 for none.
type BarWidth = usize;

/// Most characters of the bar.
const MAX_BAR: BarWidth = 30;
/// A shorter bar tells nothing.
const MIN_BAR: BarWidth = 5;
/// Columns of a terminal that does not say how many it has.
const COLUMNS: usize = 80;

const REDRAWS_PER_SEC: u8 = 10;

static BOTTOM: Mutex<Option<Bar>> = Mutex::new(None);

/// Calls `what` with the line at the bottom, if there is one. No other line is written meanwhile.
pub fn with_bottom<T>(what: impl FnOnce(&mut Option<Bar>) -> T) -> T {
    what(&mut BOTTOM.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The line at the bottom. Dropping removes it.
pub struct Bar {
    bar: ProgressBar,
    /// As last drawn.
    width: Option<BarWidth>,
    /// The parts that are shown unless the program waits for something.
    parts: Vec<String>,
}

impl Bar {
    /// A bar that grows with the number of steps, of which there are `total`.
    pub fn of_steps(total: u64) -> Self {
        Self::new(Some(total))
    }

    /// Text without a bar.
    pub fn of_text() -> Self {
        Self::new(None)
    }

    fn new(total: Option<u64>) -> Self {
        let target = ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SEC);
        let bar = ProgressBar::with_draw_target(total, target);
        Self { bar, width: None, parts: vec![] }
    }

    /// `true` if this is a bar.
    pub fn has_steps(&self) -> bool {
        self.bar.length().is_some()
    }

    /// Shows the parts that fit on a line of the terminal.
    pub fn show(&mut self, parts: &[&str]) {
        self.parts = parts.iter().map(|part| (*part).to_owned()).collect();
        self.draw(parts);
    }

    /// Shows again what [`Self::show`] did.
    pub fn end_wait(&mut self) {
        let parts = std::mem::take(&mut self.parts);
        self.show(&parts.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Shows others until [`Self::end_wait`]. The terminal may have another width than before.
    pub fn draw(&mut self, parts: &[&str]) {
        let (width, text) = fitted(columns(&Term::stderr()).unwrap_or(COLUMNS), parts);
        let width = if self.has_steps() { width } else { 0 };
        if self.width != Some(width) {
            let template =
                if width > 0 { format!("{{bar:{width}}} {{msg}}") } else { "{msg}".to_owned() };
            // If the template did not parse, this would show the default bar.
            let style = ProgressStyle::with_template(&template);
            self.bar.set_style(style.unwrap_or(ProgressStyle::default_bar()));
            self.width = Some(width);
        }
        self.bar.set_message(text);
    }

    /// Lets the bar grow to so many steps.
    pub fn set_steps(&self, num_steps: u64) {
        self.bar.set_position(num_steps);
    }

    /// Writes other lines, by `write`, where this one is now.
    pub fn below(&self, write: impl FnOnce()) {
        self.bar.suspend(write);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
