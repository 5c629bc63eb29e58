//! Runs of several processes, from end to end, on the CPU backend:
//!
//! - `bits`: however many processes share the replicas, a run computes the same bits
//! - `failures`: processes that are killed, stopped, missing or different, and what becomes of the
//!   run
//! - `hosts`: two hosts, whose network is cut and whose supervisors are killed
//! - `elastic`: hosts that come, leave and are killed
//! - `curve`: the same at random, on models and meshes of every kind, to the same curve
//! - `beforehand`: programs that are compiled before a host is lost
//! - `snapshots`: the state in the memory of supervisors, after failures of every kind
//! - `coordinator`: the coordinator and its sessions, without processes
//! - `slow`: processes that are late or have slow devices
//! - `standalone`: a coordinator on its own, killed and started again
//! - `chaos`: events of every kind in a row; `LOCKSTEP_NUM_EVENTS`, `LOCKSTEP_SEED` and
//!   `LOCKSTEP_LONGEST_SECS` set how many, which, and how long processes are frozen
//! - `turn`: which of them run at the same time
//!
//! All traffic stays on loopback addresses and in network namespaces.

mod beforehand;
mod bits;
mod chaos;
mod coordinator;
mod curve;
mod elastic;
mod failures;
mod hosts;
mod slow;
mod snapshots;
mod standalone;
mod turn;

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hlo::random::threefry2x32;
use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_lockstep");
const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/digits.toml");
const CARGO_DIR: &str = env!("CARGO_MANIFEST_DIR");

/// Far longer than anything here takes: what hangs is to fail.
const TIMEOUT: Duration = Duration::from_secs(240);

/// `train CONFIG` with keys set and other arguments.
fn train(config: &str, sets: &[&str], more: &[&str]) -> Vec<String> {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let args = ["train", config].into_iter().chain(sets).chain(more.iter().copied());
    args.map(str::to_owned).collect()
}

/// `launch` of so many processes.
fn launch(num_processes: usize, options: &[&str], train: &[String]) -> Vec<String> {
    let num_processes = num_processes.to_string();
    let args = ["launch", "--num-processes", &num_processes].into_iter();
    let args = args.chain(options.iter().copied()).chain(["--"]).map(str::to_owned);
    args.chain(train.iter().cloned()).collect()
}

/// `launch` on one of several hosts.
fn launch_hosts(options: &[&str], train: &[String]) -> Vec<String> {
    let args = ["launch"].into_iter().chain(options.iter().copied()).chain(["--"]);
    args.map(str::to_owned).chain(train.iter().cloned()).collect()
}

/// A program that runs, and does not outlive the test.
struct Running {
    child: Child,
    stderr: PathBuf,
}

/// What a program came to.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    stderr: String,
}

impl Running {
    fn start(dir: &Path, args: &[String]) -> Self {
        Self::start_with(dir, args, &[])
    }

    /// With variables in its environment.
    fn start_with(dir: &Path, args: &[String], variables: &[(&str, &str)]) -> Self {
        Self::start_on(&[], dir, args, variables)
    }

    /// With a command in front that ends in its own place, such as `nsenter`.
    fn start_on(
        prefix: &[String],
        dir: &Path,
        args: &[String],
        variables: &[(&str, &str)],
    ) -> Self {
        let (stderr, file) = (0..)
            .map(|number| dir.join(format!("stderr.{number}")))
            .find_map(|path| File::create_new(&path).ok().map(|file| (path, file)))
            .unwrap();
        // Whoever runs the tests in the background may have told them to ignore SIGINT.
        let env = ["env", "--default-signal=HUP,INT,TERM", BINARY].map(str::to_owned);
        let words = [prefix, &env, args].concat();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command.envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        Self { child: command.spawn().unwrap(), stderr }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap()
    }

    #[track_caller]
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            let said = self.said();
            assert!(start.elapsed() < TIMEOUT, "{what} was waited for in vain:\n{said}");
            let status = self.child.try_wait().unwrap();
            assert!(status.is_none() || done(self), "{what}: ended with {status:?}:\n{said}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until so many steps have been written down.
    #[track_caller]
    fn until_step(&mut self, out: &Path, step: u64) {
        self.until(&format!("step {step}"), |_| last_step(out).is_some_and(|last| last >= step));
    }

    /// The workers that it has started and that have not ended, by process index.
    fn workers(&self) -> Vec<(usize, u32)> {
        workers_of(self.child.id())
    }

    fn signal(&self, signal: &str) {
        send(signal, self.child.id());
    }

    #[track_caller]
    fn end(mut self) -> Ended {
        self.until("its end", |run| run.child.try_wait().unwrap().is_some());
        let status = self.child.wait().unwrap();
        let said = self.said();
        assert!(!said.contains("panicked"), "{said}");
        Ended { code: status.code(), stderr: said }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    #[track_caller]
    fn succeeded(self) -> Self {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self
    }
}

#[track_caller]
fn run(dir: &Path, args: &[String]) -> Ended {
    Running::start(dir, args).end()
}

fn send(signal: &str, pid: u32) {
    let kill = format!("kill -{signal} {pid} 2>/dev/null");
    // It may have ended just now.
    let _ = Command::new("sh").args(["-c", &kill]).status().unwrap();
}

/// Random numbers from a seed.
struct Random {
    seed: u64,
    count: u32,
}

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.count += 1;
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        threefry2x32(key, [self.count, 0])[0] as usize % limit
    }
}

/// The value of a variable in the environment of a process.
fn variable(pid: u32, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let prefix = format!("{name}=");
    let found =
        environment.split(|byte| *byte == 0).find(|pair| pair.starts_with(prefix.as_bytes()));
    found.map(|pair| String::from_utf8_lossy(&pair[prefix.len()..]).into_owned())
}

/// The processes that a supervisor has started and that have not ended, whether or not it has.
fn supervised_by(supervisor: u32) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(move |pid| {
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let is_alive = !state.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z');
        is_alive && variable(*pid, "LOCKSTEP_SUPERVISOR") == Some(supervisor.to_string())
    })
}

/// The workers among them, by process index.
fn workers_of(supervisor: u32) -> Vec<(usize, u32)> {
    let index = |pid| variable(pid, "LOCKSTEP_PROCESS_INDEX")?.parse().ok();
    let indexed = |pid| Some((index(pid)?, pid));
    let mut found: Vec<_> = supervised_by(supervisor).filter_map(indexed).collect();
    found.sort_unstable();
    found
}

/// Waits for a short while until nothing that a supervisor has started is left.
#[track_caller]
fn none_left(supervisor: u32) {
    let start = Instant::now();
    while supervised_by(supervisor).next().is_some() {
        let left: Vec<_> = supervised_by(supervisor).collect();
        assert!(start.elapsed() < Duration::from_secs(10), "processes were left: {left:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

fn summary(out: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(out.join("summary.json")).unwrap()).unwrap()
}

/// The lines of `metrics.jsonl` that are whole.
fn metrics(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("metrics.jsonl")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The step of the last whole line of `metrics.jsonl`; the file may be long.
fn last_step(out: &Path) -> Option<u64> {
    let mut file = File::open(out.join("metrics.jsonl")).ok()?;
    let end = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(end.saturating_sub(1 << 14))).ok()?;
    let mut bytes = vec![];
    file.read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok())?;
    line["step"].as_u64()
}

/// What is not a time, of all lines.
fn numbers(out: &Path) -> Vec<Vec<Value>> {
    const NAMES: [&str; 7] =
        ["step", "loss", "lr", "grad_norm", "num_skipped", "eval_loss", "eval_accuracy"];
    let of_line = |line: Value| NAMES.iter().map(|name| line[name].clone()).collect();
    metrics(out).into_iter().map(of_line).collect()
}

/// Checks that two runs are the same bit for bit: parameters, losses, evaluations.
#[track_caller]
fn assert_same_run(a: &Path, b: &Path) {
    let ([a_numbers, b_numbers], [a, b]) = ([a, b].map(numbers), [a, b].map(summary));
    for field in ["params_fingerprint", "final_loss", "eval_loss", "eval_accuracy", "steps"] {
        assert_eq!(a[field], b[field], "{field}");
    }
    assert_eq!(a_numbers.len(), b_numbers.len());
    a_numbers.iter().zip(&b_numbers).for_each(|(a, b)| assert_eq!(a, b));
}
