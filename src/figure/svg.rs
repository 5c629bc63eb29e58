//! A picture as SVG.

use std::fmt::Write;

use super::font::FAMILY;
use super::layout::{Anchor, Color, DotShape, DrawnPart, Point, lay_out};
use super::{Error, Figure};

/// By which a picture is recognized as one that was drawn here.
pub const MARK: &str = "<!-- drawn by lockstep -->";

pub fn draw(figure: &Figure) -> Result<String, Error> {
    let drawing = lay_out(figure)?;
    let (width, height) = drawing.size;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" text-rendering=\"geometricPrecision\">\n{MARK}\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    for element in &drawing.elements {
        // Writing into memory does not fail.
        let _ = write(&mut text, element);
    }
    text += "</svg>\n";
    Ok(text)
}

fn write(out: &mut String, element: &DrawnPart) -> std::fmt::Result {
    match element {
        DrawnPart::Line { points, color, width, opacity, dash } => {
            write!(out, "<polyline points=\"{}\" fill=\"none\"", places(points))?;
            write!(out, " stroke=\"{}\" stroke-width=\"{width}\"", hexadecimal(*color))?;
            write!(out, " stroke-linejoin=\"round\"")?;
            if *opacity < 1.0 {
                write!(out, " stroke-opacity=\"{opacity}\"")?;
            }
            if let Some((dash, gap)) = dash {
                write!(out, " stroke-dasharray=\"{dash} {gap}\"")?;
            }
            writeln!(out, "/>")
        }
        DrawnPart::Dot { at, shape, radius, color } => {
            match shape {
                DotShape::Circle => {
                    let (x, y) = (short(at.0), short(at.1));
                    write!(out, "<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\"")?;
                }
                shape => {
                    let corners = places(&shape.corners(*at, *radius));
                    write!(out, "<polygon points=\"{corners}\"")?;
                }
            }
            writeln!(
                out,
                " fill=\"{}\" stroke=\"#ffffff\" stroke-width=\"1\"/>",
                hexadecimal(*color)
            )
        }
        DrawnPart::Text { text, at: (x, y), anchor, size, color, is_turned } => {
            let (x, y) = (short(*x), short(*y));
            let anchor = match anchor {
                Anchor::Start => "start",
                Anchor::Middle => "middle",
                Anchor::End => "end",
            };
            write!(out, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\"")?;
            if *is_turned {
                write!(out, " transform=\"rotate(-90 {x} {y})\"")?;
            }
            let color = hexadecimal(*color);
            write!(out, " font-family=\"{FAMILY}\" font-size=\"{size}\" fill=\"{color}\">")?;
            for letter in text.chars() {
                match letter {
                    '&' => out.push_str("&amp;"),
                    '<' => out.push_str("&lt;"),
                    '>' => out.push_str("&gt;"),
                    // XML has none of these.
                    '\u{FFFE}' | '\u{FFFF}' => out.push('\u{FFFD}'),
                    letter if letter.is_control() => out.push('\u{FFFD}'),
                    letter => out.push(letter),
                }
            }
            writeln!(out, "</text>")
        }
    }
}

fn places(points: &[Point]) -> String {
    let place = |(x, y): &Point| format!("{},{}", short(*x), short(*y));
    points.iter().map(place).collect::<Vec<_>>().join(" ")
}

/// To a hundredth of a pixel.
fn short(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn hexadecimal(Color(red, green, blue): Color) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}
