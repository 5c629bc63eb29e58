//! `seconds = latency + bytes / bandwidth`, fitted to measured times.

use serde::{Deserialize, Serialize};

/// A fitted number with the ends of its 95 % interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FittedValue {
    /// The estimate, at least 0.
    pub value: f64,
    /// The lower end, at least 0.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// A line through measured times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LineFit {
    /// Seconds for no bytes.
    pub latency_secs: FittedValue,
    /// Seconds for each byte.
    pub secs_per_byte: FittedValue,
    /// The root mean square of the relative residuals.
    pub relative_residual: f64,
}

/// Quantiles 0.975 of Student's t, for 1 to 10 degrees of freedom.
const STUDENT: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
/// The same for more, a little too large from 12 on.
const STUDENT_OF_MANY: f64 = 2.2;

impl LineFit {
    /// Fits a line to (bytes, seconds) by least squares of relative residuals: times that differ by
    /// orders of magnitude count alike. `None` for fewer than three points, or sizes that are all
    /// the same.
    ///
    /// ```
    /// use lockstep::targets::cost::LineFit;
    ///
    /// let points: Vec<_> = [1e3, 1e4, 1e5, 1e6].map(|n| (n, 1e-4 + 1e-8 * n)).into();
    /// let fit = LineFit::of(&points).unwrap();
    /// assert!((fit.latency_secs.value - 1e-4).abs() < 1e-9);
    /// // From this size on, most of the time goes into the bytes.
    /// assert!((fit.half_performance_bytes() - 1e4).abs() < 1.0);
    /// ```
    pub fn of(points: &[(f64, f64)]) -> Option<Self> {
        let is_usable = |(bytes, secs): &&(f64, f64)| bytes.is_finite() && *secs > 0.0;
        let points: Vec<_> = points.iter().filter(is_usable).copied().collect();
        let num_free = points.len().checked_sub(2).filter(|free| *free > 0)?;
        // Weighted sums of 1, x, x x, y and x y.
        let mut sums = [0.0; 5];
        for (x, y) in &points {
            let weight = 1.0 / (y * y);
            let terms = [1.0, *x, x * x, *y, x * y];
            sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += weight * term);
        }
        let [w, wx, wxx, wy, wxy] = sums;
        let determinant = w * wxx - wx * wx;
        if determinant <= 1e-12 * w * wxx {
            return None;
        }
        let latency = (wxx * wy - wx * wxy) / determinant;
        let per_byte = (w * wxy - wx * wy) / determinant;
        let residual = |(x, y): &(f64, f64)| (latency + per_byte * x) / y - 1.0;
        let squares: f64 = points.iter().map(|point| residual(point).powi(2)).sum();
        let variance = squares / num_free as f64;
        let quantile = STUDENT.get(num_free - 1).copied().unwrap_or(STUDENT_OF_MANY);
        let fitted = |value: f64, variance: f64| {
            let half = quantile * variance.sqrt();
            let at_least_0 = |value: f64| value.max(0.0);
            FittedValue {
                value: at_least_0(value),
                low: at_least_0(value - half),
                high: at_least_0(value + half),
            }
        };
        Some(Self {
            latency_secs: fitted(latency, variance * wxx / determinant),
            secs_per_byte: fitted(per_byte, variance * w / determinant),
            relative_residual: (squares / points.len() as f64).sqrt(),
        })
    }

    /// The time of so many bytes.
    pub fn secs(&self, bytes: f64) -> f64 {
        self.latency_secs.value + self.secs_per_byte.value * bytes
    }

    /// The size that takes twice as long as nothing: alpha / beta.
    pub fn half_performance_bytes(&self) -> f64 {
        match self.secs_per_byte.value {
            0.0 => f64::INFINITY,
            secs_per_byte => self.latency_secs.value / secs_per_byte,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_hold_the_true_values_about_as_often_as_they_should() {
        let (latency, per_byte) = (2e-4, 1e-8);
        let mut held = [0, 0];
        for seed in 0..200u32 {
            let noise = |i: u32| {
                let bits = hlo::random::threefry2x32([seed, 7], [i, 0]);
                let uniform = |bits: u32| f64::from(bits) / 2f64.powi(32) - 0.5;
                1.0 + 0.2 * (uniform(bits[0]) + uniform(bits[1]))
            };
            let sizes = (10..24).step_by(2).map(|power| f64::from(1u32 << power));
            let points: Vec<_> = sizes
                .enumerate()
                .map(|(i, n)| (n, (latency + per_byte * n) * noise(i as u32)))
                .collect();
            let fit = LineFit::of(&points).unwrap();
            for (held, (fitted, truth)) in
                held.iter_mut().zip([(fit.latency_secs, latency), (fit.secs_per_byte, per_byte)])
            {
                *held += usize::from((fitted.low..=fitted.high).contains(&truth));
            }
        }
        assert!(held.iter().all(|held| (175..=200).contains(held)), "{held:?} of 200");
    }

    #[test]
    fn a_line_needs_three_points_of_different_sizes() {
        assert_eq!(LineFit::of(&[(1.0, 1.0), (2.0, 2.0)]), None);
        assert_eq!(LineFit::of(&[(4.0, 1.0), (4.0, 2.0), (4.0, 3.0)]), None);
        assert_eq!(LineFit::of(&[(1.0, 1.0), (2.0, 2.0), (3.0, 0.0)]), None);
        // A falling line would mean a negative time for a byte.
        let fit = LineFit::of(&[(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]).unwrap();
        assert_eq!(fit.secs_per_byte.value, 0.0);
        assert_eq!(fit.half_performance_bytes(), f64::INFINITY);
    }
}
