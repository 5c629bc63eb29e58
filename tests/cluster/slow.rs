//! Processes that are slow where the plugin computes the collectives, as on an accelerator: the CPU
//! plugin behind one that is compiled here, and nothing is known of waits in collectives.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::{BINARY, Running, launch, metrics, run, send, summary, text, train, turn};

/// Steps that judging takes, and those until a report has come and the line is written.
const WITHIN: u64 = 20 + 6;

/// The plugin, where a process is late as `tests/cluster/late.c` says.
fn late_plugin(dir: &Path) -> PathBuf {
    let listed = Command::new(BINARY).args(["plugin", "list", "--json"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let is_cpu = |plugin: &&Value| plugin["name"] == "cpu";
    let real = listed.as_array().unwrap().iter().find(is_cpu).unwrap();
    let real = PathBuf::from(real["path"].as_str().unwrap());
    let plugin = dir.join("late.so");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-I"])
        .arg(real.with_file_name("include"))
        .arg(format!("-DREAL_PLUGIN=\"{}\"", real.display()))
        .arg("-o")
        .arg(&plugin)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster/late.c"))
        .arg("-ldl")
        .status()
        .unwrap();
    assert!(compiled.success());
    plugin
}

/// A run of two processes, `late`, with a third of a second a step.
fn start(dir: &Path, late: &str, out: &Path, sets: &[&str]) -> Running {
    let config = dir.join("mlp.toml");
    let text_of = "[model]\nname = \"mlp\"\nhidden = [2048, 2048]\n[data]\nsource = \"synthetic\"\n\
                   [train]\nglobal_batch = 512\nsteps = 44\n[optimizer]\nname = \"sgd\"\n\
                   [schedule]\nname = \"constant\"\npeak = 1e-3\n[mesh]\ndata = 2\n";
    std::fs::write(&config, text_of).unwrap();
    let backend = format!("device.backend={}", late_plugin(dir).display());
    let sets = [&[&*backend], sets].concat();
    let args = train(text(&config), &sets, &["--out", text(out)]);
    let args = launch(2, &["--dead-after-secs", "2"], &args);
    let variables = [
        ("LOCKSTEP_HIDE_WAITS", "1"),
        ("LOCKSTEP_TEST_LATE", late),
        // What was measured, for a test that fails.
        ("RUST_LOG", "lockstep=debug"),
    ];
    Running::start_with(dir, &args, &variables)
}

/// The step at which a process was named, and the verdict.
fn named(out: &Path) -> Option<(u64, Value)> {
    let lines = metrics(out).into_iter();
    lines
        .filter_map(|line| Some((line["step"].as_u64()?, line.get("slow_processes")?[0].clone())))
        .next()
}

#[track_caller]
fn assert_named(out: &Path, cause: &str, within: u64, said: &str) {
    let Some((step, slow)) = named(out) else { panic!("nobody was named:\n{said}") };
    assert_eq!((&slow["process_index"], &slow["cause"]), (&1.into(), &cause.into()), "{slow}");
    assert!(slow["factor"].as_f64().unwrap() >= 1.3, "{slow}");
    assert!(step <= within, "at step {step}: {slow}");
    assert!(metrics(out)[0].get("collective_wait_ms").is_none(), "waits are known");
}

#[test]
fn a_process_whose_batches_or_launches_are_late_is_named_with_the_cause() {
    let _turn = turn::alone();
    let dir = tempfile::tempdir().unwrap();
    for (late, cause) in [
        // Batches are assembled while the step before runs.
        ("input 1 900", "input"),
        ("launch 1 900", "host"),
        ("stall 1 2400", "host"),
    ] {
        let out = dir.path().join(late);
        let steps = format!("train.steps={}", WITHIN + 2);
        let ended = start(dir.path(), late, &out, &[&steps]).end().succeeded();
        assert_named(&out, cause, WITHIN, &ended.stderr);
        assert!(ended.stderr.contains("warning: process 1 (host "), "{}", ended.stderr);
    }
}

/// Every tenth batch of a process is late. Without those the run takes less time, and the same
/// decisions make the same bits.
#[test]
fn late_batches_are_left_out_and_the_decisions_can_be_taken_again() {
    let _turn = turn::alone();
    let dir = tempfile::tempdir().unwrap();
    let trained = |name: &str, late: &str, sets: &[&str]| {
        let out = dir.path().join(name);
        let small = ["model.hidden=[1024]", "train.global_batch=256", "train.steps=100"];
        let ended = start(dir.path(), late, &out, &[&small[..], sets].concat()).end().succeeded();
        (summary(&out), metrics(&out), ended.stderr)
    };
    let (waited, _, _) = trained("waited", "some 1 800", &[]);
    let (skipped, lines, said) = trained("skipped", "some 1 800", &["data.late=skip"]);
    let late: Vec<_> = lines.iter().filter_map(|line| line.get("late_shards")).collect();
    assert!(late.len() > 4, "{late:?}");
    assert!(late.iter().all(|shards| **shards == serde_json::json!([1])), "{late:?}");
    assert_eq!(skipped["num_late_shards"], late.len());
    assert!(said.contains(&format!("late and left out {} times", late.len())), "{said}");
    // What the run that waited predicts.
    let recorded = dir.path().join("waited");
    let plan = ["plan", "--stragglers", text(&recorded), "--json"];
    let plan = Command::new(BINARY).args(plan).output().unwrap();
    let predicted: Value = serde_json::from_slice(&plan.stdout).unwrap();
    let of = |row: usize, key: &str| predicted["rows"][row][key].as_f64().unwrap();
    let steps = lines.iter().skip(1).map(|line| line["step_ms"].as_f64().unwrap());
    let measured = steps.sum::<f64>() / (lines.len() - 1) as f64;
    let share = late.len() as f64 / (2 * (lines.len() - 1)) as f64;
    // Processors that do other things make all steps longer: the error is less than a fifth of what
    // a step takes if it waits.
    let (wait, skip) = (of(0, "step_ms"), of(1, "step_ms"));
    assert!((skip - measured).abs() < 0.2 * wait, "{skip} and {measured} ms of {predicted}");
    let predicted_share = of(1, "skipped");
    assert!((predicted_share / share - 1.0).abs() < 0.4, "{share} of {predicted}");
    assert_eq!(predicted["slow_processes"], serde_json::json!([1]));
    let secs = |summary: &Value| summary["wall_secs"].as_f64().unwrap();
    assert!(secs(&skipped) < secs(&waited) - 3.0, "{skipped} {waited}");
    let from = format!("data.late_from={}", dir.path().join("skipped/metrics.jsonl").display());
    let (again, _, _) = trained("again", "none 1 0", &["data.late=skip", &from]);
    assert_eq!(again["params_fingerprint"], skipped["params_fingerprint"]);
    assert_ne!(waited["params_fingerprint"], skipped["params_fingerprint"]);
    // One process has both shards now.
    let sets = ["model.hidden=[1024]", "train.global_batch=256", "train.steps=100"];
    let sets = [&sets[..], &["data.late=skip", &from]].concat();
    let (config, out) = (dir.path().join("mlp.toml"), dir.path().join("alone"));
    run(dir.path(), &train(text(&config), &sets, &["--out", text(&out)])).succeeded();
    let of_one = summary(&out);
    assert_eq!(of_one["num_late_shards"], late.len());
    assert_eq!(of_one["params_fingerprint"], skipped["params_fingerprint"]);
}

/// It takes two probes, or more where other programs disturb them.
#[test]
fn a_slow_probe_names_the_devices() {
    let _turn = turn::alone();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let sets = ["observe.probe_every_steps=8"];
    let ended = start(dir.path(), "probe 1 1000", &out, &sets).end().succeeded();
    assert_named(&out, "device", u64::MAX, &ended.stderr);
}

/// What a quota of half of the time does, in shorter periods. The other process has more of the
/// processors meanwhile, and less at other times: steps of this one are about half as long again.
#[test]
#[ignore = "needs processors that do nothing else; of the full set"]
fn a_process_that_is_stopped_for_half_of_the_time_is_named_by_probes() {
    let _turn = turn::alone();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let sets = ["observe.probe_every_steps=8", "train.steps=74"];
    let mut running = start(dir.path(), "none 1 0", &out, &sets);
    running.until_step(&out, 1);
    let pid = running.workers()[1].1;
    while named(&out).is_none() && running.child.try_wait().unwrap().is_none() {
        for _ in 0..20 {
            send("STOP", pid);
            thread::sleep(Duration::from_millis(30));
            send("CONT", pid);
            thread::sleep(Duration::from_millis(30));
        }
    }
    let ended = running.end().succeeded();
    assert_named(&out, "device", u64::MAX, &ended.stderr);
    assert_eq!(summary(&out)["slow_processes"][0]["cause"], "device");
}
