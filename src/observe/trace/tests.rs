use std::collections::BTreeMap;

use super::*;
use crate::observe::{
    EvalResult, Metric, RunInfo, RunProgress, SavedCheckpoint, StepEval, StepMetrics,
};

static LOSS: Metric = Metric::number(Metric::LOSS);

fn sink(out: &Path) -> StepTrace {
    let all_reduce = StepCollective {
        name: "all_reduce of f32 over {data}".to_owned(),
        count: 2,
        bytes: 80,
        sent_bytes: 60,
    };
    StepTrace::new(TraceChoice {
        out: out.to_owned(),
        steps: 2..5,
        process_index: 1,
        replicas: vec![4, 5],
        collectives: vec![all_reduce],
    })
}

/// A launch that began at a time in milliseconds.
fn launch(origin: Instant, at: u64, steps: Range<u64>, waits: &[Range<u64>]) -> RunEvent {
    let num_steps = (steps.end - steps.start) as usize;
    let span = |from, to| {
        let time = |ms| origin + Duration::from_millis(at + ms);
        time(from)..time(to)
    };
    let spans = LaunchSpans {
        data: span(0, 1),
        host: span(1, 3),
        whole: span(0, 10),
        compute: span(2, 10),
        waits: waits.iter().map(|wait| span(wait.start, wait.end)).collect(),
        waited_for: vec![(0, Duration::from_millis(3))],
        // The second begins within the first.
        ops: [("dot_general", 2..6), ("all_reduce", 4..9), ("sum", 6..7)]
            .map(|(name, of)| OpSpan {
                name,
                replica: 5,
                span: span(of.start, of.end),
                operands: "f32[8, 4]".to_owned(),
                bytes: 128,
            })
            .into(),
    };
    let step = |step| StepMetrics { step, values: [(&LOSS, 0.5)].into_iter().collect() };
    RunEvent::Launch(LaunchMetrics {
        steps: steps.map(step).collect(),
        num_steps,
        spans: Some(Box::new(spans)),
        ..LaunchMetrics::default()
    })
}

/// Names of tracks, and names and milliseconds of the slices on each, from the first step's begin.
type Slices = Vec<(String, String, [f64; 2])>;

fn slices(path: &Path) -> Slices {
    let packets = TracePackets::decode(&*fs::read(path).unwrap()).unwrap().packet;
    assert!(packets.iter().all(|packet| packet.trusted_packet_sequence_id == 2));
    let tracks = packets.iter().filter_map(|packet| packet.track_descriptor.clone());
    let tracks: BTreeMap<_, _> =
        tracks.map(|track| (track.uuid, track.name.unwrap_or_default())).collect();
    let mut open = BTreeMap::<u64, (u64, String)>::new();
    let mut slices = vec![];
    for packet in packets {
        let Some(event) = packet.track_event else { continue };
        let (time, track) = (packet.timestamp.unwrap(), event.track_uuid);
        match event.r#type {
            TrackEvent::BEGIN => assert!(open.insert(track, (time, event.name.unwrap())).is_none()),
            TrackEvent::END => {
                let (from, name) = open.remove(&track).unwrap();
                slices.push((tracks[&track].clone(), name, [from, time]));
            }
            other => panic!("{other}"),
        }
    }
    assert!(open.is_empty());
    let first = slices.iter().find(|slice| slice.0 == "steps").unwrap().2[0] as f64;
    let ms = |(track, name, span): (String, String, [u64; 2])| {
        (track, name, span.map(|time| ((time as f64 - first) / 1e6).round()))
    };
    slices.into_iter().map(ms).collect()
}

#[test]
fn chosen_steps_are_slices_on_tracks() {
    let dir = tempfile::tempdir().unwrap();
    let mut sink = sink(dir.path());
    let origin = sink.origin.0;
    sink.event(&launch(origin, 0, 0..1, &[]));
    let trace = dir.path().join(StepTrace::DIR);
    assert!(!trace.exists(), "no step of this launch is traced");
    // These waits overlap, as those of two launches may.
    sink.event(&launch(origin, 10, 1..3, &[3..5, 4..6, 5..7]));
    sink.event(&launch(origin, 20, 3..4, &[]));
    let eval = StepEval { step: 3, eval: EvalResult::default() };
    sink.event(&RunEvent::Evaluated { eval, is_best: true, took: Duration::ZERO });
    sink.event(&launch(origin, 40, 5..6, &[]));
    let [waited, written] = [5, 7].map(Duration::from_millis);
    let begun = origin + Duration::from_millis(30);
    for num_steps in [4, 9] {
        let saved = SavedCheckpoint { num_steps, begun, waited, written };
        sink.event(&RunEvent::CheckpointSaved(saved));
    }
    sink.flush().unwrap();

    let found = slices(&trace.join("process-1.perfetto-trace"));
    let of_track = |track: &str| -> Vec<_> {
        let of = found.iter().filter(|slice| slice.0 == track);
        of.map(|(_, name, span)| (name.as_str(), *span)).collect()
    };
    assert_eq!(
        of_track("steps"),
        [
            ("step 1", [0.0, 5.0]),
            ("step 2", [5.0, 10.0]),
            ("step 3", [10.0, 20.0]),
            ("not launched yet", [10.0, 12.0]),
        ]
    );
    let loop_ = of_track("loop");
    assert_eq!(
        loop_[..4],
        [
            ("wait for data, steps 1 to 2", [0.0, 1.0]),
            ("launch steps 1 to 2", [1.0, 3.0]),
            ("wait for data, step 3", [10.0, 11.0]),
            ("launch step 3", [11.0, 13.0]),
        ]
    );
    assert_eq!(loop_[4].0, "evaluate");
    assert_eq!(loop_[5..], [("copy for checkpoint", [20.0, 25.0])]);
    assert_eq!(of_track("checkpoints written"), [("write checkpoint", [25.0, 32.0])]);
    let waits = [("wait", [3.0, 5.0]), ("wait", [4.0, 6.0]), ("wait", [5.0, 7.0])];
    assert_eq!(of_track("waits for others in collectives"), waits);
    let ops = [("dot_general", [2.0, 6.0]), ("all_reduce", [4.0, 9.0]), ("sum", [6.0, 7.0])];
    assert_eq!(of_track("ops of replica 5")[..3], ops);
    assert_eq!(of_track("ops of replica 5").len(), 6);
    assert_eq!(of_track("ops of replica 4"), []);
    for replica in ["replica 4", "replica 5"] {
        let expected = [("compute steps 1 to 2", [2.0, 10.0]), ("compute step 3", [12.0, 20.0])];
        assert_eq!(of_track(replica), expected);
    }
}

#[test]
fn no_file_is_replaced_and_one_that_cannot_be_made_costs_only_itself() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut sink = sink(dir.path());
        sink.event(&launch(sink.origin.0, 0, 2..3, &[]));
        sink.flush().unwrap();
    }
    let trace = dir.path().join(StepTrace::DIR);
    for name in ["process-1.perfetto-trace", "process-1-again-2.perfetto-trace"] {
        assert!(slices(&trace.join(name)).len() > 4, "{name}");
    }
    let mut sink = sink(&trace.join("process-1.perfetto-trace"));
    sink.event(&launch(sink.origin.0, 0, 2..3, &[]));
    sink.event(&launch(sink.origin.0, 10, 3..4, &[]));
    sink.flush().unwrap();
    assert!(sink.has_failed);
    let progress = RunProgress { num_steps: 9, ..RunProgress::default() };
    let info = RunInfo { planned_steps: 20, progress, ..RunInfo::default() };
    sink.event(&RunEvent::Started(Box::new(info)));
}
