//! `lockstep plan`: scaling by the cost model, without compiling anything.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{BINARY, FEATURES, MLP, config, lockstep};

#[test]
fn layers_that_are_cut_over_two_hosts_are_a_warning_with_their_time() {
    let dir = tempfile::tempdir().unwrap();
    let mlp = "name = \"mlp\"\nhidden = [2048, 2048]";
    let path = config(dir.path(), mlp, FEATURES, 32);
    let plan = |tensor: &str| {
        let target = ["--target", "gpu:h100:2x8", "--json"];
        let args = [&["plan", path.to_str().unwrap(), "--set", tensor], &target[..]].concat();
        let plan = lockstep(&args, &[]);
        assert_eq!(plan.code, Some(0), "{}", plan.stderr);
        let is_warning = |line: &&str| line.starts_with("warning: mesh.tensor");
        let warning = plan.stderr.lines().find(is_warning).map(str::to_owned);
        (warning, serde_json::from_str::<serde_json::Value>(&plan.stdout).unwrap())
    };
    assert_eq!(plan("mesh.tensor=8").0, None);
    let (found, plan) = plan("mesh.tensor=16");
    let found = found.unwrap();
    assert!(found.contains("mesh.tensor = 16 spans 2 hosts of gpu:h100:2x8"), "{found}");
    let (ms, _) = found.split_once("predicted to take ").unwrap().1.split_once(" ms").unwrap();
    let all_ms = plan["rows"][0]["communication_ms"].as_f64().unwrap();
    assert!((0.3 * all_ms..=all_ms + 0.01).contains(&ms.parse().unwrap()), "{found}: {plan}");
}

#[test]
fn a_plan_ranges_from_one_device_to_the_whole_target() {
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), MLP, FEATURES, 32);
    let args = ["plan", path.to_str().unwrap(), "--target", "gpu:h100:6x8"];
    let json = lockstep(&[&args[..], &["--json"]].concat(), &[]);
    assert_eq!(json.code, Some(0), "{}", json.stderr);
    let plan: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let rows = plan["rows"].as_array().unwrap();
    let sizes: Vec<_> = rows.iter().map(|row| row["num_devices"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [1, 2, 4, 8, 16, 32, 48]);
    for row in rows {
        let of = |key: &str| row[key].as_f64().unwrap();
        assert!(
            (of("step_ms") - of("compute_ms") - of("exposed_ms") - of("jitter_ms")).abs() < 1e-9
        );
        assert!(of("exposed_ms") <= of("communication_ms") + 1e-9, "{row}");
        assert!((of("examples_per_sec") - 1e3 * of("global_batch") / of("step_ms")).abs() < 1.0);
        assert!(of("efficiency") <= 1.0 + 1e-9);
    }
    assert_eq!(rows[0]["communication_ms"], 0.0);
    // 32 examples are little computation for 56 MiB of gradients, so the network between hosts has
    // an effect.
    assert!(rows[6]["efficiency"].as_f64() < rows[3]["efficiency"].as_f64(), "{plan}");

    let csv = lockstep(&[&args[..], &["--csv"]].concat(), &[]).stdout;
    assert!(csv.starts_with("num_devices,global_batch,") && csv.lines().count() == 8, "{csv}");
    let algorithms = plan["all_reduce"].as_array().unwrap();
    assert_eq!((algorithms.len(), &algorithms[0]["bytes"]), (23, &1024.into()));
    // Trees have the fewest hops; rings use the links within and between hosts at the same time.
    let of = |at: usize, key: &str| algorithms[at][key].as_f64().unwrap();
    assert!(of(0, "tree_ms") < of(0, "ring_ms") && of(22, "ring_ms") < of(22, "tree_ms"));
    let winners: Vec<_> = plan["algorithms"].as_array().unwrap().iter().map(|at| &at[1]).collect();
    assert_eq!(winners, ["tree", "ring"]);

    let figure = dir.path().join("plan.svg");
    let drawn = lockstep(&[&args[..], &["--plot", figure.to_str().unwrap()]].concat(), &[]);
    assert_eq!(drawn.code, Some(0), "{}", drawn.stderr);
    let svg = std::fs::read_to_string(&figure).unwrap();
    for label in ["waited for", "devices", "hierarchical", "1 KiB", "bytes of an all_reduce"] {
        assert!(svg.contains(label), "{label}");
    }
    let table = lockstep(&args, &[]).stdout;
    assert!(table.contains("efficiency") && table.contains("devices on the step waits"), "{table}");
}

/// Every `lockstep plan` in docs.
#[test]
fn the_plans_of_the_docs_work_for_the_whole_target() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut num_commands = 0;
    for page in fs::read_dir(root.join("docs")).unwrap() {
        let page = page.unwrap().path();
        let Some("md") = page.extension().and_then(|end| end.to_str()) else { continue };
        let text = fs::read_to_string(&page).unwrap();
        for line in text.lines().filter_map(|line| line.strip_prefix("lockstep plan ")) {
            let words = line.split_whitespace().take_while(|word| !word.starts_with('#'));
            let args: Vec<_> = ["plan"].into_iter().chain(words).collect();
            let done = Command::new(BINARY).current_dir(root).args(&args).output().unwrap();
            let [stdout, stderr] =
                [&done.stdout, &done.stderr].map(|out| String::from_utf8_lossy(out));
            assert!(done.status.success(), "{}: {args:?}: {stderr}", page.display());
            assert!(!stdout.contains("there are steps for up to"), "{args:?}: {stdout}");
            num_commands += 1;
        }
    }
    assert!(num_commands >= 2, "{num_commands}");
}

/// A batch of 32 does not divide over all devices.
#[test]
fn a_plan_ends_at_the_largest_size_that_works_and_says_why() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/gpt-bytes.toml");
    for (target, num_devices) in [("tpu:v5e:16x16", 256), ("gpu:h100:64x8", 512)] {
        let args = ["plan", example, "--target", target];
        let done = lockstep(&args, &[]);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        let says = format!(
            "there are steps for up to 32 of {num_devices} devices: train.global_batch = 32"
        );
        assert!(done.stdout.contains(&says), "{}", done.stdout);
        assert!(done.stdout.contains("an upper bound") && done.stdout.contains("on a device"));
        assert!(!done.stdout.contains("0 of 3 MB"), "{}", done.stdout);
        let json = lockstep(&[&args[..], &["--json"]].concat(), &[]).stdout;
        let plan: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(plan["rows"].as_array().unwrap().last().unwrap()["num_devices"], 32);
        let grows = ["--set", "train.batch_per_replica=1", "--json"];
        let grown = lockstep(&[&args[..], &grows].concat(), &[]);
        let plan: serde_json::Value = serde_json::from_str(&grown.stdout).unwrap();
        assert!(plan["stops"].is_null(), "{plan}");
        assert_eq!(plan["rows"].as_array().unwrap().last().unwrap()["num_devices"], num_devices);
    }
    let none = [
        "plan",
        example,
        "--target",
        "tpu:v5e:4x4",
        "--set",
        "mesh.fsdp=16",
        "--set",
        "train.global_batch=24",
    ];
    let done = lockstep(&none, &[]);
    assert!(done.code == Some(1) && done.stderr.contains("24 does not divide"), "{}", done.stderr);
}

/// Sequences are counted in tokens too, and a batch beyond all published recipes is named.
#[test]
fn a_plan_says_how_many_tokens_a_step_has() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/");
    let plan = |example: &str, more: &[&str]| {
        let path = format!("{root}{example}");
        let done = lockstep(&[&["plan", &path, "--target"][..], more].concat(), &[]);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        done.stdout
    };
    let large = ["gpu:h100:128x8", "--set", "train.batch_per_replica=128"];
    let json = plan("gpt2-124m.toml", &[&large[..], &["--json"]].concat());
    let found: serde_json::Value = serde_json::from_str(&json).unwrap();
    let rows = found["rows"].as_array().unwrap();
    let last = rows.last().unwrap();
    assert_eq!(
        (&last["global_batch"], &last["num_tokens"]),
        (&131_072.into(), &134_217_728.into())
    );
    assert_eq!(rows[0]["num_tokens"], 131_072);
    let csv = plan("gpt2-124m.toml", &[&large[..], &["--csv"]].concat());
    assert!(csv.starts_with("num_devices,global_batch,num_tokens,"), "{csv}");
    assert!(csv.lines().last().unwrap().starts_with("1024,131072,134217728,"), "{csv}");
    let table = plan("gpt2-124m.toml", &large);
    assert!(table.contains("tokens") && table.contains("134217728"), "{table}");
    // One line, which names the first size whose batch is too large.
    let first = rows.iter().find(|row| {
        let largest = found["batch"].as_str().unwrap().split("more than ").nth(1).unwrap();
        let largest: u64 = largest.split_whitespace().next().unwrap().parse().unwrap();
        row["num_tokens"].as_u64().unwrap() > largest
    });
    let of_first = |key: &str| first.unwrap()[key].as_u64().unwrap();
    let (devices, tokens) = (of_first("num_devices"), of_first("num_tokens"));
    let says =
        format!("batch: with {devices} devices a step has {tokens} tokens; no published recipe");
    assert_eq!(table.lines().filter(|line| line.starts_with(&says)).count(), 1, "{table}");

    // The batch that the example is for is none, and images have no tokens.
    let usual = plan("gpt2-124m.toml", &["gpu:h100:1x8"]);
    assert!(usual.contains("tokens") && !usual.contains("no published recipe"), "{usual}");
    let images = plan("resnet50-imagenet.toml", &["gpu:h100:4x8", "--csv"]);
    assert!(images.starts_with("num_devices,global_batch,compute_ms,"), "{images}");
}

/// The directory of a run of two processes, with steps of 10 ms. In every tenth, the batch of the
/// second is late by 20 ms, and its other steps take `slow_ms`.
fn recorded_run(dir: &Path, slow_ms: u64) -> String {
    const LINES: u64 = 20;
    let run = dir.join(format!("run-{slow_ms}"));
    fs::create_dir(&run).unwrap();
    let summary = "{\"status\":\"done\",\"global_batch\":64,\"num_late_shards\":0,\
                   \"first_step_secs\":3.0,\"checkpoint_wait_secs\":4.0,\"num_checkpoints\":2,\
                   \"generation_starts\":[";
    let start = |after: &str, first_step_secs: f64| {
        format!(
            "{{\"generation\":1,\"after\":\"{after}\",\"num_hosts\":2,\"num_processes\":2,\
             \"step\":0,\"agree_secs\":1.0,\"join_secs\":0.5,\"plugin_secs\":0.25,\
             \"programs_secs\":0.25,\"state_from\":\"memory\",\"state_secs\":0.0,\
             \"first_step_secs\":{first_step_secs}}}"
        )
    };
    let starts = [start("start", 90.0), start("failure", 0.25), start("hosts", 50.0)].join(",");
    fs::write(run.join("summary.json"), format!("{summary}{starts}]}}")).unwrap();
    let step = |step: u64| {
        let ms = if step == 0 { 5000 } else { slow_ms + if step % 10 == 9 { 21 } else { 1 } };
        format!("{{\"step\":{step},\"loss\":1.0,\"step_ms\":{ms}}}\n")
    };
    fs::write(run.join("metrics.jsonl"), (0..10 * LINES).map(step).collect::<String>()).unwrap();
    let line = |line: u64| {
        let usual = if line == 0 { 8 } else { 9 };
        let late = slow_ms + 20;
        let steps = format!("[[[{},10,0]],[[{usual},{slow_ms},0],[1,{late},20]]]", usual + 1);
        let last = 10 * line + 9;
        let means = format!("[10,{}]", slow_ms + 2);
        format!("{{\"step\":{last},\"num_steps\":10,\"own_ms\":{means},\"spread\":{steps}}}\n")
    };
    let lines = (0..LINES).map(line).collect::<String>();
    // What a killed process leaves is none.
    fs::write(run.join("processes.jsonl"), lines + "{\"step\":2").unwrap();
    run.to_str().unwrap().to_owned()
}

/// The steps of a run are resampled: for more processes of its kind, and on a target.
#[test]
fn a_plan_takes_slow_steps_from_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let run = recorded_run(dir.path(), 10);
    let alone = ["plan", "--stragglers", &run, "--json"];
    let json = lockstep(&alone, &[]);
    assert_eq!(json.code, Some(0), "{}", json.stderr);
    assert_eq!(json.stdout, lockstep(&alone, &[]).stdout);
    let found: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let of = |row: &serde_json::Value, key: &str| row[key].as_f64().unwrap();
    let rows = found["rows"].as_array().unwrap();
    // Nobody is 1.3 times as slow on average: 12 of 10 ms, and 1 in each step.
    assert_eq!(found["slow_processes"], serde_json::json!([]));
    assert_eq!(rows.len(), 8);
    // Of two processes as in the run; of sixteen, eight are late in a tenth of the steps.
    assert!((of(&rows[0], "step_ms") - of(&found, "recorded_step_ms")).abs() < 1e-9, "{found}");
    assert!((of(&found, "recorded_step_ms") - 13.0).abs() < 0.1, "{found}");
    let expected = 11.0 + 20.0 * (1.0 - 0.9f64.powi(8));
    assert!((of(&rows[6], "step_ms") / expected - 1.0).abs() < 0.03, "{found} {expected}");
    assert!((of(&rows[6], "examples_per_sec") - 64e3 * 8.0 / of(&rows[6], "step_ms")).abs() < 1e-6);
    // A batch that is late by 20 ms is skipped in one step, after half of one, and 3.5 ms are left.
    let events = 2.0 * of(&rows[1], "skipped");
    assert!((0.08..0.11).contains(&events), "{found}");
    assert!((of(&rows[1], "step_ms") - (11.0 + 9.0 * events)).abs() < 0.2, "{found}");
    assert_eq!(found["best"], "skip");

    // One that is always slow is replaced: as many examples with one process more.
    let slow = recorded_run(dir.path(), 20);
    let json = lockstep(&["plan", "--stragglers", &slow, "--json"], &[]);
    let found: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(found["slow_processes"], serde_json::json!([1]), "{}", json.stderr);
    let replaced = &found["rows"][2];
    assert_eq!((&replaced["remedy"], &replaced["num_spares"]), (&"replace".into(), &1.into()));
    assert!((of(replaced, "step_ms") - 11.0).abs() < 0.2, "{found}");

    // On a target the step is that of the plan, with a process on each of its hosts.
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/gpt-bytes.toml");
    let target = ["plan", example, "--target", "gpu:h100:4x8", "--stragglers", &run];
    let json = lockstep(&[&target[..], &["--json"]].concat(), &[]);
    let found: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    let step = found["rows"].as_array().unwrap().last().unwrap();
    let waiting = &found["stragglers"]["rows"][0];
    let expected = of(step, "compute_ms") + of(step, "exposed_ms") + 20.0 * (1.0 - 0.81);
    assert_eq!(waiting["num_processes"], 4);
    assert!((of(waiting, "step_ms") / expected - 1.0).abs() < 0.05, "{waiting} {expected}");
    let table = lockstep(&target, &[]).stdout;
    assert!(table.contains("resampled from a run of 2 processes"), "{table}");
}

#[test]
fn what_is_no_recording_of_slow_steps_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let run = recorded_run(dir.path(), 10);
    let refused = |args: &[&str], code: i32, expected: &str| {
        let done = lockstep(&[&["plan"], args].concat(), &[]);
        assert_eq!(done.code, Some(code), "{args:?}: {} {}", done.stdout, done.stderr);
        assert!(done.stderr.contains(expected), "{expected}: {}", done.stderr);
    };
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/gpt-bytes.toml");
    refused(&[], 2, "--target");
    refused(&[example], 2, "--target");
    refused(&["--stragglers", &run, "--target", "gpu:h100:4x8"], 1, "both CONFIG and --target");
    refused(&["--stragglers", &run, example], 1, "both CONFIG and --target");
    refused(&["--stragglers", &run, "--mtbf", "50000"], 1, "--mtbf is for a plan");
    refused(&["--stragglers", &run, "--set", "mesh.data=2"], 1, "name CONFIG and --target too");
    refused(&["--stragglers", dir.path().to_str().unwrap()], 1, "lockstep train --out");
    let write = |name: &str, text: &str| fs::write(Path::new(&run).join(name), text).unwrap();
    let lines = fs::read_to_string(Path::new(&run).join("processes.jsonl")).unwrap();
    write("processes.jsonl", lines.lines().next().unwrap());
    refused(&["--stragglers", &run], 1, "the times of 9 steps, without the first: 16 or more");
    write("processes.jsonl", "{\"step\":9,\"num_steps\":10,\"own_ms\":[10,14]}\n");
    refused(&["--stragglers", &run], 1, "train again with this version");
    write("processes.jsonl", &lines.replace("[1,30,20]", "[1,-30,20]"));
    refused(&["--stragglers", &run], 1, "has times that are none");
    write("processes.jsonl", &lines);
    let summary = fs::read_to_string(Path::new(&run).join("summary.json")).unwrap();
    write("summary.json", &summary.replace("late_shards\":0", "late_shards\":3"));
    refused(&["--stragglers", &run], 1, "data.late = \"wait\"");
    fs::remove_file(Path::new(&run).join("processes.jsonl")).unwrap();
    refused(&["--stragglers", &run], 1, "lockstep launch --num-processes 2");
}

/// The price of spares, and what is lost without them: by the recoveries of a run.
#[test]
fn a_plan_says_what_spares_cost_and_bring() {
    let dir = tempfile::tempdir().unwrap();
    let run = recorded_run(dir.path(), 10);
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/gpt-bytes.toml");
    let args = ["plan", example, "--target", "gpu:h100:4x8", "--mtbf", "5000", "--spares", "3"];
    let plan = |more: &[&str]| {
        let done = lockstep(&[&args[..], more].concat(), &[]);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        done.stdout
    };
    let found: serde_json::Value = serde_json::from_str(&plan(&["--run", &run, "--json"])).unwrap();
    // A recovery took 1 + 0.5 + 0.25 + 0.25 + 0.25 s, and a checkpoint stalled for 2 s.
    let words = found["failures"].as_str().unwrap();
    for expected in ["2.2 s (measured in", "2.000 s (measured in", "the median of 1 recovery"] {
        assert!(words.contains(expected), "{expected}: {words}");
    }
    let spares = &found["spares"];
    assert_eq!((&spares["asked"], &spares["repair_hours"]), (&3.into(), &24.0.into()));
    // 32 devices, each once in 5,000 h, a day of repair.
    let of = |row: &serde_json::Value, key: &str| row[key].as_f64().unwrap();
    let m: f64 = 32.0 * 24.0 / 5000.0;
    assert!((of(spares, "mean_in_repair") - m).abs() < 1e-9, "{spares}");
    let rows = spares["rows"].as_array().unwrap();
    let asked = rows.iter().find(|row| row["num_spares"] == 3).unwrap();
    assert_eq!(asked["idle_devices"], 24);
    let enough = (-m).exp() * (1.0 + m + m * m / 2.0 + m * m * m / 6.0);
    assert!((of(asked, "available") - enough).abs() < 1e-9, "{asked}");
    assert!(of(&rows[0], "lost_hours") > of(asked, "lost_hours"), "{spares}");
    assert!(of(&rows[0], "elastic_lost_hours") < of(&rows[0], "lost_hours"), "{spares}");
    let table = plan(&["--repair-hours", "48"]);
    for expected in ["a repair in 48 h", "3 spares: the price is 24 devices", "an assumption"] {
        assert!(table.contains(expected), "{expected}: {table}");
    }
    for (more, expected) in [
        (["--spares", "1"], "--mtbf"),
        (["--mtbf=1", "--spares=0"], "0 is not in 1..=16384"),
        (["--mtbf=1", "--spares=x"], "invalid digit"),
    ] {
        let done = lockstep(&[&args[..4], &more].concat(), &[]);
        assert!(done.code == Some(2) && done.stderr.contains(expected), "{}", done.stderr);
    }
}

/// Networks, changes of them and failures are read, and refused with what is allowed.
#[test]
fn a_plan_takes_another_network_and_failures() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/gpt-bytes.toml");
    let args = ["plan", example, "--target", "gpu:h100:4x8"];
    let plan = |more: &[&str]| lockstep(&[&args[..], more].concat(), &[]);
    let done = plan(&[
        "--network",
        "ib-hdr:oversubscription=2",
        "--what-if",
        "alpha=+1ms",
        "--mtbf",
        "50000",
    ]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    for expected in
        ["ib-hdr:oversubscription=2, changed, 10.00 GB/s", "save each s", "goodput", "jitter ms"]
    {
        assert!(done.stdout.contains(expected), "{expected}: {}", done.stdout);
    }
    for (more, expected) in [
        (["--network", "token-ring"], "write one of ib-sdr"),
        (["--what-if", "alpha=20"], "is no change of a network"),
        (["--mtbf", "0"], "is no number from"),
        (["--save-secs", "5"], "--mtbf"),
    ] {
        let done = plan(&more);
        assert!(
            done.code == Some(2) && done.stderr.contains(expected),
            "{more:?}: {}",
            done.stderr
        );
    }
}

/// ResNet-20 on 32 GPUs has 4 examples on each, so that batch norm's groups of 32 lie on 8: 57
/// all_reduces, one after the other within a host.
#[test]
fn a_plan_counts_the_all_reduces_of_batch_statistics() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/resnet20-synthetic.toml");
    let row = |group: &str| {
        let set = format!("model.batch_norm_group={group}");
        let args = ["plan", example, "--target", "gpu:h100:4x8", "--set", &set, "--json"];
        let done = lockstep(&args, &[]);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        let plan: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
        let row = plan["rows"].as_array().unwrap().last().unwrap().clone();
        ["communication_ms", "exposed_ms"].map(|key| row[key].as_f64().unwrap())
    };
    let ([spanning, waited], [local, _]) = (row("32"), row("4"));
    // 6 hops of 3.4 us each are the least for 8 GPUs.
    let least = 57.0 * 6.0 * 3.4e-3;
    assert!(spanning - local > least && waited > least, "{spanning} {waited} {local}");
    assert!(spanning - local < 2.0 * least, "{spanning} {local}");
}

/// State that cannot fit is said to.
#[test]
fn a_plan_says_whether_the_state_fits() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/gpt2-124m.toml");
    let plan = |sets: &[&str]| {
        let args = ["plan", example, "--target", "tpu:v5e:4x4"];
        let done = lockstep(&[&args[..], sets].concat(), &[]);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        done.stdout
    };
    let whole = plan(&["--set", "model.preset=gpt2-1558m"]);
    assert!(
        whole.contains(
            "does not fit in the 15.75 GiB that a program has on a device, on 16 devices"
        ),
        "{whole}"
    );
    assert!(plan(&[]).contains("memory: the state takes up to"));
}

/// With 8 shards, a host holds the state once: gathers and scatters stay on NVLink, and only shards
/// cross the network.
#[test]
fn a_plan_of_sharded_state_grows_by_whole_groups() {
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), MLP, FEATURES, 32);
    let plan = |more: &[&str]| -> serde_json::Value {
        let args = ["plan", path.to_str().unwrap(), "--target", "gpu:h100:4x8", "--json"];
        let done = lockstep(&[&args[..], more].concat(), &[]);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        serde_json::from_str(&done.stdout).unwrap()
    };
    let (whole, sharded) = (plan(&[]), plan(&["--set", "mesh.fsdp=8"]));
    let rows = sharded["rows"].as_array().unwrap();
    let sizes: Vec<_> = rows.iter().map(|row| row["num_devices"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [8, 16, 32]);
    assert_eq!(sharded["mesh"], "mesh: data grows from 1 to 4, fsdp is 8");
    assert_eq!(whole["mesh"], "mesh: data grows from 1 to 32, fsdp is 1");
    for row in rows {
        let of = |key: &str| row[key].as_f64().unwrap();
        assert!(
            (of("step_ms") - of("compute_ms") - of("exposed_ms") - of("jitter_ms")).abs() < 1e-9,
            "{row}"
        );
        assert!(of("communication_ms") > 0.0, "{row}");
    }
    let last = |plan: &serde_json::Value, key: &str| {
        plan["rows"].as_array().unwrap().last().unwrap()[key].as_f64().unwrap()
    };
    let share = last(&sharded, "state_bytes") / last(&whole, "state_bytes");
    // Vectors stay whole.
    assert!((0.125..0.127).contains(&share), "{share}");
    // On one host, gather and scatter take as long as the all_reduce, whose halves they are.
    let on_a_host = whole["rows"][3]["communication_ms"].as_f64().unwrap();
    let gathers_too = rows[0]["communication_ms"].as_f64().unwrap();
    assert!((gathers_too / on_a_host - 1.0).abs() < 0.5, "{gathers_too} of {on_a_host}");
}
