//! Floating-point numbers, and functions of rows of them that compile to vector instructions.

use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

use crate::Scalar;

/// Arithmetic that kernels are written in.
///
/// Functions are inlined into [`vectorized`](crate::vectors::vectorized) loops, so that they are
/// compiled for their instruction set.
pub trait Real:
    Scalar
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + MulAssign
{
    /// Smaller than every number.
    const NEG_INFINITY: Self;

    /// The least finite number.
    const LEAST: Self;

    /// The number nearest to `x`.
    fn from_f64(x: f64) -> Self;

    /// `true` for NaN.
    fn is_nan(self) -> bool;

    /// `e^x`, exactly 0 for numbers so small that it would be denormal.
    fn exp(self) -> Self;

    /// The natural logarithm.
    fn ln(self) -> Self;
}

impl Real for f32 {
    const NEG_INFINITY: Self = f32::NEG_INFINITY;
    const LEAST: Self = f32::MIN;

    #[inline(always)]
    fn from_f64(x: f64) -> Self {
        x as f32
    }

    #[inline(always)]
    fn is_nan(self) -> bool {
        f32::is_nan(self)
    }

    /// By `e^x = 2^n e^r` with `|r| <= ln(2) / 2` and a polynomial in `r`, for arguments up to 88.
    #[inline(always)]
    fn exp(self) -> Self {
        /// Added to a number, leaves its nearest integer in the low bits.
        const ROUND: f32 = 12_582_912.0;
        /// ln 2 as a sum, so that products of the first part with small integers are exact.
        const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
        /// Coefficients of r^2 to r^7: those of the series of e^r, the last ones adjusted for the
        /// interval.
        const POLYNOMIAL: [f32; 6] =
            [0.5, 0.166_666_67, 0.041_666_67, 0.008_333_334, 0.001_388_926, 1.984_49e-4];
        let shifted = self * std::f32::consts::LOG2_E + ROUND;
        let n = shifted - ROUND;
        let r = self - n * LN2[0] - n * LN2[1];
        let [c2, c3, c4, c5, c6, c7] = POLYNOMIAL;
        let power = 1.0 + (r + r * r * (c2 + r * (c3 + r * (c4 + r * (c5 + r * (c6 + r * c7))))));
        let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
        let scaled = power * f32::from_bits(exponent << 23);
        // The comparison is false for NaN, which stays.
        if self < -87.3 { 0.0 } else { scaled }
    }

    #[inline(always)]
    fn ln(self) -> Self {
        self.ln()
    }
}

impl Real for f64 {
    const NEG_INFINITY: Self = f64::NEG_INFINITY;
    const LEAST: Self = f64::MIN;

    #[inline(always)]
    fn from_f64(x: f64) -> Self {
        x
    }

    #[inline(always)]
    fn is_nan(self) -> bool {
        f64::is_nan(self)
    }

    #[inline(always)]
    fn exp(self) -> Self {
        self.exp()
    }

    #[inline(always)]
    fn ln(self) -> Self {
        self.ln()
    }
}

/// Partial results of a reduction, so that elements are combined a vector at a time.
const LANES: usize = 16;

#[inline(always)]
fn reduce<T: Real>(x: &[T], identity: T, combine: impl Fn(T, T) -> T) -> T {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [identity; LANES];
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = combine(*lane, *x);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = combine(*lane, *x);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = combine(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// The greatest element that is not NaN.
#[inline(always)]
pub(super) fn maximum<T: Real>(x: &[T]) -> T {
    reduce(x, T::NEG_INFINITY, |a, b| if b > a { b } else { a })
}

#[inline(always)]
pub(super) fn sum<T: Real>(x: &[T]) -> T {
    reduce(x, T::default(), |a, b| a + b)
}

/// The sum of the products of elements of rows of the same length.
#[inline(always)]
pub(super) fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    let ((a_chunks, a_rest), (b_chunks, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut lanes = [T::default(); LANES];
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for (lane, (a, b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += *a * *b;
        }
    }
    for (lane, (a, b)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *lane += *a * *b;
    }
    sum(&lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_within_two_units_in_the_last_place() {
        let mut x = -87.2f32;
        while x < 88.0 {
            let (found, expected) = (Real::exp(x), f64::from(x).exp());
            let unit = f64::from(f32::from_bits((expected as f32).to_bits() + 1) - expected as f32);
            assert!((f64::from(found) - expected).abs() <= 2.0 * unit, "{x}: {found} {expected}");
            x += 0.003_7;
        }
        assert_eq!(Real::exp(0f32), 1.0);
        assert_eq!([-88.0, -1e4, f32::MIN, f32::NEG_INFINITY].map(Real::exp), [0.0; 4]);
        assert!(Real::exp(f32::NAN).is_nan());
    }

    #[test]
    fn reductions_take_every_element_once() {
        for len in [0, 1, 15, 16, 17, 40] {
            let x: Vec<f64> = (0..len).map(|i| i as f64 + 1.0).collect();
            assert_eq!(sum(&x), (len * (len + 1) / 2) as f64);
            assert_eq!(dot(&x, &x), x.iter().map(|x| x * x).sum::<f64>());
            assert_eq!(maximum(&x), x.last().copied().unwrap_or(f64::NEG_INFINITY));
        }
    }
}
