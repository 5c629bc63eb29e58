//! The command line from end to end, as its user meets it:
//!
//! - `training`: what `train` achieves, prints and writes, on 1 to 8 replicas
//! - `bad_input`: what is refused, with which words, and that nothing is lost by it
//! - `checkpoints`: runs that are killed or stopped, and continued
//! - `export`: models that leave a run for other programs, and that runs start from
//! - `folders`: whatever in a folder of transformers' changes results is read, or refused by name
//! - `interrupted`: signals, and readers that go away
//! - `job_files`: what the files of `examples/cluster` start
//! - `run_dir`: a directory holds one run, whatever becomes of it and of the disk
//! - `output`: files that other commands write
//! - `own_data`: tables, arrays and images of the user: train, evaluate, predict
//! - `pipeline`: a model in stages, like one that is whole
//! - `texts`: fine-tuning on texts, evaluation, prediction, early stopping
//! - `terminal`: what a person at a terminal sees
//! - `schedule`: the learning rates that it prints, against those of `train`
//! - `plot`: the curves of runs, in every form and of whatever a run has left
//! - `report`: a page about runs: its numbers, its size, and that nothing recorded is markup
//! - `report_in_browser`: the page in Chromium, with JavaScript and without
//! - `restarted`: a run of two processes, of which one is killed and later slow, for both
//! - `served`: the same page from a server, which follows the run
//! - `prometheus`: its endpoint shows the run, and clients change nothing in it
//! - `tensorboard`: its files have the numbers of `metrics.jsonl`
//! - `layers`: the norms of each parameter
//! - `trace`: so has the trace of chosen steps, which Perfetto reads
//! - `reports`: `config`, `hlo`, `bench`, `plugin list`, `doctor`
//! - `plugin`: what is damaged, and `plugin install`, `verify` and `remove`
//!
//! All of it runs the binary on the CPU plugin, which it installs itself.

mod bad_input;
mod checkpoints;
mod export;
mod folders;
mod interrupted;
mod job_files;
mod layers;
mod output;
mod own_data;
mod pipeline;
mod plot;
mod plugin;
mod prometheus;
mod report;
mod report_in_browser;
mod reports;
mod restarted;
mod run_dir;
mod schedule;
mod served;
mod tensorboard;
mod terminal;
mod texts;
mod trace;
mod training;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_lockstep");
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/digits.toml");

/// Far longer than anything here takes: what hangs is to fail.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Installs the plugin, once for all tests, so that no test's time depends on the network.
fn install_plugin() {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        let output = std::process::Command::new(BINARY).args(["plugin", "install", "cpu"]).output();
        let output = output.expect("the binary starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "plugin install cpu: {stderr}");
    });
}

/// What a command came to.
#[derive(Debug)]
struct Outcome {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs the binary to its end.
fn lockstep<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Outcome {
    lockstep_with(args, &[])
}

/// Runs the binary to its end, with more in its environment.
fn lockstep_with<S: AsRef<std::ffi::OsStr>>(args: &[S], env: &[(&str, &Path)]) -> Outcome {
    install_plugin();
    let mut command = assert_cmd::Command::new(BINARY);
    let output = command.args(args).envs(env.iter().copied()).timeout(TIMEOUT).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    Outcome { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

impl Outcome {
    /// The command, or its failure for the reader of the test's output.
    #[track_caller]
    fn succeeded(self) -> Self {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        self
    }

    /// Stdout as JSON: one line.
    #[track_caller]
    fn json(&self) -> Value {
        assert_eq!(self.stdout.lines().count(), 1, "{}", self.stdout);
        serde_json::from_str(&self.stdout).unwrap()
    }
}

/// `train digits.toml` with these keys set; `out` and other arguments after it.
fn train_args(sets: &[&str], more: &[&str]) -> Vec<String> {
    let mut args = vec!["train".to_owned(), DIGITS.to_owned()];
    args.extend(sets.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()]));
    args.extend(more.iter().map(|arg| (*arg).to_owned()));
    args
}

/// A file in `dir`, with what is to stand in it.
fn file(dir: &Path, name: &str, contents: &[u8]) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, contents).unwrap();
    path
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

/// The files that a run leaves, in the order of [`names`].
const RUN_FILES: [&str; 4] =
    ["config.resolved.toml", "metrics.jsonl", "params.safetensors", "summary.json"];

/// The same, with its checkpoints.
const RUN_NAMES: [&str; 5] =
    ["checkpoints", "config.resolved.toml", "metrics.jsonl", "params.safetensors", "summary.json"];

/// The names of what is in a directory, in order.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string();
    let mut names: Vec<_> = entries.map(|entry| name(entry).expect("names are UTF-8")).collect();
    names.sort();
    names
}

/// The lines of `metrics.jsonl`.
fn metrics(dir: &Path) -> Vec<Value> {
    let text = fs::read_to_string(dir.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// How many lines of it are whole; a run may be writing more.
fn num_steps_written(dir: &Path) -> usize {
    fs::read_to_string(dir.join("metrics.jsonl")).unwrap().matches('\n').count()
}

/// `summary.json`.
fn summary(dir: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(dir.join("summary.json")).unwrap()).unwrap()
}

/// The names of an object's fields, to be compared with [`set`].
fn keys(object: &Value) -> BTreeSet<&str> {
    object.as_object().expect("an object").keys().map(String::as_str).collect()
}

fn set<'a>(names: &[&'a str]) -> BTreeSet<&'a str> {
    names.iter().copied().collect()
}
