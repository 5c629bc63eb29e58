//! The processes that compile end with the program that has started them, however it ends.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{BINARY, FEATURES, MLP, config, install};

/// Polls until `found` has an answer, for at most this many seconds.
fn within<T>(secs: u64, mut found: impl FnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + Duration::from_secs(secs);
    loop {
        let now = found();
        if now.is_some() || Instant::now() > until {
            return now;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// A request that cannot be read to its end: a pipe into which nobody writes.
#[test]
fn a_worker_ends_when_its_stdin_does_and_removes_its_directory() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("lockstep-compile-test");
    fs::create_dir(&dir).unwrap();
    let pipe = Command::new("mkfifo").arg(dir.join("request.json")).status().unwrap();
    assert!(pipe.success());
    let mut command = Command::new(BINARY);
    command.arg("compile-worker").arg(&dir).stdin(Stdio::piped());
    let mut worker = command.spawn().unwrap();
    thread::sleep(Duration::from_millis(200));
    assert!(worker.try_wait().unwrap().is_none(), "it works while its parent is there");
    drop(worker.stdin.take());
    let ended = within(5, || worker.try_wait().unwrap());
    end(worker);
    assert!(ended.is_some_and(|status| !status.success()), "{ended:?}");
    assert!(!dir.exists());
}

#[test]
#[cfg(target_os = "linux")]
fn killed_programs_leave_no_worker() {
    install("tpu");
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), MLP, FEATURES, 8);
    let mut command = Command::new(BINARY);
    command.args(["plan", path.to_str().unwrap(), "--target", "tpu:v5e:2x2", "--search"]);
    let program = command.env("TMPDIR", dir.path()).stderr(Stdio::null()).spawn().unwrap();
    let worker = within(20, || child_of(program.id()));
    // The program has no time to do anything about it.
    end(program);
    let worker = worker.expect("a worker that compiles");
    let ended = within(5, || (!is_running(worker)).then_some(()));
    assert!(ended.is_some(), "process {worker} runs on");
    let left = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> =
        left.filter(|name| name.to_string_lossy().starts_with("lockstep-")).collect();
    assert!(left.is_empty(), "{left:?}");
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A process that compiles and was started by this one.
#[cfg(target_os = "linux")]
fn child_of(parent: u32) -> Option<u32> {
    // The command may have been started on any thread.
    let threads = fs::read_dir(format!("/proc/{parent}/task")).ok()?.filter_map(Result::ok);
    let children = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).ok();
    let children: String = threads.filter_map(children).collect();
    let is_worker = |pid: &u32| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.windows(14).any(|window| window == b"compile-worker")
    };
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(is_worker)
}

/// `true` unless it has ended; a process that nobody waits for has.
#[cfg(target_os = "linux")]
fn is_running(pid: u32) -> bool {
    let state = |path: &Path| -> io::Result<bool> {
        let status = fs::read_to_string(path)?;
        Ok(!status.lines().any(|line| line.starts_with("State:") && line.contains('Z')))
    };
    state(Path::new(&format!("/proc/{pid}/status"))).unwrap_or(false)
}
