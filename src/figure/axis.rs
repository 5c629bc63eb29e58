//! Axes: their ends, their ticks, and where a value lies.

use super::{PlotAxis, Scale, ticks};

/// Of the values that a computer has, those that a picture can show: the distance of two of them is
/// finite, and so is their ratio.
const SHOWN: std::ops::RangeInclusive<f64> = 1e-150..=1e150;

/// An axis with its ends and ticks.
pub struct PlacedAxis {
    is_logarithmic: bool,
    low: f64,
    high: f64,
    /// From `low` to `high`, with their labels.
    pub ticks: Vec<(f64, String)>,
}

impl PlotAxis {
    /// `true` if the axis can show the value.
    pub fn has(&self, value: f64) -> bool {
        match self.scale {
            Scale::Log(_) => SHOWN.contains(&value),
            Scale::Linear | Scale::Whole | Scale::Ending => value == 0.0 || SHOWN.contains(&value),
            Scale::Span => value == 0.0 || SHOWN.contains(&value.abs()),
        }
    }
}

impl PlacedAxis {
    /// An axis around these values, with about `num_ticks`. Without a value it goes from 0 to 1, or
    /// over one power.
    pub fn new(axis: &PlotAxis, values: impl Iterator<Item = f64>, num_ticks: usize) -> Self {
        let values = values.filter(|value| axis.has(*value));
        let ends = values.fold(None, |ends: Option<(f64, f64)>, value| {
            let (low, high) = ends.unwrap_or((value, value));
            Some((low.min(value), high.max(value)))
        });
        let (least, most) = ends.unwrap_or((0.0, 0.0));
        let some = |value: f64| if value > 0.0 { value } else { 1.0 };
        let (low, high, ticks) = match axis.scale {
            Scale::Log(base) => {
                let (low, high) = ticks::around(some(least), some(most), base);
                (low, high, ticks::logarithmic(low, high, base, num_ticks))
            }
            Scale::Whole => {
                let high = some(most);
                (0.0, high, ticks::ending(high, num_ticks, 1.0))
            }
            Scale::Ending => {
                let high = ticks::above(some(most));
                (0.0, high, ticks::ending(high, num_ticks, 0.0))
            }
            Scale::Linear => between(0.0, some(most), num_ticks),
            // What is near 0 is seen against it.
            Scale::Span if least >= 0.0 && least <= 0.4 * most => {
                between(0.0, some(most), num_ticks)
            }
            Scale::Span => {
                let size = least.abs().max(most.abs());
                let room = if size == 0.0 { 0.5 } else { 0.05 * size };
                let (low, high, mut ticks) = match most - least > 1e-9 * size {
                    true => between(least, most, num_ticks),
                    false => between(least - room, most + room, num_ticks),
                };
                // A share cannot be larger than 1.
                let is_share = least > 0.0 && most <= 1.0 && high > 1.0;
                ticks.retain(|tick| !is_share || *tick <= 1.0 + 1e-9);
                (low, if is_share { ticks.last().copied().unwrap_or(high) } else { high }, ticks)
            }
        };
        let labels = (axis.labels)(&ticks);
        let is_logarithmic = matches!(axis.scale, Scale::Log(_));
        Self { is_logarithmic, low, high, ticks: ticks.into_iter().zip(labels).collect() }
    }

    /// How far along the axis a value lies, 0 to 1.
    pub fn share(&self, value: f64) -> f64 {
        match self.is_logarithmic {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        }
    }
}

/// From the tick below to the tick above.
fn between(low: f64, high: f64, num_ticks: usize) -> (f64, f64, Vec<f64>) {
    let ticks = ticks::linear(low, high, num_ticks);
    (ticks.first().copied().unwrap_or(low), ticks.last().copied().unwrap_or(high), ticks)
}
