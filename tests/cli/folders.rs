//! Folders of transformers' as a user meets them: whatever in one changes results is read, or
//! refused by name.

use std::fs;
use std::path::{Path, PathBuf};

use hlo::{DType, Literal, Tree};
use lockstep::train::params_file::{self, SavedModel};
use serde_json::{Value, json};

use super::{Outcome, file, lockstep, summary, text};

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference");
/// The classes of the folder, in an order that is not that of their names.
const NAMES: [&str; 3] = ["pos", "neg", "neu"];

/// What transformers makes of the folder: see `tests/reference/folder_scores.py`.
fn golden() -> Value {
    serde_json::from_slice(&fs::read(format!("{REFERENCE}/folder_scores.json")).unwrap()).unwrap()
}

/// A classifier of three classes with a tokenizer, whose `config.json` has other `keys`; `null`
/// removes one.
fn folder(dir: &Path, keys: &Value) -> PathBuf {
    let folder = dir.join("folder");
    fs::create_dir_all(&folder).unwrap();
    let from = Path::new(REFERENCE).join("encoder_hf/bert_classification");
    let weights = fs::read(from.join("model.safetensors")).unwrap();
    file(&folder, "model.safetensors", &weights);
    let mut config: Value =
        serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    for (key, value) in keys.as_object().unwrap() {
        match value {
            Value::Null => drop(config.as_object_mut().unwrap().remove(key)),
            value => config[key] = value.clone(),
        }
    }
    file(&folder, "config.json", config.to_string().as_bytes());
    let vocabulary = golden()["vocabulary"].as_array().unwrap().clone();
    let lines: String =
        vocabulary.iter().flat_map(|token| [token.as_str().unwrap(), "\n"]).collect();
    file(&folder, "vocab.txt", lines.as_bytes());
    folder
}

fn named() -> Value {
    let names = NAMES.iter().enumerate();
    let by_id: serde_json::Map<_, _> =
        names.clone().map(|(class, name)| (class.to_string(), json!(name))).collect();
    let by_name: serde_json::Map<_, _> =
        names.map(|(class, name)| ((*name).to_owned(), json!(class))).collect();
    json!({"id2label": by_id, "label2id": by_name})
}

fn predict(dir: &Path, folder: &Path) -> Outcome {
    let texts = golden()["texts"].as_array().unwrap().clone();
    let lines = texts.iter().map(|text| format!("{}\n", text.as_str().unwrap()));
    let table = format!("sentence\n{}", lines.collect::<String>());
    let table = file(dir, "texts.tsv", table.as_bytes());
    lockstep(&["predict", text(folder), text(&table)])
}

/// A configuration that fine-tunes the folder for one step on rows with these labels, four or more,
/// without dropout.
fn config(dir: &Path, labels: &[&str]) -> PathBuf {
    let rows = labels.iter().enumerate().map(|(row, label)| format!("w{row} w5\t{label}\n"));
    file(dir, "train.tsv", format!("sentence\tlabel\n{}", rows.collect::<String>()).as_bytes());
    let toml = "model = { from = \"folder\", dropout = 0.0, attention_dropout = 0.0, \
                classifier_dropout = 0.0 }\n[data]\nsource = \"classification\"\n\
                path = \"train.tsv\"\neval_path = \"train.tsv\"\nmax_length = 8\n\
                [train]\nglobal_batch = 4\nsteps = 1\n[optimizer]\nname = \"sgd\"\n\
                [schedule]\nname = \"constant\"\npeak = 1e-9\n[mesh]\ndata = 1\n";
    file(dir, "run.toml", toml.as_bytes())
}

fn train(config: &Path, more: &[&str]) -> Outcome {
    lockstep(&[&["train", text(config)], more].concat())
}

#[test]
fn probabilities_are_those_of_transformers_and_have_the_names_of_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let golden = golden();
    let made_up = ["LABEL_0", "LABEL_1", "LABEL_2"];
    let none = json!({"id2label": null, "label2id": null});
    let mut counted = none.clone();
    counted["num_labels"] = 3.into();
    let mut multi = named();
    multi["problem_type"] = "multi_label_classification".into();
    for (keys, names, kind) in [
        (named(), NAMES, "softmax"),
        (counted, made_up, "softmax"),
        (none, made_up, "softmax"),
        (multi, NAMES, "sigmoid"),
    ] {
        let outcome = predict(dir.path(), &folder(dir.path(), &keys)).succeeded();
        for (line, expected) in outcome.stdout.lines().zip(golden[kind].as_array().unwrap()) {
            let line: Value = serde_json::from_str(line).unwrap();
            let mut highest = ("", 0.0);
            for (name, expected) in names.iter().zip(expected.as_array().unwrap()) {
                let (found, expected) =
                    (line["probabilities"][name].as_f64().unwrap(), expected.as_f64().unwrap());
                assert!((found - expected).abs() < 2e-6, "{keys}: {line}, not {expected}");
                highest = if expected > highest.1 { (name, expected) } else { highest };
            }
            assert_eq!(line["label"], highest.0, "{line}");
            let labels = (kind == "sigmoid").then(|| json!([]));
            assert_eq!(line.get("labels"), labels.as_ref(), "none has a probability of one half");
        }
        assert_eq!(outcome.stdout.lines().count(), 3, "{}", outcome.stderr);
    }
}

/// The head means what it did: the same loss as with the order in `data.labels`, and another one in
/// another order.
#[test]
fn a_run_has_the_classes_of_the_model_that_it_starts_from() {
    let dir = tempfile::tempdir().unwrap();
    let of_folder = folder(dir.path(), &named());
    let labels = ["neg", "neu", "pos", "pos"];
    let run = config(dir.path(), &labels);
    let loss = |more: &[&str]| {
        let outcome = train(&run, &[&["--json"], more].concat()).succeeded();
        (outcome.json()["eval_loss"].as_f64().unwrap(), outcome.stderr)
    };
    let (expected, said) = loss(&["--set", "data.labels=[\"pos\",\"neg\",\"neu\"]"]);
    assert!(!said.contains("warning:"), "{said}");
    let (found, said) = loss(&[]);
    assert!(found == expected, "{found} {expected}");
    assert!(said.contains("\nclasses: 0 \"pos\", 1 \"neg\", 2 \"neu\"\n"), "{said}");
    let (other, said) = loss(&["--set", "data.labels=[\"neg\",\"neu\",\"pos\"]"]);
    assert!((other - expected).abs() > 1e-3, "{other} {expected}");
    assert!(said.contains("warning: data.labels is \"neg\", \"neu\", \"pos\", but"), "{said}");

    // So do runs from a folder with --init, or from another run, which keeps the order without the
    // folder.
    let out = dir.path().join("out");
    train(&run, &["--out", text(&out), "--set", "data.label=label"]).succeeded();
    fs::rename(&of_folder, dir.path().join("moved")).unwrap();
    let alone = fs::read_to_string(out.join("config.resolved.toml")).unwrap();
    assert!(alone.contains("labels = [\"pos\", \"neg\", \"neu\"]"), "{alone}");
    let evaluated = lockstep(&["evaluate", text(&out), "--json", "--set", "data.tokenizer=moved"]);
    assert!(evaluated.stderr.contains("set data.tokenizer"), "{}", evaluated.stderr);
    fs::rename(dir.path().join("moved"), &of_folder).unwrap();
    let start = alone.replace("labels = [\"pos\", \"neg\", \"neu\"]", "");
    let start = start.lines().filter(|line| !line.starts_with("from = ")).collect::<Vec<_>>();
    let start = file(dir.path(), "start.toml", start.join("\n").as_bytes());
    for init in [&of_folder, &out] {
        let outcome = train(&start, &["--json", "--init", text(init)]).succeeded();
        let loss = outcome.json()["eval_loss"].as_f64().unwrap();
        assert!((loss - expected).abs() < 1e-5, "{}: {loss} {expected}", init.display());
    }
    assert_eq!(summary(&out)["status"], "done");

    // Numbers are classes; other names are said.
    let said = train(&config(dir.path(), &["0", "2", "0", "2"]), &[]).succeeded().stderr;
    assert!(said.contains("classes: 0 \"pos\", 1 \"neg\", 2 \"neu\""), "{said}");
    assert!(said.contains("warning: training has no row with the label \"neg\""), "{said}");
    let said = train(&config(dir.path(), &["a", "b", "c", "c"]), &[]).succeeded().stderr;
    let expected =
        "are \"pos\", \"neg\", \"neu\", but the labels in data.path are \"a\", \"b\", \"c\"";
    assert!(said.contains("warning:") && said.contains(expected), "{said}");
    let said = train(&config(dir.path(), &["a", "b", "b", "a"]), &[]);
    assert!(
        said.code == Some(1) && said.stderr.contains("has 3 classes, \"pos\""),
        "{}",
        said.stderr
    );
}

#[test]
fn folders_of_other_models_are_refused_in_training_as_in_prediction() {
    let dir = tempfile::tempdir().unwrap();
    let sizes = "[model]\nname = \"bert\"\nfrom = \"folder\"\nnum_layers = 2\nwidth = 16\n\
                 num_heads = 4\nnum_hidden = 32\ncontext = 12\nvocabulary = 96\n";
    let run = fs::read_to_string(config(dir.path(), &["a", "b", "c", "c"])).unwrap();
    let with_sizes = run.split_once('\n').map(|(_, rest)| format!("{sizes}{rest}")).unwrap();
    let with_sizes = file(dir.path(), "sizes.toml", with_sizes.as_bytes());
    let run = dir.path().join("run.toml");
    train(&with_sizes, &["--set", &format!("model.from={}", text(&folder(dir.path(), &named())))])
        .succeeded();
    let refused = |folder: &Path, expected: &str, is_of_training: bool| {
        let mut outcomes = vec![train(&run, &[]), train(&with_sizes, &[])];
        if !is_of_training {
            outcomes.push(predict(dir.path(), folder));
        }
        for outcome in outcomes {
            assert_eq!(outcome.code, Some(1), "{expected}: {}", outcome.stderr);
            assert!(outcome.stderr.contains(expected), "{expected}: {}", outcome.stderr);
        }
    };
    for (keys, expected) in [
        (json!({"num_hidden_layers": -1}), "num_hidden_layers is -1, not a whole number from 1 on"),
        (json!({"hidden_act": "relu"}), "hidden_act is \"relu\""),
        (json!({"type_vocab_size": 3}), "type_vocab_size is 3"),
        (json!({"position_embedding_type": "relative_key"}), "position_embedding_type is"),
        (json!({"problem_type": "regression"}), "the model gives numbers, not classes"),
        (json!({"id2label": {"0": "score"}, "label2id": null}), "id2label has one class"),
        (
            json!({"id2label": {"0": "a", "1": "b"}, "label2id": null}),
            "it has 2 classes, but `classifier.bias`",
        ),
    ] {
        refused(&folder(dir.path(), &keys), expected, false);
    }
    let multi = folder(dir.path(), &json!({"problem_type": "multi_label_classification"}));
    refused(&multi, "remove problem_type from its config.json", true);
    file(&multi, "config.json", b"[]");
    refused(&multi, "config.json: it is no JSON object", false);
    // A size that the weights do not show.
    let outcome = train(&with_sizes, &["--set", "model.num_heads=2"]);
    assert!(outcome.stderr.contains("it is no JSON object"), "{}", outcome.stderr);
    folder(dir.path(), &json!({}));
    let outcome = train(&with_sizes, &["--set", "model.num_heads=2"]);
    assert!(
        outcome.stderr.contains("num_attention_heads is 4, but the model's is 2"),
        "{}",
        outcome.stderr
    );

    // Weights in another format, or changed by others.
    file(&multi, "adapter_config.json", b"{}");
    refused(&multi, "adapter_config.json, an adapter that changes the weights", false);
    fs::remove_file(multi.join("adapter_config.json")).unwrap();
    fs::remove_file(multi.join("model.safetensors")).unwrap();
    refused(&multi, "neither checkpoints nor params.safetensors", false);
    for (name, hint) in [
        ("pytorch_model.bin", "import BertForSequenceClassification as M; M.from_pretrained("),
        ("tf_model.h5", "from_tf=True"),
        ("flax_model.msgpack", "from_flax=True"),
        ("weights.pt", "save the model as model.safetensors"),
    ] {
        let path = file(&multi, name, b"x");
        refused(&multi, &format!("it has {name}, but only safetensors are read"), false);
        refused(&multi, hint, false);
        fs::remove_file(path).unwrap();
    }
}

/// Further heads are noted by every command, and names that a wrapper changed are explained.
#[test]
fn further_heads_are_noted_and_wrappers_named() {
    let dir = tempfile::tempdir().unwrap();
    let folder = folder(dir.path(), &named());
    let weights = folder.join("model.safetensors");
    let whole = SavedModel::find(&folder).unwrap().values(true).unwrap();
    let expected = predict(dir.path(), &folder).succeeded().stdout;
    let run = config(dir.path(), &["pos", "neg", "neu", "neu"]);
    let mut more = whole.clone();
    let extra = |dims: &[usize]| Literal::zeros(DType::F32, dims);
    more.insert("cls.predictions.bias", extra(&[96]));
    more.insert("cls.predictions.decoder.weight", extra(&[96, 16]));
    more.insert("cls.seq_relationship.weight", extra(&[2, 16]));
    more.insert("qa_outputs.weight", extra(&[2, 16]));
    params_file::save(&weights, &more).unwrap();
    let note = "not used, because the model lacks them: cls.predictions.bias, \
                cls.predictions.decoder.weight, cls.seq_relationship.weight, qa_outputs.weight";
    let predicted = predict(dir.path(), &folder).succeeded();
    assert_eq!(predicted.stdout, expected);
    let init = ["--set", "train.seed=0", "--init", text(&folder)];
    for outcome in [predicted, train(&run, &[]).succeeded(), train(&run, &init).succeeded()] {
        assert!(outcome.stderr.contains(note), "{}", outcome.stderr);
    }

    let renamed = |wrap: &dyn Fn(&str) -> String| -> Tree<Literal> {
        whole.iter().map(|(name, value)| (wrap(name), value.clone())).collect()
    };
    for (parts, wrapped) in [
        (&["`module.`, which DataParallel"][..], renamed(&|name| format!("module.{name}"))),
        (
            &["`_orig_mod.`, which torch.compile", "`module.`"],
            renamed(&|name| format!("_orig_mod.module.{name}")),
        ),
        (
            &[
                "`_fsdp_wrapped_module.`, which FullyShardedDataParallel",
                "k.replace('_fsdp_wrapped_module.', '')",
            ],
            renamed(&|name| name.replace("layer.0.", "layer.0._fsdp_wrapped_module.")),
        ),
    ] {
        params_file::save(&weights, &wrapped).unwrap();
        for outcome in [predict(dir.path(), &folder), train(&run, &[])] {
            assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
            assert!(parts.iter().all(|part| outcome.stderr.contains(part)), "{}", outcome.stderr);
        }
    }
    // What is neither of the model nor of a head is refused.
    let mut unknown = whole.clone();
    unknown.insert("bert.encoder.layer.0.adapter.weight", extra(&[2]));
    params_file::save(&weights, &unknown).unwrap();
    for outcome in [predict(dir.path(), &folder), train(&run, &[])] {
        assert!(
            outcome.stderr.contains("layer.0.adapter.weight`, which the model"),
            "{}",
            outcome.stderr
        );
    }
}

/// Classes are named when a run starts; what is held out follows the seed, and lacks no class.
#[test]
fn held_out_rows_are_drawn_by_seed_and_class() {
    let dir = tempfile::tempdir().unwrap();
    folder(dir.path(), &json!({"id2label": {"0": "a", "1": "b", "2": "c"}, "label2id": null}));
    let labels: Vec<_> = (0..60).map(|row| ["a", "b", "c"][row % 3]).collect();
    let run = config(dir.path(), &labels);
    let run_text = fs::read_to_string(&run).unwrap().replace("eval_path = \"train.tsv\"\n", "");
    let run = file(dir.path(), "run.toml", run_text.as_bytes());
    let outcome = |sets: &[&str]| {
        let sets: Vec<_> = sets.iter().flat_map(|set| ["--set", *set]).collect();
        let outcome = train(&run, &[&["--json"], &sets[..]].concat()).succeeded();
        assert!(!outcome.stderr.contains("warning:"), "{}", outcome.stderr);
        outcome.json()["eval_loss"].as_f64().unwrap()
    };
    let (first, again, other) = (outcome(&[]), outcome(&[]), outcome(&["train.seed=1"]));
    assert!(first == again && (first - other).abs() > 1e-6, "{first} {again} {other}");
    let few = config(dir.path(), &["a", "a", "a", "a", "a", "b", "c"]);
    let text_of = fs::read_to_string(&few)
        .unwrap()
        .replace("eval_path = \"train.tsv\"", "eval_fraction = 0.3");
    let few = file(dir.path(), "few.toml", text_of.as_bytes());
    let said = train(&few, &[]).succeeded().stderr;
    assert!(said.contains("warning: evaluation has no row with the label \"b\", \"c\""), "{said}");
}
