//! Reads what a run has left in its directory. Whatever is missing or damaged is said on the page:
//! a page of a run that went wrong is wanted most.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::layers::{self, LayerRecord};
use super::own_times;
use crate::cli::plot::printable;
use crate::config::open_regular;
use crate::observe::{GenerationStart, Jsonl, ProcessTimes, Summary};
use crate::train::CONFIG_FILE;

/// Most bytes that are read of a summary or a configuration.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Most notes about damaged lines: the others are counted.
const MAX_NOTES: usize = 5;
/// Most columns: a file that is no metrics could have one for each line.
const MAX_COLUMNS: usize = 256;

/// What is known of a run.
pub struct RunFiles {
    pub name: String,
    pub dir: PathBuf,
    /// `summary.json`; empty without one.
    pub summary: Map<String, Value>,
    /// `config.resolved.toml` as it stands there.
    pub config_text: Option<String>,
    pub config: toml::Table,
    pub steps: StepTable,
    pub layers: Vec<LayerRecord>,
    pub process_times: Vec<ProcessTimes>,
    /// What is missing or damaged.
    pub notes: Vec<String>,
}

/// The steps of a run in order, each once, by column. A number that is not finite or not known is
/// NaN.
#[derive(Default)]
pub struct StepTable {
    pub step: Vec<u64>,
    /// Numbers of steps by field, in the order of the file.
    pub columns: Vec<StepColumn>,
    /// Evaluations by the index of their step in `step`.
    pub evals: Vec<(usize, BTreeMap<String, f64>)>,
    /// Processes that were found to be slow, in order.
    pub slow: Vec<SlowRecord>,
}

/// A field of all steps.
#[derive(Default)]
pub struct StepColumn {
    pub name: String,
    /// As it stands in the file, where that cannot be shown.
    raw_name: Option<String>,
    pub values: Vec<f64>,
}

/// A verdict of the watchdog.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct SlowRecord {
    pub process_index: u64,
    #[serde(default)]
    pub host: String,
    pub factor: f64,
    pub since_step: u64,
    /// `input`, `host` or `device`; empty in older files.
    #[serde(default)]
    pub cause: String,
    /// What its machine told; empty if nothing.
    #[serde(default)]
    pub machine: String,
}

/// How generations of processes began, by a summary.
pub fn generation_starts(summary: &Map<String, Value>) -> Vec<GenerationStart> {
    let starts = summary.get("generation_starts").cloned().unwrap_or_default();
    serde_json::from_value(starts).unwrap_or_default()
}

impl StepColumn {
    pub fn new(name: &str, values: Vec<f64>) -> Self {
        let shown = printable(name);
        let raw_name = (shown != name).then(|| name.to_owned());
        Self { name: shown, raw_name, values }
    }

    fn is(&self, name: &str) -> bool {
        self.raw_name.as_ref().unwrap_or(&self.name) == name
    }
}

impl StepTable {
    /// A column by its name.
    pub fn column(&self, name: &str) -> Option<&[f64]> {
        self.columns.iter().find(|column| column.name == name).map(|column| &column.values[..])
    }

    /// The sum of a column over these steps, in seconds: it is in milliseconds.
    pub fn secs(&self, name: &str, from: usize) -> Option<f64> {
        let values = self.column(name)?.get(from..)?;
        Some(values.iter().filter(|ms| ms.is_finite()).sum::<f64>() / 1e3)
    }

    /// Removes the steps from `step` on: they were taken again.
    fn truncate(&mut self, step: u64) {
        let kept = self.step.partition_point(|other| *other < step);
        self.step.truncate(kept);
        self.columns.iter_mut().for_each(|column| column.values.truncate(kept));
        self.evals.retain(|(index, _)| *index < kept);
    }

    fn push(&mut self, step: u64, line: &mut Line) {
        if self.step.last().is_some_and(|last| *last >= step) {
            self.truncate(step);
        }
        let num_before = self.step.len();
        self.step.push(step);
        for (place, value) in line.numbers.drain(..) {
            if let Some(column) = self.columns.get_mut(place) {
                column.values.resize(num_before, f64::NAN);
                column.values.push(value);
            }
        }
        for column in &mut self.columns {
            column.values.resize(num_before + 1, f64::NAN);
        }
        if !line.evals.is_empty() {
            self.evals.push((num_before, line.evals.drain(..).collect()));
        }
        self.slow.append(&mut line.slow);
    }
}

impl RunFiles {
    /// Reads the directory of a run.
    ///
    /// # Errors
    /// Something else: a directory with neither metrics nor summary; a file that cannot be read.
    pub fn read(dir: &Path, name: String) -> Result<Self> {
        let advice = "name the directory that `lockstep train --out` wrote";
        if !dir.exists() {
            bail!("there is no {}; {advice}", dir.display());
        }
        if !dir.is_dir() {
            bail!("{} is not a directory; {advice}", dir.display());
        }
        let [metrics, summary] = [Jsonl::FILE, Summary::FILE].map(|name| dir.join(name));
        if !metrics.exists() && !summary.exists() {
            bail!(
                "{} is not the directory of a run: it has neither {} nor {}; {advice}",
                dir.display(),
                Jsonl::FILE,
                Summary::FILE
            );
        }
        let mut notes = vec![];
        let summary = match read_text(&summary, &mut notes)? {
            None => Map::new(),
            Some(text) => serde_json::from_str(&text).unwrap_or_else(|_| {
                notes.push(format!("{} is damaged: it is no JSON object", Summary::FILE));
                Map::new()
            }),
        };
        let config_text = read_text(&dir.join(CONFIG_FILE), &mut notes)?;
        let config = config_text.as_ref().map_or(Ok(toml::Table::new()), |text| text.parse());
        let config = config.unwrap_or_else(|_| {
            notes.push(format!("{CONFIG_FILE} is damaged: it is no TOML"));
            toml::Table::new()
        });
        let steps = match metrics.exists() {
            true => {
                let file = open_regular(&metrics);
                let file = file.with_context(|| format!("cannot read {}", metrics.display()))?;
                let read = read_steps(BufReader::with_capacity(1 << 20, file), &mut notes);
                read.with_context(|| format!("cannot read {}", metrics.display()))?
            }
            false => {
                notes.push(format!("{} is missing: there are no curves", Jsonl::FILE));
                StepTable::default()
            }
        };
        let layers = layers::read(dir, &mut notes)?;
        let process_times = own_times::read(dir, &mut notes)?;
        let dir = dir.to_owned();
        Ok(Self { name, dir, summary, config_text, config, steps, layers, process_times, notes })
    }

    /// A number of the summary.
    pub fn number(&self, field: &str) -> Option<f64> {
        self.summary.get(field)?.as_f64()
    }

    /// A text of the summary.
    pub fn text(&self, field: &str) -> Option<&str> {
        self.summary.get(field)?.as_str()
    }

    /// A value of the configuration by its path: `data.source`.
    pub fn setting(&self, path: &str) -> Option<&toml::Value> {
        let mut parts = path.split('.');
        let first = self.config.get(parts.next()?)?;
        parts.try_fold(first, |value, part| value.get(part))
    }
}

/// A file of the run; without it, a note.
fn read_text(path: &Path, notes: &mut Vec<String>) -> Result<Option<String>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if !path.exists() {
        notes.push(format!("{name} is missing"));
        return Ok(None);
    }
    let failed = || format!("cannot read {}", path.display());
    let mut bytes = vec![];
    let file = open_regular(path).with_context(failed)?;
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).with_context(failed)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Reads the lines of a `metrics.jsonl`. A step that is there again was taken again, after the run
/// was continued from a checkpoint: what was recorded from that step on is replaced.
fn read_steps(mut file: impl BufRead, notes: &mut Vec<String>) -> std::io::Result<StepTable> {
    let mut steps = StepTable::default();
    let (mut bytes, mut line) = (vec![], Line::default());
    let (mut num_damaged, mut num_missing, mut num_again) = (0_u64, 0, 0_u64);
    for number in 1_u64.. {
        bytes.clear();
        if file.read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        line.clear();
        let read = line.read(&bytes, &mut steps.columns);
        let (true, Some(step)) = (read, line.step) else {
            num_damaged += 1;
            if num_damaged <= MAX_NOTES as u64 {
                let why = match (bytes.ends_with(b"\n"), read) {
                    (false, _) => "has no end: its process was killed, or is writing it",
                    (true, true) => "has no `step`, and was left out",
                    (true, false) => "is not JSON, and was left out",
                };
                notes.push(format!("{}: line {number} {why}", Jsonl::FILE));
            }
            continue;
        };
        let expected = steps.step.last().map_or(0, |last| last + 1);
        match step.checked_sub(expected) {
            Some(missing) => num_missing += missing,
            None => num_again += 1,
        }
        steps.push(step, &mut line);
    }
    let num = steps.step.len();
    // A damaged line may have brought a column.
    steps.columns.retain(|column| !column.values.is_empty());
    steps.columns.iter_mut().for_each(|column| column.values.resize(num, f64::NAN));
    if num_damaged > MAX_NOTES as u64 {
        notes.push(format!("{}: {num_damaged} lines in all are damaged", Jsonl::FILE));
    }
    if num_missing > 0 {
        notes.push(format!("{}: {num_missing} steps are missing", Jsonl::FILE));
    }
    if num_again > 0 {
        let what = "steps were recorded again, after a continuation; the last record counts";
        notes.push(format!("{}: {num_again} times {what}", Jsonl::FILE));
    }
    Ok(steps)
}

/// A line of the file.
#[derive(Default)]
struct Line {
    step: Option<u64>,
    /// Numbers by the index of their column.
    numbers: Vec<(usize, f64)>,
    evals: Vec<(String, f64)>,
    slow: Vec<SlowRecord>,
}

impl Line {
    fn clear(&mut self) {
        self.step = None;
        self.numbers.clear();
        self.evals.clear();
        self.slow.clear();
    }

    /// Takes the fields of a line, with a column for each that had none; `false` if it is not an
    /// object.
    fn read(&mut self, bytes: &[u8], columns: &mut Vec<StepColumn>) -> bool {
        let mut deserializer = serde_json::Deserializer::from_slice(bytes);
        let read = deserializer.deserialize_map(LineVisitor { line: self, columns });
        read.and_then(|()| deserializer.end()).is_ok()
    }
}

struct LineVisitor<'a> {
    line: &'a mut Line,
    columns: &'a mut Vec<StepColumn>,
}

impl<'de> Visitor<'de> for LineVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let Self { line, columns } = self;
        // Lines have the same fields in the same order: names need not be kept.
        let mut next = 0;
        while let Some(field) = fields.next_key_seed(FieldSeed { columns, next })? {
            match field {
                Field::Known(place) => {
                    if let Some(value) = fields.next_value::<Cell>()?.0 {
                        line.numbers.push((place, value));
                    }
                    next = place + 1;
                }
                Field::Other(name) if name == "step" => {
                    line.step = fields.next_value::<Value>()?.as_u64();
                }
                Field::Other(name) if name == "slow_processes" => {
                    let found = fields.next_value::<Value>()?;
                    line.slow = serde_json::from_value(found).unwrap_or_default();
                }
                Field::Other(name) => {
                    let Some(value) = fields.next_value::<Cell>()?.0 else { continue };
                    match name.starts_with("eval_") {
                        true => line.evals.push((printable(&name), value)),
                        false if columns.len() < MAX_COLUMNS => {
                            line.numbers.push((columns.len(), value));
                            columns.push(StepColumn::new(&name, vec![]));
                        }
                        false => {}
                    }
                }
            }
        }
        Ok(())
    }
}

/// The name of a field: of a column that is there, or another.
enum Field {
    Known(usize),
    Other(String),
}

struct FieldSeed<'a> {
    columns: &'a [StepColumn],
    /// The column that is likely.
    next: usize,
}

impl<'de> DeserializeSeed<'de> for FieldSeed<'_> {
    type Value = Field;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Field, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for FieldSeed<'_> {
    type Value = Field;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E>(self, name: &str) -> Result<Field, E> {
        let place = match self.columns.get(self.next) {
            Some(column) if column.is(name) => Some(self.next),
            _ => self.columns.iter().position(|column| column.is(name)),
        };
        Ok(place.map_or_else(|| Field::Other(name.to_owned()), Field::Known))
    }
}

/// A number, NaN for the `null` of one that is not finite, or nothing that is a number.
struct Cell(Option<f64>);

impl<'de> Deserialize<'de> for Cell {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CellVisitor)
    }
}

struct CellVisitor;

impl<'de> Visitor<'de> for CellVisitor {
    type Value = Cell;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_f64<E>(self, value: f64) -> Result<Cell, E> {
        Ok(Cell(Some(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Cell, E> {
        Ok(Cell(Some(value as f64)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Cell, E> {
        Ok(Cell(Some(value as f64)))
    }

    fn visit_unit<E>(self) -> Result<Cell, E> {
        Ok(Cell(Some(f64::NAN)))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Cell, E> {
        Ok(Cell(None))
    }

    fn visit_str<E>(self, _: &str) -> Result<Cell, E> {
        Ok(Cell(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Cell, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Cell(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Cell, A::Error> {
        while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Cell(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (StepTable, Vec<String>) {
        let mut notes = vec![];
        let steps = read_steps(text.as_bytes(), &mut notes).unwrap();
        (steps, notes)
    }

    #[test]
    fn damaged_and_missing_lines_are_said_and_the_others_count() {
        let text = "{\"step\":0,\"loss\":2.5,\"eval_loss\":null}\nhello\n[1]\n\
                    {\"loss\":1}\n{\"step\":3,\"loss\":null,\"lr\":1}\n{\"step\":4,\"lo";
        let (steps, notes) = read(text);
        assert_eq!(steps.step, [0, 3]);
        let loss = steps.column("loss").unwrap();
        assert!(loss[0] == 2.5 && loss[1].is_nan());
        let lr = steps.column("lr").unwrap();
        assert!(lr[0].is_nan() && lr[1] == 1.0);
        assert!(steps.evals[0].1["eval_loss"].is_nan() && steps.evals.len() == 1);
        for note in
            ["line 2 is not JSON", "line 3", "no `step`", "line 6 has no end", "2 steps are"]
        {
            assert!(notes.iter().any(|found| found.contains(note)), "{note}: {notes:?}");
        }
    }

    #[test]
    fn steps_that_were_taken_again_count_once() {
        let line = |step: u64, loss: f64| format!("{{\"step\":{step},\"loss\":{loss}}}\n");
        let (steps, notes) = read(&[line(0, 3.0), line(1, 2.0), line(1, 2.5)].concat());
        assert_eq!(
            (&steps.step[..], steps.column("loss").unwrap()),
            (&[0, 1][..], &[3.0, 2.5][..])
        );
        assert!(notes[0].contains("recorded again"), "{notes:?}");
    }
}
