//! One table of all ops except collectives: the interpreter against values computed by hand.
//! Transcendental values are those of Python 3.11's `math`.

use std::collections::BTreeSet;

use half::{bf16, f16};
use hlo::{
    Binary, Branch, Comparison, Convolution, DType, DotDims, Element, Literal, Mesh, Op, Reduction,
    Tensor, Tracer, Unary, Window, grad, interpret, lower, passes, trace,
};

type Case = (&'static str, for<'t> fn(&'t Tracer) -> Tensor<'t>, Literal);

const NAN: f32 = f32::NAN;
const INF: f32 = f32::INFINITY;

/// A constant of rank 1.
fn c<'t, T: Element>(t: &'t Tracer, values: &[T]) -> Tensor<'t> {
    t.constant(v(values))
}

/// 0.0, 1.0, 2.0, ... in `dims`.
fn counted<'t>(t: &'t Tracer, dims: &[usize]) -> Tensor<'t> {
    let values: Vec<_> = (0..dims.iter().product::<usize>()).map(|i| i as f32).collect();
    c(t, &values).reshape(dims)
}

fn empty<'t>(t: &'t Tracer, dtype: DType) -> Tensor<'t> {
    t.constant(Literal::zeros(dtype, &[2, 0]))
}

fn p<'t>(t: &'t Tracer, values: &[bool]) -> Tensor<'t> {
    t.constant(bools(values))
}

/// An expected value of rank 1.
fn v<T: Element>(values: &[T]) -> Literal {
    Literal::from_slice(&[values.len()], values)
}

/// An expected value with the given dims.
fn d<T: Element>(dims: &[usize], values: &[T]) -> Literal {
    Literal::from_slice(dims, values)
}

fn bools(values: &[bool]) -> Literal {
    Literal::pred(&[values.len()], values)
}

fn bf16s(values: &[f64]) -> Literal {
    Literal::from_f64(DType::Bf16, &[values.len()], values)
}

fn elementwise() -> Vec<Case> {
    vec![
        ("abs", |t| c(t, &[-1.5f32, -0.0, NAN]).abs(), v(&[1.5f32, 0.0, NAN])),
        ("abs of the least i32", |t| c(t, &[-3, i32::MIN]).abs(), v(&[3, i32::MIN])),
        ("ceil", |t| c(t, &[1.2f32, -1.2]).ceil(), v(&[2f32, -1.0])),
        ("cosine", |t| c(t, &[0f32, 1.0]).cosine(), v(&[1f32, 0.540_302_3])),
        ("exp", |t| c(t, &[-0.5f32, -INF]).exponential(), v(&[0.606_530_67f32, 0.0])),
        ("exp overflows", |t| c(t, &[89f32]).exponential(), v(&[INF])),
        (
            "expm1",
            |t| c(t, &[1e-5f64]).exponential_minus_one(),
            v(&[1.000_005_000_016_666_8e-5f64]),
        ),
        ("floor", |t| c(t, &[1.8f32, -1.2]).floor(), v(&[1f32, -2.0])),
        ("is_finite", |t| c(t, &[1f32, INF, NAN]).is_finite(), bools(&[true, false, false])),
        ("log", |t| c(t, &[10f32, 0.0, -1.0]).log(), v(&[std::f32::consts::LN_10, -INF, NAN])),
        ("log1p", |t| c(t, &[1e-5f64]).log_plus_one(), v(&[9.999_950_000_333_332e-6f64])),
        ("logistic", |t| c(t, &[2f32, -INF]).logistic(), v(&[0.880_797_1f32, 0.0])),
        ("negate", |t| -c(t, &[1f32, 0.0]), v(&[-1f32, -0.0])),
        ("negate wraps", |t| -c(t, &[1, i32::MIN]), v(&[-1, i32::MIN])),
        ("negate of unsigned wraps", |t| -c(t, &[1u8]), v(&[255u8])),
        ("not", |t| !c(t, &[0i32, 5]), v(&[-1, -6])),
        ("not of unsigned", |t| !c(t, &[1u8]), v(&[254u8])),
        ("not of pred", |t| !p(t, &[true, false]), bools(&[false, true])),
        (
            "round",
            |t| c(t, &[0.5f32, 1.5, 2.5, -0.5]).round_nearest_even(),
            v(&[0f32, 2.0, 2.0, -0.0]),
        ),
        ("rsqrt", |t| c(t, &[3f32, 0.0]).rsqrt(), v(&[0.577_350_26f32, INF])),
        ("sign", |t| c(t, &[-3f32, -0.0, NAN, INF]).sign(), v(&[-1f32, -0.0, NAN, 1.0])),
        ("sign of i32", |t| c(t, &[-3, 0, 9]).sign(), v(&[-1, 0, 1])),
        // Python's `math.erf`.
        (
            "erf",
            |t| c(t, &[0.5f32, -2.4, 3.0, -0.0, INF, NAN]).erf(),
            v(&[0.520_499_9f32, -0.999_311_5, 0.999_977_9, -0.0, 1.0, NAN]),
        ),
        ("sine", |t| c(t, &[1f32]).sine(), v(&[0.841_470_96f32])),
        ("sqrt", |t| c(t, &[2f32, -1.0]).sqrt(), v(&[std::f32::consts::SQRT_2, NAN])),
        ("tanh", |t| c(t, &[0.5f32, INF]).tanh(), v(&[0.462_117_16f32, 1.0])),
        ("add rounds to f32", |t| c(t, &[1e8f32]) + c(t, &[3f32]), v(&[1e8f32])),
        ("add in f64", |t| c(t, &[1e8f64]) + c(t, &[3f64]), v(&[100_000_003f64])),
        ("add, ties to even", |t| t.constant(bf16s(&[1.0, 1.0078125])) + 0.00390625, {
            bf16s(&[1.0, 1.015625])
        }),
        ("add overflows f16", |t| c(t, &[f16::MAX, f16::MAX]) + c(t, &[f16::ONE, f16::MAX]), {
            v(&[f16::MAX, f16::INFINITY])
        }),
        ("add wraps", |t| c(t, &[i32::MAX]) + 1.0, v(&[i32::MIN])),
        ("add wraps u64", |t| c(t, &[u64::MAX]) + c(t, &[2u64]), v(&[1u64])),
        ("add of pred", |t| p(t, &[true, true, false]) + p(t, &[true, false, false]), {
            bools(&[true, true, false])
        }),
        ("and", |t| c(t, &[-4i32]).and(c(t, &[7])), v(&[4])),
        ("and of pred", |t| p(t, &[true, true]).and(p(t, &[true, false])), bools(&[true, false])),
        ("divide", |t| c(t, &[1f32, 1.0, 0.0]) / c(t, &[3f32, 0.0, 0.0]), {
            v(&[1f32 / 3.0, INF, NAN])
        }),
        ("divide of i32", |t| c(t, &[7, -7, 5, i32::MIN]) / c(t, &[2, 2, 0, -1]), {
            v(&[3, -3, -1, i32::MIN])
        }),
        ("divide of u32", |t| c(t, &[7u32, u32::MAX]) / c(t, &[0u32, 2]), {
            v(&[u32::MAX, u32::MAX / 2])
        }),
        ("maximum", |t| c(t, &[1f32, NAN, 1.0, -0.0]).maximum(c(t, &[2f32, 1.0, NAN, 0.0])), {
            v(&[2f32, NAN, NAN, 0.0])
        }),
        ("maximum of u8", |t| c(t, &[200u8]).maximum(c(t, &[100u8])), v(&[200u8])),
        ("minimum", |t| c(t, &[1f32, NAN, 1.0, 0.0]).minimum(c(t, &[2f32, 1.0, NAN, -0.0])), {
            v(&[1f32, NAN, NAN, -0.0])
        }),
        ("minimum of i64", |t| c(t, &[i64::MIN]).minimum(c(t, &[1i64])), v(&[i64::MIN])),
        ("multiply", |t| c(t, &[3f32, 0.0]) * c(t, &[-2f32, INF]), v(&[-6f32, NAN])),
        ("multiply wraps", |t| c(t, &[u64::MAX]) * c(t, &[u64::MAX]), v(&[1u64])),
        ("multiply of pred", |t| p(t, &[true, true]) * p(t, &[true, false]), {
            bools(&[true, false])
        }),
        ("or", |t| c(t, &[5u32]).or(c(t, &[6u32])), v(&[7u32])),
        ("power", |t| c(t, &[2f32, -8.0, 0.0]).power(c(t, &[0.5f32, 3.0, 0.0])), {
            v(&[std::f32::consts::SQRT_2, -512.0, 1.0])
        }),
        ("power of a negative", |t| c(t, &[-1f32]).power(0.5), v(&[NAN])),
        ("remainder", |t| c(t, &[-7.5f32, 7.5]).remainder(c(t, &[2f32, -2.0])), {
            v(&[-1.5f32, 1.5])
        }),
        (
            "remainder of i32",
            |t| c(t, &[7, -7, 5, i32::MIN]).remainder(c(t, &[-3, 3, 0, -1])),
            v(&[1, -1, 5, 0]),
        ),
        ("shift_left", |t| c(t, &[1, -1, 1]).shift_left(c(t, &[31, 32, -1])), {
            v(&[i32::MIN, 0, 0])
        }),
        (
            "shift_right_arithmetic",
            |t| c(t, &[-8, -8, 8]).shift_right_arithmetic(c(t, &[1, 40, 32])),
            v(&[-4, -1, 0]),
        ),
        ("top bit of u8", |t| c(t, &[0x80u8]).shift_right_arithmetic(1.0), v(&[0xc0u8])),
        (
            "shift_right_logical",
            |t| c(t, &[-1, -1]).shift_right_logical(c(t, &[28, 32])),
            v(&[15, 0]),
        ),
        ("subtract", |t| 1.0 - c(t, &[0.25f32]), v(&[0.75f32])),
        ("subtract wraps", |t| c(t, &[1u32]) - c(t, &[2u32]), v(&[u32::MAX])),
        ("xor", |t| c(t, &[5u8]).xor(c(t, &[6u8])), v(&[3u8])),
        ("xor of pred", |t| p(t, &[true, true]).xor(p(t, &[true, false])), bools(&[false, true])),
    ]
}

fn choice_and_conversion() -> Vec<Case> {
    vec![
        ("equal", |t| c(t, &[1f32, NAN, 0.0]).equal(c(t, &[1f32, NAN, -0.0])), {
            bools(&[true, false, true])
        }),
        ("not_equal", |t| c(t, &[1f32, NAN]).not_equal(c(t, &[1f32, NAN])), bools(&[false, true])),
        ("less", |t| c(t, &[1f32, NAN]).less(2.0), bools(&[true, false])),
        ("less_equal", |t| c(t, &[2f32, NAN]).less_equal(2.0), bools(&[true, false])),
        ("greater", |t| c(t, &[3f32, NAN]).greater(2.0), bools(&[true, false])),
        ("greater_equal", |t| c(t, &[2f32, NAN]).greater_equal(2.0), bools(&[true, false])),
        ("less of i32", |t| c(t, &[-1]).less(c(t, &[1])), bools(&[true])),
        ("less of u32", |t| c(t, &[u32::MAX]).less(c(t, &[1u32])), bools(&[false])),
        (
            "select",
            |t| p(t, &[true, false]).select(c(t, &[1f32, 2.0]), c(t, &[NAN, 4.0])),
            v(&[1f32, 4.0]),
        ),
        ("select by a scalar", |t| p(t, &[false]).reshape(&[]).select(c(t, &[1]), c(t, &[2])), {
            v(&[2])
        }),
        ("clamp", |t| c(t, &[-1f32, 0.5, 2.0, NAN]).clamp(0.0, 1.0), v(&[0f32, 0.5, 1.0, NAN])),
        ("clamp by tensors", |t| c(t, &[5, 5]).clamp(c(t, &[0, 6]), c(t, &[3, 9])), v(&[3, 6])),
        ("clamp with crossed bounds", |t| c(t, &[1]).clamp(5.0, 3.0), v(&[3])),
        ("f32 to i32", |t| c(t, &[NAN, 3.9, -3.9, 1e20, -INF]).convert(DType::I32), {
            v(&[0, 3, -3, i32::MAX, i32::MIN])
        }),
        ("f32 to u8", |t| c(t, &[NAN, 3.9, -3.9, 1e20]).convert(DType::U8), v(&[0u8, 3, 0, 255])),
        ("f32 to i8", |t| c(t, &[NAN, 3.9, -3.9, 1e20, -129.0]).convert(DType::I8), {
            v(&[0i8, 3, -3, 127, -128])
        }),
        ("i32 to i8", |t| c(t, &[-1, 300, 128]).convert(DType::I8), v(&[-1i8, 44, -128])),
        ("i8 to u32", |t| c(t, &[-1i8, 5]).convert(DType::U32), v(&[u32::MAX, 5])),
        ("bits of i8", |t| c(t, &[-1i8, 5]).bitcast_convert(DType::U8), v(&[255u8, 5])),
        ("i8 wraps", |t| c(t, &[100i8, -100]) + c(t, &[100i8, -100]), v(&[-56i8, 56])),
        ("least i8", |t| -c(t, &[-128i8, 127]), v(&[-128i8, -127])),
        ("i8 shifts", |t| c(t, &[-128i8, 64]).shift_right_arithmetic(2.0), v(&[-32i8, 16])),
        ("f64 to u64", |t| c(t, &[1e30f64]).convert(DType::U64), v(&[u64::MAX])),
        ("f32 to pred", |t| c(t, &[NAN, 0.0, -0.0, 0.5]).convert(DType::Pred), {
            bools(&[true, false, false, true])
        }),
        ("f64 to bf16", |t| c(t, &[1.0 + 2f64.powi(-8) + 2f64.powi(-50)]).convert(DType::Bf16), {
            bf16s(&[1.0078125])
        }),
        ("f64 to f16", |t| c(t, &[65520f64, 2f64.powi(-25)]).convert(DType::F16), {
            v(&[f16::INFINITY, f16::ZERO])
        }),
        ("i32 to u8", |t| c(t, &[-1, 300]).convert(DType::U8), v(&[255u8, 44])),
        ("i32 to pred", |t| c(t, &[256, 0]).convert(DType::Pred), bools(&[true, false])),
        // Just above the tie between 2^60 and 2^60 + 2^37, to which f64 rounds it.
        ("i64 to f32", |t| c(t, &[(1i64 << 60) + (1 << 36) + 1, i64::MIN]).convert(DType::F32), {
            v(&[(1i64 << 60) as f32 + (1i64 << 37) as f32, -(2f32.powi(63))])
        }),
        ("u64 to f64", |t| c(t, &[u64::MAX]).convert(DType::F64), v(&[2f64.powi(64)])),
        ("pred to f32", |t| p(t, &[true, false]).convert(DType::F32), v(&[1f32, 0.0])),
        ("bits of f32", |t| c(t, &[1f32]).bitcast_convert(DType::U32), v(&[0x3f80_0000u32])),
        ("bits of bf16", |t| c(t, &[bf16::ONE]).bitcast_convert(DType::F16), {
            v(&[f16::from_bits(0x3f80)])
        }),
        (
            "bits of a signalling NaN stay",
            |t| c(t, &[0x7fa0_0001]).bitcast_convert(DType::F32).reshape(&[1, 1]).reshape(&[1]),
            v(&[f32::from_bits(0x7fa0_0001)]),
        ),
        ("stop_gradient", |t| c(t, &[1f32]).stop_gradient(), v(&[1f32])),
        (
            "custom_vjp",
            |t| t.custom_vjp(&[c(t, &[1f32])], |x| vec![x[0] + x[0]], |_, _, ct| ct.to_vec())[0],
            v(&[2f32]),
        ),
        ("fusion_barrier", |t| c(t, &[3]).fusion_barrier(), v(&[3])),
        ("barrier", |t| t.optimization_barrier(&[c(t, &[1]), c(t, &[2])])[1], v(&[2])),
    ]
}

fn movement() -> Vec<Case> {
    vec![
        ("iota", |t| t.iota(DType::F32, &[2, 3], 1), d(&[2, 3], &[0f32, 1.0, 2.0, 0.0, 1.0, 2.0])),
        ("iota in u8", |t| t.iota(DType::U8, &[3, 1], 0), d(&[3, 1], &[0u8, 1, 2])),
        ("broadcast of a scalar", |t| t.full(DType::I32, &[3], 7.0), v(&[7, 7, 7])),
        (
            "broadcast stretches",
            |t| counted(t, &[2, 1]).broadcast_in_dim(&[2, 2, 2], &[0, 2]),
            d(&[2, 2, 2], &[0f32, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]),
        ),
        ("reshape", |t| counted(t, &[2, 2]).reshape(&[4]), v(&[0f32, 1.0, 2.0, 3.0])),
        (
            "transpose",
            |t| counted(t, &[1, 2, 3]).transpose(&[2, 0, 1]),
            d(&[3, 1, 2], &[0f32, 3.0, 1.0, 4.0, 2.0, 5.0]),
        ),
        (
            "slice",
            |t| counted(t, &[3, 4]).slice(&[1, 0], &[3, 4], &[1, 3]),
            d(&[2, 2], &[4f32, 7.0, 8.0, 11.0]),
        ),
        ("empty slice", |t| counted(t, &[3]).slice_dim(0, 3, 3), v::<f32>(&[])),
        (
            "dynamic_slice",
            |t| counted(t, &[3, 3]).dynamic_slice(&[i(t, 1), i(t, 2)], &[2, 1]),
            d(&[2, 1], &[5f32, 8.0]),
        ),
        (
            "dynamic_slice moves into range",
            |t| counted(t, &[3, 3]).dynamic_slice(&[i(t, -5), i(t, 5)], &[1, 2]),
            d(&[1, 2], &[1f32, 2.0]),
        ),
        (
            "dynamic_update_slice",
            |t| {
                counted(t, &[2, 2])
                    .dynamic_update_slice(t.full(DType::F32, &[1, 2], 9.0), &[i(t, 7), i(t, 0)])
            },
            d(&[2, 2], &[0f32, 1.0, 9.0, 9.0]),
        ),
        ("index_leading", |t| counted(t, &[3, 2]).index_leading(i(t, 1)), v(&[2f32, 3.0])),
        ("pad", |t| c(t, &[1, 2, 3]).pad(9.0, &[1], &[-1], &[1]), v(&[9, 1, 9, 2, 9])),
        ("pad cuts off", |t| c(t, &[1, 2, 3]).pad(9.0, &[-1], &[0], &[1]), v(&[9, 2, 9, 3])),
        (
            "pad of two dims",
            |t| counted(t, &[1, 2]).pad(-1.0, &[1, 0], &[0, 1], &[0, 0]),
            d(&[2, 3], &[-1f32, -1.0, -1.0, 0.0, 1.0, -1.0]),
        ),
        (
            "concatenate",
            |t| counted(t, &[2, 1]).concatenate(&[t.full(DType::F32, &[2, 2], 7.0)], 1),
            d(&[2, 3], &[0f32, 7.0, 7.0, 1.0, 7.0, 7.0]),
        ),
        ("one_hot", |t| c(t, &[1u8, 5]).one_hot(3, DType::I32), {
            d(&[2, 3], &[0, 1, 0, 0, 0, 0])
        }),
        (
            "one_hot beyond i8",
            |t| c(t, &[5i8]).one_hot(300, DType::I32).sum().reshape(&[1]),
            v(&[1]),
        ),
        ("one_hot beyond u8", |t| c(t, &[5u8]).one_hot(300, DType::I32).sum().reshape(&[1]), {
            v(&[1])
        }),
        (
            "take_along_last_dim",
            |t| counted(t, &[2, 3]).take_along_last_dim(c(t, &[2, 9])),
            v(&[2f32, 0.0]),
        ),
        (
            "scan",
            |t| {
                let (last, sums) = t.scan(3, &[], &[i(t, 1)], &[c(t, &[1, 2, 3])], |_, s, x| {
                    (vec![s[0] + x[0]], vec![s[0] * x[0]])
                });
                sums[0].concatenate(&[last[0].reshape(&[1])], 0)
            },
            v(&[1, 4, 12, 7]),
        ),
        (
            "case, of whose branches the last is for all other numbers",
            |t| {
                let take = |index: i32| {
                    let branches: [Branch<'_>; 3] =
                        [&|x| vec![x[0] + 1.0], &|x| vec![x[0] * 10.0], &|x| vec![-x[0]]];
                    t.case(i(t, index), &[c(t, &[7])], &branches)[0]
                };
                take(0).concatenate(&[1, 2, 3, -1].map(take), 0)
            },
            v(&[8, 70, -7, -7, -7]),
        ),
        (
            "case by u32",
            |t| {
                let index = t.constant(Literal::scalar(u32::MAX));
                t.case(index, &[c(t, &[7])], &[&|x| vec![-x[0]], &|x| x.to_vec()])[0]
            },
            v(&[7]),
        ),
        ("remat", |t| t.remat(&[i(t, 3)], |x| vec![x[0] * x[0]])[0], Literal::scalar(9)),
        ("rows, moved into range", |t| counted(t, &[3, 2]).take(c(t, &[1, -5, 9, 2])), {
            d(&[4, 2], &[2f32, 3.0, 0.0, 1.0, 4.0, 5.0, 4.0, 5.0])
        }),
        ("rows of rank 0", |t| c(t, &[5i32, 7]).take(c(t, &[1u8, 255]).reshape(&[2, 1])), {
            d(&[2, 1], &[7, 7])
        }),
        (
            "rows in a batch",
            |t| counted(t, &[2, 2, 2]).gather(c(t, &[1, 0]).reshape(&[2, 1]), 1),
            { d(&[2, 1, 2], &[2f32, 3.0, 4.0, 5.0]) },
        ),
        (
            "take_along_dim",
            |t| counted(t, &[2, 3]).take_along_dim(c(t, &[1, 0, 1]).reshape(&[1, 3]), 0),
            d(&[1, 3], &[3f32, 1.0, 5.0]),
        ),
        (
            "take_along_dim of the last",
            |t| counted(t, &[2, 3]).take_along_dim(c(t, &[2, 2, 1, 0]).reshape(&[2, 2]), 1),
            d(&[2, 2], &[2f32, 2.0, 4.0, 3.0]),
        ),
        (
            "scatter_add, twice to one row, and out of range",
            |t| counted(t, &[3]).scatter_add(c(t, &[2, 2, -1, 3]), c(t, &[1f32, 2.0, 4.0, 8.0]), 0),
            v(&[0f32, 1.0, 5.0]),
        ),
        (
            "scatter_add in a batch",
            |t| {
                let updates = counted(t, &[2, 1, 2]);
                counted(t, &[2, 2, 2]).scatter_add(c(t, &[1, 0]).reshape(&[2, 1]), updates, 1)
            },
            d(&[2, 2, 2], &[0f32, 1.0, 2.0, 4.0, 6.0, 8.0, 6.0, 7.0]),
        ),
        (
            "top_k of rows",
            |t| c(t, &[3, 9, 5, i32::MIN, 0, -1]).reshape(&[2, 3]).top_k(2).0,
            d(&[2, 2], &[9, 5, 0, -1]),
        ),
        ("where the greatest stand", |t| c(t, &[7u8, 255, 7, 0]).top_k(4).1, v(&[1, 0, 2, 3])),
        (
            "top_k in total order",
            |t| c(t, &[-0.0f32, -NAN, 0.0, -INF, NAN, INF, -NAN]).top_k(7).1,
            v(&[4, 5, 2, 0, 3, 1, 6]),
        ),
        (
            "top_k of halves",
            |t| t.constant(bf16s(&[-1.0, 0.5, -3.0])).top_k(3).0,
            bf16s(&[0.5, -1.0, -3.0]),
        ),
    ]
}

/// An index.
fn i(t: &Tracer, value: i32) -> Tensor<'_> {
    t.constant(Literal::scalar(value))
}

fn contraction() -> Vec<Case> {
    vec![
        ("sum", |t| counted(t, &[2, 3]).reduce_sum(&[0]), v(&[3f32, 5.0, 7.0])),
        ("sum of all", |t| counted(t, &[2, 3]).sum().reshape(&[1]), v(&[15f32])),
        ("sum rounds once", |t| t.constant(bf16s(&[1.0, 0.00390625, 0.00390625])).sum(), {
            Literal::from_f64(DType::Bf16, &[], &[1.0078125])
        }),
        ("sum wraps", |t| c(t, &[200u8, 100]).sum(), Literal::scalar(44u8)),
        ("sum over no dim", |t| c(t, &[1, 2]).reduce_sum(&[]), v(&[1, 2])),
        ("max", |t| counted(t, &[2, 3]).reduce_max(&[1]), v(&[2f32, 5.0])),
        ("max with NaN", |t| c(t, &[1f32, NAN, 2.0]).reduce_max(&[0]), Literal::scalar(NAN)),
        ("min", |t| counted(t, &[2, 3]).reduce_min(&[1]), v(&[0f32, 3.0])),
        (
            "and",
            |t| p(t, &[true, true, true, false]).reshape(&[2, 2]).reduce(Reduction::And, &[1]),
            bools(&[true, false]),
        ),
        (
            "or",
            |t| p(t, &[false, false, true, false]).reshape(&[2, 2]).reduce(Reduction::Or, &[1]),
            bools(&[false, true]),
        ),
        ("sum of nothing", |t| empty(t, DType::F32).reduce_sum(&[1]), v(&[0f32, 0.0])),
        ("max of nothing", |t| empty(t, DType::F16).reduce_max(&[1]), {
            v(&[f16::NEG_INFINITY, f16::NEG_INFINITY])
        }),
        ("min of nothing", |t| empty(t, DType::F64).reduce_min(&[1]), {
            v(&[f64::INFINITY, f64::INFINITY])
        }),
        ("max of no i32", |t| empty(t, DType::I32).reduce_max(&[1]), v(&[i32::MIN, i32::MIN])),
        ("max of no i8", |t| empty(t, DType::I8).reduce_max(&[1]), v(&[-128i8, -128])),
        ("min of no u8", |t| empty(t, DType::U8).reduce_min(&[1]), v(&[255u8, 255])),
        ("and of nothing", |t| empty(t, DType::Pred).reduce(Reduction::And, &[1]), {
            bools(&[true, true])
        }),
        ("or of nothing", |t| empty(t, DType::Pred).reduce(Reduction::Or, &[1]), {
            bools(&[false, false])
        }),
        (
            "dot",
            |t| counted(t, &[2, 3]).dot(counted(t, &[3, 2])),
            d(&[2, 2], &[10f32, 13.0, 28.0, 40.0]),
        ),
        (
            "dot with batch and transposed",
            |t| {
                let dims = DotDims::contract(&[1], &[2]).batch(&[2], &[0]);
                counted(t, &[1, 2, 2]).dot_general(counted(t, &[2, 1, 2]), dims)
            },
            // Batch b: (x[0, 0, b], x[0, 1, b]) . y[b, 0, :]
            d(&[2, 1, 1], &[2f32, 11.0]),
        ),
        (
            "dot over two dims",
            |t| {
                counted(t, &[2, 2])
                    .dot_general(counted(t, &[2, 2]), DotDims::contract(&[0, 1], &[1, 0]))
            },
            // sum of x[i, j] * y[j, i] = 0 * 0 + 1 * 2 + 2 * 1 + 3 * 3
            Literal::scalar(13f32),
        ),
        (
            "outer product",
            |t| c(t, &[1, 2]).dot_general(c(t, &[3, 4]), DotDims::default()),
            d(&[2, 2], &[3, 4, 6, 8]),
        ),
        ("dot wraps", |t| c(t, &[u64::MAX, 1]).dot(c(t, &[u64::MAX, 1])), Literal::scalar(2u64)),
        (
            "dot over nothing",
            |t| empty(t, DType::F32).dot(empty(t, DType::F32).reshape(&[0, 1])),
            d(&[2, 1], &[0f32, 0.0]),
        ),
        (
            "dot rounds once",
            |t| {
                t.constant(bf16s(&[1.0, 0.0625, 0.0625]))
                    .dot(t.constant(bf16s(&[1.0, 0.0625, 0.0625])))
            },
            Literal::from_f64(DType::Bf16, &[], &[1.0078125]),
        ),
    ]
}

fn windows() -> Vec<Case> {
    vec![
        ("reverse", |t| counted(t, &[2, 3]).reverse(&[1]), {
            d(&[2, 3], &[2f32, 1.0, 0.0, 5.0, 4.0, 3.0])
        }),
        ("reverse of both", |t| counted(t, &[2, 2]).reverse(&[0, 1]), {
            d(&[2, 2], &[3f32, 2.0, 1.0, 0.0])
        }),
        (
            "convolution",
            // Kernel [1, 10]: x[i] + 10 x[i + 1].
            |t| {
                let w = c(t, &[1f32, 10.0]).reshape(&[1, 1, 2]);
                counted(t, &[1, 1, 4]).convolution(w, Convolution::new(1))
            },
            d(&[1, 1, 3], &[10f32, 21.0, 32.0]),
        ),
        (
            "convolution with stride and padding",
            |t| {
                let w = c(t, &[1f32, 10.0, 100.0]).reshape(&[1, 1, 3]);
                counted(t, &[1, 1, 4]).convolution(w, Convolution::new(1).stride(2).padding(1))
            },
            d(&[1, 1, 2], &[100f32, 321.0]),
        ),
        (
            "convolution of two features into two, in i32",
            |t| {
                let x = c(t, &[1, 2, 3, 4]).reshape(&[1, 2, 2]);
                let w = c(t, &[1, 10, 100, 1000]).reshape(&[2, 2, 1]);
                x.convolution(w, Convolution::new(1))
            },
            // Output 0 is x0 + 10 x1, output 1 is 100 x0 + 1000 x1.
            d(&[1, 2, 2], &[31, 42, 3100, 4200]),
        ),
        (
            "convolution in groups",
            |t| {
                let x = c(t, &[1, 2]).reshape(&[1, 2, 1]);
                let w = c(t, &[1, 10, 100, 1000]).reshape(&[4, 1, 1]);
                x.convolution(w, Convolution::new(1).groups(2))
            },
            d(&[1, 4, 1], &[1, 10, 200, 2000]),
        ),
        (
            "convolution in groups of the batch",
            |t| {
                let x = c(t, &[1, 2]).reshape(&[2, 1, 1]);
                let w = c(t, &[1, 10]).reshape(&[2, 1, 1]);
                x.convolution(w, Convolution { batch_group_count: 2, ..Convolution::new(1) })
            },
            d(&[1, 2, 1], &[1, 20]),
        ),
        (
            "convolution of a dilated input",
            |t| {
                let mut spread = Convolution::new(1).padding(1);
                spread.window[0].base_dilation = 2;
                // 0 1 0 2 0 with kernel [1, 10, 100].
                let w = c(t, &[1, 10, 100]).reshape(&[1, 1, 3]);
                c(t, &[1, 2]).reshape(&[1, 1, 2]).convolution(w, spread)
            },
            d(&[1, 1, 3], &[10, 201, 20]),
        ),
        (
            "reduce_window",
            |t| counted(t, &[1, 1, 3, 3]).reduce_window(Reduction::Sum, Window::nchw(2, 1, 0)),
            d(&[1, 1, 2, 2], &[8f32, 12.0, 20.0, 24.0]),
        ),
        (
            "padding counts for nothing in a maximum",
            |t| {
                let x = counted(t, &[1, 1, 2, 2]) - 9.0;
                x.reduce_window(Reduction::Max, Window::nchw(3, 2, 1))
            },
            d(&[1, 1, 1, 1], &[-6f32]),
        ),
        (
            "reduce_window of i32 with a dilated window",
            |t| {
                let mut window = Window::nchw(2, 1, 0);
                window.dims[3].window_dilation = 2;
                let x = c(t, &[5, 1, 3, 2, 9, 4]).reshape(&[1, 1, 2, 3]);
                x.reduce_window(Reduction::Min, window)
            },
            d(&[1, 1, 1, 1], &[2]),
        ),
        (
            "select_and_scatter adds to the first of equals",
            |t| {
                let x = c(t, &[1f32, 7.0, 7.0, 2.0, 0.0, 3.0]).reshape(&[1, 1, 1, 6]);
                let mut window = Window::nchw(1, 1, 0);
                window.sizes[3] = 3;
                x.select_and_scatter(counted(t, &[1, 1, 1, 4]) + 1.0, window)
            },
            // Windows 1 7 7, 7 7 2, 7 2 0, 2 0 3.
            d(&[1, 1, 1, 6], &[0f32, 3.0, 3.0, 0.0, 0.0, 4.0]),
        ),
    ]
}

/// Equal bits, or NaN where NaN is expected.
fn agree(got: &Literal, expected: &Literal) -> bool {
    let same_value = |(x, y): (f64, f64)| x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan();
    let is_float = expected.dtype().is_float();
    let same_type = got.dtype() == expected.dtype() && got.dims() == expected.dims();
    let values = || got.to_f64().into_iter().zip(expected.to_f64());
    got == expected || is_float && same_type && values().all(same_value)
}

/// The op's name, with the direction of a comparison and the kind of a reduction.
fn names(op: &Op) -> Vec<&'static str> {
    match op {
        Op::Compare(comparison) => vec![op.name(), comparison.name()],
        Op::Reduce { reduction, .. } => vec![op.name(), reduction.name()],
        _ => vec![op.name()],
    }
}

#[test]
fn every_op_of_one_replica_gives_the_value_computed_by_hand() {
    let mut covered = BTreeSet::new();
    let tables = [elementwise(), choice_and_conversion(), movement(), contraction(), windows()];
    for (name, build, expected) in tables.into_iter().flatten() {
        let graph = trace(Mesh::SINGLE, |t| t.output("result", build(t)))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        covered.extend(graph.nodes().iter().flat_map(|node| names(&node.op)));
        let got = interpret(&graph, &[]).unwrap();
        assert!(agree(&got[0][0], &expected), "{name}: {:?}, not {expected:?}", got[0][0]);
    }

    let families = [
        Unary::ALL.iter().map(|op| op.name()).collect::<Vec<_>>(),
        Binary::ALL.iter().map(|op| op.name()).collect(),
        Comparison::ALL.iter().map(|op| op.name()).collect(),
        Reduction::ALL.iter().map(|op| op.name()).collect(),
    ];
    let others = "constant iota compare select clamp convert bitcast_convert broadcast_in_dim \
                  reshape transpose slice dynamic_slice dynamic_update_slice pad concatenate \
                  reduce dot_general convolution reverse reduce_window select_and_scatter gather \
                  scatter top_k scan case remat custom_vjp fusion_barrier optimization_barrier \
                  stop_gradient";
    let all = families.into_iter().flatten().chain(others.split_whitespace());
    let missing: Vec<_> = all.filter(|name| !covered.contains(name)).collect();
    assert!(missing.is_empty(), "no case for {missing:?}");
}

/// More ones than bf16 or f16 can sum one by one.
const MANY: usize = 5000;

/// Sums of [`MANY`] ones of the given dtype.
fn sums<'t>(t: &'t Tracer, dtype: DType) -> Vec<(&'static str, Tensor<'t>)> {
    let ones = |dims: &[usize]| t.full(dtype, dims, 1.0);
    let (one, zero) = (ones(&[1]), t.full(dtype, &[1], 0.0));
    let places = t.full(DType::I32, &[MANY], 0.0);
    let window = |sizes: &[usize]| Window {
        sizes: sizes.to_vec(),
        dims: vec![hlo::WindowDim::default(); sizes.len()],
    };
    let padded = one.pad(0.0, &[MANY as i64 - 1], &[MANY as i64 - 1], &[0]);
    let (_, repeated) = t.scan(MANY, &[one], &[], &[], |c, _, _| (vec![], c.to_vec()));
    vec![
        ("reduce_sum", ones(&[MANY]).sum()),
        ("dot", ones(&[MANY]).dot(ones(&[MANY]))),
        ("reduce_window", ones(&[MANY]).reduce_window(Reduction::Sum, window(&[MANY]))),
        ("select_and_scatter", padded.select_and_scatter(ones(&[MANY]), window(&[MANY])).sum()),
        ("scatter_add", zero.scatter_add(places, ones(&[MANY]), 0)),
        ("gradient of take", grad(one.take(places).sum(), &[one])[0]),
        ("gradient of a broadcast", grad(one.broadcast_in_dim(&[MANY, 1], &[1]).sum(), &[one])[0]),
        ("gradient of a padding", {
            let value = one.reshape(&[]);
            grad(zero.pad(value, &[MANY as i64], &[0], &[0]).sum(), &[value])[0]
        }),
        ("gradient of a scan's constant", grad(repeated[0].sum(), &[one])[0]),
    ]
}

#[test]
fn sums_of_narrow_floats_are_accumulated_in_f32() {
    for dtype in [DType::Bf16, DType::F16] {
        let mut names = vec![];
        let graph = trace(Mesh::SINGLE, |t| {
            for (name, sum) in sums(t, dtype) {
                assert_eq!(sum.dtype(), dtype, "{name}");
                names.push(name);
                t.output(name, sum);
            }
        });
        let graph = graph.unwrap();
        let expected = Literal::from_f64(dtype, &[], &[MANY as f64]).to_f64();
        for (name, sum) in names.iter().zip(interpret(&graph, &[]).unwrap()) {
            assert_eq!(sum[0].to_f64(), expected, "{name} in {dtype}");
        }
        let text = lower(&passes::simplify(&graph), "sums").text;
        for line in text.lines().filter(|line| line.contains("stablehlo.add %x, %y")) {
            assert!(line.contains("%x: tensor<f32>"), "{line}");
        }
    }
}

#[test]
fn a_scatter_converts_no_updates_silently() {
    for [x, updates] in [[DType::F32, DType::Bf16], [DType::Bf16, DType::F32]] {
        let error = trace(Mesh::SINGLE, |t| {
            let (x, updates) = (t.full(x, &[1, 1], 0.0), t.full(updates, &[1, 1], 1.0));
            let at = t.full(DType::I32, &[1], 0.0);
            t.output("y", x.scatter_add(at, updates, 0));
        });
        assert!(error.unwrap_err().message.contains("the updates are"), "{x} {updates}");
        let error = trace(Mesh::SINGLE, |t| {
            let (x, source) = (t.full(x, &[1, 1], 0.0), t.full(updates, &[1, 1], 1.0));
            let window = Window { sizes: vec![1, 1], dims: vec![hlo::WindowDim::default(); 2] };
            t.output("y", x.select_and_scatter(source, window));
        });
        assert!(error.unwrap_err().message.contains("the source must be"), "{x} {updates}");
    }
}
