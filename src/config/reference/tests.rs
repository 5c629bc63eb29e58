//! The table against what is read: names, defaults, types and ranges.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::path::Path;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use toml::{Table, Value};

use super::reference;
use crate::config::key::{Fallback, KeyInfo, KeyLimits, Kind, POSITIVE_F32};
use crate::config::keys::SectionInfo;
use crate::config::{Config, SECTIONS};

/// Samples for [`Kind::Other`]: some values that are taken, and some that are not.
const SAMPLES: &[(&str, &[&str], &[&str])] = &[
    ("`HOST:PORT`", &["\"host:1\"", "\"[::1]:65535\""], &["\"host\"", "\"host:0\"", "\":1\"", "1"]),
    (
        "`FIRST..END`, at most 10000 steps",
        &["\"0..1\"", "\"100..10100\""],
        &["\"5\"", "\"5..5\"", "\"6..5\"", "\"0..10001\"", "\"-1..5\"", "1"],
    ),
    ("`\"loss\"`, or a metric of the model", &["\"loss\"", "\"f1\""], &["1"]),
    ("`1`", &["1"], &["0", "2", "\"auto\""]),
    ("path", &["\"a\"", "\"/a/b\""], &["1"]),
    ("name", &["\"eth1\""], &["1"]),
    ("column name", &["\"a\"", "\"premise text\""], &["1"]),
    (
        "list of different strings, none or two or more",
        &["[]", "[\"no\", \"yes\"]"],
        &["[\"a\"]", "[\"a\", \"a\"]", "\"a\"", "[1, 2]"],
    ),
    (
        "list of at most 16 ascending whole numbers below `max_length`",
        &["[]", "[16]", "[8, 16, 127]"],
        &["[128]", "[0]", "[16, 8]", "[16, 16]", "16"],
    ),
    ("file name", &["\"a\""], &["1"]),
    ("whole number, 1 to 65536", &["1", "65536"], &["0", "65537", "1.5", "2147483648"]),
    (POSITIVE_F32, &["1.2e-38", "3.4e38"], &["0", "-1", "1.1e-38", "3.5e38", "inf", "nan"]),
    ("list of patterns", &["[]", "[\"*.bias\", \"a?\"]"], &["[\"[\"]", "\"*\""]),
    ("list of strings", &["[]", "[\"rs\", \"md\"]"], &["\"rs\"", "[1]"]),
    ("list of up to 1024 whole numbers, each 1 or more", &["[]", "[1, 7]"], &["[0]", "[1.5]", "1"]),
    (
        "list of whole numbers with a product from 1 to 1048576",
        &["[]", "[1048576]", "[3, 32, 32]"],
        &["[1048577]", "[2, 0]", "4"],
    ),
    (
        "list of 1 to 1000 whole numbers from 0 on, rising",
        &["[0]", "[7]"],
        &["[]", "[-1]", "[5, 5]", "[0.5]", "3"],
    ),
    (
        "list of 1 to 1000 numbers from 0 on, rising",
        &["[0]", "[7.5]"],
        &["[]", "[-0.5]", "[5, 5]", "[inf]", "3"],
    ),
    ("list of numbers, 0 or more, one for each boundary", &["[0]", "[2.5]"], &["[-0.5]", "[1, 2]"]),
    ("whole number, `image_size` to 16384", &["224", "16384"], &["223", "16385", "256.0"]),
    (
        "`\"cpu\"`, `\"cuda\"`, `\"tpu\"`, or the path of a plugin, with a `/` in it",
        &["\"cpu\"", "\"cuda\"", "\"tpu\"", "\"./plugin.so\""],
        &["\"plugin.so\"", "1"],
    ),
    ("`\"auto\"`, `true` or `false`", &["\"auto\"", "true", "false"], &["1", "\"yes\""]),
    (
        "table of reasons by rule",
        &["{}", "{ rate-too-low = \"distillation\" }"],
        &["{ rate-too-low = \"\" }", "{ a = 1 }", "[]"],
    ),
    (
        "table of numbers above 0, up to 1e6, by pattern",
        &["{}", "{ \"*\" = 10, a = 1e-3 }"],
        &["{ a = 0 }", "{ a = 1e7 }", "{ \"[\" = 1 }", "{ a = \"1\" }", "[]"],
    ),
    (
        "table of numbers, 0 or more, by pattern",
        &["{}", "{ \"*\" = 0, a = 0.5 }"],
        &["{ a = -0.5 }", "{ \"[\" = 1 }", "[]"],
    ),
    ("name of an array", &["\"a\""], &["1"]),
    (
        "column name, or a list of them",
        &["\"a\"", "[\"a\", \"b\"]"],
        &["[]", "[\"a\", \"a\"]", "1", "[1]"],
    ),
    (
        "list of columns",
        &["[{ name = \"a\", mean = 0.5, deviation = 2.0 }]"],
        &["[1]", "[{ name = 1 }]", "[{ nam = \"a\" }]"],
    ),
    (
        "`\"balanced\"`, or a list of numbers above 0",
        &["\"balanced\"", "[]", "[0.5, 2.0]"],
        &["\"even\"", "[0.0]", "[-1.0]", "[inf]", "1"],
    ),
    ("table of options", &["{}"], &["{ a = 1 }", "[]"]),
    ("table of XLA options", &["{}", "{ xla_a = 0.5, xla_b = true }"], &["{ a = [1] }", "[]"]),
];

/// Values of the keys that must be set.
const NEEDED: [(&str, &str); 9] = [
    ("target", "\"a\""),
    ("path", "\"a\""),
    ("vocab_size", "300"),
    ("global_batch", "64"),
    ("steps", "1000"),
    ("peak", "0.1"),
    ("decay_steps", "5"),
    ("boundaries", "[10]"),
    ("factors", "[0.5]"),
];

/// Settings beside a key so that it has all of its range.
const COMPANIONS: [(&str, &[&str]); 28] = [
    ("data.late_from", &["data.late=skip"]),
    ("observe.noise_scale_every", &["mesh.data=2"]),
    ("data.eval_y", &["data.eval_x=other"]),
    ("mesh.data", &["train.global_batch=131072"]),
    ("parallel.zero", &["mesh.fsdp=2"]),
    ("parallel.gather_dtype", &["mesh.fsdp=2"]),
    ("parallel.gather_exact", &["mesh.fsdp=2", "parallel.gather_dtype=int8"]),
    ("parallel.top_k_block", &["parallel.compression=top_k"]),
    ("parallel.top_k_momentum", &["parallel.compression=top_k", "optimizer.name=sgd"]),
    ("parallel.power_sgd_rank", &["parallel.compression=power_sgd"]),
    ("parallel.scatter_line", &["mesh.fsdp=auto"]),
    ("parallel.context", &["mesh.tensor=2"]),
    ("parallel.pipeline_schedule", &["mesh.pipeline=2"]),
    ("parallel.pipeline_chunks", &["mesh.pipeline=2"]),
    ("sync.outer_learning_rate", &["sync.every=2"]),
    ("sync.outer_momentum", &["sync.every=2"]),
    ("model.width", &["model.num_heads=1"]),
    ("model.num_heads", &["model.width=1048576"]),
    ("train.microbatch", &["train.global_batch=65536"]),
    ("train.steps_per_launch", &["train.check_lockstep_every=0"]),
    ("train.patience", &["train.eval_every=1"]),
    ("schedule.base_lr", &["schedule.base_batch=64"]),
    ("schedule.base_batch", &["schedule.base_lr=0.1"]),
    ("schedule.scaling", &["schedule.base_lr=0.1", "schedule.base_batch=64"]),
    ("schedule.warmup", &["schedule.warmup_steps=5", "schedule.warmup_factor=0.5"]),
    ("schedule.warmup_factor", &["schedule.warmup_steps=5"]),
    (
        "schedule.warmup_from",
        &["schedule.base_lr=0.1", "schedule.base_batch=64", "schedule.warmup_steps=5"],
    ),
    ("schedule.peak_at", &["schedule.warmup_steps=5"]),
];

/// The sections and what picks their keys: every choice of every section.
fn every_choice() -> impl Iterator<Item = (&'static str, &'static str)> {
    SECTIONS
        .into_iter()
        .flat_map(|section| section.choices().iter().map(move |choice| (section.name, *choice)))
}

fn info(name: &str) -> SectionInfo {
    SECTIONS.into_iter().find(|info| info.name == name).unwrap()
}

fn keys_of(section: &str, choice: &'static str) -> impl Iterator<Item = &'static KeyInfo> {
    info(section).keys(choice).iter()
}

/// The fewest keys: each section with the choice that is given for it, or its first.
fn smallest(choices: &[(&'static str, &'static str)]) -> Table {
    let section = |info: SectionInfo| {
        let chosen = choices.iter().find(|(name, _)| *name == info.name).map(|row| row.1);
        let chosen = chosen.unwrap_or(info.choices()[0]);
        let tag = info.tag.iter().map(|tag| (tag.name.to_owned(), chosen.into()));
        let mut table: Table = tag.collect();
        for key in info.keys(chosen).iter().filter(|key| key.fallback == Fallback::Required) {
            let needed = NEEDED.iter().find(|row| row.0 == key.name);
            table.insert(key.name.into(), value(needed.unwrap().1));
        }
        (info.name.to_owned(), Value::Table(table))
    };
    SECTIONS.into_iter().map(section).collect()
}

fn value(text: &str) -> Value {
    let table: Table = toml::from_str(&format!("value = {text}")).unwrap();
    table["value"].clone()
}

fn parse(file: &Table, sets: &[String]) -> Result<Config, String> {
    let config = Config::parse(&file.to_string(), Path::new("/a/b.toml"), sets);
    config.map_err(|error| error.to_string())
}

/// Values at the ends of what a key takes, and just beyond them.
fn samples(key: &KeyInfo) -> (Vec<String>, Vec<String>) {
    let texts = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect::<Vec<_>>();
    let numbers =
        |numbers: &[f64]| numbers.iter().map(|number| format!("{number:?}")).collect::<Vec<_>>();
    match (&key.kind, &key.limits) {
        (Kind::Bool, _) => (texts(&["true", "false"]), texts(&["1", "\"yes\""])),
        (Kind::OneOf(words), _) => {
            (words.iter().map(|word| format!("{word:?}")).collect(), texts(&["\"zzz\"", "1"]))
        }
        (Kind::Other(text), _) => {
            let row = SAMPLES.iter().find(|row| row.0 == *text);
            let (_, good, bad) = row.unwrap_or_else(|| panic!("no samples of {text:?}"));
            (texts(good), texts(bad))
        }
        (kind, KeyLimits::Integer(range)) => {
            let (low, high) = (*range.start(), *range.end());
            let beyond = high.checked_add(1).map(|beyond| beyond.to_string());
            let last = if beyond.is_some() { high } else { low + 7 };
            let mut good = vec![low.to_string(), last.to_string()];
            let mut bad = texts(&["1.5", "\"many\""]);
            bad.extend(beyond.into_iter().chain([(low - 1).to_string()]));
            if *kind == Kind::AutoOrInteger {
                good.push("\"auto\"".to_owned());
            }
            (good, bad)
        }
        (_, KeyLimits::Number(low, high)) => {
            let (low_good, low_bad) = match *low {
                Bound::Included(low) => (Some(low), Some(low.next_down())),
                Bound::Excluded(low) => (Some(low + f64::MIN_POSITIVE), Some(low)),
                Bound::Unbounded => (None, None),
            };
            let (high_good, high_bad) = match *high {
                Bound::Included(high) => (Some(high), Some(high.next_up())),
                Bound::Excluded(high) => (Some(high.next_down()), Some(high)),
                Bound::Unbounded => (None, None),
            };
            let good: Vec<_> = low_good.into_iter().chain(high_good).collect();
            let bad: Vec<_> = low_bad.into_iter().chain(high_bad).collect();
            (numbers(&good), [numbers(&bad), texts(&["nan", "inf", "true", "\"x\""])].concat())
        }
        (kind, KeyLimits::None) => panic!("{}: {kind:?} without limits", key.name),
    }
}

#[test]
fn every_key_is_declared_in_full() {
    for (section, choice) in every_choice() {
        let mut names = BTreeSet::new();
        for key in keys_of(section, choice) {
            let place = format!("[{section}] {choice}, {}: {key:?}", key.name);
            assert!(names.insert(key.name), "twice: {place}");
            let ends = key.meaning.ends_with(['.', '?']);
            assert!(ends && !key.meaning.contains('|'), "{place}");
            assert!(key.kind != Kind::Other(String::new()), "{place}");
            assert!(
                NEEDED.iter().any(|row| row.0 == key.name) || key.fallback != Fallback::Required,
                "{place}"
            );
        }
        assert!(info(section).about.ends_with('.'));
    }
}

#[test]
fn defaults_are_what_is_read() {
    for (section, choice) in every_choice() {
        let text = parse(&smallest(&[(section, choice)]), &[]).unwrap().to_toml().unwrap();
        let file: Table = toml::from_str(&text).unwrap();
        let table = file[section].as_table().unwrap();
        for key in keys_of(section, choice) {
            let (name, found) = (key.name, table.get(key.name));
            let place = format!("[{section}] {choice}, {name}:\n{text}");
            match &key.fallback {
                Fallback::Required => assert!(found.is_some(), "{place}"),
                Fallback::Value(default) => assert_eq!(found, Some(default), "{place}"),
                Fallback::Absent(_) => {
                    let says = text.contains(&format!("\n# {name} is not set: "));
                    assert!(found.is_none() && says, "{place}");
                }
                Fallback::Depends(_) => {}
            }
        }
    }
}

#[test]
fn ranges_are_what_is_taken() {
    for (section, choice) in every_choice() {
        let file = smallest(&[(section, choice)]);
        for key in keys_of(section, choice) {
            let path = format!("{section}.{}", key.name);
            let companions =
                COMPANIONS.iter().find(|row| row.0 == path).map_or(&[][..], |row| row.1);
            let read = |value: &str| {
                let companions = companions.iter().map(|set| set.to_string());
                let sets: Vec<_> = companions.chain([format!("{path}={value}")]).collect();
                parse(&file, &sets)
            };
            let (good, bad) = samples(key);
            for value in good {
                read(&value).unwrap_or_else(|error| panic!("{path} = {value}: {error}"));
            }
            for value in bad {
                let error = read(&value).expect_err(&format!("[{choice}] {path} = {value}"));
                assert!(error.contains(&path), "{error}");
                if let (Kind::OneOf(words), "\"zzz\"") = (&key.kind, value.as_str()) {
                    let words: Vec<_> = words.iter().map(|word| format!("{word:?}")).collect();
                    let (_, allowed) = error.split_once(&words.join(", ")).expect(&error);
                    assert!(!allowed.starts_with(','), "{error}");
                }
            }
        }
    }
}

#[test]
fn what_must_be_set_must_be_set() {
    for (section, choice) in every_choice() {
        let info = info(section);
        for key in info.keys(choice) {
            let is_in_a_pair =
                info.exclusive.iter().any(|(a, b)| a.contains(&key.name) || b.contains(&key.name));
            if matches!(key.fallback, Fallback::Required) && !is_in_a_pair {
                let mut file = smallest(&[(section, choice)]);
                file[section].as_table_mut().unwrap().remove(key.name);
                let path = format!("{section}.{}", key.name);
                let error = parse(&file, &[]).expect_err(&path);
                assert!(error.contains(&path), "{error}");
            }
        }
    }
}

/// `--set` arguments for some of the keys of a section, with values out of their ranges.
fn some_sets(section: &'static str, choice: &'static str) -> impl Strategy<Value = Vec<String>> {
    let keys: Vec<_> = keys_of(section, choice).collect();
    let values = keys.into_iter().map(move |key| {
        let path = format!("{section}.{}", key.name);
        let at_the_ends = select(samples(key).0);
        let value = match (&key.kind, &key.limits) {
            (Kind::Integer, KeyLimits::Integer(range)) => {
                let high = (*range.end()).min(range.start() + 1000);
                let within = (*range.start()..=high).prop_map(|value| value.to_string());
                prop_oneof![within, at_the_ends].boxed()
            }
            (Kind::Number, _) => {
                let within = (0.0..1.0f64).prop_map(|value| format!("{value:?}"));
                prop_oneof![within, at_the_ends].boxed()
            }
            _ => at_the_ends.boxed(),
        };
        prop::option::weighted(0.2, value.prop_map(move |value| format!("{path}={value}")))
    });
    values.collect::<Vec<_>>().prop_map(|sets| sets.into_iter().flatten().collect())
}

#[test]
fn whatever_is_set_survives_being_written_and_read_again() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut num_accepted = 0;
    for _ in 0..7000 {
        let mut draw =
            |choices: Vec<&'static str>| select(choices).new_tree(&mut runner).unwrap().current();
        let choices: Vec<_> = SECTIONS
            .iter()
            .map(|section| {
                let choices = every_choice().filter(|row| row.0 == section.name);
                (section.name, draw(choices.map(|row| row.1).collect()))
            })
            .collect();
        let sets: Vec<_> = choices
            .iter()
            .flat_map(|(section, choice)| {
                some_sets(section, choice).new_tree(&mut runner).unwrap().current()
            })
            .collect();
        let Ok(config) = parse(&smallest(&choices), &sets) else { continue };
        num_accepted += 1;
        let text = config.to_toml().unwrap();
        let again = Config::parse(&text, Path::new("/elsewhere/config.toml"), &[]);
        assert_eq!(again.unwrap_or_else(|error| panic!("{error}\n{text}")), config, "{text}");
    }
    assert!(num_accepted > 100, "only {num_accepted} were valid");
}

#[test]
fn the_page_names_every_key() {
    let page = reference();
    for (section, choice) in every_choice() {
        for key in keys_of(section, choice) {
            assert!(
                page.contains(&format!("| `{}` | {} |", key.name, key.values())),
                "{}",
                key.name
            );
        }
    }
}
