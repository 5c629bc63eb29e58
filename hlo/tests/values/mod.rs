//! Fixed pseudo-random numbers for tests: the same on every machine and in every run.

use hlo::random::threefry2x32;

/// `count` numbers in `[low, high)`; other numbers for another `stream`.
pub fn uniform(stream: u32, count: usize, low: f64, high: f64) -> Vec<f64> {
    let word = |i: usize| threefry2x32([0x7e57, stream], [0, i as u32])[0];
    (0..count).map(|i| low + (high - low) * f64::from(word(i)) / 2f64.powi(32)).collect()
}
