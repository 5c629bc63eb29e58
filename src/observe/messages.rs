//! Lines on stderr: text for people, or events of `tracing`. What is for people is said ([`say`]);
//! what is for a search for a fault is an event or a span, which `cli::logging` writes.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU8, Ordering};

use super::bar::with_bottom;

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

/// `true` if stderr is a terminal that a person may look at.
pub(super) fn is_shown() -> bool {
    io::stderr().is_terminal() && messages_are(Messages::Text)
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

/// Writes a line to stderr, above the progress bar if there is one.
pub fn write_line(text: &str) {
    // A closed stderr is not an error.
    let write = || drop(writeln!(io::stderr().lock(), "{text}"));
    with_bottom(|bottom| match bottom {
        Some(bar) => bar.below(write),
        None => write(),
    });
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
