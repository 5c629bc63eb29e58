//! Elementwise ops, comparison, selection and conversion.

use crate::{Binary, Comparison, DType, Literal, Op, Tensor, Unary};

/// The second operand of an elementwise op: a tensor, or a number that becomes a constant of the
/// first operand's dtype. Scalars are broadcast; otherwise dims must be equal.
#[derive(Clone, Copy, Debug)]
pub enum Operand<'g> {
    /// A tensor.
    Tensor(Tensor<'g>),
    /// A number, converted to the other operand's dtype; for its range see
    /// [`crate::Tracer::scalar`].
    Number(f64),
}

impl<'g> From<Tensor<'g>> for Operand<'g> {
    fn from(tensor: Tensor<'g>) -> Self {
        Operand::Tensor(tensor)
    }
}

impl From<f64> for Operand<'_> {
    fn from(number: f64) -> Self {
        Operand::Number(number)
    }
}

impl<'g> Operand<'g> {
    /// The operand of `op` as a tensor; a number becomes a constant of `like`'s dtype, which must
    /// represent it.
    #[track_caller]
    pub(super) fn tensor_like(self, like: Tensor<'g>, op: &'static str) -> Tensor<'g> {
        let number = match self {
            Operand::Tensor(tensor) => return tensor,
            Operand::Number(number) => number,
        };
        let dtype = like.dtype();
        if let Err(message) = dtype.holds(number) {
            like.reject(op, message);
        }
        like.tracer().constant(Literal::from_f64(dtype, &[], &[number]))
    }
}

macro_rules! unary_methods {
    ($($(#[$meta:meta])* $name:ident => $op:ident;)*) => {
        impl<'g> Tensor<'g> { $(
            $(#[$meta])*
            #[must_use]
            #[track_caller]
            pub fn $name(self) -> Tensor<'g> {
                self.tracer().apply(Op::Unary(Unary::$op), &[self])
            }
        )* }
    };
}

unary_methods! {
    /// Absolute value.
    abs => Abs;
    /// Least whole number >= x.
    ceil => Ceil;
    /// Cosine of radians.
    cosine => Cosine;
    /// The error function: 2 / sqrt(pi) times the integral of e^(-t^2) from 0 to x.
    erf => Erf;
    /// e^x.
    exponential => Exponential;
    /// e^x - 1, accurate near 0.
    exponential_minus_one => ExponentialMinusOne;
    /// Greatest whole number <= x.
    floor => Floor;
    /// `true` where neither infinite nor NaN, as `pred`.
    is_finite => IsFinite;
    /// Natural logarithm.
    log => Log;
    /// log(1 + x), accurate near 0.
    log_plus_one => LogPlusOne;
    /// 1 / (1 + e^-x).
    logistic => Logistic;
    /// Nearest whole number, ties to even.
    round_nearest_even => RoundNearestEven;
    /// 1 / sqrt(x).
    rsqrt => Rsqrt;
    /// -1, 0 or 1.
    sign => Sign;
    /// Sine of radians.
    sine => Sine;
    /// Square root.
    sqrt => Sqrt;
    /// Hyperbolic tangent.
    tanh => Tanh;
}

macro_rules! binary_methods {
    ($($(#[$meta:meta])* $name:ident => $op:expr;)*) => {
        impl<'g> Tensor<'g> { $(
            $(#[$meta])*
            #[must_use]
            #[track_caller]
            pub fn $name(self, other: impl Into<Operand<'g>>) -> Tensor<'g> {
                binary($op, self, other.into())
            }
        )* }
    };
}

binary_methods! {
    /// x & y, logical for `pred`.
    and => Op::Binary(Binary::And);
    /// The greater; NaN if either is NaN.
    maximum => Op::Binary(Binary::Maximum);
    /// The lesser; NaN if either is NaN.
    minimum => Op::Binary(Binary::Minimum);
    /// x | y, logical for `pred`.
    or => Op::Binary(Binary::Or);
    /// x^y.
    power => Op::Binary(Binary::Power);
    /// x - y * trunc(x / y), with the sign of x.
    remainder => Op::Binary(Binary::Remainder);
    /// x << y; 0 where y >= the width.
    shift_left => Op::Binary(Binary::ShiftLeft);
    /// x >> y, copying the sign bit.
    shift_right_arithmetic => Op::Binary(Binary::ShiftRightArithmetic);
    /// x >> y, filling with zeros.
    shift_right_logical => Op::Binary(Binary::ShiftRightLogical);
    /// x ^ y, logical for `pred`.
    xor => Op::Binary(Binary::Xor);
    /// x == y, as `pred`.
    equal => Op::Compare(Comparison::Eq);
    /// x >= y, as `pred`.
    greater_equal => Op::Compare(Comparison::Ge);
    /// x > y, as `pred`.
    greater => Op::Compare(Comparison::Gt);
    /// x <= y, as `pred`.
    less_equal => Op::Compare(Comparison::Le);
    /// x < y, as `pred`.
    less => Op::Compare(Comparison::Lt);
    /// x != y, as `pred`.
    not_equal => Op::Compare(Comparison::Ne);
}

#[track_caller]
fn binary<'g>(op: Op, lhs: Tensor<'g>, rhs: Operand<'g>) -> Tensor<'g> {
    let rhs = rhs.tensor_like(lhs, op.name());
    let [lhs, rhs] = match (lhs.rank(), rhs.rank()) {
        (0, 1..) => [lhs.broadcast_in_dim(&rhs.shape(), &[]), rhs],
        (1.., 0) => [lhs, rhs.broadcast_in_dim(&lhs.shape(), &[])],
        _ => [lhs, rhs],
    };
    lhs.tracer().apply(op, &[lhs, rhs])
}

macro_rules! operators {
    ($($trait:ident, $method:ident => $op:ident;)*) => { $(
        impl<'g, T: Into<Operand<'g>>> std::ops::$trait<T> for Tensor<'g> {
            type Output = Tensor<'g>;
            #[track_caller]
            fn $method(self, other: T) -> Tensor<'g> {
                binary(Op::Binary(Binary::$op), self, other.into())
            }
        }
        impl<'g> std::ops::$trait<Tensor<'g>> for f64 {
            type Output = Tensor<'g>;
            #[track_caller]
            fn $method(self, other: Tensor<'g>) -> Tensor<'g> {
                let op = Op::Binary(Binary::$op);
                let number = Operand::Number(self).tensor_like(other, op.name());
                binary(op, number, other.into())
            }
        }
    )* };
}

operators! {
    Add, add => Add;
    Sub, sub => Subtract;
    Mul, mul => Multiply;
    Div, div => Divide;
}

impl<'g> std::ops::Not for Tensor<'g> {
    type Output = Tensor<'g>;
    #[track_caller]
    fn not(self) -> Tensor<'g> {
        self.tracer().apply(Op::Unary(Unary::Not), &[self])
    }
}

impl<'g> std::ops::Neg for Tensor<'g> {
    type Output = Tensor<'g>;
    #[track_caller]
    fn neg(self) -> Tensor<'g> {
        self.tracer().apply(Op::Unary(Unary::Negate), &[self])
    }
}

impl<'g> Tensor<'g> {
    /// `on_true` where this `pred` tensor is true, else `on_false`. A scalar `pred` is broadcast.
    #[must_use]
    #[track_caller]
    pub fn select(self, on_true: Tensor<'g>, on_false: Tensor<'g>) -> Tensor<'g> {
        let dims = on_true.shape();
        let pred = if self.rank() == 0 { self.broadcast_in_dim(&dims, &[]) } else { self };
        self.tracer().apply(Op::Select, &[pred, on_true, on_false])
    }

    /// Clamps to `min..=max`, which are numbers, scalars, or tensors of the same type.
    #[must_use]
    #[track_caller]
    pub fn clamp(self, min: impl Into<Operand<'g>>, max: impl Into<Operand<'g>>) -> Tensor<'g> {
        let min = min.into().tensor_like(self, Op::Clamp.name());
        let max = max.into().tensor_like(self, Op::Clamp.name());
        self.tracer().apply(Op::Clamp, &[min, self, max])
    }

    /// Converts to another dtype; returns the tensor itself if it already has this dtype.
    #[must_use]
    #[track_caller]
    pub fn convert(self, dtype: DType) -> Tensor<'g> {
        if self.dtype() == dtype { self } else { self.tracer().apply(Op::Convert(dtype), &[self]) }
    }

    /// Reinterprets the bits as another dtype of the same width. Its gradient is zero.
    #[must_use]
    #[track_caller]
    pub fn bitcast_convert(self, dtype: DType) -> Tensor<'g> {
        self.tracer().apply(Op::BitcastConvert(dtype), &[self])
    }

    /// The same values; gradients end here.
    #[must_use]
    #[track_caller]
    pub fn stop_gradient(self) -> Tensor<'g> {
        self.tracer().apply(Op::StopGradient, &[self])
    }
}
