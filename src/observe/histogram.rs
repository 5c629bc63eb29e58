//! The buckets in which the values of a parameter are counted.

/// Buckets of equal ratio, so that they fit parameters of any size: one from `-2^-14` to `2^-14`,
/// and for each sign 36 that are `sqrt(2)` times as wide as the one before, up to 16. The outermost
/// have all beyond.
///
/// ```
/// use lockstep::observe::HistogramBuckets;
///
/// let edges = HistogramBuckets::edges();
/// assert_eq!(edges.len(), HistogramBuckets::COUNT + 1);
/// let middle = HistogramBuckets::NUM_POSITIVE;
/// assert_eq!(edges[middle..middle + 2], [-0.5f64.powi(14), 0.5f64.powi(14)]);
/// assert!((edges[middle + 3] / edges[middle + 1] - 2.0).abs() < 1e-12);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct HistogramBuckets;

impl HistogramBuckets {
    /// Buckets of values above `2^-14`, and as many of those below `-2^-14`.
    pub const NUM_POSITIVE: usize = 37;
    /// All of them, ascending.
    pub const COUNT: usize = 2 * Self::NUM_POSITIVE + 1;
    /// A value `x` above 0 is in bucket `n` of the positive ones, from 1, with
    /// `n <= 2 log2(x) + OFFSET < n + 1`; below 1 it is in the middle.
    pub const OFFSET: f64 = 29.0;

    /// The ends of the buckets, ascending. The outermost have ends, too.
    pub fn edges() -> Vec<f64> {
        let edge = |place: usize| ((place as f64 - Self::OFFSET) / 2.0).exp2();
        let positive = (1..=Self::NUM_POSITIVE + 1).map(edge);
        let negative = (1..=Self::NUM_POSITIVE + 1).rev().map(|place| -edge(place));
        negative.chain(positive).collect()
    }
}
