//! What `train` achieves, prints and writes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use super::{
    BINARY, DIGITS, install_plugin, keys, lockstep, lockstep_with, metrics, set, summary, text,
    train_args,
};

const STEP_FIELDS: [&str; 13] = [
    "step",
    "time",
    "epoch",
    "examples",
    "loss",
    "lr",
    "grad_norm",
    "num_skipped",
    "step_ms",
    "launch_delay_ms",
    "host_ms",
    "data_wait_ms",
    "examples_per_sec",
];
const EVAL_FIELDS: [&str; 3] = ["eval_loss", "eval_accuracy", "eval_top5_accuracy"];
const SUMMARY_FIELDS: [&str; 43] = [
    "confusion",
    "peak_process_bytes",
    "peak_device_bytes",
    "evaluation_secs",
    "num_proofs",
    "proof_secs",
    "failed_generations",
    "slow_processes",
    "launch_delay_secs",
    "num_checkpoints",
    "checkpoint_wait_secs",
    "checkpoint_write_secs",
    "resumed_from",
    "status",
    "reason",
    "steps",
    "planned_steps",
    "num_replicas",
    "num_processes",
    "mesh",
    "global_batch",
    "batch_efficiency",
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
    "state_bytes_per_replica",
    "program",
    "params_fingerprint",
    "num_skipped",
    "seed",
    "precision",
    "approximations",
    "backend",
    "device",
    "version",
];

/// By the system's account of the process. Otherwise starts would only be slower.
#[test]
#[cfg(target_os = "linux")]
fn a_run_has_the_settings_of_its_allocator() {
    use super::interrupted::Running;

    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let args = train_args(&["train.steps=1000000", "train.eval_every=0"], &["--out", text(&out)]);
    let (mut run, _) = Running::with_stderr_in(dir.path(), &args);
    run.until_begun(&out);
    let of_process = |file| fs::read_to_string(format!("/proc/{}/{file}", run.id())).unwrap();
    assert!(of_process("status").contains("THP_enabled:\t0"), "{}", of_process("status"));
    assert!(of_process("environ").contains("MIMALLOC_PURGE_DELAY=-1\0"));
}

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

/// 6 microbatches on 4 replicas, which run 2 each.
#[test]
fn replicas_that_do_not_divide_the_microbatches_train_all_the_same() {
    let run = |replicas: usize| {
        let mesh = format!("mesh.data={replicas}");
        let sets = [
            "train.global_batch=24",
            "train.microbatch=4",
            "train.steps=8",
            "schedule.warmup=none",
            &mesh,
        ];
        let done = lockstep(&train_args(&sets, &["--json"])).succeeded();
        (done.json(), done.stderr)
    };
    let (one, said) = run(1);
    assert!(said.contains("24 = 4 microbatch * 6 num_microbatches * 1 replica"), "{said}");
    let (four, said) = run(4);
    let expected = "batch: 24 = 4 microbatch * 6 microbatches; 4 replicas run 2 each, and 75 % of \
                    that counts";
    assert!(said.contains(expected), "{said}");
    let efficiency = |summary: &Value| summary["batch_efficiency"].as_f64().unwrap();
    assert_eq!((efficiency(&one), efficiency(&four)), (1.0, 0.75));
    for field in ["final_loss", "eval_loss"] {
        let [a, b] = [&one, &four].map(|summary| summary[field].as_f64().unwrap());
        assert!((a - b).abs() < 1e-4 * a, "{field}: {a} and {b}");
    }
}

#[test]
fn a_small_stack_is_enough() {
    install_plugin();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -s 64; exec \"$0\" \"$@\"", BINARY]);
    command.args(train_args(&["train.epochs=2", "mesh.data=2"], &["--json"]));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
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
    let mesh = serde_json::json!({ "data": 2, "fsdp": 1, "tensor": 1, "pipeline": 1 });
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

    let field = |name: &str| steps.iter().map(|line| line[name].as_f64().unwrap()).collect();
    let [delays, times]: [Vec<f64>; 2] = ["launch_delay_ms", "step_ms"].map(field);
    assert!(delays[0] > 0.0, "nothing is launched before the first step");
    assert!(delays.iter().zip(&times).all(|(delay, time)| delay <= time), "{delays:?} {times:?}");
    let total = summary["launch_delay_secs"].as_f64().unwrap();
    assert!((total / (delays.iter().sum::<f64>() / 1e3) - 1.0).abs() < 1e-6, "{total}");

    // The same run elsewhere is the same bit for bit, from the configuration that it has left, too.
    let other = dir.path().join("runs/second");
    let resolved = out.join("config.resolved.toml");
    let again = ["train", text(&resolved), "--out", text(&other), "--json"];
    let again = lockstep(&again).succeeded();
    assert_eq!(fs::read(&resolved).unwrap(), fs::read(other.join("config.resolved.toml")).unwrap());
    assert_eq!(again.json()["params_fingerprint"], summary["params_fingerprint"]);
    assert_eq!(super::names(&other), super::RUN_NAMES);

    // A rate below half of the smallest difference between two f32 changes no parameter, so that
    // what is evaluated is what was read; and on other meshes.
    let still =
        ["optimizer.name=sgd", "schedule.peak=1e-30", "schedule.warmup=none", "train.steps=1"];
    let params = out.join("params.safetensors");
    for mesh in [&["mesh.data=4"][..], &["mesh.data=2", "mesh.fsdp=2", "parallel.zero=3"]] {
        let args = train_args(&[&still, mesh].concat(), &["--init", text(&params), "--json"]);
        let read = lockstep(&args).succeeded().json();
        assert_eq!(read["params_fingerprint"], summary["params_fingerprint"], "{mesh:?}");
        assert_eq!(read["eval_accuracy"], summary["eval_accuracy"], "{mesh:?}");
    }

    // A run that continues itself starts from there only once.
    let third = dir.path().join("runs/third");
    let more = ["--init", text(&params), "--resume", "--out", text(&third), "--json"];
    for (steps, from) in [("train.steps=1", false), ("train.steps=2", true)] {
        let sets = [&still[..3], &[steps]].concat();
        let went_on = lockstep(&train_args(&sets, &more)).succeeded().json();
        assert_eq!(went_on["resumed_from"].is_string(), from, "{went_on}");
        assert_eq!(went_on["params_fingerprint"], summary["params_fingerprint"]);
    }
    let both = ["--init", text(&params), "--resume", text(&third)];
    let refused = lockstep(&train_args(&still, &both));
    assert!(refused.stderr.contains("leave out --init to continue from"), "{}", refused.stderr);
}

/// Data parallel by two, sharded by two.
const SHARDED: [&str; 2] = ["mesh.data=2", "mesh.fsdp=2"];

#[test]
fn a_sharded_run_says_what_is_sharded_and_what_it_sends() {
    let sets = ["train.steps=2", "schedule.warmup=none", "parallel.zero=3"];
    let done = lockstep(&train_args(&[&sets[..], &SHARDED].concat(), &["--json"])).succeeded();
    // Weights of 64 -> 256 -> 256 -> 10, and biases and norms. AdamW keeps two more of each, and
    // there are two counters.
    let said = "sharding: 3 leaves, 330.00 KiB over 2 replicas (zero = 3); whole: 7 leaves, 6.04 \
                KiB (a vector of fewer than 65536 elements); state: 513.12 KiB of 1008.12 KiB on \
                each replica\n";
    assert!(done.stderr.contains(said), "{}", done.stderr);
    for said in [
        "synchronisation: each replica sends ",
        "\n  all_gather of f32 over {fsdp}, 2 groups of 2 replicas: ",
        "\n  reduce_scatter of f32 over {fsdp}, 2 groups of 2 replicas: 3, 330.00 KiB\n",
    ] {
        assert!(done.stderr.contains(said), "{said:?} is not in {}", done.stderr);
    }
    let (sharded, whole) = (4 * (64 * 256 + 256 * 256 + 256 * 10), 4 * (2 * 3 * 256 + 10));
    let state_bytes = 3 * (sharded / 2 + whole) + 2 * 4;
    assert_eq!(done.json()["state_bytes_per_replica"], state_bytes);

    // Nothing is divisible by 3.
    let odd =
        ["mesh.data=1", "mesh.fsdp=3", "train.batch_per_replica=16", "model.hidden=[100, 70]"];
    let done = lockstep(&train_args(&[&sets[..], &odd].concat(), &[])).succeeded();
    let said = "sharding: 0 leaves, 0 B over 3 replicas (zero = 3); whole: 2 leaves, 52.34 KiB (no \
                dim that 3 divides), 7 leaves, ";
    assert!(done.stderr.contains(said), "{}", done.stderr);

    let done = lockstep(&train_args(&sets[..2], &[])).succeeded();
    assert!(!done.stderr.contains("sharding"), "{}", done.stderr);
}

#[test]
fn the_text_of_a_sharded_step_starts_with_what_is_sharded() {
    let hlo = |stage: &str, sets: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let args = ["hlo", super::DIGITS, "--stage", stage].into_iter().chain(sets);
        lockstep(&args.collect::<Vec<_>>()).succeeded().stdout
    };
    let text = hlo("step", &SHARDED);
    let comments: Vec<_> = text.lines().take_while(|line| line.starts_with("// ")).collect();
    let program = text.lines().nth(comments.len()).unwrap();
    assert!(program.starts_with("module @step "), "{program}");
    let expected = [
        "// zero = 1 over 2 replicas",
        "// params.blocks.0.linear.weight: f32[256, \
         64]{dim 0 over {fsdp}}, 32768 bytes on each replica",
        "// params.blocks.0.linear.bias: f32[256], 1024 bytes, whole: a vector of fewer than 65536 \
         elements",
        "// params.head.weight: f32[10, 256]{dim 1 over {fsdp}}, 5120 bytes on each replica",
        "// sharded: 3 leaves, 337920 bytes",
        "// whole: 7 leaves, 6184 bytes",
        "//   a vector of fewer than 65536 elements: 7 leaves, 6184 bytes",
        "// state: 525440 of 1032320 bytes on each replica",
        // Of two replicas each sends half of what is gathered or scattered.
        "// all_gather of f32 over {fsdp}, 2 groups of 2 replicas: 3 per step, 337920 bytes, 168960 \
         sent by each replica",
        "// reduce_scatter of f32 over {fsdp}, 2 groups of 2 replicas: 3 per step, 337920 bytes, 168960 \
         sent by each replica",
        "// all_reduce of f32 over {data}, 2 groups of 2 replicas: 1 per step, 168960 bytes, 168960 sent \
         by each replica",
    ];
    let mut found = comments.iter();
    for line in expected {
        assert!(
            found.any(|comment| *comment == line),
            "{line:?} is not, in order, in {comments:#?}"
        );
    }
    assert_eq!(comments.iter().filter(|line| line.starts_with("// params.")).count(), 10);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/parallelism.md");
    let page = fs::read_to_string(page).unwrap();
    let shown = page.lines().filter(|line| line.starts_with("// "));
    let mut unknown = shown.filter(|line| !comments.contains(line));
    assert_eq!(unknown.next(), None, "docs/parallelism.md shows another program");
    let narrow = ["mesh.data=4", "parallel.reduce_dtype=bf16"];
    let sent = "// all_to_all of bf16 over {data}, 1 group of 4 replicas: 1 per step, ";
    for (stage, sets, sent) in [("grad", &SHARDED[..], None), ("step", &narrow, Some(sent))] {
        let text = hlo(stage, sets);
        let (comments, program) = text.split_once("module ").unwrap();
        let comments: Vec<_> = comments.lines().collect();
        assert!(comments[0].starts_with("// passes: update in place, "), "{stage}: {comments:?}");
        assert!(program.starts_with(&format!("@{stage} ")), "{stage}");
        let has = |sent: &str| comments.iter().any(|line| line.starts_with(sent));
        assert_eq!(comments.len() > 1, sent.is_some_and(has), "{stage}: {comments:?}");
    }
}

/// Everything that a run can be asked for works with every stage, or is refused in words.
#[test]
fn sharded_state_goes_with_every_other_choice() {
    const QUICK: &str = "compile.overrides.xla_backend_optimization_level=0";
    let example = |name: &str| format!("{}/examples/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    let small_gpt = [
        "model.num_layers=2",
        "model.width=32",
        "model.dropout=0.1",
        "train.global_batch=8",
        "train.eval_every=0",
        "data.path=docs",
        "data.extensions=['md']",
    ];
    let small_resnet =
        ["train.global_batch=32", "data.num_examples=64", "model.batch_norm_group=16"];
    // example, keys, what a refusal says
    let cases: &[(&str, &[&str], Option<&str>)] = &[
        ("digits", &["parallel.zero=1", "train.steps_per_launch=3", "optimizer.name=lars"], None),
        (
            "digits",
            &["parallel.zero=2", "train.steps_per_launch=3", "train.num_microbatches=4"],
            None,
        ),
        ("digits", &["parallel.zero=3", "train.num_microbatches=4", "train.precision=bf16"], None),
        ("digits", &["parallel.zero=3", "optimizer.name=lamb", "optimizer.ema_decay=0.9"], None),
        (
            "digits",
            &["parallel.zero=2", "train.on_nonfinite=skip", "parallel.bucket_bytes=0"],
            None,
        ),
        ("digits", &["parallel.zero=3", "data.source=synthetic", "train.precision=f64"], None),
        (
            "digits",
            &["parallel.zero=3", "train.batch_per_replica=5", "train.check_lockstep_every=1"],
            None,
        ),
        ("gpt-bytes-fsdp", &small_gpt, None),
        (
            "gpt-bytes-fsdp",
            &[&small_gpt[..], &["model.scan_layers=true", "model.remat=true"]].concat(),
            None,
        ),
        ("gpt-tensor", &small_gpt, None),
        (
            "gpt-tensor",
            &[&small_gpt[..], &["mesh.tensor=3"]].concat(),
            Some(
                "mesh.tensor = 3, but model.name = \"gpt\": it must divide the 4 heads and the \
                 hidden width of",
            ),
        ),
        (
            "digits",
            &["mesh.tensor=2", "parallel.sequence=true"],
            Some("parallel.sequence = true cuts the positions of tokens"),
        ),
        // Each example of a microbatch is cut in two.
        (
            "gpt-tensor",
            &[&small_gpt[..], &["parallel.context=true", "train.num_microbatches=2"]].concat(),
            None,
        ),
        (
            "gpt-tensor",
            &[
                &small_gpt[..],
                &["mesh.tensor=3", "parallel.context=true", "train.num_microbatches=2"],
            ]
            .concat(),
            Some("equal piece of one, which is not possible with 1 example of 128 positions"),
        ),
        (
            "digits",
            &["mesh.tensor=2", "parallel.context=true"],
            Some("parallel.context = true cuts the positions of tokens"),
        ),
        // A group of batch norm on two batch shards, which differ along fsdp.
        ("resnet20-synthetic", &[&small_resnet[..], &["parallel.zero=3"]].concat(), None),
        (
            "resnet20-synthetic",
            &[&small_resnet[..], &["mesh.tensor=2"]].concat(),
            Some("mesh.tensor = 2, but model.name = \"resnet\": convolutions have too few"),
        ),
        (
            "resnet20-synthetic",
            &[&small_resnet[..], &["parallel.zero=2", "model.batch_norm_group=12"]].concat(),
            Some(
                "model.batch_norm_group: groups of 12 examples cannot be made of 8 on each of 4 \
                 replicas; the nearest that can: 8 or 16",
            ),
        ),
        ("digits", &["train.global_batch=62"], Some("train.global_batch: 62 does not divide")),
        (
            "resnet20-synthetic",
            &[&small_resnet[..], &["train.microbatch=4"]].concat(),
            Some(
                "model.batch_norm_group: it must divide train.microbatch = 4, so that any replica \
                 may run any microbatch; the nearest that does: 4",
            ),
        ),
    ];
    for (name, sets, refusal) in cases {
        let all = [sets, &SHARDED[..], &["train.steps=6", "schedule.warmup=none", QUICK]].concat();
        let mut args = vec!["train".to_owned(), example(name), "--json".to_owned()];
        args.extend(all.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()]));
        let done = lockstep(&args);
        match refusal {
            None => {
                let summary = done.succeeded().json();
                assert_eq!(summary["steps"], 6, "{name} {sets:?}");
                assert!(summary["final_loss"].is_number(), "{name} {sets:?}: {summary}");
            }
            Some(said) => {
                assert_eq!(done.code, Some(1), "{name} {sets:?}: {}", done.stderr);
                assert!(done.stderr.contains(said), "{name} {sets:?}: {}", done.stderr);
            }
        }
    }
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
            line.retain(|key, _| !is_time(key) && key != "peak_process_bytes");
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
    assert!(
        line.starts_with("evaluation: accuracy 0.") && line.ends_with(" after 22 steps"),
        "{line}"
    );
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
            "step {step}: the loss is not finite on replicas 0, 1; its update was skipped ({count} \
             so far)"
        );
        assert!(done.stderr.contains(&said), "{}", done.stderr);
    }
    // A run that ends so is no success, and says what it came to all the same.
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    let said = "error: the last update of the run was skipped, in step 4: the loss is not finite \
                on replicas 0, 1. 4 of 5 updates were skipped; lower the rate";
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
            "error: the last update of the run was skipped",
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

/// Messages on stderr: all, none but problems, as JSON, and with what the program does.
#[test]
fn messages_are_as_many_as_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let train = |more: &[&str]| {
        let out = dir.path().join("run");
        let args = ["train", DIGITS, "--set", "train.steps=30", "--out", text(&out), "--overwrite"];
        lockstep(&[&args[..], more].concat()).succeeded().stderr
    };
    assert!(train(&[]).contains("\nstep 30/30 loss "));
    assert_eq!(train(&["-q"]), "");
    let events = train(&["--log-json"]);
    let events: Vec<Value> = events.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let message = |event: &Value| event["message"].as_str().unwrap().to_owned();
    assert!(events.iter().any(|event| message(event).starts_with("step 30/30 loss ")));
    assert!(events.iter().all(|event| event["level"] == "INFO"), "{events:?}");
    let more = train(&["-v"]);
    assert!(more.contains("what=trace the step}") && more.contains("\nstep 30/30 loss "), "{more}");

    let failed = lockstep(&["train", "nothing.toml", "--log-json"]);
    let error: Value = serde_json::from_str(&failed.stderr).unwrap();
    assert_eq!((failed.code, &error["level"]), (Some(1), &"ERROR".into()));
    assert!(message(&error).starts_with("cannot read the configuration nothing.toml"));
    let wrong = Path::new("lockstep=loud");
    let failed = lockstep_with(&["config", DIGITS], &[("RUST_LOG", wrong)]);
    assert_eq!(failed.code, Some(1));
    assert!(failed.stderr.contains("RUST_LOG is no filter"), "{}", failed.stderr);
}
