//! Criteria for the agreement of the plugin's values with the interpreter's.

use hlo::{DType, Literal};

/// How far apart two values may be.
#[derive(Clone, Copy, Debug)]
pub enum Agreement {
    /// Equal bits: ops that only move elements, and all ops on integers and `pred`.
    Bits,
    /// Equal bits, except that any NaN equals any other: ops that IEEE 754 requires to be rounded
    /// correctly.
    Exact,
    /// At most this many units in the last place, of the value or of `floor` if that is greater:
    /// approximated functions, and sums in another order.
    Ulps {
        /// Number of units in the last place.
        ulps: f64,
        /// A magnitude below which the error is absolute.
        floor: f64,
    },
}

/// Describes the disagreement, if any.
pub fn disagreement(got: &Literal, expected: &Literal, agreement: Agreement) -> Option<String> {
    if (got.dtype(), got.dims()) != (expected.dtype(), expected.dims()) {
        return Some(format!("got {got:?}, expected {expected:?}"));
    }
    let width = got.dtype().size_bytes();
    let bits = got.bytes().chunks(width).zip(expected.bytes().chunks(width));
    let values = got.to_f64().into_iter().zip(expected.to_f64());
    let agreement = if got.dtype().is_float() { agreement } else { Agreement::Bits };
    values.zip(bits).enumerate().find_map(|(index, ((got_value, value), (got_bits, bits)))| {
        let agrees = got_bits == bits
            || match agreement {
                Agreement::Bits => false,
                Agreement::Exact => got_value.is_nan() && value.is_nan(),
                Agreement::Ulps { ulps, floor } => {
                    let limit = ulps * epsilon(got.dtype()) * value.abs().max(floor);
                    got_value.is_nan() && value.is_nan() || (got_value - value).abs() <= limit
                }
            };
        let distance = (got_value - value).abs() / (epsilon(got.dtype()) * value.abs());
        (!agrees).then(|| {
            format!(
                "element {index} is {got_value:e} ({got_bits:02x?}), expected {value:e} \
                 ({bits:02x?}), {distance:.1} ulps"
            )
        })
    })
}

/// The distance from 1 to the next larger value.
fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F32 => f64::from(f32::EPSILON),
        DType::Bf16 => 2f64.powi(-7),
        DType::F16 => 2f64.powi(-10),
        _ => 0.0,
    }
}
