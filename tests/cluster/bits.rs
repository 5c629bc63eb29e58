//! However many processes share the replicas, a run computes the same bits.

use std::fs;
use std::path::{Path, PathBuf};

use super::{CARGO_DIR, DIGITS, assert_same_run, launch, metrics, run, summary, text, train, turn};

/// Runs of one process with all replicas, of two and of four.
fn compare(dir: &Path, name: &str, config: &str, sets: &[&str], numbers: &[usize]) {
    let out = |processes: usize| dir.join(format!("{name}.{processes}"));
    let alone = [sets, &["parallel.host_collectives=true"]].concat();
    run(dir, &train(config, &alone, &["--out", text(&out(1))])).succeeded();
    for &processes in numbers {
        let args = train(config, sets, &["--out", text(&out(processes))]);
        run(dir, &launch(processes, &[], &args)).succeeded();
        assert_eq!(summary(&out(processes))["num_processes"], processes, "{name}");
        assert_same_run(&out(1), &out(processes));
        let waits = metrics(&out(processes));
        let waits: Vec<_> = waits.iter().map(|line| line["collective_wait_ms"].as_f64()).collect();
        let total: f64 = waits.iter().map(|wait| wait.unwrap()).sum();
        let told = summary(&out(processes))["collective_wait_secs"].as_f64().unwrap();
        assert!(total > 0.0 && (told / (total / 1e3) - 1.0).abs() < 1e-6, "{told} {waits:?}");
    }
}

#[test]
fn digits_on_four_replicas() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let sets = ["train.epochs=2", "train.eval_every=20", "model.dropout=0.1"];
    compare(dir.path(), "digits", DIGITS, &sets, &[2, 4]);
}

/// Between outer steps no process waits for another.
#[test]
fn digits_with_local_steps() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let sets = ["mesh.data=4", "train.steps=30", "sync.every=5", "train.eval_every=7"];
    compare(dir.path(), "local", DIGITS, &sets, &[2, 4]);
    let lines = metrics(&dir.path().join("local.4"));
    // What evaluations wait is in the line of the step after them.
    let is_local = |step: u64| (1..=3).contains(&(step % 5));
    let local = lines.iter().filter(|line| is_local(line["step"].as_u64().unwrap()));
    let waits: Vec<_> = local.map(|line| line["collective_wait_ms"].as_f64().unwrap()).collect();
    assert!(lines.len() == 30 && waits == [0.0; 18], "{lines:?}");
}

/// The configuration of a GPT on text, in bf16.
fn gpt(dir: &Path, num_layers: usize) -> PathBuf {
    let config = format!(
        "[model]\nname = \"gpt\"\nnum_layers = {num_layers}\nwidth = 32\nnum_heads = 2\ncontext = \
         32\n[data]\nsource = \"text\"\npath = \"{CARGO_DIR}/examples/data\"\ncontext = 32\n\
         [train]\nglobal_batch = 8\nnum_microbatches = 2\nsteps = 6\nprecision = \"bf16\"\n\
         [optimizer]\nname = \"adamw\"\n[schedule]\nname = \"cosine\"\npeak = 1e-3\n\
         warmup_steps = 2\n"
    );
    let path = dir.join("gpt.toml");
    fs::write(&path, config).unwrap();
    path
}

/// Text, attention, a bf16 computation; sharded state of every stage, over processes and within
/// them.
#[test]
fn a_gpt_on_sharded_meshes() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let path = gpt(dir.path(), 2);
    for (name, sets, numbers) in [
        ("fsdp 4", &["mesh.data=1", "mesh.fsdp=4", "parallel.zero=3"][..], &[2, 4][..]),
        (
            "2 x 2",
            &[
                "mesh.data=2",
                "mesh.fsdp=2",
                "parallel.zero=2",
                "model.scan_layers=true",
                "parallel.compression=top_k",
            ],
            &[4],
        ),
        ("tensor 2", &["mesh.data=2", "mesh.tensor=2", "parallel.compression=power_sgd"], &[2, 4]),
    ] {
        compare(dir.path(), name, text(&path), sets, numbers);
    }
}

/// Stages on processes of their own, and several on one.
#[test]
fn a_gpt_in_stages() {
    let _turn = turn::shared();
    let dir = tempfile::tempdir().unwrap();
    let path = gpt(dir.path(), 4);
    let sets = |more: &[&'static str]| {
        [&["compile.overrides.xla_backend_optimization_level=0"], more].concat()
    };
    let four = sets(&["mesh.data=1", "mesh.pipeline=4", "train.num_microbatches=4"]);
    compare(dir.path(), "pipeline 4", text(&path), &four, &[2, 4]);
    let two = sets(&["mesh.data=2", "mesh.pipeline=2", "parallel.pipeline_chunks=2"]);
    compare(dir.path(), "2 x pipeline 2", text(&path), &two, &[4]);
    let again = dir.path().join("again");
    let args = train(text(&path), &two, &["--out", text(&again)]);
    run(dir.path(), &launch(2, &[], &args)).succeeded();
    assert_same_run(&dir.path().join("2 x pipeline 2.4"), &again);
}
