//! Which curves the page has, and the picture of each that needs no script. The script draws the
//! same in the reader's width, and with more detail where the reader looks closely.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde::Serialize;

use super::RunReport;
use super::html::Html;
use super::levels::{CurveLevel, CurveValues};
use crate::figure::{self, PlacedAxis, PlotAxis, Scale};

/// Colors of the style sheet.
const NUM_COLORS: usize = 6;
/// The picture's size, and where the diagram in it begins and ends.
const SIZE: (f64, f64) = (720.0, 260.0);
const AREA: (f64, f64, f64, f64) = (62.0, 12.0, 706.0, 222.0);
/// Columns of a curve.
const COLUMNS: usize = 360;
/// How much a step counts in the smoothed curve, in multiples of the next one.
const WEIGHT: f64 = 0.9;

/// A diagram.
#[derive(Serialize)]
pub struct Chart {
    pub id: String,
    pub title: String,
    /// What it shows, for people.
    pub about: &'static str,
    /// `true` if a running mean is drawn over the curve.
    pub smooth: bool,
    /// Columns of steps, as lines.
    pub steps: Vec<String>,
    /// Columns of evaluations, as dots.
    pub evals: Vec<String>,
}

/// What is known of a column: its title and its meaning.
const KNOWN: [(&str, &str, &str); 13] = [
    ("lr", "learning rate", ""),
    ("grad_norm", "gradient norm", "of the whole gradient, before clipping"),
    ("noise_scale", "gradient noise scale", "examples: about the critical batch"),
    ("num_skipped", "skipped updates", "so far, because a value was not finite"),
    ("step_ms", "time of a step (ms)", "without evaluations, proofs and checkpoints"),
    ("examples_per_sec", "examples per second", "over all replicas"),
    ("data_wait_ms", "waiting for a batch (ms)", "some of it may be hidden behind other steps"),
    ("launch_delay_ms", "devices idle before a launch (ms)", "for data, or work of the host"),
    ("host_ms", "host's work to launch a step (ms)", "hidden while devices are busy"),
    ("collective_wait_ms", "waiting for other processes (ms)", "in collectives"),
    ("eval_accuracy", "accuracy", "of evaluations"),
    ("eval_f1", "F1", "of evaluations"),
    ("eval_r2", "R2", "of evaluations"),
];

/// The title of a column.
pub fn title(field: &str) -> (String, &'static str) {
    let known = KNOWN.iter().find(|(name, ..)| *name == field);
    match known {
        Some((_, title, about)) => ((*title).to_owned(), about),
        None => {
            let name = field.strip_prefix("eval_").unwrap_or(field);
            let about = if field.starts_with("eval_") { "of evaluations" } else { "" };
            (name.replace('_', " "), about)
        }
    }
}

/// The diagrams of the page: the loss, other evaluations, and the rest in the order of the file.
pub fn charts(runs: &[RunReport]) -> Vec<Chart> {
    let fields = |levels: &dyn Fn(&RunReport) -> Option<&CurveLevel>| -> Vec<String> {
        let mut seen = BTreeSet::new();
        let levels = runs.iter().filter_map(levels);
        let names = levels.flat_map(|level| level.series.keys());
        names.filter(|name| seen.insert((*name).clone())).cloned().collect()
    };
    let steps = fields(&|run| run.curves.steps.first());
    let evals = fields(&|run| run.curves.evals.first());
    let (loss, eval_loss) = ("loss", "eval_loss");
    let mut charts = vec![Chart {
        id: loss.to_owned(),
        title: loss.to_owned(),
        about: "of training, with a running mean over it; dots are evaluations",
        smooth: true,
        steps: vec![loss.to_owned()],
        evals: vec![eval_loss.to_owned()],
    }];
    let alone = |field: &String, is_eval: bool| {
        let (title, about) = title(field);
        let [steps, evals] = [!is_eval, is_eval].map(|has| has.then(|| field.clone()));
        let (steps, evals) = (steps.into_iter().collect(), evals.into_iter().collect());
        Chart { id: field.clone(), title, about, smooth: false, steps, evals }
    };
    let evals = evals.iter().filter(|field| *field != eval_loss);
    charts.extend(evals.map(|field| alone(field, true)));
    let steps = steps.iter().filter(|field| *field != loss);
    charts.extend(steps.map(|field| alone(field, false)));
    charts
}

/// A curve in the static picture.
pub struct Trace {
    /// Index of its run.
    pub color: usize,
    /// `line`, `thin` or `raw`, or `dot` for points that are not joined.
    pub class: &'static str,
    /// What it shows, where the chart has several curves of a run.
    pub name: Option<String>,
    pub points: Vec<(f64, f64)>,
}

/// Adds the picture.
pub fn draw(html: &mut Html, chart: &Chart, runs: &[RunReport]) {
    picture(html, &chart.title, Scale::Span, &traces(chart, runs));
}

/// Adds curves over steps.
pub fn picture(html: &mut Html, title: &str, scale: Scale, traces: &[Trace]) {
    let labels = if matches!(scale, Scale::Log(_)) { figure::powers } else { figure::numbers };
    let x = PlotAxis { title: "step".into(), scale: Scale::Whole, labels: figure::numbers };
    let y = PlotAxis { title: "".into(), scale, labels };
    let all = || traces.iter().flat_map(|trace| trace.points.iter());
    let shown = || all().filter(|(at, value)| x.has(*at) && y.has(*value));
    let label = match shown().next() {
        Some(_) => format!("{title} by step; the table below has its numbers"),
        None => format!("{title}: no value is finite"),
    };
    let (placed_x, placed_y) = (
        PlacedAxis::new(&x, shown().map(|point| point.0), 6),
        PlacedAxis::new(&y, shown().map(|point| point.1), 5),
    );
    let (left, top, right, bottom) = AREA;
    let place = |(at, value): (f64, f64)| {
        let (across, up) = (placed_x.share(at), placed_y.share(value));
        (short(left + across * (right - left)), short(bottom - up * (bottom - top)))
    };
    let view = format!("0 0 {} {}", SIZE.0, SIZE.1);
    html.open("svg", &[("viewBox", &view), ("role", "img"), ("aria-label", &label)]);
    for (at, text) in &placed_y.ticks {
        let y = short(bottom - placed_y.share(*at) * (bottom - top));
        line(html, "grid", (left, y), (right, y));
        let (x, y) = ((left - 8.0).to_string(), (y + 4.0).to_string());
        html.element("text", &[("x", &x), ("y", &y), ("text-anchor", "end")], text);
    }
    for (at, text) in &placed_x.ticks {
        let x = short(left + placed_x.share(*at) * (right - left));
        line(html, "tick", (x, bottom), (x, bottom + 5.0));
        let (x, y) = (x.to_string(), (bottom + 20.0).to_string());
        html.element("text", &[("x", &x), ("y", &y), ("text-anchor", "middle")], text);
    }
    line(html, "axis", (left, bottom), (right, bottom));
    let (x_title, y_title) = (((left + right) / 2.0).to_string(), (SIZE.1 - 4.0).to_string());
    html.element("text", &[("x", &x_title), ("y", &y_title), ("text-anchor", "middle")], "step");
    for Trace { color, class, name, points } in traces {
        let class = format!("{class} c{}", color % NUM_COLORS);
        let has = |point: &(f64, f64)| x.has(point.0) && y.has(point.1);
        if class.starts_with("dot") {
            for point in points.iter().filter(|point| has(point)) {
                let (x, y) = place(*point);
                let (x, y) = (x.to_string(), y.to_string());
                html.open("circle", &[("class", &class), ("cx", &x), ("cy", &y), ("r", "3")]);
                html.close("circle");
            }
            continue;
        }
        let mut path = String::new();
        for part in points.split(|point| !has(point)).filter(|part| !part.is_empty()) {
            for (number, point) in part.iter().enumerate() {
                let (x, y) = place(*point);
                let _ = write!(path, "{}{x} {y}", if number == 0 { 'M' } else { 'L' });
            }
            if part.len() == 1 {
                // The round end of a line of no length is a dot.
                path += "h0";
            }
        }
        html.open("path", &[("class", &class), ("d", &path)]);
        if let Some(name) = name {
            html.element("title", &[], name);
        }
        html.close("path");
    }
    html.close("svg");
}

fn line(html: &mut Html, class: &str, from: (f64, f64), to: (f64, f64)) {
    let [x1, y1, x2, y2] = [from.0, from.1, to.0, to.1].map(|at| at.to_string());
    let ends = [("class", class), ("x1", &*x1), ("y1", &*y1), ("x2", &*x2), ("y2", &*y2)];
    html.open("line", &ends).close("line");
}

fn traces(chart: &Chart, runs: &[RunReport]) -> Vec<Trace> {
    let mut traces = vec![];
    for (color, run) in runs.iter().enumerate() {
        let coarsest = run.curves.steps.first();
        for field in &chart.steps {
            let Some(level) = coarsest else { continue };
            let Some(values) = level.series.get(field) else { continue };
            let class = if chart.smooth { "raw" } else { "line" };
            let of_run = |class, points| Trace { color, class, name: None, points };
            traces.push(of_run(class, outline(&level.step, values)));
            if chart.smooth {
                let points = smoothed(&level.step, values, level.rows_per_point);
                traces.push(of_run("line", points));
            }
        }
    }
    for (color, run) in runs.iter().enumerate() {
        for field in &chart.evals {
            let Some(level) = run.curves.evals.first() else { continue };
            let Some(values) = level.series.get(field) else { continue };
            let points = outline(&level.step, values);
            // Only of a few is each seen; the line shows the others.
            let stride = points.len().div_ceil(60).max(1);
            let dots = points.iter().rev().step_by(stride).copied().collect();
            let of_run = |class, points| Trace { color, class, name: None, points };
            traces.extend([of_run("thin", points), of_run("dot", dots)]);
        }
    }
    traces
}

/// In each column of pixels the least and the largest value.
fn outline(steps: &[u64], values: &CurveValues) -> Vec<(f64, f64)> {
    let (low, high) = values.low_and_high();
    if matches!(values, CurveValues::Exact(_)) && steps.len() <= 2 * COLUMNS {
        return steps.iter().map(|step| *step as f64).zip(low.iter().copied()).collect();
    }
    let size = steps.len().div_ceil(COLUMNS).max(1);
    let parts = steps.chunks(size).zip(low.chunks(size).zip(high.chunks(size)));
    let ends = parts.flat_map(|(steps, (low, high))| {
        let at = steps.last().copied().unwrap_or(0) as f64;
        let least = low.iter().copied().fold(f64::NAN, f64::min);
        let most = high.iter().copied().fold(f64::NAN, f64::max);
        [(at, least), (at, most)]
    });
    ends.collect()
}

/// A running mean.
fn smoothed(steps: &[u64], values: &CurveValues, rows_per_point: usize) -> Vec<(f64, f64)> {
    let means = match values {
        CurveValues::Exact(values) => values,
        CurveValues::Ranges { mean, .. } => mean,
    };
    let weight = WEIGHT.powf(rows_per_point as f64);
    let (mut sum, mut total) = (0.0, 0.0);
    let points = steps.iter().zip(means).map(|(step, value)| {
        if !value.is_finite() {
            return (*step as f64, f64::NAN);
        }
        sum = weight * sum + (1.0 - weight) * value;
        total = weight * total + (1.0 - weight);
        (*step as f64, sum / total)
    });
    let points: Vec<_> = points.collect();
    let stride = points.len().div_ceil(2 * COLUMNS).max(1);
    points.into_iter().step_by(stride).collect()
}

/// To a tenth of a pixel.
fn short(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
