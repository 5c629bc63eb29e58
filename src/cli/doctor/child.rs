//! Queries in a child process. Drivers and plugins may hang or crash if their device is broken or
//! in use; the report must survive that.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;

/// Time limit of a child.
const PATIENCE: Duration = Duration::from_secs(30);

/// This program, for a hidden command.
pub fn command() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    // The child ends when this stdin does: see `children::end_with_parent`.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    Ok(command)
}

/// Runs it, and reads its output: one line of JSON.
pub fn ask<T: DeserializeOwned>(mut command: Command) -> Result<T> {
    let mut child = command.spawn()?;
    let started = Instant::now();
    while child.try_wait()?.is_none() {
        if started.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            anyhow::bail!("does not answer within {} seconds", PATIENCE.as_secs());
        }
        thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output()?;
    if output.stdout.is_empty() {
        anyhow::bail!("ended with {} when it was loaded", output.status);
    }
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("ended with {} when it was loaded", output.status))
}
