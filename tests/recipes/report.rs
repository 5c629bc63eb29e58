//! What `schedule --check` prints, and the shipped recipes.

use std::path::Path;
use std::process::Command;

use lockstep::cli;
use lockstep::config::Config;
use serde_json::Value;

use super::{is_flagged, owned};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
const IMAGES: &str = "resnet50-imagenet.toml";
const DIGITS: &str = "digits.toml";

/// Exit code and report of `schedule EXAMPLE --set .. --check --json`.
fn check(example: &str, sets: &[&str]) -> (i32, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockstep"));
    command.args(["schedule", &format!("{EXAMPLES}/{example}"), "--check", "--json"]);
    command.args(sets.iter().flat_map(|set| ["--set", set]));
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout);
    let report = report.unwrap_or_else(|error| panic!("{example} {sets:?}: {error}: {stderr}"));
    (output.status.code().unwrap(), report)
}

#[test]
fn shipped_recipes_have_no_warnings() {
    let mut num_checked = 0;
    for entry in std::fs::read_dir(EXAMPLES).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let name = path.file_name().unwrap().to_string_lossy();
        // The number of examples is given for data that are not part of this repository.
        let sets = match name.contains("cifar") {
            true => owned(&["data.num_examples=50000"]),
            false => vec![],
        };
        let mut findings = cli::findings(&Config::load(&path, &sets).unwrap()).unwrap();
        findings.retain(is_flagged);
        assert_eq!(findings, [], "{name}");
        num_checked += 1;
    }
    assert!(num_checked >= 6);
}

#[test]
fn the_report_ends_with_the_changes_of_doubling_the_replicas() {
    let change = |report: &Value, what: &str| -> Option<(String, String)> {
        let changes = report["when_replicas_double"]["changes"].as_array().unwrap();
        let change = changes.iter().find(|change| change["what"] == what)?;
        let text = |key: &str| change[key].as_str().unwrap().to_owned();
        Some((text("before"), text("after")))
    };
    let pair = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));

    // A fixed global batch is split into smaller parts, and nothing else changes.
    let (_, report) = check(IMAGES, &["mesh.data=256"]);
    assert_eq!(report["when_replicas_double"]["num_batch_shards"], 512);
    assert_eq!(change(&report, "batch per replica"), pair("32", "16"));
    let group = pair("32 examples on one replica", "32 examples on 2 replicas");
    assert_eq!(change(&report, "group of batch norm"), group);
    for unchanged in ["global batch", "steps", "peak rate", "warm-up steps"] {
        assert_eq!(change(&report, unchanged), None, "{unchanged}");
    }
    // Microbatches cut what a replica normalizes together.
    let (_, report) = check(IMAGES, &["mesh.data=64", "train.num_microbatches=4"]);
    assert_eq!(change(&report, "group of batch norm"), group);

    // A global batch that grows with the replicas changes the optimization.
    let (_, report) = check(IMAGES, &["train.batch_per_replica=32", "mesh.data=256"]);
    assert_eq!(change(&report, "global batch"), pair("8192", "16384"));
    assert_eq!(change(&report, "peak rate"), pair("3.2", "6.4"));
    assert_eq!(change(&report, "steps"), pair("14040", "7020"));
    let caused = &report["when_replicas_double"]["new_findings"];
    assert_eq!(caused[0]["rule"], "label-smoothing", "{caused}");

    // A batch that no longer divides evenly is reported.
    let (_, report) = check(DIGITS, &["train.global_batch=60", "mesh.data=4"]);
    let problem = report["when_replicas_double"]["problem"].as_str().unwrap();
    assert!(problem.contains("does not divide over 8 replicas"), "{problem}");
}

#[test]
fn the_text_has_what_the_json_has() {
    let binary = env!("CARGO_BIN_EXE_lockstep");
    let config = Path::new(EXAMPLES).join(IMAGES);
    let mut command = Command::new(binary);
    command.arg("schedule").arg(config).args(["--check", "--set", "schedule.peak=0.1"]);
    let output = command.args(["--set", "mesh.data=256"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    for fragment in [
        "warning  rate-too-low",
        "published: ",
        "source: Goyal et al.",
        "change: raise the rate",
        "--set 'schedule.peak=3.2'",
        "then: peak rate 0.1 -> 3.2",
        "0 errors, 1 warning",
        "from 256 to 512 shards of the batch:",
        "batch per replica    32 -> 16",
    ] {
        assert!(text.contains(fragment), "{fragment:?} is not in {text}");
    }
    let mut command = Command::new(binary);
    let refused = ["--check", "--set", "schedule.warmup_steps=20000"];
    let output =
        command.arg("schedule").arg(Path::new(EXAMPLES).join(IMAGES)).args(refused).output();
    assert_eq!(output.unwrap().status.code(), Some(1));
}
