//! The program's output about its work, on stderr: messages, and events and spans of `tracing`, of
//! this program and of its libraries.

use std::env;
use std::io;

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use super::args::LogArgs;
use crate::observe::{MESSAGE_TARGET, Messages, set_messages, write_line};

/// The variable that says which events are written; its syntax is that of `tracing_subscriber`.
const VARIABLE: &str = "RUST_LOG";

/// Starts writing events, as the arguments and [`VARIABLE`] say.
///
/// # Errors
/// A variable that is no filter.
pub fn start(args: &LogArgs) -> Result<()> {
    let default = match args.verbose {
        0 => "error",
        1 => "warn,lockstep=debug",
        2 => "info,lockstep=trace",
        _ => "trace",
    };
    let given = env::var(VARIABLE).ok().filter(|given| !given.is_empty());
    let filter = EnvFilter::try_new(given.as_deref().unwrap_or(default)).with_context(|| {
        format!("{VARIABLE} is no filter; examples: debug, or warn,lockstep=debug,tonic=info")
    })?;
    set_messages(match (args.log_json, args.quiet) {
        (true, _) => Messages::Events,
        (false, true) => Messages::Problems,
        (false, false) => Messages::Text,
    });
    let of_messages = format!("{MESSAGE_TARGET}={}", if args.quiet { "warn" } else { "info" });
    let filter = filter.add_directive(of_messages.parse()?);
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(|| Lines);
    // Nothing else starts a subscriber in this program.
    let _ = match args.log_json {
        true => lines.json().flatten_event(true).try_init(),
        false => lines.try_init(),
    };
    Ok(())
}

/// Writes lines above the progress bar. Each event is written at once.
struct Lines;

impl io::Write for Lines {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        write_line(String::from_utf8_lossy(event).trim_end());
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
