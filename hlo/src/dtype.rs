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
    pub const ALL: [DType; 10] = [F64, F32, Bf16, F16, I64, I32, U64, U32, U8, Pred];

    /// Our name: `f32`, `u8`, `pred`.
    pub const fn name(self) -> &'static str {
        match self {
            F64 => "f64",
            F32 => "f32",
            Bf16 => "bf16",
            F16 => "f16",
            I64 => "i64",
            I32 => "i32",
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
            U8 | Pred => 1,
        }
    }

    /// Bits of one element as `bitcast_convert` counts them.
    pub const fn size_bits(self) -> usize {
        self.size_bytes() * 8
    }

    /// True for f64, f32, bf16 and f16: the dtypes through which gradients flow.
    pub const fn is_float(self) -> bool {
        matches!(self, F64 | F32 | Bf16 | F16)
    }

    /// True for the signed and unsigned integers; `pred` is not one.
    pub const fn is_integer(self) -> bool {
        matches!(self, I64 | I32 | U64 | U32 | U8)
    }

    /// True for the unsigned integers.
    pub const fn is_unsigned(self) -> bool {
        matches!(self, U64 | U32 | U8)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
