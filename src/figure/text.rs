//! A picture as text: curves of braille dots.

use console::{Color, Style, measure_text_width, truncate_str};

use super::axis::PlacedAxis;
use super::braille::{BrailleCell, Dots};
use super::layout::{nothing, shown};
use super::legend::entries;
use super::{Figure, Line, Look, Panel, path};

/// Most columns: wider curves would only be flatter.
const MAX_COLUMNS: usize = 110;
/// Rows of a diagram alone or of the first one under a key, and of the others.
const ROWS: usize = 12;
const OTHER_ROWS: usize = 7;
/// Fewest columns of a curve.
const MIN_CURVE: usize = 8;
/// Where a dot is.
const DOT: char = '\u{25CF}';

/// In the order of those in pictures.
const COLORS: [Color; 6] =
    [Color::Blue, Color::Red, Color::Green, Color::Magenta, Color::Yellow, Color::Cyan];

/// The figure in lines of at most `columns` characters if that is 40 or more, in colors if stdout
/// is a terminal that has them. Where there are several curves of a kind, letters tell them apart:
/// small ones on lines, capitals for dots.
pub fn text(figure: &Figure, columns: usize) -> Vec<String> {
    let columns = columns.min(MAX_COLUMNS);
    let numbers = figure.panels.iter().flat_map(looks).map(|(_, look)| look.number);
    let has_letters = numbers.flatten().max() > Some(0);
    let fit = |text: &str| truncate_str(text, columns, "\u{2026}").into_owned();
    let mut lines: Vec<_> = [&figure.title, &figure.subtitle].map(|line| fit(line)).to_vec();
    lines.retain(|line| !line.is_empty());
    lines.extend(key(figure.key.as_deref().unwrap_or_default(), has_letters, columns));
    let labels = |panel: &Panel, index: usize| {
        let rows = if index > 0 { OTHER_ROWS } else { ROWS };
        let values = shown(std::slice::from_ref(panel)).map(|point| point.1);
        (PlacedAxis::new(&panel.y, values, rows / 2), rows)
    };
    let axes = figure.panels.iter().enumerate().map(|(index, panel)| labels(panel, index));
    let axes: Vec<_> = axes.collect();
    let widths = axes.iter().flat_map(|(y, _)| y.ticks.iter()).map(|(_, label)| label.len());
    let label_width = widths.max().unwrap_or(0).min(columns.saturating_sub(MIN_CURVE + 2));
    for (index, (panel, (y, num_rows))) in figure.panels.iter().zip(&axes).enumerate() {
        lines.push(String::new());
        if !panel.title.is_empty() && figure.panels.len() > 1 {
            lines.push(fit(&panel.title));
        }
        let panels = match figure.key.is_some() {
            true => &figure.panels[..],
            false => &figure.panels[index..=index],
        };
        let x = PlacedAxis::new(&panel.x, shown(panels).map(|point| point.0), 2);
        lines.push(fit(&panel.y.title));
        let num_columns = columns.saturating_sub(label_width + 2).max(MIN_CURVE);
        let size = (num_columns, *num_rows);
        lines.extend(diagram(panel, (&x, y), size, label_width, has_letters));
        lines.extend(key(&entries(panel), has_letters, columns));
    }
    lines
}

/// The curves that text has.
fn looks(panel: &Panel) -> impl Iterator<Item = (usize, Look)> {
    let looks = panel.curves.iter().enumerate();
    let looks = looks.map(|(index, curve)| (index, curve.look.unwrap_or(Look::of(index))));
    looks.filter(|(_, look)| look.line != Line::Faint)
}

fn diagram(
    panel: &Panel,
    (x, y): (&PlacedAxis, &PlacedAxis),
    (num_columns, num_rows): (usize, usize),
    label_width: usize,
    has_letters: bool,
) -> Vec<String> {
    let mut dots = Dots::new(num_columns, num_rows);
    let (right, bottom) = (2 * num_columns - 1, 4 * num_rows - 1);
    let along = |share: f64, last: usize| (share * last as f64).round() as usize;
    let row = |value: f64| bottom - along(y.share(value), bottom).min(bottom);
    let place = |point: &(f64, f64)| (along(x.share(point.0), right), row(point.1));
    let has = |point: &(f64, f64)| panel.x.has(point.0) && panel.y.has(point.1);
    let parts = looks(panel).map(|(index, look)| {
        let points = &panel.curves[index].points;
        (look, path::parts(points, |point| has(point).then_some(*point)))
    });
    let parts: Vec<_> = parts.collect();
    for (look, of_curve) in &parts {
        // Dots beside a line of the same color need none of their own.
        let is_line = |other: &Look| !other.has_dots && other.number == look.number;
        let is_second = look.has_dots && parts.iter().any(|(other, _)| is_line(other));
        for part in of_curve {
            let places: Vec<_> = part.iter().map(place).collect();
            for pair in places.windows(2).filter(|_| !is_second) {
                dots.line(pair[0], pair[1], look.number);
            }
            if let [alone] = places[..] {
                dots.line(alone, alone, look.number);
            }
        }
    }
    for (look, parts) in &parts {
        let number = look.number.unwrap_or(0);
        let letter = if look.has_dots { capital(number) } else { small(number) };
        let letter = if has_letters { letter } else { DOT };
        let places: Vec<_> = parts.iter().flatten().map(place).collect();
        if look.has_dots {
            places.iter().for_each(|at| dots.put(*at, letter, look.number));
        } else if has_letters {
            // At even distances, each curve elsewhere.
            let stride = 24;
            let mut next = 4 + 6 * (number % 4);
            for at in &places {
                if at.0 >= next {
                    dots.put(*at, letter, look.number);
                    next = at.0 + stride;
                }
            }
            // A curve too short for that has one at its end.
            if let Some(last) = places.last().filter(|last| last.0 < 4 + 6 * (number % 4)) {
                dots.put(*last, letter, look.number);
            }
        }
    }
    let mut labels = vec![None; num_rows];
    for (tick, label) in y.ticks.iter().rev() {
        labels[row(*tick) / 4].get_or_insert(label);
    }
    let mut lines: Vec<_> = dots
        .rows()
        .zip(labels)
        .map(|(cells, label)| {
            let (label, axis) = label.map_or(("", '\u{2502}'), |label| (label, '\u{2524}'));
            format!("{label:>label_width$} {axis}{}", in_colors(cells))
        })
        .collect();
    if shown(std::slice::from_ref(panel)).next().is_none() {
        let text = truncate_str(nothing(panel), num_columns, "").into_owned();
        lines[num_rows / 2] = format!("{:label_width$} \u{2502}{text}", "");
    }
    lines.push(format!("{:label_width$} \u{2514}{}", "", "\u{2500}".repeat(num_columns)));
    let end = |at: Option<&(f64, String)>| at.map_or("", |(_, label)| label).to_owned();
    let (first, last) = (end(x.ticks.first()), end(x.ticks.last()));
    let room = num_columns.saturating_sub(first.len() + last.len());
    let title = truncate_str(&panel.x.title, room.saturating_sub(2), "").into_owned();
    lines.push(format!("{:label_width$}  {first}{title:^room$}{last}", ""));
    lines
}

/// The characters, without spaces at the end.
fn in_colors(cells: &[BrailleCell]) -> String {
    let end = cells.iter().rposition(|cell| cell.letter() != ' ').map_or(0, |last| last + 1);
    let mut text = String::new();
    for run in cells[..end].chunk_by(|a, b| a.owner == b.owner) {
        let letters: String = run.iter().map(BrailleCell::letter).collect();
        text += &colored(&letters, run[0].owner);
    }
    text
}

fn colored(text: &str, number: Option<usize>) -> String {
    match number {
        Some(number) => Style::new().fg(COLORS[number % COLORS.len()]).apply_to(text).to_string(),
        None => text.to_owned(),
    }
}

/// What is what, in lines.
fn key(entries: &[(String, Look)], has_letters: bool, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = vec![];
    for (text, look) in entries.iter().filter(|(_, look)| look.line != Line::Faint) {
        let sample = match (has_letters, look.has_dots, look.number) {
            (true, _, Some(number)) => small(number).to_string(),
            (true, true, None) => "A, B..".to_owned(),
            (true, false, None) => "a, b..".to_owned(),
            (false, true, _) => DOT.to_string(),
            (false, false, _) => "\u{2812}\u{2812}".to_owned(),
        };
        let width = columns.saturating_sub(sample.chars().count() + 1);
        let text = truncate_str(text, width, "\u{2026}");
        let entry = format!("{} {text}", colored(&sample, look.number));
        match lines.last_mut() {
            Some(line) if measure_text_width(line) + 3 + measure_text_width(&entry) <= columns => {
                *line += &format!("   {entry}");
            }
            _ => lines.push(entry),
        }
    }
    lines
}

fn small(number: usize) -> char {
    char::from(b'a' + (number % 26) as u8)
}

fn capital(number: usize) -> char {
    small(number).to_ascii_uppercase()
}
