//! StableHLO text of constants.

use super::mlir_type;
use crate::{DType, Literal, TensorType};

/// Constants with more elements than this are written as bytes.
const MAX_WRITTEN_ELEMENTS: usize = 64;

/// A constant op of these values, without the `=` and what precedes it.
pub(super) fn constant(literal: &Literal) -> String {
    let ty = mlir_type(&TensorType::new(literal.dtype(), literal.dims()));
    let as_bytes = literal.num_elements() > MAX_WRITTEN_ELEMENTS && literal.dtype() != DType::Pred;
    let value = if as_bytes {
        let hex: String = literal.bytes().iter().map(|byte| format!("{byte:02X}")).collect();
        format!("\"0x{hex}\"")
    } else {
        nested(&elements(literal), literal.dims())
    };
    format!("stablehlo.constant dense<{value}> : {ty}")
}

/// `[[1, 2], [3, 4]]`; a single element for rank 0; empty for a tensor without elements.
fn nested(elements: &[String], dims: &[usize]) -> String {
    match dims {
        _ if elements.is_empty() => String::new(),
        [] => elements[0].clone(),
        [first, rest @ ..] => {
            let rows = elements.chunks(elements.len() / first).map(|row| nested(row, rest));
            format!("[{}]", rows.collect::<Vec<_>>().join(", "))
        }
    }
}

fn elements(literal: &Literal) -> Vec<String> {
    macro_rules! integers {
        ($ty:ty) => {
            literal.as_slice::<$ty>().iter().map(ToString::to_string).collect()
        };
    }
    match literal.dtype() {
        DType::I64 => integers!(i64),
        DType::I32 => integers!(i32),
        DType::I8 => integers!(i8),
        DType::U64 => integers!(u64),
        DType::U32 => integers!(u32),
        DType::U8 => integers!(u8),
        DType::Pred => literal.bytes().iter().map(|byte| (*byte != 0).to_string()).collect(),
        float => {
            let width = float.size_bytes();
            let bits = literal.bytes().chunks(width).map(|bytes| {
                let hex: String = bytes.iter().rev().map(|byte| format!("{byte:02X}")).collect();
                format!("0x{hex}")
            });
            literal.to_f64().iter().zip(bits).map(|(value, bits)| decimal(*value, bits)).collect()
        }
    }
}

/// The shortest decimal that reads back as the same f64, and so as the same narrower float. MLIR
/// requires a point before the exponent, and the bits of infinities and NaN.
fn decimal(value: f64, bits: String) -> String {
    if !value.is_finite() {
        return bits;
    }
    let text = format!("{value:e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) if !mantissa.contains('.') => format!("{mantissa}.0e{exponent}"),
        _ => text,
    }
}
