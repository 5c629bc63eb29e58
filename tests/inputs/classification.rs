//! Texts with labels: tokens like those of Hugging Face's `tokenizers`, and what is wrong with
//! files.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::read::GzDecoder;
use lockstep::config::ClassificationConfig;
use lockstep::data::{
    Classification, EncodedText, Error, EvalBatches, HostBatch, Sampler, Source, TextEncoder,
    TrainBatches, class_names, read_text_rows,
};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

/// Lines that `tests/reference/tokens.py` hashes together.
const GROUP: usize = 100;

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/tokens").join(name)
}

fn hash(encoded: &[EncodedText]) -> String {
    let mut digest = Sha256::new();
    for text in encoded {
        digest.update((text.ids.len() as u32).to_le_bytes());
        for number in text.ids.iter().chain(&text.segments) {
            digest.update(number.to_le_bytes());
        }
    }
    digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn tokens_are_those_of_hugging_face() {
    let golden: serde_json::Value =
        serde_json::from_slice(&fs::read(reference("tokens.json")).unwrap()).unwrap();
    let short = golden["max_length"].as_u64().unwrap() as usize;
    let mut text = String::new();
    let file = fs::File::open(reference("lines.txt.gz")).unwrap();
    GzDecoder::new(file).read_to_string(&mut text).unwrap();
    let lines: Vec<_> = text.split('\n').collect();
    assert_eq!(lines.len(), 10_000);

    let dir = tempfile::tempdir().unwrap();
    fs::copy(reference("vocab.txt"), dir.path().join("vocab.txt")).unwrap();
    let settings = r#"{"do_lower_case": false, "model_max_length": 512}"#;
    fs::write(dir.path().join("tokenizer_config.json"), settings).unwrap();
    let tokenizers = [
        ("bert", reference("bert.json")),
        ("bert", reference("vocab.txt")),
        ("cased", dir.path().to_owned()),
        ("gpt2", reference("gpt2.json")),
    ];
    for (name, path) in tokenizers {
        for (suffix, has_pairs, truncate) in [
            ("", false, false),
            ("_truncated", false, true),
            ("_pairs", true, false),
            ("_pairs_truncated", true, true),
        ] {
            let max_length = if truncate { short } else { 1 << 20 };
            let encoder = TextEncoder::open(&path, "data.tokenizer", max_length, truncate).unwrap();
            let encode = |index: usize| {
                let pair = has_pairs.then(|| lines[(index + 1) % lines.len()]);
                let encoded = encoder.encode(lines[index], pair);
                // GPT-2 has no token for an empty text.
                encoded.unwrap_or_else(|error| {
                    assert!(error.contains("no token") && lines[index].is_empty(), "{error}");
                    EncodedText { ids: vec![], segments: vec![] }
                })
            };
            let encoded: Vec<_> = (0..lines.len()).into_par_iter().map(encode).collect();
            let expected = golden[format!("{name}{suffix}")].as_array().unwrap();
            assert_eq!(expected.len(), lines.len() / GROUP);
            for (group, (texts, expected)) in encoded.chunks(GROUP).zip(expected).enumerate() {
                let place = format!("{}, {name}{suffix}, lines {}", path.display(), group * GROUP);
                assert_eq!(hash(texts), expected.as_str().unwrap(), "{place}");
            }
        }
    }
}

/// A configuration for a file of this name and these bytes, and the folder that holds it.
fn config(name: &str, bytes: &[u8]) -> (tempfile::TempDir, ClassificationConfig) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::write(&path, bytes).unwrap();
    let config = ClassificationConfig {
        path,
        eval_path: None,
        eval_fraction: Some(0.25),
        text: "sentence".to_owned(),
        text_pair: None,
        label: "label".to_owned(),
        labels: vec![],
        tokenizer: Some(reference("bert.json")),
        max_length: 12,
        pad_to: vec![],
        truncate: false,
        num_examples: None,
    };
    (dir, config)
}

/// The two parts for a seed of 0.
fn load(config: &ClassificationConfig) -> Result<(Classification, Classification), Error> {
    let splits = Classification::load(config, 0)?;
    Ok((splits.train, splits.eval))
}

/// The fields `x`, `segments`, `mask` and `y` of an example.
fn example(source: &Classification, id: u64) -> [Vec<i32>; 4] {
    let mut values = [0, 1, 2, 3].map(|field| {
        let size: usize = source.fields()[field].dims.iter().product();
        vec![7i32; size]
    });
    let mut out: Vec<_> =
        values.iter_mut().map(|values| bytemuck::cast_slice_mut::<_, u8>(values)).collect();
    source.read(id, Some(3), &mut out).unwrap();
    values
}

const FOUR_ROWS: &str = "label\tsentence\n0\tba be\n1\tci\n0\t\"do\n1\t\n";

#[test]
fn examples_are_padded_and_held_out_by_seed() {
    let (_dir, config) = config("a.tsv", FOUR_ROWS.as_bytes());
    let encoder = TextEncoder::open(&reference("bert.json"), "data.tokenizer", 12, false).unwrap();
    // An empty text is `[CLS] [SEP]`.
    let texts = [("ba be", 0), ("ci", 1), ("\"do", 0), ("", 1)];
    let mut expected: Vec<_> = texts
        .into_iter()
        .map(|(text, label)| {
            let tokens = encoder.encode(text, None).unwrap();
            let rest = vec![0; 12 - tokens.ids.len()];
            let mask = [vec![1; tokens.ids.len()], rest.clone()].concat();
            [[tokens.ids, rest].concat(), vec![0; 12], mask, vec![label]]
        })
        .collect();
    expected.sort();
    let mut held_out = BTreeSet::new();
    for seed in 0..8 {
        let splits = Classification::load(&config, seed).unwrap();
        let (train, eval) = (splits.train, splits.eval);
        assert_eq!((train.num_examples(), eval.num_examples(), train.num_outputs()), (3, 1, 2));
        let names: Vec<_> = train.fields().iter().map(|field| field.name).collect();
        assert_eq!(names, ["x", "segments", "mask", "y"]);
        let mut found: Vec<_> = (0..3).map(|id| example(&train, id)).collect();
        // In the order of the file.
        let kept = |row: &[Vec<i32>; 4]| found.contains(row);
        let texts = texts.map(|(text, _)| encoder.encode(text, None).unwrap().ids[1]);
        let places = found.iter().map(|row| texts.iter().position(|id| *id == row[0][1]));
        assert!(places.is_sorted(), "{found:?}");
        assert!(!kept(&example(&eval, 0)));
        held_out.insert(example(&eval, 0));
        found.push(example(&eval, 0));
        found.sort();
        assert_eq!(found, expected);
        // One row cannot have both classes.
        let missing = if example(&eval, 0)[3] == [0] { "\"1\"" } else { "\"0\"" };
        assert_eq!(splits.warnings, [format!("evaluation has no row with the label {missing}")]);
    }
    assert!(held_out.len() > 1, "every seed holds out the same row");
}

/// All shards of a batch have the shortest length that holds each of its texts, in training and in
/// evaluation.
#[test]
fn batches_are_padded_to_the_shortest_length_that_holds_them() {
    let words =
        |row: usize| "ba ".repeat([1, 2, 4, 9][row / 3 % 4 * usize::from(row.is_multiple_of(3))]);
    let rows: String = (0..64).map(|row| format!("{}\t{}\n", words(row), row % 2)).collect();
    let (_dir, mut config) = config("a.tsv", format!("sentence\tlabel\n{rows}").as_bytes());
    config.pad_to = vec![4, 7];
    let (train, eval) = load(&config).unwrap();
    let num_tokens = |source: &Classification, id| example(source, id)[2].iter().sum::<i32>();
    let length = |batch: &HostBatch| batch.fields["x"][0].dims()[1];
    let mut seen = BTreeSet::new();
    let train: Arc<Classification> = Arc::new(train);
    let batches = TrainBatches::new(train.clone(), 3, 4, 2).unwrap();
    let sampler = Sampler::new(3, train.num_examples(), 4);
    for step in 0..24 {
        let batch = batches.get(step).unwrap();
        let longest = sampler.batch(step).into_iter().map(|id| num_tokens(&train, id)).max();
        let expected = [4, 7, 12].into_iter().find(|length| *length >= longest.unwrap());
        assert_eq!(Some(length(&batch) as i32), expected, "step {step}");
        // A process that reads one shard finds the same length.
        for shard in 0..2 {
            let alone = batches.clone().of_shards(Arc::new([shard])).get(step).unwrap();
            assert_eq!(alone.fields["x"][0], batch.fields["x"][shard]);
            assert_eq!((alone.size_class, length(&alone)), (batch.size_class, length(&batch)));
        }
        let full = batches.clone().of_full_size().get(step).unwrap();
        let tokens = |batch: &HostBatch, field: &str| -> Vec<i32> {
            let rows = batch.fields[field].iter();
            let kept = rows.flat_map(|rows| {
                rows.as_slice::<i32>()
                    .chunks(rows.dims()[1])
                    .flat_map(|row| row[..4].to_vec())
                    .collect::<Vec<_>>()
            });
            kept.collect()
        };
        assert_eq!(length(&full), 12);
        for field in ["x", "segments", "mask"] {
            assert_eq!(tokens(&full, field), tokens(&batch, field), "{field}");
        }
        seen.insert(length(&batch));
    }
    assert_eq!(seen, BTreeSet::from([4, 7, 12]));
    let eval: Arc<Classification> = Arc::new(eval);
    let batches = EvalBatches::new(eval.clone(), 2, 2).unwrap();
    for (place, batch) in batches.iter().enumerate() {
        let ids = 2 * place as u64..(2 * place as u64 + 2).min(eval.num_examples());
        let longest = ids.map(|id| num_tokens(&eval, id)).max();
        let expected = [4, 7, 12].into_iter().find(|length| *length >= longest.unwrap());
        assert_eq!(Some(length(&batch.unwrap()) as i32), expected, "batch {place}");
    }
}

#[test]
fn all_formats_give_the_same_pairs() {
    let files = [
        ("a.tsv", "\u{feff}id\ta\tb\tlabel\r\n9\tba, \"be\tci\tyes\r\n8\tdo\tfu\tno\r\n"),
        ("a.csv", "id,a,b,label\n9,\"ba, \"\"be\",ci,yes\n8,do,\"fu\",no\n"),
        (
            "a.jsonl",
            "{\"a\": \"ba, \\\"be\", \"b\": \"ci\", \"label\": \"yes\"}\n\n{\"label\": \"no\", \"a\": \"do\", \"b\": \"fu\"}",
        ),
    ];
    let encoder = TextEncoder::open(&reference("bert.json"), "data.tokenizer", 12, false).unwrap();
    let tokens = encoder.encode("ba, \"be", Some("ci")).unwrap();
    for (name, text) in files {
        let (_dir, mut config) = config(name, text.as_bytes());
        config.eval_path = Some(config.path.clone());
        (config.text, config.text_pair) = ("a".to_owned(), Some("b".to_owned()));
        let (train, eval) = load(&config).unwrap();
        assert_eq!((train.num_examples(), eval.num_examples()), (2, 2), "{name}");
        assert_eq!(train.labels(), ["no", "yes"], "{name}");
        // The classes need no tokenizer, and no file but this one.
        let without = ClassificationConfig { tokenizer: None, eval_path: None, ..config.clone() };
        assert_eq!(class_names(&without).unwrap(), ["no", "yes"], "{name}");
        let [x, segments, _, y] = example(&eval, 0);
        let len = tokens.ids.len();
        assert_eq!((&x[..len], &segments[..len]), (&tokens.ids[..], &tokens.segments[..]));
        assert!(segments[len - 1] == 1 && y == [1], "{name}");
        // The order that is given holds, and numbers of classes do too.
        config.labels = vec!["yes".to_owned(), "no".to_owned()];
        let (train, _) = load(&config).unwrap();
        assert_eq!(example(&train, 0)[3], [0], "{name}");
    }
    let (_dir, mut config) = config("a.tsv", FOUR_ROWS.as_bytes());
    config.labels = vec!["negative".to_owned(), "positive".to_owned()];
    config.eval_path = Some(config.path.clone());
    let (train, _) = load(&config).unwrap();
    assert_eq!(example(&train, 1)[3], [1]);
}

#[test]
fn bad_files_are_errors_that_name_the_place() {
    let long = format!("sentence\tlabel\nba\t0\n{}\t1\n", "ba ".repeat(40));
    let cases: [(&str, &[u8], &[&str]); 20] = [
        ("a.txt", b"", &["must end in .tsv, .csv or .jsonl", "data.path"]),
        ("a.tsv", b"", &["line 1", "no column \"sentence\""]),
        ("a.tsv", b"sentence\tlabel\n", &["it has no rows; set data.path"]),
        ("a.tsv", b"text\tlabel\nba\t0\n", &["\"sentence\"", "\"text\", \"label\"", "data.text"]),
        ("a.tsv", b"sentence\tlabel\tlabel\n", &["line 1: two columns are named \"label\""]),
        ("a.tsv", b"sentence\tlabel\nba\t0\nbe\n", &["line 3: 1 column, but a row has 2"]),
        ("a.tsv", b"sentence\tlabel\nba\t0\nb\xffe\t1\n", &["line 3: byte 2", "not UTF-8"]),
        ("a.tsv", b"\x1f\x8b\x08\0\0", &["a.tsv is compressed with gzip", "gunzip", "data.path"]),
        ("a.tsv", b"sentence\tlabel\nba\t0\nbe\t2\n", &["\"0\", \"2\"", "without a gap"]),
        ("a.tsv", b"sentence\tlabel\nba\t0\nbe\t0\n", &["same label, \"0\"", "data.label"]),
        ("a.tsv", b"sentence\tlabel\nba\t0\nbe\t1\n", &["2 rows leave none for evaluation"]),
        ("a.tsv", long.as_bytes(), &["line 3", "data.max_length is 12", "data.truncate = true"]),
        ("a.csv", b"sentence,label\nba,0\n\"be,1\n", &["line 3", "never closed"]),
        ("a.csv", b"sentence,label\nba,0\nb,e,1\n", &["line 3: 3 columns"]),
        (
            "a.jsonl",
            b"{\"sentence\": \"ba\", \"label\": 0}\n{\"s\n",
            &["line 2: column", "not a JSON"],
        ),
        ("a.jsonl", b"[1]\n", &["line 1: column", "not a JSON object"]),
        (
            "a.jsonl",
            b"{\"sentence\": \"ba\"}\n",
            &["line 1", "no column \"label\"", "\"sentence\""],
        ),
        ("a.jsonl", b"{\"sentence\": null, \"label\": 0}\n", &["line 1", "\"sentence\" is null"]),
        ("a.jsonl", b"{\"sentence\": \"ba\", \"label\": 0.5}\n", &["line 1", "\"label\" is 0.5"]),
        ("a.jsonl", b"", &["it has no rows"]),
    ];
    for (name, bytes, expected) in cases {
        let (dir, config) = config(name, bytes);
        let error = load(&config).err().expect(name).to_string();
        for part in expected {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(error.contains(&dir.path().join(name).display().to_string()), "{error}");
    }
    let (_dir, mut unknown) = config("a.tsv", FOUR_ROWS.as_bytes());
    unknown.labels = vec!["1".to_owned(), "2".to_owned()];
    let error = load(&unknown).err().unwrap().to_string();
    assert!(
        error.contains("line 2: label \"0\" is none of the 2 classes, \"1\", \"2\""),
        "{error}"
    );
    unknown.path = "/no/a.tsv".into();
    let error = load(&unknown).err().unwrap().to_string();
    assert!(error.contains("/no/a.tsv") && error.contains("data.path"), "{error}");
}

#[test]
fn what_is_too_long_is_cut_if_asked() {
    let text = format!("sentence\tlabel\nba\t0\n{}\t1\nbe\t0\nci\t1\n", "ba ".repeat(40));
    let (_dir, mut config) = config("a.tsv", text.as_bytes());
    (config.truncate, config.eval_path) = (true, Some(config.path.clone()));
    let (train, _) = load(&config).unwrap();
    let [x, _, mask, _] = example(&train, 1);
    // Ends with the id of `[SEP]`, the fourth line of the vocabulary.
    assert_eq!((mask, x[11]), (vec![1; 12], 3));
}

#[test]
fn bad_tokenizers_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let whole = fs::read(reference("bert.json")).unwrap();
    let cases = [
        (dir.path().to_owned(), "neither tokenizer.json nor vocab.txt"),
        (dir.path().join("no"), "set data.tokenizer"),
        (file("damaged.json", &whole[..whole.len() / 2]), "damaged.json"),
        (file("other.json", b"{}"), "other.json"),
        (file("other.txt", b"one\ntwo\n"), "no line [SEP]"),
        (file("binary.txt", b"\xff\n"), "binary.txt"),
    ];
    for (path, expected) in cases {
        let error = TextEncoder::open(&path, "data.tokenizer", 12, false).err().expect(expected);
        let error = error.to_string();
        assert!(error.contains(expected) && error.contains("set data.tokenizer"), "{error}");
    }
    let error = TextEncoder::open(&reference("vocab.txt"), "data.tokenizer", 3, true).err();
    let error = error.unwrap().to_string();
    assert!(error.contains("data.max_length is 3") && error.contains("more than 3"), "{error}");
    // Special tokens with ids of their own.
    let foreign = String::from_utf8(whole).unwrap().replace(r#"["[CLS]",2]"#, r#"["[CLS]",1500]"#);
    let foreign = file("foreign.json", foreign.as_bytes());
    let encoder = TextEncoder::open(&foreign, "data.tokenizer", 12, false).unwrap();
    let error = encoder.encode("ba", None).unwrap_err();
    assert!(error.contains("id 1500, but its ids are below 1500"), "{error}");
    let encoder = TextEncoder::open(&reference("gpt2.json"), "data.tokenizer", 3, true).unwrap();
    assert!(encoder.encode("", None).unwrap_err().contains("no token"));
    assert_eq!(encoder.vocab_size(), 900);
    let (_dir, mut config) = config("a.tsv", FOUR_ROWS.as_bytes());
    config.tokenizer = None;
    let error = load(&config).err().unwrap().to_string();
    assert!(error.contains("set data.tokenizer"), "{error}");
}

#[test]
fn files_without_labels_are_read_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new.tsv");
    fs::write(&path, "sentence\nba be\n\nci\n").unwrap();
    let rows = read_text_rows(&path, "FILE", &["sentence"]).unwrap();
    let rows: Vec<_> = rows.iter().map(|row| (row.line, row.cells[0].as_str())).collect();
    assert_eq!(rows, [(2, "ba be"), (3, ""), (4, "ci")]);
}

/// A folder with these files.
fn folder_of(files: &serde_json::Value) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files.as_object().unwrap() {
        fs::write(dir.path().join(name), text.as_str().unwrap()).unwrap();
    }
    dir
}

/// Folders that differ in what stands beside the vocabulary: see
/// `tests/reference/tokenizer_folders.py`.
#[test]
fn folders_have_the_tokens_of_transformers() {
    let path = reference("../tokenizer_folders.json");
    let golden: serde_json::Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let numbers = |value: &serde_json::Value| -> Vec<i32> {
        value.as_array().unwrap().iter().map(|id| id.as_i64().unwrap() as i32).collect()
    };
    let mut failures = vec![];
    for folder in golden["folders"].as_array().unwrap() {
        let dir = folder_of(&folder["files"]);
        let max_length = folder["max_length"].as_u64();
        let most = max_length.unwrap_or(64) as usize;
        let encoder =
            TextEncoder::open(dir.path(), "data.tokenizer", most, max_length.is_some()).unwrap();
        let texts = folder["texts"].as_array().unwrap().iter();
        for (text, (ids, segments)) in texts.zip(
            folder["ids"].as_array().unwrap().iter().zip(folder["segments"].as_array().unwrap()),
        ) {
            let found = encoder.encode(text[0].as_str().unwrap(), text[1].as_str());
            let expected = EncodedText { ids: numbers(ids), segments: numbers(segments) };
            if found.as_ref() != Ok(&expected) {
                failures.push(format!("{}, {text}: {found:?}, not {expected:?}", folder["name"]));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Settings that versions of transformers read in different ways are refused, and settings that are
/// not read are reported.
#[test]
fn files_beside_a_tokenizer_are_refused_or_noted() {
    let golden = fs::read(reference("../tokenizer_folders.json")).unwrap();
    let golden: serde_json::Value = serde_json::from_slice(&golden).unwrap();
    let file = |name: &str| {
        let folders = golden["folders"].as_array().unwrap().iter();
        folders.filter_map(|folder| folder["files"][name].as_str()).next().unwrap().to_owned()
    };
    let (vocab, whole) = (file("vocab.txt"), file("tokenizer.json"));
    let open = |vocabulary: (&str, &str), files: &[(&str, &str)]| {
        let files = files.iter().chain([&vocabulary]);
        let files = files.map(|(name, text)| ((*name).to_owned(), (*text).into())).collect();
        let dir = folder_of(&serde_json::Value::Object(files));
        let encoder = TextEncoder::open(dir.path(), "data.tokenizer", 12, true);
        encoder.map(|encoder| encoder.warnings(true).join("\n")).map_err(|error| error.to_string())
    };
    let config = "tokenizer_config.json";
    let class = r#"{"tokenizer_class": "BertTokenizer"}"#;
    let refused = [
        ("[]", "tokenizer_config.json: it is no JSON object"),
        ("{", "tokenizer_config.json: it is not JSON"),
        (r#"{"do_lower_case": "no"}"#, "do_lower_case is \"no\", not true or false"),
        (r#"{"do_basic_tokenize": false}"#, "do_basic_tokenize is false"),
        (r#"{"truncation_side": "both"}"#, "truncation_side is \"both\""),
        (r#"{"model_input_names": "x"}"#, "model_input_names is \"x\", not a list"),
        (r#"{"cls_token": 3}"#, "cls_token: 3 is no token"),
        (r#"{"cls_token": "<cls>"}"#, "it has no line <cls>"),
        (r#"{"a_token": "<a>", "b_token": "<b>"}"#, "special tokens <a>, <b> are in no file"),
        (r#"{"added_tokens_decoder": {"x": {"content": "y"}}}"#, "\"x\" is not the id of a token"),
        (r#"{"added_tokens_decoder": {"77": {"content": "<y>"}}}"#, "\"<y>\" has the id 77, but"),
        (r#"{"tokenizer_class": "BertJapaneseTokenizer"}"#, "only BERT's vocab.txt is read"),
        (r#"{"fast_tokenizer_files": ["tokenizer.4.0.json"]}"#, "tokenizer.4.0.json"),
    ];
    for (text, expected) in refused {
        let error = open(("vocab.txt", &vocab), &[(config, text)]).expect_err(expected);
        assert!(error.contains(expected) && error.contains("set data.tokenizer"), "{error}");
    }
    let error = open(("vocab.txt", &vocab), &[("added_tokens.json", r#"{"<y>": -1}"#)]);
    assert!(error.unwrap_err().contains("added_tokens.json: \"<y>\" has the id -1"));
    let error = open(("vocab.txt", &vocab), &[("config.json", r#"{"model_type": "roberta"}"#)]);
    assert!(error.unwrap_err().contains("model_type \"roberta\", but without a tokenizer.json"));
    for (from, to, part) in [
        ("\"clean_text\": true", "\"clean_text\": false", "normalizer"),
        ("BertPreTokenizer", "Whitespace", "pre_tokenizer"),
        ("\"##\"", "\"@@\"", "model"),
        ("{\"SpecialToken\": {\"id\": \"[SEP]\", \"type_id\": 1}}", "", "post_processor"),
    ] {
        let text = whole.replace(from, to).replace(", ]", "]");
        assert_ne!(text, whole, "{part}");
        let error = open(("tokenizer.json", &text), &[(config, class)]).expect_err(part);
        let expected = format!("its {part} is not BertTokenizer's");
        assert!(error.contains(&expected) && error.contains("PreTrainedTokenizerFast"), "{error}");
    }
    let bpe = fs::read_to_string(reference("gpt2.json")).unwrap();
    let error = open(("tokenizer.json", &bpe), &[(config, class)]).unwrap_err();
    assert!(error.contains("its model is \"BPE\""), "{error}");

    let noted = [
        (class, ""),
        (r#"{"tokenizer_class": "BertTokenizer", "padding_side": "left"}"#, "padding_side is"),
        (
            r#"{"tokenizer_class": "BertTokenizer", "new": 1, "chat_template": ""}"#,
            "new is not read",
        ),
        (
            r#"{"tokenizer_class": "BertTokenizer", "strip_accents": true}"#,
            "strip_accents is null, but",
        ),
        (
            r#"{"tokenizer_class": "BertTokenizer", "model_max_length": 8}"#,
            "model_max_length beside it is 8",
        ),
        (r#"{"tokenizer_class": "MPNetTokenizer"}"#, "tokenizer.json is used as it is"),
        (
            r#"{"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": false}"#,
            "do_lower_case = false beside it has no effect",
        ),
        (r#"{"tokenizer_class": "PreTrainedTokenizerFast"}"#, "the second text of a pair"),
    ];
    for (text, expected) in noted {
        let warnings = open(("tokenizer.json", &whole), &[(config, text)]).unwrap();
        assert!(warnings.contains(expected), "{expected}: {warnings}");
        assert_eq!(warnings.is_empty(), expected.is_empty(), "{warnings}");
    }
}
