//! The error function, accurate to a few units in the last place of f64.

use std::f64::consts::FRAC_2_SQRT_PI;

/// `2 / sqrt(pi)` times the integral of `e^(-t^2)` from 0 to x. Abramowitz and Stegun, "Handbook of
/// mathematical functions" (1964): the series 7.1.6, where all terms have the same sign, and for
/// greater x the continued fraction 7.1.14.
pub(super) fn erf(x: f64) -> f64 {
    const NUM_TERMS: u32 = 80;
    let square = x * x;
    if x.is_nan() || x == 0.0 {
        x
    } else if x.abs() < 2.5 {
        let (mut term, mut sum) = (x, x);
        for n in 1..NUM_TERMS {
            term *= 2.0 * square / f64::from(2 * n + 1);
            sum += term;
        }
        FRAC_2_SQRT_PI * (-square).exp() * sum
    } else if x.abs() < 6.0 {
        let size = x.abs();
        let fraction =
            (1..NUM_TERMS).rev().fold(size, |below, n| size + f64::from(n) / 2.0 / below);
        let complement = FRAC_2_SQRT_PI / 2.0 * (-square).exp() / fraction;
        (1.0 - complement).copysign(x)
    } else {
        // Within 2^-53 of 1.
        1f64.copysign(x)
    }
}
