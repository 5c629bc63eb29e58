//! One table of cases for all ops. All cases that take a dtype form one program for that dtype,
//! which runs on one replica, on four along `data`, and on two along `data` by two along `tensor`.

use std::collections::BTreeSet;
use std::panic::Location;
use std::rc::Rc;

use hlo::{
    Axis, AxisSet, Binary, Branch, Comparison, Convolution, DType, DotDims, Graph, Groups, Literal,
    Mesh, Op, Reduction, Tensor, TensorType, Threefry, Unary, Window, grad, interpret, trace,
    verify,
};

use super::agreement::{Agreement, disagreement};
use crate::support;

use Agreement::{Bits, Exact};

const fn ulps(ulps: f64) -> Agreement {
    Agreement::Ulps { ulps, floor: f64::MIN_POSITIVE }
}

/// Tolerance for sums, which may cancel.
const fn ulps_of_one(ulps: f64) -> Agreement {
    Agreement::Ulps { ulps, floor: 1.0 }
}

fn any(_: DType) -> bool {
    true
}

fn float(dtype: DType) -> bool {
    dtype.is_float()
}

fn integer(dtype: DType) -> bool {
    dtype.is_integer()
}

fn u32s(dtype: DType) -> bool {
    dtype == DType::U32
}

fn numeric(dtype: DType) -> bool {
    dtype != DType::Pred
}

fn with_sign(dtype: DType) -> bool {
    dtype.is_float() || dtype.is_integer() && !dtype.is_unsigned()
}

fn not_float(dtype: DType) -> bool {
    !dtype.is_float()
}

/// Across replicas, XLA adds bf16 in f32.
fn not_bf16(dtype: DType) -> bool {
    numeric(dtype) && dtype != DType::Bf16
}

fn only_pred(dtype: DType) -> bool {
    dtype == DType::Pred
}

/// Every pair of corner values occurs at some position of two operands: see [`Input::values`].
const CORNERS: Input = Input { dims: &[64], values: Values::Corners };
const SMALL: Input = Input { dims: &[64], values: Values::Between(-3.0, 3.0) };
const MATRIX: Input = Input { dims: &[4, 8], values: Values::Between(-2.0, 2.0) };

const IMAGE: Input = small(&[2, 2, 5, 4]);

const fn small(dims: &'static [usize]) -> Input {
    Input { dims, values: Values::Between(-2.0, 2.0) }
}

fn unary_cases() -> Vec<Case> {
    vec![
        case("abs", with_sign, Exact, &[CORNERS], |x| x[0].abs()),
        case("ceil", float, Exact, &[CORNERS], |x| x[0].ceil()),
        case("cosine", float, ulps_of_one(2.0), &[SMALL], |x| x[0].cosine()),
        case("erf", float, ulps(4.0), &[SMALL], |x| x[0].erf()),
        case("exponential", float, ulps(4.0), &[SMALL], |x| x[0].exponential()),
        case("exponential of corners", float, ulps(4.0), &[CORNERS], |x| x[0].exponential()),
        case("exponential_minus_one", float, ulps(4.0), &[CORNERS], |x| {
            x[0].exponential_minus_one()
        }),
        case("floor", float, Exact, &[CORNERS], |x| x[0].floor()),
        case("is_finite", float, Exact, &[CORNERS], |x| x[0].is_finite()),
        case("log", float, ulps(4.0), &[CORNERS], |x| x[0].log()),
        case("log_plus_one", float, ulps(4.0), &[CORNERS], |x| x[0].log_plus_one()),
        case("logistic", float, ulps(4.0), &[CORNERS], |x| x[0].logistic()),
        case("negate", numeric, Exact, &[CORNERS], |x| -x[0]),
        case("not", not_float, Bits, &[CORNERS], |x| !x[0]),
        case("round_nearest_even", float, Exact, &[CORNERS], |x| x[0].round_nearest_even()),
        case("rsqrt", float, ulps(4.0), &[CORNERS], |x| x[0].rsqrt()),
        case("sign", with_sign, Exact, &[CORNERS], |x| x[0].sign()),
        case("sine", float, ulps_of_one(2.0), &[SMALL], |x| x[0].sine()),
        case("sqrt", float, ulps(1.0), &[CORNERS], |x| x[0].sqrt()),
        case("tanh", float, ulps(8.0), &[CORNERS], |x| x[0].tanh()),
    ]
}

fn binary_cases() -> Vec<Case> {
    let two = [CORNERS; 2];
    vec![
        case("add", any, Exact, &two, |x| x[0] + x[1]),
        case("and", not_float, Bits, &two, |x| x[0].and(x[1])),
        case("divide", numeric, Exact, &two, |x| x[0] / x[1]),
        case("maximum", any, Exact, &two, |x| x[0].maximum(x[1])),
        case("minimum", any, Exact, &two, |x| x[0].minimum(x[1])),
        case("multiply", any, Exact, &two, |x| x[0] * x[1]),
        case("or", not_float, Bits, &two, |x| x[0].or(x[1])),
        case("power", float, ulps(16.0), &two, |x| x[0].power(x[1])),
        case("remainder", numeric, Exact, &two, |x| x[0].remainder(x[1])),
        case("shift_left", integer, Bits, &two, |x| x[0].shift_left(x[1])),
        case("shift_left by less", integer, Bits, &[CORNERS], |x| x[0].shift_left(3.0)),
        case("shift_right_arithmetic", integer, Bits, &two, |x| x[0].shift_right_arithmetic(x[1])),
        case("shift_right_arithmetic by less", integer, Bits, &[CORNERS], |x| {
            x[0].shift_right_arithmetic(3.0)
        }),
        case("shift_right_logical", integer, Bits, &two, |x| x[0].shift_right_logical(x[1])),
        case("shift_right_logical by less", integer, Bits, &[CORNERS], |x| {
            x[0].shift_right_logical(3.0)
        }),
        case("subtract", numeric, Exact, &two, |x| x[0] - x[1]),
        case("xor", not_float, Bits, &two, |x| x[0].xor(x[1])),
    ]
}

fn comparison_cases() -> Vec<Case> {
    let two = [CORNERS; 2];
    let three = [CORNERS; 3];
    vec![
        case("compare EQ", any, Bits, &two, |x| x[0].equal(x[1])),
        case("compare NE", any, Bits, &two, |x| x[0].not_equal(x[1])),
        case("compare LT", any, Bits, &two, |x| x[0].less(x[1])),
        case("compare LE", any, Bits, &two, |x| x[0].less_equal(x[1])),
        case("compare GT", any, Bits, &two, |x| x[0].greater(x[1])),
        case("compare GE", any, Bits, &two, |x| x[0].greater_equal(x[1])),
        case("select", any, Bits, &three, |x| x[2].equal(x[0]).select(x[0], x[1])),
        case("select by a scalar", any, Bits, &[CORNERS, CORNERS, small(&[])], |x| {
            x[2].equal(x[2]).select(x[0], x[1])
        }),
        case("clamp", numeric, Exact, &three, |x| x[0].clamp(x[1], x[2])),
        case(
            "clamp between a scalar and a tensor",
            numeric,
            Exact,
            &[CORNERS, small(&[]), CORNERS],
            |x| x[0].clamp(x[1], x[2]),
        ),
        case("clamp between scalars", numeric, Exact, &[CORNERS, small(&[]), small(&[])], |x| {
            x[0].clamp(x[1], x[2])
        }),
    ]
}

/// From each dtype to each dtype.
fn conversion_cases() -> Vec<Case> {
    let to = |dtype: DType| {
        // XLA goes from f64 to the half-precision dtypes through f32 and rounds twice.
        let agreement = if dtype.size_bits() == 16 { ulps(1.0) } else { Exact };
        case(&format!("convert to {dtype}"), any, agreement, &[CORNERS], move |x| {
            x[0].convert(dtype)
        })
    };
    let bits = |from: DType, to: DType| {
        let takes = move |dtype| dtype == from;
        case(&format!("bitcast_convert to {to}"), takes, Bits, &[CORNERS], move |x| {
            x[0].bitcast_convert(to)
        })
    };
    let numbers = || DType::ALL.into_iter().filter(|dtype| numeric(*dtype));
    let one_width = numbers().flat_map(|from| {
        numbers().filter(move |to| to.size_bits() == from.size_bits()).map(move |to| (from, to))
    });
    DType::ALL.map(to).into_iter().chain(one_width.map(|(from, to)| bits(from, to))).collect()
}

fn moving_cases() -> Vec<Case> {
    let scalar = small(&[]);
    vec![
        case("iota", numeric, Bits, &[MATRIX], |x| {
            let x = x[0];
            x.tracer().iota(x.dtype(), &[3, 5], 1).vary(x.varying())
        }),
        case("constant", any, Bits, &[MATRIX], |x| {
            let values = support::uniform(77, 12, 0.0, 2.0);
            let literal = Literal::from_f64(x[0].dtype(), &[3, 4], &values);
            x[0].tracer().constant(literal).vary(x[0].varying())
        }),
        case("constant written as bytes", any, Bits, &[MATRIX], |x| {
            let values = support::uniform(78, 90, 0.0, 2.0);
            let literal = Literal::from_f64(x[0].dtype(), &[9, 10], &values);
            x[0].tracer().constant(literal).vary(x[0].varying())
        }),
        case("constants that are no number", float, Bits, &[MATRIX], |x| {
            let values = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -0.0, 1e-3, 3e4];
            let literal = Literal::from_f64(x[0].dtype(), &[6], &values);
            x[0].tracer().constant(literal).vary(x[0].varying())
        }),
        case("constant without elements", any, Bits, &[MATRIX], |x| {
            let literal = Literal::zeros(x[0].dtype(), &[0, 3]);
            x[0].tracer().constant(literal).vary(x[0].varying())
        }),
        case("broadcast_in_dim", any, Bits, &[small(&[1, 4])], |x| {
            x[0].broadcast_in_dim(&[3, 2, 4], &[0, 2])
        }),
        case("reshape", any, Bits, &[MATRIX], |x| x[0].reshape(&[2, 16, 1])),
        case("transpose", any, Bits, &[small(&[2, 3, 4])], |x| x[0].transpose(&[2, 0, 1])),
        case("slice", any, Bits, &[MATRIX], |x| x[0].slice(&[1, 0], &[4, 7], &[2, 3])),
        case("slice of nothing", any, Bits, &[MATRIX], |x| x[0].slice(&[1, 0], &[1, 7], &[1, 1])),
        case("dynamic_slice", any, Bits, &[MATRIX], |x| {
            x[0].dynamic_slice(&start(x[0], [1.0, 2.0]), &[2, 3])
        }),
        case("dynamic_slice beyond the edges", any, Bits, &[MATRIX], |x| {
            x[0].dynamic_slice(&start(x[0], [-4.0, 90.0]), &[2, 3])
        }),
        case("dynamic_slice at a place that varies", any, Bits, &[MATRIX], |x| {
            let index = x[0].tracer().replica_id(Axis::Data);
            x[0].dynamic_slice(&[index, index], &[1, 2])
        }),
        case("dynamic_update_slice", any, Bits, &[MATRIX, small(&[2, 3])], |x| {
            x[0].dynamic_update_slice(x[1], &start(x[0], [1.0, 2.0]))
        }),
        case("dynamic_update_slice beyond the edges", any, Bits, &[MATRIX, small(&[2, 3])], |x| {
            x[0].dynamic_update_slice(x[1], &start(x[0], [90.0, -1.0]))
        }),
        case("pad", any, Bits, &[MATRIX, scalar], |x| x[0].pad(x[1], &[1, 0], &[2, 1], &[0, 0])),
        case("pad with negative edges", any, Bits, &[MATRIX, scalar], |x| {
            x[0].pad(x[1], &[-1, 2], &[1, -3], &[0, 0])
        }),
        case("pad between", any, Bits, &[MATRIX, scalar], |x| {
            x[0].pad(x[1], &[-2, 1], &[1, -1], &[2, 1])
        }),
        case("concatenate", any, Bits, &[MATRIX, small(&[4, 3])], |x| {
            x[0].concatenate(&[x[1], x[0]], 1)
        }),
        case("gather", any, Bits, &[MATRIX], |x| {
            x[0].take(indices(x[0], &[2, 3], &[3, 1, -9, 90, 0, 1]))
        }),
        case("gather in a batch", any, Bits, &[small(&[2, 3, 2])], |x| {
            x[0].gather(indices(x[0], &[2, 2], &[2, -1, 0, 3]), 1)
        }),
        case("take_along_dim", any, Bits, &[small(&[3, 2])], |x| {
            x[0].take_along_dim(indices(x[0], &[2, 2], &[2, 0, 0, 1]), 0)
        }),
        case("scatter", numeric, ulps(2.0), &[MATRIX, small(&[6, 8])], |x| {
            x[0].scatter_add(indices(x[0], &[6], &[3, 1, -9, 90, 3, 4]), x[1], 0)
        }),
        case(
            "scatter in a batch",
            numeric,
            ulps(2.0),
            &[small(&[2, 3, 2]), small(&[2, 2, 2])],
            |x| x[0].scatter_add(indices(x[0], &[2, 2], &[2, 2, -1, 0]), x[1], 1),
        ),
        // Eight rows of corners, including NaN since bits are compared, then a row long enough for
        // any algorithm.
        case("top_k", numeric, Bits, &[Input { dims: &[8, 8], values: Values::Corners }], |x| {
            x[0].top_k(8).0
        }),
        case("indices of top_k", numeric, Bits, &[CORNERS, CORNERS], |x| {
            let signs = x[0].concatenate(&[if x[0].dtype().is_float() { -x[1] } else { x[1] }], 0);
            signs.top_k(70).1
        }),
        case("gradient of top_k", float, Exact, &[SMALL], |x| {
            let (values, _) = x[0].reshape(&[4, 16]).top_k(3);
            grad(values.sum(), x)[0]
        }),
        case("threefry", u32s, Bits, &[small(&[]), small(&[2])], |x| {
            let (words, keys) = (x[0] * 4e9, x[1] * 4e9);
            let keys = [0, 1].map(|i| keys.slice_dim(0, i, i + 1).reshape(&[]));
            let threefry =
                Threefry { dims: vec![2, 3, 4], strides: vec![u32::MAX, 7], num_words: 2 };
            x[0].tracer().threefry(threefry, keys, [words, words])[1]
        }),
        case("threefry of streams", u32s, Bits, &[SMALL, small(&[])], |x| {
            let keys = x[0].reshape(&[64]);
            let threefry = Threefry { dims: vec![5], strides: vec![], num_words: 1 };
            x[0].tracer().threefry(threefry, [keys, keys], [x[1], x[1]])[0]
        }),
        case("fusion_barrier", any, Bits, &[MATRIX], |x| x[0].fusion_barrier()),
        case("optimization_barrier", any, Bits, &[MATRIX, SMALL], |x| {
            x[0].tracer().optimization_barrier(x)[1]
        }),
        case("stop_gradient", any, Bits, &[MATRIX], |x| x[0].stop_gradient()),
    ]
}

fn contracting_cases() -> Vec<Case> {
    let cube = [small(&[3, 4, 5])];
    let corners = [Input { dims: &[8, 8], values: Values::Corners }];
    vec![
        // Not `reduce_sum`, which accumulates narrow floats in f32.
        case("reduce add", numeric, ulps_of_one(12.0), &cube, |x| {
            x[0].reduce(Reduction::Sum, &[0, 2])
        }),
        case("reduce add of all", numeric, ulps_of_one(30.0), &cube, |x| x[0].sum()),
        case("reduce add of nothing", numeric, Exact, &[small(&[0, 3])], |x| x[0].reduce_sum(&[0])),
        case("reduce maximum", numeric, Exact, &corners, |x| x[0].reduce_max(&[1])),
        case("reduce minimum", numeric, Exact, &corners, |x| x[0].reduce_min(&[0])),
        case("reduce maximum of nothing", numeric, Exact, &[small(&[3, 0])], |x| {
            x[0].reduce_max(&[1])
        }),
        case("reduce minimum of nothing", numeric, Exact, &[small(&[3, 0])], |x| {
            x[0].reduce_min(&[1])
        }),
        case("reduce and", only_pred, Bits, &[small(&[3, 2])], |x| {
            x[0].reduce(Reduction::And, &[1])
        }),
        case("reduce or", only_pred, Bits, &[small(&[3, 2])], |x| x[0].reduce(Reduction::Or, &[1])),
        case("dot_general", numeric, ulps_of_one(16.0), &[small(&[3, 4]), small(&[4, 5])], |x| {
            x[0].dot(x[1])
        }),
        case(
            "dot_general x W^T",
            numeric,
            ulps_of_one(16.0),
            &[small(&[3, 4]), small(&[5, 4])],
            |x| x[0].dot_general(x[1], DotDims::contract(&[1], &[1])),
        ),
        case("dot_general of vectors", numeric, ulps_of_one(16.0), &[small(&[4]); 2], |x| {
            x[0].dot(x[1])
        }),
        case(
            "dot_general of a batch, crossed",
            numeric,
            ulps_of_one(32.0),
            &[small(&[3, 2, 4, 2]), small(&[2, 4, 2, 3])],
            |x| x[0].dot_general(x[1], DotDims::contract(&[2, 0], &[1, 3]).batch(&[3], &[2])),
        ),
        case("reverse", any, Bits, &[small(&[2, 3, 4])], |x| x[0].reverse(&[0, 2])),
        case("convolution", numeric, ulps_of_one(64.0), &[IMAGE, small(&[4, 2, 3, 2])], |x| {
            x[0].convolution(x[1], Convolution::new(2).stride(2).padding(1))
        }),
        case(
            "convolution with dilations and uneven padding",
            numeric,
            ulps_of_one(64.0),
            &[IMAGE, small(&[4, 2, 3, 2])],
            |x| {
                let mut uneven = Convolution::new(2).stride(2);
                uneven.window[0].base_dilation = 3;
                (uneven.window[1].window_dilation, uneven.window[1].low) = (2, 3);
                uneven.window[1].high = -1;
                x[0].convolution(x[1], uneven)
            },
        ),
        case(
            "convolution in groups, and its gradients",
            |dtype| matches!(dtype, DType::F32 | DType::F64),
            ulps_of_one(256.0),
            &[IMAGE, small(&[4, 1, 3, 2])],
            |x| {
                let y = x[0].convolution(x[1], Convolution::new(2).stride(2).padding(1).groups(2));
                let gradients = hlo::grad((y * y).sum(), x);
                gradients[0].reshape(&[80]).concatenate(&[gradients[1].reshape(&[24])], 0)
            },
        ),
        case(
            "convolution of one dim, and its gradients",
            |dtype| matches!(dtype, DType::F32 | DType::F64),
            ulps_of_one(256.0),
            &[small(&[2, 3, 8]), small(&[4, 3, 3])],
            |x| {
                let y = x[0].convolution(x[1], Convolution::new(1).stride(2).padding(1));
                let gradients = hlo::grad((y * y).sum(), x);
                gradients[0].reshape(&[48]).concatenate(&[gradients[1].reshape(&[36])], 0)
            },
        ),
        case("reduce_window add", numeric, ulps_of_one(16.0), &[IMAGE], |x| {
            x[0].reduce_window(Reduction::Sum, Window::nchw(3, 2, 1))
        }),
        case("reduce_window maximum", numeric, Exact, &[IMAGE], |x| {
            x[0].reduce_window(Reduction::Max, Window::nchw(3, 2, 1))
        }),
        case("reduce_window minimum, dilated", numeric, Exact, &[IMAGE], |x| {
            let mut window = Window::nchw(2, 1, 0);
            (window.dims[2].window_dilation, window.dims[3].high) = (2, -1);
            x[0].reduce_window(Reduction::Min, window)
        }),
        case("reduce_window of one element, cut", numeric, Exact, &[IMAGE], |x| {
            let mut window = Window::nchw(1, 2, 0);
            (window.dims[0].low, window.dims[2].high, window.dims[3].low) = (-1, -1, -2);
            x[0].reduce_window(Reduction::Max, window)
        }),
        case("gradients of cut windows", float, ulps_of_one(16.0), &[IMAGE], |x| {
            let mut window = Window::nchw(2, 1, 0);
            (window.dims[2].low, window.dims[3].high) = (1, -2);
            let [sum, max] = [Reduction::Sum, Reduction::Max]
                .map(|reduction| x[0].reduce_window(reduction, window.clone()).sum());
            grad(sum + max, x)[0]
        }),
        case("reduce_window and", only_pred, Bits, &[IMAGE], |x| {
            x[0].reduce_window(Reduction::And, Window::nchw(2, 2, 0))
        }),
        case("select_and_scatter", float, ulps_of_one(16.0), &[IMAGE, small(&[2, 2, 3, 2])], |x| {
            x[0].select_and_scatter(x[1], Window::nchw(3, 2, 1))
        }),
        case("select_and_scatter among equals", float, ulps_of_one(16.0), &[IMAGE], |x| {
            let window = Window::nchw(3, 2, 1);
            let source = x[0].reduce_window(Reduction::Sum, window.clone());
            x[0].greater(0.0).convert(x[0].dtype()).select_and_scatter(source, window)
        }),
        case("while", numeric, Exact, &[MATRIX], |x| {
            x[0].tracer().fori_loop(3, &[x[0]], |_, x| vec![x[0] + x[0]])[0]
        }),
        case("scan", numeric, ulps_of_one(4.0), &[MATRIX, small(&[3, 4, 8])], |x| {
            let (last, ys) = x[0]
                .tracer()
                .scan(3, &[], &x[..1], &x[1..], |_, s, x| (vec![s[0] + x[0]], vec![s[0]]));
            last[0].reshape(&[1, 4, 8]).concatenate(&ys, 0)
        }),
        case(
            "gradients of a scan",
            |dtype| dtype.size_bytes() >= 4 && float(dtype),
            ulps_of_one(64.0),
            &[small(&[8]), small(&[3, 8])],
            |x| {
                let (last, _) = x[0].tracer().scan(3, &x[..1], &x[..1], &x[1..], |c, s, x| {
                    (vec![(s[0] * x[0] + c[0]).tanh()], vec![])
                });
                grad(last[0].sum(), x)[1]
            },
        ),
        case("case", numeric, Exact, &[MATRIX], |x| {
            let t = x[0].tracer();
            let take = |index: f64| {
                let branches: [Branch<'_>; 2] = [&|x| vec![x[0] + x[0]], &|x| x.to_vec()];
                t.case(t.scalar(DType::I32, index), x, &branches)[0]
            };
            take(0.0).concatenate(&[1.0, 2.0, -1.0].map(take), 0)
        }),
        case("case that each replica decides, and its gradient", float, Exact, &[MATRIX], |x| {
            let branches: [Branch<'_>; 2] = [&|x| vec![x[0] * x[0]], &|x| vec![x[0].abs()]];
            let index = x[0].tracer().replica_id(Axis::Data);
            let y = x[0].tracer().case(index, x, &branches)[0];
            y + grad(y.sum(), x)[0]
        }),
        case("custom_vjp", float, Exact, &[MATRIX], |x| {
            x[0].tracer().custom_vjp(x, |x| vec![x[0] + x[0]], |_, _, ct| ct.to_vec())[0]
        }),
        case("remat", numeric, Exact, &[MATRIX], |x| {
            x[0].tracer().remat(x, |x| vec![x[0] + x[0]])[0]
        }),
        case("while that each replica leaves by itself", numeric, Exact, &[MATRIX], |x| {
            let t = x[0].tracer();
            let rounds = t.replica_id(Axis::Data);
            let start = [x[0], t.scalar(DType::U32, 0.0).vary(x[0].varying()), rounds];
            t.while_loop(&start, |x| x[1].less_equal(x[2]), |x| vec![x[0] + x[0], x[1] + 1.0, x[2]])
                [0]
        }),
    ]
}

fn collective_cases() -> Vec<Case> {
    let both = AxisSet::of(&[Axis::Data, Axis::Tensor]);
    vec![
        case(
            "replica_id",
            |dtype| dtype == DType::U32,
            Bits,
            &[MATRIX],
            |x| x[0] + x[0].tracer().replica_id(Axis::Data).vary(x[0].varying()),
        ),
        case(
            "replica_id over both axes",
            |dtype| dtype == DType::U32,
            Bits,
            &[MATRIX],
            move |x| x[0] + x[0].tracer().replica_id(both),
        ),
        case(
            "replica_id within",
            |dtype| dtype == DType::U32,
            Bits,
            &[MATRIX],
            |x| x[0] + x[0].tracer().replica_id(Axis::Tensor),
        ),
        // Without NaN: the maximum of a NaN across replicas depends on the backend.
        case("all_reduce maximum", numeric, Exact, &[MATRIX], |x| {
            x[0].all_reduce(Reduction::Max, Axis::Data)
        }),
        case("all_reduce minimum", numeric, Exact, &[MATRIX], |x| {
            x[0].all_reduce(Reduction::Min, Axis::Tensor)
        }),
        case("all_reduce and", only_pred, Bits, &[MATRIX], |x| {
            x[0].all_reduce(Reduction::And, Axis::Data)
        }),
        case("all_reduce or", only_pred, Bits, &[MATRIX], |x| {
            x[0].all_reduce(Reduction::Or, Axis::Data)
        }),
        case("all_reduce, then vary", numeric, Exact, &[MATRIX], |x| {
            x[0].all_reduce(Reduction::Max, Axis::Data).vary(Axis::Data).maximum(x[0])
        }),
        case("all_reduce in contiguous subgroups", not_bf16, Exact, &[MATRIX], |x| {
            let size = x[0].tracer().mesh().size(Axis::Data).min(2);
            x[0].all_reduce(Reduction::Sum, Groups::contiguous(Axis::Data, size))
        }),
        case("all_reduce in strided subgroups", not_bf16, Exact, &[MATRIX], |x| {
            let stride = x[0].tracer().mesh().size(Axis::Data).min(2);
            x[0].all_reduce(Reduction::Sum, Groups::strided(Axis::Data, stride))
        }),
        case("all_gather over both axes", any, Bits, &[MATRIX], move |x| x[0].all_gather(0, both)),
        case("all_gather", any, Bits, &[MATRIX], |x| x[0].all_gather(1, Axis::Data)),
        case("all_to_all", any, Bits, &[MATRIX], |x| x[0].all_to_all(1, 0, Axis::Data)),
        case("all_to_all along one dim", any, Bits, &[MATRIX], |x| {
            x[0].all_to_all(1, 1, Axis::Data)
        }),
        case("collective_permute", any, Bits, &[MATRIX], |x| {
            let size = x[0].tracer().mesh().size(Axis::Data);
            let ring: Vec<_> = (0..size).map(|i| (i, (i + 1) % size)).collect();
            x[0].collective_permute(&ring, Axis::Data)
        }),
        case("collective_permute to one", any, Bits, &[MATRIX], |x| {
            let last = x[0].tracer().mesh().size(Axis::Data) - 1;
            x[0].collective_permute(&[(last, 0)], Axis::Data)
        }),
    ]
}

/// Replicas are added in order and rounded after each addition, so bits are equal, except for bf16,
/// which XLA adds in f32.
fn collective_sums() -> Vec<Case> {
    let both = AxisSet::of(&[Axis::Data, Axis::Tensor]);
    let in_f32 = |dtype| dtype == DType::Bf16;
    let as_it_is = |dtype| numeric(dtype) && dtype != DType::Bf16;
    let sums = |takes: fn(DType) -> bool, agreement| {
        [
            case("all_reduce add", takes, agreement, &[MATRIX], |x| {
                x[0].all_reduce(Reduction::Sum, Axis::Data)
            }),
            case("all_reduce add over both axes", takes, agreement, &[MATRIX], move |x| {
                x[0].all_reduce(Reduction::Sum, both)
            }),
            case("all_reduce add of two", takes, agreement, &[MATRIX, small(&[3])], |x| {
                x[0].tracer().all_reduce(x, Reduction::Sum, Axis::Data)[1]
            }),
            case("reduce_scatter", takes, agreement, &[MATRIX], |x| {
                x[0].reduce_scatter(1, Axis::Data)
            }),
        ]
    };
    sums(as_it_is, Exact).into_iter().chain(sums(in_f32, ulps_of_one(4.0))).collect()
}

/// Most ops do not depend on replicas, so on several replicas they run only in f32 and i32.
fn cases_on(mesh: Mesh, dtype: DType) -> Vec<Case> {
    let whole = mesh.num_replicas() == 1
        || mesh.size(Axis::Tensor) == 1 && [DType::F32, DType::I32].contains(&dtype);
    let mut cases = if whole {
        cases()
    } else {
        collective_cases().into_iter().chain(collective_sums()).collect()
    };
    cases.retain(|case| (case.takes)(dtype));
    cases
}

fn cases() -> Vec<Case> {
    [
        unary_cases(),
        binary_cases(),
        comparison_cases(),
        conversion_cases(),
        moving_cases(),
        contracting_cases(),
        collective_cases(),
        collective_sums(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn meshes() -> [Mesh; 3] {
    [Mesh::SINGLE, Mesh::data(4), Mesh::new(&[(Axis::Data, 2), (Axis::Tensor, 2)])]
}

fn agrees(dtype: DType) {
    let wrong: Vec<_> = meshes().into_iter().flat_map(|mesh| check(dtype, mesh)).collect();
    assert!(wrong.is_empty(), "{} values differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// One test per dtype, so that they run in parallel.
macro_rules! every_op_means_the_same_to_the_interpreter_and_to_xla {
    ($($test:ident: $dtype:ident,)*) => {
        $(#[test] fn $test() { agrees(DType::$dtype); })*
        const TESTED: &[DType] = &[$(DType::$dtype,)*];
    };
}
every_op_means_the_same_to_the_interpreter_and_to_xla! {
    f64: F64, f32: F32, bf16: Bf16, f16: F16,
    i64: I64, i32: I32, i8: I8, u64: U64, u32: U32, u8: U8,
    pred: Pred,
}

#[test]
fn every_dtype_is_tested() {
    assert_eq!(TESTED, DType::ALL);
}

#[test]
fn the_table_covers_every_op_with_every_dtype_that_it_takes() {
    let mut covered = BTreeSet::new();
    for dtype in DType::ALL {
        let (graph, _) = program(dtype, Mesh::SINGLE);
        for node in graph.nodes() {
            // A case's first operand is its index.
            let first = match node.op {
                Op::Case { .. } => Some(node.result()),
                _ => node.operands.first().copied(),
            };
            let of = first.map_or(dtype, |value| graph.ty(value).dtype);
            covered.insert((name(&node.op), of));
        }
    }
    let takes = |op: Op, num_operands: usize, dtype: DType| {
        let (here, mut graph) = (Location::caller(), Graph::new(Mesh::SINGLE));
        let x = graph.input("x", TensorType::new(dtype, &[]), here);
        graph.push(op, &vec![x; num_operands], here).is_ok()
    };
    let mut needed = 0;
    for dtype in DType::ALL {
        let unary = Unary::ALL.iter().map(|op| (Op::Unary(*op), 1));
        let binary = Binary::ALL.iter().map(|op| (Op::Binary(*op), 2));
        let compare = Comparison::ALL.iter().map(|op| (Op::Compare(*op), 2));
        let convert = DType::ALL.iter().map(|to| (Op::Convert(*to), 1));
        let bitcast = DType::ALL.iter().map(|to| (Op::BitcastConvert(*to), 1));
        let reduce = Reduction::ALL
            .iter()
            .map(|reduction| (Op::Reduce { reduction: *reduction, dims: vec![] }, 1));
        let ops = unary.chain(binary).chain(compare).chain(convert).chain(bitcast).chain(reduce);
        for (op, num_operands) in ops.filter(|(op, n)| takes(op.clone(), *n, dtype)) {
            // A conversion to the same dtype adds no op.
            if op != Op::Convert(dtype) {
                assert!(covered.contains(&(name(&op), dtype)), "no {} of {dtype}", name(&op));
                needed += num_operands.min(1);
            }
        }
        let everywhere = [
            "select",
            "broadcast_in_dim",
            "reshape",
            "transpose",
            "slice",
            "dynamic_slice",
            "dynamic_update_slice",
            "pad",
            "reverse",
            "concatenate",
            "gather",
            "fusion_barrier",
            "optimization_barrier",
            "all_gather",
            "all_to_all",
            "collective_permute",
            "constant",
        ];
        let of_numbers = [
            "clamp",
            "iota",
            "dot_general",
            "convolution",
            "reduce_window",
            "while",
            "scatter",
            "top_k",
            "scan",
            "case",
            "remat",
            "reduce_scatter",
        ];
        let of_numbers = of_numbers.iter().filter(|_| numeric(dtype));
        let of_u32: &[&str] = if u32s(dtype) { &["threefry"] } else { &[] };
        for op in everywhere.iter().chain(of_numbers).chain(of_u32) {
            let made_of = match *op {
                "select" => DType::Pred,
                // Narrow floats are summed in f32.
                "scatter" => dtype.accumulation(),
                _ => dtype,
            };
            let is_covered =
                covered.iter().any(|(name, of)| name == op && [dtype, made_of].contains(of));
            assert!(is_covered, "no {op} of {dtype}");
        }
    }
    assert!(needed > 300, "only {needed} pairs of an op and a dtype were looked for");
}

/// The name of an op, with its variant as distinguished for coverage.
fn name(op: &Op) -> String {
    match op {
        Op::Compare(direction) => format!("compare {}", direction.name()),
        Op::Convert(to) | Op::BitcastConvert(to) => format!("{} to {to}", op.name()),
        Op::Reduce { reduction, .. } => format!("reduce {}", reduction.name()),
        _ => op.name().to_owned(),
    }
}

fn start<'g>(x: Tensor<'g>, indices: [f64; 2]) -> [Tensor<'g>; 2] {
    indices.map(|index| x.tracer().scalar(DType::I32, index))
}

fn indices<'g>(x: Tensor<'g>, dims: &[usize], values: &[i32]) -> Tensor<'g> {
    x.tracer().constant(Literal::from_slice(dims, values))
}

type Build = Rc<dyn for<'g> Fn(&[Tensor<'g>]) -> Tensor<'g>>;

struct Case {
    name: String,
    takes: Box<dyn Fn(DType) -> bool>,
    agreement: Agreement,
    inputs: Vec<Input>,
    build: Build,
}

fn case(
    name: &str,
    takes: impl Fn(DType) -> bool + 'static,
    agreement: Agreement,
    inputs: &[Input],
    build: impl for<'g> Fn(&[Tensor<'g>]) -> Tensor<'g> + 'static,
) -> Case {
    Case {
        name: name.to_owned(),
        takes: Box::new(takes),
        agreement,
        inputs: inputs.to_vec(),
        build: Rc::new(build),
    }
}

#[derive(Clone, Copy)]
struct Input {
    dims: &'static [usize],
    values: Values,
}

#[derive(Clone, Copy)]
enum Values {
    /// Uniform; integers and `pred` are rounded and clamped to their range.
    Between(f64, f64),
    /// Special values at which ops change their behavior, and some ordinary ones.
    Corners,
}

impl Input {
    /// The values of input number `position` of a case on one replica. Corners are ordered so that
    /// two operands have each pair: the first operand's value changes with every element, the
    /// second's with every eighth, and a third's is shifted against both.
    fn values(&self, dtype: DType, position: usize, replica: usize) -> Literal {
        let num_elements: usize = self.dims.iter().product();
        let stream = (replica * 10 + position) as u32;
        let values: Vec<f64> = match self.values {
            Values::Between(low, high) => support::uniform(stream, num_elements, low, high),
            Values::Corners => {
                let corners = corners(dtype);
                let pick = |i: usize| match position {
                    0 => i % 8,
                    1 => i / 8,
                    _ => (i + i / 8 * 3) % 8,
                };
                (0..num_elements).map(|i| corners[(pick(i) + replica) % 8]).collect()
            }
        };
        match dtype {
            float if float.is_float() => Literal::from_f64(dtype, self.dims, &values),
            DType::Pred => {
                let holds: Vec<_> = values.iter().map(|value| *value > 0.0).collect();
                Literal::pred(self.dims, &holds)
            }
            _ => Literal::from_f64(dtype, self.dims, &values),
        }
    }
}

/// Eight numbers. For integers, both ends of the range and values around zero. (The greatest i64
/// and u64 are not representable in f64; the conversion clamps to them.) Subnormal floats are not
/// included, because XLA's CPU backend flushes them to zero.
fn corners(dtype: DType) -> [f64; 8] {
    match dtype {
        DType::I64 => [0.0, 1.0, -1.0, 7.0, -13.0, 1e12, -9.3e18, 9.3e18],
        DType::I32 => [0.0, 1.0, -1.0, 7.0, -13.0, 70_000.0, -2_147_483_648.0, 2_147_483_647.0],
        DType::I8 => [0.0, 1.0, -1.0, 7.0, -13.0, 100.0, -128.0, 127.0],
        DType::U64 => [0.0, 1.0, 2.0, 7.0, 13.0, 1e12, 9.3e18, 1.9e19],
        DType::U32 => [0.0, 1.0, 2.0, 7.0, 13.0, 70_000.0, 2_147_483_648.0, 4_294_967_295.0],
        DType::U8 => [0.0, 1.0, 2.0, 7.0, 13.0, 100.0, 128.0, 255.0],
        _ => [0.0, -0.0, 1.0, -2.5, 0.7, f64::INFINITY, f64::NEG_INFINITY, f64::NAN],
    }
}

/// All cases for a dtype as one program with one output per case, and the values of its inputs.
fn program(dtype: DType, mesh: Mesh) -> (Graph, Vec<Vec<Literal>>) {
    let mut inputs = vec![];
    let axes = AxisSet::of(&[Axis::Data, Axis::Tensor]);
    let graph = trace(mesh, |t| {
        for case in &cases_on(mesh, dtype) {
            let mut x = vec![];
            for (position, input) in case.inputs.iter().enumerate() {
                let ty = TensorType::new(dtype, input.dims).varying(axes);
                x.push(t.input(format!("{}.{position}", case.name), ty));
                let on_replica = |replica| input.values(dtype, position, replica);
                inputs.push((0..mesh.num_replicas()).map(on_replica).collect());
            }
            t.output_varying(&case.name, (case.build)(&x), axes);
        }
    });
    let graph = graph.unwrap_or_else(|error| panic!("{dtype}: {error}"));
    assert_eq!(verify(&graph), Ok(()));
    (graph, inputs)
}

/// The outputs on which the interpreter and the plugin disagree.
fn check(dtype: DType, mesh: Mesh) -> Vec<String> {
    let (graph, inputs) = program(dtype, mesh);
    let expected = interpret(&graph, &inputs).unwrap();
    let got = support::compile(&graph).and_then(|executable| support::run(&executable, &inputs));
    let got = got.unwrap_or_else(|error| panic!("{dtype}: {error}"));
    let mut wrong = vec![];
    for case in &cases_on(mesh, dtype) {
        let is_output = |output: &hlo::Output| output.name == case.name;
        let index = graph.outputs().iter().position(is_output).unwrap();
        for (replica, (got, expected)) in got[index].iter().zip(&expected[index]).enumerate() {
            if let Some(difference) = disagreement(got, expected, case.agreement) {
                let num_replicas = mesh.num_replicas();
                wrong.push(format!(
                    "{} of {dtype}, replica {replica} of {num_replicas}: {difference}",
                    case.name
                ));
            }
        }
    }
    wrong
}
