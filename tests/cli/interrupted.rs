//! What ends from outside: signals, and readers that go away.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{BINARY, DIGITS, TIMEOUT, install_plugin, metrics, summary, text, train_args};

/// A process that does not outlive the test.
struct Running(Child);

impl Running {
    fn start(args: &[String], stderr: Stdio) -> Self {
        install_plugin();
        let mut command = Command::new(BINARY);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        Self(command.spawn().unwrap())
    }

    /// Waits until `done`, for a while.
    #[track_caller]
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Child) -> bool) {
        let start = Instant::now();
        while !done(&mut self.0) {
            assert!(start.elapsed() < TIMEOUT, "{what} was waited for in vain");
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    fn exit_code(&mut self) -> Option<i32> {
        self.until("its end", |child| child.try_wait().unwrap().is_some());
        self.0.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended unless the test has failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn has_begun(out: &Path) -> bool {
    fs::metadata(out.join("metrics.jsonl")).is_ok_and(|metadata| metadata.len() > 0)
}

#[test]
fn a_signal_ends_the_run_behind_the_step_and_loses_nothing() {
    for signal in ["TERM", "INT"] {
        let dir = tempfile::tempdir().unwrap();
        let args = train_args(
            &["train.steps=1000000", "mesh.data=2"],
            &["--json", "--out", text(dir.path())],
        );
        let mut run = Running::start(&args, Stdio::null());
        run.until("the first step", |_| has_begun(dir.path()));
        let kill = format!("kill -{signal} {}", run.0.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        assert_eq!(run.exit_code(), Some(0), "{signal}");

        let steps = metrics(dir.path());
        let summary = summary(dir.path());
        assert!(!steps.is_empty());
        assert_eq!(summary["steps"].as_u64(), Some(steps.len() as u64), "{signal}");
        assert_eq!(summary["final_loss"], steps[steps.len() - 1]["loss"], "{signal}");
        assert!(summary["eval_accuracy"].is_null(), "a run that was stopped is not evaluated");

        // What it left is a place to start from.
        let params = dir.path().join("params.safetensors");
        let sets = ["train.epochs=1", "mesh.data=2"];
        super::lockstep(&train_args(&sets, &["--init", text(&params)])).succeeded();
    }
}

#[test]
fn who_closes_stdout_does_not_want_more() {
    let commands: [&[&str]; 4] =
        [&["hlo", DIGITS], &["plugin", "list"], &["doctor", "--json"], &["--help"]];
    for args in commands {
        let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut run = Running::start(&args, Stdio::piped());
        drop(run.0.stdout.take());
        let stderr = run.0.stderr.take().unwrap();
        let said = thread::spawn(move || std::io::read_to_string(stderr).unwrap());
        assert_eq!(run.exit_code(), Some(0), "{args:?}");
        let said = said.join().unwrap();
        assert!(!said.contains("error: ") && !said.contains("panicked"), "{args:?}: {said}");
    }
}

#[test]
fn who_closes_stderr_does_not_end_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let sets = ["train.epochs=1", "train.eval_every=1", "mesh.data=1"];
    let mut run = Running::start(&train_args(&sets, &["--out", text(dir.path())]), Stdio::piped());
    drop(run.0.stderr.take());
    assert_eq!(run.exit_code(), Some(0));
    assert_eq!(summary(dir.path())["steps"], 22);
}
