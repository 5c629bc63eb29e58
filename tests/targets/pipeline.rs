//! Stages of a pipeline: what they send runs beside matmuls, and the compiled loops copy none of
//! the values that are kept.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{compile, config, lockstep};

/// Kept for 9 of 12 microbatches, which no other dim of the step is.
const SLOTS: &str = "[9,";
/// Ticks with both passes of 12 microbatches through 4 stages.
const STEADY_TICKS: u64 = 10;

/// A GPT of one block a stage, on data = 2 and pipeline = 4.
fn write_config(dir: &Path, width: usize) -> std::path::PathBuf {
    let model = format!(
        "name = \"gpt\"\nnum_layers = 4\nwidth = {width}\nnum_heads = 8\ncontext = 512\n\
         vocabulary = 4096"
    );
    let data = "source = \"synthetic_tokens\"\nvocab_size = 4096\ncontext = 512";
    config(dir, &model, data, 24)
}

const SETS: [&str; 6] = [
    "--set",
    "mesh.pipeline=4",
    "--set",
    "train.num_microbatches=12",
    "--set",
    "model.scan_layers=false",
];

fn check(target: &str, width: usize) {
    let dir = tempfile::tempdir().unwrap();
    let (path, dump) = (write_config(dir.path(), width), dir.path().join("dump"));
    let dump_to = ["--dump", dump.to_str().unwrap()];
    let (code, report) = compile(&path, target, &[&SETS[..], &dump_to].concat());
    assert_eq!(code, Some(0), "{target}: {report}");

    let pipeline = &report["pipeline"];
    for (key, expected) in
        [("num_stages", 4), ("num_microbatches", 12), ("num_ticks", 15), ("num_kept", 9)]
    {
        assert_eq!(pipeline[key], expected, "{key}: {pipeline}");
    }
    assert_eq!(pipeline["idle_fraction"].as_f64(), Some(0.2), "{pipeline}");
    let collectives = report["collectives"].as_array().unwrap();
    let of_stages = |c: &&Value| c["kind"] == "collective_permute";
    let permutes: Vec<_> = collectives.iter().filter(of_stages).collect();
    assert!(permutes.iter().all(|permute| permute["axes"] == serde_json::json!(["pipeline"])));
    // Rows to three stages and back, the result to the next, the gradient to the previous.
    let steady: Vec<_> = permutes.iter().filter(|c| c["count"] == STEADY_TICKS).collect();
    assert_eq!(steady.len(), 2 + 2 * 3, "{target}: {permutes:?}");
    for permute in steady {
        let is_hidden =
            permute["asynchronous"] == true && permute["overlapped_matmuls"].as_u64().unwrap() > 0;
        assert!(is_hidden, "{target}: {permute}");
    }
    let of = |key: &str| pipeline["sent"][key].as_f64().unwrap();
    assert_eq!(of("steady_overlapped_fraction"), 1.0, "{pipeline}");
    assert!(of("filling_overlapped_fraction") < 1.0 && of("overlapped_fraction") > 0.6);

    let optimized = fs::read_to_string(dump.join("optimized.txt")).unwrap();
    assert_eq!(copies_in_loops(&optimized), Vec::<&str>::new(), "{target}");
    check_plan(&path, target, &report);
}

/// Copies of all that is kept, in the bodies of loops and in what they call.
fn copies_in_loops(optimized: &str) -> Vec<&str> {
    let computations = optimized.split("\ncomputation ").skip(1);
    let bodies: HashMap<&str, &str> =
        computations.filter_map(|text| text.split_once(" {\n")).collect();
    let loops = optimized.lines().filter(|line| line.contains(" while("));
    let mut pending: Vec<&str> = loops.flat_map(called).collect();
    let (mut seen, mut copies, mut keeps) = (HashSet::new(), vec![], false);
    while let Some(name) = pending.pop() {
        let Some(body) = bodies.get(name).filter(|_| seen.insert(name)) else { continue };
        for line in body.lines() {
            pending.extend(called(line));
            let Some((ty, op)) = line.split_once(" = ").and_then(|(_, op)| op.split_once(' '))
            else {
                continue;
            };
            keeps |= ty.contains(SLOTS);
            let is_copy = op.starts_with("copy(") || op.starts_with("copy-start(");
            if is_copy && ty.contains(SLOTS) {
                copies.push(line);
            }
        }
    }
    assert!(keeps, "nothing is kept in loops");
    copies
}

/// The computations that an instruction calls.
fn called(line: &str) -> impl Iterator<Item = &str> {
    line.split(", calls ").skip(1).map(str::trim)
}

/// The traced graph predicts what the compiled schedule does.
fn check_plan(path: &Path, target: &str, report: &Value) {
    let args = [&["plan", path.to_str().unwrap(), "--target", target], &SETS[..]].concat();
    let json = lockstep(&[&args[..], &["--json"]].concat(), &[]);
    assert_eq!(json.code, Some(0), "{}", json.stderr);
    let plan: Value = serde_json::from_str(&json.stdout).unwrap();
    let step_ms = plan["rows"].as_array().unwrap().last().unwrap()["step_ms"].as_f64().unwrap();
    let ratio = step_ms / report["predicted_step_ms"].as_f64().unwrap();
    println!("{target}: plan over compile {ratio:.3}");
    assert!((0.85..1.15).contains(&ratio), "{target}: {ratio}");
    assert_eq!(plan["pipeline"]["num_kept"], 9, "{}", plan["pipeline"]);
    let table = lockstep(&args, &[]).stdout;
    for expected in [
        "pipeline: 12 microbatches through 4 stages: 15 ticks, idle 20 % of them, 9 microbatches \
         kept\n",
        "\nstage 0   F0 ",
    ] {
        assert!(table.contains(expected), "{expected}: {table}");
    }
    assert!(table.lines().filter(|line| line.starts_with("stage ")).all(|line| line.len() <= 100));
}

#[test]
fn what_stages_send_is_beside_matmuls_on_h100() {
    check("gpu:h100:1x8", 512);
}

#[test]
fn what_stages_send_is_beside_matmuls_on_v5p() {
    check("tpu:v5p:2x2x2", 1024);
}
