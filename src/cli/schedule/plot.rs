//! Schedules as a picture.

use std::path::Path;

use anyhow::{Context, Result, bail};
use plotters::prelude::*;

use super::Column;
use super::canvas::Canvas;

const SIZE: (u32, u32) = (960, 540);
/// Points of a curve: more than there are pixels across.
const NUM_POINTS: u64 = 2000;
/// Readable on white, and told apart by those who see no red or no green: Okabe and Ito (2008).
const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// Draws the schedules into a file, whose extension says in which format.
pub fn save(path: &Path, columns: &[Column]) -> Result<()> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("");
    let bytes = match extension.to_ascii_lowercase().as_str() {
        "svg" => {
            let mut text = String::new();
            draw(&SVGBackend::with_string(&mut text, SIZE).into_drawing_area(), columns)?;
            text.into_bytes()
        }
        "png" => {
            let mut canvas = Canvas::new(SIZE);
            draw(&(&mut canvas).into_drawing_area(), columns)?;
            canvas.to_png()?
        }
        _ => bail!("cannot draw {}: end its name in .svg or .png", path.display()),
    };
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

fn draw<B: DrawingBackend>(
    area: &DrawingArea<B, plotters::coord::Shift>,
    columns: &[Column],
) -> Result<()>
where
    B::ErrorType: 'static,
{
    area.fill(&WHITE)?;
    let curves: Vec<_> = columns.iter().map(points).collect();
    let all = || curves.iter().flatten();
    let steps = all().map(|point| point.0).fold(1.0, f64::max);
    let top = all().map(|point| point.1).fold(f64::MIN_POSITIVE, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin(20)
        .margin_right(60)
        .x_label_area_size(44)
        .y_label_area_size(100)
        .build_cartesian_2d(0.0..steps, 0.0..top * 1.05)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(220, 220, 220))
        .x_desc("step")
        .y_desc("learning rate")
        .label_style(("sans-serif", 16))
        .x_label_formatter(&|step| format!("{step:.0}"))
        .y_label_formatter(&|rate| super::table::short(*rate))
        .draw()?;
    for (index, (column, points)) in columns.iter().zip(&curves).enumerate() {
        let color = COLORS[index % COLORS.len()];
        let style = color.stroke_width(2);
        let label = match column.num_replicas {
            Some(number) => format!("{number} replicas"),
            None => column.name.clone(),
        };
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style))?
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
    }
    if columns.len() > 1 {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .label_font(("sans-serif", 16))
            .draw()?;
    }
    area.present()?;
    Ok(())
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
