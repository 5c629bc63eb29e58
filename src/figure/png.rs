//! A picture as PNG.

use tiny_skia::{
    FillRule, LineJoin, Paint, Path, PathBuilder, Pixmap, Stroke, StrokeDash, Transform,
};
use ttf_parser::OutlineBuilder;

use super::font::Font;
use super::layout::{Anchor, Color, DotShape, DrawnPart, Point, lay_out};
use super::{Error, Figure};

/// By which a picture is recognized as one that was drawn here.
pub const MARK: (&str, &str) = ("Software", "lockstep");

/// Pixels for each of an SVG: fine enough for a screen of high density.
pub const SCALE: u32 = 2;

pub fn draw(figure: &Figure) -> Result<Vec<u8>, Error> {
    let drawing = lay_out(figure)?;
    let (width, height) = (drawing.size.0 * SCALE, drawing.size.1 * SCALE);
    let pixmap = Pixmap::new(width, height);
    let mut pixmap = pixmap.ok_or(Error::TooLarge)?;
    pixmap.fill(tiny_skia::Color::WHITE);
    let font = Font::new()?;
    for element in &drawing.elements {
        paint(&mut pixmap, element, &font);
    }
    let pixels: Vec<u8> =
        pixmap.data().chunks_exact(4).flat_map(|pixel| &pixel[..3]).copied().collect();
    let mut bytes = vec![];
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let (key, value) = MARK;
    encoder.add_text_chunk(key.to_owned(), value.to_owned())?;
    let encode = |encoder: png::Encoder<'_, _>| -> Result<(), png::EncodingError> {
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&pixels)?;
        writer.finish()
    };
    encode(encoder)?;
    Ok(bytes)
}

fn paint(pixmap: &mut Pixmap, element: &DrawnPart, font: &Font) {
    let scale = Transform::from_scale(SCALE as f32, SCALE as f32);
    match element {
        DrawnPart::Line { points, color, width, opacity, dash } => {
            let Some(path) = path(points, false) else { return };
            let dash =
                dash.and_then(|(dash, gap)| StrokeDash::new(vec![dash as f32, gap as f32], 0.0));
            let stroke = Stroke { dash, ..stroke(*width) };
            pixmap.stroke_path(&path, &of_color(*color, *opacity), &stroke, scale, None);
        }
        DrawnPart::Dot { at, shape, radius, color } => {
            let path = match shape {
                DotShape::Circle => {
                    PathBuilder::from_circle(at.0 as f32, at.1 as f32, *radius as f32)
                }
                shape => path(&shape.corners(*at, *radius), true),
            };
            let Some(path) = path else { return };
            let (inner, edge) = (of_color(*color, 1.0), of_color(Color(255, 255, 255), 1.0));
            pixmap.fill_path(&path, &inner, FillRule::Winding, scale, None);
            pixmap.stroke_path(&path, &edge, &stroke(1.0), scale, None);
        }
        DrawnPart::Text { text, at, anchor, size, color, is_turned } => {
            let width = font.width(text, *size);
            let shift = match anchor {
                Anchor::Start => 0.0,
                Anchor::Middle => -width / 2.0,
                Anchor::End => -width,
            };
            let mut letters = Letters::default();
            font.outline(text, &mut letters, |letters, x| letters.x = x as f32);
            let Some(path) = letters.path.finish() else { return };
            let unit = font.scale(*size) as f32;
            let turn = if *is_turned { -90.0 } else { 0.0 };
            // The font counts upwards.
            let place = scale
                .pre_translate(at.0 as f32, at.1 as f32)
                .pre_concat(Transform::from_rotate(turn))
                .pre_translate(shift as f32, 0.0)
                .pre_scale(unit, -unit);
            pixmap.fill_path(&path, &of_color(*color, 1.0), FillRule::Winding, place, None);
        }
    }
}

fn path(points: &[Point], is_closed: bool) -> Option<Path> {
    let mut path = PathBuilder::new();
    for (index, (x, y)) in points.iter().enumerate() {
        match index {
            0 => path.move_to(*x as f32, *y as f32),
            _ => path.line_to(*x as f32, *y as f32),
        }
    }
    if is_closed {
        path.close();
    }
    path.finish()
}

fn stroke(width: f64) -> Stroke {
    Stroke { width: width as f32, line_join: LineJoin::Round, ..Stroke::default() }
}

fn of_color(Color(red, green, blue): Color, opacity: f64) -> Paint<'static> {
    let mut paint = Paint { anti_alias: true, ..Paint::default() };
    paint.set_color_rgba8(red, green, blue, (opacity * 255.0).round() as u8);
    paint
}

/// The outlines of letters, each further to the right than the one before.
#[derive(Default)]
struct Letters {
    path: PathBuilder,
    x: f32,
}

impl OutlineBuilder for Letters {
    fn move_to(&mut self, x: f32, y: f32) {
        self.path.move_to(self.x + x, y);
    }

    fn line_to(&mut self, x: f32, y: f32) {
        self.path.line_to(self.x + x, y);
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        self.path.quad_to(self.x + x1, y1, self.x + x, y);
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        self.path.cubic_to(self.x + x1, y1, self.x + x2, y2, self.x + x, y);
    }

    fn close(&mut self) {
        self.path.close();
    }
}
