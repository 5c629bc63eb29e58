//! The program's output about its work, on stderr: messages, and events and spans of `tracing`, of
//! this program and of its libraries.

use std::env;
use std::io;

use anyhow::{Context, Result};
use rustix::process::getppid;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use super::args::{LogArgs, ProgressArg};
use super::wrong_usage;
use crate::launch::variable;
use crate::observe::{
    MESSAGE_TARGET, Messages, ProgressForm, can_draw, set_messages, set_progress, write_line,
};

/// The variable that says which events are written; its syntax is that of `tracing_subscriber`.
const VARIABLE: &str = "RUST_LOG";

/// Starts writing events, as the arguments and [`VARIABLE`] say.
///
/// # Errors
/// A variable that is no filter, or a form of progress that cannot be shown.
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
    set_progress(progress_form(args)?);
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

fn progress_form(args: &LogArgs) -> Result<ProgressForm> {
    let is_text = !args.log_json && !args.quiet;
    match args.progress {
        ProgressArg::Rich if !is_text => {
            let other = if args.quiet { "--quiet" } else { "--log-json" };
            Err(wrong_usage(&format!("--progress rich cannot be used with {other}")))
        }
        ProgressArg::Rich | ProgressArg::Auto if is_text && is_shown_by_supervisor() => {
            Ok(ProgressForm::Passed)
        }
        ProgressArg::Rich if !can_draw() => Err(wrong_usage(
            "--progress rich needs stderr to be a terminal, with its kind in the variable TERM; \
             leave the option out, or use --progress plain",
        )),
        ProgressArg::Rich => Ok(ProgressForm::Block),
        ProgressArg::Auto if is_text && can_draw() => Ok(ProgressForm::Block),
        ProgressArg::Auto | ProgressArg::Plain => Ok(ProgressForm::Lines),
        ProgressArg::None => Ok(ProgressForm::Nothing),
    }
}

/// `true` if the supervisor that has started this process shows its block.
fn is_shown_by_supervisor() -> bool {
    let shown_by = env::var(variable::SHOWN_BY).ok().and_then(|id| id.parse().ok());
    shown_by.is_some() && shown_by == getppid().map(|parent| parent.as_raw_nonzero().get())
}

/// Writes lines above what stands at the bottom of the terminal. Each event is written at once.
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
