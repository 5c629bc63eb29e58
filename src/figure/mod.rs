//! Curves as a picture or as text, for commands and for sinks.
//!
//! [`layout`] says what stands where, and [`svg`] and [`png`] write that: both have the same
//! coordinates, fractions of a pixel included. Text is measured in the built-in font. An SVG names
//! that font and one of the same widths, which viewers use in its place. [`text`] is for terminals.

mod axis;
pub mod braille;
mod font;
mod layout;
mod legend;
mod path;
mod png;
mod svg;
#[cfg(test)]
mod tests;
mod text;
mod ticks;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

pub use axis::PlacedAxis;
pub use text::text;
pub use ticks::{bytes, numbers, powers};

/// A picture: a title and diagrams below each other.
pub struct Figure {
    /// On top of everything.
    pub title: String,
    /// Below it, smaller.
    pub subtitle: String,
    /// The names of the curves, if all diagrams have the same ones over the same axis: they stand
    /// once, on top, and the first diagram is the largest.
    pub key: Option<Vec<(String, Look)>>,
    /// The diagrams, from the top.
    pub panels: Vec<Panel>,
}

/// One diagram.
pub struct Panel {
    /// Shown where there is more than one diagram.
    pub title: String,
    /// The axis at the bottom.
    pub x: PlotAxis,
    /// The axis at the left.
    pub y: PlotAxis,
    /// The curves, those in front last.
    pub curves: Vec<PlotCurve>,
}

/// An axis of a diagram.
pub struct PlotAxis {
    /// The quantity, with its unit.
    pub title: Cow<'static, str>,
    /// Where its values stand.
    pub scale: Scale,
    /// The labels of ticks.
    pub labels: fn(&[f64]) -> Vec<String>,
}

/// The scale of an axis.
#[derive(Clone, Copy, PartialEq)]
pub enum Scale {
    /// From 0 to a tick.
    Linear,
    /// From 0 to the largest value, with ticks at whole numbers only.
    Whole,
    /// From 0 to a number of two digits that is hardly larger than the largest value.
    Ending,
    /// From tick to tick around the values, and from 0 on where they come near it.
    Span,
    /// By its logarithm, with ticks at powers of this base. Values of 0 are omitted.
    Log(f64),
}

/// Points joined by lines. A value that is not finite is a gap.
#[derive(Default)]
pub struct PlotCurve {
    /// For the legend, where there is more than one curve. May be empty.
    pub name: String,
    /// May be empty.
    pub detail: String,
    /// Without it, it follows from the curve's place among the others.
    pub look: Option<Look>,
    /// Its points, in order.
    pub points: Vec<(f64, f64)>,
    /// Places that stand out, and what they are: that is shown of a curve which is alone.
    pub marks: Vec<((f64, f64), String)>,
}

impl PlotCurve {
    /// A curve as one of several.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, ..Self::default() }
    }
}

/// What a curve looks like.
#[derive(Clone, Copy, PartialEq)]
pub struct Look {
    /// Which of the colors, and which of the shapes of dots; without it, grey.
    pub number: Option<usize>,
    /// How they are joined.
    pub line: Line,
    /// `true` if each point has a dot.
    pub has_dots: bool,
}

/// How the points of a curve are joined.
#[derive(Clone, Copy, PartialEq)]
pub enum Line {
    /// Without gaps.
    Solid,
    /// Thinner.
    Thin,
    /// Under another curve that says the same more clearly. Text leaves it out.
    Faint,
    /// The first is solid, and the others are dashed, each in its own way: where one lies on
    /// another, that shows through the gaps.
    Dashed,
}

impl Look {
    fn of(index: usize) -> Self {
        Self { number: Some(index), line: Line::Dashed, has_dots: false }
    }
}

/// Why a picture cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name of a file says no format.
    #[error("cannot draw {}: end its name in .svg or .png", .0.display())]
    Format(PathBuf),
    /// The built-in font is damaged.
    #[error("the built-in font cannot be read: {0}")]
    Font(#[from] ttf_parser::FaceParsingError),
    /// There is no memory for the picture.
    #[error("the picture is too large: draw fewer curves, or an .svg")]
    TooLarge,
    /// The picture cannot be compressed.
    #[error("cannot encode the picture: {0}")]
    Encode(#[from] ::png::EncodingError),
}

/// The format of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureFormat {
    /// Scalable, as text.
    Svg,
    /// Pixels.
    Png,
}

impl PictureFormat {
    /// The format of a file, by the ending of its name.
    ///
    /// # Errors
    /// [`Error::Format`] for another ending.
    pub fn of(path: &Path) -> Result<Self, Error> {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("");
        match extension.to_ascii_lowercase().as_str() {
            "svg" => Ok(Self::Svg),
            "png" => Ok(Self::Png),
            _ => Err(Error::Format(path.to_owned())),
        }
    }
}

impl Figure {
    /// The contents of a file of this format.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn draw(&self, format: PictureFormat) -> Result<Vec<u8>, Error> {
        match format {
            PictureFormat::Svg => svg::draw(self).map(String::into_bytes),
            PictureFormat::Png => png::draw(self),
        }
    }
}

/// Is this the beginning of a picture that was drawn here?
pub fn is_figure(head: &[u8]) -> bool {
    let has = |part: &[u8]| memchr::memmem::find(head, part).is_some();
    let (key, value) = png::MARK;
    let in_png = [key.as_bytes(), b"\0", value.as_bytes()].concat();
    head.starts_with(b"<svg") && has(svg::MARK.as_bytes())
        || head.starts_with(b"\x89PNG") && has(&in_png)
}
