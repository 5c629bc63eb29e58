//! Schedules as a picture.

use std::path::Path;

use anyhow::Result;
use hlo::counted;

use super::Column;
use crate::cli::figure::{self, Figure, Panel, PlotAxis, PlotCurve, Scale};
use crate::cli::output::OutputFile;
use crate::config::Config;

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
    let curve = |column: &Column| PlotCurve {
        name: name(column),
        detail: describe(column),
        points: points(column),
    };
    let panel = Panel {
        title: String::new(),
        x: PlotAxis { title: "step", scale: Scale::Whole, labels: figure::numbers },
        y: PlotAxis { title: "learning rate", scale: Scale::Linear, labels: figure::numbers },
        curves: columns.iter().map(curve).collect(),
    };
    let shape = config.schedule.shape.name();
    let subtitle = match columns {
        [column] => format!("{shape}, {}", describe(column)),
        _ => format!("{shape}, by the number of replicas"),
    };
    let title = format!("Learning rate of {}", figure::file_name(source));
    figure::save(file, &Figure { title, subtitle, panels: vec![panel] })
}

fn name(column: &Column) -> String {
    match column.num_replicas {
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

/// Steps at even distances, and both sides of each jump.
fn points(column: &Column) -> Vec<(f64, f64)> {
    let (schedule, total) = (&column.schedule, column.run.total_steps());
    let stride = total.div_ceil(NUM_POINTS).max(1) as usize;
    let mut steps: Vec<_> = (0..total).step_by(stride).chain([total.saturating_sub(1)]).collect();
    let places = schedule.boundaries().iter().copied().chain([schedule.warmup_steps()]);
    steps.extend(places.flat_map(|step| [step.saturating_sub(1), step]).filter(|s| *s < total));
    steps.sort_unstable();
    steps.dedup();
    steps.into_iter().map(|step| (step as f64, schedule.lr(step))).collect()
}
