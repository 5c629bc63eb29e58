//! The norms of each parameter, as the run has recorded them: the last ones, and how large updates
//! were over the run.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result};
use indexmap::IndexMap;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::Report;
use super::chart::{self, Trace};
use super::html::Html;
use super::numbers::shown;
use super::page::{run_heading, table};
use crate::cli::plot::printable;
use crate::config::open_regular;
use crate::figure::Scale;
use crate::observe::LayersFile;

/// Most parameters: a file that is no record could have one for each line.
const MAX_LAYERS: usize = 100_000;
/// Most rows of a table.
const MAX_ROWS: usize = 1000;
/// Most parameters whose updates are kept over the run, and most curves of the chart.
const MAX_WITH_CURVE: usize = 1000;
const MAX_CURVES: usize = 100;
/// Most points of a curve. Neighbours are joined beyond that.
const MAX_POINTS: usize = 256;
/// From this share on, an update is called large.
const MIN_LARGE_RATIO: f64 = 0.1;

/// What is known of a parameter. A number that is not finite is `null` in JSON.
#[derive(Serialize)]
pub struct LayerRecord {
    name: String,
    /// The last step that was recorded, from 0, and its norms.
    step: u64,
    param_norm: f64,
    grad_norm: f64,
    update_norm: f64,
    /// The norm of the update as a share of the parameter's: of the last step, the least, and the
    /// largest, with its step.
    update_ratio: f64,
    min_ratio: f64,
    max_ratio: f64,
    max_ratio_step: u64,
    /// The first parameters of a file have a curve.
    #[serde(skip)]
    has_curve: bool,
    /// The largest in each of some records in a row, over the run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ratios: Vec<StepRatio>,
}

/// The largest update of a parameter in some records in a row.
#[derive(Clone, Copy, Serialize)]
struct StepRatio {
    /// Of the last of the records.
    step: u64,
    update_ratio: f64,
}

/// A line of the file.
#[derive(Deserialize)]
struct LayersLine {
    step: u64,
    layers: NormsByName,
}

/// In the order of the file.
struct NormsByName(Vec<(String, LineNorms)>);

impl<'de> Deserialize<'de> for NormsByName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(NormsVisitor)
    }
}

struct NormsVisitor;

impl<'de> Visitor<'de> for NormsVisitor {
    type Value = NormsByName;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the norms of each parameter")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<NormsByName, A::Error> {
        let mut norms = vec![];
        while let Some(entry) = fields.next_entry()? {
            norms.push(entry);
        }
        Ok(NormsByName(norms))
    }
}

#[derive(Deserialize)]
struct LineNorms {
    param_norm: Option<f64>,
    grad_norm: Option<f64>,
    update_norm: Option<f64>,
    update_ratio: Option<f64>,
}

/// Reads the norms in the directory of a run; none if it has none.
///
/// # Errors
/// A file that cannot be read.
pub fn read(dir: &Path, notes: &mut Vec<String>) -> Result<Vec<LayerRecord>> {
    let path = dir.join(LayersFile::FILE);
    if !path.exists() {
        return Ok(vec![]);
    }
    let failed = || format!("cannot read {}", path.display());
    let file = BufReader::new(open_regular(&path).with_context(failed)?);
    read_lines(file, notes).with_context(failed)
}

fn read_lines(file: impl BufRead, notes: &mut Vec<String>) -> std::io::Result<Vec<LayerRecord>> {
    let mut records: IndexMap<String, LayerRecord> = IndexMap::new();
    let mut num_damaged = 0_u64;
    for line in file.split(b'\n') {
        let line = line?;
        if line.trim_ascii().is_empty() {
            continue;
        }
        let Ok(LayersLine { step, layers: NormsByName(layers) }) = serde_json::from_slice(&line)
        else {
            num_damaged += 1;
            continue;
        };
        for (name, norms) in layers {
            let has_curve = records.len() < MAX_WITH_CURVE;
            if records.len() < MAX_LAYERS || records.contains_key(&name) {
                let record = records.entry(name).or_insert_with(|| LayerRecord::new(has_curve));
                record.add(step, &norms);
            }
        }
    }
    if num_damaged > 0 {
        let file = LayersFile::FILE;
        notes.push(format!("{file}: {num_damaged} damaged lines were left out"));
    }
    let named =
        records.into_iter().map(|(name, record)| LayerRecord { name: printable(&name), ..record });
    Ok(named.collect())
}

impl LayerRecord {
    fn new(has_curve: bool) -> Self {
        Self {
            has_curve,
            ratios: vec![],
            name: String::new(),
            step: 0,
            param_norm: f64::NAN,
            grad_norm: f64::NAN,
            update_norm: f64::NAN,
            update_ratio: f64::NAN,
            min_ratio: f64::NAN,
            max_ratio: f64::NAN,
            max_ratio_step: 0,
        }
    }

    fn add(&mut self, step: u64, norms: &LineNorms) {
        let number = |value: Option<f64>| value.unwrap_or(f64::NAN);
        let ratio = number(norms.update_ratio);
        self.step = step;
        self.param_norm = number(norms.param_norm);
        self.grad_norm = number(norms.grad_norm);
        self.update_norm = number(norms.update_norm);
        self.update_ratio = ratio;
        if self.has_curve {
            self.ratios.push(StepRatio { step, update_ratio: ratio });
        }
        if self.ratios.len() >= MAX_POINTS {
            // `max` leaves out what is no number.
            let join = |part: &[StepRatio]| {
                let largest = part.iter().map(|of| of.update_ratio).fold(f64::NAN, f64::max);
                Some(StepRatio { step: part.last()?.step, update_ratio: largest })
            };
            self.ratios = self.ratios.chunks(2).filter_map(join).collect();
        }
        self.min_ratio = self.min_ratio.min(ratio);
        if ratio > self.max_ratio || self.max_ratio.is_nan() {
            (self.max_ratio, self.max_ratio_step) = (ratio, step);
        }
    }
}

/// The norms of each parameter, where they are recorded.
pub fn layers(html: &mut Html, report: &Report) {
    if report.runs.iter().all(|run| run.layers.is_empty()) {
        html.own(
            "<p class=\"muted\">Norms of each parameter and of its updates are not recorded: \
             observe.layers_every = 100 records them every 100 steps.</p>\n",
        );
        return;
    }
    html.own(
        "<p class=\"muted\">The update of a parameter as a share of its norm says whether the \
         learning rate fits: about 0.001 is usual, above 0.1 a step changes the layer \
         altogether. A bias that begins at 0 has large shares at first.</p>\n",
    );
    chart_of_ratios(html, report);
    for (number, run) in report.runs.iter().enumerate() {
        run_heading(html, report, number);
        if run.layers.is_empty() {
            html.own("<p>Not recorded.</p>\n");
            continue;
        }
        let large = run.layers.iter().filter(|layer| layer.update_ratio > MIN_LARGE_RATIO).count();
        let step = run.layers.iter().map(|layer| layer.step).max().unwrap_or(0);
        let text = format!(
            "After step {}: {large} of {} parameters with an update above {MIN_LARGE_RATIO} of \
             their norm.",
            step + 1,
            run.layers.len()
        );
        html.element("p", &[], &text);
        let heads = [
            "parameter",
            "update_ratio, last",
            "least",
            "largest",
            "in step",
            "param_norm",
            "grad_norm",
            "update_norm",
        ];
        let rows = run.layers.iter().take(MAX_ROWS).map(|layer| {
            let number = |value: f64| (shown(value), true);
            vec![
                (layer.name.clone(), false),
                number(layer.update_ratio),
                number(layer.min_ratio),
                number(layer.max_ratio),
                (layer.max_ratio_step.to_string(), true),
                number(layer.param_norm),
                number(layer.grad_norm),
                number(layer.update_norm),
            ]
        });
        table(html, &heads, rows);
        if run.layers.len() > MAX_ROWS {
            let text = format!("The first {MAX_ROWS} are shown; --json has all.");
            html.element("p", &[("class", "muted")], &text);
        }
    }
}

/// The updates of parameters over the steps, a curve for each. Where there are very many, those
/// with the largest.
fn chart_of_ratios(html: &mut Html, report: &Report) {
    let mut traces = vec![];
    for (color, run) in report.runs.iter().enumerate() {
        let with_curve = run.layers.iter().filter(|layer| layer.max_ratio.is_finite());
        let mut largest: Vec<_> = with_curve.filter(|layer| layer.has_curve).collect();
        largest.sort_by(|a, b| b.max_ratio.total_cmp(&a.max_ratio));
        traces.extend(largest.into_iter().take(MAX_CURVES / report.runs.len()).map(|layer| {
            Trace {
                color,
                class: "thin",
                name: Some(layer.name.clone()),
                points: layer.ratios.iter().map(|of| (of.step as f64, of.update_ratio)).collect(),
            }
        }));
    }
    html.open("figure", &[("class", "still")]).open("figcaption", &[]);
    html.element("b", &[], "update_ratio").text(" ");
    let about = "of each parameter: its update as a share of its norm, on a logarithmic axis";
    html.element("span", &[("class", "about")], about).close("figcaption");
    chart::picture(html, "update_ratio", Scale::Log(10.0), &traces);
    html.close("figure").own("\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_norms_count_and_the_largest_ratio_has_its_step() {
        let line = |step: u64, ratio: &str| {
            format!(
                "{{\"step\":{step},\"layers\":{{\"a<b\":{{\"param_norm\":2.0,\"grad_norm\":1.0,\
                 \"update_norm\":null,\"update_ratio\":{ratio}}}}}}}\n"
            )
        };
        let text =
            [line(9, "null"), line(19, "0.5"), line(29, "0.25"), "{\"st".to_owned()].concat();
        let mut notes = vec![];
        let records = read_lines(text.as_bytes(), &mut notes).unwrap();
        let [record] = &records[..] else { panic!("{}", records.len()) };
        assert_eq!((&*record.name, record.step, record.param_norm), ("a<b", 29, 2.0));
        assert!(record.update_norm.is_nan());
        assert_eq!((record.update_ratio, record.min_ratio), (0.25, 0.25));
        assert_eq!((record.max_ratio, record.max_ratio_step), (0.5, 19));
        assert!(notes[0].contains("1 damaged lines"), "{notes:?}");
        assert_eq!(record.ratios[1..].iter().map(|of| of.step).collect::<Vec<_>>(), [19, 29]);

        // However long the run is, the curve has its largest update.
        let lines = (0..5000).map(|step| line(step, if step == 777 { "7" } else { "0.25" }));
        let text: String = lines.collect();
        let [record] = &read_lines(text.as_bytes(), &mut notes).unwrap()[..] else { panic!() };
        assert!(record.ratios.len() < MAX_POINTS, "{}", record.ratios.len());
        assert_eq!(record.ratios.last().unwrap().step, 4999);
        assert_eq!(record.ratios.iter().filter(|of| of.update_ratio == 7.0).count(), 1);
    }
}
