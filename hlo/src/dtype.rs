//! Element types.

use std::fmt;

/// The element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 binary64.
    F64,
    /// IEEE 754 binary32.
    F32,
    /// bfloat16: the upper half of a binary32.
    Bf16,
    /// IEEE 754 binary16.
    F16,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 64-bit integer.
    U64,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 8-bit integer.
    U8,
    /// Boolean, one byte a value on the host.
    Pred,
}

use DType::*;

impl DType {
    /// Every dtype, widest first within a kind.
    pub const ALL: [DType; 11] = [F64, F32, Bf16, F16, I64, I32, I8, U64, U32, U8, Pred];

    /// Our name: `f32`, `u8`, `pred`.
    pub const fn name(self) -> &'static str {
        match self {
            F64 => "f64",
            F32 => "f32",
            Bf16 => "bf16",
            F16 => "f16",
            I64 => "i64",
            I32 => "i32",
            I8 => "i8",
            U64 => "u64",
            U32 => "u32",
            U8 => "u8",
            Pred => "pred",
        }
    }

    /// The name in StableHLO text: `f32`, `ui8`, `i1`.
    pub const fn mlir(self) -> &'static str {
        match self {
            U64 => "ui64",
            U32 => "ui32",
            U8 => "ui8",
            Pred => "i1",
            other => other.name(),
        }
    }

    /// Bytes of one element in host memory.
    pub const fn size_bytes(self) -> usize {
        match self {
            F64 | I64 | U64 => 8,
            F32 | I32 | U32 => 4,
            Bf16 | F16 => 2,
            I8 | U8 | Pred => 1,
        }
    }

    /// Width in bits, for `bitcast_convert`.
    pub const fn size_bits(self) -> usize {
        self.size_bytes() * 8
    }

    /// `true` for f64, f32, bf16 and f16: the dtypes through which gradients flow.
    pub const fn is_float(self) -> bool {
        matches!(self, F64 | F32 | Bf16 | F16)
    }

    /// The dtype in which sums of this one are accumulated: f32 for bf16 and f16.
    pub const fn accumulation(self) -> DType {
        match self {
            Bf16 | F16 => F32,
            other => other,
        }
    }

    /// The least finite value of a float dtype; `None` for other dtypes.
    pub const fn least_finite(self) -> Option<f64> {
        match self {
            F64 => Some(f64::MIN),
            F32 => Some(f32::MIN as f64),
            Bf16 => Some(-3.389_531_389_251_535_5e38),
            F16 => Some(-65504.0),
            _ => None,
        }
    }

    /// `true` for signed and unsigned integers; `pred` is not one.
    pub const fn is_integer(self) -> bool {
        matches!(self, I64 | I32 | I8 | U64 | U32 | U8)
    }

    /// The value of this float dtype nearest to `value`, ties to even; for other dtypes `value`
    /// itself.
    ///
    /// Rounds once. The `half` crate's conversions from f64 round twice: they drop the low bits of
    /// the significand before they look for a tie, or go through f32.
    pub fn round(self, value: f64) -> f64 {
        let (fraction_bits, exponents) = match self {
            F32 => return f64::from(value as f32),
            Bf16 => (7, -126..=127),
            F16 => (10, -14..=15),
            _ => return value,
        };
        if !value.is_finite() {
            return value;
        }
        let power_of_two = |exponent: i32| f64::from_bits(((exponent + 1023) as u64) << 52);
        let exponent = (value.to_bits() >> 52 & 0x7ff) as i32 - 1023;
        // Below the smallest exponent the spacing of subnormals stays the same.
        let spacing = power_of_two(exponent.max(*exponents.start()) - fraction_bits);
        let rounded = (value / spacing).round_ties_even() * spacing;
        let overflows = rounded.abs() >= power_of_two(exponents.end() + 1);
        if overflows { f64::INFINITY.copysign(value) } else { rounded }
    }

    /// Checks that a constant of this dtype can represent the number. An integer or `pred` must
    /// hold it exactly. A float rounds it, but a finite number must not become infinite.
    ///
    /// # Errors
    /// If it cannot; the message names the number.
    pub(crate) fn holds(self, number: f64) -> Result<(), String> {
        let [low, end] = match self {
            F64 | F32 | Bf16 | F16 => {
                return match number.is_finite() && self.round(number).is_infinite() {
                    true => Err(format!("{number:e} is beyond the range of {self}")),
                    false => Ok(()),
                };
            }
            I64 => [-2f64.powi(63), 2f64.powi(63)],
            I32 => [-2f64.powi(31), 2f64.powi(31)],
            I8 => [-128.0, 128.0],
            U64 => [0.0, 2f64.powi(64)],
            U32 => [0.0, 2f64.powi(32)],
            U8 => [0.0, 256.0],
            Pred => [0.0, 2.0],
        };
        match number.fract() == 0.0 && low <= number && number < end {
            true => Ok(()),
            false => Err(format!("{self} cannot represent {number}")),
        }
    }

    /// `true` for unsigned integers.
    pub const fn is_unsigned(self) -> bool {
        matches!(self, U64 | U32 | U8)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_hold_what_is_whole_and_in_range_and_floats_what_stays_finite() {
        for dtype in DType::ALL {
            let held = |number: f64| dtype.holds(number).is_ok();
            assert!(held(0.0) && held(1.0) && held(-0.0), "{dtype}");
            for number in [0.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-300] {
                assert_eq!(held(number), dtype.is_float(), "{number} in {dtype}");
            }
            assert_eq!(held(-1.0), dtype != Pred && !dtype.is_unsigned(), "{dtype}");
        }
        assert!(I64.holds(-2f64.powi(63)).is_ok() && I64.holds(2f64.powi(63)).is_err());
        assert!(I8.holds(-128.0).is_ok() && I8.holds(127.0).is_ok());
        assert!(I8.holds(-129.0).is_err() && I8.holds(128.0).is_err());
        assert!(U64.holds(2f64.powi(63)).is_ok() && U64.holds(2f64.powi(64)).is_err());
        assert!(F16.holds(65519.0).is_ok() && F16.holds(65520.0).is_err());
        assert!(F32.holds(f64::from(f32::MAX)).is_ok() && F32.holds(-3.5e38).is_err());
    }

    #[test]
    fn the_least_finite_value_has_infinity_below_it() {
        for dtype in DType::ALL {
            let Some(least) = dtype.least_finite() else { continue };
            assert_eq!(dtype.round(least), least, "{dtype}");
            assert_eq!(dtype.round(least * (1.0 + 2f64.powi(-7))), f64::NEG_INFINITY, "{dtype}");
        }
        assert!(DType::ALL.iter().all(|dtype| dtype.is_float() == dtype.least_finite().is_some()));
    }

    #[test]
    fn rounding_is_to_nearest_even_and_happens_once() {
        let two = |exponent: i32| 2f64.powi(exponent);
        let cases = [
            (F32, 1.0 + two(-24), 1.0),
            (F32, 1.0 + two(-24) + two(-50), 1.0 + two(-23)),
            (Bf16, 1.0 + two(-8), 1.0),
            (Bf16, 1.0 + 3.0 * two(-8), 1.0 + two(-6)),
            // Through f32, or without the low 32 bits, these two would be ties.
            (Bf16, 1.0 + two(-8) + two(-50), 1.0 + two(-7)),
            (F16, 1.0 + two(-11) + two(-50), 1.0 + two(-10)),
            (F16, 1.0 + two(-11), 1.0),
            (F16, 65519.0, 65504.0),
            (F16, 65520.0, f64::INFINITY),
            (F16, -1e300, f64::NEG_INFINITY),
            (F16, two(-24), two(-24)),
            (F16, two(-25), 0.0),
            (F16, two(-25) * (1.0 + two(-40)), two(-24)),
            (F16, 3.0 * two(-25), two(-23)),
            (F16, two(-14) - two(-26), two(-14)),
            (Bf16, two(-133), two(-133)),
            (Bf16, -two(-134), -0.0),
            (Bf16, f64::MIN_POSITIVE / 2.0, 0.0),
            (Bf16, f64::MAX, f64::INFINITY),
            (F64, 0.1, 0.1),
        ];
        for (dtype, value, expected) in cases {
            let rounded = dtype.round(value);
            assert_eq!(rounded.to_bits(), expected.to_bits(), "{dtype} {value:e}: {rounded:e}");
        }
        assert!(F16.round(f64::NAN).is_nan());
    }
}
