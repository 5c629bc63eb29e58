//! Schedules as a picture.

use std::path::Path;

use anyhow::Result;

use super::Column;
use crate::cli::figure::{self, Axis, Curve, Panel, Scale};

/// Points of a curve: more than there are pixels across.
const NUM_POINTS: u64 = 2000;

/// Draws the schedules into a file, whose extension says in which format.
pub fn save(path: &Path, columns: &[Column]) -> Result<()> {
    let curve = |column: &Column| Curve {
        label: match column.num_replicas {
            Some(number) => format!("{number} replicas"),
            None => column.name.clone(),
        },
        points: points(column),
    };
    let panel = Panel {
        x: Axis { title: "step", scale: Scale::Linear, label: |step| format!("{step:.0}") },
        y: Axis { title: "learning rate", scale: Scale::Linear, label: super::table::short },
        curves: columns.iter().map(curve).collect(),
    };
    figure::save(path, &[panel])
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
