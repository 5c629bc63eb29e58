//! What the scores of a model mean, as lines of JSON, as CSV, or as an array.

use std::path::Path;

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};

use crate::data::{self, LabelKind, Source};

/// The classes that a model has scores for.
pub struct Classes {
    /// Their names.
    pub labels: Vec<String>,
    /// `true` if an example has any number of them.
    pub is_multi_label: bool,
}

/// What the outputs of a model are.
pub enum Outputs {
    /// Scores of classes.
    Classes(Classes),
    /// The names of the values.
    Values(Vec<String>),
}

impl Outputs {
    /// Of a model for this source; `classes` are those that the model itself names.
    pub fn of(mut classes: Classes, source: &dyn Source) -> Self {
        if classes.labels.is_empty() {
            classes.labels = source.labels().to_vec();
        }
        if classes.labels.is_empty() {
            classes.labels = (0..source.num_outputs()).map(|class| class.to_string()).collect();
        }
        match source.label_kind() {
            LabelKind::Values(_) => Self::Values(classes.labels),
            LabelKind::Labels => Self::Classes(Classes { is_multi_label: true, ..classes }),
            LabelKind::Class => Self::Classes(classes),
        }
    }

    fn names(&self) -> &[String] {
        match self {
            Self::Classes(classes) => &classes.labels,
            Self::Values(names) => names,
        }
    }

    /// The probability of each class: shares of 1, or, if an example has any number of them, each
    /// by itself. Values are what they are.
    fn of_scores(&self, scores: &[f32]) -> Vec<f64> {
        let wide = scores.iter().map(|score| f64::from(*score));
        match self {
            Self::Values(_) => wide.collect(),
            Self::Classes(Classes { is_multi_label: true, .. }) => {
                wide.map(|score| 1.0 / (1.0 + (-score).exp())).collect()
            }
            Self::Classes(_) => {
                let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let powers: Vec<_> = wide.map(|score| (score - f64::from(highest)).exp()).collect();
                let sum: f64 = powers.iter().sum();
                powers.iter().map(|power| power / sum).collect()
            }
        }
    }

    /// The prediction for an example, behind what its line says about it.
    fn add_to(&self, line: &mut Map<String, Value>, outputs: &[f64]) {
        let all = |value: fn(f64) -> Value| {
            let all = self.names().iter().zip(outputs);
            Value::Object(all.map(|(name, output)| (name.clone(), value(*output))).collect())
        };
        let mut add = |name: &str, value: Value| drop(line.insert(name.to_owned(), value));
        match (self, outputs) {
            (Self::Values(_), [value]) => add("value", single(*value)),
            (Self::Values(_), _) => add("values", all(single)),
            (Self::Classes(classes), outputs) => {
                let (label, probability) = classes.likeliest(outputs);
                add("label", json!(label));
                if classes.is_multi_label {
                    add("labels", json!(classes.likely(outputs)));
                }
                add("probability", rounded(probability));
                add("probabilities", all(rounded));
            }
        }
    }
}

impl Classes {
    fn likeliest(&self, probabilities: &[f64]) -> (&str, f64) {
        let all = self.labels.iter().zip(probabilities);
        let first = all.fold(None, |best: Option<(&String, f64)>, (label, probability)| {
            best.filter(|(_, best)| best >= probability).or(Some((label, *probability)))
        });
        first.map_or(("", 0.0), |(label, probability)| (label, probability))
    }

    /// Those with a probability of at least one half.
    fn likely(&self, probabilities: &[f64]) -> Vec<&str> {
        let all = self.labels.iter().zip(probabilities);
        all.filter(|(_, probability)| **probability >= 0.5).map(|(label, _)| &**label).collect()
    }
}

/// A value with the digits of f32, which the model has computed.
fn single(value: f64) -> Value {
    json!((value as f32).to_string().parse::<f64>().ok())
}

fn rounded(probability: f64) -> Value {
    json!((probability * 1e6).round() / 1e6)
}

/// How predictions are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OutputFormat {
    /// A line of JSON for each example.
    Lines,
    /// CSV with a header.
    Csv,
    /// NumPy's array f32 `[examples, outputs]`: probabilities or values.
    Npy,
}

impl OutputFormat {
    /// That of a file by its extension; lines without a file.
    ///
    /// # Errors
    /// Another extension.
    pub fn of(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::Lines) };
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("csv") => Ok(Self::Csv),
            Some("npy") => Ok(Self::Npy),
            Some("jsonl" | "json") => Ok(Self::Lines),
            _ => bail!(
                "--to: {} must end in .jsonl (a line of JSON for each example), .csv or .npy",
                path.display()
            ),
        }
    }
}

/// Predictions in a format, one after the other.
pub struct Predictions<'o> {
    outputs: &'o Outputs,
    written: Written,
}

enum Written {
    Lines(Vec<u8>),
    Csv { rows: Box<csv::Writer<Vec<u8>>>, has_header: bool },
    Npy(Vec<f32>),
}

impl<'o> Predictions<'o> {
    /// None yet.
    pub fn new(format: OutputFormat, outputs: &'o Outputs) -> Self {
        let written = match format {
            OutputFormat::Lines => Written::Lines(vec![]),
            OutputFormat::Csv => {
                Written::Csv { rows: Box::new(csv::Writer::from_writer(vec![])), has_header: false }
            }
            OutputFormat::Npy => Written::Npy(vec![]),
        };
        Self { outputs, written }
    }

    /// Adds an example: what is said about it, and its scores.
    ///
    /// # Errors
    /// None: memory is written to.
    pub fn add(&mut self, inputs: &Map<String, Value>, scores: &[f32]) -> Result<()> {
        let outputs = self.outputs.of_scores(scores);
        match &mut self.written {
            Written::Lines(lines) => {
                let mut line = inputs.clone();
                self.outputs.add_to(&mut line, &outputs);
                lines.extend(serde_json::to_vec(&line)?);
                lines.push(b'\n');
            }
            Written::Csv { rows, has_header } => {
                let text = |value: &Value| match value {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                };
                let (mut names, mut cells): (Vec<String>, Vec<String>) =
                    inputs.iter().map(|(name, value)| (name.clone(), text(value))).unzip();
                let mut digits: fn(f64) -> Value = single;
                if let Outputs::Classes(classes) = self.outputs {
                    let label = match classes.is_multi_label {
                        true => classes.likely(&outputs).join(";"),
                        false => classes.likeliest(&outputs).0.to_owned(),
                    };
                    names.push("label".to_owned());
                    cells.push(label);
                    digits = rounded;
                }
                names.extend_from_slice(self.outputs.names());
                cells.extend(outputs.iter().map(|output| digits(*output).to_string()));
                if !*has_header {
                    rows.write_record(&names)?;
                    *has_header = true;
                }
                rows.write_record(&cells)?;
            }
            Written::Npy(values) => values.extend(outputs.iter().map(|output| *output as f32)),
        }
        Ok(())
    }

    /// The file.
    ///
    /// # Errors
    /// None: memory is written to.
    pub fn finish(self) -> Result<Vec<u8>> {
        Ok(match self.written {
            Written::Lines(lines) => lines,
            Written::Csv { rows, .. } => rows.into_inner().map_err(|error| error.into_error())?,
            Written::Npy(values) => {
                let width = self.outputs.names().len().max(1);
                data::npy_file(&[values.len() / width, width], &values)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(is_multi_label: bool) -> Outputs {
        let labels = ["x", "y", "z"].map(str::to_owned).to_vec();
        Outputs::Classes(Classes { labels, is_multi_label })
    }

    fn text() -> Map<String, Value> {
        let mut line = Map::new();
        line.insert("text".to_owned(), json!("a, b"));
        line
    }

    #[test]
    fn an_example_has_one_class_or_those_that_are_likely() {
        let line = |outputs: &Outputs| {
            let mut predictions = Predictions::new(OutputFormat::Lines, outputs);
            predictions.add(&text(), &[0.0, -2.0, 1.0]).unwrap();
            serde_json::from_slice::<Value>(&predictions.finish().unwrap()).unwrap()
        };
        let expected = json!({"text": "a, b", "label": "z", "probability": 0.705385,
            "probabilities": {"x": 0.259496, "y": 0.035119, "z": 0.705385}});
        assert_eq!(line(&classes(false)), expected);
        let expected = json!({"text": "a, b", "label": "z", "labels": ["x", "z"],
            "probability": 0.731059, "probabilities": {"x": 0.5, "y": 0.119203, "z": 0.731059}});
        assert_eq!(line(&classes(true)), expected);
        let mut value = Map::new();
        Outputs::Values(vec!["v".to_owned()]).add_to(&mut value, &[0.1]);
        assert_eq!(Value::Object(value), json!({"value": 0.1}));
    }

    #[test]
    fn files_have_a_row_for_each_example() {
        let written = |format, outputs: &Outputs| {
            let mut predictions = Predictions::new(format, outputs);
            for scores in [[0.0, -2.0, 1.0], [3.0, 0.5, 1.0]] {
                predictions.add(&text(), &scores).unwrap();
            }
            predictions.finish().unwrap()
        };
        let csv = String::from_utf8(written(OutputFormat::Csv, &classes(false))).unwrap();
        assert_eq!(
            csv,
            "text,label,x,y,z\n\"a, b\",z,0.259496,0.035119,0.705385\n\"a, b\",x,0.821409,0.067425,\
             0.111166\n"
        );
        let names = ["u", "v", "w"].map(str::to_owned).to_vec();
        let values = Outputs::Values(names);
        let csv = String::from_utf8(written(OutputFormat::Csv, &values)).unwrap();
        assert_eq!(csv, "text,u,v,w\n\"a, b\",0.0,-2.0,1.0\n\"a, b\",3.0,0.5,1.0\n");
        let npy = written(OutputFormat::Npy, &values);
        assert!(npy.starts_with(b"\x93NUMPY"));
        let floats: Vec<u8> =
            [0.0f32, -2.0, 1.0, 3.0, 0.5, 1.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert!(npy.ends_with(&floats) && npy.len() % 64 == floats.len());
    }
}
