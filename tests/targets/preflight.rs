//! `lockstep preflight` on shipped examples: one that is ready, and one for each question that has
//! the answer no.

use serde_json::Value;

use super::{install, lockstep};

/// The exit code and the page.
fn preflight(example: &str, target: &str, more: &[&str]) -> (Option<i32>, Value) {
    let config = format!("{}/examples/{example}", env!("CARGO_MANIFEST_DIR"));
    let args = [&["preflight", &config, "--target", target, "--json"], more].concat();
    let done = lockstep(&args, &[]);
    let page = serde_json::from_str(&done.stdout);
    (done.code, page.unwrap_or_else(|_| panic!("{}", done.stderr)))
}

/// The questions that have the answer no, and the answer to one of them.
fn refused(page: &Value) -> Vec<&str> {
    let answers = page["answers"].as_object().unwrap();
    let no = answers.iter().filter(|(_, answer)| answer["verdict"] == "no");
    no.map(|(name, _)| name.as_str()).collect()
}

fn check_refused(
    question: &str,
    example: &str,
    target: &str,
    more: &[&str],
    change: &str,
) -> Value {
    let (code, page) = preflight(example, target, more);
    assert_eq!((code, refused(&page)), (Some(1), vec![question]), "{page}");
    let changes = page["answers"][question]["changes"].as_array().unwrap();
    let is_there = |line: &Value| line.as_str().unwrap().contains(change);
    assert!(changes.iter().any(is_there), "{page}");
    page
}

const GPT: &str = "gpt-bytes.toml";
/// Its images are drawn, which is slow.
const RESNET: &str = "resnet20-synthetic.toml";

#[test]
fn a_run_that_is_ready_says_what_it_costs() {
    install("cuda-compiler");
    let batch = ["--set", "train.global_batch=512", "--set", "schedule.peak=1e-3"];
    let dir = tempfile::tempdir().unwrap();
    let plot = dir.path().join("page.svg");
    let plot_to = plot.to_str().unwrap();
    let more = ["--plot", plot_to, "--max-device-hours", "5", "--host-processors", "64"];
    let (code, page) = preflight(GPT, "gpu:h100:1x8", &[&batch[..], &more].concat());
    assert_eq!((code, refused(&page)), (Some(0), vec![]), "{page}");
    let number = |of: &Value, key: &str| of[key].as_f64().unwrap();
    let hours = number(&page["cost"], "num_steps") * number(&page, "step_ms") / 3.6e6;
    assert!((number(&page["cost"], "device_hours") / (8.0 * hours) - 1.0).abs() < 1e-9, "{page}");
    assert!(std::fs::read_to_string(plot).unwrap().contains("Predicted time of a step"));
}

#[test]
fn what_does_not_fit_is_refused() {
    install("cuda-compiler");
    let sets = ["data.num_examples=1000000", "train.global_batch=131072", "schedule.peak=1"];
    let sets = sets.map(|set| ["--set", set]).concat();
    let more = [&sets[..], &["--host-processors", "100000"]].concat();
    check_refused("memory", RESNET, "gpu:h100:1x1", &more, "(compiled: ");
}

/// Batch norm's groups lie on 8 GPUs, with 4 images on each.
#[test]
fn a_step_that_waits_for_collectives_is_refused() {
    install("cuda-compiler");
    let more = ["--set", "train.epochs=100", "--host-processors", "100000"];
    let page = check_refused("communication", RESNET, "gpu:h100:4x8", &more, "train.global_batch=");
    let communication = page["answers"]["communication"].to_string();
    assert!(communication.contains("--set model.batch_norm_group="), "{communication}");
    assert!(communication.contains("for the slowest device"), "{communication}");
}

#[test]
fn a_recipe_that_cannot_train_is_refused() {
    install("cuda-compiler");
    let sets = ["--set", "schedule.peak=10", "--host-processors", "64"];
    check_refused("recipe", GPT, "gpu:h100:1x1", &sets, "--set 'schedule.peak=");
}

#[test]
fn an_input_that_does_not_keep_up_is_refused() {
    install("cuda-compiler");
    let more = ["--host-processors", "1"];
    check_refused("input", RESNET, "gpu:h100:1x1", &more, "--set data.source=");
}

#[test]
fn a_run_that_costs_too_much_is_refused() {
    install("cuda-compiler");
    let more =
        ["--set", "train.steps=1000000", "--max-device-hours", "0.01", "--host-processors", "64"];
    check_refused("cost", GPT, "gpu:h100:1x1", &more, "fewer steps");
}
