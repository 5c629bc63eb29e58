//! TensorBoard's files have the numbers of `metrics.jsonl`, also of a run that was continued.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lockstep::config::Config;
use prost::Message;

use super::{file, lockstep, metrics, names, text, train_args};

/// Numbers by name and step.
pub(super) type Scalars = BTreeMap<(String, i64), f32>;

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
    #[prost(message, optional, tag = "8")]
    tensor: Option<Tensor>,
}

#[derive(Clone, PartialEq, Message)]
struct Tensor {
    #[prost(double, repeated, tag = "6")]
    double_val: Vec<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// CRC-32C, bit by bit, masked as in these files.
fn checksum(bytes: &[u8]) -> u32 {
    let step = |crc: u32| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
    let add = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc));
    (!bytes.iter().fold(!0, add)).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The events of a file of whole records.
fn events(path: &Path) -> Vec<Event> {
    let bytes = fs::read(path).unwrap();
    let (mut rest, mut events) = (&bytes[..], vec![]);
    while !rest.is_empty() {
        let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
        let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
        let data = &rest[12..12 + length];
        assert_eq!((word(8), word(12 + length)), (checksum(&rest[..8]), checksum(data)));
        events.push(Event::decode(data).unwrap());
        rest = &rest[16 + length..];
    }
    events
}

/// What a reader has after all files: a session that starts at a step voids what was there of it
/// and of later ones. No number comes twice.
pub(super) fn scalars(out: &Path) -> Scalars {
    let folder = out.join("tensorboard");
    let mut scalars = Scalars::new();
    for event in names(&folder).iter().flat_map(|name| events(&folder.join(name))) {
        if event.session_log.is_some_and(|log| log.status == 1) {
            scalars.retain(|(_, step), _| *step < event.step);
        }
        for value in event.summary.into_iter().flat_map(|summary| summary.value) {
            let Some(number) = value.simple_value else { continue };
            let place = (value.tag, event.step);
            assert_eq!(scalars.insert(place.clone(), number), None, "{place:?}");
        }
    }
    scalars
}

/// The histograms: left and right end and number of values of each bucket.
pub(super) fn histograms(out: &Path) -> BTreeMap<(String, i64), Vec<[f64; 3]>> {
    let folder = out.join("tensorboard");
    let events = names(&folder).into_iter().flat_map(|name| events(&folder.join(name)));
    let values = events.flat_map(|event| {
        let values = event.summary.into_iter().flat_map(|summary| summary.value);
        values.map(move |value| (event.step, value))
    });
    let with_numbers = values.filter_map(|(step, value)| {
        let numbers = value.tensor.filter(|tensor| !tensor.double_val.is_empty())?.double_val;
        Some(((value.tag, step), numbers.chunks(3).map(|x| x.try_into().unwrap()).collect()))
    });
    with_numbers.collect()
}

/// The numbers of `metrics.jsonl`.
fn recorded(out: &Path) -> Scalars {
    let mut scalars = Scalars::new();
    for line in metrics(out) {
        let step = line["step"].as_i64().unwrap();
        for (name, value) in line.as_object().unwrap() {
            if !["step", "time"].contains(&name.as_str()) {
                scalars.insert((name.clone(), step), value.as_f64().unwrap() as f32);
            }
        }
    }
    scalars
}

/// A run that has taken its last steps twice, because its last checkpoint was lost; and the step
/// from which it was continued.
fn continued_run(dir: &Path) -> (PathBuf, i64) {
    let out = dir.join("out");
    let run = |epochs: &str, more: &[&str]| {
        let sets = [
            "observe.tensorboard=true",
            "model.hidden=[8]",
            "train.eval_every=5",
            "checkpoint.every_steps=10",
            "checkpoint.keep=9",
            epochs,
        ];
        lockstep(&train_args(&sets, &[&["--out", text(&out)], more].concat())).succeeded()
    };
    run("train.epochs=1", &[]);
    let checkpoints = out.join("checkpoints");
    let mut saved = names(&checkpoints);
    fs::remove_dir_all(checkpoints.join(saved.pop().unwrap())).unwrap();
    // On a slow disk the one of step 20 is skipped, because that of step 10 is still being written.
    let resumed_at = saved.pop().unwrap().strip_prefix("step_").unwrap().parse().unwrap();
    run("train.epochs=2", &["--resume"]);
    (out, resumed_at)
}

#[test]
fn every_number_of_a_run_that_was_continued_is_there_once() {
    let dir = tempfile::tempdir().unwrap();
    let (out, resumed_at) = continued_run(dir.path());
    let folder = out.join("tensorboard");
    let files = names(&folder);
    assert_eq!(files.len(), 2, "{files:?}");
    let restart = events(&folder.join(&files[1])).into_iter().find(|e| e.session_log.is_some());
    assert_eq!(restart.unwrap().step, resumed_at);
    let (found, expected) = (scalars(&out), recorded(&out));
    assert!(expected.len() > 44 * 10 && expected.contains_key(&("eval_accuracy".into(), 43)));
    assert_eq!(found, expected);
    // The events have the times of the lines.
    let times = metrics(&out).into_iter().map(|line| line["time"].as_f64().unwrap());
    let is_loss = |event: &Event| {
        event.summary.iter().any(|summary| summary.value.iter().any(|value| value.tag == "loss"))
    };
    let second = events(&folder.join(&files[1])).into_iter().filter(is_loss);
    let second: Vec<_> = second.map(|event| event.wall_time).collect();
    assert_eq!(second, times.skip(resumed_at as usize).collect::<Vec<_>>());
}

/// By TensorBoard's own reader, which pip installs.
#[test]
#[ignore = "installs TensorBoard; of the full set"]
fn tensorboard_reads_the_numbers_and_the_configuration() {
    const READER: &str = r#"
import json, sys
from tensorboard.backend.event_processing import event_accumulator, tag_types
from tensorboard.plugins.hparams import plugin_data_pb2
events = event_accumulator.EventAccumulator(sys.argv[1], size_guidance={tag_types.SCALARS: 0})
events.Reload()
scalars = [[tag, e.step, e.value] for tag in events.Tags()["scalars"] for e in events.Scalars(tag)]
text = events.Tensors("configuration")[0].tensor_proto.string_val[0].decode()
data = events.PluginTagToContent("hparams")
start, end = [plugin_data_pb2.HParamsPluginData.FromString(data[f"_hparams_/session_{name}_info"])
              for name in ("start", "end")]
hparams = {key: getattr(of, of.WhichOneof("kind"))
           for key, of in start.session_start_info.hparams.items()}
json.dump([scalars, text, hparams, end.session_end_info.status], sys.stdout)
"#;
    let dir = tempfile::tempdir().unwrap();
    let (out, _) = continued_run(dir.path());
    let venv = dir.path().join("venv");
    let run = |program: &Path, args: &[&str]| {
        let output = Command::new(program).args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    run(Path::new("python3"), &["-m", "venv", text(&venv)]);
    run(&venv.join("bin/pip"), &["install", "--quiet", "tensorboard"]);
    let reader = file(dir.path(), "reader.py", READER.as_bytes());
    let folder = out.join("tensorboard");
    let read = run(&venv.join("bin/python"), &[text(&reader), text(&folder)]);
    type Read = (Vec<(String, i64, f64)>, String, BTreeMap<String, serde_json::Value>, i32);
    let (found, config, hparams, status): Read = serde_json::from_slice(&read).unwrap();
    let num_found = found.len();
    let found: Scalars =
        found.into_iter().map(|(tag, step, value)| ((tag, step), value as f32)).collect();
    assert_eq!(found.len(), num_found, "a number comes twice");
    assert_eq!(found, recorded(&out));
    assert_eq!(status, 1);
    assert_eq!(hparams["optimizer.name"], "adamw");
    assert_eq!(hparams["train.global_batch"], 64.0);
    // The configuration of the first process: TensorBoard shows it with its step.
    let config: String =
        config.lines().map(|line| format!("{}\n", line.strip_prefix("    ").unwrap())).collect();
    let config = Config::parse(&config, Path::new("/a.toml"), &[]).unwrap();
    assert!(config.observe.tensorboard);
}
