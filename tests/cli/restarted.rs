//! A run of two processes with what goes wrong in clusters: one of them is killed, and in the next
//! attempt it is slow until that is found.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::interrupted::Running;
use super::{text, train_args};

/// The directory of the run, and how long it took from the start of its supervisor to the end:
/// made once for all tests.
pub fn restarted() -> (PathBuf, Duration) {
    static RUN: OnceLock<(TempDir, Duration)> = OnceLock::new();
    let (dir, took) = RUN.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("restarted");
        let sets = ["train.epochs=110", "model.hidden=[512]", "checkpoint.every_steps=30"];
        let train = train_args(&sets, &["--resume", "--out", text(&out)]);
        let args = ["launch", "--num-processes", "2", "--"].map(str::to_owned);
        let begun = Instant::now();
        let (mut run, stderr) = Running::with_stderr_in(dir.path(), &[&args[..], &train].concat());
        let metrics = || fs::read_to_string(out.join("metrics.jsonl")).unwrap_or_default();
        run.until("150 steps", |_| metrics().lines().count() > 150);
        let supervisor = run.id();
        assert!(kill("KILL", worker(supervisor).unwrap()));
        let said = || fs::read_to_string(&stderr).unwrap();
        run.until("another attempt", |_| said().contains("generation 2 runs"));
        let begun_again = Instant::now();
        let mut slowed = None;
        run.until("a verdict", |child| {
            slowed = slowed.or_else(|| worker(supervisor));
            // After its start: only steps are slow.
            if let (Some(pid), true) = (slowed, begun_again.elapsed() > Duration::from_secs(1)) {
                // So slow that it shows on busy processors too.
                for (signal, ms) in [("STOP", 20), ("CONT", 10)] {
                    if !kill(signal, pid) {
                        slowed = None;
                    }
                    thread::sleep(Duration::from_millis(ms));
                }
            }
            metrics().contains("slow_processes") || child.try_wait().unwrap().is_some()
        });
        assert_eq!(run.exit_code(), Some(0), "{}", said());
        (dir, begun.elapsed())
    });
    (dir.path().join("restarted"), *took)
}

/// The second process of a supervisor.
fn worker(supervisor: u32) -> Option<u32> {
    let expected = [
        format!("LOCKSTEP_SUPERVISOR={supervisor}").into_bytes(),
        b"LOCKSTEP_PROCESS_INDEX=1".to_vec(),
    ];
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(|pid| {
        // Not what a worker has started in its turn.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let (_, after_name) = stat.rsplit_once(')').unwrap_or_default();
        if after_name.split_whitespace().nth(1) != Some(&supervisor.to_string()) {
            return false;
        }
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let variables: Vec<_> = environment.split(|byte| *byte == 0).collect();
        expected.iter().all(|variable| variables.contains(&&variable[..]))
    })
}

/// `false` if it has ended.
fn kill(signal: &str, pid: u32) -> bool {
    let kill = format!("kill -{signal} {pid} 2>/dev/null");
    Command::new("sh").args(["-c", &kill]).status().unwrap().success()
}
