//! The built-in font: how wide texts are, and their outlines.

use ttf_parser::{Face, GlyphId, OutlineBuilder};

use super::Error;

/// Verdana has the widths of DejaVu Sans.
pub const FAMILY: &str = "DejaVu Sans, Verdana, sans-serif";

/// DejaVu Sans.
pub struct Font(Face<'static>);

impl Font {
    pub fn new() -> Result<Self, Error> {
        Ok(Self(Face::parse(dejavu::sans::regular(), 0)?))
    }

    /// Pixels from the first letter to the end of the last.
    pub fn width(&self, text: &str, size: f64) -> f64 {
        let units: f64 = self.glyphs(text).map(|(_, advance)| advance).sum();
        units * self.scale(size)
    }

    /// Draws each letter into `outline`, in the coordinates of the font: pass the result
    /// of [`Self::scale`] on to it. `move_to` is told where each letter starts.
    pub fn outline<B: OutlineBuilder>(
        &self,
        text: &str,
        outline: &mut B,
        move_to: fn(&mut B, f64),
    ) {
        let mut at = 0.0;
        for (glyph, advance) in self.glyphs(text) {
            move_to(outline, at);
            // A space has no outline.
            let _ = self.0.outline_glyph(glyph, outline);
            at += advance;
        }
    }

    /// Pixels of a unit of the font.
    pub fn scale(&self, size: f64) -> f64 {
        size / f64::from(self.0.units_per_em())
    }

    /// The text, without its middle where it is too long for `width` pixels.
    pub fn fit(&self, text: &str, size: f64, width: f64) -> String {
        const MOST: usize = 1000;
        let letters: Vec<char> = text.chars().collect();
        let mut shown = text.to_owned();
        let mut num_kept = letters.len().min(MOST);
        while num_kept > 0 && self.width(&shown, size) > width {
            num_kept -= 1;
            let (head, tail) = (num_kept - num_kept / 2, num_kept / 2);
            let parts = [&letters[..head], &['\u{2026}'], &letters[letters.len() - tail..]];
            shown = parts.concat().into_iter().collect();
        }
        shown
    }

    /// The letters and how far each moves the next, in units of the font. What the font lacks is an
    /// empty box.
    fn glyphs(&self, text: &str) -> impl Iterator<Item = (GlyphId, f64)> {
        text.chars().map(|letter| {
            let glyph = self.0.glyph_index(letter).unwrap_or_default();
            (glyph, f64::from(self.0.glyph_hor_advance(glyph).unwrap_or(0)))
        })
    }
}
