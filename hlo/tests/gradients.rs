//! Every VJP rule against central finite differences, in f64, through the interpreter.
//!
//! One table: for each case `f`, random inputs `x` and a random cotangent `c` of the result, every
//! element of `vjp(c)` is compared with the slope of `sum(c * f(x))` in that element of `x`. On
//! many replicas the sum is over the replicas over which the result varies, an input that varies is
//! moved on one replica alone, and one that does not is moved on all at once: the convention of
//! `hlo::grad`. The expected numbers are the interpreter's values; the rules are not repeated here.

mod values;

use std::collections::BTreeSet;
use std::panic::Location;

use hlo::{
    Axis, AxisSet, Binary, Branch, Convolution, ConvolutionDims, CustomCall, DType, DotDims, Graph,
    Groups, Literal, Mesh, Op, Reduction, Tensor, TensorType, Tracer, Unary, Window, WindowDim,
    grad, interpret, trace, verify, vjp,
};

const STEP: f64 = 1e-5;
const TOLERANCE: f64 = 1e-8;

/// One replica.
fn single(name: &'static str, inputs: &[Input], build: Build) -> Case {
    Case { name, mesh: Mesh::SINGLE, inputs: inputs.to_vec(), build }
}

/// Two replicas along `data`, two along `tensor`.
fn four(name: &'static str, inputs: &[Input], build: Build) -> Case {
    let mesh = Mesh::new(&[(Axis::Data, 2), (Axis::Tensor, 2)]);
    Case { name, mesh, inputs: inputs.to_vec(), build }
}

fn unary_cases() -> Vec<Case> {
    let any = [within(&[2, 3], -1.5, 1.5)];
    let positive = [within(&[2, 3], 0.3, 2.0)];
    // Away from zeros and jumps.
    let away = [signed(&[2, 3], 0.1, 0.4)];
    vec![
        single("abs", &away, |x| x[0].abs()),
        single("ceil", &away, |x| x[0].ceil()),
        single("cosine", &any, |x| x[0].cosine()),
        single("erf", &any, |x| x[0].erf()),
        single("exponential", &any, |x| x[0].exponential()),
        single("exponential_minus_one", &any, |x| x[0].exponential_minus_one()),
        single("floor", &away, |x| x[0].floor()),
        single("log", &positive, |x| x[0].log()),
        single("log_plus_one", &positive, |x| x[0].log_plus_one()),
        single("logistic", &any, |x| x[0].logistic()),
        single("negate", &any, |x| -x[0]),
        single("round_nearest_even", &away, |x| x[0].round_nearest_even()),
        single("rsqrt", &positive, |x| x[0].rsqrt()),
        single("sign", &away, |x| x[0].sign()),
        single("sine", &any, |x| x[0].sine()),
        single("sqrt", &positive, |x| x[0].sqrt()),
        single("tanh", &any, |x| x[0].tanh()),
    ]
}

fn binary_cases() -> Vec<Case> {
    let any = [within(&[2, 3], -1.5, 1.5), within(&[2, 3], -1.5, 1.5)];
    let divisor = [within(&[2, 3], -1.5, 1.5), signed(&[2, 3], 0.5, 2.0)];
    // Away from multiples of the divisor, where the remainder jumps.
    let remainder = [signed(&[2, 3], 2.2, 2.8), signed(&[2, 3], 0.9, 1.05)];
    vec![
        single("add", &any, |x| x[0] + x[1]),
        single("divide", &divisor, |x| x[0] / x[1]),
        single("maximum", &any, |x| x[0].maximum(x[1])),
        single("minimum", &any, |x| x[0].minimum(x[1])),
        single("multiply", &any, |x| x[0] * x[1]),
        single("power", &[within(&[2, 3], 0.3, 2.0), within(&[2, 3], -2.0, 2.0)], |x| {
            x[0].power(x[1])
        }),
        single("power of a negative base", &[within(&[4], -2.0, -0.5)], |x| x[0].power(3.0)),
        single("remainder", &remainder, |x| x[0].remainder(x[1])),
        single("subtract", &any, |x| x[0] - x[1]),
        single("the same operand twice", &any, |x| x[0] * x[0]),
        single("a number on either side", &any, |x| (2.0 - x[0]) / 3.0 + 1.0 / (x[1] + 4.0)),
        single(
            "a scalar with a matrix",
            &[within(&[2, 3], -1.0, 1.0), within(&[], 1.0, 2.0)],
            |x| x[0] / x[1] + x[1] * x[0],
        ),
    ]
}

fn choosing_cases() -> Vec<Case> {
    let any = [within(&[2, 3], -1.5, 1.5), within(&[2, 3], -1.5, 1.5)];
    let bounds = [within(&[], -0.6, -0.4), within(&[4, 3], -1.5, 1.5), within(&[], 0.4, 0.6)];
    let wide = [within(&[2, 3], -0.6, -0.4), within(&[2, 3], -1.5, 1.5), within(&[2, 3], 0.4, 0.6)];
    vec![
        single("select by a comparison", &any, |x| x[0].less(x[1]).select(x[0] * x[1], x[1])),
        single("select by a constant", &any, |x| {
            let pred = Literal::pred(&[2, 3], &[true, false, false, true, true, false]);
            x[0].tracer().constant(pred).select(x[0], x[1])
        }),
        single("select by a scalar", &any, |x| {
            x[0].tracer().constant(Literal::pred(&[], &[true])).select(x[0], x[1])
        }),
        single("clamp between numbers", &[within(&[4, 3], -1.5, 1.5)], |x| x[0].clamp(-0.5, 0.5)),
        single("clamp between scalars", &bounds, |x| x[1].clamp(x[0], x[2])),
        single("clamp between tensors", &wide, |x| x[1].clamp(x[0], x[2])),
        single("take_along_last_dim", &[within(&[3, 4], -1.0, 1.0)], |x| {
            // The last index is out of range and gives 0.
            x[0].take_along_last_dim(x[0].tracer().constant(Literal::from_slice(&[3], &[2, 0, 4])))
        }),
    ]
}

fn moving_cases() -> Vec<Case> {
    let matrix = [within(&[3, 4], -1.0, 1.0)];
    vec![
        single("broadcast a scalar", &[within(&[], -1.0, 1.0)], |x| {
            x[0].broadcast_in_dim(&[2, 3], &[])
        }),
        single("broadcast into the middle", &[within(&[3], -1.0, 1.0)], |x| {
            x[0].broadcast_in_dim(&[2, 3, 2], &[1])
        }),
        single("broadcast that stretches", &[within(&[1, 3, 1], -1.0, 1.0)], |x| {
            x[0].broadcast_in_dim(&[2, 4, 3, 1], &[0, 2, 3])
        }),
        single("reshape", &matrix, |x| x[0].reshape(&[2, 6])),
        single("transpose", &[within(&[2, 3, 4], -1.0, 1.0)], |x| x[0].transpose(&[2, 0, 1])),
        single("slice", &matrix, |x| x[0].slice(&[1, 1], &[3, 3], &[1, 1])),
        single("slice with strides", &[within(&[7, 5], -1.0, 1.0)], |x| {
            x[0].slice(&[1, 0], &[7, 4], &[3, 2])
        }),
        single("slice of nothing", &matrix, |x| x[0].slice(&[2, 1], &[2, 3], &[1, 1])),
        single("dynamic_slice", &matrix, |x| {
            x[0].dynamic_slice(&start(x[0].tracer(), [1.0, 2.0]), &[2, 2])
        }),
        single("dynamic_slice beyond the edge", &matrix, |x| {
            x[0].dynamic_slice(&start(x[0].tracer(), [9.0, -3.0]), &[2, 2])
        }),
        single("index_leading", &matrix, |x| {
            x[0].index_leading(x[0].tracer().scalar(DType::I32, 1.0))
        }),
        single("dynamic_update_slice", &[matrix[0], within(&[2, 2], -1.0, 1.0)], |x| {
            x[0].dynamic_update_slice(x[1], &start(x[0].tracer(), [1.0, 1.0]))
        }),
        single(
            "dynamic_update_slice beyond the edge",
            &[matrix[0], within(&[2, 2], -1.0, 1.0)],
            |x| x[0].dynamic_update_slice(x[1], &start(x[0].tracer(), [-7.0, 3.0])),
        ),
        single("pad", &[matrix[0], within(&[], -1.0, 1.0)], |x| {
            x[0].pad(x[1], &[1, 0], &[2, 1], &[0, 0])
        }),
        single("pad with negative edges", &[matrix[0], within(&[], -1.0, 1.0)], |x| {
            x[0].pad(x[1], &[-1, 2], &[1, -3], &[0, 0])
        }),
        single("pad between", &[matrix[0], within(&[], -1.0, 1.0)], |x| {
            x[0].pad(x[1], &[0, 1], &[1, 0], &[2, 1])
        }),
        single("pad between with negative edges", &[matrix[0], within(&[], -1.0, 1.0)], |x| {
            x[0].pad(x[1], &[-2, -1], &[-3, 2], &[2, 1])
        }),
        single("concatenate", &[matrix[0], within(&[3, 1], -1.0, 1.0)], |x| {
            x[0].concatenate(&[x[1], x[0]], 1)
        }),
        single("gather", &[within(&[4, 3], -1.0, 1.0)], |x| {
            // One row twice, one not at all, two indices clamped.
            x[0].take(x[0].tracer().constant(Literal::from_slice(&[2, 2], &[1, 1, -3, 9])))
        }),
        single("gather by u8", &[within(&[3], -1.0, 1.0)], |x| {
            x[0].take(x[0].tracer().constant(Literal::from_slice(&[2], &[2u8, 9])))
        }),
        single("gather by i8", &[within(&[200], -1.0, 1.0)], |x| {
            x[0].take(x[0].tracer().constant(Literal::from_slice(&[4], &[127i8, -3, 1, 1])))
        }),
        single("scatter by i8", &[within(&[200], -1.0, 1.0), within(&[3], -1.0, 1.0)], |x| {
            let indices = x[0].tracer().constant(Literal::from_slice(&[3], &[127i8, -3, 1]));
            x[0].scatter_add(indices, x[1], 0).sine()
        }),
        single("gather in a batch", &[within(&[2, 3, 2], -1.0, 1.0)], |x| {
            x[0].gather(x[0].tracer().constant(Literal::from_slice(&[2, 2], &[1, 1, 2, 0])), 1)
        }),
        single("take_along_dim", &[within(&[3, 4], -1.0, 1.0)], |x| {
            let indices = Literal::from_slice(&[2, 4], &[0, 2, 1, 1, 0, 0, 1, 2]);
            x[0].take_along_dim(x[0].tracer().constant(indices), 0)
        }),
        single("scatter", &[within(&[3, 2], -1.0, 1.0), within(&[4, 2], -1.0, 1.0)], |x| {
            let indices = x[0].tracer().constant(Literal::from_slice(&[4], &[1, 1, -1, 3]));
            x[0].scatter_add(indices, x[1], 0)
        }),
        single(
            "scatter in a batch",
            &[within(&[2, 3], -1.0, 1.0), within(&[2, 2], -1.0, 1.0)],
            |x| {
                let indices =
                    x[0].tracer().constant(Literal::from_slice(&[2, 2], &[1u32, 1, 7, 0]));
                x[0].scatter_add(indices, x[1], 1)
            },
        ),
        single("top_k", &[within(&[2, 5], -1.0, 1.0)], |x| {
            let (values, indices) = x[0].top_k(3);
            values * values + x[0].gather(indices, 1)
        }),
        single("scan", &[within(&[2], -1.0, 1.0), within(&[3, 2], -1.0, 1.0)], |x| {
            let (carried, ys) = x[0].tracer().scan(3, &[x[0]], &[x[0]], &[x[1]], |c, s, x| {
                let next = (s[0] * x[0] + c[0]).sine();
                (vec![next], vec![next * next])
            });
            carried[0] + ys[0].reduce_sum(&[0])
        }),
        single("case", &[within(&[2], -1.0, 1.0), within(&[2], -1.0, 1.0)], |x| {
            let t = x[0].tracer();
            let take = |index: f64| {
                let branches: [Branch<'_>; 3] = [
                    &|x| vec![(x[0] * x[1]).sine(), x[0] * x[0]],
                    // One result is a constant, and one operand is unused.
                    &|x| vec![x[1].exponential(), x[0].full_like(3.0)],
                    &|x| vec![x[1], x[0].tanh()],
                ];
                let y = t.case(t.scalar(DType::I32, index), x, &branches);
                y[0] * y[1]
            };
            take(0.0) * take(1.0) + take(2.0) * take(-4.0)
        }),
        single("remat", &[within(&[2], -1.0, 1.0), within(&[2], -1.0, 1.0)], |x| {
            let y = x[0].tracer().remat(x, |x| vec![(x[0] * x[1]).sine(), x[1].tanh()]);
            y[0] * y[1] * y[0]
        }),
        single("custom_vjp", &[within(&[2, 3], -1.0, 1.0), within(&[3], -1.0, 1.0)], |x| {
            let y = x[0].tracer().custom_vjp(
                x,
                |x| vec![x[0].tanh(), x[1] * x[1]],
                |x, y, ct| vec![ct[0] * (-(y[0] * y[0]) + 1.0), ct[1] * x[1] * 2.0],
            );
            y[0] * y[1].broadcast_like(y[0], &[1])
        }),
        single("fusion_barrier", &[matrix[0]], |x| (x[0] * x[0]).fusion_barrier().sine()),
        single("optimization_barrier", &[matrix[0], within(&[3, 4], -1.0, 1.0)], |x| {
            let barred = x[0].tracer().optimization_barrier(&[x[0] * x[1], x[1]]);
            barred[0] * x[0]
        }),
    ]
}

fn contracting_cases() -> Vec<Case> {
    let cube = [within(&[2, 3, 4], -1.0, 1.0)];
    vec![
        single("reduce_sum", &cube, |x| x[0].reduce_sum(&[0, 2])),
        single("sum", &cube, |x| x[0].sum()),
        single("reduce_sum over no dim", &cube, |x| x[0].reduce_sum(&[])),
        single("reduce_max", &cube, |x| x[0].reduce_max(&[0, 2])),
        single("reduce_min", &cube, |x| x[0].reduce_min(&[1])),
        single("log_softmax", &[within(&[3, 4], -2.0, 2.0)], |x| x[0].log_softmax()),
        single("dot", &[within(&[2, 3], -1.0, 1.0), within(&[3, 4], -1.0, 1.0)], |x| {
            x[0].dot(x[1])
        }),
        single("dot of vectors", &[within(&[3], -1.0, 1.0), within(&[3], -1.0, 1.0)], |x| {
            x[0].dot(x[1])
        }),
        single(
            "dot_general x W^T",
            &[within(&[2, 3], -1.0, 1.0), within(&[4, 3], -1.0, 1.0)],
            |x| x[0].dot_general(x[1], DotDims::contract(&[1], &[1])),
        ),
        single(
            "dot_general x^T y",
            &[within(&[3, 2], -1.0, 1.0), within(&[3, 4], -1.0, 1.0)],
            |x| x[0].dot_general(x[1], DotDims::contract(&[0], &[0])),
        ),
        single("dot_general outer", &[within(&[2, 3], -1.0, 1.0), within(&[2], -1.0, 1.0)], |x| {
            x[0].dot_general(x[1], DotDims::default())
        }),
        single(
            "dot_general of a batch",
            &[within(&[2, 3, 4], -1.0, 1.0), within(&[2, 4, 3], -1.0, 1.0)],
            |x| x[0].dot_general(x[1], DotDims::contract(&[2], &[1]).batch(&[0], &[0])),
        ),
        single(
            "dot_general with batch dims behind",
            &[within(&[4, 3, 2], -1.0, 1.0), within(&[3, 2, 4], -1.0, 1.0)],
            |x| x[0].dot_general(x[1], DotDims::contract(&[0], &[2]).batch(&[2], &[1])),
        ),
        single(
            "dot_general with two batch dims, crossed",
            &[within(&[2, 3, 2, 4], -1.0, 1.0), within(&[3, 4, 2], -1.0, 1.0)],
            |x| x[0].dot_general(x[1], DotDims::contract(&[3], &[1]).batch(&[1, 0], &[0, 2])),
        ),
        single(
            "dot_general with two contracted dims, crossed",
            &[within(&[3, 2, 4], -1.0, 1.0), within(&[4, 2, 3], -1.0, 1.0)],
            |x| x[0].dot_general(x[1], DotDims::contract(&[2, 0], &[0, 2])),
        ),
        single(
            "dot_general with batch and crossed contracted dims",
            &[within(&[3, 2, 4, 2], -1.0, 1.0), within(&[2, 4, 2, 3], -1.0, 1.0)],
            |x| x[0].dot_general(x[1], DotDims::contract(&[2, 0], &[1, 3]).batch(&[3], &[2])),
        ),
    ]
}

fn convolving_cases() -> Vec<Case> {
    let image = within(&[2, 2, 5, 4], -1.0, 1.0);
    let plain = [image, within(&[3, 2, 3, 2], -1.0, 1.0)];
    vec![
        single("reverse", &[within(&[2, 3, 2], -1.0, 1.0)], |x| x[0].reverse(&[0, 2])),
        single("convolution", &plain, |x| x[0].convolution(x[1], Convolution::new(2))),
        single("convolution with stride and padding", &plain, |x| {
            x[0].convolution(x[1], Convolution::new(2).stride(2).padding(1))
        }),
        single(
            "convolution that leaves elements out",
            &[image, within(&[2, 2, 2, 1], -1.0, 1.0)],
            |x| x[0].convolution(x[1], Convolution::new(2).stride(3)),
        ),
        single("convolution with uneven padding and dilations", &plain, |x| {
            let mut uneven = Convolution::new(2);
            let [rows, columns] = &mut uneven.window[..] else { return x[0] };
            *rows = WindowDim { stride: 2, low: -1, high: 3, base_dilation: 2, window_dilation: 1 };
            *columns =
                WindowDim { stride: 1, low: 2, high: 0, base_dilation: 1, window_dilation: 3 };
            x[0].convolution(x[1], uneven)
        }),
        single(
            "convolution in groups",
            &[within(&[2, 4, 4, 3], -1.0, 1.0), within(&[6, 2, 2, 2], -1.0, 1.0)],
            |x| x[0].convolution(x[1], Convolution::new(2).stride(2).padding(1).groups(2)),
        ),
        single(
            "depthwise convolution",
            &[within(&[1, 3, 4], -1.0, 1.0), within(&[3, 1, 2], -1.0, 1.0)],
            |x| x[0].convolution(x[1], Convolution::new(1).padding(1).groups(3)),
        ),
        single(
            "convolution in groups of the batch",
            &[within(&[4, 2, 4], -1.0, 1.0), within(&[6, 2, 3], -1.0, 1.0)],
            |x| {
                x[0].convolution(
                    x[1],
                    Convolution { batch_group_count: 2, ..Convolution::new(1).padding(1) },
                )
            },
        ),
        single(
            "convolution with dims in another order",
            &[within(&[4, 2, 5, 2], -1.0, 1.0), within(&[2, 3, 1, 4], -1.0, 1.0)],
            |x| {
                // Input [h, n, w, i], kernel [h, w, i / 2, o], result [w, o, h, n].
                let (lhs, rhs) = (vec![1, 3, 0, 2], vec![3, 2, 0, 1]);
                let dims = ConvolutionDims { lhs, rhs, result: vec![3, 1, 2, 0] };
                x[0].convolution(
                    x[1],
                    Convolution { dims, ..Convolution::new(2).padding(1).groups(2) },
                )
            },
        ),
        single("reduce_window add", &[image], |x| {
            x[0].reduce_window(Reduction::Sum, Window::nchw(3, 2, 1))
        }),
        single("reduce_window add with dilations and negative padding", &[image], |x| {
            let mut window = Window::nchw(2, 2, -1);
            (window.dims[2].base_dilation, window.dims[3].window_dilation) = (3, 2);
            window.dims[3].high = 2;
            x[0].reduce_window(Reduction::Sum, window)
        }),
        single("reduce_window maximum", &[image], |x| {
            x[0].reduce_window(Reduction::Max, Window::nchw(3, 2, 1))
        }),
        single("reduce_window minimum", &[image], |x| {
            x[0].reduce_window(Reduction::Min, Window::nchw(2, 1, 0))
        }),
        single("select_and_scatter", &[image, within(&[2, 2, 3, 2], -1.0, 1.0)], |x| {
            x[0].select_and_scatter(x[1], Window::nchw(3, 2, 1))
        }),
        single("gradient of a maximum over windows", &[image], |x| {
            let y = x[0].reduce_window(Reduction::Max, Window::nchw(3, 2, 1));
            grad((y * y).sum(), x)[0]
        }),
        single(
            "gradient of a convolution",
            &[within(&[1, 2, 4], -1.0, 1.0), within(&[2, 2, 3], -1.0, 1.0)],
            |x| {
                let y = x[0].convolution(x[1], Convolution::new(1).stride(2).padding(1));
                grad((y * y).sum(), x)[1]
            },
        ),
    ]
}

fn collective_cases() -> Vec<Case> {
    let data = || over(&[2, 4], &[Axis::Data]);
    let both = || over(&[4, 4], &[Axis::Data, Axis::Tensor]);
    vec![
        four("vary", &[within(&[3], -1.0, 1.0), over(&[3], &[Axis::Data])], |x| {
            x[0].vary(Axis::Data) * x[1]
        }),
        four("vary over two axes", &[within(&[3], -1.0, 1.0)], |x| {
            let axes = AxisSet::of(&[Axis::Data, Axis::Tensor]);
            x[0].vary(axes) * (x[0].tracer().replica_id(axes).convert(DType::F64) + 1.0)
        }),
        four("all_reduce", &[data()], |x| x[0].all_reduce(Reduction::Sum, Axis::Data)),
        four("all_reduce over one of two axes", &[both()], |x| {
            x[0].all_reduce(Reduction::Sum, Axis::Tensor)
        }),
        four("all_reduce over two axes", &[both()], |x| {
            x[0].all_reduce(Reduction::Sum, AxisSet::of(&[Axis::Data, Axis::Tensor]))
        }),
        four("all_reduce of two tensors", &[data(), over(&[3], &[Axis::Data])], |x| {
            let tensors = [x[0] * x[0], x[1]];
            let sums = x[0].tracer().all_reduce(&tensors, Reduction::Sum, Axis::Data);
            sums[0] * sums[1].sum()
        }),
        four("all_reduce in the middle", &[data()], |x| {
            let total = (x[0] * x[0]).all_reduce(Reduction::Sum, Axis::Data);
            x[0] / total.sqrt().vary(Axis::Data)
        }),
        // Each product is the subgroup's own.
        four("all_reduce in contiguous subgroups", &[both()], |x| {
            (x[0] * x[0]).all_reduce(Reduction::Sum, Groups::contiguous(grid(), 2)) * x[0]
        }),
        four("all_reduce of two in strided subgroups", &[both(), both()], |x| {
            let squares = [x[0] * x[0], x[1] * x[1]];
            let groups = Groups::strided(grid(), 2);
            let sums = x[0].tracer().all_reduce(&squares, Reduction::Sum, groups);
            sums[0] * sums[1] * x[0]
        }),
        four("hierarchical all_reduce", &[both()], |x| {
            hierarchical(x[0] * x[0], Groups::contiguous(grid(), 2), Groups::strided(grid(), 2))
                * x[0]
        }),
        four("hierarchical all_reduce, across first", &[both()], |x| {
            hierarchical(x[0] * x[0], Groups::strided(grid(), 2), Groups::contiguous(grid(), 2))
                * x[0]
        }),
        four("case that each replica decides", &[data(), over(&[4], &[Axis::Data])], |x| {
            let t = x[0].tracer();
            let branches: [Branch<'_>; 2] =
                [&|x| vec![x[0].reduce_sum(&[1]).sine()], &|x| vec![x[0].dot(x[1])]];
            t.case(t.replica_id(Axis::Data), x, &branches)[0]
        }),
        four("case with collectives inside", &[data(), within(&[4], -1.0, 1.0)], |x| {
            let t = x[0].tracer();
            let branches: [Branch<'_>; 2] = [&|x| vec![x[1] * x[1]], &|x| {
                vec![x[0].reduce_sum(&[0]).all_reduce(Reduction::Sum, Axis::Data) * x[1]]
            }];
            t.case(t.scalar(DType::U32, 1.0), x, &branches)[0]
        }),
        four("all_gather", &[both()], |x| x[0].all_gather(1, Axis::Tensor)),
        four("reduce_scatter", &[both()], |x| x[0].reduce_scatter(0, Axis::Data)),
        four("all_gather over two axes", &[both()], |x| x[0].all_gather(0, grid())),
        four("reduce_scatter over two axes", &[both()], |x| x[0].reduce_scatter(1, grid())),
        four("all_to_all in strided subgroups", &[both()], |x| {
            x[0].all_to_all(0, 1, Groups::strided(grid(), 2))
        }),
        four("collective_permute over two axes", &[both()], |x| {
            x[0].collective_permute(&[(0, 1), (1, 2), (2, 3)], grid())
        }),
        four("all_to_all", &[both()], |x| x[0].all_to_all(0, 1, Axis::Tensor)),
        four("all_to_all along one dim", &[both()], |x| x[0].all_to_all(1, 1, Axis::Data)),
        four("collective_permute", &[both()], |x| {
            x[0].collective_permute(&[(0, 1), (1, 0)], Axis::Tensor)
        }),
        four("collective_permute to one", &[both()], |x| {
            x[0].collective_permute(&[(0, 1)], Axis::Data)
        }),
    ]
}

fn grid() -> AxisSet {
    AxisSet::of(&[Axis::Data, Axis::Tensor])
}

/// The sum over all replicas, as a reduce_scatter in `inner` groups, an all_reduce over `outer`
/// groups, one replica from each inner group, and an all_gather in the inner groups.
fn hierarchical(x: Tensor<'_>, inner: Groups, outer: Groups) -> Tensor<'_> {
    x.reduce_scatter(0, inner).all_reduce(Reduction::Sum, outer).all_gather(0, inner)
}

/// Gradients are ordinary graphs, so they have gradients.
fn second_order_cases() -> Vec<Case> {
    let any = [within(&[2, 3], -1.0, 1.0), within(&[3, 2], -1.0, 1.0)];
    vec![
        single("gradient of tanh of a dot", &any, |x| grad(x[0].dot(x[1]).tanh().sum(), x)[0]),
        single("gradient of a scan", &any[..1], |x| {
            let (y, _) = x[0].tracer().scan(2, &[], &[x[0].slice_dim(0, 0, 1)], x, |_, s, x| {
                (vec![(s[0] * x[0].reshape(&[1, 3])).sine()], vec![])
            });
            grad(y[0].sum(), x)[0]
        }),
        single("gradient of a remat", &any[..1], |x| {
            grad(x[0].tracer().remat(x, |x| vec![(x[0] * x[0].sine()).sum()])[0], x)[0]
        }),
        single("gradient of log_softmax", &any[..1], |x| {
            grad((x[0].log_softmax() * x[0]).sum(), x)[0]
        }),
        single("gradient of a clamp and a slice", &any[..1], |x| {
            let y = x[0].clamp(-0.5, 0.5).slice(&[0, 0], &[2, 3], &[1, 2]);
            grad((y * y * y).sum(), x)[0]
        }),
        four(
            "gradient of a data-parallel loss",
            &[within(&[3], -1.0, 1.0), over(&[3], &[Axis::Data])],
            |x| grad((x[0].vary(Axis::Data) * x[1]).sine().sum(), x)[0],
        ),
    ]
}

fn cases() -> Vec<Case> {
    [
        unary_cases(),
        binary_cases(),
        choosing_cases(),
        moving_cases(),
        contracting_cases(),
        convolving_cases(),
        collective_cases(),
        second_order_cases(),
    ]
    .concat()
}

#[test]
fn every_gradient_is_the_slope() {
    for case in cases() {
        case.check();
    }
}

/// Every op with a float operand and a float result needs a case.
#[test]
fn the_table_covers_every_op() {
    let covered: BTreeSet<&str> = cases()
        .iter()
        .flat_map(|case| {
            let graph = case.forward();
            graph.nodes().iter().map(|node| node.op.name()).collect::<Vec<_>>()
        })
        .collect();
    let is_float = |op: Op, num_operands: usize| {
        let (here, mut graph) = (Location::caller(), Graph::new(Mesh::SINGLE));
        let x = graph.input("x", TensorType::new(DType::F64, &[]), here);
        graph.push(op, &vec![x; num_operands], here).is_ok_and(|y| graph.ty(y).dtype.is_float())
    };
    let unary = Unary::ALL.iter().filter(|op| is_float(Op::Unary(**op), 1)).map(|op| op.name());
    let binary = Binary::ALL.iter().filter(|op| is_float(Op::Binary(**op), 2)).map(|op| op.name());
    let others = [
        "select",
        "clamp",
        "broadcast_in_dim",
        "reshape",
        "transpose",
        "slice",
        "dynamic_slice",
        "dynamic_update_slice",
        "pad",
        "concatenate",
        "reduce",
        "dot_general",
        "convolution",
        "reverse",
        "reduce_window",
        "select_and_scatter",
        "gather",
        "scatter",
        "top_k",
        "scan",
        "case",
        "remat",
        "custom_vjp",
        "fusion_barrier",
        "optimization_barrier",
        "vary",
        "stop_gradient",
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "collective_permute",
    ];
    let needed: Vec<_> = unary.chain(binary).chain(others).collect();
    assert!(needed.len() > 40, "only {} ops have float operands and results", needed.len());
    for op in needed {
        assert!(covered.contains(op), "no case for `{op}`");
    }
}

#[test]
fn gradients_through_a_change_of_dtype_come_back_in_the_dtype_of_the_operand() {
    let graph = trace(Mesh::SINGLE, |t| {
        let x = t.input("x", TensorType::new(DType::F64, &[2]));
        let y = x.convert(DType::F32);
        t.output("gradient", vjp(&[(y, y * 3.0)], &[x])[0]);
    })
    .unwrap();
    let x = Literal::from_slice(&[2], &[1.0, 2.0]);
    let gradient = &interpret(&graph, &[vec![x]]).unwrap()[0][0];
    assert_eq!(*gradient, Literal::from_slice(&[2], &[3.0, 6.0]));
}

#[test]
fn nothing_flows_through_stop_gradient_and_bitcast_convert() {
    let at_three = |f: Build| {
        let graph = trace(Mesh::SINGLE, |t| {
            let x = t.input("x", TensorType::new(DType::F64, &[]));
            t.output("gradient", grad(f(&[x]), &[x])[0]);
        });
        interpret(&graph.unwrap(), &[vec![Literal::scalar(3.0)]]).unwrap()[0][0].to_f64()[0]
    };
    assert_eq!(at_three(|x| x[0].stop_gradient()), 0.0);
    assert_eq!(at_three(|x| x[0] * x[0].stop_gradient()), 3.0);
    let there_and_back: Build = |x| x[0].bitcast_convert(DType::U64).bitcast_convert(DType::F64);
    assert_eq!(at_three(there_and_back), 0.0);
}

/// At a corner of a function the gradient is a convention: ties share it equally.
#[test]
fn ties_share_the_gradient() {
    let at = |values: &[f64], f: Build| {
        let graph = trace(Mesh::SINGLE, |t| {
            let x = t.input("x", TensorType::new(DType::F64, &[values.len()]));
            t.output("gradient", grad(f(&[x]), &[x])[0]);
        });
        let x = Literal::from_slice(&[values.len()], values);
        interpret(&graph.unwrap(), &[vec![x]]).unwrap()[0][0].to_f64()
    };
    assert_eq!(at(&[1.0, 2.0, 2.0], |x| x[0].reduce_max(&[0])), [0.0, 0.5, 0.5]);
    assert_eq!(at(&[1.0, 2.0, 1.0], |x| x[0].reduce_min(&[0])), [0.5, 0.0, 0.5]);
    assert_eq!(at(&[0.0, 1.0], |x| x[0].maximum(0.0).sum()), [0.5, 1.0]);
    assert_eq!(at(&[0.0, -1.0], |x| x[0].abs().sum()), [0.0, -1.0]);
    assert_eq!(at(&[-0.5, 0.5, 1.0], |x| x[0].clamp(-0.5, 0.5).sum()), [1.0, 1.0, 0.0]);
}

/// Naive rules would give NaN from `x log(x)` or `0 * inf`, although the slope is finite.
#[test]
fn powers_have_finite_gradients_at_zero() {
    let graph = trace(Mesh::SINGLE, |t| {
        let ty = TensorType::new(DType::F64, &[3]);
        let (x, y) = (t.input("x", ty.clone()), t.input("y", ty));
        let [to_x, to_y] = grad(x.power(y).sum(), &[x, y])[..] else { unreachable!() };
        t.output("to_x", to_x);
        t.output("to_y", to_y);
    });
    let inputs = [[0.0, 0.0, 2.0], [2.0, 1.0, 0.0]].map(|v| vec![Literal::from_slice(&[3], &v)]);
    let outputs = interpret(&graph.unwrap(), &inputs).unwrap();
    assert_eq!(outputs[0][0].to_f64(), [0.0, 1.0, 0.0]);
    assert_eq!(outputs[1][0].to_f64(), [0.0, 0.0, 2f64.ln()]);
}

/// The sum only covers the padding: cotangents of the operand may be large, or not finite.
#[test]
fn the_cotangent_of_padding_is_summed_over_the_padding() {
    let to_padding = |cotangent: &[f32], low: i64, high: i64, interior: usize| {
        let length = 4 + low + high + 3 * interior as i64;
        assert_eq!(length, cotangent.len() as i64);
        let graph = trace(Mesh::SINGLE, |t| {
            let x = t.input("x", TensorType::new(DType::F32, &[4]));
            let value = t.input("value", TensorType::new(DType::F32, &[]));
            let ct = t.input("ct", TensorType::new(DType::F32, &[cotangent.len()]));
            let y = x.pad(value, &[low], &[high], &[interior]);
            t.output("gradient", vjp(&[(y, ct)], &[value])[0]);
        });
        let x = Literal::zeros(DType::F32, &[4]);
        let ct = Literal::from_slice(&[cotangent.len()], cotangent);
        let inputs = [vec![x], vec![Literal::scalar(0f32)], vec![ct]];
        interpret(&graph.unwrap(), &inputs).unwrap()[0][0].to_f64()[0]
    };
    assert_eq!(to_padding(&[1.0, 1e9, 1e9, 1e9, 1e9], 1, 0, 0), 1.0);
    assert_eq!(to_padding(&[1e9, 1e9, 1e9, 1e9, 3.0, 4.0], 0, 2, 0), 7.0);
    assert_eq!(to_padding(&[1e9, 1.0, 1e9, 2.0, 1e9, 4.0, 1e9], 0, 0, 1), 7.0);
    assert_eq!(to_padding(&[1.0, f32::INFINITY, 1e9, 1e9, 1e9], 1, 0, 0), 1.0);
    // The first element is cut off, the padding after it is not.
    assert_eq!(to_padding(&[1.0, 1e9, 2.0, 1e9, 4.0, 1e9, 8.0], -1, 1, 1), 15.0);
}

/// A window wider than the operand has no positions: the maximum over windows is empty, and so are
/// its derivatives.
#[test]
fn a_window_without_positions_has_derivatives_of_every_order() {
    for (dims, window) in [
        ([1, 1, 2, 2], Window::nchw(3, 1, 0)),
        ([1, 1, 2, 2], Window::nchw(7, 2, 1)),
        ([1, 1, 0, 4], Window::nchw(2, 1, 0)),
        ([0, 1, 3, 3], Window::nchw(2, 1, 0)),
        ([1, 1, 2, 2], Window::nchw(1 << 40, 1, 0)),
    ] {
        let graph = trace(Mesh::SINGLE, |t| {
            let x = t.input("x", TensorType::new(DType::F64, &dims));
            let y = x.reduce_window(Reduction::Max, window.clone());
            let first = grad((y * y).sum(), &[x])[0];
            t.output("second", grad((first * first).sum(), &[x])[0]);
        });
        let graph = graph.unwrap_or_else(|error| panic!("{dims:?} {window:?}: {error}"));
        let x = values::uniform(0, dims.iter().product(), -1.0, 1.0);
        let second = &interpret(&graph, &[vec![Literal::from_slice(&dims, &x)]]).unwrap()[0][0];
        assert_eq!(*second, Literal::zeros(DType::F64, &dims), "{dims:?} {window:?}");
    }
}

#[test]
fn an_empty_convolution_has_zero_gradients() {
    let padded = |low: i64, high: i64| {
        let mut convolution = Convolution::new(1);
        (convolution.window[0].low, convolution.window[0].high) = (low, high);
        convolution.window[0].window_dilation = 2;
        convolution
    };
    // No examples, no features, no positions, an empty kernel, an input of padding only.
    for (lhs, rhs, convolution) in [
        ([0, 2, 5], [2, 2, 3], padded(0, 0)),
        ([2, 2, 5], [0, 2, 3], padded(0, 0)),
        ([2, 0, 5], [2, 0, 3], padded(0, 0)),
        ([2, 2, 2], [2, 2, 3], padded(0, 0)),
        ([2, 2, 1], [4, 2, 0], padded(1, 1)),
        ([2, 2, 0], [2, 2, 2], padded(1, 0)),
        ([2, 2, 0], [2, 2, 2], padded(3, 2)),
    ] {
        let graph = trace(Mesh::SINGLE, |t| {
            let x = [&lhs, &rhs].map(|dims| t.input("x", TensorType::new(DType::F64, dims)));
            let y = x[0].convolution(x[1], convolution.clone());
            let first = grad((y * y).sum(), &x);
            let squares = first.iter().map(|x| (*x * *x).sum()).reduce(|a, b| a + b);
            let second = grad(squares.unwrap(), &x);
            for gradient in first.into_iter().chain(second) {
                t.output("gradient", gradient);
            }
        });
        let graph = graph.unwrap_or_else(|error| panic!("{lhs:?} {convolution:?}: {error}"));
        let ones = |dims: &[usize]| Literal::from_slice(dims, &vec![1.0; dims.iter().product()]);
        let outputs = interpret(&graph, &[vec![ones(&lhs)], vec![ones(&rhs)]]).unwrap();
        for (gradient, dims) in outputs.iter().zip([lhs, rhs, lhs, rhs]) {
            assert_eq!(gradient[0], Literal::zeros(DType::F64, &dims), "{lhs:?} {convolution:?}");
        }
    }
}

#[test]
fn unused_inputs_have_a_zero_gradient() {
    let graph = trace(Mesh::data(2), |t| {
        let x = t.input("x", TensorType::new(DType::F64, &[2]).varying(Axis::Data.into()));
        let unused = t.input("unused", TensorType::new(DType::F64, &[3]));
        let gradient = grad(x.sum(), &[unused])[0];
        assert_eq!(gradient.ty(), unused.ty());
        t.output("gradient", gradient);
    });
    let inputs =
        [vec![Literal::zeros(DType::F64, &[2]); 2], vec![Literal::zeros(DType::F64, &[3]); 2]];
    assert_eq!(interpret(&graph.unwrap(), &inputs).unwrap()[0][1].to_f64(), [0.0; 3]);
}

#[test]
fn ops_without_a_gradient_are_errors_at_the_line_of_the_op() {
    let cases: [(&str, &str, Build); 6] = [
        ("select_and_scatter(", "there may be 65536, not 16777216", |x| {
            let dims = [WindowDim { low: 1 << 24, ..WindowDim::default() }];
            let window = Window { sizes: vec![1 << 24], dims: dims.to_vec() };
            let y = x[0].reduce_window(Reduction::Max, window);
            (grad((y * y).sum(), x)[0] * x[0]).sum()
        }),
        ("while(", "a `while` is not reverse-differentiable", |x| {
            x[0].tracer().fori_loop(3, &[x[0]], |_, x| vec![x[0] * 2.0])[0].sum()
        }),
        ("all_reduce(", "all_reduce maximum is not differentiable", |x| {
            x[0].all_reduce(Reduction::Max, Axis::Data).sum()
        }),
        ("custom_call(", "`f` has no VJP of its own; call it inside `Tracer::custom_vjp`", |x| {
            x[0].tracer().custom_call(CustomCall::new("f", vec![x[0].ty()]), x)[0].sum()
        }),
        ("grad(", "the loss must be a float scalar", |x| x[0]),
        ("grad(", "the loss must be a float scalar", |x| x[0].sum().convert(DType::I32)),
    ];
    for (op, message, build) in cases {
        let error = trace(Mesh::data(2), |t| {
            let x = t.input("x", TensorType::new(DType::F64, &[2]).varying(Axis::Data.into()));
            t.output_varying("gradient", grad(build(&[x]), &[x])[0], AxisSet::ALL);
        })
        .unwrap_err();
        assert!(error.to_string().starts_with(op), "{error}");
        assert!(error.to_string().contains(message), "{error}");
        assert_eq!(error.location.file(), file!(), "{error}");
    }
}

fn start<'g>(t: &'g Tracer, indices: [f64; 2]) -> [Tensor<'g>; 2] {
    indices.map(|index| t.scalar(DType::I32, index))
}

type Build = for<'g> fn(&[Tensor<'g>]) -> Tensor<'g>;

#[derive(Clone)]
struct Case {
    name: &'static str,
    mesh: Mesh,
    inputs: Vec<Input>,
    build: Build,
}

#[derive(Clone, Copy)]
struct Input {
    dims: &'static [usize],
    low: f64,
    high: f64,
    /// `true` if the range is that of the magnitude, with random signs.
    signed: bool,
    varying: AxisSet,
}

fn within(dims: &'static [usize], low: f64, high: f64) -> Input {
    Input { dims, low, high, signed: false, varying: AxisSet::EMPTY }
}

fn signed(dims: &'static [usize], low: f64, high: f64) -> Input {
    Input { signed: true, ..within(dims, low, high) }
}

fn over(dims: &'static [usize], axes: &[Axis]) -> Input {
    Input { varying: AxisSet::of(axes), ..within(dims, -1.0, 1.0) }
}

impl Input {
    fn ty(&self) -> TensorType {
        TensorType::new(DType::F64, self.dims).varying(self.varying)
    }
}

impl Case {
    fn forward(&self) -> Graph {
        let graph = trace(self.mesh, |t| {
            let y = (self.build)(&self.trace_inputs(t));
            t.output_varying("y", y, y.varying());
        });
        graph.unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    /// From the inputs and the result's cotangent to the inputs' cotangents.
    fn backward(&self) -> Graph {
        let graph = trace(self.mesh, |t| {
            let x = self.trace_inputs(t);
            let y = (self.build)(&x);
            let cotangent = t.input("cotangent", y.ty());
            for (i, gradient) in vjp(&[(y, cotangent)], &x).into_iter().enumerate() {
                t.output_varying(format!("gradient.{i}"), gradient, self.inputs[i].varying);
            }
        });
        graph.unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    fn trace_inputs<'g>(&self, t: &'g Tracer) -> Vec<Tensor<'g>> {
        let inputs = self.inputs.iter().enumerate();
        inputs.map(|(i, input)| t.input(format!("x.{i}"), input.ty())).collect()
    }

    fn check(&self) {
        let Case { name, mesh, .. } = self;
        let (forward, backward) = (self.forward(), self.backward());
        for graph in [&forward, &backward] {
            verify(graph).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        let x: Vec<_> = (0..self.inputs.len()).map(|i| self.draw(i)).collect();
        let y_type = forward.ty(forward.outputs()[0].value).clone();
        let cotangent = on_replicas(mesh, &y_type, |index| {
            values::uniform(900 + index as u32, y_type.num_elements(), -1.0, 1.0)
        });
        let mut inputs = x.clone();
        inputs.push(cotangent.clone());
        let gradients = interpret(&backward, &inputs).unwrap();

        let objective = |x: &[Vec<Literal>]| -> f64 {
            let y = &interpret(&forward, x).unwrap()[0];
            let counted = (0..mesh.num_replicas())
                .filter(|replica| mesh.index(*replica, AxisSet::ALL.minus(y_type.varying)) == 0);
            let dot = |r: usize| -> f64 {
                y[r].to_f64().iter().zip(cotangent[r].to_f64()).map(|(y, c)| y * c).sum()
            };
            counted.map(dot).sum()
        };
        for (i, input) in self.inputs.iter().enumerate() {
            for index in 0..mesh.group_size(input.varying) {
                for element in 0..input.ty().num_elements() {
                    let holders: Vec<_> = (0..mesh.num_replicas())
                        .filter(|replica| mesh.index(*replica, input.varying) == index)
                        .collect();
                    let moved = |by: f64| {
                        let mut x = x.clone();
                        for replica in &holders {
                            x[i][*replica].as_mut_slice::<f64>()[element] += by;
                        }
                        objective(&x)
                    };
                    let slope = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
                    for replica in &holders {
                        let gradient = gradients[i][*replica].to_f64()[element];
                        assert!(
                            (gradient - slope).abs() <= TOLERANCE * slope.abs().max(1.0),
                            "{name}: input {i}, element {element}, replica {replica}: \
                             gradient {gradient}, slope {slope}"
                        );
                    }
                }
            }
        }
    }

    fn draw(&self, i: usize) -> Vec<Literal> {
        let input = &self.inputs[i];
        let num_elements = input.ty().num_elements();
        on_replicas(&self.mesh, &input.ty(), |index| {
            let stream = (100 * i + index) as u32;
            let magnitudes = values::uniform(stream, num_elements, input.low, input.high);
            let signs = values::uniform(stream + 50, num_elements, -1.0, 1.0);
            let signed = |(magnitude, sign): (f64, f64)| {
                if input.signed { magnitude.copysign(sign) } else { magnitude }
            };
            magnitudes.into_iter().zip(signs).map(signed).collect()
        })
    }
}

/// A value of the given type on all replicas: equal where it does not vary.
fn on_replicas(mesh: &Mesh, ty: &TensorType, values: impl Fn(usize) -> Vec<f64>) -> Vec<Literal> {
    let value = |replica| Literal::from_slice(&ty.dims, &values(mesh.index(replica, ty.varying)));
    (0..mesh.num_replicas()).map(value).collect()
}
