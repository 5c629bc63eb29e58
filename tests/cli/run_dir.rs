//! A directory holds one run, whole: whatever becomes of the run, of the one before it, and of the
//! disk.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::interrupted::Running;
use super::{
    BINARY, RUN_FILES, RUN_NAMES, file, install_plugin, lockstep, metrics, names, summary, text,
    train_args,
};

const SHORT: [&str; 3] = ["model.hidden=[8]", "train.epochs=1", "mesh.data=1"];
/// Ends in its second step.
const DIVERGED: [&str; 5] = [
    "model.hidden=[8]",
    "optimizer.name=sgd",
    "schedule.peak=1e30",
    "schedule.warmup=none",
    "mesh.data=1",
];
/// Where the files of a run that is being replaced are kept.
const REPLACED: &str = "replaced-run";

/// The contents of a run's files.
fn contents(dir: &Path) -> Vec<Vec<u8>> {
    RUN_FILES.iter().map(|name| fs::read(dir.join(name)).unwrap()).collect()
}

#[track_caller]
fn refused(out: &Path, more: &[&str], fragments: &[&str]) {
    let before = names(out);
    let done = lockstep(&train_args(&SHORT, &[&["--out", text(out)], more].concat()));
    assert_eq!((done.code, &*done.stdout), (Some(1), ""), "{}", done.stderr);
    for fragment in fragments.iter().chain(&["--out"]) {
        assert!(done.stderr.contains(fragment), "{fragment:?} is not in {}", done.stderr);
    }
    assert!(!done.stderr.contains("batch:"), "found before anything takes time: {}", done.stderr);
    assert_eq!(names(out), before);
}

#[test]
fn a_run_replaces_another_only_where_it_is_told_to_and_only_by_a_better_one() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let replaced = out.join(REPLACED);
    let overwrite = ["--overwrite", "--out", text(&out)];
    lockstep(&train_args(&SHORT, &["--out", text(&out)])).succeeded();
    let first = contents(&out);
    for name in RUN_FILES {
        let one = dir.path().join(format!("one {name}"));
        fs::create_dir(&one).unwrap();
        file(&one, name, b"left");
        refused(&one, &[], &["holds another run", name, "--overwrite"]);
    }
    refused(&out, &[], &["holds another run", "--overwrite"]);
    assert_eq!(contents(&out), first);

    // A run that is killed leaves its own files, and those of the run before beside them.
    let long = ["model.hidden=[8]", "train.steps=1000000", "mesh.data=1"];
    let (mut run, stderr) = Running::with_stderr_in(dir.path(), &train_args(&long, &overwrite));
    run.until_begun(&out);
    run.send("KILL");
    run.exit_code();
    assert!(fs::read_to_string(stderr).unwrap().contains(text(&replaced)));
    assert_eq!(contents(&replaced), first);
    let killed = summary(&out);
    assert_eq!(
        (&killed["status"], &killed["planned_steps"]),
        (&"running".into(), &1_000_000.into())
    );
    assert!(killed["final_loss"].is_null() && killed["params_fingerprint"].is_null(), "{killed}");
    assert_eq!(
        names(&out),
        ["checkpoints", "config.resolved.toml", "metrics.jsonl", REPLACED, "summary.json"]
    );
    refused(&out, &[], &["holds another run", "--overwrite"]);

    // So does one that fails, in place of the killed one.
    let done = lockstep(&train_args(&DIVERGED, &overwrite));
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains(text(&replaced)), "{}", done.stderr);
    assert_eq!(contents(&replaced), first);
    let failed = summary(&out);
    assert_eq!((&failed["status"], &failed["steps"]), (&"failed".into(), &2.into()));
    assert!(failed["reason"].as_str().unwrap().contains("step 1: the loss is not finite"));
    assert_eq!(metrics(&out).len(), 2);

    // One that is done needs nothing before it.
    let seeded = [&SHORT[..], &["train.seed=7"]].concat();
    let done = lockstep(&train_args(&seeded, &[&overwrite[..], &["--json"]].concat())).succeeded();
    assert_eq!(names(&out), RUN_NAMES);
    assert_eq!((done.json(), &summary(&out)["seed"]), (summary(&out), &7.into()));
}

#[test]
fn a_stopped_run_takes_nothing_from_the_one_that_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let overwrite = ["--overwrite", "--out", text(&out)];
    lockstep(&train_args(&SHORT, &["--out", text(&out)])).succeeded();
    let done = contents(&out);
    let long = ["model.hidden=[8]", "train.steps=1000000", "mesh.data=1"];
    let (mut run, _) = Running::with_stderr_in(dir.path(), &train_args(&long, &overwrite));
    run.until_begun(&out);
    run.send("INT");
    assert_eq!(run.exit_code(), Some(130));
    assert_eq!(summary(&out)["status"], "interrupted");
    let replaced = out.join(REPLACED);
    assert_eq!(contents(&replaced), done);

    // Nor does the next one, in place of the stopped one.
    assert_eq!(lockstep(&train_args(&DIVERGED, &overwrite)).code, Some(1));
    assert_eq!(contents(&replaced), done);
}

#[test]
fn two_processes_do_not_write_into_one_directory() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let long = ["model.hidden=[8]", "train.steps=1000000", "mesh.data=1"];
    let args = train_args(&long, &["--out", text(&out)]);
    let (mut run, _) = Running::with_stderr_in(dir.path(), &args);
    run.until_begun(&out);
    refused(&out, &[], &["another process"]);
    refused(&out, &["--overwrite"], &["another process"]);
    run.send("TERM");
    assert_eq!(run.exit_code(), Some(143));
    assert_eq!(metrics(&out).len() as u64, summary(&out)["steps"].as_u64().unwrap());
}

#[test]
fn a_directory_in_the_place_of_a_file_is_found_before_training() {
    let dir = tempfile::tempdir().unwrap();
    for name in RUN_FILES {
        let out = dir.path().join(format!("with {name}"));
        fs::create_dir_all(out.join(name)).unwrap();
        let place = out.join(name);
        for more in [&[][..], &["--overwrite"]] {
            refused(&out, more, &[text(&place), "is a directory"]);
        }
    }
}

#[test]
fn a_full_disk_takes_no_more_than_what_does_not_fit() {
    install_plugin();
    let dir = tempfile::tempdir().unwrap();
    let (free, full) = (dir.path().join("free"), dir.path().join("full"));
    let sets = ["model.hidden=[8]", "train.epochs=5", "mesh.data=1", "checkpoint.keep=0"];
    let expected =
        lockstep(&train_args(&sets, &["--json", "--out", text(&free)])).succeeded().json();

    // No file may become longer than 8 KiB, as if the disk were full then: the parameters fit.
    let mut command = Command::new("sh");
    let limited = "ulimit -f 16; exec \"$0\" \"$@\"";
    command.args(["-c", limited, BINARY]);
    command.args(train_args(&sets, &["--json", "--out", text(&full)]));
    let output = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
    let stderr = stderr.unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let metrics_file = full.join("metrics.jsonl");
    let said = format!("cannot write {}: ", text(&metrics_file));
    assert!(stderr.contains(&format!("error: {said}")), "{stderr}");
    // Whole lines, as many as fit.
    let written = fs::read_to_string(&metrics_file).unwrap();
    assert!(written.len() <= 8192 && written.ends_with('\n'), "{written}");
    let lines = metrics(&full);
    assert!(!lines.is_empty() && lines.len() < 110, "{}", lines.len());
    // All steps were taken, and their parameters are there.
    let summary = summary(&full);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&stdout.unwrap()).unwrap(), summary);
    assert_eq!((&summary["status"], &summary["steps"]), (&"failed".into(), &110.into()));
    assert!(summary["reason"].as_str().unwrap().starts_with(&said), "{summary}");
    assert_eq!(summary["params_fingerprint"], expected["params_fingerprint"]);
    let params = |out: &Path| fs::read(out.join("params.safetensors")).unwrap();
    assert_eq!(params(&full), params(&free));
    assert_eq!(names(&full), RUN_FILES);
}
