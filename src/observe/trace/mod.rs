//! A trace of chosen steps, for Perfetto.

mod messages;

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use prost::Message;

use super::records::{RecordFile, ToRecord};
use super::{
    Error, FlushLater, LaunchMetrics, LaunchSpans, OpSpan, RunEvent, Sink, StepCollective, Writer,
    say,
};
use messages::{
    ClockReading, ClockSnapshot, ProcessDescriptor, TraceArg, TracePacket, TracePackets,
    TraceValue, TrackDescriptor, TrackEvent,
};

/// Most ops of a replica that are shown beside each other: more are left out.
const MAX_OP_TRACKS: usize = 64;

/// Writes when the parts of chosen steps were, as slices on tracks: what the loop of the process
/// does, its steps, its replicas and their ops, its waits in collectives, its checkpoints.
/// `ui.perfetto.dev` shows the file.
///
/// It is made when the first of the steps has ended. A file that cannot be written costs only
/// itself: stderr says so, and the run goes on.
pub struct StepTrace {
    choice: TraceChoice,
    /// The same moment by both clocks, the second in nanoseconds since 1970.
    origin: (Instant, u64),
    /// When each track for waits is free: those of two launches may overlap.
    free_from: Vec<u64>,
    /// The same of tracks for the ops of each replica.
    ops_free_from: BTreeMap<usize, Vec<u64>>,
    writer: Option<Writer<RecordFile<TracePacket>>>,
    has_failed: bool,
}

/// What is traced, and of whom.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceChoice {
    /// The directory of the run.
    pub out: PathBuf,
    /// Indices of the steps. A launch of several steps is traced if one of them is among these.
    pub steps: Range<u64>,
    /// This process in its job.
    pub process_index: usize,
    /// The replicas of this process.
    pub replicas: Vec<usize>,
    /// The collectives of a step.
    pub collectives: Vec<StepCollective>,
}

/// The tracks of a process, by the last digits of their ids.
#[derive(Clone, Copy)]
enum Track {
    Process,
    Loop,
    Steps,
    Checkpoints,
    /// There may be several.
    Waits(usize),
    /// Of all processes.
    Replica(usize),
    /// Ops of a replica. There may be several, because ops overlap.
    Ops(usize, usize),
}

/// A slice on a track, from and to a time in nanoseconds.
struct Slice {
    track: Track,
    name: String,
    from: u64,
    to: u64,
    args: Vec<TraceArg>,
}

impl StepTrace {
    /// The directory in that of the run.
    pub const DIR: &'static str = "trace";
    /// What the names of the files end with.
    pub const ENDING: &'static str = ".perfetto-trace";

    /// A sink that makes its file with the first of the steps.
    pub fn new(choice: TraceChoice) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let origin = (Instant::now(), since.as_nanos() as u64);
        Self {
            choice,
            origin,
            free_from: vec![],
            ops_free_from: BTreeMap::new(),
            writer: None,
            has_failed: false,
        }
    }

    fn is_traced(&self, step: u64) -> bool {
        self.choice.steps.contains(&step)
    }

    /// Nanoseconds since 1970.
    fn at(&self, time: Instant) -> u64 {
        let (origin, nanos) = self.origin;
        match time.checked_duration_since(origin) {
            Some(later) => nanos.saturating_add(later.as_nanos() as u64),
            None => nanos.saturating_sub(origin.duration_since(time).as_nanos() as u64),
        }
    }

    fn write(&mut self, packets: Vec<TracePacket>) {
        if self.writer.is_none() && !self.has_failed {
            match create(&self.choice) {
                Ok(writer) => self.writer = Some(writer),
                Err(error) => {
                    self.has_failed = true;
                    say(&format!("warning: {error}; the run goes on without its trace"));
                }
            }
            for packet in self.descriptors() {
                self.send(packet);
            }
        }
        for packet in packets {
            self.send(packet);
        }
    }

    fn send(&self, packet: TracePacket) {
        if let Some(writer) = &self.writer {
            writer.write(packet);
        }
    }

    /// The clock, and the tracks of this process.
    fn descriptors(&self) -> Vec<TracePacket> {
        let timestamp = self.origin.1;
        let reading = |clock_id| ClockReading { clock_id, timestamp };
        // Times are since 1970, so that those of several processes fit together.
        let clocks = [ClockReading::BOOTTIME, ClockReading::REALTIME].map(reading).into();
        let clocks = TracePacket {
            timestamp: Some(timestamp),
            clock_snapshot: Some(ClockSnapshot { clocks }),
            ..self.packet()
        };
        let process = TrackDescriptor {
            uuid: self.uuid(Track::Process),
            process: Some(ProcessDescriptor {
                pid: std::process::id() as i32,
                process_name: format!("lockstep process {}", self.choice.process_index),
            }),
            child_ordering: Some(TrackDescriptor::BY_RANK),
            ..TrackDescriptor::default()
        };
        let process = TracePacket { track_descriptor: Some(process), ..self.packet() };
        let own = [Track::Steps, Track::Loop, Track::Checkpoints];
        let replicas = self.choice.replicas.iter().map(|replica| Track::Replica(*replica));
        let tracks = own.into_iter().chain(replicas).map(|track| self.descriptor(track));
        [clocks, process].into_iter().chain(tracks).collect()
    }

    fn descriptor(&self, track: Track) -> TracePacket {
        let (name, rank) = match track {
            Track::Process => ("process".to_owned(), 0),
            Track::Steps => ("steps".to_owned(), 1),
            Track::Loop => ("loop".to_owned(), 2),
            Track::Waits(_) => ("waits for others in collectives".to_owned(), 3),
            Track::Checkpoints => ("checkpoints written".to_owned(), 4),
            Track::Replica(replica) => (format!("replica {replica}"), 5 + 2 * replica as i32),
            Track::Ops(replica, _) => (format!("ops of replica {replica}"), 6 + 2 * replica as i32),
        };
        let track = TrackDescriptor {
            uuid: self.uuid(track),
            name: Some(name),
            parent_uuid: Some(self.uuid(Track::Process)),
            sibling_order_rank: Some(rank),
            ..TrackDescriptor::default()
        };
        TracePacket { track_descriptor: Some(track), ..self.packet() }
    }

    /// Differs from those of other processes.
    fn uuid(&self, track: Track) -> u64 {
        let own = match track {
            Track::Process => 0,
            Track::Loop => 1,
            Track::Steps => 2,
            Track::Checkpoints => 3,
            Track::Waits(number) => 0x10_0000 + number as u64,
            Track::Replica(replica) => 0x1000_0000 + replica as u64,
            Track::Ops(replica, number) => 0x4000_0000 + (replica * MAX_OP_TRACKS + number) as u64,
        };
        (self.choice.process_index as u64 + 1) << 32 | own
    }

    fn packet(&self) -> TracePacket {
        let trusted_packet_sequence_id = self.choice.process_index as u32 + 1;
        TracePacket { trusted_packet_sequence_id, ..TracePacket::default() }
    }

    /// The begin and the end of a slice.
    fn slice(&self, slice: Slice) -> [TracePacket; 2] {
        let Slice { track, name, from, to, args } = slice;
        let track_uuid = self.uuid(track);
        let begin = TrackEvent {
            debug_annotations: args,
            r#type: TrackEvent::BEGIN,
            track_uuid,
            categories: vec!["lockstep".to_owned()],
            name: Some(name),
        };
        let end = TrackEvent { r#type: TrackEvent::END, track_uuid, ..TrackEvent::default() };
        [(begin, from), (end, to.max(from))].map(|(event, time)| TracePacket {
            timestamp: Some(time),
            track_event: Some(event),
            ..self.packet()
        })
    }

    /// A slice of the loop that ends now.
    fn ended(&self, name: &str, took: Duration, step: u64) -> Vec<TracePacket> {
        let to = self.at(Instant::now());
        let from = to.saturating_sub(took.as_nanos() as u64);
        let args = vec![TraceArg::new("after_step", TraceValue::Count(step))];
        let slice = Slice { track: Track::Loop, name: name.to_owned(), from, to, args };
        self.slice(slice).into()
    }

    /// The slices of a launch.
    fn launch(&mut self, launch: &LaunchMetrics, spans: &LaunchSpans) -> Vec<TracePacket> {
        let Some(first) = launch.steps.first() else { return vec![] };
        let of = match launch.num_steps {
            0 | 1 => format!("step {}", first.step),
            more => format!("steps {} to {}", first.step, first.step + more as u64 - 1),
        };
        let mut slices = vec![];
        let mut add = |track, name: String, span: &Range<Instant>, args| {
            let (from, to) = (self.at(span.start), self.at(span.end));
            slices.push(Slice { track, name, from, to, args });
        };
        add(Track::Loop, format!("wait for data, {of}"), &spans.data, vec![]);
        add(Track::Loop, format!("launch {of}"), &spans.host, vec![]);
        for replica in &self.choice.replicas {
            let args = collectives(&self.choice.collectives);
            add(Track::Replica(*replica), format!("compute {of}"), &spans.compute, args);
        }
        let (from, to) = (self.at(spans.whole.start), self.at(spans.whole.end));
        let num_steps = launch.num_steps.max(1) as u64;
        for (index, step) in launch.steps.iter().enumerate() {
            let part = |index: u64| from + to.saturating_sub(from) * index / num_steps;
            let (from, to) = (part(index as u64), part(index as u64 + 1));
            let args = step.values.iter().filter(|(metric, _)| metric.is_written);
            let args = args.map(|(metric, value)| match metric.is_count {
                true => TraceArg::new(metric.name, TraceValue::Count(value as u64)),
                false => TraceArg::new(metric.name, TraceValue::Number(value)),
            });
            let last = spans.waited_for.iter().map(|(process, waited)| {
                let waited = TraceValue::Number(waited.as_secs_f64() * 1e3 / num_steps as f64);
                TraceArg::new(format!("waited_for_process_{process}_ms"), waited)
            });
            let args = args.chain(last).collect();
            let name = format!("step {}", step.step);
            slices.push(Slice { track: Track::Steps, name, from, to, args });
        }
        if spans.compute.start > spans.whole.start {
            let (from, to) = (self.at(spans.whole.start), self.at(spans.compute.start));
            let name = "not launched yet".to_owned();
            // It is within a step only if the launch is one.
            if num_steps == 1 {
                slices.push(Slice { track: Track::Steps, name, from, to, args: vec![] });
            }
        }
        let mut packets = vec![];
        for span in &spans.waits {
            let (from, to) = (self.at(span.start), self.at(span.end));
            let num_tracks = self.free_from.len();
            let track = Track::Waits(free_track(&mut self.free_from, from, to));
            if self.free_from.len() > num_tracks {
                packets.push(self.descriptor(track));
            }
            let name = "wait".to_owned();
            slices.push(Slice { track, name, from, to, args: vec![] });
        }
        for OpSpan { name, replica, span, operands, bytes } in &spans.ops {
            let (from, to) = (self.at(span.start), self.at(span.end));
            let tracks = self.ops_free_from.entry(*replica).or_default();
            let num_tracks = tracks.len();
            let number = free_track(tracks, from, to);
            let (is_new, track) = (tracks.len() > num_tracks, Track::Ops(*replica, number));
            if number >= MAX_OP_TRACKS {
                continue;
            }
            if is_new {
                packets.push(self.descriptor(track));
            }
            let args = vec![
                TraceArg::new("operands", TraceValue::Text(operands.clone())),
                TraceArg::new("bytes", TraceValue::Count(*bytes)),
            ];
            slices.push(Slice { track, name: (*name).to_owned(), from, to, args });
        }
        packets.extend(slices.into_iter().flat_map(|slice| self.slice(slice)));
        packets
    }
}

/// The first track that is free for a slice, which it has from now on. It may be one more than
/// there were.
fn free_track(free_from: &mut Vec<u64>, from: u64, to: u64) -> usize {
    match free_from.iter_mut().enumerate().find(|(_, free)| **free <= from) {
        Some((number, free)) => {
            *free = to;
            number
        }
        None => {
            free_from.push(to);
            free_from.len() - 1
        }
    }
}

/// The collectives of a step as values beside a slice.
fn collectives(all: &[StepCollective]) -> Vec<TraceArg> {
    let arg = |of: &StepCollective| {
        let count = |name: &str, value| TraceArg::new(name, TraceValue::Count(value));
        let values = vec![
            count("count", of.count),
            count("bytes", of.bytes),
            count("sent_bytes", of.sent_bytes),
        ];
        TraceArg::group(of.name.clone(), values)
    };
    match all {
        [] => vec![],
        all => vec![TraceArg::group("collectives", all.iter().map(arg).collect())],
    }
}

impl Sink for StepTrace {
    fn event(&mut self, event: &RunEvent) {
        let packets = match event {
            RunEvent::Started(info) => {
                let (steps, taken) = (&self.choice.steps, info.progress.num_steps);
                if steps.start >= info.planned_steps || steps.end <= taken {
                    let is_first = self.choice.process_index == 0;
                    let Range { start, end } = steps;
                    let left = format!("{taken}..{}", info.planned_steps);
                    let text = format!(
                        "warning: nothing is traced: observe.trace_steps is {start}..{end}, but \
                         the steps of this run are {left}"
                    );
                    is_first.then(|| say(&text));
                }
                return;
            }
            RunEvent::Launch(launch) => {
                let Some(spans) = &launch.spans else { return };
                if !launch.steps.iter().any(|step| self.is_traced(step.step)) {
                    return;
                }
                self.launch(launch, spans)
            }
            RunEvent::Evaluated { eval, took, .. } if self.is_traced(eval.step) => {
                self.ended("evaluate", *took, eval.step)
            }
            RunEvent::LockstepProved { num_steps, took, .. } => match num_steps.checked_sub(1) {
                Some(step) if self.is_traced(step) => self.ended("compare replicas", *took, step),
                _ => return,
            },
            RunEvent::CheckpointSaved(saved) => match saved.num_steps.checked_sub(1) {
                Some(step) if self.is_traced(step) => {
                    let copied = saved.begun + saved.waited;
                    let slice = |track, name: &str, from, to| {
                        let (from, to) = (self.at(from), self.at(to));
                        let args = vec![TraceArg::new("after_step", TraceValue::Count(step))];
                        self.slice(Slice { track, name: name.to_owned(), from, to, args })
                    };
                    let copy = slice(Track::Loop, "copy for checkpoint", saved.begun, copied);
                    let end = copied + saved.written;
                    let write = slice(Track::Checkpoints, "write checkpoint", copied, end);
                    [copy, write].concat()
                }
                _ => return,
            },
            RunEvent::Evaluated { .. }
            | RunEvent::UpdateSkipped { .. }
            | RunEvent::ProcessSlow(_)
            | RunEvent::Message(_)
            | RunEvent::StepsEnded
            | RunEvent::Ended(_) => return,
        };
        self.write(packets);
    }

    fn flush_later(&mut self) -> Option<FlushLater> {
        self.writer.as_ref().map(Writer::flush_later)
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.writer.as_ref().map_or(Ok(()), Writer::flush)
    }
}

/// A file with a new name: a run that was continued may take the same steps again.
fn create(choice: &TraceChoice) -> Result<Writer<RecordFile<TracePacket>>, Error> {
    let dir = choice.out.join(StepTrace::DIR);
    fs::create_dir_all(&dir).map_err(|source| Error::Write { path: dir.clone(), source })?;
    RecordFile::create(&new_path(&dir, choice.process_index))
}

fn new_path(dir: &Path, process_index: usize) -> PathBuf {
    let path =
        |again: String| dir.join(format!("process-{process_index}{again}{}", StepTrace::ENDING));
    let mut found = path(String::new());
    let mut again = 1_u64;
    while found.exists() {
        again += 1;
        found = path(format!("-again-{again}"));
    }
    found
}

impl ToRecord for TracePacket {
    fn bytes(&self) -> Vec<u8> {
        TracePackets { packet: vec![self.clone()] }.encode_to_vec()
    }
}

#[cfg(test)]
mod tests;
