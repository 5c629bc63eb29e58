//! `layers.jsonl`: the norms of each parameter, of some steps.

use std::path::Path;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::steps_file::StepsFile;
use super::{Error, FlushLater, RunEvent, Sink, StepLayers};

/// Writes `DIR/layers.jsonl`: a line for each step of which the norms of each parameter are known.
/// A disk that is full is treated as by [`Jsonl`](super::Jsonl).
pub struct LayersFile {
    file: StepsFile,
}

impl LayersFile {
    /// The name of the file.
    pub const FILE: &'static str = "layers.jsonl";

    /// A sink that makes the file when the run starts.
    pub fn new(dir: &Path) -> Self {
        Self { file: StepsFile::new(dir.join(Self::FILE)) }
    }
}

impl Sink for LayersFile {
    fn event(&mut self, event: &RunEvent) {
        match event {
            RunEvent::Started(info) => self.file.start(info),
            RunEvent::Launch(launch) => {
                for layers in &launch.layers {
                    let line = LayersLine { step: layers.step, layers: ByName(layers) };
                    self.file.write(layers.step, &line);
                }
            }
            RunEvent::Evaluated { .. }
            | RunEvent::ProcessSlow(_)
            | RunEvent::StepsEnded
            | RunEvent::UpdateSkipped { .. }
            | RunEvent::LockstepProved { .. }
            | RunEvent::CheckpointSaved(_)
            | RunEvent::Message(_)
            | RunEvent::Ended(_) => {}
        }
    }

    fn flush_later(&mut self) -> Option<FlushLater> {
        self.file.flush_later()
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.file.flush()
    }
}

#[derive(Serialize)]
struct LayersLine<'a> {
    step: u64,
    layers: ByName<'a>,
}

/// An object for each parameter, with its numbers by name.
struct ByName<'a>(&'a StepLayers);

impl Serialize for ByName<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let names = self.0.names.iter().enumerate();
        serializer.collect_map(names.map(|(place, name)| (name, Numbers(self.0.of(place)))))
    }
}

struct Numbers([f64; StepLayers::NORMS.len()]);

impl Serialize for Numbers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in StepLayers::NORMS.into_iter().zip(self.0) {
            fields.serialize_entry(name, &value)?;
        }
        fields.end()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::observe::{LaunchMetrics, RunInfo, RunProgress};

    fn launch(step: u64) -> RunEvent {
        let layers = StepLayers {
            step,
            names: ["a".to_owned(), "b\"".to_owned()].into(),
            param_norm: vec![4.0, 0.0],
            grad_norm: vec![1.0, f64::NAN],
            update_norm: vec![0.5, 0.0],
            counts: vec![],
        };
        RunEvent::Launch(LaunchMetrics { layers: vec![layers], ..LaunchMetrics::default() })
    }

    #[test]
    fn a_line_has_the_norms_by_name_and_a_run_that_continues_drops_those_of_later_steps() {
        let dir = tempfile::tempdir().unwrap();
        let text = || fs::read_to_string(dir.path().join(LayersFile::FILE)).unwrap();
        let mut sink = LayersFile::new(dir.path());
        sink.event(&RunEvent::Started(Box::default()));
        [9, 19, 29].into_iter().for_each(|step| sink.event(&launch(step)));
        sink.flush().unwrap();
        drop(sink);
        let line = |step: u64| {
            format!(
                "{{\"step\":{step},\"layers\":{{\"a\":{{\"param_norm\":4.0,\"grad_norm\":1.0,\
                 \"update_norm\":0.5,\"update_ratio\":0.125}},\"b\\\"\":{{\"param_norm\":0.0,\
                 \"grad_norm\":null,\"update_norm\":0.0,\"update_ratio\":null}}}}}}\n"
            )
        };
        assert_eq!(text(), [line(9), line(19), line(29)].concat());
        let mut sink = LayersFile::new(dir.path());
        let progress = RunProgress { num_steps: 15, ..RunProgress::default() };
        let resumed_from = Some("a checkpoint".to_owned());
        let info = RunInfo { progress, resumed_from, ..RunInfo::default() };
        sink.event(&RunEvent::Started(Box::new(info)));
        sink.event(&launch(19));
        sink.flush().unwrap();
        assert_eq!(text(), [line(9), line(19)].concat());
    }
}
