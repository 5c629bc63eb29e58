//! What `lockstep plan` says of the program's collectives, of regions, of compressed gradients and of
//! what failures cost.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hlo::{Mesh, communication};
use lockstep::config::Config;
use lockstep::data;
use lockstep::pjrt::Platform;
use lockstep::step;
use lockstep::train::Run;
use serde_json::Value;

use super::{FEATURES, config, lockstep};

fn gpt(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

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
fn in_program(path: &Path, sets: &[String]) -> (Counts, BTreeMap<String, u64>) {
    let sets = [sets, &["device.backend=cuda".to_owned(), "mesh.data=8".to_owned()]].concat();
    let config = Config::load(path, &sets).unwrap();
    let splits = data::open(&config).unwrap();
    let model = config.model.build(splits.train.num_outputs());
    let mut run = Run::new(&config, &splits, Mesh::data(8), Platform::Cuda).unwrap();
    run.lowering.replicas_per_host = 4;
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
    let mut seen = vec![];
    for sets in [
        &[][..],
        &["parallel.bucket_bytes=0"],
        &["parallel.bucket_bytes=1000000000"],
        &["parallel.all_reduce=ring"],
        &["parallel.all_reduce=ring", "parallel.bucket_bytes=1000000000"],
        &["parallel.all_reduce=tree"],
        &["parallel.all_reduce=hierarchical"],
        &["parallel.all_reduce=hierarchical", "parallel.replicas_per_host=2"],
        &["parallel.reduce_dtype=bf16"],
        &["train.num_microbatches=2", "parallel.all_reduce=tree"],
    ] {
        let mut sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
        let args: Vec<_> = sets.iter().flat_map(|set| ["--set", set]).collect();
        let row = last_row(&plan(&path, "gpu:h100:2x4", &args));
        if let Some(per_host) = sets.iter_mut().find(|set| set.contains("per_host")) {
            // `in_program` sets what the target would.
            per_host.clear();
        }
        let mut found = Counts::new();
        for one in row["collectives"].as_array().unwrap() {
            let of = |key: &str| one[key].as_u64().unwrap();
            let key = (one["kind"].as_str().unwrap().to_owned(), of("group_size"));
            let sum = found.entry(key).or_default();
            *sum = (sum.0 + of("count"), sum.1 + of("bytes"), sum.2 + of("sent_bytes"));
        }
        seen.push((sets, found, row));
    }
    for (sets, found, row) in &seen {
        let (expected, in_text) = in_program(&path, sets);
        assert_eq!(*found, expected, "{sets:?}");
        for (kind, calls) in in_text {
            let counted: u64 =
                found.iter().filter(|((of, _), _)| *of == kind).map(|(_, sum)| sum.0).sum();
            assert_eq!(counted, calls, "{sets:?} {kind}");
        }
        assert!(row["step_ms"].as_f64().unwrap() > 0.0);
    }
}
