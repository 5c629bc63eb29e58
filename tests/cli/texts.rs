//! Fine-tuning on texts from end to end: train, evaluate, predict, export, and start from what was
//! exported.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{EXAMPLES, file, lockstep, metrics, names, summary, text};

fn example() -> String {
    format!("{EXAMPLES}/distilbert-sst2.toml")
}

fn dev() -> String {
    format!("{EXAMPLES}/sentiment/dev.tsv")
}

fn train(out: &Path, sets: &[&str]) -> super::Outcome {
    let mut args = vec!["train".to_owned(), example(), "--out".to_owned(), text(out).to_owned()];
    args.extend(sets.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()]));
    lockstep(&args)
}

fn predict(model: &Path, more: &[&str]) -> Vec<Value> {
    let dev = dev();
    let outcome = lockstep(&[&["predict", text(model), &dev], more].concat()).succeeded();
    outcome.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The labels of the evaluation file.
fn labels() -> Vec<String> {
    let file = fs::read_to_string(dev()).unwrap();
    file.lines().skip(1).map(|line| line.rsplit('\t').next().unwrap().to_owned()).collect()
}

/// A run on a mesh whose metrics are those of its predictions, and the folder that is exported from
/// it.
#[test]
fn what_was_trained_evaluates_predicts_and_is_exported() {
    let dir = tempfile::tempdir().unwrap();
    // An accent of its own, as some file systems have it.
    let (run, folder) = (dir.path().join("run"), dir.path().join("re\u{301}sume\u{301}"));
    let sets = ["train.epochs=4", "mesh.data=1", "mesh.fsdp=2", "parallel.zero=3"];
    train(&run, &sets).succeeded();
    let summary = summary(&run);
    assert!(summary["eval_accuracy"].as_f64().unwrap() > 0.8, "{summary}");

    // The same whatever the batch and the number of replicas.
    let evaluated = |more: &[&str]| {
        let args = ["evaluate", text(&run), "--json"];
        lockstep(&[&args[..], more].concat()).succeeded().json()
    };
    let three = ["--set", "mesh.data=3", "--set", "mesh.fsdp=1"];
    for more in [&["--batch-per-replica", "7"][..], &["--set", "mesh.data=2"], &three] {
        let again = evaluated(more);
        assert_eq!(again["num_examples"], 240);
        for metric in ["eval_accuracy", "eval_f1", "eval_matthews"] {
            assert_eq!(again[metric], summary[metric], "{metric}");
        }
        let [loss, expected] = [&again, &summary].map(|of| of["eval_loss"].as_f64().unwrap());
        assert!((loss / expected - 1.0).abs() < 1e-5, "{loss} {expected}");
    }

    let (predicted, labels) = (predict(&run, &[]), labels());
    assert_eq!(predicted.len(), labels.len());
    let is_right = |(line, label): &(&Value, &String)| line["label"] == **label;
    let num_right = predicted.iter().zip(&labels).filter(is_right).count();
    let accuracy = num_right as f64 / labels.len() as f64;
    assert!((accuracy - summary["eval_accuracy"].as_f64().unwrap()).abs() < 1e-9);
    // F1 and Matthews' correlation by their definitions.
    let count = |predicted_as: &str, label: &str| {
        let both = predicted.iter().zip(&labels);
        both.filter(|(line, found)| line["label"] == predicted_as && *found == label).count() as f64
    };
    let [tp, fp, fne, tn] =
        [("1", "1"), ("1", "0"), ("0", "1"), ("0", "0")].map(|(p, l)| count(p, l));
    let f1 = 2.0 * tp / (2.0 * tp + fp + fne);
    let norm = ((tp + fp) * (tp + fne) * (tn + fp) * (tn + fne)).sqrt();
    let matthews = (tp * tn - fp * fne) / norm;
    for (name, expected) in [("eval_f1", f1), ("eval_matthews", matthews)] {
        assert!((summary[name].as_f64().unwrap() - expected).abs() < 1e-6, "{name}");
    }

    let export =
        ["checkpoint", "export", text(&run), "--to", text(&folder), "--format", "huggingface"];
    lockstep(&export).succeeded();
    let files = [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.txt",
    ];
    assert_eq!(names(&folder), files);
    for (line, again) in predicted.iter().zip(predict(&folder, &["--batch-per-replica", "240"])) {
        let probability = |line: &Value| line["probability"].as_f64().unwrap();
        assert_eq!((&again["label"], &again["text"]), (&line["label"], &line["text"]));
        assert!((probability(line) - probability(&again)).abs() < 1e-5);
    }

    // A run from the folder starts where this one ended.
    let from = file(
        dir.path(),
        "from.toml",
        format!(
            "model = {{ from = \"re\u{301}sume\u{301}\" }}\n[data]\nsource = \"classification\"\n\
         path = {:?}\neval_path = {:?}\nmax_length = 32\n[train]\nglobal_batch = 32\nsteps = 1\n\
         [optimizer]\nname = \"sgd\"\n[schedule]\nname = \"constant\"\npeak = 1e-12\n[mesh]\n\
         data = 1\n",
            PathBuf::from(EXAMPLES).join("sentiment/train.tsv"),
            PathBuf::from(dev()),
        )
        .as_bytes(),
    );
    let outcome = lockstep(&["train", text(&from), "--json"]).succeeded();
    assert!(outcome.stderr.contains("taking the parameters from"), "{}", outcome.stderr);
    assert_eq!(outcome.json()["eval_accuracy"], summary["eval_accuracy"]);
    let resolved = lockstep(&["config", text(&from)]).succeeded().stdout;
    assert!(
        resolved.contains("name = \"distilbert\"") && resolved.contains("width = 128"),
        "{resolved}"
    );
}

/// The run ends when evaluations are no longer better, also after it was continued, and the best
/// state is kept.
#[test]
fn a_run_that_no_longer_improves_ends_early() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let sets = [
        "train.epochs=40",
        "train.eval_every=20",
        "train.patience=2",
        "train.best_metric=loss",
        "checkpoint.keep_best=true",
        "schedule.peak=2e-3",
        "mesh.data=1",
    ];
    let outcome = train(&run, &sets).succeeded();
    assert!(
        outcome.stderr.contains("ended early: no better evaluation in the last 2"),
        "{}",
        outcome.stderr
    );
    let summary = summary(&run);
    let [steps, best, last] =
        [&summary["steps"], &summary["best_eval"]["step"], &summary["eval_step"]]
            .map(|step| step.as_u64().unwrap());
    assert_eq!((&summary["status"], last + 1), (&"done".into(), steps));
    assert_eq!(steps, best + 1 + 40, "{summary}");
    assert!(steps < summary["planned_steps"].as_u64().unwrap());
    let evaluated = |line: &&Value| line["eval_loss"].is_number();
    let lines = metrics(&run);
    let losses: Vec<_> =
        lines.iter().filter(evaluated).map(|line| line["eval_loss"].as_f64().unwrap()).collect();
    let least = losses.iter().copied().fold(f64::INFINITY, f64::min);
    assert_eq!(losses[losses.len() - 3], least);
    let kept = names(&run.join("checkpoints"));
    assert!(kept.iter().any(|name| name.contains(&(best + 1).to_string())), "{kept:?}");

    let again = ["train", &example(), "--out", text(&run), "--resume"].map(str::to_owned);
    let again: Vec<_> = again
        .into_iter()
        .chain(sets.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()]))
        .collect();
    lockstep(&again).succeeded();
    assert_eq!(super::summary(&run)["steps"], steps);
}

/// Padding to several lengths changes no loss beyond rounding, and a continued run has the same
/// bits.
#[test]
fn batches_of_several_lengths_train_as_padded_ones() {
    let dir = tempfile::tempdir().unwrap();
    let sets = [
        "train.epochs=2",
        "train.precision=f64",
        "mesh.data=2",
        "model.dropout=0",
        "model.attention_dropout=0",
        "model.classifier_dropout=0",
    ];
    let mut losses = vec![];
    for (name, pad_to) in [("one", "data.pad_to=[]"), ("several", "data.pad_to=[14, 16, 18]")] {
        let run = dir.path().join(name);
        let outcome = train(&run, &[&sets[..], &[pad_to]].concat()).succeeded();
        let says = "padding: examples are [14], [16], [18] or [32], the smallest that holds all of \
                    a batch; 4 programs";
        assert_eq!(outcome.stderr.contains(says), name == "several", "{}", outcome.stderr);
        let of_line = |line: &Value| {
            let losses = ["loss", "eval_loss"].map(|key| line[key].as_f64());
            losses.into_iter().flatten().collect::<Vec<_>>()
        };
        losses.push(metrics(&run).iter().flat_map(of_line).collect::<Vec<_>>());
    }
    assert_eq!(losses[0].len(), losses[1].len());
    for (step, (padded, several)) in losses[0].iter().zip(&losses[1]).enumerate() {
        assert!((padded / several - 1.0).abs() < 1e-9, "{step}: {padded} {several}");
    }
    assert_ne!(losses[0], losses[1], "the same bits: nothing shows that programs differed");

    let pad_to = "data.pad_to=[14, 16, 18]";
    let fingerprint = |run: &Path| summary(run)["params_fingerprint"].clone();
    let (whole, halves) = (dir.path().join("several"), dir.path().join("halves"));
    let checkpoints = "checkpoint.every_steps=39";
    train(&halves, &[&sets[..], &[pad_to, checkpoints]].concat()).succeeded();
    assert!(fingerprint(&whole).is_string() && fingerprint(&whole) == fingerprint(&halves));
    let from = halves.join("checkpoints/step_00000039");
    let resumed = dir.path().join("resumed");
    let mut args =
        vec!["train".to_owned(), example(), "--out".to_owned(), text(&resumed).to_owned()];
    let all = [&sets[..], &[pad_to]].concat();
    args.extend(all.iter().flat_map(|set| ["--set".to_owned(), (*set).to_owned()]));
    args.extend(["--resume".to_owned(), text(&from).to_owned()]);
    lockstep(&args).succeeded();
    assert_eq!(fingerprint(&resumed), fingerprint(&whole));
    let predicted = |more: &[&str]| predict(&whole, more);
    for (line, padded) in predicted(&[]).iter().zip(predicted(&["--set", "data.pad_to=[]"])) {
        assert_eq!((&line["text"], &line["label"]), (&padded["text"], &padded["label"]));
    }
}

#[test]
fn what_does_not_fit_is_refused_with_what_to_change() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    for (set, expected) in [
        (
            "train.best_metric=f2",
            "train.best_metric: found \"f2\"; this model has loss, accuracy, f1, matthews",
        ),
        (
            "model.vocabulary=1000",
            "model.vocabulary: found 1000, but the ids of the tokenizer go up to 1799",
        ),
        ("model.context=16", "at most 16, which is model.context"),
        ("data.max_length=8", "data.truncate"),
        ("data.label=mood", "mood"),
        ("data.pad_to=[16, 16]", "ascending order, below data.max_length = 32"),
        ("data.pad_to=[32]", "ascending order, below data.max_length = 32"),
        (
            "model.head=masked_lm",
            "takes a label of each token, but the data have one of each example",
        ),
        (
            "optimizer.freeze=['embde.*']",
            "optimizer.freeze: the pattern \"embde.*\" matches no parameter",
        ),
        ("model.from=/nowhere", "/nowhere"),
    ] {
        let outcome = train(&out, &[set]);
        assert_eq!(outcome.code, Some(1), "{set}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(expected), "{set}: {}", outcome.stderr);
        assert!(!out.exists() || names(&out).is_empty(), "{set}");
    }
    let digits = super::train_args(&["train.epochs=1"], &["--out", text(&out)]);
    lockstep(&digits).succeeded();
    for (args, expected) in [
        (vec!["predict", text(&out), "a.tsv"], "cannot read the data file a.tsv"),
        (vec!["predict", "/nowhere", "a.tsv"], "/nowhere"),
        (vec!["evaluate", "/nowhere"], "/nowhere: No such file"),
    ] {
        let outcome = lockstep(&args);
        assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(expected), "{}", outcome.stderr);
    }
    let evaluated = lockstep(&["evaluate", text(&out), "--json"]).succeeded().json();
    assert_eq!(evaluated["eval_accuracy"], summary(&out)["eval_accuracy"]);
}
