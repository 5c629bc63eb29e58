//! Elementwise ops: one table for floats, computed in f64, and one for integers and `pred`.

use super::erf::erf;
use super::{from_ints, int_range, ints};
use crate::{Binary, Comparison, DType, Literal, Unary};

pub(super) fn unary(op: Unary, x: &Literal) -> Literal {
    let dtype = x.dtype();
    if op == Unary::IsFinite {
        let finite: Vec<_> = x.to_f64().into_iter().map(f64::is_finite).collect();
        Literal::pred(x.dims(), &finite)
    } else if dtype.is_float() {
        let values: Vec<_> = x.to_f64().into_iter().map(|x| float_unary(op, x)).collect();
        Literal::from_f64(dtype, x.dims(), &values)
    } else {
        let values: Vec<_> = ints(x).into_iter().map(|x| int_unary(op, dtype, x)).collect();
        from_ints(dtype, x.dims(), &values)
    }
}

fn float_unary(op: Unary, x: f64) -> f64 {
    match op {
        Unary::Abs => x.abs(),
        Unary::Ceil => x.ceil(),
        Unary::Cosine => x.cos(),
        Unary::Erf => erf(x),
        Unary::Exponential => x.exp(),
        Unary::ExponentialMinusOne => x.exp_m1(),
        Unary::Floor => x.floor(),
        Unary::Log => x.ln(),
        Unary::LogPlusOne => x.ln_1p(),
        Unary::Logistic => 1.0 / (1.0 + (-x).exp()),
        Unary::Negate => -x,
        Unary::RoundNearestEven => x.round_ties_even(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        // Zeros keep their sign, and NaN is NaN.
        Unary::Sign if x == 0.0 || x.is_nan() => x,
        Unary::Sign => x.signum(),
        Unary::Sine => x.sin(),
        Unary::Sqrt => x.sqrt(),
        Unary::Tanh => x.tanh(),
        Unary::IsFinite | Unary::Not => {
            unreachable!("infer rejects {} of floats", op.name())
        }
    }
}

fn int_unary(op: Unary, dtype: DType, x: i128) -> i128 {
    match op {
        Unary::Abs => x.abs(),
        Unary::Negate => -x,
        Unary::Not if dtype == DType::Pred => 1 - x,
        Unary::Not => !x,
        Unary::Sign => x.signum(),
        _ => unreachable!("infer rejects {} of {dtype}", op.name()),
    }
}

pub(super) fn binary(op: Binary, x: &Literal, y: &Literal) -> Literal {
    let dtype = x.dtype();
    if dtype.is_float() {
        let pairs = x.to_f64().into_iter().zip(y.to_f64());
        let values: Vec<_> = pairs.map(|(x, y)| float_binary(op, x, y)).collect();
        Literal::from_f64(dtype, x.dims(), &values)
    } else {
        let pairs = ints(x).into_iter().zip(ints(y));
        let values: Vec<_> = pairs.map(|(x, y)| int_binary(op, dtype, x, y)).collect();
        from_ints(dtype, x.dims(), &values)
    }
}

pub(super) fn float_binary(op: Binary, x: f64, y: f64) -> f64 {
    match op {
        Binary::Add => x + y,
        Binary::Divide => x / y,
        Binary::Maximum => maximum(x, y),
        Binary::Minimum => -maximum(-x, -y),
        Binary::Multiply => x * y,
        Binary::Power => x.powf(y),
        Binary::Remainder => x % y,
        Binary::Subtract => x - y,
        Binary::And
        | Binary::Or
        | Binary::ShiftLeft
        | Binary::ShiftRightArithmetic
        | Binary::ShiftRightLogical
        | Binary::Xor => unreachable!("infer rejects {} of floats", op.name()),
    }
}

/// IEEE 754's maximum: NaN if either is NaN, and 0 is greater than -0.
fn maximum(x: f64, y: f64) -> f64 {
    if x.is_nan() || !y.is_nan() && x.total_cmp(&y).is_gt() { x } else { y }
}

/// The value modulo 2^width; for `pred`, nonzero is true.
pub(super) fn int_binary(op: Binary, dtype: DType, x: i128, y: i128) -> i128 {
    let bits = dtype.size_bits();
    let mask = (1i128 << bits) - 1;
    // A negative shift counts as a large unsigned one.
    let shift = Some((y & mask) as usize).filter(|shift| *shift < bits);
    match op {
        Binary::Add => x + y,
        Binary::And => x & y,
        // XLA's backends return all bits set for division by zero.
        Binary::Divide if y == 0 => -1,
        Binary::Divide => x / y,
        Binary::Maximum => x.max(y),
        Binary::Minimum => x.min(y),
        Binary::Multiply => x.wrapping_mul(y),
        Binary::Or => x | y,
        Binary::Remainder if y == 0 => x,
        Binary::Remainder => x % y,
        Binary::ShiftLeft => shift.map_or(0, |shift| (x & mask) << shift),
        Binary::ShiftRightArithmetic => {
            // The top bit is the sign, even for an unsigned dtype.
            let signed = (x & mask) << (128 - bits) >> (128 - bits);
            signed >> shift.unwrap_or(bits - 1)
        }
        Binary::ShiftRightLogical => shift.map_or(0, |shift| (x & mask) >> shift),
        Binary::Subtract => x - y,
        Binary::Xor => x ^ y,
        Binary::Power => unreachable!("infer rejects power of {dtype}"),
    }
}

pub(super) fn compare(op: Comparison, x: &Literal, y: &Literal) -> Literal {
    fn holds<T: PartialOrd>(op: Comparison, x: &[T], y: &[T]) -> Vec<bool> {
        let holds = match op {
            Comparison::Eq => T::eq,
            Comparison::Ne => T::ne,
            Comparison::Lt => T::lt,
            Comparison::Le => T::le,
            Comparison::Gt => T::gt,
            Comparison::Ge => T::ge,
        };
        x.iter().zip(y).map(|(x, y)| holds(x, y)).collect()
    }
    let holds = if x.dtype().is_float() {
        holds(op, &x.to_f64(), &y.to_f64())
    } else {
        holds(op, &ints(x), &ints(y))
    };
    Literal::pred(x.dims(), &holds)
}

/// min(max(x, low), high), as StableHLO specifies: high wins where the bounds cross.
pub(super) fn clamp(low: &Literal, x: &Literal, high: &Literal) -> Literal {
    let everywhere = |bound: &Literal| match bound.dims() {
        [] => super::movement::broadcast_in_dim(bound, x.dims(), &[]),
        _ => bound.clone(),
    };
    let raised = binary(Binary::Maximum, x, &everywhere(low));
    binary(Binary::Minimum, &raised, &everywhere(high))
}

/// Floats to integers: truncated towards zero and clamped to the range; NaN becomes 0. Integers to
/// integers: wrapped. To `pred`: nonzero is true.
pub(super) fn convert(x: &Literal, dtype: DType) -> Literal {
    match (x.dtype().is_float(), dtype.is_float()) {
        (true, true) => Literal::from_f64(dtype, x.dims(), &x.to_f64()),
        (true, false) if dtype == DType::Pred => {
            let values: Vec<_> = x.to_f64().into_iter().map(|x| x != 0.0).collect();
            Literal::pred(x.dims(), &values)
        }
        (true, false) => {
            let (least, greatest) = int_range(dtype);
            let cut = |x: f64| (x as i128).clamp(least, greatest);
            let values: Vec<_> = x.to_f64().into_iter().map(cut).collect();
            from_ints(dtype, x.dims(), &values)
        }
        (false, true) if dtype == DType::F64 => {
            let values: Vec<_> = ints(x).into_iter().map(|x| x as f64).collect();
            Literal::from_slice(x.dims(), &values)
        }
        (false, true) => {
            let values: Vec<_> = ints(x).into_iter().map(without_ties).collect();
            Literal::from_f64(dtype, x.dims(), &values)
        }
        (false, false) => from_ints(dtype, x.dims(), &ints(x)),
    }
}

/// An integer as an f64 that rounds to f32 or narrower as the integer itself would: low bits that
/// f64 cannot represent set a sticky bit, so that rounding to f64 does not create a tie.
fn without_ties(x: i128) -> f64 {
    const LOW: i128 = (1 << 16) - 1;
    if x.unsigned_abs() >> 53 == 0 || x & LOW == 0 {
        return x as f64;
    }
    (x & !LOW | (LOW + 1)) as f64
}
