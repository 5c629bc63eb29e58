//! `lockstep preflight`: a shipped example that is ready, and a run for each question that has the
//! answer no. Only the question about communication needs a model that compiles for long.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{FEATURES, config, install, lockstep, refused};

/// The exit code and the page.
fn preflight(config: &Path, target: &str, more: &[&str]) -> (Option<i32>, Value) {
    let config = config.to_str().unwrap();
    let args = [&["preflight", config, "--target", target, "--json"], more].concat();
    let done = lockstep(&args, &[]);
    let page = serde_json::from_str(&done.stdout);
    (done.code, page.unwrap_or_else(|_| panic!("{}", done.stderr)))
}

/// The questions that have the answer no, and the answer to one of them.
fn denied(page: &Value) -> Vec<&str> {
    let answers = page["answers"].as_object().unwrap();
    let no = answers.iter().filter(|(_, answer)| answer["verdict"] == "no");
    no.map(|(name, _)| name.as_str()).collect()
}

fn check_refused(
    question: &str,
    config: &Path,
    target: &str,
    more: &[&str],
    change: &str,
) -> Value {
    let (code, page) = preflight(config, target, more);
    assert_eq!((code, denied(&page)), (Some(1), vec![question]), "{page}");
    let changes = page["answers"][question]["changes"].as_array().unwrap();
    let is_there = |line: &Value| line.as_str().unwrap().contains(change);
    assert!(changes.iter().any(is_there), "{page}");
    page
}

/// `plan` predicts what `preflight` says that it does, to the last digit, and neither advises the
/// devices that were given.
fn check_plan_agrees(config: &Path, target: &str, sets: &[&str], page: &Value) {
    let args = ["plan", config.to_str().unwrap(), "--target", target, "--json"];
    let done = lockstep(&[&args[..], sets].concat(), &[]);
    let plan: Value = serde_json::from_str(&done.stdout).unwrap();
    let row = plan["rows"].as_array().unwrap().last().unwrap();
    assert_eq!(row["num_devices"], page["num_devices"], "{row}");
    assert_eq!(row["step_ms"], page["plan_step_ms"], "{row}");
    let step_ms = row["step_ms"].as_f64().unwrap();
    let said = page["answers"]["communication"]["details"].to_string();
    let said = said.split("knows only the graph, predicts ").nth(1).unwrap();
    let said: f64 = said.split_whitespace().next().unwrap().parse().unwrap();
    assert!((said / step_ms - 1.0).abs() < 0.01, "{said} {step_ms}");
    let given = format!("on {} devices", page["num_devices"]);
    let changes: Vec<_> =
        page["answers"].as_object().unwrap().values().map(|one| one["changes"].clone()).collect();
    let advice = [Value::from(changes).to_string(), plan["finding"].to_string()];
    for advice in &advice {
        assert!(!advice.contains(&given) && !advice.contains(target), "{advice}");
    }
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

fn digits() -> PathBuf {
    example("digits.toml")
}

#[test]
fn a_run_that_is_ready_says_what_it_costs() {
    install("cuda-compiler");
    let batch = ["--set", "train.global_batch=512", "--set", "schedule.peak=1e-3"];
    let dir = tempfile::tempdir().unwrap();
    let plot = dir.path().join("page.svg");
    let plot_to = plot.to_str().unwrap();
    let more = ["--plot", plot_to, "--max-device-hours", "5", "--host-processors", "64"];
    let (code, page) =
        preflight(&example("gpt-bytes.toml"), "gpu:h100:1x8", &[&batch[..], &more].concat());
    assert_eq!((code, denied(&page)), (Some(0), vec![]), "{page}");
    let number = |of: &Value, key: &str| of[key].as_f64().unwrap();
    let hours = number(&page["cost"], "num_steps") * number(&page, "step_ms") / 3.6e6;
    assert!((number(&page["cost"], "device_hours") / (8.0 * hours) - 1.0).abs() < 1e-9, "{page}");
    assert!(std::fs::read_to_string(plot).unwrap().contains("Predicted time of a step"));
    check_plan_agrees(&example("gpt-bytes.toml"), "gpu:h100:1x8", &batch, &page);
}

#[test]
fn what_does_not_fit_is_refused() {
    install("cuda-compiler");
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), refused::LARGE, refused::MANY, 1 << 20);
    let more = ["--host-processors", "10000000"];
    check_refused("memory", &path, "gpu:h100:1x1", &more, "(compiled: ");
}

/// Batch norm's groups lie on 8 GPUs, with 4 images on each.
#[test]
fn a_step_that_waits_for_collectives_is_refused() {
    install("cuda-compiler");
    let more = ["--set", "train.epochs=100", "--host-processors", "100000"];
    let path = example("resnet20-synthetic.toml");
    let page = check_refused("communication", &path, "gpu:h100:4x8", &more, "train.global_batch=");
    let communication = page["answers"]["communication"].to_string();
    assert!(communication.contains("--set model.batch_norm_group="), "{communication}");
    assert!(communication.contains("for the slowest device"), "{communication}");
    check_plan_agrees(&path, "gpu:h100:4x8", &["--set", "train.epochs=100"], &page);
}

#[test]
fn a_recipe_that_cannot_train_is_refused() {
    install("cuda-compiler");
    let sets = ["--set", "schedule.peak=10", "--host-processors", "10000"];
    check_refused("recipe", &digits(), "gpu:h100:1x1", &sets, "--set 'schedule.peak=");
}

#[test]
fn an_input_that_does_not_keep_up_is_refused() {
    install("cuda-compiler");
    let dir = tempfile::tempdir().unwrap();
    // Its features are drawn, which is slow.
    let path = config(dir.path(), "name = \"mlp\"\nhidden = [64]", FEATURES, 256);
    let more = ["--host-processors", "1"];
    check_refused("input", &path, "gpu:h100:1x1", &more, "--set data.source=");
}

#[test]
fn a_run_that_costs_too_much_is_refused() {
    install("cuda-compiler");
    let sets = ["--set", "train.epochs=1000000", "--max-device-hours", "0.01"];
    let more = [&sets[..], &["--host-processors", "10000"]].concat();
    check_refused("cost", &digits(), "gpu:h100:1x1", &more, "fewer steps");
}
