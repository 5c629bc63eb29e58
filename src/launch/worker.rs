//! A worker: a training process that the supervisor has started.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::observe::{above_bottom, end_passed, show_passed};

/// How long the output of a worker that has ended is waited for.
const DRAIN: Duration = Duration::from_millis(200);

/// What a worker runs, and the environment that it gets in addition.
pub(super) struct WorkerCommand<'a> {
    pub program: &'a Path,
    pub arguments: &'a [OsString],
    pub environment: Vec<(&'static str, String)>,
}

/// The end of a worker.
#[derive(Debug)]
pub(super) struct WorkerEnd {
    pub generation: u64,
    pub process_index: usize,
    pub status: io::Result<ExitStatus>,
}

/// A worker that was started. It has a process group of its own, so that signals of a terminal
/// reach it through the supervisor only, and that it can be ended with everything that it has
/// started.
#[derive(Debug)]
pub(super) struct Worker {
    group: Option<Pid>,
}

impl Worker {
    /// Starts a worker. Its end is sent to `ends`.
    pub fn start(
        command: WorkerCommand<'_>,
        (generation, process_index): (u64, usize),
        ends: &Sender<WorkerEnd>,
    ) -> io::Result<Self> {
        let mut child = Command::new(command.program)
            .args(command.arguments)
            .envs(command.environment)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let ends = ends.clone();
        let name = |what: &str| thread::Builder::new().name(format!("{what}-{process_index}"));
        let wait = move |mut child: Child, passing: Vec<thread::JoinHandle<()>>| {
            let status = child.wait();
            // What it has written last comes before the news of its end, unless a process that it
            // has started holds the pipe.
            let until = Instant::now() + DRAIN;
            while passing.iter().any(|thread| !thread.is_finished()) && Instant::now() < until {
                thread::sleep(Duration::from_millis(1));
            }
            // Nobody waits for it any more if this fails.
            let _ = ends.send(WorkerEnd { generation, process_index, status });
        };
        let mut passing = vec![];
        if let Some(stdout) = stdout {
            // Elsewhere than on a terminal it is not above a block: lines on stderr do not wait for
            // those who read it.
            let to_stdout = |line: &[u8]| match io::stdout().is_terminal() {
                true => above_bottom(|| write(io::stdout().lock(), line)),
                false => write(io::stdout().lock(), line),
            };
            let pass = move || pass_on(stdout, "", to_stdout);
            passing.push(name("stdout").spawn(pass)?);
        }
        if let Some(stderr) = stderr {
            let prefix = format!("[{process_index}] ");
            let to_stderr = |line: &[u8]| above_bottom(|| write(io::stderr().lock(), line));
            let pass = move || pass_on(stderr, &prefix, to_stderr);
            passing.push(name("stderr").spawn(pass)?);
        }
        name("wait").spawn(move || wait(child, passing))?;
        Ok(Self { group })
    }

    /// Sends a signal to the worker and what it has started. It may have ended.
    pub fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            let _ = kill_process_group(group, signal);
        }
    }
}

/// How a process has ended, in words.
pub(super) fn describe(status: &io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("killed by signal {signal}"),
            (None, None) => "no exit code".to_owned(),
        },
        Err(error) => format!("cannot be waited for: {error}"),
    }
}

/// Longer lines are passed on in pieces.
const MAX_LINE: u64 = 1 << 16;

/// Gives each line that is read to `write`, after a prefix, until the end. A block is shown on the
/// terminal instead.
fn pass_on(from: impl Read, prefix: &str, write: impl Fn(&[u8])) {
    let mut from = BufReader::new(from);
    let (mut line, mut has_block) = (vec![], false);
    loop {
        line.clear();
        let read = from.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        if !matches!(read, Ok(1..)) {
            break;
        }
        if show_passed(&line) {
            has_block = true;
            continue;
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        write(&[prefix.as_bytes(), &line].concat());
    }
    if has_block {
        end_passed();
    }
}

fn write(mut to: impl Write, line: &[u8]) {
    // A reader that has gone away is not the worker's problem.
    let _ = to.write_all(line).and_then(|()| to.flush());
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn shell(script: &str) -> (Worker, mpsc::Receiver<WorkerEnd>) {
        let (ends, received) = mpsc::channel();
        let arguments = ["-c".into(), script.into()];
        let command = WorkerCommand {
            program: Path::new("/bin/sh"),
            arguments: &arguments,
            environment: vec![("LOCKSTEP_PROCESS_INDEX", "3".to_owned())],
        };
        (Worker::start(command, (1, 3), &ends).unwrap(), received)
    }

    #[test]
    fn the_end_of_a_worker_is_reported_once() {
        for (script, expected) in [
            ("exit 0", "exit code 0"),
            ("exit $LOCKSTEP_PROCESS_INDEX", "exit code 3"),
            ("kill -9 $$", "killed by signal 9"),
        ] {
            let (_worker, received) = shell(script);
            let end = received.recv_timeout(Duration::from_secs(20)).unwrap();
            assert_eq!((end.generation, end.process_index), (1, 3));
            assert_eq!(describe(&end.status), expected);
            assert!(received.recv_timeout(Duration::from_secs(20)).is_err());
        }
    }

    #[test]
    fn a_worker_ends_with_what_it_has_started() {
        let (worker, received) = shell("sleep 60 & sleep 60");
        worker.signal(Signal::KILL);
        let end = received.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(describe(&end.status), "killed by signal 9");
    }
}
