//! Invalid calls, and the error of each: the op, what is wrong, and the caller's line.

use hlo::{
    Axis, AxisSet, Convolution, CustomCall, DType, DotDims, Error, Graph, Groups, Layouts, Literal,
    Mesh, Reduction, Tensor, TensorType, Threefry, Tracer, Window, grad, trace, vjp,
};

use Axis::{Data, Tensor as Model};

/// The op that reports the error, a part of the message, the line of the case, and the call.
type Case = (&'static str, &'static str, u32, for<'t> fn(&'t Tracer));

#[track_caller]
fn x<'t>(t: &'t Tracer, dims: &[usize]) -> Tensor<'t> {
    t.input("x", TensorType::new(DType::F32, dims))
}

#[track_caller]
fn int<'t>(t: &'t Tracer, dims: &[usize]) -> Tensor<'t> {
    t.input("i", TensorType::new(DType::I32, dims))
}

#[track_caller]
fn u32s<'t>(t: &'t Tracer, dims: &[usize]) -> Tensor<'t> {
    t.input("u", TensorType::new(DType::U32, dims))
}

#[track_caller]
fn pred<'t>(t: &'t Tracer, dims: &[usize]) -> Tensor<'t> {
    t.input("p", TensorType::new(DType::Pred, dims))
}

/// Varies over `data`.
#[track_caller]
fn shard<'t>(t: &'t Tracer, dims: &[usize]) -> Tensor<'t> {
    t.input("s", TensorType::new(DType::F32, dims).varying(Data.into()))
}

/// A call of `f` with a result.
fn word<'g>(t: &'g Tracer, dims: &[usize]) -> Tensor<'g> {
    t.input(format!("word {dims:?}"), TensorType::new(DType::U32, dims))
}

/// Random bits of words that are both key and counter.
#[track_caller]
fn threefry<'g>(
    t: &'g Tracer,
    words: [Tensor<'g>; 2],
    dims: &[usize],
    strides: &[u32],
    num_words: usize,
) -> Vec<Tensor<'g>> {
    let threefry = Threefry { dims: dims.to_vec(), strides: strides.to_vec(), num_words };
    t.threefry(threefry, words, words)
}

fn call(dims: &[usize]) -> CustomCall {
    CustomCall::new("f", vec![TensorType::new(DType::F32, dims)])
}

/// The op itself is wanted for its error.
fn wrong<T>(_: T) {}

#[rustfmt::skip]
fn elementwise() -> Vec<Case> {
    vec![
        ("add", "different dims; broadcast one", line!(), |t| wrong(x(t, &[2]) + x(t, &[3]))),
        ("add", "different dims", line!(), |t| wrong(x(t, &[2]) + x(t, &[2, 1]))),
        ("multiply", "different dtypes; convert one", line!(), |t| wrong(x(t, &[2]) * int(t, &[2]))),
        ("subtract", "not defined for pred", line!(), |t| wrong(pred(t, &[2]) - pred(t, &[2]))),
        ("divide", "apply `vary` to it", line!(), |t| wrong(shard(t, &[2]) / x(t, &[2]))),
        ("power", "not defined for i32", line!(), |t| wrong(int(t, &[2]).power(2.0))),
        ("and", "not defined for f32", line!(), |t| wrong(x(t, &[2]).and(1.0))),
        ("shift_left", "not defined for pred", line!(), |t| wrong(pred(t, &[]).shift_left(1.0))),
        ("add", "i32 cannot represent 1.5", line!(), |t| wrong(int(t, &[2]) + 1.5)),
        ("subtract", "i32 cannot represent 0.5", line!(), |t| wrong(0.5 - int(t, &[2]))),
        ("maximum", "u32 cannot represent -1", line!(), |t| wrong(u32s(t, &[2]).maximum(-1.0))),
        ("multiply", "i32 cannot represent NaN", line!(), |t| wrong(int(t, &[2]) * f64::NAN)),
        ("compare", "u32 cannot represent 4294967296", line!(), |t| wrong(u32s(t, &[2]).less(4294967296.0))),
        ("add", "i64 cannot represent 9223372036854776000", line!(), |t| wrong(t.scalar(DType::I64, 0.0) + 2f64.powi(63))),
        ("multiply", "1e39 is beyond the range of f32", line!(), |t| wrong(x(t, &[2]) * 1e39)),
        ("pad", "-1e300 is beyond the range of f32", line!(), |t| wrong(x(t, &[2]).pad(-1e300, &[0], &[1], &[0]))),
        ("constant", "u32 cannot represent -1", line!(), |t| wrong(t.scalar(DType::U32, -1.0))),
        ("constant", "u8 cannot represent 256", line!(), |t| wrong(t.full(DType::U8, &[2], 256.0))),
        ("constant", "i8 cannot represent 128", line!(), |t| wrong(t.full(DType::I8, &[2], 128.0))),
        ("constant", "i32 cannot represent 0.5", line!(), |t| wrong(t.full(DType::I32, &[2], 0.5))),
        ("constant", "i64 cannot represent NaN", line!(), |t| wrong(t.scalar(DType::I64, f64::NAN))),
        ("constant", "u8 cannot represent inf", line!(), |t| wrong(t.scalar(DType::U8, f64::INFINITY))),
        ("constant", "i32 cannot represent 2147483648", line!(), |t| wrong(t.scalar(DType::I32, 2f64.powi(31)))),
        ("constant", "i64 cannot represent 9223372036854776000", line!(), |t| wrong(t.scalar(DType::I64, 2f64.powi(63)))),
        ("constant", "u64 cannot represent 18446744073709552000", line!(), |t| wrong(t.scalar(DType::U64, 2f64.powi(64)))),
        ("constant", "pred cannot represent 2", line!(), |t| wrong(t.full(DType::Pred, &[2], 2.0))),
        ("constant", "1e39 is beyond the range of f32", line!(), |t| wrong(t.scalar(DType::F32, 1e39))),
        ("constant", "6.552e4 is beyond the range of f16", line!(), |t| wrong(t.full(DType::F16, &[2], 65520.0))),
        ("constant", "-1e39 is beyond the range of bf16", line!(), |t| wrong(t.scalar(DType::Bf16, -1e39))),
        ("constant", "i32 cannot represent 1.5", line!(), |t| wrong(int(t, &[2]).full_like(1.5))),
        ("or", "pred cannot represent 2", line!(), |t| wrong(pred(t, &[2]).or(2.0))),
        ("exponential", "not defined for i32", line!(), |t| wrong(int(t, &[2]).exponential())),
        ("not", "not defined for f32", line!(), |t| wrong(!x(t, &[2]))),
        ("negate", "not defined for pred", line!(), |t| wrong(-pred(t, &[2]))),
        ("abs", "not defined for u32", line!(), |t| wrong(u32s(t, &[2]).abs())),
        ("compare", "different dtypes", line!(), |t| wrong(x(t, &[2]).equal(int(t, &[2])))),
        ("select", "must be pred[2]", line!(), |t| wrong(x(t, &[2]).select(x(t, &[2]), x(t, &[2])))),
        ("select", "must be pred[2]", line!(), |t| wrong(pred(t, &[3]).select(x(t, &[2]), x(t, &[2])))),
        ("select", "different dims", line!(), |t| wrong(pred(t, &[2]).select(x(t, &[2]), x(t, &[3])))),
        ("clamp", "bounds must be f32[2]", line!(), |t| wrong(x(t, &[2]).clamp(x(t, &[3]), 1.0))),
        ("clamp", "i32 cannot represent 0.5", line!(), |t| wrong(int(t, &[2]).clamp(0.0, 0.5))),
        ("clamp", "pred has no order", line!(), |t| wrong(pred(t, &[2]).clamp(0.0, 1.0))),
        ("bitcast_convert", "do not have the same width", line!(), |t| wrong(x(t, &[2]).bitcast_convert(DType::F64))),
        ("bitcast_convert", "do not have the same width", line!(), |t| wrong(pred(t, &[2]).bitcast_convert(DType::U8))),
    ]
}

#[rustfmt::skip]
fn shapes() -> Vec<Case> {
    const HUGE: usize = 1 << 21;
    vec![
        ("iota", "dim 1 of rank 1", line!(), |t| wrong(t.iota(DType::F32, &[2], 1))),
        ("iota", "integer or float", line!(), |t| wrong(t.iota(DType::Pred, &[2], 0))),
        ("broadcast_in_dim", "more than 2^40", line!(), |t| wrong(t.full(DType::F32, &[HUGE, HUGE], 0.0))),
        ("broadcast_in_dim", "more than 2^40", line!(), |t| wrong(t.full(DType::F32, &[usize::MAX, 0], 0.0))),
        ("broadcast_in_dim", "1 broadcast dims for an operand of rank 2", line!(), |t| wrong(x(t, &[2, 2]).broadcast_in_dim(&[2], &[0]))),
        ("broadcast_in_dim", "must be increasing", line!(), |t| wrong(x(t, &[2, 2]).broadcast_in_dim(&[2, 2], &[1, 0]))),
        ("broadcast_in_dim", "size 2 does not become dim 0", line!(), |t| wrong(x(t, &[2]).broadcast_in_dim(&[3], &[0]))),
        ("input", "more than 2^40", line!(), |t| wrong(x(t, &[usize::MAX, 2]))),
        ("reshape", "6 elements do not fill dims [4]", line!(), |t| wrong(x(t, &[2, 3]).reshape(&[4]))),
        ("reshape", "do not fill", line!(), |t| wrong(x(t, &[0]).reshape(&[usize::MAX, 2, 0]))),
        ("transpose", "not a permutation of 2 dims", line!(), |t| wrong(x(t, &[2, 3]).transpose(&[0, 0]))),
        ("slice", "need 1 entries", line!(), |t| wrong(x(t, &[2]).slice(&[], &[], &[]))),
        ("slice", "1..4 in steps of 1 is not within dim 0 of size 3", line!(), |t| wrong(x(t, &[3]).slice_dim(0, 1, 4))),
        ("slice", "in steps of 0", line!(), |t| wrong(x(t, &[3]).slice(&[0], &[3], &[0]))),
        ("slice", "there is no dim 1", line!(), |t| wrong(x(t, &[3]).slice_dim(1, 0, 1))),
        ("dynamic_slice", "a slice of [4] does not fit", line!(), |t| wrong(x(t, &[3]).dynamic_slice(&[int(t, &[])], &[4]))),
        ("dynamic_slice", "1 integer scalars", line!(), |t| wrong(x(t, &[3]).dynamic_slice(&[x(t, &[])], &[1]))),
        ("dynamic_slice", "different dtypes", line!(), |t| wrong(x(t, &[3, 3]).dynamic_slice(&[int(t, &[]), u32s(t, &[])], &[1, 1]))),
        ("dynamic_update_slice", "another dtype", line!(), |t| wrong(x(t, &[3]).dynamic_update_slice(int(t, &[1]), &[int(t, &[])]))),
        ("dynamic_slice", "a scalar has no dim", line!(), |t| wrong(x(t, &[]).index_leading(int(t, &[])))),
        ("pad", "need 1 entries", line!(), |t| wrong(x(t, &[2]).pad(0.0, &[], &[], &[]))),
        ("pad", "would have size -1", line!(), |t| wrong(x(t, &[2]).pad(0.0, &[-3], &[0], &[0]))),
        ("pad", "more than 2^40", line!(), |t| wrong(x(t, &[2]).pad(0.0, &[1 << 59], &[0], &[0]))),
        ("pad", "exceeds 2^60", line!(), |t| wrong(x(t, &[9]).pad(0.0, &[i64::MAX], &[i64::MAX], &[usize::MAX]))),
        ("pad", "exceeds 2^60", line!(), |t| wrong(x(t, &[9]).pad(0.0, &[i64::MIN], &[i64::MAX], &[0]))),
        ("pad", "exceeds 2^60", line!(), |t| wrong(x(t, &[1]).pad(0.0, &[0], &[0], &[usize::MAX]))),
        ("slice", "in steps of 18446744073709551615", line!(), |t| wrong(x(t, &[3]).slice(&[0], &[3], &[usize::MAX]))),
        ("pad", "must be a f32 scalar", line!(), |t| wrong(x(t, &[2]).pad(int(t, &[]), &[0], &[0], &[0]))),
        ("pad", "i32 cannot represent 0.5", line!(), |t| wrong(int(t, &[2]).pad(0.5, &[0], &[0], &[0]))),
        ("concatenate", "dim 1 of rank 1", line!(), |t| wrong(x(t, &[2]).concatenate(&[x(t, &[2])], 1))),
        ("concatenate", "differ only in dim 0", line!(), |t| wrong(x(t, &[2, 3]).concatenate(&[x(t, &[2, 4])], 0))),
        ("reduce", "must be increasing", line!(), |t| wrong(x(t, &[2, 3]).reduce_sum(&[2]))),
        ("reduce", "add is not defined for pred", line!(), |t| wrong(pred(t, &[2]).reduce_sum(&[0]))),
        ("reduce", "and is not defined for f32", line!(), |t| wrong(x(t, &[2]).reduce(Reduction::And, &[0]))),
        ("dot_general", "contracting dims 1 and 0 differ in size", line!(), |t| wrong(x(t, &[2, 3]).dot(x(t, &[2, 3])))),
        ("dot_general", "differ in size or do not exist", line!(), |t| wrong(x(t, &[]).dot(x(t, &[2])))),
        ("dot_general", "the same numeric dtype", line!(), |t| wrong(x(t, &[2]).dot(int(t, &[2])))),
        ("dot_general", "come in pairs", line!(), |t| wrong(x(t, &[2]).dot_general(x(t, &[2]), DotDims::contract(&[0], &[])))),
        ("dot_general", "listed twice", line!(), |t| wrong(x(t, &[2, 2]).dot_general(x(t, &[2, 2]), DotDims::contract(&[0], &[0]).batch(&[0], &[0])))),
        ("reverse", "must be increasing", line!(), |t| wrong(x(t, &[2, 3]).reverse(&[2]))),
        ("convolution", "input has 2 features, but the kernel takes 3 in each of 1 feature groups", line!(), |t| wrong(x(t, &[1, 2, 5]).convolution(x(t, &[4, 3, 3]), Convolution::new(1)))),
        ("convolution", "the input needs 4 dims, but has 3", line!(), |t| wrong(x(t, &[1, 2, 5]).convolution(x(t, &[4, 2, 3]), Convolution::new(2)))),
        ("convolution", "the same numeric dtype", line!(), |t| wrong(x(t, &[1, 2, 5]).convolution(int(t, &[4, 2, 3]), Convolution::new(1)))),
        ("convolution", "do not divide into 2 feature groups", line!(), |t| wrong(x(t, &[1, 4, 5]).convolution(x(t, &[3, 2, 3]), Convolution::new(1).groups(2)))),
        ("convolution", "spatial dim 0: strides and dilations must be at least 1", line!(), |t| wrong(x(t, &[1, 2, 5]).convolution(x(t, &[3, 2, 3]), Convolution::new(1).stride(0)))),
        ("convolution", "padding -3 and -3 leaves -1 of 5 elements", line!(), |t| wrong(x(t, &[1, 2, 5]).convolution(x(t, &[3, 2, 3]), Convolution::new(1).padding(-3)))),
        ("convolution", "group counts must be at least 1", line!(), |t| wrong(x(t, &[1, 2, 5]).convolution(x(t, &[3, 2, 3]), Convolution::new(1).groups(0)))),
        ("convolution", "dot_general", line!(), |t| wrong(x(t, &[1, 2]).convolution(x(t, &[3, 2]), Convolution::new(0)))),
        ("convolution", "does not give each of 3 dims one role", line!(), |t| { let mut twice = Convolution::new(1); twice.dims.rhs = vec![0, 1, 1]; wrong(x(t, &[1, 2, 5]).convolution(x(t, &[3, 2, 3]), twice)) }),
        ("reduce_window", "the window needs 2 dims", line!(), |t| wrong(x(t, &[2, 3]).reduce_window(Reduction::Sum, Window::nchw(2, 1, 0)))),
        ("reduce_window", "dim 2: padding -2 and -2 leaves -1 of 3", line!(), |t| wrong(x(t, &[1, 1, 3, 5]).reduce_window(Reduction::Sum, Window::nchw(2, 1, -2)))),
        ("reduce_window", "dim 2: a window needs at least 1 element", line!(), |t| wrong(x(t, &[1, 1, 3, 3]).reduce_window(Reduction::Sum, Window::nchw(0, 1, 0)))),
        ("reduce_window", "exceed 2^60", line!(), |t| wrong(x(t, &[1, 1, 3, 3]).reduce_window(Reduction::Sum, Window::nchw(2, usize::MAX, 0)))),
        ("reduce_window", "exceed 2^60", line!(), |t| wrong(x(t, &[1, 1, 3, 3]).reduce_window(Reduction::Sum, Window::nchw(usize::MAX, 1, i64::MAX)))),
        ("reduce_window", "exceed 2^60", line!(), |t| { let mut window = Window::nchw(usize::MAX, 1, 0); window.dims[2].window_dilation = usize::MAX; wrong(x(t, &[1, 1, 3, 3]).reduce_window(Reduction::Sum, window)) }),
        ("convolution", "exceed 2^60", line!(), |t| wrong(x(t, &[1, 2, 5]).convolution(x(t, &[3, 2, 3]), Convolution::new(1).padding(i64::MIN)))),
        ("reduce_window", "add is not defined for pred", line!(), |t| wrong(pred(t, &[1, 1, 3, 3]).reduce_window(Reduction::Sum, Window::nchw(2, 1, 0)))),
        ("select_and_scatter", "source must be f32[1, 1, 2, 2]", line!(), |t| wrong(x(t, &[1, 1, 3, 3]).select_and_scatter(x(t, &[1, 1, 3, 3]), Window::nchw(2, 1, 0)))),
        ("select_and_scatter", "no dilations", line!(), |t| { let mut window = Window::nchw(2, 1, 0); window.dims[2].window_dilation = 2; wrong(x(t, &[1, 1, 3, 3]).select_and_scatter(x(t, &[1, 1, 1, 2]), window)) }),
        ("select_and_scatter", "only defined for floats", line!(), |t| wrong(int(t, &[1, 1, 3, 3]).select_and_scatter(int(t, &[1, 1, 2, 2]), Window::nchw(2, 1, 0)))),
        ("gather", "not integers", line!(), |t| wrong(x(t, &[2, 2]).take(x(t, &[2])))),
        ("gather", "do not share 1 leading dims", line!(), |t| wrong(x(t, &[2, 2]).gather(int(t, &[3]), 1))),
        ("gather", "the indexed dim has size 0", line!(), |t| wrong(x(t, &[0]).take(int(t, &[3])))),
        ("gather", "indices of 2 dims", line!(), |t| wrong(x(t, &[2, 2]).take_along_dim(int(t, &[3]), 0))),
        ("scatter", "the updates are f32[2, 2], not f32[3, 2]", line!(), |t| wrong(x(t, &[4, 2]).scatter_add(int(t, &[3]), x(t, &[2, 2]), 0))),
        ("scatter", "not defined for pred", line!(), |t| wrong(pred(t, &[4]).scatter_add(int(t, &[3]), pred(t, &[3]), 0))),
        ("top_k", "k must be 1 to 3, the size of the last dim, not 4", line!(), |t| wrong(x(t, &[2, 3]).top_k(4))),
        ("top_k", "not 0", line!(), |t| wrong(x(t, &[2, 3]).top_k(0))),
        ("top_k", "needs at least one dim", line!(), |t| wrong(x(t, &[]).top_k(1))),
        ("top_k", "pred has no order", line!(), |t| wrong(pred(t, &[3]).top_k(1))),
        ("top_k", "exceed i32 indices", line!(), |t| wrong(x(t, &[1 << 31]).top_k(1))),
        ("dims", "has 2 dims, but 3 are needed", line!(), |t| wrong(x(t, &[2, 3]).dims::<3>())),
        ("dim", "there is no dim 2", line!(), |t| wrong(x(t, &[2, 3]).dim(2))),
    ]
}

/// On a mesh with 2 replicas along `data`.
#[rustfmt::skip]
fn replicas() -> Vec<Case> {
    vec![
        ("all_reduce", "does not vary over all of {data}", line!(), |t| wrong(x(t, &[2]).all_reduce(Reduction::Sum, Data))),
        ("all_reduce", "does not vary over all of {data, tensor}", line!(), |t| wrong(shard(t, &[2]).all_reduce(Reduction::Sum, AxisSet::of(&[Data, Model])))),
        ("all_reduce", "does not vary", line!(), |t| wrong(shard(t, &[2]).all_reduce(Reduction::Sum, AxisSet::EMPTY))),
        ("all_reduce", "or is not defined for f32", line!(), |t| wrong(shard(t, &[2]).all_reduce(Reduction::Or, Data))),
        ("all_reduce", "at least one operand", line!(), |t| wrong(t.all_reduce(&[], Reduction::Sum, Data))),
        ("all_reduce", "must have the same dtype", line!(), |t| wrong(t.all_reduce(&[shard(t, &[]), int(t, &[]).vary(Data)], Reduction::Sum, Data))),
        ("all_reduce", "2 replicas along {data} do not divide into groups of 4", line!(), |t| wrong(shard(t, &[2]).all_reduce(Reduction::Sum, Groups::contiguous(Data, 4)))),
        ("all_reduce", "does not vary", line!(), |t| wrong(x(t, &[2]).all_reduce(Reduction::Sum, Groups::contiguous(Data, 2)))),
        ("reduce_scatter", "2 replicas along {data} do not divide into groups of 0", line!(), |t| wrong(shard(t, &[2]).reduce_scatter(0, Groups::strided(Data, 0)))),
        ("all_gather", "2 replicas along {data} do not divide into groups of 3", line!(), |t| wrong(shard(t, &[2]).all_gather(0, Groups::contiguous(Data, 3)))),
        ("all_gather", "does not vary over all of {tensor}", line!(), |t| wrong(shard(t, &[2]).all_gather(0, Model))),
        ("all_gather", "dim 1 of rank 1", line!(), |t| wrong(shard(t, &[2]).all_gather(1, Data))),
        ("reduce_scatter", "size 3 does not divide by 2", line!(), |t| wrong(shard(t, &[3]).reduce_scatter(0, Data))),
        ("all_to_all", "size 3 does not divide by 2", line!(), |t| wrong(shard(t, &[3, 2]).all_to_all(0, 1, Data))),
        ("collective_permute", "not below 2", line!(), |t| wrong(shard(t, &[3]).collective_permute(&[(0, 2)], Data))),
        ("collective_permute", "an index twice", line!(), |t| wrong(shard(t, &[3]).collective_permute(&[(0, 1), (1, 1)], Data))),
        ("collective_permute", "at least one pair", line!(), |t| wrong(shard(t, &[3]).collective_permute(&[], Data))),
        ("optimization_barrier", "at least one operand", line!(), |t| wrong(t.optimization_barrier(&[]))),
        ("concatenate", "apply `vary` to it", line!(), |t| wrong(shard(t, &[2]).concatenate(&[x(t, &[2])], 0))),
        ("next_state", "no input is named `y`", line!(), |t| t.next_state("y", x(t, &[]))),
        ("while", "must return one pred scalar", line!(), |t| wrong(t.while_loop(&[x(t, &[])], |x| x[0], |x| x.to_vec()))),
        ("while", "f32[1] for carried value 0 of type f32[]", line!(), |t| wrong(t.while_loop(&[x(t, &[])], |x| x[0].less(1.0), |x| vec![x[0].reshape(&[1])]))),
        ("while", "another number of values", line!(), |t| wrong(t.while_loop(&[x(t, &[])], |x| x[0].less(1.0), |_| vec![]))),
        ("while", "for carried value 1 of type f32[]", line!(), |t| wrong(t.fori_loop(2, &[x(t, &[])], |_, x| vec![x[0].vary(Data)]))),
        ("scan", "must be 3", line!(), |t| wrong(t.scan(3, &[], &[], &[x(t, &[2])], |_, _, x| (vec![], x.to_vec())))),
        ("scan", "must be 3", line!(), |t| wrong(t.scan(3, &[], &[], &[x(t, &[3]), x(t, &[])], |_, _, x| (vec![], x.to_vec())))),
        ("scan", "the length must be 1 to 4294967295, not 4294967296", line!(), |t| wrong(t.scan(1 << 32, &[], &[x(t, &[])], &[], |_, s, _| (s.to_vec(), vec![])))),
        ("scan", "must be at least 1", line!(), |t| wrong(t.scan(0, &[], &[x(t, &[])], &[], |_, s, _| (s.to_vec(), vec![])))),
        ("scan", "1 carried values, but 2 are carried", line!(), |t| wrong(t.scan(2, &[], &[x(t, &[]), x(t, &[])], &[], |_, s, _| (vec![s[0]], vec![])))),
        ("scan", "returns f32[1] for carried value 0", line!(), |t| wrong(t.scan(2, &[], &[x(t, &[])], &[], |_, s, _| (vec![s[0].reshape(&[1])], vec![])))),
        ("scan", "returns too few", line!(), |t| wrong(t.scan(2, &[], &[], &[x(t, &[2])], |_, _, _| (vec![], vec![])))),
        ("custom_vjp", "cotangents (f32[]), but the float operands are (f32[2])", line!(), |t| wrong(t.custom_vjp(&[x(t, &[2])], |x| x.to_vec(), |_, _, ct| vec![ct[0].sum()]))),
        ("custom_vjp", "must be floats, not i32[2]", line!(), |t| wrong(t.custom_vjp(&[int(t, &[2])], |x| x.to_vec(), |_, _, _| vec![]))),
        ("case", "needs at least one branch", line!(), |t| wrong(t.case(int(t, &[]), &[x(t, &[])], &[]))),
        ("case", "not an i32 or u32 scalar", line!(), |t| wrong(t.case(int(t, &[1]), &[x(t, &[])], &[&|x| x.to_vec()]))),
        ("case", "not an i32 or u32 scalar", line!(), |t| wrong(t.case(pred(t, &[]), &[x(t, &[])], &[&|x| x.to_vec()]))),
        ("case", "branch 1 returns f32[1] where branch 0 returns f32[]", line!(), |t| wrong(t.case(int(t, &[]), &[x(t, &[])], &[&|x| x.to_vec(), &|x| vec![x[0].reshape(&[1])]]))),
        ("case", "branch 1 returns 2 values, branch 0 1", line!(), |t| wrong(t.case(int(t, &[]), &[x(t, &[])], &[&|x| x.to_vec(), &|x| twice(x[0])]))),
        ("case", "branch 1 returns f32[]{data} where branch 0 returns f32[]", line!(), |t| wrong(t.case(int(t, &[]), &[x(t, &[])], &[&|x| x.to_vec(), &|x| vec![x[0].vary(Data)]]))),
        ("case", "the index varies over {data}, but operand 0 is f32[]", line!(), |t| wrong(t.case(t.replica_id(Data), &[x(t, &[])], &[&|x| x.to_vec()]))),
        ("case", "a result cannot be f32[]", line!(), |t| wrong(t.case(t.replica_id(Data), &[shard(t, &[])], &[&|x| vec![x[0].all_reduce(Reduction::Sum, Data)]]))),
        ("case", "returns nothing", line!(), |t| wrong(t.case(int(t, &[]), &[x(t, &[])], &[&|_| vec![]]))),
        ("custom_call", "needs a target", line!(), |t| wrong(t.custom_call(CustomCall::new("", vec![]), &[]))),
        ("custom_call", "needs a result", line!(), |t| wrong(t.custom_call(CustomCall::new("f", vec![]), &[]))),
        ("custom_call", "api_version must be 1 to 4, not 5", line!(), |t| wrong(t.custom_call(CustomCall { api_version: 5, ..call(&[2]) }, &[]))),
        ("custom_call", "must be an MLIR dictionary", line!(), |t| wrong(t.custom_call(CustomCall { api_version: 4, backend_config: "x".into(), ..call(&[2]) }, &[]))),
        ("custom_call", "0 layouts for 1 operands", line!(), |t| wrong(t.custom_call(CustomCall { layouts: Some(Layouts { operands: vec![], results: vec![vec![0]] }), ..call(&[2]) }, &[x(t, &[2])]))),
        ("custom_call", "layout [1] of result 0 is not a permutation", line!(), |t| wrong(t.custom_call(CustomCall { layouts: Some(Layouts { operands: vec![], results: vec![vec![1]] }), ..call(&[2]) }, &[]))),
        ("custom_call", "more than 2^40", line!(), |t| wrong(t.custom_call(call(&[usize::MAX, 2]), &[]))),
        ("custom_call", "apply `vary` to it", line!(), |t| wrong(t.custom_call(call(&[2]), &[x(t, &[2]), shard(t, &[2])]))),
        ("threefry", "key and counter must be u32", line!(), |t| wrong(threefry(t, [int(t, &[]), word(t, &[])], &[3], &[], 1))),
        ("threefry", "scalars or all of the same number", line!(), |t| wrong(threefry(t, [word(t, &[2]), word(t, &[3])], &[3], &[], 1))),
        ("threefry", "scalars or all of the same number", line!(), |t| wrong(threefry(t, [word(t, &[0]), word(t, &[])], &[3], &[], 1))),
        ("threefry", "scalars or all of the same number", line!(), |t| wrong(threefry(t, [word(t, &[2, 2]); 2], &[3], &[], 1))),
        ("threefry", "1 strides for 1 dims", line!(), |t| wrong(threefry(t, [word(t, &[]); 2], &[3], &[1], 1))),
        ("threefry", "gives 1 or 2 words, not 3", line!(), |t| wrong(threefry(t, [word(t, &[]); 2], &[3], &[], 3))),
        ("threefry", "gives 1 or 2 words, not 0", line!(), |t| wrong(threefry(t, [word(t, &[]); 2], &[3], &[], 0))),
        ("remat", "returns nothing", line!(), |t| wrong(t.remat(&[x(t, &[])], |_| vec![]))),
        ("exponential", "not defined for i32", line!(), |t| wrong(t.remat(&[int(t, &[])], |x| vec![x[0].exponential()]))),
        ("exponential", "not defined for i32", line!(), |t| wrong(t.fori_loop(2, &[int(t, &[])], |_, x| vec![x[0].exponential()]))),
    ]
}

/// Calls `f` in the body of a loop with a value of the outer graph.
#[track_caller]
fn inside(t: &Tracer, f: impl for<'b> Fn(&'b Tracer, Tensor<'b>, Tensor<'b>)) {
    let outer = x(t, &[]);
    t.fori_loop(2, &[outer], |_, inner| {
        f(inner[0].tracer(), inner[0], outer);
        inner.to_vec()
    });
}

/// The body of an op and the outer graph cannot use each other's values.
#[rustfmt::skip]
fn foreign() -> Vec<Case> {
    const FOREIGN: &str = "belongs to another graph";
    vec![
        ("add", FOREIGN, line!(), |t| inside(t, |_, inner, outer| wrong(inner + outer))),
        ("add", FOREIGN, line!(), |t| inside(t, |_, inner, outer| wrong(outer + inner))),
        ("add", FOREIGN, line!(), |t| { let outer = x(t, &[]); wrong(t.case(int(t, &[]), &[outer], &[&|x| { wrong(x[0] + outer); x.to_vec() }])) }),
        ("add", FOREIGN, line!(), |t| { let outer = x(t, &[]); wrong(t.remat(&[outer], |x| { wrong(x[0] + outer); x.to_vec() })) }),
        ("add", FOREIGN, line!(), |t| { let outer = x(t, &[]); wrong(t.scan(2, &[], &[outer], &[], |_, s, _| { wrong(s[0] + outer); (s.to_vec(), vec![]) })) }),
        ("add", FOREIGN, line!(), |t| { let outer = x(t, &[]); wrong(t.custom_vjp(&[outer], |x| x.to_vec(), |x, _, ct| { wrong(x[0] + outer); ct.to_vec() })) }),
        ("output", FOREIGN, line!(), |t| inside(t, |t, _, outer| t.output("y", outer))),
        ("all_reduce", FOREIGN, line!(), |t| inside(t, |t, inner, outer| wrong(t.all_reduce(&[inner.vary(Data), outer], Reduction::Sum, Data)))),
        ("grad", FOREIGN, line!(), |t| inside(t, |_, inner, outer| wrong(grad(inner, &[inner, outer])))),
        ("grad", FOREIGN, line!(), |t| inside(t, |_, inner, outer| wrong(grad(outer, &[inner])))),
        ("grad", FOREIGN, line!(), |t| inside(t, |_, inner, outer| wrong(vjp(&[(inner, inner), (outer, inner)], &[inner])))),
        ("grad", FOREIGN, line!(), |t| inside(t, |_, inner, outer| wrong(vjp(&[(inner, outer)], &[inner])))),
        ("inline", FOREIGN, line!(), |t| inside(t, |t, _, outer| wrong(t.inline(&identity(&[]), &[outer])))),
        ("remat", FOREIGN, line!(), |t| inside(t, |t, _, outer| wrong(t.remat(&[outer], |x| x.to_vec())))),
        ("scan", FOREIGN, line!(), |t| inside(t, |t, inner, outer| wrong(t.scan(2, &[outer], &[inner], &[], |_, s, _| (s.to_vec(), vec![]))))),
        ("scan", FOREIGN, line!(), |t| inside(t, |t, _, outer| wrong(t.scan(2, &[], &[outer], &[], |_, s, _| (s.to_vec(), vec![]))))),
        ("case", FOREIGN, line!(), |t| inside(t, |t, _, outer| wrong(t.case(t.scalar(DType::I32, 0.0), &[outer], &[&|x| x.to_vec()])))),
        ("while", FOREIGN, line!(), |t| inside(t, |t, _, outer| wrong(t.fori_loop(2, &[outer], |_, x| x.to_vec())))),
        ("custom_vjp", FOREIGN, line!(), |t| inside(t, |t, _, outer| wrong(t.custom_vjp(&[outer], |x| x.to_vec(), |_, _, ct| ct.to_vec())))),
        ("custom_call", FOREIGN, line!(), |t| inside(t, |t, _, outer| wrong(t.custom_call(call(&[2]), &[outer])))),
    ]
}

fn identity(dims: &[usize]) -> Graph {
    trace(Mesh::data(2), |t| t.output("y", x(t, dims))).unwrap()
}

#[rustfmt::skip]
fn inlining() -> Vec<Case> {
    vec![
        ("inline", "the graph takes 1 inputs, not 0", line!(), |t| wrong(t.inline(&identity(&[]), &[]))),
        ("inline", "the graph takes 1 inputs, not 2", line!(), |t| wrong(t.inline(&identity(&[]), &[x(t, &[]), x(t, &[])]))),
        ("inline", "input `x` is f32[3], not f32[2]", line!(), |t| wrong(t.inline(&identity(&[3]), &[x(t, &[2])]))),
        ("inline", "input `x` is f32[], not i32[]", line!(), |t| wrong(t.inline(&identity(&[]), &[int(t, &[])]))),
        ("inline", "input `x` is f32[], not f32[]{data}", line!(), |t| wrong(t.inline(&identity(&[]), &[shard(t, &[])]))),
        ("inline", "for another mesh", line!(), |t| wrong(t.inline(&trace(Mesh::SINGLE, |t| t.output("y", x(t, &[]))).unwrap(), &[x(t, &[])]))),
    ]
}

#[test]
fn invalid_calls_are_reported_with_op_reason_and_line() {
    let cases = [elementwise(), shapes(), replicas(), foreign(), inlining()];
    for (op, fragment, line, call) in cases.into_iter().flatten() {
        let error = match trace(Mesh::data(2), call) {
            Ok(_) => panic!("line {line}: {op} was traced"),
            Err(error) => error,
        };
        assert_eq!(error.op, op, "line {line}: {error}");
        assert!(error.message.contains(fragment), "line {line}: {error}");
        assert_eq!((error.location.file(), error.location.line()), (file!(), line), "{error}");
    }
}

/// A part of the message, and an invalid call; the second of its two results is used.
type Variadic = (&'static str, for<'t> fn(&'t Tracer) -> Tensor<'t>);

fn twice(x: Tensor<'_>) -> Vec<Tensor<'_>> {
    vec![x, x]
}

/// After an error an op still has as many results as the body returns, so that callers can index
/// them.
#[test]
fn an_invalid_op_has_as_many_results_as_a_valid_one() {
    let cases: Vec<Variadic> = vec![
        ("must be 3", |t| {
            t.scan(3, &[], &[x(t, &[])], &[x(t, &[2])], |_, s, x| (s.to_vec(), twice(x[0]))).1[1]
        }),
        ("must be 3", |t| t.scan(3, &[], &[], &[x(t, &[])], |_, _, x| (vec![], twice(x[0]))).1[1]),
        ("must be 1099511627776", |t| {
            t.scan(1 << 40, &[], &[], &[x(t, &[2])], |_, _, x| (vec![], twice(x[0]))).1[1]
        }),
        ("different dims", |t| {
            t.scan(2, &[], &[], &[x(t, &[2, 2])], |_, _, v| {
                (vec![], twice(v[0] + x(v[0].tracer(), &[3])))
            })
            .1[1]
        }),
        ("0 carried values, but 2 are carried", |t| {
            t.scan(2, &[], &[x(t, &[]), x(t, &[])], &[], |_, s, _| (vec![], vec![s[0]])).0[1]
        }),
        ("belongs to another graph", |t| {
            inside(t, |t, _, outer| {
                wrong(t.scan(2, &[outer], &[], &[], |c, _, _| (vec![], twice(c[0]))).1[1])
            });
            x(t, &[])
        }),
        ("branch 1 returns 1 values, branch 0 2", |t| {
            t.case(int(t, &[]), &[x(t, &[])], &[&|x| twice(x[0]), &|x| x.to_vec()])[1]
        }),
        ("not an i32 or u32 scalar", |t| {
            t.case(pred(t, &[]), &[x(t, &[])], &[&|x| twice(x[0])])[1]
        }),
        ("not defined for i32", |t| {
            t.case(
                int(t, &[]),
                &[int(t, &[])],
                &[&|x| vec![x[0].exponential(), x[0]], &|x| x.to_vec()],
            )[1]
        }),
        ("not defined for i32", |t| t.remat(&[int(t, &[])], |x| vec![x[0].exponential(), x[0]])[1]),
        ("must be floats", |t| {
            t.custom_vjp(
                &[x(t, &[])],
                |x| vec![x[0], x[0].convert(DType::I32)],
                |_, _, ct| ct.to_vec(),
            )[1]
        }),
        ("for carried value 2", |t| {
            t.fori_loop(2, &[x(t, &[]), x(t, &[])], |_, x| vec![x[0], x[1].reshape(&[1])])[1]
        }),
        ("another number of values", |t| {
            t.fori_loop(2, &[x(t, &[]), x(t, &[])], |_, x| vec![x[0]])[1]
        }),
        ("must have the same dtype", |t| {
            t.all_reduce(&[shard(t, &[]), int(t, &[]).vary(Data)], Reduction::Sum, Data)[1]
        }),
        ("not 4", |t| x(t, &[2, 3]).top_k(4).1),
        ("needs a target", |t| {
            let ty = || TensorType::new(DType::F32, &[]);
            t.custom_call(CustomCall::new("", vec![ty(), ty()]), &[])[1]
        }),
        ("the graph takes 2 inputs, not 0", |t| {
            let twice = trace(Mesh::data(2), |t| (0..2).for_each(|_| t.output("y", x(t, &[]))));
            t.inline(&twice.unwrap(), &[])[1]
        }),
        ("sum it", |t| grad(x(t, &[2]), &[x(t, &[]), x(t, &[])])[1]),
    ];
    for (fragment, call) in cases {
        let error = trace(Mesh::data(2), |t| wrong(call(t))).unwrap_err();
        assert!(error.message.contains(fragment), "{fragment}: {error}");
    }
}

#[test]
fn the_first_error_is_the_one_reported() {
    let traced: Result<_, Error> = trace(Mesh::SINGLE, |t| {
        let broken = x(t, &[2]) + x(t, &[3]);
        let later = (broken * int(t, &[7])).reduce_sum(&[9]);
        t.output("y", later.dot(t.constant(Literal::scalar(1u8))));
    });
    let error = traced.unwrap_err();
    assert_eq!(error.op, "add");
    assert_eq!(
        error.operands.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["f32[2]", "f32[3]"]
    );
}
