//! Properties of every picture.

use super::*;

fn figure(scale: Scale, curves: &[(&str, &[(f64, f64)])]) -> Figure {
    let axis = |scale| PlotAxis { title: "quantity", scale, labels: numbers };
    let curve = |(name, points): &(&str, &[(f64, f64)])| PlotCurve {
        name: (*name).to_owned(),
        detail: String::new(),
        points: points.to_vec(),
    };
    let (x, y) = (axis(Scale::Whole), axis(scale));
    let panel = Panel { title: "a".into(), x, y, curves: curves.iter().map(curve).collect() };
    Figure { title: "long ".repeat(60), subtitle: "b".into(), panels: vec![panel] }
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
            let is_inside = *left >= 0.0 && *right <= f64::from(WIDTH);
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
    let some = svg(&figure(Scale::Log(10.0), &[("a", &points)])).unwrap();
    assert_eq!(some.matches("<circle").count(), 1, "{some}");
    svg(&figure(Scale::Linear, &[])).unwrap();
}

#[test]
fn an_svg_and_a_png_have_the_same_shape() {
    let figure = figure(Scale::Linear, &[("a", &[(0.0, 0.1), (5.0, 0.2)])]);
    let png = png(&figure).unwrap();
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let frame = reader.next_frame(&mut pixels).unwrap();
    let (width, height) = size(&figure);
    assert_eq!((frame.width, frame.height), (PNG_SCALE * width, PNG_SCALE * height));
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
    let image = png::Decoder::new(std::io::Cursor::new(&png)).read_info().unwrap();
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
