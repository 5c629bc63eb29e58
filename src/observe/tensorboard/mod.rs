//! TensorBoard's event files.

mod events;
mod messages;

use std::path::{Path, PathBuf};
use std::{fs, io};

use prost::Message;

use super::records::{RecordFile, ToRecord};
use super::{Error, FlushLater, RunEvent, Sink, Writer};
use events::unix_secs;
use messages::BoardEvent;

/// Writes the numbers of `metrics.jsonl` as scalars of the same names into a file in
/// `DIR/tensorboard`, which `tensorboard --logdir DIR` shows while the run goes on; and the
/// configuration, as a text and as hyperparameters. A run that is continued begins another file
/// there; TensorBoard then drops the steps that are taken again.
///
/// A file that cannot be written costs only itself: stderr says so once, and the run goes on.
pub struct TensorBoard {
    dir: PathBuf,
    writer: Option<Writer<RecordFile<BoardEvent>>>,
    error: Option<Error>,
}

impl TensorBoard {
    /// The directory in that of the run.
    pub const DIR: &'static str = "tensorboard";

    /// A sink that makes its file when the run starts.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.join(Self::DIR), writer: None, error: None }
    }

    fn write(&self, event: BoardEvent) {
        if let Some(writer) = &self.writer {
            writer.write(event);
        }
    }
}

impl Sink for TensorBoard {
    fn event(&mut self, event: &RunEvent) {
        match event {
            RunEvent::Started(info) => {
                match create(&self.dir) {
                    Err(error) => self.error = Some(error),
                    Ok(writer) => self.writer = Some(writer),
                }
                self.write(BoardEvent::version());
                if info.resumed_from.is_some() {
                    self.write(BoardEvent::restart(info.progress.num_steps));
                }
                self.write(BoardEvent::of_config(&info.config));
                self.write(BoardEvent::of_hparams(&info.config));
            }
            RunEvent::Launch(launch) => {
                for step in &launch.steps {
                    self.write(BoardEvent::of_step(step));
                }
                for layers in &launch.layers {
                    self.write(BoardEvent::of_layers(layers));
                }
            }
            RunEvent::Evaluated { eval, .. } => self.write(BoardEvent::of_eval(eval)),
            RunEvent::Ended(end) => {
                if let Some(event) = BoardEvent::of_end(end.status) {
                    self.write(event);
                }
            }
            RunEvent::UpdateSkipped { .. }
            | RunEvent::LockstepProved { .. }
            | RunEvent::CheckpointSaved(_)
            | RunEvent::ProcessSlow(_)
            | RunEvent::Message(_)
            | RunEvent::StepsEnded => {}
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

/// TensorBoard reads every file with this in its name.
const PREFIX: &str = "events.out.tfevents.";

/// Makes the next file in a directory.
fn create(dir: &Path) -> Result<Writer<RecordFile<BoardEvent>>, Error> {
    let failed = |source| Error::Write { path: dir.to_owned(), source };
    fs::create_dir_all(dir).map_err(failed)?;
    let place = next_place(dir).map_err(failed)?;
    let name = format!("{PREFIX}{place:010}.lockstep.{}.0", std::process::id());
    RecordFile::create(&dir.join(name))
}

/// The number in the name of the next file: the time, but after all that are there, whatever their
/// host's clock. TensorBoard reads files in the order of their names.
fn next_place(dir: &Path) -> io::Result<u64> {
    let mut place = unix_secs() as u64;
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let number = rest.and_then(|rest| rest.split('.').next()?.parse::<u64>().ok());
        place = place.max(number.map_or(0, |number| number.saturating_add(1)));
    }
    Ok(place)
}

/// A record is the length of an event, its checksum, the bytes of the event, their checksum.
impl ToRecord for BoardEvent {
    fn bytes(&self) -> Vec<u8> {
        record(&self.encode_to_vec())
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::{
        EvalResult, LaunchMetrics, Metric, RunEnd, RunInfo, Status, StepEval, StepMetrics,
    };

    static LOSS: Metric = Metric::number(Metric::LOSS);
    static TIME: Metric = Metric::number("time");
    static UNWRITTEN: Metric = Metric::number("weight").unwritten();

    fn started(dir: &Path, num_steps: Option<u64>) -> TensorBoard {
        let mut sink = TensorBoard::new(dir);
        let config = "[train]\nsteps = 9\n[optimizer]\nname = \"sgd\"\nnesterov = true\n";
        let mut info = RunInfo { config: config.to_owned(), ..RunInfo::default() };
        info.resumed_from = num_steps.map(|_| "a".to_owned());
        info.progress.num_steps = num_steps.unwrap_or_default();
        sink.event(&RunEvent::Started(Box::new(info)));
        sink.flush().unwrap();
        sink
    }

    /// The events of each file, in the order of the names, with their checksums checked.
    fn files(dir: &Path) -> Vec<Vec<BoardEvent>> {
        let mut paths: Vec<_> = fs::read_dir(dir.join(TensorBoard::DIR)).unwrap().collect();
        paths.sort_by_key(|path| path.as_ref().unwrap().path());
        let read = |path: io::Result<fs::DirEntry>| {
            let bytes = fs::read(path.unwrap().path()).unwrap();
            let (mut rest, mut events) = (&bytes[..], vec![]);
            while !rest.is_empty() {
                let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
                let data = &rest[12..12 + length];
                assert_eq!(record(data), &rest[..length + 16]);
                events.push(BoardEvent::decode(data).unwrap());
                rest = &rest[length + 16..];
            }
            events
        };
        paths.into_iter().map(read).collect()
    }

    #[test]
    fn numbers_of_steps_and_evaluations_are_scalars() {
        let dir = tempfile::tempdir().unwrap();
        let mut sink = started(dir.path(), None);
        let step = |step, loss| {
            let values = [(&TIME, 1e9 + 0.25), (&LOSS, loss), (&UNWRITTEN, 1.0)];
            StepMetrics { step, values: values.into_iter().collect() }
        };
        let steps = vec![step(7, 0.5), step(8, f64::NAN), step(9, 0.0)];
        sink.event(&RunEvent::Launch(LaunchMetrics { steps, ..LaunchMetrics::default() }));
        let metrics = [("accuracy", 0.75)].into();
        let eval =
            StepEval { step: 9, eval: EvalResult { loss: 0.25, metrics, ..EvalResult::default() } };
        let took = std::time::Duration::ZERO;
        sink.event(&RunEvent::Evaluated { eval, is_best: true, took });
        sink.event(&RunEvent::Ended(RunEnd { status: Status::Done, ..RunEnd::default() }));
        sink.flush().unwrap();

        let events = &files(dir.path())[0];
        assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
        assert_eq!(events[3].wall_time, 1e9 + 0.25);
        // A NaN is equal to nothing, so that numbers are compared as texts.
        let scalars = |event: &BoardEvent| {
            let values = event.summary.iter().flat_map(|summary| &summary.value);
            let values = values.map(|value| {
                (value.tag.clone(), format!("{}", value.simple_value.unwrap_or(-1.0)))
            });
            (event.step, values.collect::<Vec<_>>())
        };
        let found: Vec<_> = events[1..].iter().map(scalars).collect();
        let named = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            found,
            [
                (0, vec![named("configuration", "-1")]),
                (0, vec![named("_hparams_/session_start_info", "-1")]),
                (7, vec![named("loss", "0.5")]),
                (8, vec![named("loss", "NaN")]),
                (9, vec![named("loss", "0")]),
                (9, vec![named("eval_loss", "0.25"), named("eval_accuracy", "0.75")]),
                (0, vec![named("_hparams_/session_end_info", "-1")]),
            ]
        );
    }

    #[test]
    fn the_configuration_is_a_text_and_has_its_keys() {
        let dir = tempfile::tempdir().unwrap();
        drop(started(dir.path(), None));
        let events = &files(dir.path())[0];
        let value = |event: &BoardEvent| event.summary.clone().unwrap().value[0].clone();
        let text = value(&events[1]).tensor.unwrap().string_val;
        let expected = "    [train]\n    steps = 9\n    [optimizer]\n    name = \"sgd\"\n    \
                        nesterov = true\n";
        assert_eq!(text, [expected]);
        let data = value(&events[2]).metadata.unwrap().plugin_data.unwrap();
        assert_eq!(data.plugin_name, "hparams");
        let data = messages::HParamsPluginData::decode(&*data.content).unwrap();
        let hparams = data.session_start_info.unwrap().hparams;
        let hparams: Vec<_> =
            hparams.into_iter().map(|(key, of)| (key, of.kind.unwrap())).collect();
        let named = |name: &str, value| (name.to_owned(), value);
        let expected = [
            named("optimizer.name", messages::HParamKind::String("sgd".to_owned())),
            named("optimizer.nesterov", messages::HParamKind::Bool(true)),
            named("train.steps", messages::HParamKind::Number(9.0)),
        ];
        assert_eq!(hparams, expected);
    }

    #[test]
    fn a_run_that_continues_has_another_file_which_is_read_after_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(TensorBoard::DIR);
        fs::create_dir(&folder).unwrap();
        // From a host with another clock.
        fs::write(folder.join(format!("{PREFIX}4000000000.a.1.0")), []).unwrap();
        for _ in 0..2 {
            drop(started(dir.path(), Some(7)));
        }
        let files = files(dir.path());
        let num_events: Vec<_> = files.iter().map(Vec::len).collect();
        assert_eq!(num_events, [0, 4, 4]);
        let restart = &files[1][1];
        assert_eq!((restart.step, restart.session_log.as_ref().unwrap().status), (7, 1));
    }

    /// The check value of CRC-32C, and its masked form.
    #[test]
    fn checksums_are_masked() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(masked(0xe306_9283), 0xc78a_b0e5);
    }
}
