//! The results as a figure: for each task, the test error against the batch size, with one line per
//! arm.

use std::error::Error;
use std::path::Path;

use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use super::{BASE_BATCH, Cell, FACTORS};
use crate::tasks::{Arm, Task};

/// Readable on white, and distinguishable by color-blind people: Okabe and Ito (2008).
const COLORS: [RGBColor; 4] =
    [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];
/// Verdana has the same widths as DejaVu Sans.
const FONT: &str = "DejaVu Sans, Verdana, sans-serif";
/// The lowest error that is drawn, in percent: the axis is logarithmic.
const LEAST: f64 = 0.5;

/// Draws the cells into an SVG file.
pub fn save(path: &Path, cells: &[Cell]) -> Result<(), Box<dyn Error>> {
    let registered = register_font(FONT, FontStyle::Normal, dejavu::sans::regular());
    registered.map_err(|_| "the built-in font cannot be read")?;
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (1000, 460)).into_drawing_area();
        area.fill(&WHITE)?;
        for (panel, task) in area.split_evenly((1, 2)).iter().zip(Task::ALL) {
            draw(panel, task.name(), cells)?;
        }
        area.present()?;
    }
    std::fs::write(path, text)?;
    Ok(())
}

fn draw(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    task: &str,
    cells: &[Cell],
) -> Result<(), Box<dyn Error>> {
    let last = FACTORS.len() as f64 - 1.0;
    let mut chart = ChartBuilder::on(area)
        .margin(15)
        .caption(task, (FONT, 18))
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(-0.2..last + 0.2, (LEAST..100.0).log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_labels(2 * FACTORS.len() + 1)
        .x_label_formatter(&|x| match FACTORS.get(x.round().max(0.0) as usize) {
            Some(factor) if (x - x.round()).abs() < 1e-9 => (BASE_BATCH * factor).to_string(),
            _ => String::new(),
        })
        .x_desc("global batch, for the same number of epochs")
        .y_desc("test error, %")
        .label_style((FONT, 14))
        .draw()?;
    for (index, (arm, color)) in Arm::ALL.iter().zip(COLORS).enumerate() {
        // Side by side, so that error bars do not hide each other.
        let aside = 0.03 * (index as f64 - 1.5);
        let of_arm = cells.iter().filter(|cell| cell.task == task && cell.arm == arm.name());
        let points: Vec<_> = of_arm
            .enumerate()
            .map(|(x, cell)| {
                let (mean, deviation) = cell.error();
                (x as f64 + aside, 100.0 * mean, 100.0 * deviation)
            })
            .collect();
        let style = color.stroke_width(2);
        let line = points.iter().map(|(x, mean, _)| (*x, mean.max(LEAST)));
        chart
            .draw_series(LineSeries::new(line, style))?
            .label(arm.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
        chart.draw_series(points.iter().map(|(x, mean, deviation)| {
            let (low, high) = ((mean - deviation).max(LEAST), (mean + deviation).max(LEAST));
            PathElement::new([(*x, low), (*x, high)], color.stroke_width(1))
        }))?;
        let dots =
            points.iter().map(|(x, mean, _)| Circle::new((*x, mean.max(LEAST)), 4, color.filled()));
        chart.draw_series(dots)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .border_style(RGBColor(200, 200, 200))
        .label_font((FONT, 14))
        .draw()?;
    Ok(())
}
