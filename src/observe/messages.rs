//! Lines on stderr: text for people, or events of `tracing`. What is for people is said ([`say`]);
//! what is for a search for a fault is an event or a span, which `cli::logging` writes.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering};

use console::Term;

use super::bar::above_bottom;

/// The target of messages among the events of `tracing`.
pub const MESSAGE_TARGET: &str = "lockstep::message";

/// The destination of messages that [`say`] is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Messages {
    /// A line on stderr. This is the default.
    Text,
    /// A line on stderr for a warning or an error, and nothing for anything else.
    Problems,
    /// An event of `tracing`; its subscriber writes it.
    Events,
}

static MESSAGES: AtomicU8 = AtomicU8::new(Messages::Text as u8);

/// Decides for the whole process what becomes of messages.
pub fn set_messages(messages: Messages) {
    MESSAGES.store(messages as u8, Ordering::Relaxed);
}

fn messages_are(messages: Messages) -> bool {
    MESSAGES.load(Ordering::Relaxed) == messages as u8
}

/// The form in which stderr shows how far the program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ProgressForm {
    /// A line every few seconds. This is the default.
    Lines,
    /// At the bottom of the terminal that stderr is, in a block that is drawn anew again and again.
    Block,
    /// In such a block, on the terminal of the supervisor, to which stderr is a pipe.
    Passed,
    /// Not at all.
    Nothing,
}

static PROGRESS: AtomicU8 = AtomicU8::new(ProgressForm::Lines as u8);

/// Decides for the whole process in which form progress is shown.
pub fn set_progress(form: ProgressForm) {
    PROGRESS.store(form as u8, Ordering::Relaxed);
}

pub(super) fn progress_form() -> ProgressForm {
    let stored = PROGRESS.load(Ordering::Relaxed);
    let is_stored = |form: &ProgressForm| *form as u8 == stored;
    [ProgressForm::Block, ProgressForm::Passed, ProgressForm::Nothing]
        .into_iter()
        .find(is_stored)
        .unwrap_or(ProgressForm::Lines)
}

/// `true` if progress is shown in a block on the terminal that stderr is.
pub fn draws_block() -> bool {
    progress_form() == ProgressForm::Block
}

/// `true` if stderr is a terminal on which lines can be drawn anew.
pub fn can_draw() -> bool {
    Term::stderr().is_term() && !console::is_dumb()
}

/// Tells the user something. A text that begins with `warning: ` or `error: ` is one.
pub fn say(text: &str) {
    let problem = |kind: &str| text.strip_prefix(kind);
    match (problem("error: "), problem("warning: ")) {
        _ if messages_are(Messages::Text) => write_line(text),
        (Some(error), _) if messages_are(Messages::Events) => {
            tracing::error!(target: MESSAGE_TARGET, "{error}");
        }
        (_, Some(warning)) if messages_are(Messages::Events) => {
            tracing::warn!(target: MESSAGE_TARGET, "{warning}");
        }
        _ if messages_are(Messages::Events) => tracing::info!(target: MESSAGE_TARGET, "{text}"),
        (None, None) => {}
        _ => write_line(text),
    }
}

/// Writes a line to stderr, above what stands at the bottom of the terminal.
pub fn write_line(text: &str) {
    // A closed stderr is not an error.
    above_bottom(|| drop(writeln!(io::stderr().lock(), "{text}")));
}

/// Says each line that is written to it. A line is written at once.
pub(super) struct Said;

impl Write for Said {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        String::from_utf8_lossy(lines).lines().for_each(say);
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
