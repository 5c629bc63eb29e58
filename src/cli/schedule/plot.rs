//! Schedules as a picture.

use std::path::Path;

use anyhow::Result;
use hlo::counted;

use super::Column;
use crate::cli::output::OutputFile;
use crate::cli::picture;
use crate::config::Config;
use crate::figure::{self, Figure, Panel, PlotAxis, PlotCurve, Scale};
use crate::optim::schedule::Schedule;

/// Points of a curve: more than there are pixels across.
const NUM_POINTS: u64 = 2000;

/// Draws the schedules of a configuration, read from the file `source`, into a file; its extension
/// gives the format.
pub fn save(
    file: OutputFile<'_>,
    source: &Path,
    config: &Config,
    columns: &[Column],
) -> Result<()> {
    let of_column = |column: &Column| PlotCurve {
        name: name(column),
        detail: describe(column),
        ..curve(&column.schedule)
    };
    let panel = Panel {
        title: String::new(),
        x: PlotAxis { title: "step".into(), scale: Scale::Whole, labels: figure::numbers },
        y: PlotAxis {
            title: "learning rate".into(),
            scale: Scale::Linear,
            labels: figure::numbers,
        },
        curves: columns.iter().map(of_column).collect(),
    };
    let shape = config.schedule.shape.name();
    let subtitle = match columns {
        [column] => format!("{shape}, {}", describe(column)),
        _ => format!("{shape}, by the number of replicas"),
    };
    let title = format!("Learning rate of {}", picture::file_name(source));
    picture::save(file, &Figure { title, subtitle, key: None, panels: vec![panel] })
}

fn name(column: &Column) -> String {
    match column.num_batch_shards {
        Some(number) => counted(number, "replica"),
        None => column.name.clone(),
    }
}

/// The highest rate, and what the run is made of.
fn describe(column: &Column) -> String {
    let peak = figure::numbers(&[column.schedule.peak()]).concat();
    let steps = counted(column.run.total_steps(), "step");
    format!("peak {peak}, {steps} of {}", counted(column.run.global_batch(), "example"))
}

/// The rates of a run, with marks where the warm-up ends and where the rate is highest.
pub fn curve(schedule: &Schedule) -> PlotCurve {
    let points = points(schedule);
    let at = |step: u64| (step as f64, schedule.lr(step));
    let rise = |a: &&(f64, f64), b: &&(f64, f64)| b.1.total_cmp(&a.1);
    let peak = points.iter().min_by(rise).copied().filter(|peak| peak.1 > 0.0);
    // The last step of a warm-up may have the full rate already, or the first one after it.
    let warmup = schedule.warmup_steps();
    let warmup = (1..schedule.total_steps()).contains(&warmup).then(|| match at(warmup - 1) {
        full if full.1 >= schedule.lr(warmup) => full,
        _ => at(warmup),
    });
    let label = |what: &str, (step, rate): (f64, f64)| {
        format!("{what}: {} at step {step}", figure::numbers(&[rate]).concat())
    };
    let mark = |what: &str, point: (f64, f64)| (point, label(what, point));
    let marks = match (peak, warmup) {
        (Some(peak), Some(end)) if peak == end => vec![mark("peak, end of the warm-up", peak)],
        (peak, end) => {
            let peak = peak.map(|peak| mark("peak", peak));
            peak.into_iter().chain(end.map(|end| mark("end of the warm-up", end))).collect()
        }
    };
    PlotCurve { points, marks, ..PlotCurve::default() }
}

/// Steps at even distances, and both sides of each jump.
fn points(schedule: &Schedule) -> Vec<(f64, f64)> {
    let total = schedule.total_steps();
    let stride = total.div_ceil(NUM_POINTS).max(1) as usize;
    let mut steps: Vec<_> = (0..total).step_by(stride).chain([total.saturating_sub(1)]).collect();
    let places = schedule.boundaries().iter().copied().chain([schedule.warmup_steps()]);
    steps.extend(places.flat_map(|step| [step.saturating_sub(1), step]).filter(|s| *s < total));
    steps.sort_unstable();
    steps.dedup();
    steps.into_iter().map(|step| (step as f64, schedule.lr(step))).collect()
}
