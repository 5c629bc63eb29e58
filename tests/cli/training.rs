//! What `train` achieves, prints and writes.

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use super::{keys, lockstep, metrics, set, summary, text, train_args};

const STEP_FIELDS: [&str; 12] = [
    "step",
    "time",
    "epoch",
    "examples",
    "loss",
    "lr",
    "grad_norm",
    "num_skipped",
    "step_ms",
    "host_ms",
    "data_wait_ms",
    "examples_per_sec",
];
const EVAL_FIELDS: [&str; 3] = ["eval_loss", "eval_accuracy", "eval_top5_accuracy"];
const SUMMARY_FIELDS: [&str; 26] = [
    "status",
    "reason",
    "steps",
    "planned_steps",
    "num_replicas",
    "num_processes",
    "mesh",
    "global_batch",
    "final_loss",
    "eval_loss",
    "eval_accuracy",
    "eval_top5_accuracy",
    "eval_step",
    "best_eval",
    "median_step_ms",
    "first_step_secs",
    "wall_secs",
    "examples_per_sec",
    "num_params",
    "params_fingerprint",
    "num_skipped",
    "seed",
    "precision",
    "backend",
    "device",
    "version",
];

#[test]
fn digits_are_learned_on_any_number_of_replicas() {
    super::install_plugin();
    for num_replicas in [1, 2, 4, 8] {
        let started = Instant::now();
        let replicas = format!("mesh.data={num_replicas}");
        let done = lockstep(&train_args(&[&replicas], &["--json"])).succeeded();
        let took = started.elapsed();
        let summary = done.json();
        let accuracy = summary["eval_accuracy"].as_f64().unwrap();
        assert!(accuracy >= 0.96, "{accuracy} on {num_replicas} replicas");
        assert!(took < Duration::from_secs(30), "{took:?} on {num_replicas} replicas");
        assert_eq!(
            (&summary["num_replicas"], &summary["steps"]),
            (&num_replicas.into(), &660.into())
        );
        let said =
            format!("64 = {} microbatch * 1 num_microbatches * {num_replicas}", 64 / num_replicas);
        assert!(done.stderr.contains(&said), "{}", done.stderr);
    }
}

#[test]
fn a_run_leaves_metrics_summary_and_parameters() {
    let dir = tempfile::tempdir().unwrap();
    // A directory that is not there yet.
    let out = dir.path().join("runs/first");
    let sets = ["train.epochs=2", "train.eval_every=20", "mesh.data=2"];
    let (began, started) = (Instant::now(), SystemTime::now());
    let done = lockstep(&train_args(&sets, &["--out", text(&out), "--json"])).succeeded();
    let ran = began.elapsed();

    let steps = metrics(&out);
    for (step, line) in steps.iter().enumerate() {
        let mut fields = set(&STEP_FIELDS);
        if [20, 40, 44].contains(&(step + 1)) {
            fields.extend(EVAL_FIELDS);
        }
        assert_eq!(keys(line), fields, "step {step}");
        assert!(line.as_object().unwrap().values().all(|value| value.is_number()), "{line}");
    }
    for (step, line) in steps.iter().enumerate() {
        assert_eq!(line["step"], step);
        assert_eq!(line["examples"], (step + 1) * 64);
        let epoch = line["epoch"].as_f64().unwrap();
        assert!((epoch - (step + 1) as f64 / 22.0).abs() < 1e-12, "{line}");
    }
    let secs_since_1970 =
        |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let [started, now] = [started, SystemTime::now()].map(secs_since_1970);
    let times: Vec<_> = steps.iter().map(|line| line["time"].as_f64().unwrap()).collect();
    assert!(times.is_sorted() && times[0] >= started && times[43] <= now, "{times:?}");

    let summary = summary(&out);
    assert_eq!(done.json(), summary, "--json prints what summary.json holds");
    assert_eq!(keys(&summary), set(&SUMMARY_FIELDS));
    assert_eq!((&summary["steps"], &summary["global_batch"]), (&44.into(), &64.into()));
    assert_eq!(summary["final_loss"], steps[43]["loss"]);
    assert_eq!(summary["eval_accuracy"], steps[43]["eval_accuracy"]);
    assert_eq!(summary["params_fingerprint"].as_str().unwrap().len(), 64);
    assert_eq!((&summary["status"], &summary["reason"]), (&"done".into(), &Value::Null));
    assert_eq!((&summary["planned_steps"], &summary["eval_step"]), (&44.into(), &43.into()));
    let evals = steps.iter().filter(|line| line["eval_accuracy"].is_number());
    let accuracy = |line: &Value| line["eval_accuracy"].as_f64().unwrap();
    let best = evals.fold(&steps[19], |best, line| match accuracy(line) > accuracy(best) {
        true => line,
        false => best,
    });
    for field in EVAL_FIELDS.iter().chain(&["step"]) {
        assert_eq!(summary["best_eval"][field], best[field], "{field}");
    }
    let mesh = serde_json::json!({ "pipeline": 1, "data": 2, "fsdp": 1, "tensor": 1 });
    assert_eq!((&summary["mesh"], &summary["num_processes"]), (&mesh, &1.into()));
    // Weights and biases of 64 -> 256 -> 256 -> 10 and of two norms.
    assert_eq!(summary["num_params"], num_values(&out.join("params.safetensors")));
    assert_eq!((&summary["seed"], &summary["precision"]), (&0.into(), &"f32".into()));
    assert_eq!((&summary["backend"], &summary["device"]), (&"cpu".into(), &"cpu".into()));
    assert_eq!(summary["version"], env!("CARGO_PKG_VERSION"));
    let wall_secs = summary["wall_secs"].as_f64().unwrap();
    assert!(
        wall_secs > summary["first_step_secs"].as_f64().unwrap() && wall_secs < ran.as_secs_f64()
    );
    // The first step is left out of it.
    let secs = steps[1..].iter().map(|line| line["step_ms"].as_f64().unwrap()).sum::<f64>() / 1e3;
    let rate = summary["examples_per_sec"].as_f64().unwrap();
    assert!((rate / (43.0 * 64.0 / secs) - 1.0).abs() < 1e-6, "{rate} and {secs} s");

    // The same run elsewhere is the same bit for bit, from the configuration that it has left, too.
    let other = dir.path().join("runs/second");
    let resolved = out.join("config.resolved.toml");
    let again = ["train", text(&resolved), "--out", text(&other), "--json"];
    let again = lockstep(&again).succeeded();
    assert_eq!(fs::read(&resolved).unwrap(), fs::read(other.join("config.resolved.toml")).unwrap());
    assert_eq!(again.json()["params_fingerprint"], summary["params_fingerprint"]);
    assert_eq!(super::names(&other), super::RUN_FILES);

    // A rate below half of the smallest difference between two f32 changes no parameter, so that what
    // is evaluated is what was read; and on another number of replicas.
    let still = [
        "optimizer.name=sgd",
        "schedule.peak=1e-30",
        "schedule.warmup=none",
        "train.steps=1",
        "mesh.data=4",
    ];
    let params = out.join("params.safetensors");
    let read =
        lockstep(&train_args(&still, &["--init", text(&params), "--json"])).succeeded().json();
    assert_eq!(read["params_fingerprint"], summary["params_fingerprint"]);
    assert_eq!(read["eval_accuracy"], summary["eval_accuracy"]);
}

#[test]
fn every_field_is_explained() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/outputs.md");
    let page = fs::read_to_string(page).unwrap();
    for field in STEP_FIELDS.iter().chain(&EVAL_FIELDS).chain(&SUMMARY_FIELDS).chain(&["eval_NAME"])
    {
        assert!(page.contains(&format!("`{field}`")), "{field}");
    }
}

/// How many numbers a file of f32 holds.
fn num_values(path: &std::path::Path) -> usize {
    let bytes = fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    file.iter().map(|(_, leaf)| leaf.data().len() / 4).sum()
}

#[test]
fn several_steps_in_a_launch_change_nothing_but_the_time() {
    let dir = tempfile::tempdir().unwrap();
    // Launches of 5, and single steps before each evaluation and proof.
    let sets = ["train.epochs=2", "train.eval_every=13", "mesh.data=2"];
    let run = |name: &str, set: &[&str]| {
        let out = dir.path().join(name);
        let sets = [&sets[..], set].concat();
        let done = lockstep(&train_args(&sets, &["--out", text(&out), "--json"]));
        let without_times = |mut line: Value| {
            let line = line.as_object_mut().unwrap();
            let is_time = |key: &str| key == "time" || key.contains("_ms") || key.contains("_sec");
            line.retain(|key, _| !is_time(key));
            line.clone()
        };
        let lines: Vec<_> = metrics(&out).into_iter().map(without_times).collect();
        (lines, without_times(done.succeeded().json()))
    };
    let one_by_one = run("single", &[]);
    assert_eq!(one_by_one.0.len(), 44);
    assert_eq!(run("launches", &["train.steps_per_launch=5"]), one_by_one);
}

#[test]
fn without_json_the_outcome_is_a_line() {
    let done = lockstep(&train_args(&["train.epochs=1", "mesh.data=1"], &[])).succeeded();
    let line = done.stdout.trim_end();
    assert!(line.starts_with("test accuracy 0.") && line.ends_with(" after 22 steps"), "{line}");
}

#[test]
fn updates_that_are_not_finite_are_counted_and_left_out_if_asked_for() {
    let sets = [
        "optimizer.name=sgd",
        "schedule.peak=1e30",
        "schedule.warmup=none",
        "train.steps=5",
        "train.on_nonfinite=skip",
        "mesh.data=2",
    ];
    let dir = tempfile::tempdir().unwrap();
    let done = lockstep(&train_args(&sets, &["--out", text(dir.path()), "--json"]));
    // The first step's loss is that of the initial parameters, and its update is what blows up.
    for (step, count) in [(1, 1), (4, 4)] {
        let said = format!(
            "step {step}: the loss is not finite on replicas 0, 1; its update was left out ({count} so far)"
        );
        assert!(done.stderr.contains(&said), "{}", done.stderr);
    }
    // A run that ends so is no success, and says what it came to all the same.
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    let said = "error: the last update of the run was left out, in step 4: the loss is not finite on \
                replicas 0, 1. 4 of 5 updates were left out; lower the rate";
    assert!(done.stderr.contains(said), "{}", done.stderr);
    let summary = summary(dir.path());
    assert_eq!(done.json(), summary);
    assert_eq!((&summary["steps"], &summary["final_loss"]), (&5.into(), &Value::Null));
    assert_eq!((&summary["num_skipped"], &summary["status"]), (&4.into(), &"failed".into()));
    let reason = summary["reason"].as_str().unwrap();
    assert!(reason.starts_with(&said["error: ".len()..]), "{reason}");
    let counts: Vec<_> =
        metrics(dir.path()).iter().map(|line| line["num_skipped"].clone()).collect();
    assert_eq!(counts, [0, 1, 2, 3, 4]);
}

#[test]
fn an_update_that_is_not_finite_is_not_kept_though_loss_and_gradients_are() {
    let dir = tempfile::tempdir().unwrap();
    let good = dir.path().join("good");
    let sets = ["train.epochs=2", "mesh.data=2"];
    let trained =
        lockstep(&train_args(&sets, &["--out", text(&good), "--json"])).succeeded().json();
    let params = good.join("params.safetensors");
    let before = fs::read(&params).unwrap();

    // The rate times the decayed parameter is infinite in f32.
    let blown_up = [
        "optimizer.weight_decay=10",
        "schedule.name=constant",
        "schedule.peak=3e38",
        "schedule.warmup=none",
        "train.steps=6",
    ];
    for (more, num_steps, num_skipped, said) in [
        (&["mesh.data=2"][..], 1, 1, "error: step 0: the next value of `params."),
        (
            &["mesh.data=2", "train.steps_per_launch=3"],
            1,
            1,
            "error: step 0: the next value of `params.",
        ),
        (
            &["mesh.data=2", "train.on_nonfinite=skip"],
            6,
            6,
            "error: the last update of the run was left",
        ),
        (
            &["mesh.data=1", "train.on_nonfinite=skip", "train.steps_per_launch=3"],
            6,
            6,
            ", in step 5: the next value of `params.",
        ),
    ] {
        let out = dir.path().join(more.join(" "));
        let sets = [&blown_up, more].concat();
        let args = ["--init", text(&params), "--out", text(&out), "--json"];
        let done = lockstep(&train_args(&sets, &args));
        assert_eq!(done.code, Some(1), "{more:?}: {}", done.stderr);
        assert!(done.stderr.contains(said), "{more:?}: {}", done.stderr);
        assert_eq!(fs::read(out.join("params.safetensors")).unwrap(), before, "{more:?}");
        let summary = summary(&out);
        assert_eq!(done.json(), summary);
        assert_eq!(summary["params_fingerprint"], trained["params_fingerprint"], "{more:?}");
        assert_eq!(
            (&summary["steps"], &summary["num_skipped"]),
            (&num_steps.into(), &num_skipped.into()),
            "{more:?}"
        );
        let lines = metrics(&out);
        assert_eq!(lines.len(), num_steps, "{more:?}");
        assert!(lines.iter().all(|line| line["loss"].is_number()), "{more:?}: {lines:?}");
        if num_steps == 6 {
            assert_eq!(summary["eval_accuracy"], trained["eval_accuracy"], "{more:?}");
        }
    }
}

#[test]
fn an_evaluation_that_is_not_finite_is_no_success() {
    // The step's own loss is that of the initial parameters.
    let sets = [
        "optimizer.name=sgd",
        "schedule.peak=1e30",
        "schedule.warmup=none",
        "train.steps=1",
        "mesh.data=1",
    ];
    let done = lockstep(&train_args(&sets, &["--json"]));
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    assert!(
        done.stderr.contains("error: the evaluation at the end of the run gives a loss of "),
        "{}",
        done.stderr
    );
    let summary = done.json();
    assert!(summary["final_loss"].is_number() && summary["eval_loss"].is_null(), "{summary}");
    assert_eq!(summary["num_skipped"], 0);
}
