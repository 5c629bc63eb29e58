//! From the points of a curve to the lines that are drawn.

use super::layout::Point;

/// Pixels by which a line may miss a point.
const NEAR: f64 = 0.05;
/// Pixels of a gap that is not seen.
const NARROW: f64 = 0.5;

/// The parts of a curve between its gaps: `place` says where a point is, if it can be shown.
pub fn parts<T>(points: &[T], place: impl Fn(&T) -> Option<Point>) -> Vec<Vec<Point>> {
    let mut parts = vec![vec![]];
    for point in points {
        match (place(point), parts.last_mut()) {
            (Some(place), Some(part)) => part.push(place),
            (Some(_), None) => {}
            (None, _) => parts.push(vec![]),
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// Parts with a gap between them that is too narrow to be seen are one.
pub fn joined(parts: Vec<Vec<Point>>) -> Vec<Vec<Point>> {
    let mut joined: Vec<Vec<Point>> = vec![];
    for part in parts {
        let ends = joined.last().and_then(|last| Some((last.last()?.0, part.first()?.0)));
        match (joined.last_mut(), ends) {
            (Some(last), Some((end, next))) if (next - end).abs() < NARROW => last.extend(part),
            _ => joined.push(part),
        }
    }
    joined
}

/// The points that a curve needs: all others lie on the lines between these.
pub fn simplified(points: &[Point]) -> Vec<Point> {
    let points = extremes(points);
    corners(&points).into_iter().map(|at| points[at]).collect()
}

/// Of the points in the same column, half a pixel wide, the first, the last, the lowest and the
/// highest. A curve with more points than pixels looks the same without the others.
fn extremes(points: &[Point]) -> Vec<Point> {
    let column = |point: &Point| (point.0 * 2.0).floor();
    let mut kept = vec![];
    for column in points.chunk_by(|a, b| column(a) == column(b)) {
        let by_height = |a: &usize, b: &usize| column[*a].1.total_cmp(&column[*b].1);
        let lowest = (0..column.len()).min_by(by_height).unwrap_or(0);
        let highest = (0..column.len()).max_by(by_height).unwrap_or(0);
        let mut places = [0, lowest, highest, column.len() - 1];
        places.sort_unstable();
        let mut last = None;
        for at in places {
            if last != Some(at) {
                kept.push(column[at]);
            }
            last = Some(at);
        }
    }
    kept
}

/// Which points a curve needs, to [`NEAR`].
pub fn corners(places: &[Point]) -> Vec<usize> {
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
