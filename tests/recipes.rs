//! `schedule --check`: a table of bad recipes, each with the fault that must be found, and the shipped recipes,
//! which must have no errors.

use std::path::Path;
use std::process::Command;

use lockstep::recipe::rules;
use serde_json::Value;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
const IMAGES: &str = "resnet50-imagenet.toml";
const GPT: &str = "gpt2-124m-lamb.toml";
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

/// The severities and reasons of a rule's findings.
fn of_rule<'a>(report: &'a Value, rule: &str) -> Vec<(&'a str, &'a str)> {
    let findings = report["findings"].as_array().unwrap();
    let of_rule = findings.iter().filter(|finding| finding["rule"] == rule);
    let text = |finding: &'a Value, key: &str| finding[key].as_str().unwrap();
    of_rule.map(|finding| (text(finding, "severity"), text(finding, "reason"))).collect()
}

/// The example that is broken, how it is broken, the rule that must find it, the severity, and words of the reason.
type Bad = (&'static str, &'static [&'static str], &'static str, &'static str, &'static str);

const BAD: &[Bad] = &[
    (IMAGES, &["schedule.scaling=none"], "rate-not-scaled", "error", "stays 0.1"),
    (IMAGES, &["schedule.peak=0.1"], "rate-not-scaled", "error", "32 times off the linear"),
    (
        IMAGES,
        &["train.batch_per_replica=32", "mesh.data=8", "schedule.peak=0.1"],
        "rate-not-scaled",
        "warning",
        "grows with them, 256 on 8",
    ),
    (GPT, &["schedule.scaling=linear"], "rate-not-scaled", "warning", "of an adaptive optimizer"),
    (
        DIGITS,
        &["schedule.name=wsd", "schedule.decay_epochs=29.5"],
        "schedule-impossible",
        "error",
        "begins inside the warm-up",
    ),
    (DIGITS, &["schedule.total_epochs=20"], "schedule-ends-elsewhere", "error", "last 220 of 660"),
    (
        DIGITS,
        &["schedule.total_epochs=20", "schedule.floor=0.1"],
        "schedule-ends-elsewhere",
        "warning",
        "have a rate of 0.0002",
    ),
    (
        DIGITS,
        &["schedule.total_epochs=60"],
        "schedule-ends-elsewhere",
        "warning",
        "after the end of the run",
    ),
    (IMAGES, &["train.epochs=70"], "schedule-ends-elsewhere", "warning", "1 of the boundaries"),
    (
        DIGITS,
        &["schedule.name=piecewise", "schedule.boundaries=[22, 600]", "schedule.factors=[0.2, 1]"],
        "undeclared-jump",
        "warning",
        "at step 22",
    ),
    (
        DIGITS,
        &[
            "schedule.warmup_epochs=1",
            "schedule.name=piecewise",
            "schedule.boundaries=[0, 600]",
            "schedule.factors=[3, 3]",
        ],
        "undeclared-jump",
        "error",
        "jumps from 0.002000 to 0.006000 at step 22",
    ),
    (
        IMAGES,
        &["schedule.warmup=none"],
        "warmup-missing",
        "error",
        "starts at its peak rate of 3.2",
    ),
    (
        IMAGES,
        &["optimizer.name=lars", "schedule.warmup=none"],
        "warmup-missing",
        "error",
        "lars has",
    ),
    (GPT, &["schedule.warmup=none"], "warmup-missing", "error", "lamb has no warm-up"),
    (DIGITS, &["schedule.warmup=none"], "warmup-missing", "note", "second moments"),
    (IMAGES, &["schedule.warmup_epochs=0.5"], "warmup-too-short", "warning", "78 steps, 0.6 %"),
    (
        DIGITS,
        &["schedule.warmup_steps=1000"],
        "warmup-too-long",
        "error",
        "longer than the run of 660",
    ),
    (DIGITS, &["schedule.warmup_steps=400"], "warmup-too-long", "warning", "400 of 660"),
    (
        IMAGES,
        &["schedule.boundary_epochs=[3, 60]"],
        "boundary-inside-warmup",
        "error",
        "step 468 lies inside the warm-up of 780",
    ),
    (
        IMAGES,
        &["optimizer.weight_decay_exclude=['*.bias']"],
        "decayed-norm-or-bias",
        "warning",
        "such as `stem.norm.weight`",
    ),
    (DIGITS, &["optimizer.weight_decay_exclude=[]"], "decayed-norm-or-bias", "warning", "biases"),
    (
        IMAGES,
        &["optimizer.weight_decay_exclude=['*.bias', '*.nrom?.*']"],
        "unmatched-pattern",
        "error",
        "\"*.nrom?.*\" matches no parameter",
    ),
    (
        DIGITS,
        &["optimizer.beta1=0.99", "optimizer.beta2=0.9"],
        "adam-constants",
        "error",
        "may diverge",
    ),
    (DIGITS, &["train.global_batch=1024"], "adam-constants", "warning", "remembers 1000 steps"),
    (
        DIGITS,
        &["train.global_batch=1024", "optimizer.epsilon=1e-5"],
        "adam-constants",
        "warning",
        "epsilon = 1e-5",
    ),
    (
        IMAGES,
        &["train.global_batch=65536"],
        "batch-without-trust-ratios",
        "error",
        "65536 with sgd",
    ),
    (IMAGES, &["model.batch_norm_group=8"], "batch-norm-group", "warning", "groups of 8"),
    (IMAGES, &["train.global_batch=16384"], "no-label-smoothing", "warning", "16384 images"),
    (DIGITS, &["train.global_batch=720"], "short-epoch", "warning", "an epoch is 1 steps"),
    (DIGITS, &["optimizer.ema_decay=0.9999"], "long-horizon", "warning", "ema_decay = 0.9999"),
    (
        DIGITS,
        &["optimizer.name=sgd", "optimizer.momentum=0.999"],
        "long-horizon",
        "warning",
        "momentum = 0.999 remembers 1000 steps, and the run has 660",
    ),
];

#[test]
fn each_fault_is_found() {
    for (example, sets, rule, severity, words) in BAD {
        let (code, report) = check(example, sets);
        let found = of_rule(&report, rule);
        let expected = found.iter().any(|(s, reason)| s == severity && reason.contains(words));
        assert!(expected, "{example} {sets:?}: no {severity} {rule} with {words:?} in {report:#}");
        let findings = report["findings"].as_array().unwrap();
        let has_error = findings.iter().any(|finding| finding["severity"] == "error");
        assert_eq!(code, i32::from(has_error), "{example} {sets:?}");
        for finding in findings {
            for key in ["reason", "source", "change"] {
                assert!(finding[key].as_str().is_some_and(|text| !text.is_empty()), "{finding}");
            }
        }
    }
    for rule in rules() {
        assert!(BAD.iter().any(|bad| bad.2 == rule), "nothing shows that {rule} finds anything");
    }
}

#[test]
fn shipped_recipes_have_no_errors() {
    let mut num_checked = 0;
    for entry in std::fs::read_dir(EXAMPLES).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.ends_with(".toml") {
            continue;
        }
        // The number of examples is given for data that are not part of this repository.
        let sets: &[&str] = match name.contains("cifar") {
            true => &["data.num_examples=50000"],
            false => &[],
        };
        let (code, report) = check(&name, sets);
        let errors: Vec<_> = report["findings"].as_array().unwrap().iter().collect();
        assert!(errors.iter().all(|finding| finding["severity"] != "error"), "{name}: {errors:#?}");
        assert_eq!(code, 0, "{name}");
        num_checked += 1;
    }
    assert!(num_checked >= 6);
    // The papers' own choices cause no warnings.
    for name in [IMAGES, "resnet50-imagenet-32k-lars.toml", GPT] {
        let (_, report) = check(name, &[]);
        assert_eq!(report["findings"].as_array().unwrap().len(), 0, "{name}: {report:#}");
    }
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
    assert_eq!(report["when_replicas_double"]["num_replicas"], 512);
    assert_eq!(change(&report, "batch per replica"), pair("32", "16"));
    assert_eq!(change(&report, "group of batch norm"), pair("on one replica", "over 2 replicas"));
    for unchanged in ["global batch", "steps", "peak rate", "warm-up steps"] {
        assert_eq!(change(&report, unchanged), None, "{unchanged}");
    }

    // A global batch that grows with the replicas changes the optimisation.
    let (_, report) = check(IMAGES, &["train.batch_per_replica=32", "mesh.data=256"]);
    assert_eq!(change(&report, "global batch"), pair("8192", "16384"));
    assert_eq!(change(&report, "peak rate"), pair("3.2", "6.4"));
    assert_eq!(change(&report, "steps"), pair("14040", "7020"));
    let anew = &report["when_replicas_double"]["new_findings"];
    assert_eq!(anew[0]["rule"], "no-label-smoothing", "{anew}");

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
    command.arg("schedule").arg(config).args(["--check", "--set", "schedule.scaling=none"]);
    let output = command.args(["--set", "mesh.data=256"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    for fragment in [
        "error    rate-not-scaled",
        "source: Goyal et al.",
        "change: set schedule.scaling",
        "1 error, 0 warnings",
        "from 256 to 512 replicas:",
        "batch per replica    32 -> 16",
    ] {
        assert!(text.contains(fragment), "{fragment:?} is not in {text}");
    }
}
