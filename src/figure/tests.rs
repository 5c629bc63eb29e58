//! Properties of every picture.

use super::layout::{WIDTH, lay_out};
use super::path::corners;
use super::png::draw as png;
use super::svg::draw as svg;
use super::*;

fn figure(scale: Scale, curves: &[(&str, &[(f64, f64)])]) -> Figure {
    let axis = |scale| PlotAxis { title: "quantity".into(), scale, labels: numbers };
    let curve = |(name, points): &(&str, &[_])| PlotCurve::new(*name, points.to_vec());
    let (x, y) = (axis(Scale::Whole), axis(scale));
    let panel = Panel { title: "a".into(), x, y, curves: curves.iter().map(curve).collect() };
    Figure { title: "long ".repeat(60), subtitle: "b".into(), key: None, panels: vec![panel] }
}

/// The text elements of an SVG: where the first letter is, where the last one ends, how high, and
/// the text.
fn texts(svg: &str) -> Vec<(f64, f64, f64, String)> {
    let number = |attributes: &str, name: &str| -> f64 {
        let (_, rest) = attributes.split_once(&format!(" {name}=\"")).expect(attributes);
        rest.split('"').next().unwrap().parse().unwrap()
    };
    let read = |element: &str| {
        let (attributes, rest) = element.split_once('>').unwrap();
        let text = rest.split("</text>").next().unwrap().trim().to_owned();
        let (x, y) = (number(attributes, "x"), number(attributes, "y"));
        let size = number(attributes, "font-size");
        // No digit or letter of the font is wider, but for a few capitals.
        let width = 0.64 * size * text.chars().count() as f64;
        let left = match attributes {
            turned if turned.contains("rotate(") => x,
            end if end.contains("\"end\"") => x - width,
            middle if middle.contains("\"middle\"") => x - width / 2.0,
            _ => x,
        };
        (left, left + width, y, text)
    };
    svg.split("<text").skip(1).map(read).collect()
}

#[test]
fn no_text_is_cut_and_the_legend_is_below_the_curves() {
    let rates = [6e-4, 2.5e-10, 1.2e-38, 3e38, 0.1, 0.0];
    for rate in rates {
        let points = [(0.0, 0.0), (10.0, rate), (1e6, rate / 3.0)];
        let curves: [(&str, &[_]); 3] =
            [("2 replicas", &points), ("8 replicas", &points), ("other", &points[..2])];
        let svg = svg(&figure(Scale::Linear, &curves)).unwrap();
        let texts = texts(&svg);
        for (left, right, _, text) in &texts {
            let is_inside = *left >= 0.0 && *right <= WIDTH;
            assert!(is_inside || text.contains('\u{2026}'), "{rate}: {text} at {left}");
        }
        let of = |text: &str| texts.iter().find(|row| row.3 == text).expect(text).2;
        let axis = of("quantity");
        assert!(of("2 replicas") > axis && of("other") > axis, "{svg}");
        assert!(svg.contains("8 replicas (same as 2 replicas)"), "{svg}");
        let title = texts.iter().find(|row| row.3.starts_with("long ")).expect(&svg);
        assert!(title.3.contains('\u{2026}') && title.3.ends_with("long"), "{}", title.3);
    }
}

#[test]
fn a_curve_is_drawn_through_its_corners() {
    let line = (0..=100).map(|x| (f64::from(x), f64::from(x) / 3.0));
    let jump = (101..150).map(|x| (f64::from(x), 200.0));
    let places: Vec<_> = line.chain(jump).collect();
    assert_eq!(corners(&places), [0, 100, 101, 149]);
    assert_eq!(path::simplified(&places).len(), 4);
    assert_eq!(corners(&places[..1]), [0]);
    assert_eq!(corners(&[]), [0; 0]);
    // There and back again.
    assert_eq!(corners(&[(0.0, 0.0), (9.0, 0.0), (0.0, 0.0)]), [0, 1, 2]);
}

#[test]
fn a_single_point_and_a_value_without_a_place_are_drawn_and_left_out() {
    let alone = svg(&figure(Scale::Linear, &[("a", &[(0.0, 0.1)])])).unwrap();
    assert_eq!(alone.matches("<circle").count(), 1, "{alone}");
    let points = [(1.0, 0.0), (2.0, 5.0), (3.0, f64::INFINITY)];
    let gap = [(0.0, 1.0), (1.0, 2.0), (2.0, f64::NAN), (3.0, 2.0), (4.0, 1.0)];
    let gaps = svg(&figure(Scale::Span, &[("a", &gap)])).unwrap();
    let blue = "fill=\"none\" stroke=\"#0072b2\"";
    assert_eq!(gaps.matches(blue).count(), 2, "{gaps}");
    let some = svg(&figure(Scale::Log(10.0), &[("a", &points)])).unwrap();
    assert_eq!(some.matches("<circle").count(), 1, "{some}");
    let none = svg(&figure(Scale::Linear, &[])).unwrap();
    assert!(none.contains(">no value is finite<"), "{none}");
}

/// A cosine is round: no two lines meet at an angle that can be seen.
#[test]
fn a_smooth_curve_has_no_corners() {
    let places: Vec<_> =
        (0..2000).map(|x| f64::from(x) * 0.42).map(|x| (x, 200.0 * (x / 267.0).cos())).collect();
    let drawn = path::simplified(&places);
    let angle = |a: &(f64, f64), b: &(f64, f64)| (b.1 - a.1).atan2(b.0 - a.0).to_degrees();
    let turns = drawn.windows(3).map(|at| (angle(&at[1], &at[2]) - angle(&at[0], &at[1])).abs());
    let sharpest = turns.fold(0.0, f64::max);
    assert!((20..400).contains(&drawn.len()) && sharpest < 3.0, "{sharpest}, {}", drawn.len());
}

/// What an SVG says is XML, and no name moves the cursor.
#[test]
fn names_are_escaped() {
    let points = [(0.0, 1.0), (1.0, 2.0)];
    let svg = svg(&figure(Scale::Linear, &[("<a>&\u{1b}", &points), ("b", &points)])).unwrap();
    assert!(svg.contains(">&lt;a&gt;&amp;\u{FFFD}<"), "{svg}");
}

#[test]
fn a_mark_is_named_where_a_curve_is_alone() {
    let points = [(0.0, 0.0), (5.0, 2.0), (10.0, 1.0)];
    let mut one = figure(Scale::Linear, &[("a", &points)]);
    let mark = |figure: &mut Figure| {
        figure.panels[0].curves[0].marks.push((points[1], "peak".to_owned()));
    };
    mark(&mut one);
    assert!(svg(&one).unwrap().contains(">peak</text>"));
    let mut two = figure(Scale::Linear, &[("a", &points), ("b", &points)]);
    mark(&mut two);
    assert!(!svg(&two).unwrap().contains(">peak</text>"));
}

#[test]
fn text_fits_its_columns_and_has_a_letter_for_each_curve() {
    let points: Vec<_> = (0..100).map(|x| (f64::from(x), f64::from(x * x))).collect();
    let falling: Vec<_> = points.iter().map(|(x, y)| (*x, 9801.0 - y)).collect();
    for columns in [40, 80, 300] {
        let lines = text(&figure(Scale::Span, &[("a", &points), ("b", &falling)]), columns);
        let width = |line: &String| line.chars().count();
        assert!(lines.iter().map(width).max().unwrap() <= columns, "{lines:#?}");
        let shown = lines.join("\n");
        for part in ["10000 \u{2524}", "a a", "b b", "\u{2514}\u{2500}", "99"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
}

#[test]
fn an_svg_and_a_png_have_the_same_shape() {
    let figure = figure(Scale::Linear, &[("a", &[(0.0, 0.1), (5.0, 0.2)])]);
    let png = png(&figure).unwrap();
    let mut reader = ::png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let frame = reader.next_frame(&mut pixels).unwrap();
    let (width, height) = lay_out(&figure).unwrap().size;
    let scale = super::png::SCALE;
    assert_eq!((frame.width, frame.height), (scale * width, scale * height));
    let curve = [0, 114, 178];
    assert!(pixels.chunks(3).filter(|pixel| *pixel == curve).count() > 1000, "no curve");
}

#[test]
fn a_picture_is_recognized_and_no_other() {
    let figure = figure(Scale::Linear, &[("a", &[(0.0, 1.0), (1.0, 2.0)])]);
    let (svg, png) = (svg(&figure).unwrap().into_bytes(), png(&figure).unwrap());
    for bytes in [&svg, &png] {
        assert!(is_figure(&bytes[..bytes.len().min(4096)]));
    }
    let image = ::png::Decoder::new(std::io::Cursor::new(&png)).read_info().unwrap();
    assert_eq!(image.info().uncompressed_latin1_text.len(), 1);
    for other in [
        &b"<svg>somebody's drawing</svg>"[..],
        b"\x89PNG\r\n\x1a\n a photo",
        b"",
        b"drawn by lockstep",
    ] {
        assert!(!is_figure(other));
    }
}
