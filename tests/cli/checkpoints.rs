//! Runs that are killed, stopped and continued.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::interrupted::Running;
use super::{
    DIGITS, EXAMPLES, file, lockstep, metrics, names, num_steps_written, summary, text, train_args,
};

const NUMBERS: [&str; 9] = [
    "step",
    "loss",
    "lr",
    "grad_norm",
    "num_skipped",
    "epoch",
    "examples",
    "eval_loss",
    "eval_accuracy",
];

/// What is not a time, of all lines.
fn numbers(out: &Path) -> Vec<Vec<Value>> {
    let of_line = |line: Value| NUMBERS.iter().map(|name| line[name].clone()).collect();
    metrics(out).into_iter().map(of_line).collect()
}

/// How many times runs are killed: `LOCKSTEP_NUM_KILLS`, if it is set.
fn num_kills(default: u64) -> u64 {
    std::env::var("LOCKSTEP_NUM_KILLS").map_or(default, |number| number.parse().unwrap())
}

/// Ends a run by a signal several times in a row, at moments that differ: while it starts, trains
/// and saves. What is left at the end is the run that nobody ended, and nothing else. Returns its
/// directory.
fn survives(signal: &str, dir: &Path, config: &str, sets: &[&str], default_kills: u64) -> PathBuf {
    let (whole, killed) = (dir.join("whole"), dir.join("killed"));
    let args = |more: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let args: Vec<_> = ["train", config].into_iter().chain(sets).collect();
        [&args[..], more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    lockstep(&args(&["--out", text(&whole)])).succeeded();
    let resumed = args(&["--resume", "--out", text(&killed)]);
    let (mut num_killed, num_kills) = (0, num_kills(default_kills));
    for round in 0..num_kills {
        let (mut run, _) = Running::with_stderr_in(dir, &resumed);
        thread::sleep(Duration::from_millis(150 + round * 379 % 900));
        run.send(signal);
        num_killed += u64::from(run.exit_code() != Some(0));
    }
    // The others had been done.
    assert!(num_killed > default_kills.min(num_kills) / 4, "{num_killed}");
    let done = lockstep(&args(&["--resume", "--json", "--out", text(&killed)])).succeeded().json();
    assert_eq!(metrics(&killed).len(), metrics(&whole).len());
    numbers(&killed).iter().zip(&numbers(&whole)).for_each(|(a, b)| assert_eq!(a, b));
    let expected = summary(&whole);
    for field in ["params_fingerprint", "final_loss", "eval_loss", "best_eval", "steps", "status"] {
        assert_eq!(done[field], expected[field], "{field}");
    }
    // Optimizer state, running means and counters.
    let [a, b] = [&whole, &killed].map(|out| out.join("checkpoints"));
    let diff = lockstep(&["checkpoint", "diff", text(&a), text(&b)]).succeeded();
    assert!(diff.stdout.contains("leaves are equal bit for bit"), "{}", diff.stdout);
    killed
}

/// With dropout, a running mean of the parameters, and LAMB.
#[test]
fn a_run_survives_being_killed_at_any_moment() {
    let dir = tempfile::tempdir().unwrap();
    let sets = [
        "mesh.data=2",
        "model.dropout=0.1",
        "optimizer.name=lamb",
        "optimizer.ema_decay=0.99",
        "train.epochs=40",
        "train.eval_every=100",
        "checkpoint.every_steps=9",
        "checkpoint.keep=2",
        "checkpoint.keep_every=450",
    ];
    let killed = survives("KILL", dir.path(), DIGITS, &sets, 20);
    // The one before the last may be any: one that is due while another is written is skipped.
    let kept = names(&killed.join("checkpoints"));
    assert_eq!(
        (kept.len(), &*kept[0], &*kept[2]),
        (3, "step_00000450", "step_00000880"),
        "{kept:?}"
    );
}

/// What replicas have not sent of their gradients, and the projections of these, are as they were.
#[test]
fn a_run_with_compressed_gradients_survives_being_killed() {
    let dir = tempfile::tempdir().unwrap();
    let sets = [
        "mesh.data=2",
        "parallel.compression=power_sgd",
        "train.epochs=20",
        "train.eval_every=0",
        "checkpoint.every_steps=9",
        "checkpoint.keep=1",
    ];
    let killed = survives("KILL", dir.path(), DIGITS, &sets, 2);
    let shown = lockstep(&["checkpoint", "inspect", text(&killed.join("checkpoints"))]).succeeded();
    for leaf in ["comm.residual.", "comm.basis."] {
        assert!(shown.stdout.contains(leaf), "{}", shown.stdout);
    }
}

/// Replicas that train on their own are saved after outer steps, and go on from there.
#[test]
fn a_run_with_local_steps_survives_being_killed() {
    let dir = tempfile::tempdir().unwrap();
    let sets = [
        "mesh.data=2",
        "sync.every=5",
        "train.steps=440",
        "train.eval_every=0",
        "checkpoint.every_steps=9",
        "checkpoint.keep=2",
    ];
    let killed = survives("KILL", dir.path(), DIGITS, &sets, 2);
    let kept = names(&killed.join("checkpoints"));
    assert!(kept.iter().all(|name| name.ends_with(['0', '5'])), "{kept:?}");
}

/// Also while it is evaluated. The best evaluation has a checkpoint.
#[test]
fn a_run_survives_being_stopped_and_keeps_its_best_state() {
    let dir = tempfile::tempdir().unwrap();
    let sets = [
        "model.hidden=[16]",
        "mesh.data=1",
        "train.epochs=60",
        "train.eval_every=1",
        "checkpoint.keep=1",
        "checkpoint.keep_best=true",
    ];
    let stopped = survives("TERM", dir.path(), DIGITS, &sets, 10);
    let best = summary(&stopped)["best_eval"]["step"].as_u64().unwrap() + 1;
    let mut expected = vec![format!("step_{best:08}"), "step_00001320".to_owned()];
    expected.dedup();
    assert_eq!(names(&stopped.join("checkpoints")), expected);
}

/// In bf16, with microbatches, scanned blocks and shards.
#[test]
fn a_gpt_survives_being_killed() {
    let dir = tempfile::tempdir().unwrap();
    // Not the example's own data, the sources, which may be edited while this runs.
    let text = file(dir.path(), "text.rs", &include_bytes!("checkpoints.rs").repeat(8));
    let path = format!("data.path={}", self::text(&text));
    let sets = [
        &path,
        "mesh.data=1",
        "mesh.fsdp=2",
        "model.num_layers=2",
        "model.width=32",
        "model.num_heads=2",
        "model.scan_layers=true",
        "data.context=32",
        "train.precision=bf16",
        "train.num_microbatches=2",
        "train.global_batch=16",
        "train.steps=300",
        "train.eval_every=0",
        "train.batch_per_replica=4",
        "schedule.warmup_steps=20",
        "checkpoint.every_steps=7",
    ];
    survives("KILL", dir.path(), &format!("{EXAMPLES}/gpt-bytes.toml"), &sets, 5);
}

/// With batch norm and random crops.
#[test]
fn a_resnet_survives_being_killed() {
    let dir = tempfile::tempdir().unwrap();
    let files = (1..=5).map(|index| format!("data_batch_{index}.bin"));
    for (index, name) in files.chain(["test_batch.bin".to_owned()]).enumerate() {
        let byte = |place: usize| match place % 3073 {
            0 => (place / 3073 % 10) as u8,
            _ => ((place + index) * 2_654_435_761).to_be_bytes()[4],
        };
        file(dir.path(), &name, &(0..16 * 3073).map(byte).collect::<Vec<_>>());
    }
    let path = format!("data.path={}", text(dir.path()));
    let sets = [
        &path,
        "mesh.data=2",
        "model.batch_norm_group=4",
        "train.global_batch=8",
        "train.epochs=12",
        "train.eval_every=40",
        "schedule.warmup_steps=10",
        "checkpoint.every_steps=3",
    ];
    survives("KILL", dir.path(), &format!("{EXAMPLES}/cifar-resnet20.toml"), &sets, 5);
}

#[test]
fn a_stopped_run_continues_where_it_was_and_one_that_is_asked_saves_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let checkpoints = out.join("checkpoints");
    let long = ["model.hidden=[8]", "train.steps=1000000", "mesh.data=1"];
    let (mut run, stderr) =
        Running::with_stderr_in(dir.path(), &train_args(&long, &["--out", text(&out)]));
    run.until_begun(&out);
    assert_eq!(names(&checkpoints).len(), 0);
    run.send("USR1");
    run.until("a checkpoint", |_| names(&checkpoints).iter().any(|name| name.starts_with("step")));
    let num_steps = num_steps_written(&out);
    run.until("more steps", |_| num_steps_written(&out) > num_steps);
    run.send("TERM");
    assert_eq!(run.exit_code(), Some(143), "{}", fs::read_to_string(stderr).unwrap());
    let stopped = summary(&out)["steps"].as_u64().unwrap();
    assert_eq!(names(&checkpoints).last(), Some(&format!("step_{stopped:08}")));

    let longer = format!("train.steps={}", stopped + 5);
    let sets = ["model.hidden=[8]", &longer, "mesh.data=1", "schedule.total_steps=1000000"];
    let args = train_args(&sets, &["--resume", "--out", text(&out)]);
    let done = lockstep(&args).succeeded();
    for expected in [
        &format!("resumed after {stopped} steps from {}", text(&checkpoints))[..],
        "another configuration holds from here on",
        "configuration: train.steps: 1000000 -> ",
        "configuration: schedule.total_steps: not set -> 1000000 (the run is another one",
    ] {
        assert!(done.stderr.contains(expected), "{expected}: {}", done.stderr);
    }
    let steps: Vec<_> = metrics(&out).iter().map(|line| line["step"].as_u64().unwrap()).collect();
    assert!(steps.iter().copied().eq(0..stopped + 5), "{steps:?}");
    assert!(summary(&out)["resumed_from"].as_str().unwrap().ends_with(&format!("{stopped:08}")));
    // From an earlier checkpoint, into another directory.
    let other = dir.path().join("other");
    let from = checkpoints.join(&names(&checkpoints)[0]);
    let args = train_args(&sets, &["--resume", text(&from), "--out", text(&other)]);
    lockstep(&args).succeeded();
    assert_eq!(summary(&other)["params_fingerprint"], summary(&out)["params_fingerprint"]);
    // A branch begins with a checkpoint of its own.
    let begun = from.file_name().unwrap().to_str().unwrap();
    assert_eq!(names(&other.join("checkpoints"))[0], begun);
    // Not into the directory of another run. Its own takes the steps after it again.
    let done = lockstep(&train_args(&sets, &["--resume", text(&from), "--out", text(&other)]));
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("holds another run"), "{}", done.stderr);
    let before = names(&checkpoints).len();
    let args = train_args(&sets, &["--resume", text(&from), "--out", text(&out)]);
    let done = lockstep(&args).succeeded();
    let removed = format!("removed {} later checkpoints", before - 1);
    assert!(done.stderr.contains(&removed), "{removed}: {}", done.stderr);
    assert_eq!(names(&checkpoints).len(), 2);
    assert_eq!(metrics(&out).len() as u64, stopped + 5);
}

#[test]
fn what_cannot_be_continued_or_saved_is_said_and_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (out, shared) = (dir.path().join("out"), dir.path().join("shared"));
    let short = ["model.hidden=[8]", "train.epochs=1", "mesh.data=1"];
    let in_shared = format!("checkpoint.dir={}", text(&shared));
    let run =
        |sets: &[&str], more: &[&str]| lockstep(&train_args(&[&short[..], sets].concat(), more));
    run(&[&in_shared], &["--out", text(&out)]).succeeded();
    assert_eq!(names(&shared), ["step_00000022"]);
    let elsewhere = dir.path().join("elsewhere");
    for (sets, more, code, expected) in [
        (
            &[&*in_shared][..],
            &["--out", text(&elsewhere)][..],
            1,
            "holds checkpoints of another run",
        ),
        (&[], &["--resume"], 1, "--resume needs to know where the checkpoints are"),
        (&[], &["--resume", "--overwrite", "--out", text(&out)], 2, "cannot be used with"),
        (&[], &["--resume", text(&elsewhere)], 1, "there is no such directory"),
        (&[], &["--resume", text(dir.path())], 1, "it has no manifest.json"),
        (
            &["model.hidden=[9]", &in_shared],
            &["--resume", "--out", text(&out)],
            1,
            "cannot continue the run that was saved: model.hidden: [8] -> [9]",
        ),
        (
            &["optimizer.ema_decay=0.9", &in_shared],
            &["--resume"],
            1,
            "cannot continue the run that was saved: optimizer.ema_decay: not set -> 0.9 (",
        ),
    ] {
        let before = names(&out);
        let done = run(sets, more);
        assert_eq!(done.code, Some(code), "{expected}: {}", done.stderr);
        assert!(done.stderr.contains(expected), "{expected}: {}", done.stderr);
        assert!(!done.stderr.contains("backend cpu"), "before it is compiled: {}", done.stderr);
        assert_eq!(names(&out), before);
        assert!(!elsewhere.exists());
    }
    for (set, expected) in [
        ("checkpoint.dir=..", "the path of a directory, without `..`"),
        ("checkpoint.dir=.", "the path of a directory, without `..`"),
    ] {
        let done = run(&[set], &["--out", text(&elsewhere)]);
        assert_eq!(done.code, Some(1));
        assert!(done.stderr.contains(expected), "{expected}: {}", done.stderr);
    }
    let shorter = [&*in_shared, "train.steps=9", "schedule.warmup=none"];
    let shorter = run(&shorter, &["--resume", "--out", text(&out)]);
    assert_eq!(shorter.code, Some(1));
    let expected = "the checkpoint was made after 22 steps, but the configuration asks for 9";
    assert!(shorter.stderr.contains(expected), "{}", shorter.stderr);
    // Checkpoints of the run in --out are not lost by looking for them elsewhere, nor is another
    // run.
    let own = dir.path().join("own");
    run(&[], &["--out", text(&own)]).succeeded();
    fs::remove_file(own.join("params.safetensors")).unwrap();
    let killed = fs::read_to_string(own.join("summary.json")).unwrap();
    fs::write(own.join("summary.json"), killed.replace("\"done\"", "\"running\"")).unwrap();
    let expected = format!("checkpoint.dir: \"checkpoints\" -> {shared:?}");
    for (set, more, expected) in [
        ("checkpoint.dir=ck2", &[][..], "checkpoint.dir: \"checkpoints\" -> \"ck2\"; use"),
        (&*in_shared, &["--set", "train.seed=0"], &expected),
    ] {
        let before = names(&own);
        let done = run(&[set], &[&["--resume", "--out", text(&own)], more].concat());
        assert_eq!(done.code, Some(1), "{}", done.stderr);
        assert!(done.stderr.contains(expected), "{expected}: {}", done.stderr);
        assert!(!done.stderr.contains("with --resume"), "it was given: {}", done.stderr);
        assert_eq!(names(&own), before);
    }
    fs::remove_dir_all(own.join("checkpoints")).unwrap();
    fs::write(own.join("summary.json"), &killed).unwrap();
    let done = run(&[], &["--resume", "--out", text(&own)]);
    assert!(done.stderr.contains("has no checkpoint to continue from"), "{}", done.stderr);
    // None at all, if asked for none.
    let none = dir.path().join("none");
    run(&["checkpoint.keep=0"], &["--out", text(&none)]).succeeded();
    assert_eq!(names(&none), super::RUN_FILES);
    // A place that cannot be written fails the run before its first step.
    let file = file(dir.path(), "a file", b"");
    let in_file = format!("checkpoint.dir={}", text(&file.join("x")));
    let done = run(&[&in_file], &[]);
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("a file/x: Not a directory"), "{}", done.stderr);
    assert!(!done.stderr.contains("batch:"), "{}", done.stderr);
}

#[test]
fn checkpoints_are_listed_checked_compared_and_exported() {
    let dir = tempfile::tempdir().unwrap();
    let (out, again) = (dir.path().join("out"), dir.path().join("again"));
    let sets = [
        "model.hidden=[32]",
        "optimizer.ema_decay=0.9",
        "train.epochs=1",
        "mesh.fsdp=2",
        "mesh.data=1",
        "checkpoint.every_steps=11",
        "checkpoint.keep_every=11",
    ];
    for out in [&out, &again] {
        lockstep(&train_args(&sets, &["--out", text(out)])).succeeded();
    }
    let [first, second] = [&out, &again].map(|out| out.join("checkpoints"));
    let checkpoint = |args: &[&str]| lockstep(&[&["checkpoint"], args].concat());
    let listed = checkpoint(&["list", "--json", text(&first)]).succeeded().json();
    let steps = [&listed[0]["step"], &listed[1]["step"], &listed[2]["step"]];
    assert_eq!(steps, [&11.into(), &22.into(), &Value::Null]);
    let inspected = checkpoint(&["inspect", text(&first)]).succeeded().stdout;
    for expected in [
        "after 22 steps; batch 0 of epoch 1 is next",
        "params.blocks.0.linear.weight  f32[32, 64]{dim 0 over {fsdp}}  in 2 pieces",
        "params.blocks.0.linear.bias  f32[32]\n",
        "ema_decay = 0.9",
    ] {
        assert!(inspected.contains(expected), "{expected}: {inspected}");
    }
    let data = "data: training examples 1437 (fingerprint ";
    assert!(inspected.contains(data), "{inspected}");
    assert!(checkpoint(&["verify", text(&first)]).succeeded().stdout.contains("is intact"));
    // A run stands for its checkpoints.
    let of_run = checkpoint(&["list", "--json", text(&out)]).succeeded().json();
    assert_eq!(of_run, listed);
    let of_run = checkpoint(&["inspect", text(&out)]).succeeded().stdout;
    assert_eq!(of_run, inspected);
    assert_eq!(checkpoint(&["verify", text(&out)]).succeeded().stdout.lines().count(), 2);
    let equal = checkpoint(&["diff", text(&out), text(&second)]).succeeded().stdout;
    assert!(equal.contains("leaves are equal bit for bit"), "{equal}");
    let early = first.join("step_00000011");
    let done = checkpoint(&["diff", text(&first), text(&early)]);
    assert_eq!(done.code, Some(1));
    assert!(done.stdout.contains("params.blocks.0.linear.weight: 2048 of 2048"), "{}", done.stdout);
    // The file of the run itself.
    let exported = dir.path().join("model.safetensors");
    checkpoint(&["export", text(&first), "--to", text(&exported)]).succeeded();
    let params = fs::read(out.join("params.safetensors")).unwrap();
    assert!(fs::read(&exported).unwrap() == params);
    let taken = checkpoint(&["export", text(&first), "--to", text(&exported)]);
    assert_eq!(taken.code, Some(1));
    let raw = dir.path().join("raw.safetensors");
    checkpoint(&["export", text(&first), "--without-ema", "--to", text(&raw)]).succeeded();
    assert!(fs::read(&raw).unwrap() != params);

    let shard = early.join("shard_00000.safetensors");
    let mut bytes = fs::read(&shard).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&shard, bytes).unwrap();
    let damaged = checkpoint(&["verify", text(&first)]);
    assert_eq!(damaged.code, Some(1));
    assert!(damaged.stderr.contains("has other bytes than were written"), "{}", damaged.stderr);
}

/// A directory gets the name of a checkpoint after its manifest: without one it is damaged, and
/// never passed over silently.
#[test]
fn a_checkpoint_without_its_manifest_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let sets = ["model.hidden=[8]", "mesh.data=1", "train.epochs=1", "checkpoint.every_steps=11"];
    let train = |more: &[&str]| lockstep(&train_args(&sets, more));
    train(&["--out", text(&out)]).succeeded();
    let checkpoints = out.join("checkpoints");
    let (early, late) = (checkpoints.join("step_00000011"), checkpoints.join("step_00000022"));
    // As if it were being saved: another name.
    fs::create_dir(checkpoints.join(".unfinished.step_00000033")).unwrap();
    fs::remove_file(late.join("manifest.json")).unwrap();
    let verified = lockstep(&["checkpoint", "verify", text(&out)]);
    assert_eq!(verified.code, Some(1), "{}", verified.stderr);
    let damage = "step_00000022 is damaged: it has no manifest.json";
    assert!(verified.stderr.contains(damage), "{}", verified.stderr);
    assert_eq!(verified.stdout.lines().count(), 1, "{}", verified.stdout);
    let listed = lockstep(&["checkpoint", "list", text(&checkpoints)]).succeeded().stdout;
    assert!(listed.contains(damage) && listed.lines().count() == 2, "{listed}");
    for args in
        [&["checkpoint", "inspect", text(&out)][..], &["checkpoint", "inspect", text(&late)]]
    {
        let done = lockstep(args);
        assert!(done.stderr.contains("no manifest.json"), "{args:?}: {}", done.stderr);
    }
    let resumed = train(&["--resume", "--out", text(&out)]).succeeded();
    let warning = "step_00000022 is passed over: it has no manifest.json";
    let line = resumed.stderr.lines().find(|line| line.starts_with("warning: ")).unwrap();
    assert!(line.contains(warning) && line.ends_with("step_00000011 is used"), "{line}");
    assert!(resumed.stderr.contains("resumed after 11 steps"), "{}", resumed.stderr);
    // A run stands for its newest checkpoint here, too.
    let branch = dir.path().join("branch");
    let branch = train(&["--resume", text(&out), "--out", text(&branch)]).succeeded();
    assert!(branch.stderr.contains("resumed after 22 steps"), "{}", branch.stderr);
    // It has been saved again.
    lockstep(&["checkpoint", "verify", text(&out)]).succeeded();
    // Without another one the run would begin again.
    fs::remove_dir_all(&early).unwrap();
    fs::remove_file(late.join("manifest.json")).unwrap();
    let before = names(&out);
    let refused = train(&["--resume", "--out", text(&out)]);
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains(damage), "{}", refused.stderr);
    assert_eq!(names(&out), before);
}
