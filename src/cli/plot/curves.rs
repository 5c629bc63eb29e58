//! Which curves are drawn of runs.

use std::borrow::Cow;
use std::collections::BTreeSet;

use anyhow::{Result, bail};
use hlo::counted;

use super::run::{RecordedRun, RecordedStep, printable};
use crate::cli::args::{PlotArgs, PlotX};
use crate::figure::{self, Figure, Line, Look, Panel, PlotAxis, PlotCurve, Scale};

/// Most metrics: each has a diagram.
const MAX_METRICS: usize = 12;
const EVAL_LOSS: &str = "eval_loss";

/// A run and where its steps stand on the x axis.
struct Traced<'a> {
    run: &'a RecordedRun,
    x: Vec<f64>,
}

impl Traced<'_> {
    fn points(&self, value: impl Fn(&RecordedStep) -> f64) -> Vec<(f64, f64)> {
        self.x.iter().zip(&self.run.steps).map(|(x, step)| (*x, value(step))).collect()
    }

    /// The values of an evaluation where there was one.
    fn evals(&self, field: &str) -> Vec<(f64, f64)> {
        let steps = self.x.iter().zip(&self.run.steps);
        steps.filter_map(|(x, step)| Some((*x, *step.evals.get(field)?))).collect()
    }
}

/// The figure of these runs.
///
/// # Errors
/// A run that did not record what the x axis shows.
pub fn figure_of(runs: &[RecordedRun], args: &PlotArgs) -> Result<Figure> {
    let (x_title, x_scale, runs) = traced(runs, args.x)?;
    let x = || PlotAxis { title: x_title.clone(), scale: x_scale, labels: figure::numbers };
    let y = |title: String, scale| {
        let labels = match scale {
            Scale::Log(_) => figure::powers,
            _ => figure::numbers,
        };
        PlotAxis { title: title.into(), scale, labels }
    };
    let of_runs = |curve: &dyn Fn(&Traced<'_>, usize) -> Vec<PlotCurve>| -> Vec<PlotCurve> {
        runs.iter().enumerate().flat_map(|(number, run)| curve(run, number)).collect()
    };
    let panel = |y: PlotAxis, curves| Panel { title: String::new(), x: x(), y, curves };
    let loss_scale = if args.log { Scale::Log(10.0) } else { Scale::Span };
    let losses = of_runs(&|run, number| losses(run, number, args.smooth));
    let mut panels = vec![panel(y("loss".to_owned(), loss_scale), losses)];
    let fields: BTreeSet<_> = runs.iter().flat_map(|run| run.run.eval_fields()).collect();
    let metrics = fields.iter().copied().filter(|field| *field != EVAL_LOSS);
    for field in metrics.take(MAX_METRICS) {
        let name = printable(field.trim_start_matches("eval_")).replace('_', " ");
        let curves =
            of_runs(&|run, number| vec![curve(run.evals(field), look(number, Line::Thin, true))]);
        panels.push(panel(y(name, Scale::Span), curves));
    }
    let rates = of_runs(&|run, number| {
        vec![curve(run.points(|step| step.lr), look(number, Line::Dashed, false))]
    });
    panels.push(panel(y("learning rate".to_owned(), Scale::Linear), rates));
    let key = key(&runs, args.smooth, fields.contains(EVAL_LOSS));
    let (title, subtitle) = match &runs[..] {
        [run] => (run.run.name.clone(), describe(run.run)),
        _ => {
            let names: Vec<_> = runs.iter().map(|run| run.run.name.as_str()).collect();
            (names.join(", "), String::new())
        }
    };
    Ok(Figure { title, subtitle, key: Some(key), panels })
}

fn look(number: usize, line: Line, has_dots: bool) -> Look {
    Look { number: Some(number), line, has_dots }
}

fn curve(points: Vec<(f64, f64)>, look: Look) -> PlotCurve {
    PlotCurve { look: Some(look), points, ..PlotCurve::default() }
}

/// The losses of a run: of training, and of evaluations over it.
fn losses(run: &Traced<'_>, number: usize, weight: Option<f64>) -> Vec<PlotCurve> {
    let raw = run.points(|step| step.loss);
    let mut curves = vec![];
    match weight {
        None => curves.push(curve(raw, look(number, Line::Thin, false))),
        Some(weight) => {
            let mean = smoothed(&raw, weight);
            curves.push(curve(raw, look(number, Line::Faint, false)));
            curves.push(curve(mean, look(number, Line::Solid, false)));
        }
    }
    let evals = run.evals(EVAL_LOSS);
    if !evals.is_empty() {
        curves.push(curve(evals, look(number, Line::Thin, true)));
    }
    curves
}

/// What is what: the runs by color, and then lines and dots.
fn key(runs: &[Traced<'_>], weight: Option<f64>, has_evals: bool) -> Vec<(String, Look)> {
    let (number, mut key) = match runs {
        [_] => (Some(0), vec![]),
        _ => {
            let entry = |(number, run): (usize, &Traced<'_>)| {
                let text = format!("{}: {}", run.run.name, describe(run.run));
                (text, look(number, Line::Solid, !run.run.eval_fields().is_empty()))
            };
            (None, runs.iter().enumerate().map(entry).collect())
        }
    };
    let look = |line, has_dots| Look { number, line, has_dots };
    match weight {
        // Several runs without anything else need no more words.
        None if runs.len() > 1 && !has_evals => {}
        None => key.push(("training".to_owned(), look(Line::Thin, false))),
        Some(weight) => {
            key.push(("training".to_owned(), look(Line::Faint, false)));
            let text = format!("training, smoothed by {weight}");
            key.push((text, look(Line::Solid, false)));
        }
    }
    if has_evals {
        key.push(("evaluation".to_owned(), look(Line::Thin, true)));
    }
    key
}

/// The steps of a run, and what it came to.
fn describe(run: &RecordedRun) -> String {
    let mut parts = vec![counted(run.steps.len() as u64, "step")];
    let last = |value: &dyn Fn(&RecordedStep) -> Option<f64>| {
        run.steps.iter().rev().find_map(|step| value(step).filter(|value| value.is_finite()))
    };
    if let Some(loss) = last(&|step| Some(step.loss)) {
        parts.push(format!("last loss {}", short(loss)));
    }
    if let Some(loss) = last(&|step| step.evals.get(EVAL_LOSS).copied()) {
        parts.push(format!("last evaluation {}", short(loss)));
    }
    let num_gaps = run.steps.iter().filter(|step| step.loss.is_nan()).count();
    if num_gaps > 0 {
        parts.push(format!("{} not finite", counted(num_gaps as u64, "loss")));
    }
    parts.join(", ")
}

/// Four digits.
fn short(value: f64) -> String {
    if value == 0.0 || (1e-3..1e5).contains(&value.abs()) {
        let decimals = (3 - value.abs().max(1.0).log10().floor() as i32).max(0) as usize;
        return format!("{value:.decimals$}");
    }
    format!("{value:.3e}")
}

/// A mean of the values so far, in which each counts `weight` times as much as the next one. It
/// starts with the first value, and not at 0. A gap stays one, and does not count.
fn smoothed(points: &[(f64, f64)], weight: f64) -> Vec<(f64, f64)> {
    let (mut sum, mut total) = (0.0, 0.0);
    let mean = |(x, value): &(f64, f64)| {
        if !value.is_finite() {
            return (*x, f64::NAN);
        }
        sum = weight * sum + (1.0 - weight) * value;
        total = weight * total + (1.0 - weight);
        (*x, sum / total)
    };
    points.iter().map(mean).collect()
}

/// Where the steps of each run stand, and what that axis is.
fn traced(runs: &[RecordedRun], x: PlotX) -> Result<(Cow<'static, str>, Scale, Vec<Traced<'_>>)> {
    let place = |run: &RecordedRun| -> Vec<f64> {
        let start = run.steps.iter().map(|step| step.time).find(|time| time.is_finite());
        let start = start.unwrap_or(0.0);
        let place = |step: &RecordedStep| match x {
            PlotX::Step => step.step as f64,
            PlotX::Examples => step.examples,
            PlotX::Time => (step.time - start).max(0.0),
        };
        run.steps.iter().map(place).collect()
    };
    let mut traced: Vec<_> = runs.iter().map(|run| Traced { run, x: place(run) }).collect();
    let (field, scale) = match x {
        PlotX::Step => return Ok(("step".into(), Scale::Whole, traced)),
        PlotX::Examples => ("examples", Scale::Whole),
        PlotX::Time => ("time", Scale::Ending),
    };
    let has_none = |run: &&Traced<'_>| {
        !run.run.steps.iter().any(|step| match x {
            PlotX::Time => step.time.is_finite(),
            _ => step.examples.is_finite(),
        })
    };
    if let Some(run) = traced.iter().find(has_none) {
        bail!("{} has not recorded `{field}`; use --x step", run.run.name);
    }
    if x == PlotX::Examples {
        return Ok((field.into(), scale, traced));
    }
    let longest = traced.iter().flat_map(|run| run.x.iter().copied()).fold(0.0, f64::max);
    let (unit, secs) = match longest {
        secs if secs < 180.0 => ("time (s)", 1.0),
        secs if secs < 3.0 * 3600.0 => ("time (minutes)", 60.0),
        _ => ("time (hours)", 3600.0),
    };
    traced.iter_mut().flat_map(|run| run.x.iter_mut()).for_each(|x| *x /= secs);
    Ok((unit.into(), scale, traced))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::picture;

    #[test]
    fn a_mean_starts_with_the_first_value_and_gaps_do_not_count() {
        let points = [(0.0, 4.0), (1.0, f64::NAN), (2.0, 1.0), (3.0, 1.0)];
        let means: Vec<_> = smoothed(&points, 0.5).iter().map(|point| point.1).collect();
        assert_eq!(means[0], 4.0);
        assert!(means[1].is_nan());
        // 4/3 of 1/4 * 4 + 1/2 * 1, and so on.
        assert!((means[2] - 2.0).abs() < 1e-12, "{means:?}");
        assert!((means[3] - 10.0 / 7.0).abs() < 1e-12, "{means:?}");
        assert_eq!(smoothed(&points[..1], 0.0), [(0.0, 4.0)]);
    }

    #[test]
    fn values_are_short() {
        let found = [0.03244, 2.5557, 12.345, 123456.0, 0.0, -1.5, 2e-7].map(short);
        let expected = ["0.032", "2.556", "12.35", "1.235e5", "0.000", "-1.500", "2.000e-7"];
        assert_eq!(found, expected);
    }

    /// Whatever a run has recorded, it can be drawn in every form.
    #[test]
    fn every_run_is_drawn_or_refused() {
        let numbers = [f64::NAN, 0.0, 1.0, -2.0, 1e300, 1e-300, 1e-40, f64::MAX, 0.5];
        let dir = tempfile::tempdir().unwrap();
        for (first, second) in numbers.iter().flat_map(|a| numbers.map(|b| (*a, b))) {
            let step = |step: u64, value: f64| RecordedStep {
                step,
                time: value,
                examples: value.abs(),
                loss: value,
                lr: value,
                evals: [(EVAL_LOSS.to_owned(), value), ("eval_a".to_owned(), value)].into(),
            };
            for steps in [vec![step(0, first)], vec![step(0, first), step(u64::MAX, second)]] {
                let run = RecordedRun { name: "a".to_owned(), steps };
                for x in [PlotX::Step, PlotX::Examples, PlotX::Time] {
                    let (runs, to, overwrite) = (vec![], None, false);
                    let args =
                        PlotArgs { runs, to, overwrite, x, log: first > 0.5, smooth: Some(0.9) };
                    let Ok(figure) = figure_of(std::slice::from_ref(&run), &args) else { continue };
                    for columns in [40, 80, 200] {
                        let lines = figure::text(&figure, columns);
                        let width = |line: &String| line.chars().count();
                        assert!(lines.iter().map(width).max().unwrap() <= columns, "{lines:#?}");
                    }
                    let path = dir.path().join("a.svg");
                    let file = picture::new_file("--to", &path, true, |_| true).unwrap();
                    picture::save(file, &figure).unwrap();
                    let svg = std::fs::read_to_string(&path).unwrap();
                    assert!(
                        !svg.contains("NaN") && !svg.contains("inf"),
                        "{first} {second}: {svg}"
                    );
                }
            }
        }
    }
}
