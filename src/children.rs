//! Child processes of this program that end with it.
//!
//! The stdin of such a child is a pipe, and only the parent has its other end. The parent writes
//! nothing to it. However the parent ends, the system closes the parent's end, and the child reads
//! an end of file.

use std::io;
use std::process::{Command, Output, Stdio};
use std::thread;

/// Runs to its end a command that calls [`end_with_parent`], and returns its output where that goes
/// into a pipe.
///
/// # Errors
/// The system's, if the child cannot be started or read.
pub(crate) fn output(command: &mut Command) -> io::Result<Output> {
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    // To wait for a child closes its stdin, which would end it.
    let stdin = child.stdin.take();
    let output = child.wait_with_output();
    drop(stdin);
    output
}

/// Ends this process as soon as its stdin ends, after `clean_up`. Nothing else may read stdin.
pub(crate) fn end_with_parent(clean_up: impl FnOnce() + Send + 'static) {
    let watch = move || {
        // An error means as much as the end: nobody can be waited for.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        clean_up();
        kill_self();
    };
    // Without the thread the child ends when its work is done.
    let _ = thread::Builder::new().name("parent".to_owned()).spawn(watch);
}

/// Ends the process at once. A library that is at work in another thread could hang or crash in
/// handlers of `exit`.
#[cfg(unix)]
fn kill_self() {
    use rustix::process::{Signal, getpid, kill_process};
    let _ = kill_process(getpid(), Signal::KILL);
}

#[cfg(not(unix))]
fn kill_self() {
    std::process::abort();
}
