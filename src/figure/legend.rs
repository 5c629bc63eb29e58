//! What the curves are: below a diagram, or on top of a picture.

use super::font::Font;
use super::layout::{Anchor, DrawnPart, MARGIN, MIDDLE, SMALL, WIDTH, letters, look_of, sample};
use super::{Look, Panel, PlotCurve};

/// The sample before each text.
pub const SAMPLE: f64 = 36.0;
const GAP: f64 = 8.0;
const ROW: f64 = 22.0;

/// The curves of a diagram. One alone needs no words.
pub fn entries(panel: &Panel) -> Vec<(String, Look)> {
    let num_named = panel.curves.iter().filter(|curve| !curve.name.is_empty()).count();
    let named = panel.curves.iter().enumerate().filter(|(_, curve)| !curve.name.is_empty());
    let entry = |(index, curve): (usize, &PlotCurve)| {
        let same = panel.curves[..index].iter().find(|other| are_same(other, curve));
        let detail = if curve.detail.is_empty() { "" } else { ": " };
        let same = same.map(|other| format!(" (same as {})", other.name));
        let same = same.unwrap_or_default();
        let text = format!("{}{detail}{}{same}", curve.name, curve.detail);
        (text, look_of(index, curve))
    };
    named.filter(|_| num_named > 1).map(entry).collect()
}

/// Draws them from `top` down, and says how high they are.
pub fn draw(
    elements: &mut Vec<DrawnPart>,
    font: &Font,
    entries: &[(String, Look)],
    top: f64,
) -> f64 {
    let placed = placed(font, entries);
    for ((text, x, row), (_, look)) in placed.iter().zip(entries) {
        let y = top + (*row as f64 + 0.5) * ROW;
        sample(elements, *look, (*x, y));
        let at = (x + SAMPLE + GAP, y + MIDDLE);
        elements.push(letters(text, at, Anchor::Start, SMALL));
    }
    rows_height(&placed)
}

/// How high they are.
pub fn height(font: &Font, entries: &[(String, Look)]) -> f64 {
    rows_height(&placed(font, entries))
}

fn rows_height(placed: &[(String, f64, usize)]) -> f64 {
    placed.last().map_or(0.0, |(.., row)| (row + 1) as f64 * ROW)
}

/// Puts the texts into lines: each with where its sample starts, and in which line.
fn placed(font: &Font, entries: &[(String, Look)]) -> Vec<(String, f64, usize)> {
    let (left, right) = (MARGIN, WIDTH - MARGIN);
    let (mut x, mut row) = (left, 0);
    let mut placed = vec![];
    for (text, _) in entries {
        let text = font.fit(text, SMALL, right - left - SAMPLE - GAP);
        let width = font.width(&text, SMALL) + SAMPLE + GAP;
        if x > left && x + width > right {
            (x, row) = (left, row + 1);
        }
        placed.push((text, x, row));
        x += width + 26.0;
    }
    placed
}

/// `true` if one curve would hide the other, up to rounding.
fn are_same(a: &PlotCurve, b: &PlotCurve) -> bool {
    let near = |a: f64, b: f64| a == b || (a - b).abs() <= 1e-6 * a.abs().max(b.abs());
    let pairs = a.points.iter().zip(&b.points);
    a.points.len() == b.points.len()
        && pairs.into_iter().all(|(a, b)| near(a.0, b.0) && near(a.1, b.1))
}
