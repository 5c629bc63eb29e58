//! The trace of chosen steps: it has these steps, and their waits are those of `metrics.jsonl`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use prost::{Message, Oneof};
use serde_json::Value;

use super::{file, lockstep, metrics, names, text, train_args};

#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<Packet>,
}

#[derive(Clone, PartialEq, Message)]
struct Packet {
    #[prost(uint64, tag = "8")]
    timestamp: u64,
    #[prost(uint32, tag = "10")]
    sequence: u32,
    #[prost(message, optional, tag = "11")]
    event: Option<Event>,
    #[prost(message, optional, tag = "60")]
    track: Option<Track>,
}

#[derive(Clone, PartialEq, Message)]
struct Track {
    #[prost(uint64, tag = "1")]
    uuid: u64,
    #[prost(string, tag = "2")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(message, repeated, tag = "4")]
    args: Vec<Arg>,
    #[prost(int32, tag = "9")]
    kind: i32,
    #[prost(uint64, tag = "11")]
    track: u64,
    #[prost(string, tag = "23")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Arg {
    #[prost(string, tag = "10")]
    name: String,
    #[prost(oneof = "Number", tags = "3, 5")]
    number: Option<Number>,
    #[prost(message, repeated, tag = "11")]
    entries: Vec<Arg>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Number {
    #[prost(uint64, tag = "3")]
    Count(u64),
    #[prost(double, tag = "5")]
    Double(f64),
}

/// A slice: its track, its name, its milliseconds, and the first level of the values beside it.
type Slice = (String, String, f64, BTreeMap<String, f64>);

fn read(path: &Path) -> Vec<Slice> {
    let packets = Trace::decode(&*fs::read(path).unwrap()).unwrap().packet;
    let tracks = packets.iter().filter_map(|packet| packet.track.clone());
    let tracks: BTreeMap<_, _> = tracks.map(|track| (track.uuid, track.name)).collect();
    let (mut open, mut slices) = (BTreeMap::new(), vec![]);
    for Packet { timestamp, event, .. } in packets {
        let Some(event) = event else { continue };
        if event.kind == 1 {
            open.insert(event.track, (timestamp, event));
            continue;
        }
        let (from, begun) = open.remove(&event.track).unwrap();
        let number = |arg: Arg| match arg.number? {
            Number::Count(number) => Some((arg.name, number as f64)),
            Number::Double(number) => Some((arg.name, number)),
        };
        // Those of collectives have the name of their group before their own.
        let inside = begun.args.iter().flat_map(|arg| &arg.entries).flat_map(|of| {
            let entry =
                |arg: &Arg| Arg { name: format!("{} {}", of.name, arg.name), ..arg.clone() };
            of.entries.iter().map(entry)
        });
        let args = begun.args.iter().cloned().chain(inside).filter_map(number).collect();
        let ms = (timestamp - from) as f64 / 1e6;
        slices.push((tracks[&event.track].clone(), begun.name, ms, args));
    }
    slices
}

/// A run of two processes with two replicas each, from which ten steps are traced.
fn traced(dir: &Path) -> PathBuf {
    let out = dir.join("out");
    let sets = [
        "observe.trace_steps=5..15",
        "mesh.data=4",
        "train.epochs=1",
        "train.eval_every=10",
        "train.check_lockstep_every=10",
        "checkpoint.every_steps=10",
    ];
    let train = train_args(&sets, &["--out", text(&out)]);
    let launch = ["launch", "--num-processes", "2", "--"].map(str::to_owned);
    lockstep(&[&launch[..], &train].concat()).succeeded();
    out
}

/// The sum of a field of `metrics.jsonl` over the traced steps.
fn sum(lines: &[Value], field: &str) -> f64 {
    lines[5..15].iter().map(|line| line[field].as_f64().unwrap()).sum()
}

#[test]
fn each_process_traces_the_chosen_steps() {
    let dir = tempfile::tempdir().unwrap();
    let out = traced(dir.path());
    let lines = metrics(&out);
    let files = names(&out.join("trace"));
    assert_eq!(files, ["process-0.perfetto-trace", "process-1.perfetto-trace"]);
    for (process, name) in files.iter().enumerate() {
        let slices = read(&out.join("trace").join(name));
        let on = |track: &str| -> Vec<&Slice> {
            slices.iter().filter(|slice| slice.0 == track).collect()
        };
        let steps: Vec<_> =
            on("steps").into_iter().filter(|slice| slice.1.starts_with("step ")).collect();
        let expected: Vec<_> = (5..15).map(|step| format!("step {step}")).collect();
        assert_eq!(
            steps.iter().map(|slice| &slice.1).collect::<Vec<_>>(),
            expected.iter().collect::<Vec<_>>()
        );
        for replica in [2 * process, 2 * process + 1] {
            let computed = on(&format!("replica {replica}"));
            assert_eq!(computed.len(), 10);
            let args = &computed[0].3;
            let bytes = args.iter().find(|(name, _)| {
                name.starts_with("all_reduce of f32") && name.ends_with(" bytes")
            });
            // The gradients of 86,026 parameters, and the sums of a step.
            assert!(bytes.is_some_and(|(_, bytes)| *bytes >= 4.0 * 86_026.0), "{args:?}");
            // Each collective is a slice of its own, and so is each product.
            let ops = on(&format!("ops of replica {replica}"));
            let collectives = || ops.iter().filter(|op| op.1 == "all_reduce");
            let each_step = |what: &str| -> f64 {
                let of_kinds = args.iter().filter(|(name, _)| {
                    name.starts_with("all_reduce of") && name.ends_with(&format!(" {what}"))
                });
                of_kinds.map(|(_, value)| value).sum()
            };
            assert_eq!(collectives().count() as f64, 10.0 * each_step("count"), "{ops:?}");
            let bytes: f64 = collectives().map(|op| op.3["bytes"]).sum();
            assert_eq!(bytes, 10.0 * each_step("bytes"), "{args:?}");
            let products: Vec<_> = ops.iter().filter(|op| op.1 == "dot_general").collect();
            assert!(products.len() >= 10 && products.len().is_multiple_of(10), "{ops:?}");
            let ms = |slices: &[&Slice]| slices.iter().map(|slice| slice.2).sum::<f64>();
            let in_products: f64 = products.iter().map(|op| op.2).sum();
            assert!(in_products > 0.0 && in_products < ms(&computed), "{in_products}");
        }
        let loop_ = on("loop");
        let num = |what: &str| loop_.iter().filter(|slice| slice.1.starts_with(what)).count();
        assert_eq!([num("wait for data"), num("launch")], [10, 10]);
        assert_eq!([num("evaluate"), num("compare"), num("copy for checkpoint")], [1, 1, 1]);
        assert_eq!(on("checkpoints written").len(), 1);
        // Beside a step are its numbers: those of this process, or of all.
        let waited: f64 = steps.iter().map(|slice| slice.3["collective_wait_ms"]).sum();
        let in_slices: f64 = on("waits for others in collectives").iter().map(|of| of.2).sum();
        assert!((in_slices - waited).abs() < 1e-3, "{in_slices} {waited}");
        assert_eq!(sum(&lines, "loss"), steps.iter().map(|slice| slice.3["loss"]).sum::<f64>());
        if process == 0 {
            assert!((waited - sum(&lines, "collective_wait_ms")).abs() < 1e-6, "{waited}");
            let ms = |slices: &[&Slice]| slices.iter().map(|slice| slice.2).sum::<f64>();
            let data: Vec<_> =
                loop_.into_iter().filter(|slice| slice.1.starts_with("wait for")).collect();
            for (found, field) in [(ms(&data), "data_wait_ms"), (ms(&steps), "step_ms")] {
                let expected = sum(&lines, field);
                assert!((found - expected).abs() < 1e-3, "{field}: {found} {expected}");
            }
        }
    }
}

#[test]
fn steps_that_are_none_are_refused_and_others_are_warned_of() {
    let done = lockstep(&train_args(&["observe.trace_steps=\"5\""], &[]));
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    assert!(done.stderr.contains("FIRST..END, such as 100..110"), "{}", done.stderr);
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let sets = ["observe.trace_steps=500..510", "train.epochs=1", "model.hidden=[8]"];
    let done = lockstep(&train_args(&sets, &["--out", text(&out)])).succeeded();
    let said = "warning: nothing is traced: observe.trace_steps is 500..510, but the steps of this \
                run are 0..22";
    assert!(done.stderr.contains(said), "{}", done.stderr);
    assert!(!out.join("trace").exists());
}

/// By Perfetto's own messages, which pip installs; and both processes as one file.
#[test]
#[ignore = "installs Perfetto's messages; of the full set"]
fn the_messages_of_perfetto_read_the_trace() {
    const READER: &str = r#"
import json, sys
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2
data = b"".join(open(path, "rb").read() for path in sys.argv[1:])
trace = perfetto_trace_pb2.Trace.FromString(data)
Event = perfetto_trace_pb2.TrackEvent
tracks, open_, slices, sequences = {}, {}, [], set()
for packet in trace.packet:
    assert not len(UnknownFieldSet(packet))
    sequences.add(packet.trusted_packet_sequence_id)
    if packet.HasField("track_descriptor"):
        track = packet.track_descriptor
        tracks[track.uuid] = track.process.process_name or track.name
        assert not track.parent_uuid or track.parent_uuid in tracks
    if packet.HasField("track_event"):
        event = packet.track_event
        if event.type == Event.TYPE_SLICE_BEGIN:
            open_[event.track_uuid] = (packet.timestamp, event)
        else:
            assert event.type == Event.TYPE_SLICE_END
            begin, of = open_.pop(event.track_uuid)
            args = {arg.name: arg.double_value for arg in of.debug_annotations}
            slices.append([event.track_uuid >> 32, tracks[event.track_uuid], of.name,
                           (packet.timestamp - begin) / 1e6, args])
json.dump([sorted(sequences), sorted(tracks.values()), slices], sys.stdout)
"#;
    let dir = tempfile::tempdir().unwrap();
    let out = traced(dir.path());
    let lines = metrics(&out);
    let venv = dir.path().join("venv");
    let run = |program: &Path, args: &[&str]| {
        let output = Command::new(program).args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    run(Path::new("python3"), &["-m", "venv", text(&venv)]);
    run(&venv.join("bin/pip"), &["install", "--quiet", "perfetto", "protobuf"]);
    let reader = file(dir.path(), "reader.py", READER.as_bytes());
    let files = [0, 1].map(|of| out.join(format!("trace/process-{of}.perfetto-trace")));
    let args = [text(&reader), text(&files[0]), text(&files[1])];
    let read = run(&venv.join("bin/python"), &args);
    type OfProcess = (u64, String, String, f64, BTreeMap<String, f64>);
    let (sequences, tracks, slices): (Vec<u64>, Vec<String>, Vec<OfProcess>) =
        serde_json::from_slice(&read).unwrap();
    assert_eq!(sequences, [1, 2]);
    for track in ["lockstep process 0", "lockstep process 1", "replica 0", "replica 3", "steps"] {
        assert!(tracks.iter().any(|found| found == track), "{tracks:?}");
    }
    let of = |process, track: &str| -> Vec<&OfProcess> {
        slices.iter().filter(|slice| (slice.0, &*slice.1) == (process, track)).collect()
    };
    let is_step = |slice: &&&OfProcess| slice.2.starts_with("step ");
    for process in [1, 2] {
        assert_eq!(of(process, "steps").iter().filter(is_step).count(), 10);
    }
    let waits: f64 = of(1, "waits for others in collectives").iter().map(|slice| slice.3).sum();
    let expected = sum(&lines, "collective_wait_ms");
    assert!((waits - expected).abs() < 1e-3, "{waits} {expected}");
    let in_args = of(1, "steps");
    let in_args: f64 = in_args.iter().filter(is_step).map(|of| of.4["collective_wait_ms"]).sum();
    assert!((in_args - expected).abs() < 1e-6, "{in_args} {expected}");
}
