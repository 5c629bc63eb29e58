//! Curves in a picture file, for the commands that can draw what they print.

mod canvas;
mod glyphs;

use std::path::Path;

use anyhow::{Context, Result, bail};
use plotters::coord::Shift;
use plotters::prelude::*;

use canvas::Canvas;

/// One diagram.
pub struct Panel {
    pub x: Axis,
    pub y: Axis,
    pub curves: Vec<Curve>,
}

/// What a direction means.
pub struct Axis {
    pub title: &'static str,
    pub scale: Scale,
    /// How a value is written at its tick; of a logarithmic scale, at powers of the base only.
    pub label: fn(f64) -> String,
}

/// Where a value lies on its axis.
#[derive(Clone, Copy, PartialEq)]
pub enum Scale {
    /// From 0 on.
    Linear,
    /// By its logarithm to this base; values must be above 0.
    Log(f64),
}

/// Points joined by lines. The label is shown where there is more than one curve.
pub struct Curve {
    pub label: String,
    pub points: Vec<(f64, f64)>,
}

const WIDTH: u32 = 960;
const PANEL_HEIGHT: u32 = 540;
/// Readable on white, and told apart by those who see no red or no green: Okabe and Ito (2008).
const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// Draws panels one below the other into a file, whose extension says in which format.
pub fn save(path: &Path, panels: &[Panel]) -> Result<()> {
    let size = (WIDTH, PANEL_HEIGHT * panels.len() as u32);
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("");
    let bytes = match extension.to_ascii_lowercase().as_str() {
        "svg" => {
            let mut text = String::new();
            draw(&SVGBackend::with_string(&mut text, size).into_drawing_area(), panels)?;
            text.into_bytes()
        }
        "png" => {
            let mut canvas = Canvas::new(size);
            draw(&(&mut canvas).into_drawing_area(), panels)?;
            canvas.to_png()?
        }
        _ => bail!("cannot draw {}: end its name in .svg or .png", path.display()),
    };
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

fn draw<B: DrawingBackend>(area: &DrawingArea<B, Shift>, panels: &[Panel]) -> Result<()>
where
    B::ErrorType: 'static,
{
    area.fill(&WHITE)?;
    for (part, panel) in area.split_evenly((panels.len(), 1)).iter().zip(panels) {
        draw_panel(part, panel)?;
    }
    area.present()?;
    Ok(())
}

fn draw_panel<B: DrawingBackend>(area: &DrawingArea<B, Shift>, panel: &Panel) -> Result<()>
where
    B::ErrorType: 'static,
{
    let all = || panel.curves.iter().flat_map(|curve| &curve.points);
    let (x_low, x_high) = panel.x.range(all().map(|point| point.0), 1.0);
    let (y_low, y_high) = panel.y.range(all().map(|point| point.1), 1.05);
    let mut chart = ChartBuilder::on(area)
        .margin(20)
        .margin_right(60)
        .x_label_area_size(44)
        .y_label_area_size(100)
        .build_cartesian_2d(x_low..x_high, y_low..y_high)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(220, 220, 220))
        .x_desc(panel.x.title)
        .y_desc(panel.y.title)
        .label_style(("sans-serif", 16))
        .x_label_formatter(&|at| panel.x.tick(*at))
        .y_label_formatter(&|at| panel.y.tick(*at))
        .draw()?;
    for (index, curve) in panel.curves.iter().enumerate() {
        let style = COLORS[index % COLORS.len()].stroke_width(2);
        let points = curve.points.iter().map(|(x, y)| (panel.x.place(*x), panel.y.place(*y)));
        chart
            .draw_series(LineSeries::new(points, style))?
            .label(curve.label.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
    }
    if panel.curves.len() > 1 {
        // Curves that rise leave room on the left.
        let rises = |points: &[(f64, f64)]| {
            points.first().zip(points.last()).is_some_and(|(first, last)| first.1 < last.1)
        };
        let place = match panel.curves.iter().any(|curve| rises(&curve.points)) {
            true => SeriesLabelPosition::UpperLeft,
            false => SeriesLabelPosition::UpperRight,
        };
        chart.configure_series_labels().position(place).label_font(("sans-serif", 16)).draw()?;
    }
    Ok(())
}

impl Axis {
    fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => value,
            Scale::Log(base) => value.ln() / base.ln(),
        }
    }

    /// The ends of the axis; `room` leaves some above the highest value of a linear one.
    fn range(&self, values: impl Iterator<Item = f64>, room: f64) -> (f64, f64) {
        let empty = (f64::INFINITY, f64::NEG_INFINITY);
        let (low, high) = values
            .map(|value| self.place(value))
            .fold(empty, |(low, high), at| (low.min(at), high.max(at)));
        match self.scale {
            Scale::Linear => (0.0, high.max(f64::MIN_POSITIVE) * room),
            Scale::Log(_) if low < high => (low, high),
            Scale::Log(_) => (low.min(0.0), low.max(0.0) + 1.0),
        }
    }

    fn tick(&self, at: f64) -> String {
        match self.scale {
            Scale::Linear => (self.label)(at),
            Scale::Log(base) if (at - at.round()).abs() < 1e-9 => {
                (self.label)(base.powf(at.round()))
            }
            Scale::Log(_) => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lie_where_their_scale_puts_them() {
        let axis = |scale| Axis { title: "", scale, label: |value| format!("{value}") };
        let linear = axis(Scale::Linear);
        assert_eq!(linear.range([3.0, 1.0].into_iter(), 2.0), (0.0, 6.0));
        assert_eq!(linear.tick(1.5), "1.5");
        let log = axis(Scale::Log(2.0));
        assert_eq!(log.range([8.0, 2.0].into_iter(), 2.0), (1.0, 3.0));
        assert_eq!((log.tick(3.0).as_str(), log.tick(2.5).as_str()), ("8", ""));
        // A single value still has an axis.
        assert_eq!(log.range([1.0].into_iter(), 1.0), (0.0, 1.0));
    }
}
