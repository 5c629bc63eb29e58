//! TensorBoard's event files.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;
use serde::Serialize;

use super::{Error, FlushLater, RunEvent, Sink, StepEval, Writer, WriterTarget, say};

/// Writes the numbers of `metrics.jsonl` as scalars of the same names into a file in
/// `DIR/tensorboard`, which `tensorboard --logdir DIR` shows while the run goes on. A run that is
/// continued begins another file there; TensorBoard then drops the steps that are taken again.
///
/// A file that cannot be written costs only itself: stderr says so once, and the run goes on.
pub struct TensorBoard {
    dir: PathBuf,
    writer: Option<Writer<EventFile>>,
    error: Option<Error>,
}

impl TensorBoard {
    /// The directory in that of the run.
    pub const DIR: &'static str = "tensorboard";

    /// A sink that makes its file when the run starts.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.join(Self::DIR), writer: None, error: None }
    }

    fn write(&self, event: Event) {
        if let Some(writer) = &self.writer {
            writer.write(event);
        }
    }
}

impl Sink for TensorBoard {
    fn event(&mut self, event: &RunEvent) {
        match event {
            RunEvent::Started(info) => match EventFile::create(&self.dir) {
                Err(error) => self.error = Some(error),
                Ok(writer) => {
                    self.writer = Some(writer);
                    if info.resumed_from.is_some() {
                        self.write(Event::restart(info.progress.num_steps));
                    }
                }
            },
            RunEvent::Launch(launch) => {
                for step in &launch.steps {
                    self.write(Event::scalars(step.step, step));
                }
            }
            RunEvent::Evaluated { eval: StepEval { step, eval }, .. } => {
                self.write(Event::scalars(*step, eval));
            }
            RunEvent::UpdateSkipped { .. }
            | RunEvent::LockstepProved { .. }
            | RunEvent::CheckpointSaved(_)
            | RunEvent::ProcessSlow(_)
            | RunEvent::Message(_)
            | RunEvent::StepsEnded
            | RunEvent::Ended(_) => {}
        }
    }

    fn flush_later(&mut self) -> Option<FlushLater> {
        self.writer.as_ref().map(Writer::flush_later)
    }

    fn flush(&mut self) -> Result<(), Error> {
        match (self.error.take(), &self.writer) {
            (Some(error), _) => Err(error),
            (None, Some(writer)) => writer.flush(),
            (None, None) => Ok(()),
        }
    }
}

/// The bytes of events that wait while they cannot be written.
const MAX_PENDING_BYTES: usize = 16 << 20;

/// A file of records: their length, its checksum, the bytes of an event, their checksum.
struct EventFile {
    path: PathBuf,
    file: File,
    pending: Vec<u8>,
    /// Events that did not fit.
    num_lost: u64,
    has_said: bool,
}

impl EventFile {
    fn create(dir: &Path) -> Result<Writer<Self>, Error> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            |source| Error::Write { path, source }
        };
        fs::create_dir_all(dir).map_err(failed(dir))?;
        // TensorBoard reads every file with `tfevents` in its name, in the order of the names.
        let name = format!(
            "events.out.tfevents.{:010}.lockstep.{}.0",
            unix_secs() as u64,
            std::process::id()
        );
        let path = dir.join(name);
        let file = File::options().create(true).append(true).open(&path).map_err(failed(&path))?;
        let mut events =
            Self { path: path.clone(), file, pending: vec![], num_lost: 0, has_said: false };
        events.add(Event { file_version: Some("brain.Event:2".to_owned()), ..Event::now(0) });
        Writer::start(&path, events)
    }
}

impl WriterTarget for EventFile {
    type Item = Event;

    fn add(&mut self, event: Event) {
        if self.pending.len() > MAX_PENDING_BYTES {
            self.num_lost += 1;
            return;
        }
        self.pending.extend(record(&event.encode_to_vec()));
    }

    fn try_to_write(&mut self) -> bool {
        let written = write_some(&mut self.file, &mut self.pending);
        if let Err(error) = written
            && !std::mem::replace(&mut self.has_said, true)
        {
            let path = self.path.display();
            say(&format!("warning: {path} cannot be written: {error}; the run goes on"));
        }
        !self.pending.is_empty()
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.try_to_write();
        if self.num_lost > 0 {
            let num_lost = std::mem::take(&mut self.num_lost);
            let path = self.path.display();
            say(&format!("warning: {path} could not be written: events lost: {num_lost}"));
        }
        Ok(())
    }
}

/// Writes what can be written, and keeps the rest.
fn write_some(file: &mut File, pending: &mut Vec<u8>) -> io::Result<()> {
    while !pending.is_empty() {
        match file.write(pending) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => drop(pending.drain(..written)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A record of a file in the format TFRecord.
fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let checksum = |bytes: &[u8]| masked(crc32c::crc32c(bytes)).to_le_bytes();
    [&length[..], &checksum(&length), data, &checksum(data)].concat()
}

/// A checksum of bytes that may hold checksums themselves.
fn masked(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Seconds since 1970.
fn unix_secs() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// What is used here of the message `tensorboard.Event`.
#[derive(Clone, PartialEq, Message)]
struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    wall_time: f64,
    /// Steps from 0.
    #[prost(int64, tag = "2")]
    step: i64,
    /// The first event has it.
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<ScalarSummary>,
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLog>,
}

#[derive(Clone, PartialEq, Message)]
struct ScalarSummary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Scalar>,
}

#[derive(Clone, PartialEq, Message)]
struct Scalar {
    #[prost(string, tag = "1")]
    tag: String,
    // Written if it is 0 too.
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

#[derive(Clone, PartialEq, Message)]
struct SessionLog {
    /// 1: the session starts at this step, and what was written of later ones is void.
    #[prost(int32, tag = "1")]
    status: i32,
}

impl Event {
    fn now(step: u64) -> Self {
        Self { wall_time: unix_secs(), step: step as i64, ..Self::default() }
    }

    fn restart(step: u64) -> Self {
        Self { session_log: Some(SessionLog { status: 1 }), ..Self::now(step) }
    }

    /// The numbers among the fields of `of`, as JSON has them. What is not finite is `null` there.
    fn scalars(step: u64, of: &impl Serialize) -> Self {
        let fields = serde_json::to_value(of).unwrap_or_default();
        let fields = fields.as_object().into_iter().flatten();
        let numbers = fields.filter(|(name, _)| !["step", "time"].contains(&&***name));
        let scalar = |(name, value): (&String, &serde_json::Value)| {
            let simple_value = value.as_f64()? as f32;
            Some(Scalar { tag: name.clone(), simple_value: Some(simple_value) })
        };
        let value = numbers.filter_map(scalar).collect();
        Self { summary: Some(ScalarSummary { value }), ..Self::now(step) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::{EvalResult, LaunchMetrics, Metric, RunInfo, StepMetrics};

    static LOSS: Metric = Metric::number(Metric::LOSS);

    /// The events of the only file, with their checksums checked.
    fn events(dir: &Path) -> Vec<Event> {
        let files: Vec<_> = fs::read_dir(dir.join(TensorBoard::DIR)).unwrap().collect();
        let [file] = &files[..] else { panic!("{files:?}") };
        let mut bytes = &fs::read(file.as_ref().unwrap().path()).unwrap()[..];
        let mut events = vec![];
        while !bytes.is_empty() {
            let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let data = &bytes[12..12 + length];
            assert_eq!(record(data), &bytes[..length + 16]);
            events.push(Event::decode(data).unwrap());
            bytes = &bytes[length + 16..];
        }
        events
    }

    #[test]
    fn numbers_of_steps_and_evaluations_are_scalars() {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = TensorBoard::new(dir.path());
        let mut info = RunInfo { resumed_from: Some("a".to_owned()), ..RunInfo::default() };
        info.progress.num_steps = 7;
        sink.event(&RunEvent::Started(Box::new(info)));
        let step = |step, loss| StepMetrics { step, values: [(&LOSS, loss)].into_iter().collect() };
        let steps = vec![step(7, 0.5), step(8, f64::NAN), step(9, 0.0)];
        sink.event(&RunEvent::Launch(LaunchMetrics { steps, ..LaunchMetrics::default() }));
        let metrics = [("accuracy", 0.75)].into();
        let eval =
            StepEval { step: 9, eval: EvalResult { loss: 0.25, metrics, ..EvalResult::default() } };
        let took = std::time::Duration::ZERO;
        sink.event(&RunEvent::Evaluated { eval, is_best: true, took });
        sink.flush().unwrap();

        let events = events(dir.path());
        assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
        assert_eq!((events[1].step, events[1].session_log.as_ref().unwrap().status), (7, 1));
        let scalars = |event: &Event| {
            let values = event.summary.iter().flat_map(|summary| &summary.value);
            let values = values.map(|scalar| (scalar.tag.clone(), scalar.simple_value.unwrap()));
            (event.step, values.collect::<Vec<_>>())
        };
        let found: Vec<_> = events[2..].iter().map(scalars).collect();
        let named = |name: &str, value| (name.to_owned(), value);
        assert_eq!(
            found,
            [
                (7, vec![named("loss", 0.5)]),
                (8, vec![]),
                (9, vec![named("loss", 0.0)]),
                (9, vec![named("eval_accuracy", 0.75), named("eval_loss", 0.25)]),
            ]
        );
    }

    /// The example of the format's description.
    #[test]
    fn checksums_are_masked() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(masked(0xe306_9283), 0xe306_9283u32.rotate_right(15).wrapping_add(0xa282_ead8));
    }
}
