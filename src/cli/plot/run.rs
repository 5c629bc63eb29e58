//! Reads what a run has recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, bail};
use serde_json::{Map, Value};

use crate::config::open_regular;
use crate::observe::Jsonl;

/// A run.
pub struct RecordedRun {
    pub name: String,
    /// Its steps in order, each once; at least one.
    pub steps: Vec<RecordedStep>,
}

/// What is drawn of a step. A number that is not finite or not known is NaN.
pub struct RecordedStep {
    pub step: u64,
    pub time: f64,
    pub examples: f64,
    pub loss: f64,
    pub lr: f64,
    /// The evaluation after it, by field: `eval_loss` and the metrics.
    pub evals: BTreeMap<String, f64>,
}

impl RecordedRun {
    /// Reads a run's directory or its `metrics.jsonl`.
    ///
    /// # Errors
    /// Something else, or a run without a step.
    pub fn read(path: &Path, name: String) -> Result<Self> {
        let is_dir = path.is_dir();
        let file = if is_dir { path.join(Jsonl::FILE) } else { path.to_owned() };
        if is_dir && !file.exists() {
            bail!(
                "{} is not the directory of a run: it has no {}; name the --out of a run",
                path.display(),
                Jsonl::FILE
            );
        }
        let opened = open_regular(&file);
        let opened = opened.with_context(|| {
            format!("cannot read {}; name the --out of a run or its metrics.jsonl", file.display())
        })?;
        let steps = read_steps(BufReader::new(opened), &file)?;
        if steps.is_empty() {
            bail!(
                "{} has no step yet: the run was stopped before its first one, or is about to \
                 take it; leave it out or try again later",
                file.display()
            );
        }
        Ok(Self { name, steps })
    }

    /// The fields of its evaluations.
    pub fn eval_fields(&self) -> BTreeSet<&str> {
        self.steps.iter().flat_map(|step| step.evals.keys()).map(String::as_str).collect()
    }
}

/// Reads the lines of a `metrics.jsonl`. A step that is there again was taken again, after the run
/// was continued from a checkpoint: what was recorded from that step on is replaced.
fn read_steps(mut file: impl BufRead, path: &Path) -> Result<Vec<RecordedStep>> {
    let mut steps: Vec<RecordedStep> = vec![];
    let mut line = vec![];
    for number in 1.. {
        line.clear();
        let failed = || format!("cannot read {}", path.display());
        if file.read_until(b'\n', &mut line).with_context(failed)? == 0 {
            break;
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let read = serde_json::from_slice::<Value>(&line).map_err(|_| Error::msg("it is not JSON"));
        match read.and_then(RecordedStep::of_line) {
            Ok(step) => {
                while steps.last().is_some_and(|last| last.step >= step.step) {
                    steps.pop();
                }
                steps.push(step);
            }
            // What a killed process has left of a line.
            Err(_) if !line.ends_with(b"\n") && line.starts_with(b"{") => break,
            Err(error) => bail!(
                "{}, line {number}: this is no line of a metrics.jsonl: {error}; name the --out \
                 of a run or its metrics.jsonl",
                path.display()
            ),
        }
    }
    Ok(steps)
}

impl RecordedStep {
    fn of_line(line: Value) -> Result<Self> {
        let Value::Object(fields) = line else { bail!("it is not an object") };
        let step = fields.get("step").and_then(Value::as_u64);
        let step = step.context("it has no field `step`")?;
        let number = |name: &str| number(&fields, name);
        let [Some(loss), Some(lr)] = [number("loss"), number("lr")] else {
            bail!("it has no field `loss` or `lr`");
        };
        let [time, examples] = ["time", "examples"].map(|name| number(name).unwrap_or(f64::NAN));
        let evals = fields.keys().filter(|name| name.starts_with("eval_"));
        let evals = evals.filter_map(|name| Some((name.clone(), number(name)?)));
        Ok(Self { step, time, examples, loss, lr, evals: evals.collect() })
    }
}

/// A number, or NaN for the `null` of one that was not finite.
fn number(fields: &Map<String, Value>, name: &str) -> Option<f64> {
    match fields.get(name)? {
        Value::Null => Some(f64::NAN),
        value => value.as_f64(),
    }
}

/// What the runs are called: the last parts of their paths, as many as tell them apart.
pub fn names(paths: &[PathBuf]) -> Vec<String> {
    let parts = |path: &PathBuf| -> Vec<String> {
        // As the user means it, where there is nothing that could be named.
        let path = match path.file_name() {
            Some(_) => path.clone(),
            None => path.canonicalize().unwrap_or_else(|_| path.clone()),
        };
        let is_default = path.file_name().is_some_and(|name| name == Jsonl::FILE);
        let path = match path.parent().filter(|dir| is_default && dir.file_name().is_some()) {
            Some(dir) => dir,
            None => &path,
        };
        let parts = path.components().map(|part| part.as_os_str().to_string_lossy());
        parts.map(|part| printable(&part)).collect()
    };
    let parts: Vec<_> = paths.iter().map(parts).collect();
    let named = |num_parts: usize| -> Vec<String> {
        let name = |parts: &Vec<String>| parts[parts.len().saturating_sub(num_parts)..].join("/");
        parts.iter().map(name).collect()
    };
    let longest = parts.iter().map(Vec::len).max().unwrap_or(1);
    let are_distinct =
        |names: &Vec<String>| names.iter().collect::<BTreeSet<_>>().len() == names.len();
    (1..=longest).map(named).find(are_distinct).unwrap_or_else(|| named(1))
}

/// Without what would move the cursor of a terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '\u{FFFD}' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(step: u64, loss: &str, more: &str) -> String {
        format!(
            "{{\"step\":{step},\"time\":{step}.5,\"examples\":64,\"loss\":{loss},\"lr\":0.1{more}}}\n"
        )
    }

    fn read(text: &str) -> Result<Vec<(u64, f64)>> {
        let steps = read_steps(text.as_bytes(), Path::new("metrics.jsonl"))?;
        Ok(steps.iter().map(|step| (step.step, step.loss)).collect())
    }

    #[test]
    fn a_torn_line_is_none_and_steps_that_were_taken_again_count_once() {
        let whole = [line(0, "3.0", ""), line(1, "2.0", ""), line(2, "1.0", "")].concat();
        let expected = [(0, 3.0), (1, 2.0), (2, 1.0)];
        assert_eq!(read(&whole).unwrap(), expected);
        for kept in 1..line(3, "0.5", "").len() - 2 {
            let torn = format!("{whole}{}", &line(3, "0.5", "")[..kept]);
            assert_eq!(read(&torn).unwrap(), expected, "{torn}");
        }
        let again = [whole, line(1, "2.5", "")].concat();
        assert_eq!(read(&again).unwrap(), [(0, 3.0), (1, 2.5)]);
        assert_eq!(read("\n").unwrap(), []);
    }

    #[test]
    fn numbers_that_are_not_finite_are_gaps() {
        let text = line(7, "null", ",\"eval_loss\":null,\"eval_f1\":0.5,\"eval_text\":\"a\"");
        let steps = read_steps(text.as_bytes(), Path::new("a")).unwrap();
        assert!(steps[0].loss.is_nan() && steps[0].evals["eval_loss"].is_nan());
        assert_eq!(steps[0].evals["eval_f1"], 0.5);
        assert_eq!(steps[0].evals.len(), 2);
    }

    #[test]
    fn what_is_no_metrics_file_is_refused_with_its_line() {
        let good = line(0, "1.0", "");
        for (bad, reason) in [
            ("hello", "line 2: this is no line of a metrics.jsonl: it is not JSON"),
            ("[1]\n", "it is not an object"),
            ("{\"step\":-1}\n", "it has no field `step`"),
            ("{\"step\":1,\"loss\":\"high\",\"lr\":1}\n", "it has no field `loss` or `lr`"),
            ("{\"step\":1,\n", "it is not JSON"),
            ("\u{0}\u{1}\n", "it is not JSON"),
        ] {
            let error = read(&format!("{good}{bad}")).unwrap_err().to_string();
            assert!(error.contains(reason) && error.ends_with("or its metrics.jsonl"), "{error}");
        }
    }

    #[test]
    fn runs_are_called_by_what_tells_them_apart() {
        let names = |paths: &[&str]| names(&paths.iter().map(PathBuf::from).collect::<Vec<_>>());
        assert_eq!(names(&["runs/a", "runs/b/"]), ["a", "b"]);
        assert_eq!(names(&["a/run", "b/run/metrics.jsonl"]), ["a/run", "b/run"]);
        assert_eq!(names(&["old.jsonl", "x\u{1b}[2J"]), ["old.jsonl", "x\u{FFFD}[2J"]);
        assert_eq!(names(&["metrics.jsonl"]), ["metrics.jsonl"]);
        assert_eq!(names(&["a", "a"]), ["a", "a"]);
    }
}
