//! What ends from outside: signals, and readers that go away.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::{
    BINARY, DIGITS, TIMEOUT, install_plugin, metrics, names, num_steps_written, summary, text,
    train_args,
};

/// A process that does not outlive the test.
pub struct Running(Child);

impl Running {
    fn start(args: &[String], stderr: Stdio) -> Self {
        // Whoever runs the tests in the background may have told them to ignore SIGINT.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP,INT,TERM", BINARY]).args(args);
        Self::spawn(&mut command, stderr)
    }

    fn spawn(command: &mut Command, stderr: Stdio) -> Self {
        install_plugin();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
        Self(command.spawn().unwrap())
    }

    /// With stderr in a file, which is returned.
    pub fn with_stderr_in(dir: &Path, args: &[String]) -> (Self, PathBuf) {
        let path = dir.join("stderr");
        let file = File::create(&path).unwrap();
        (Self::start(args, file.into()), path)
    }

    /// Waits until `done`, for a while.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Child) -> bool) {
        let start = Instant::now();
        while !done(&mut self.0) {
            assert!(start.elapsed() < TIMEOUT, "{what} was waited for in vain");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the file holds the text.
    #[track_caller]
    fn until_said(&mut self, file: &Path, words: &str) {
        self.until(words, |_| fs::read_to_string(file).unwrap().contains(words));
    }

    /// Waits until steps have been written down, and not by a run before it.
    #[track_caller]
    pub fn until_begun(&mut self, out: &Path) {
        let begun = || {
            let summary = fs::read_to_string(out.join("summary.json")).unwrap_or_default();
            let metrics = fs::metadata(out.join("metrics.jsonl"));
            summary.contains("\"running\"") && metrics.is_ok_and(|metrics| metrics.len() > 0)
        };
        self.until("the first step", |_| begun());
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    #[track_caller]
    pub fn send(&self, signal: &str) {
        let kill = format!("kill -{signal} {}", self.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    #[track_caller]
    pub fn exit_code(&mut self) -> Option<i32> {
        self.until("its end", |child| child.try_wait().unwrap().is_some());
        self.0.wait().unwrap().code()
    }

    /// What it printed: to be asked after its end.
    pub fn stdout(&mut self) -> String {
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended unless the test has failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_signal_ends_the_run_after_the_step_and_loses_nothing() {
    for (signal, code) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let sets = ["train.steps=1000000", "train.eval_every=97", "mesh.data=2"];
        let args = train_args(&sets, &["--out", text(&out)]);
        let (mut run, stderr) = Running::with_stderr_in(dir.path(), &args);
        run.until("an evaluation", |_| {
            let written = fs::read_to_string(out.join("metrics.jsonl")).unwrap_or_default();
            written.contains("eval_loss")
        });
        assert_eq!(summary(&out)["status"], "running", "{signal}");
        run.send(signal);
        assert_eq!(run.exit_code(), Some(code), "{signal}");
        let said = fs::read_to_string(&stderr).unwrap();
        let expected = format!("SIG{signal}: stopping after this step; once more to stop at once");
        assert_eq!(said.matches("stop").count(), 2, "{said}");
        assert!(said.contains(&expected), "{said}");

        let steps = metrics(&out);
        let saved = format!(
            "saved after {} steps in {}; the same command with --resume goes on from there\n",
            steps.len(),
            out.join("checkpoints").display()
        );
        assert!(said.ends_with(&saved), "{saved}: {said}");
        let summary = summary(&out);
        let evaluated = steps.iter().rfind(|line| line["eval_loss"].is_number()).unwrap();
        let last = steps.len() - 1;
        assert_eq!(
            (&summary["status"], &summary["steps"]),
            (&"interrupted".into(), &(last + 1).into())
        );
        assert_eq!(summary["planned_steps"], 1_000_000);
        assert_eq!(summary["final_loss"], steps[last]["loss"], "{signal}");
        assert_eq!(summary["eval_step"], evaluated["step"], "{signal}");
        assert_eq!(summary["eval_accuracy"], evaluated["eval_accuracy"], "{signal}");
        let eval_step = evaluated["step"].as_u64().unwrap() + 1;
        let expected = format!(
            "stopped after {} of 1000000 steps; evaluation after {eval_step} steps: accuracy 0.",
            last + 1
        );
        let printed = run.stdout();
        assert!(printed.starts_with(&expected), "{expected}: {printed}");

        // What it left is a place to start from.
        let params = out.join("params.safetensors");
        let sets = ["train.epochs=1", "mesh.data=2"];
        super::lockstep(&train_args(&sets, &["--init", text(&params)])).succeeded();
    }
}

#[test]
fn a_run_that_is_stopped_is_not_judged_by_its_last_update() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let sets = [
        "optimizer.name=sgd",
        "schedule.peak=1e30",
        "schedule.warmup=none",
        "train.steps=1000000",
        "train.on_nonfinite=skip",
        "mesh.data=1",
    ];
    let args = train_args(&sets, &["--json", "--out", text(&out)]);
    let (mut run, _) = Running::with_stderr_in(dir.path(), &args);
    run.until_begun(&out);
    run.send("TERM");
    assert_eq!(run.exit_code(), Some(143));
    let summary = summary(&out);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&run.stdout()).unwrap(), summary);
    assert_eq!(summary["status"], "interrupted");
    assert!(summary["num_skipped"].as_u64().unwrap() > 0, "{summary}");
    assert!(summary["eval_step"].is_null() && summary["eval_loss"].is_null(), "{summary}");
}

/// A model that takes a while to compile.
const DEEP: [&str; 3] =
    ["model.hidden=[64,64,64,64,64,64,64,64,64,64,64,64]", "compile.cache=false", "mesh.data=1"];

#[test]
fn a_signal_before_the_first_step_is_answered_at_once_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("summary.json"), "of an earlier run").unwrap();
    let args = train_args(&DEEP, &["--overwrite", "--out", text(&out)]);
    let (mut run, stderr) = Running::with_stderr_in(dir.path(), &args);
    let status = format!("/proc/{}/status", run.0.id());
    run.until("handlers", |_| {
        let status = fs::read_to_string(&status).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.unwrap().trim(), 16).unwrap();
        // SIGHUP, SIGINT and SIGTERM.
        caught & 0x4003 == 0x4003
    });
    run.send("INT");
    let answer = "SIGINT: stopping before the first step; once more to stop at once";
    run.until_said(&stderr, answer);
    assert_eq!(run.exit_code(), Some(130));
    assert_eq!(run.stdout(), "");
    let said = fs::read_to_string(&stderr).unwrap();
    assert!(said.ends_with("stopped before the first step; nothing was written\n"), "{said}");
    assert_eq!(fs::read_to_string(out.join("summary.json")).unwrap(), "of an earlier run");
    assert_eq!(names(&out), ["summary.json"]);
}

#[test]
fn the_second_signal_ends_the_run_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    // Launches of some seconds.
    let sets = [
        "train.steps=100000",
        "train.check_lockstep_every=0",
        "train.steps_per_launch=5000",
        "mesh.data=1",
    ];
    let args = train_args(&sets, &["--out", text(&out)]);
    let (mut run, stderr) = Running::with_stderr_in(dir.path(), &args);
    run.until("the start", |_| out.join("summary.json").exists());
    // Past the wait for the first batches.
    thread::sleep(Duration::from_millis(500));
    run.send("HUP");
    run.until_said(&stderr, "SIGHUP: stopping after this step; once more to stop at once");
    run.send("TERM");
    assert_eq!(run.exit_code(), Some(143));
    assert_eq!(run.stdout(), "");
    assert_eq!(summary(&out)["status"], "running");
}

#[test]
fn a_signal_that_was_ignored_from_the_start_stays_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let args = train_args(&["train.steps=1000000", "mesh.data=1"], &["--out", text(&out)]);
    let mut command = Command::new("sh");
    // As `nohup` does it.
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", BINARY]).args(&args);
    let mut run = Running::spawn(&mut command, Stdio::null());
    run.until_begun(&out);
    run.send("HUP");
    let before = num_steps_written(&out);
    run.until("more steps", |_| num_steps_written(&out) > before + 10);
    run.send("TERM");
    assert_eq!(run.exit_code(), Some(143));
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
