//! What stands where in a picture.

use super::axis::PlacedAxis;
use super::font::Font;
use super::legend::{self, SAMPLE};
use super::{Error, Figure, Line, Look, Panel, PlotCurve, path};

/// Pixels of an SVG from the left and from the top.
pub type Point = (f64, f64);

#[derive(Clone, Copy, PartialEq)]
pub struct Color(pub u8, pub u8, pub u8);

/// A picture as its parts, the lowest first.
pub struct Drawing {
    /// Width and height.
    pub size: (u32, u32),
    pub elements: Vec<DrawnPart>,
}

/// A part of a picture.
pub enum DrawnPart {
    Line {
        points: Vec<Point>,
        color: Color,
        width: f64,
        opacity: f64,
        /// Dash and gap.
        dash: Option<(f64, f64)>,
    },
    /// With a white edge.
    Dot { at: Point, shape: DotShape, radius: f64, color: Color },
    Text {
        text: String,
        /// On the line that letters stand on.
        at: Point,
        anchor: Anchor,
        size: f64,
        color: Color,
        /// Upwards, around `at`.
        is_turned: bool,
    },
}

/// Which part of a text its place is of.
#[derive(Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// The shape of a dot.
#[derive(Clone, Copy)]
pub enum DotShape {
    Circle,
    Square,
    Triangle,
    Diamond,
}

impl DotShape {
    /// The corners, at such distances that all shapes look equally large.
    pub fn corners(self, (x, y): Point, radius: f64) -> Vec<Point> {
        let (first, num, radius) = match self {
            Self::Circle => (0.0, 24, radius),
            Self::Square => (45.0, 4, 1.25 * radius),
            Self::Triangle => (90.0, 3, 1.4 * radius),
            Self::Diamond => (90.0, 4, 1.35 * radius),
        };
        let corner = |index: i32| {
            let angle = (first + 360.0 / f64::from(num) * f64::from(index)) * f64::to_radians(1.0);
            (x + radius * angle.cos(), y - radius * angle.sin())
        };
        (0..num).map(corner).collect()
    }
}

pub const WIDTH: f64 = 960.0;
pub const MARGIN: f64 = 28.0;
const HEADER_HEIGHT: f64 = 82.0;
/// Of a diagram alone or with a title, of the first one under a key, and of the others.
const PANEL_HEIGHT: f64 = 500.0;
const FIRST_HEIGHT: f64 = 380.0;
const OTHER_HEIGHT: f64 = 220.0;
/// Sizes of letters.
const TITLE: f64 = 19.0;
const SUBTITLE: f64 = 13.0;
const PANEL_TITLE: f64 = 15.0;
pub const SMALL: f64 = 12.5;
/// Below the line of small letters, half as high as they are.
pub const MIDDLE: f64 = 0.36 * SMALL;
/// With fewer points each has a dot.
const FEW_POINTS: usize = 32;
/// Most dots of a curve: more would hide it.
const MANY_DOTS: usize = 60;
const RADIUS: f64 = 4.0;

pub const BLACK: Color = Color(30, 30, 30);
const GREY: Color = Color(95, 95, 95);
const GRID: Color = Color(229, 229, 229);
/// Readable on white, and distinguishable with color blindness: Okabe and Ito (2008).
const COLORS: [Color; 6] = [
    Color(0, 114, 178),
    Color(213, 94, 0),
    Color(0, 158, 115),
    Color(204, 121, 167),
    Color(230, 159, 0),
    Color(86, 180, 233),
];
const SHAPES: [DotShape; 4] =
    [DotShape::Circle, DotShape::Square, DotShape::Triangle, DotShape::Diamond];
/// Dashes and gaps of the curves after the first, which is solid.
const DASHES: [(f64, f64); 4] = [(12.0, 8.0), (5.0, 5.0), (20.0, 7.0), (2.0, 4.0)];

impl Look {
    fn color(self) -> Color {
        self.number.map_or(GREY, |number| COLORS[number % COLORS.len()])
    }

    /// A line as the curve has it.
    pub fn line(self, points: Vec<Point>) -> DrawnPart {
        let dash = self.number.filter(|_| self.line == Line::Dashed);
        let dash = dash.and_then(|number| number.checked_sub(1));
        let (width, opacity) = match self.line {
            Line::Solid | Line::Dashed => (2.0, 1.0),
            Line::Thin => (1.3, 1.0),
            Line::Faint => (1.0, 0.45),
        };
        let dash = dash.map(|number| DASHES[number % DASHES.len()]);
        DrawnPart::Line { points, color: self.color(), width, opacity, dash }
    }

    /// A dot as the curve has it.
    pub fn dot(self, at: Point) -> DrawnPart {
        let shape = SHAPES[self.number.unwrap_or(0) % SHAPES.len()];
        DrawnPart::Dot { at, shape, radius: RADIUS, color: self.color() }
    }
}

/// What a curve looks like in a picture.
pub fn look_of(index: usize, curve: &PlotCurve) -> Look {
    let has_dots = curve.points.len() <= FEW_POINTS;
    curve.look.unwrap_or(Look { has_dots, ..Look::of(index) })
}

/// Text that is not turned.
pub fn letters(text: impl Into<String>, at: Point, anchor: Anchor, size: f64) -> DrawnPart {
    let (text, color) = (text.into(), BLACK);
    DrawnPart::Text { text, at, anchor, size, color, is_turned: false }
}

/// Puts everything in its place.
///
/// # Errors
/// A font that cannot be read.
pub fn lay_out(figure: &Figure) -> Result<Drawing, Error> {
    let font = Font::new()?;
    let mut elements = vec![];
    let width = WIDTH - 2.0 * MARGIN;
    let title = font.fit(&figure.title, TITLE, width);
    elements.push(letters(title, (MARGIN, 38.0), Anchor::Start, TITLE));
    let (text, at) = (font.fit(&figure.subtitle, SUBTITLE, width), (MARGIN, 62.0));
    let (anchor, size, color) = (Anchor::Start, SUBTITLE, GREY);
    elements.push(DrawnPart::Text { text, at, anchor, size, color, is_turned: false });
    let mut top = HEADER_HEIGHT - if figure.subtitle.is_empty() { 20.0 } else { 0.0 };
    if let Some(key) = &figure.key {
        top += legend::draw(&mut elements, &font, key, top - 8.0);
    }
    let axes = axes(figure);
    let widest = |labels: &[(f64, String)]| {
        labels.iter().map(|(_, label)| font.width(label, SMALL)).fold(0.0, f64::max)
    };
    // All diagrams begin and end at the same place.
    let left = axes.iter().map(|(_, y)| widest(&y.ticks)).fold(0.0, f64::max);
    let last = axes.iter().filter_map(|(x, _)| x.ticks.last());
    let last = last.map(|(_, label)| font.width(label, SMALL)).fold(0.0, f64::max);
    let (left, right) = ((MARGIN + 32.0 + left).round(), WIDTH - MARGIN - last / 2.0);
    for (index, (panel, (x, y))) in figure.panels.iter().zip(&axes).enumerate() {
        let sides = (left, right);
        let place = PanelPlace { top, sides, index, num_panels: figure.panels.len(), x, y };
        top = place.draw(&mut elements, &font, panel, figure.key.is_some());
    }
    Ok(Drawing { size: (WIDTH as u32, top.ceil() as u32), elements })
}

/// The axes of each diagram, with all values on them.
fn axes(figure: &Figure) -> Vec<(PlacedAxis, PlacedAxis)> {
    let num_ticks = |index: usize| if figure.key.is_some() && index > 0 { 4 } else { 7 };
    let axes = figure.panels.iter().enumerate().map(|(index, panel)| {
        let panels = match figure.key.is_some() {
            true => &figure.panels[..],
            false => std::slice::from_ref(panel),
        };
        let x = PlacedAxis::new(&panel.x, shown(panels).map(|point| point.0), 7);
        let points = shown(std::slice::from_ref(panel));
        (x, PlacedAxis::new(&panel.y, points.map(|point| point.1), num_ticks(index)))
    });
    axes.collect()
}

/// The points that have a place.
pub fn shown(panels: &[Panel]) -> impl Iterator<Item = Point> {
    panels.iter().flat_map(|panel| {
        let points = panel.curves.iter().flat_map(|curve| curve.points.iter().copied());
        points.filter(|(x, y)| panel.x.has(*x) && panel.y.has(*y))
    })
}

/// Where a diagram stands.
struct PanelPlace<'a> {
    top: f64,
    sides: (f64, f64),
    index: usize,
    num_panels: usize,
    x: &'a PlacedAxis,
    y: &'a PlacedAxis,
}

impl PanelPlace<'_> {
    /// Draws a diagram, and says where it ends.
    fn draw(
        &self,
        elements: &mut Vec<DrawnPart>,
        font: &Font,
        panel: &Panel,
        has_key: bool,
    ) -> f64 {
        let Self { sides: (left, right), num_panels, index, .. } = *self;
        let height = match (has_key, index) {
            (false, _) => PANEL_HEIGHT,
            (true, 0) => FIRST_HEIGHT,
            (true, _) => OTHER_HEIGHT,
        };
        let has_title = num_panels > 1 && !panel.title.is_empty();
        let is_alone = panel.curves.len() == 1;
        let has_marks = is_alone && panel.curves.iter().any(|curve| !curve.marks.is_empty());
        let legend = legend::entries(panel);
        let legend_height = legend::height(font, &legend);
        let top =
            self.top + if has_title { 44.0 } else { 8.0 } + if has_marks { 16.0 } else { 0.0 };
        // The title of a common axis stands under the last one.
        let has_x_title = !has_key || index + 1 == num_panels;
        let under = if has_x_title { 62.0 } else { 38.0 };
        let end = self.top + height + if has_key && has_x_title { 24.0 } else { 0.0 };
        let gap = if legend.is_empty() { 0.0 } else { 8.0 };
        let bottom = (end - under - legend_height - gap).round();
        let area = Area { left, right, top: top.round(), bottom, x: self.x, y: self.y };
        if has_title {
            let title = font.fit(&panel.title, PANEL_TITLE, WIDTH - 2.0 * MARGIN);
            let at = (MARGIN, self.top + 22.0);
            elements.push(letters(title, at, Anchor::Start, PANEL_TITLE));
        }
        area.draw_axes(elements, font, panel, has_x_title);
        for (index, curve) in panel.curves.iter().enumerate() {
            area.draw_curve(elements, font, panel, (index, curve), is_alone);
        }
        if shown(std::slice::from_ref(panel)).next().is_none() {
            let at = ((left + right) / 2.0, (area.top + area.bottom) / 2.0);
            elements.push(letters(nothing(panel), at, Anchor::Middle, SMALL));
        }
        legend::draw(elements, font, &legend, end - 14.0 - legend_height);
        end
    }
}

/// Why a diagram is empty.
pub fn nothing(panel: &Panel) -> &'static str {
    match panel.y.scale {
        super::Scale::Log(_) => "no value is finite and above 0",
        _ => "no value is finite",
    }
}

/// Where curves are drawn.
struct Area<'a> {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    x: &'a PlacedAxis,
    y: &'a PlacedAxis,
}

impl Area<'_> {
    fn x(&self, value: f64) -> f64 {
        self.left + self.x.share(value) * (self.right - self.left)
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom - self.y.share(value) * (self.bottom - self.top)
    }

    fn draw_axes(
        &self,
        elements: &mut Vec<DrawnPart>,
        font: &Font,
        panel: &Panel,
        has_x_title: bool,
    ) {
        let line = |points: [Point; 2], color| DrawnPart::Line {
            points: points.to_vec(),
            color,
            width: 1.0,
            opacity: 1.0,
            dash: None,
        };
        // Lines of one pixel are sharp where they fill one.
        let sharp = |at: f64| at.floor() + 0.5;
        let (left, bottom) = (sharp(self.left), sharp(self.bottom));
        let x_ticks = self.x.ticks.iter().map(|(tick, label)| (sharp(self.x(*tick)), label));
        let widths = |label: &str| font.width(label, SMALL) + 14.0;
        let x_ticks = apart(x_ticks.collect(), widths);
        let y_ticks = self.y.ticks.iter().map(|(tick, label)| (sharp(self.y(*tick)), label));
        let y_ticks = apart(y_ticks.collect(), |_| 1.5 * SMALL);
        for (x, _) in x_ticks.iter().filter(|(x, _)| *x > left) {
            elements.push(line([(*x, self.top), (*x, bottom)], GRID));
        }
        for (y, _) in y_ticks.iter().filter(|(y, _)| *y < bottom) {
            elements.push(line([(left, *y), (self.right, *y)], GRID));
        }
        for (x, label) in x_ticks {
            elements.push(line([(x, bottom), (x, bottom + 5.0)], GREY));
            elements.push(letters(label, (x, bottom + 20.0), Anchor::Middle, SMALL));
        }
        for (y, label) in y_ticks {
            elements.push(line([(left - 5.0, y), (left, y)], GREY));
            elements.push(letters(label, (left - 9.0, y + MIDDLE), Anchor::End, SMALL));
        }
        elements.push(line([(left, self.top), (left, bottom)], GREY));
        elements.push(line([(left, bottom), (self.right, bottom)], GREY));
        if has_x_title {
            let at = ((self.left + self.right) / 2.0, bottom + 42.0);
            let title = panel.x.title.as_ref();
            elements.push(letters(title, at, Anchor::Middle, SMALL));
        }
        elements.push(DrawnPart::Text {
            text: font.fit(&panel.y.title, SMALL, self.bottom - self.top),
            at: (MARGIN + 4.0, (self.top + self.bottom) / 2.0),
            anchor: Anchor::Middle,
            size: SMALL,
            color: BLACK,
            is_turned: true,
        });
    }

    fn draw_curve(
        &self,
        elements: &mut Vec<DrawnPart>,
        font: &Font,
        panel: &Panel,
        (index, curve): (usize, &PlotCurve),
        is_alone: bool,
    ) {
        let look = look_of(index, curve);
        let place =
            |(x, y): &Point| (panel.x.has(*x) && panel.y.has(*y)).then(|| (self.x(*x), self.y(*y)));
        let parts = path::joined(path::parts(&curve.points, place));
        let num_points: usize = parts.iter().map(Vec::len).sum();
        let mut dots = vec![];
        for part in &parts {
            match part[..] {
                // Without a line to it, it would not be seen.
                [alone] if !look.has_dots => dots.push(look.dot(alone)),
                [_] => {}
                _ => elements.push(look.line(path::simplified(part))),
            }
        }
        if look.has_dots {
            let stride = num_points.div_ceil(MANY_DOTS).max(1);
            let places = parts.iter().flatten().rev().step_by(stride);
            dots.extend(places.map(|at| look.dot(*at)));
        }
        elements.extend(dots);
        for (point, label) in &curve.marks {
            let Some(at) = place(point) else { continue };
            elements.push(look.dot(at));
            let width = font.width(label, SMALL);
            let (anchor, x) = match at.0 + 6.0 + width < self.right {
                true => (Anchor::Start, at.0 + 6.0),
                false => (Anchor::End, at.0 - 6.0),
            };
            if is_alone {
                elements.push(letters(label, (x, at.1 - 10.0), anchor, SMALL));
            }
        }
    }
}

/// Ticks with labels that do not touch; the last one stays, and then the first.
fn apart(ticks: Vec<(f64, &String)>, room: impl Fn(&str) -> f64) -> Vec<(f64, &String)> {
    let first = ticks.first().copied();
    let touch =
        |a: &(f64, &String), b: &(f64, &String)| (a.0 - b.0).abs() < (room(a.1) + room(b.1)) / 2.0;
    let mut kept: Vec<(f64, &String)> = vec![];
    for (index, tick) in ticks.iter().enumerate().rev() {
        let is_free = kept.last().is_none_or(|last| !touch(tick, last));
        let is_free = is_free && first.is_none_or(|first| index == 0 || !touch(tick, &first));
        if is_free {
            kept.push(*tick);
        }
    }
    kept
}

/// The sample of a curve in a legend.
pub fn sample(elements: &mut Vec<DrawnPart>, look: Look, (x, y): Point) {
    elements.push(look.line(vec![(x, y), (x + SAMPLE, y)]));
    if look.has_dots {
        elements.push(look.dot((x + SAMPLE / 2.0, y)));
    }
}
