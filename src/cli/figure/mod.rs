//! Curves in a picture file, for the commands that can draw what they print.
//!
//! SVG and PNG are drawn by the same code, with text measured in the built-in font. An SVG names
//! that font and one of the same widths, which viewers use in its place.

#[cfg(test)]
mod tests;
mod ticks;

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Error, Result, bail};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontStyle, TextStyle, register_font};

use crate::cli::output::OutputFile;

pub use ticks::{bytes, numbers, powers};

/// A picture: a title and diagrams below each other.
pub struct Figure {
    pub title: String,
    pub subtitle: String,
    pub panels: Vec<Panel>,
}

/// One diagram.
pub struct Panel {
    /// Shown where there is more than one diagram.
    pub title: String,
    pub x: PlotAxis,
    pub y: PlotAxis,
    pub curves: Vec<PlotCurve>,
}

/// An axis of a diagram.
pub struct PlotAxis {
    /// The quantity, with its unit.
    pub title: &'static str,
    pub scale: Scale,
    /// The labels of ticks.
    pub labels: fn(&[f64]) -> Vec<String>,
}

/// The scale of an axis.
#[derive(Clone, Copy, PartialEq)]
pub enum Scale {
    /// From 0 on.
    Linear,
    /// From 0 on, with ticks at whole numbers only.
    Whole,
    /// By its logarithm, with ticks at powers of this base. Values of 0 are omitted.
    Log(f64),
}

/// Points joined by lines. Name and detail are shown where there is more than one curve.
pub struct PlotCurve {
    pub name: String,
    /// May be empty.
    pub detail: String,
    pub points: Vec<(f64, f64)>,
}

const WIDTH: u32 = 960;
const HEADER_HEIGHT: i32 = 76;
const PANEL_HEIGHT: u32 = 500;
/// Pixels of a PNG for each of an SVG: fine enough for a screen of high density.
const PNG_SCALE: u32 = 2;
const MARGIN: i32 = 24;
/// The lines of a legend, and the sample before each of its texts.
const LEGEND_ROW: i32 = 24;
const SAMPLE: i32 = 40;
/// Above and below a legend, together.
const LEGEND_GAP: i32 = 20;
/// With fewer points each has a dot.
const FEW_POINTS: usize = 32;
/// Verdana has the widths of DejaVu Sans.
const FONT: &str = "DejaVu Sans, Verdana, sans-serif";
const GREY: RGBColor = RGBColor(90, 90, 90);
/// Readable on white, and distinguishable with color blindness: Okabe and Ito (2008).
const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
/// Dashes and gaps of the curves after the first, which is solid: where one lies on another, that
/// shows through the gaps.
const DASHES: [(i32, i32); 4] = [(12, 12), (5, 9), (20, 10), (2, 8)];

/// By which a picture is recognized as one that was drawn here.
const SVG_MARK: &str = "<!-- drawn by lockstep -->";
const PNG_MARK: (&str, &str) = ("Software", "lockstep");

/// The file of `--plot`, if there is one: it may be written. An earlier picture of ours is
/// replaced. Call this before anything that takes long.
///
/// # Errors
/// As [`OutputFile::check`]; a name with another extension.
pub fn file(plot: Option<&Path>, overwrite: bool) -> Result<Option<OutputFile<'_>>> {
    let Some(path) = plot else { return Ok(None) };
    format_of(path)?;
    let file = OutputFile { option: "--plot", path, overwrite, is_own: is_figure };
    file.check()?;
    Ok(Some(file))
}

/// Draws a figure in some format.
type Draw = fn(&Figure) -> Result<Vec<u8>>;

/// The function for the format of a file's extension.
fn format_of(path: &Path) -> Result<Draw> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("");
    match extension.to_ascii_lowercase().as_str() {
        "svg" => Ok(|figure| svg(figure).map(String::into_bytes)),
        "png" => Ok(png),
        _ => bail!("cannot draw {}: end its name in .svg or .png", path.display()),
    }
}

fn is_figure(head: &[u8]) -> bool {
    let has = |part: &[u8]| memchr::memmem::find(head, part).is_some();
    let (key, value) = PNG_MARK;
    let in_png = [key.as_bytes(), b"\0", value.as_bytes()].concat();
    head.starts_with(b"<svg") && has(SVG_MARK.as_bytes())
        || head.starts_with(b"\x89PNG") && has(&in_png)
}

/// Draws into a file; its extension gives the format.
pub fn save(file: OutputFile<'_>, figure: &Figure) -> Result<()> {
    file.write(&format_of(file.path)?(figure)?)
}

/// The last part of a path, for a title.
pub fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn svg(figure: &Figure) -> Result<String> {
    let mut text = String::new();
    draw(&SVGBackend::with_string(&mut text, size(figure)).into_drawing_area(), figure, 1)?;
    let start = text.find('>').map_or(0, |end| end + 1);
    text.insert_str(start, &format!("\n{SVG_MARK}"));
    Ok(text)
}

fn png(figure: &Figure) -> Result<Vec<u8>> {
    let (width, height) = size(figure);
    let (width, height) = (width * PNG_SCALE, height * PNG_SCALE);
    let mut pixels = vec![0; width as usize * height as usize * 3];
    let backend = BitMapBackend::with_buffer(&mut pixels, (width, height));
    draw(&backend.into_drawing_area(), figure, PNG_SCALE as i32)?;
    let mut bytes = vec![];
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let (key, value) = PNG_MARK;
    encoder
        .add_text_chunk(key.to_owned(), value.to_owned())
        .context("cannot encode the picture")?;
    let encode = |encoder: png::Encoder<'_, _>| -> Result<(), png::EncodingError> {
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&pixels)?;
        writer.finish()
    };
    encode(encoder).context("cannot encode the picture")?;
    Ok(bytes)
}

fn size(figure: &Figure) -> (u32, u32) {
    (WIDTH, HEADER_HEIGHT as u32 + PANEL_HEIGHT * figure.panels.len() as u32)
}

fn draw<B: DrawingBackend>(area: &DrawingArea<B, Shift>, figure: &Figure, scale: i32) -> Result<()>
where
    B::ErrorType: 'static,
{
    let registered = register_font(FONT, FontStyle::Normal, dejavu::sans::regular());
    registered.map_err(|_| Error::msg("the font that is built in cannot be read"))?;
    area.fill(&WHITE)?;
    let width = WIDTH as i32 - 2 * MARGIN;
    for (text, y, style) in
        [(&figure.title, 16, font(21, scale)), (&figure.subtitle, 46, font(15, scale).color(&GREY))]
    {
        let text = fit(area, text, &style, width * scale)?;
        area.draw(&Text::new(text, (MARGIN * scale, y * scale), style))?;
    }
    let (_, body) = area.split_vertically(HEADER_HEIGHT * scale);
    for (part, panel) in body.split_evenly((figure.panels.len(), 1)).iter().zip(&figure.panels) {
        draw_panel(part, panel, figure.panels.len() > 1, scale)?;
    }
    area.present()?;
    Ok(())
}

fn font(size: i32, scale: i32) -> TextStyle<'static> {
    (FONT, size * scale).into_font().color(&BLACK)
}

fn text_width<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    text: &str,
    style: &TextStyle<'_>,
) -> Result<i32>
where
    B::ErrorType: 'static,
{
    Ok(area.estimate_text_size(text, style)?.0 as i32)
}

/// The text, without its middle where it is too long for `width` pixels.
fn fit<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    text: &str,
    style: &TextStyle<'_>,
    width: i32,
) -> Result<String>
where
    B::ErrorType: 'static,
{
    let letters: Vec<char> = text.chars().collect();
    let mut shown = text.to_owned();
    let mut num_kept = letters.len().min(WIDTH as usize);
    while num_kept > 0 && text_width(area, &shown, style)? > width {
        num_kept -= 1;
        let (head, tail) = (num_kept - num_kept / 2, num_kept / 2);
        let parts = [&letters[..head], &['\u{2026}'], &letters[letters.len() - tail..]];
        shown = parts.concat().into_iter().collect();
    }
    Ok(shown)
}

fn draw_panel<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    panel: &Panel,
    has_title: bool,
    scale: i32,
) -> Result<()>
where
    B::ErrorType: 'static,
{
    let small = font(15, scale);
    let legend = Legend::new(area, panel, &small, scale)?;
    let height = area.dim_in_pixel().1 as i32;
    let (upper, lower) = area.split_vertically(height - legend.height(scale));

    let points = |curve: &PlotCurve| -> Vec<(f64, f64)> {
        let is_drawn = |(x, y): &(f64, f64)| panel.x.has(*x) && panel.y.has(*y);
        curve.points.iter().copied().filter(is_drawn).collect()
    };
    let all = || panel.curves.iter().flat_map(points);
    let x = Place::new(&panel.x, all().map(|point| point.0), 1.0);
    let y = Place::new(&panel.y, all().map(|point| point.1), 1.05);
    let (x_labels, y_labels) = ((panel.x.labels)(&x.ticks), (panel.y.labels)(&y.ticks));
    let widest = |labels: &[String]| -> Result<i32> {
        let widths = labels.iter().map(|label| text_width(area, label, &small));
        Ok(widths.collect::<Result<Vec<_>>>()?.into_iter().max().unwrap_or(0))
    };
    let left = widest(&y_labels)? + 44 * scale;
    // Half of the last label may stand beyond the end of the axis.
    let right = MARGIN * scale + widest(&x_labels)? / 2;
    let top = if has_title { 40 } else { 8 };
    if has_title {
        let title = font(17, scale);
        upper.draw(&Text::new(panel.title.clone(), (MARGIN * scale, 8 * scale), title))?;
    }
    let label_of = |ticks: &[f64], labels: &[String], at: &f64| -> String {
        let found = ticks.iter().zip(labels).find(|(tick, _)| *tick == at);
        found.map_or(String::new(), |(_, label)| label.clone())
    };
    let (x_ticks, y_ticks) = (x.ticks.clone(), y.ticks.clone());
    let (x_place, y_place) = (x.clone(), y.clone());
    let (width, height) = (f64::from(WIDTH as i32 * scale), f64::from(height));
    let place = |(x, y)| (x_place.share(x) * width, y_place.share(y) * height);
    let mut chart = ChartBuilder::on(&upper)
        .margin_left(12 * scale)
        .margin_right(right)
        .margin_top(top * scale)
        .x_label_area_size(52 * scale)
        .y_label_area_size(left)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RGBColor(220, 220, 220).stroke_width(scale as u32))
        .axis_style(GREY.stroke_width(scale as u32))
        .set_all_tick_mark_size(5 * scale)
        .x_desc(panel.x.title)
        .y_desc(panel.y.title)
        .label_style(small.clone())
        .axis_desc_style(small.clone())
        .x_label_formatter(&|at| label_of(&x_ticks, &x_labels, at))
        .y_label_formatter(&|at| label_of(&y_ticks, &y_labels, at))
        .draw()?;
    for (index, curve) in panel.curves.iter().enumerate() {
        let (points, style) = (points(curve), stroke(index, scale));
        let places: Vec<_> = points.iter().copied().map(place).collect();
        let corners: Vec<_> = corners(&places).into_iter().map(|at| points[at]).collect();
        match dashes(index) {
            None => chart.draw_series(LineSeries::new(corners, style))?,
            Some((dash, gap)) => chart.draw_series(DashedLineSeries::new(
                corners,
                dash * scale,
                gap * scale,
                style,
            ))?,
        };
        if points.len() <= FEW_POINTS {
            let dot = |point: &(f64, f64)| Circle::new(*point, 3 * scale, style.filled());
            chart.draw_series(points.iter().map(dot))?;
        }
    }
    legend.draw(&lower, &small, scale)
}

/// Which points a curve needs: all others lie on the lines between these, to half a pixel. What is
/// drawn starts and ends on whole pixels, so that many short lines would be ragged.
fn corners(places: &[(f64, f64)]) -> Vec<usize> {
    const NEAR: f64 = 0.5;
    let mut corners: Vec<usize> = places.len().checked_sub(1).map_or(vec![], |last| vec![0, last]);
    let mut parts: Vec<_> = corners.last().map(|last| (0, *last)).into_iter().collect();
    while let Some((first, last)) = parts.pop() {
        let ((x0, y0), (x1, y1)) = (places[first], places[last]);
        let length = (x1 - x0).hypot(y1 - y0);
        let distance = |at: usize| {
            let (x, y) = (places[at].0 - x0, places[at].1 - y0);
            if length > 0.0 { ((x1 - x0) * y - (y1 - y0) * x).abs() / length } else { x.hypot(y) }
        };
        let between = (first + 1..last).map(|at| (distance(at), at));
        if let Some((distance, at)) = between.max_by(|a, b| a.0.total_cmp(&b.0))
            && distance > NEAR
        {
            corners.push(at);
            parts.extend([(first, at), (at, last)]);
        }
    }
    corners.sort_unstable();
    corners.dedup();
    corners
}

/// Dash and gap of a curve, if it is not solid.
fn dashes(index: usize) -> Option<(i32, i32)> {
    Some(DASHES[index.checked_sub(1)? % DASHES.len()])
}

fn stroke(index: usize, scale: i32) -> ShapeStyle {
    COLORS[index % COLORS.len()].stroke_width(2 * scale as u32)
}

/// The legend, below the diagram.
struct Legend {
    /// The curve's number, its text, and where its sample starts: to the right, and which line.
    entries: Vec<(usize, String, i32, i32)>,
}

impl Legend {
    /// Puts the texts into lines. One curve alone needs none.
    fn new<B: DrawingBackend>(
        area: &DrawingArea<B, Shift>,
        panel: &Panel,
        style: &TextStyle<'_>,
        scale: i32,
    ) -> Result<Self>
    where
        B::ErrorType: 'static,
    {
        let mut entries = vec![];
        let (left, right) = (MARGIN * scale, (WIDTH as i32 - MARGIN) * scale);
        let (mut x, mut row) = (left, 0);
        for (index, curve) in panel.curves.iter().enumerate().filter(|_| panel.curves.len() > 1) {
            let same = panel.curves[..index].iter().find(|other| are_same(other, curve));
            let detail = if curve.detail.is_empty() { "" } else { ": " };
            let same = same.map(|other| format!(" (same as {})", other.name));
            let same = same.unwrap_or_default();
            let text = format!("{}{detail}{}{same}", curve.name, curve.detail);
            let text = fit(area, &text, style, right - left - (SAMPLE + 8) * scale)?;
            let width = text_width(area, &text, style)? + (SAMPLE + 8) * scale;
            if x > left && x + width > right {
                (x, row) = (left, row + 1);
            }
            entries.push((index, text, x, row));
            x += width + 28 * scale;
        }
        Ok(Self { entries })
    }

    fn height(&self, scale: i32) -> i32 {
        let num_rows = self.entries.last().map_or(0, |(.., row)| row + 1);
        (num_rows * LEGEND_ROW + LEGEND_GAP) * scale
    }

    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        style: &TextStyle<'_>,
        scale: i32,
    ) -> Result<()>
    where
        B::ErrorType: 'static,
    {
        for (index, text, x, row) in &self.entries {
            let y = (LEGEND_GAP / 2 + row * LEGEND_ROW + LEGEND_ROW / 2) * scale;
            let (line, style_of_line) = ([(*x, y), (x + SAMPLE * scale, y)], stroke(*index, scale));
            match dashes(*index) {
                None => area.draw(&PathElement::new(line, style_of_line))?,
                Some((dash, gap)) => area.draw(&DashedPathElement::new(
                    line,
                    dash * scale,
                    gap * scale,
                    style_of_line,
                ))?,
            }
            let style = style.pos(Pos::new(HPos::Left, VPos::Center));
            area.draw(&Text::new(text.as_str(), (x + (SAMPLE + 8) * scale, y), style))?;
        }
        Ok(())
    }
}

/// `true` if one curve would hide the other, up to rounding.
fn are_same(a: &PlotCurve, b: &PlotCurve) -> bool {
    let near = |a: f64, b: f64| a == b || (a - b).abs() <= 1e-6 * a.abs().max(b.abs());
    let pairs = a.points.iter().zip(&b.points);
    a.points.len() == b.points.len()
        && pairs.into_iter().all(|(a, b)| near(a.0, b.0) && near(a.1, b.1))
}

impl PlotAxis {
    /// `true` if the axis can show the value.
    fn has(&self, value: f64) -> bool {
        value.is_finite() && (value > 0.0 || !matches!(self.scale, Scale::Log(_)))
    }
}

/// An axis with its ends and ticks, as the chart asks for it.
#[derive(Clone)]
struct Place {
    is_logarithmic: bool,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Place {
    /// Around these values; `room` leaves some above the highest on a linear axis.
    fn new(axis: &PlotAxis, values: impl Iterator<Item = f64>, room: f64) -> Self {
        let empty = (f64::INFINITY, f64::NEG_INFINITY);
        let (low, high) =
            values.fold(empty, |(low, high), value| (low.min(value), high.max(value)));
        let some = |value: f64| if value.is_finite() && value > 0.0 { value } else { 1.0 };
        match axis.scale {
            Scale::Log(base) => {
                let (low, high) = ticks::around(some(low), some(high), base);
                let ticks = ticks::logarithmic(low, high, base, 9);
                Self { is_logarithmic: true, low, high, ticks }
            }
            Scale::Linear | Scale::Whole => {
                let high = some(high * room);
                let ticks = ticks::linear(high, 8, axis.scale == Scale::Whole);
                Self { is_logarithmic: false, low: 0.0, high, ticks }
            }
        }
    }
}

impl Place {
    /// How far along the axis a value lies, 0 to 1.
    fn share(&self, value: f64) -> f64 {
        match self.is_logarithmic {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        }
    }
}

impl Ranged for Place {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (start, end): (i32, i32)) -> i32 {
        start + (self.share(*value) * f64::from(end - start)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}
