//! A model in stages from end to end: it is trained, evaluated, continued, exported and used like
//! one that is whole.

use std::fs;
use std::path::Path;

use lockstep::train::params_file;
use serde_json::Value;

use super::{EXAMPLES, file, lockstep, summary, text};

pub const GPT: &str = r#"
model = { name = "gpt", num_layers = 4, width = 16, num_heads = 2, context = 8, vocabulary = 32 }
data = { source = "synthetic_tokens", vocab_size = 32, context = 8, num_examples = 64 }
train = { global_batch = 16, steps = 4, num_microbatches = 4 }
optimizer = { name = "adamw", ema_decay = 0.5 }
schedule = { name = "constant", peak = 0.01 }
mesh = { data = 2, pipeline = 2 }
parallel = { pipeline_chunks = 2 }
checkpoint = { every_steps = 2 }
compile = { overrides = { xla_backend_optimization_level = 0 } }
"#;

fn evaluated(run: &Path, sets: &[&str]) -> Value {
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let args: Vec<_> = ["evaluate", text(run), "--json"].into_iter().chain(sets).collect();
    lockstep(&args).succeeded().json()
}

#[track_caller]
fn assert_close(a: &Value, b: &Value) {
    let [a, b] = [a, b].map(|loss| loss.as_f64().unwrap());
    assert!((a / b - 1.0).abs() < 1e-5, "{a} {b}");
}

/// The keys of the pipeline need not be taken back to evaluate on another mesh.
#[test]
fn a_gpt_in_stages_is_evaluated_exported_and_continued() {
    let dir = tempfile::tempdir().unwrap();
    let config = file(dir.path(), "gpt.toml", GPT.as_bytes());
    let (run, folder) = (dir.path().join("run"), dir.path().join("folder"));
    lockstep(&["train", text(&config), "--out", text(&run)]).succeeded();
    let ended = summary(&run);
    for sets in [
        &[][..],
        &["mesh.pipeline=1"],
        &["mesh.data=1", "mesh.pipeline=1"],
        &["mesh.data=3", "mesh.pipeline=4"],
        &["mesh.data=1", "mesh.tensor=2"],
    ] {
        let again = evaluated(&run, sets);
        assert_close(&again["eval_loss"], &ended["eval_loss"]);
        assert_eq!(again["num_examples"], 12, "{again}");
    }

    // A model without stages starts from the folder, and one with stages from its run.
    let args = ["checkpoint", "export", text(&run), "--to", text(&folder)];
    lockstep(&[&args[..], &["--format", "huggingface"]].concat()).succeeded();
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let weights = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(weights.len(), 4 * 12 + 4);
    let start = |from: &Path, out: &Path, more: &[&str]| {
        let args = ["train", text(&config), "--init", text(from), "--out", text(out)];
        let sets = ["--set", "train.steps=1", "--set", "schedule.peak=1e-12"];
        lockstep(&[&args[..], &sets, more].concat()).succeeded();
        assert_close(&summary(out)["eval_loss"], &ended["eval_loss"]);
    };
    let whole = dir.path().join("whole");
    let without = ["--unset", "mesh.pipeline", "--unset", "parallel.pipeline_chunks"];
    let four = ["--set", "mesh.pipeline=4", "--set", "parallel.pipeline_chunks=1"];
    start(&folder, &whole, &without);
    start(&whole, &dir.path().join("four"), &four);
    start(&folder, &dir.path().join("two"), &[]);

    // The checkpoints of a run in stages are those of one without.
    let args = ["train", text(&config), "--resume", "--out", text(&run), "--set", "train.steps=6"];
    lockstep(&[&args[..], &without].concat()).succeeded();
    assert_eq!(summary(&run)["steps"], 6);
    assert!(run.join(params_file::FILE).is_file());
}

/// Texts in batches of two lengths, with a head that picks rows.
#[test]
#[ignore = "trains for half a minute; of the full set"]
fn an_encoder_in_stages_predicts_what_it_evaluates() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let dev = format!("{EXAMPLES}/sentiment/dev.tsv");
    let config = format!("{EXAMPLES}/distilbert-sst2.toml");
    let sets = [
        "train.steps=8",
        "train.eval_every=8",
        "schedule.warmup=none",
        "compile.overrides.xla_backend_optimization_level=0",
        "mesh.data=1",
        "mesh.pipeline=2",
        "train.num_microbatches=4",
        "data.pad_to=[16]",
    ];
    let args = ["train", &config, "--out", text(&run)].into_iter();
    lockstep(&args.chain(sets.iter().flat_map(|set| ["--set", set])).collect::<Vec<_>>())
        .succeeded();
    let ended = summary(&run);
    let of_one = evaluated(&run, &["mesh.pipeline=1"]);
    assert_close(&of_one["eval_loss"], &ended["eval_loss"]);
    assert_eq!(of_one["eval_accuracy"], ended["eval_accuracy"]);
    let predicted = |more: &[&str]| -> Vec<Value> {
        let outcome = lockstep(&[&["predict", text(&run), &dev], more].concat()).succeeded();
        outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let (staged, whole) = (predicted(&[]), predicted(&["--set", "mesh.pipeline=1"]));
    assert_eq!(staged.len(), whole.len());
    for (staged, whole) in staged.iter().zip(&whole) {
        assert_eq!(staged["text"], whole["text"]);
        assert_close(&staged["probability"], &whole["probability"]);
    }
}
