//! What `lockstep plan` says of the program's collectives, of regions, of compressed gradients and
//! of what failures cost.

use std::collections::BTreeMap;
use std::path::Path;

use hlo::{Mesh, communication};
use lockstep::config::Config;
use lockstep::data;
use lockstep::pjrt::Platform;
use lockstep::step;
use lockstep::train::Run;
use serde_json::Value;

use super::{FEATURES, MLP, config, lockstep};

fn plan(path: &Path, target: &str, more: &[&str]) -> Value {
    let path = path.to_str().unwrap();
    let done = lockstep(&[&["plan", path, "--target", target, "--json"], more].concat(), &[]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    serde_json::from_str(&done.stdout).unwrap()
}

fn last_row(plan: &Value) -> Value {
    plan["rows"].as_array().unwrap().last().unwrap().clone()
}

/// Calls and sent bytes, by kind and replicas in a group.
type Counts = BTreeMap<(String, u64), (u64, u64, u64)>;

/// Those of the program that `train` runs on 8 GPUs, 4 a host, and how often its text has each
/// kind.
fn in_program(
    path: &Path,
    sets: &[&str],
    replicas_per_host: usize,
) -> (Counts, BTreeMap<String, u64>) {
    let sets = [sets, &["device.backend=cuda", "mesh.data=8"]].concat();
    let sets: Vec<_> = sets.into_iter().map(str::to_owned).collect();
    let config = Config::load(path, &sets).unwrap();
    let splits = data::open(&config).unwrap();
    let model = config.model.build(splits.train.num_outputs());
    let mut run = Run::new(&config, &splits, Mesh::data(8), Platform::Cuda).unwrap();
    run.lowering.replicas_per_host = replicas_per_host;
    let graph = step::trace_step(&run.spec(&*model).declare().unwrap()).unwrap();
    let lowered = run.lowering.lower(graph, "step");
    let (mut counts, mut in_text) = (Counts::new(), BTreeMap::new());
    for one in communication(&lowered.graph).iter().filter(|one| one.group_size > 1) {
        let key = (one.kind.to_owned(), one.group_size as u64);
        let (calls, bytes, sent) = counts.entry(key).or_default();
        *calls += one.count;
        *bytes += one.count * one.bytes;
        *sent += one.total_bytes_on_wire();
        let text = &lowered.program.text;
        let calls = text.matches(&format!("\"stablehlo.{}\"", one.kind)).count() as u64;
        in_text.insert(one.kind.to_owned(), calls);
    }
    (counts, in_text)
}

/// Buckets, algorithms and a narrow dtype change what the program sends, and what `plan` says of it
/// alike.
#[test]
fn a_plan_has_the_messages_and_bytes_of_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), "name = \"mlp\"\nhidden = [512, 512]", FEATURES, 8);
    let cases: [(&[&str], usize); 10] = [
        (&[], 4),
        (&["parallel.bucket_bytes=0"], 4),
        (&["parallel.bucket_bytes=1000000000"], 4),
        (&["parallel.all_reduce=ring"], 4),
        (&["parallel.all_reduce=ring", "parallel.bucket_bytes=1000000000"], 4),
        (&["parallel.all_reduce=tree"], 4),
        (&["parallel.all_reduce=hierarchical"], 4),
        (&["parallel.all_reduce=hierarchical", "parallel.replicas_per_host=2"], 2),
        (&["parallel.reduce_dtype=bf16"], 4),
        (&["train.num_microbatches=2", "parallel.all_reduce=tree"], 4),
    ];
    let mut num_messages = vec![];
    for (sets, replicas_per_host) in cases {
        let args: Vec<_> = sets.iter().flat_map(|set| ["--set", set]).collect();
        let row = last_row(&plan(&path, "gpu:h100:2x4", &args));
        let mut found = Counts::new();
        for one in row["collectives"].as_array().unwrap() {
            let of = |key: &str| one[key].as_u64().unwrap();
            let key = (one["kind"].as_str().unwrap().to_owned(), of("group_size"));
            let sum = found.entry(key).or_default();
            *sum = (sum.0 + of("count"), sum.1 + of("bytes"), sum.2 + of("sent_bytes"));
        }
        let (expected, in_text) = in_program(&path, sets, replicas_per_host);
        assert_eq!(found, expected, "{sets:?}");
        for (kind, calls) in in_text {
            let of_kind = found.iter().filter(|((of, _), _)| *of == kind);
            assert_eq!(of_kind.map(|(_, sum)| sum.0).sum::<u64>(), calls, "{sets:?} {kind}");
        }
        num_messages.push(found.values().map(|sum| sum.0).sum::<u64>());
    }
    // The cases differ: one message for each parameter, one for all, 14 for each that is a ring.
    let [as_is, apart, in_one, rings, one_ring, ..] = num_messages[..] else { panic!() };
    assert_eq!(as_is, apart);
    assert!(in_one < apart && one_ring < rings && rings > 10 * in_one, "{num_messages:?}");
}

/// Buckets change the prediction, and advice about them is what it becomes with them on the whole
/// target.
#[test]
fn advice_about_buckets_is_about_a_better_prediction() {
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), MLP, FEATURES, 256);
    let with = |bytes: &str, algorithm: &str| {
        let sets = ["bucket_bytes", "all_reduce"].into_iter().zip([bytes, algorithm]);
        let sets: Vec<_> = sets.map(|(key, value)| format!("parallel.{key}={value}")).collect();
        plan(&path, "gpu:h100:4x8", &["--set", &sets[0], "--set", &sets[1]])
    };
    let waits = |plan: &Value| format!("{:.2}", last_row(plan)["exposed_ms"].as_f64().unwrap());
    // A ring for each parameter is slow, and so is one all_reduce that nothing hides. The engine's
    // own are combined by the compiler.
    for (bytes, algorithm, is_advised) in
        [("0", "ring", true), ("1000000000", "direct", true), ("0", "direct", false)]
    {
        let now = with(bytes, algorithm);
        let finding = now["finding"].as_str().unwrap();
        let Some((_, advised)) = finding.split_once("; on 32 devices it is predicted to wait ")
        else {
            assert!(!is_advised && !finding.contains("bucket"), "{finding}");
            continue;
        };
        let (times, other) = advised.split_once(" with parallel.bucket_bytes=").unwrap();
        let with_other = waits(&with(other, algorithm));
        assert_eq!(times, format!("{with_other} ms instead of {}", waits(&now)), "{finding}");
        assert!(is_advised && other != bytes, "{finding}");
    }
}

/// 60 ms between two regions: a step pays for what crosses, and nothing within one.
#[test]
fn only_what_crosses_regions_pays_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), MLP, FEATURES, 32);
    let rows = |change: &[&str]| plan(&path, "gpu:h100:4x8", change)["rows"].clone();
    let [now, far, everywhere] = [
        rows(&[]),
        rows(&["--what-if", "alpha:region=+60ms"]),
        rows(&["--what-if", "alpha=+60ms"]),
    ];
    let ms = |rows: &Value, at: usize| rows[at]["communication_ms"].as_f64().unwrap();
    let whole = now.as_array().unwrap().len() - 1;
    // Up to two of the four hosts are in the first region.
    for at in 0..whole {
        assert_eq!(ms(&far, at), ms(&now, at));
    }
    let [more, much_more] = [&far, &everywhere].map(|rows| ms(rows, whole) - ms(&now, whole));
    assert!((120.0..500.0).contains(&more) && much_more > 1.5 * more, "{more} {much_more}");
    let refused = |change: &str| {
        let path = path.to_str().unwrap();
        let args = ["plan", path, "--target", "gpu:h100:1x8", "--what-if", change];
        lockstep(&args, &[])
    };
    let done = refused("alpha:region=+60ms");
    assert!(done.stderr.contains("has 1 host, too few for 2 regions"), "{}", done.stderr);
    let done = refused("encode=1ms/GB");
    assert!(done.code == Some(2) && done.stderr.contains("write r too"), "{}", done.stderr);
}

/// A fourth of the bytes takes a fourth of their time, and encoding is arithmetic.
#[test]
fn compressed_gradients_take_less_time_and_encoding_takes_some() {
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), MLP, FEATURES, 32);
    let row = |change: &[&str]| {
        let network = ["--network", "ethernet-25:devices_per_port=8"];
        last_row(&plan(&path, "gpu:h100:4x8", &[&network[..], change].concat()))
    };
    let [now, fewer, encoded] =
        [row(&[]), row(&["--what-if", "r=4"]), row(&["--what-if", "r=4,encode=30ms/GB"])];
    let of = |row: &Value, key: &str| row[key].as_f64().unwrap();
    let ratio = of(&fewer, "communication_ms") / of(&now, "communication_ms");
    assert!((0.25..0.5).contains(&ratio), "{ratio}");
    assert_eq!(of(&fewer, "compute_ms"), of(&now, "compute_ms"));
    let more = of(&encoded, "compute_ms") - of(&fewer, "compute_ms");
    let expected = 30.0 * of(&now, "all_reduced_bytes") / 1e9;
    assert!((more / expected - 1.0).abs() < 0.05, "{more} {expected}");
}

/// What failures cost is a run's, or said to be assumed; spares and dead links are counted.
#[test]
fn failures_cost_what_a_run_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    std::fs::create_dir(&run).unwrap();
    let write = |summary: &str| std::fs::write(run.join("summary.json"), summary).unwrap();
    write(
        "{\"num_checkpoints\": 10, \"checkpoint_wait_secs\": 1.4, \"first_step_secs\": 3.0, \
         \"resumed_from\": \"checkpoints/step-40\"}",
    );
    let dir = tempfile::tempdir().unwrap();
    let path = config(dir.path(), MLP, FEATURES, 32);
    let with = |more: &[&str]| {
        let args = ["plan", path.to_str().unwrap(), "--target", "gpu:h100:4x8", "--mtbf", "5000"];
        lockstep(&[&args[..], more].concat(), &[])
    };
    let assumed = with(&[]).stdout;
    assert!(assumed.contains("10.000 s (an assumption)"), "{assumed}");
    assert!(assumed.contains("300.0 s (an assumption); --run DIR"), "{assumed}");
    assert!(
        assumed.contains("weak scaling: the batch grows with the devices, 32 examples a device"),
        "{assumed}"
    );
    let from = run.to_str().unwrap();
    let measured =
        with(&["--run", from, "--repair-hours", "24", "--what-if", "reroute=10s"]).stdout;
    for expected in [
        "stalls the run for 0.140 s (measured in ",
        "takes 3.0 s (measured in ",
        "a failure is noticed",
        "spares of 4 hosts",
        "a dead link, rerouted in 10 s",
    ] {
        assert!(measured.contains(expected), "{expected}: {measured}");
    }
    let given = with(&["--run", from, "--save-secs", "2"]).stdout;
    assert!(given.contains("2.000 s (as given)") && given.contains("3.0 s (measured"), "{given}");
    let stalled = |time: &str| {
        let change = format!("reroute={time},link_mtbf=50000h");
        let done = with(&["--what-if", &change, "--json"]);
        let plan: Value = serde_json::from_str(&done.stdout).unwrap();
        (plan["dead_link"]["steps"].as_f64().unwrap(), plan["dead_link"]["lost"].as_f64().unwrap())
    };
    let (fast, slow) = (stalled("10us"), stalled("10s"));
    assert!(fast.0 < 1.1 && slow.0 > 100.0 && (slow.1 / fast.1 / 1e6 - 1.0).abs() < 0.01);
    write("{\"num_checkpoints\": 0, \"checkpoint_wait_secs\": 0.0, \"first_step_secs\": 3.0}");
    let none = with(&["--run", from]);
    assert!(none.code == Some(1) && none.stderr.contains("give --save-secs"), "{}", none.stderr);
    let none = with(&["--run", dir.path().to_str().unwrap()]);
    assert!(none.stderr.contains("not the directory of a run"), "{}", none.stderr);
}
