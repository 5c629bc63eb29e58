//! Properties that must not differ when a run is continued: the configuration as far as the state
//! depends on it, and the data.

use std::fs;
use std::path::Path;

use lockstep::checkpoint::CheckpointDir;
use lockstep::train::Resume;

use super::{GPT, numbers, run, try_run};

/// A checkpoint of another run is refused by name, before anything is changed.
#[test]
fn a_configuration_that_cannot_continue_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    run(GPT, &["train.steps=2"], &out, Resume::Never);
    let before = fs::read(out.join("metrics.jsonl")).unwrap();
    for (sets, expected) in [
        (&["model.width=32"][..], "model.width: 16 -> 32"),
        (&["optimizer.name=adam"], "optimizer.name: \"adamw\" -> \"adam\""),
        (&["train.global_batch=8"], "train.global_batch: 16 -> 8"),
        // Leaves that there are, or not, with these keys; not a word of leaves alone.
        (
            &["optimizer.ema_decay=0.5", "optimizer.freeze=['embed.*']"],
            "optimizer.freeze: [] -> [\"embed.*\"]",
        ),
        (&["train.precision=f32"], "train.precision: \"f64\" -> \"f32\""),
    ] {
        let error = try_run(GPT, sets, &out, Resume::Newest).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(fs::read(out.join("metrics.jsonl")).unwrap(), before);
    }
    let nowhere = Resume::From(dir.path().join("nowhere"));
    let error = try_run(GPT, &[], &out, nowhere).unwrap_err().to_string();
    assert!(error.contains("no such directory"), "{error}");
}

/// Small and soon compiled.
const MLP: &str = r#"
[model]
name = "mlp"
hidden = [4]
[data]
source = "synthetic"
features = 4
classes = 3
num_examples = 80
[train]
global_batch = 16
steps = 12
[optimizer]
name = "sgd"
[schedule]
name = "constant"
peak = 0.1
"#;

/// Keys that say the same in another way.
#[test]
fn what_resolves_to_the_same_is_the_same_run() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, out) = (dir.path().join("whole"), dir.path().join("out"));
    let text = MLP.replace("global_batch = 16\n", "");
    let global = ["mesh.data=2", "train.global_batch=16"];
    let per_replica = ["mesh.data=2", "train.batch_per_replica=8"];
    let (_, expected) = run(&text, &global, &whole, Resume::Never);
    for (sets, steps, resume) in [
        (&global, "train.steps=4", Resume::Never),
        (&per_replica, "train.steps=8", Resume::Newest),
        (&global, "train.steps=12", Resume::Newest),
    ] {
        run(&text, &[&sets[..], &[steps]].concat(), &out, resume);
    }
    let summary = fs::read_to_string(out.join("summary.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(summary["params_fingerprint"], expected["params_fingerprint"]);
    let other = ["mesh.data=4", "train.batch_per_replica=8"];
    let error = try_run(&text, &other, &out, Resume::Newest).unwrap_err().to_string();
    assert!(error.contains("of 16 examples") && error.contains("32 examples a step"), "{error}");
}

/// The GPT on the bytes of a file.
fn on_text(path: &Path) -> String {
    let tokens = GPT.find("vocab_size").unwrap();
    let end = GPT.find("[train]").unwrap();
    let data = format!("path = {path:?}\ncontext = 8\n");
    let text = format!("{}{data}{}", &GPT[..tokens], &GPT[end..]);
    let text = text.replace("num_layers = 2", "num_layers = 1").replace("dropout = 0.1", "");
    text.replace("synthetic_tokens", "text").replace("vocabulary = 32", "vocabulary = 256")
}

#[test]
fn a_run_is_not_continued_on_other_data_unless_the_configuration_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (text, out) = (dir.path().join("a.txt"), dir.path().join("out"));
    let bytes: Vec<u8> = (0..900u32).map(|place| (place * place % 101) as u8).collect();
    fs::write(&text, &bytes).unwrap();
    let config = on_text(&text);
    run(&config, &["train.steps=2"], &out, Resume::Never);
    let manifest = CheckpointDir::open(out.join("checkpoints")).unwrap().run().clone();
    let data = manifest.data.unwrap();
    assert_eq!((data.train.num_examples, data.eval.num_examples), (90, 10));
    let before = fs::read(out.join("metrics.jsonl")).unwrap();
    let refused = |sets: &[&str]| {
        let error = try_run(&config, sets, &out, Resume::Newest).unwrap_err().to_string();
        assert_eq!(fs::read(out.join("metrics.jsonl")).unwrap(), before);
        error
    };
    // Longer by two windows; and as long, but other bytes.
    let longer = [&bytes[..], &[7; 18]].concat();
    let changed: Vec<_> = bytes.iter().map(|byte| byte ^ 1).collect();
    for (found, expected) in [(&longer, "92 training examples"), (&changed, "but others")] {
        fs::write(&text, found).unwrap();
        let error = refused(&[]);
        for expected in ["a.txt", expected, "90", "data.num_examples = ", "--resume"] {
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
    // On purpose: the key that the error names.
    let copy = dir.path().join("copy");
    fs::create_dir(&copy).unwrap();
    fs::write(&text, &longer).unwrap();
    let from = || Resume::From(out.join("checkpoints"));
    let (lines, _) = run(&config, &["data.num_examples=92", "train.steps=3"], &copy, from());
    assert_eq!(lines.len(), 1);
    // The same data elsewhere are the same run.
    let moved = dir.path().join("moved.txt");
    fs::write(&moved, &bytes).unwrap();
    let there = dir.path().join("there");
    let (moved, _) = run(&on_text(&moved), &["train.steps=3"], &there, from());
    fs::write(&text, &bytes).unwrap();
    let (expected, _) = run(&config, &["train.steps=3"], &out, Resume::Newest);
    assert_eq!(numbers(&moved[0]), numbers(&expected[2]));
}
