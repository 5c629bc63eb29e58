//! Compiling for hardware that is absent, through the command line and with the real compilers:
//!
//! - `refused`: wrong targets, plugins, tools and options, and a compiler that aborts its process
//! - `attention`: what cuDNN's attention saves
//! - `chips`: every chip of the table compiles, and the documentation has its figures
//! - `order`: the order of devices on the topologies that the plugins describe
//! - `programs`: collectives, groups, bytes and overlap of an MLP, a ResNet-50 and GPT-2, one that
//!   does not fit until the advice is followed, and microbatches that do not count
//! - `sharded`: gathers and scatters of a GPT at ZeRO stage 3, and GPT-2 1558M, which fits only
//!   sharded
//! - `pipeline`: what the stages of a pipeline send, and what the loops of ticks copy
//! - `plan`: scaling by the cost model
//! - `preflight`: the answers before a run
//! - `several_processes`: the options and the store of a client that is one of several
//! - `tensor`: what layers that are cut over `tensor` exchange, what of it overlaps, and the state
//! - `wire`: what `plan` says of the program's collectives, regions, compression and failures
//! - `workers`: processes that compile end with their program
//!
//! Ignored tests are of the full set, see `tests/README.md`: they compile for minutes.
//!
//! The tests install the plugins once, into the user's cache: downloads of some 200 MB for TPUs and
//! 150 MB for GPUs.

mod attention;
mod chips;
mod order;
mod pipeline;
mod plan;
mod preflight;
mod programs;
mod refused;
mod several_processes;
mod sharded;
mod tensor;
mod wire;
mod workers;

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_lockstep");

/// Installs a plugin once for all tests.
fn install(name: &'static str) {
    static TPU: OnceLock<()> = OnceLock::new();
    static GPU: OnceLock<()> = OnceLock::new();
    let once = if name == "tpu" { &TPU } else { &GPU };
    once.get_or_init(|| {
        let output = Command::new(BINARY).args(["plugin", "install", name]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
}

struct Outcome {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn lockstep(args: &[&str], env: &[(&str, &Path)]) -> Outcome {
    let output = Command::new(BINARY).args(args).envs(env.iter().copied()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Outcome { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Exit code and report of `compile --json` for a configuration. Compilers use little more than one
/// core, so each target is a separate test, and tests compile in parallel.
fn compile(config: &Path, target: &str, more: &[&str]) -> (Option<i32>, Value) {
    install(if target.starts_with("tpu") { "tpu" } else { "cuda-compiler" });
    let config = config.to_str().unwrap();
    let args = [&["compile", config, "--target", target, "--json"], more].concat();
    let done = lockstep(&args, &[]);
    assert_eq!(done.stdout.lines().count(), 1, "{target}: {}{}", done.stdout, done.stderr);
    (done.code, serde_json::from_str(&done.stdout).unwrap())
}

/// The step that `plan` predicts from the traced graph, without waiting for the slowest device, is
/// within 15 % of that of the compiled schedule.
fn check_plan(args: &[&str], report: &Value) {
    let done = lockstep(args, &[]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let plan: Value = serde_json::from_str(&done.stdout).unwrap();
    let row = plan["rows"].as_array().unwrap().last().unwrap();
    assert_eq!(row["num_devices"], report["num_devices"]);
    let of = |value: &Value, key: &str| value[key].as_f64().unwrap();
    let ms = |value: &Value| of(value, "compute_ms") + of(value, "exposed_ms");
    let ratio = ms(row) / ms(report);
    assert!((0.85..1.15).contains(&ratio), "{args:?}: {ratio}: {row}");
}

/// Writes a configuration to `dir`, with a model, its data and the number of examples per replica.
fn config(dir: &Path, model: &str, data: &str, batch_per_replica: usize) -> std::path::PathBuf {
    let text = format!(
        "[model]\n{model}\n[data]\n{data}\n[train]\nbatch_per_replica = {batch_per_replica}\n\
         steps = 10\nprecision = \"bf16\"\n[optimizer]\nname = \"adamw\"\n[schedule]\n\
         name = \"constant\"\npeak = 1e-3\n"
    );
    let path = dir.join("config.toml");
    std::fs::write(&path, text).unwrap();
    path
}

/// The sources of this program, as text for a GPT.
fn text_data(context: usize) -> String {
    let src = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    format!("source = \"text\"\npath = \"{src}\"\nextensions = [\"rs\"]\ncontext = {context}")
}

const MLP: &str = "name = \"mlp\"\nhidden = [2048, 2048, 2048, 2048]";
const FEATURES: &str = "source = \"synthetic\"\nfeatures = 1024\nnum_examples = 16384";
