//! StableHLO text of programs, compared with `snapshots/`.
//!
//! Plugins compile this text, compile caches are keyed by it, and `lockstep hlo` prints it, so
//! changes must be visible in review. Source locations are omitted and have a separate test. After
//! an intended change, run `INSTA_UPDATE=always cargo test -p lockstep-hlo --test golden` and read
//! the diff.

use hlo::passes::simplify;
use hlo::{
    Axis, AxisSet, Branch, Convolution, CustomCall, DType, DotDims, Graph, Groups, HostCalls,
    Layouts, Literal, Mesh, Reduction, Tensor, TensorType, Threefry, Tracer, Window, grad, lower,
    lower_with_host_calls, trace, verify,
};

/// Text of a graph that passes `verify`.
fn text(mesh: Mesh, f: impl FnOnce(&Tracer)) -> String {
    let graph = trace(mesh, f).unwrap();
    verify(&graph).unwrap();
    lower(&graph, "golden").text_without_locations()
}

fn f32_input<'g>(t: &'g Tracer, name: &str, dims: &[usize]) -> Tensor<'g> {
    t.input(name, TensorType::new(DType::F32, dims))
}

#[test]
fn elementwise() {
    let text = text(Mesh::SINGLE, |t| {
        let (x, y) = (f32_input(t, "x", &[2, 3]), f32_input(t, "y", &[2, 3]));
        t.output("unary", x.tanh());
        t.output("binary", x / y);
        t.output("number", 0.5 * x);
        t.output("finite", x.is_finite());
        t.output("select", x.less(y).select(x, y));
        t.output("clamp", x.clamp(-1.0, y));
        t.output("convert", x.convert(DType::Bf16));
        t.output("bits", x.bitcast_convert(DType::U32).shift_right_logical(8.0));
        let kinds = [DType::I32, DType::U8].map(|dtype| x.convert(dtype));
        t.output("signed", kinds[0].greater_equal(7.0));
        t.output("unsigned", !kinds[1].not_equal(7.0));
    });
    insta::assert_snapshot!(text);
}

#[test]
fn constants() {
    let text = text(Mesh::SINGLE, |t| {
        let output = |name: &str, literal: Literal| t.output(name, t.constant(literal));
        output("scalar", Literal::scalar(1.5f32));
        output("f64", Literal::from_slice(&[2, 2], &[0.1, 1e300, -0.0, 5e-324]));
        output("f32", Literal::from_slice(&[3], &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]));
        output("bf16", Literal::from_f64(DType::Bf16, &[2], &[1.0 / 3.0, f64::INFINITY]));
        output("i64", Literal::from_slice(&[2], &[i64::MIN, i64::MAX]));
        output("u8", Literal::from_slice(&[2], &[0u8, 255]));
        output("pred", Literal::pred(&[2, 1], &[true, false]));
        output("empty", Literal::zeros(DType::F32, &[0, 3]));
        let many: Vec<u32> = (0..65).collect();
        output("as_bytes", Literal::from_slice(&[65], &many));
        t.output("iota", t.iota(DType::I32, &[2, 3], 1));
    });
    insta::assert_snapshot!(text);
}

#[test]
fn signed_bytes() {
    let text = text(Mesh::SINGLE, |t| {
        let x = t.input("x", TensorType::new(DType::I8, &[2]));
        t.output("sum", x + t.constant(Literal::from_slice(&[2], &[-128i8, 127])));
        t.output("order", x.less(-1.0));
        t.output("greatest", x.reduce_max(&[0]));
    });
    insta::assert_snapshot!(text);
}

#[test]
fn movement() {
    let text = text(Mesh::SINGLE, |t| {
        let (x, i) = (f32_input(t, "x", &[4, 6]), t.input("i", TensorType::new(DType::I32, &[])));
        t.output("broadcast", x.broadcast_in_dim(&[4, 2, 6], &[0, 2]));
        t.output("reshape", x.reshape(&[24]));
        t.output("transpose", x.transpose(&[1, 0]));
        t.output("slice", x.slice(&[1, 0], &[4, 6], &[1, 2]));
        let window = x.dynamic_slice(&[i, i], &[1, 6]);
        t.output("dynamic_slice", window);
        t.output("dynamic_update_slice", x.dynamic_update_slice(window, &[i, i]));
        t.output("pad", x.pad(0.0, &[1, -1], &[0, 2], &[0, 1]));
        t.output("concatenate", x.concatenate(&[x], 1));
    });
    insta::assert_snapshot!(text);
}

#[test]
fn contraction() {
    let text = text(Mesh::SINGLE, |t| {
        let (x, y) = (f32_input(t, "x", &[5, 4, 6]), f32_input(t, "y", &[5, 3, 6]));
        t.output("sum", x.reduce_sum(&[0, 2]));
        t.output("max", x.reduce_max(&[1]));
        t.output("min", x.reduce_min(&[1]));
        t.output("again", y.reduce_sum(&[0]));
        t.output("all", x.is_finite().reduce(Reduction::And, &[0, 1, 2]));
        t.output("dot", x.dot_general(y, DotDims::contract(&[2], &[2]).batch(&[0], &[0])));
        t.output("outer", x.dot_general(y, DotDims::default()));
        let barred = t.optimization_barrier(&[x, y]);
        t.output("barrier", barred[1]);
    });
    insta::assert_snapshot!(text);
}

#[test]
fn collectives() {
    let both = AxisSet::of(&[Axis::Data, Axis::Tensor]);
    let text = text(Mesh::new(&[(Axis::Data, 2), (Axis::Tensor, 2)]), |t| {
        let x = t.input("x", TensorType::new(DType::F32, &[4, 8]).varying(both));
        let output = |name: &str, x: Tensor<'_>| t.output_varying(name, x, x.varying());
        output("all_reduce_data", x.all_reduce(Reduction::Sum, Axis::Data));
        output("all_reduce_tensor", x.all_reduce(Reduction::Max, Axis::Tensor));
        let sums = t.all_reduce(&[x, x.reduce_sum(&[1])], Reduction::Sum, both);
        output("all_reduce_of_two", sums[1]);
        output("all_gather", x.all_gather(1, Axis::Tensor));
        output("reduce_scatter", x.reduce_scatter(0, Axis::Data));
        output("all_to_all", x.all_to_all(0, 1, Axis::Tensor));
        output("collective_permute", x.collective_permute(&[(0, 1), (1, 0)], Axis::Data));
        output("replica_id", t.replica_id(both));
        output("replica_id_data", t.replica_id(Axis::Data));
        output("replica_id_pipeline", t.replica_id(Axis::Pipeline));
    });
    insta::assert_snapshot!(text);
}

/// The three steps of a hierarchical all_reduce over hosts of four replicas, and other collectives
/// in subgroups.
#[test]
fn subgroups() {
    let grid = AxisSet::of(&[Axis::Data, Axis::Tensor]);
    let (inner, outer) = (Groups::contiguous(grid, 4), Groups::strided(grid, 4));
    let text = text(Mesh::new(&[(Axis::Data, 4), (Axis::Tensor, 2)]), |t| {
        let x = t.input("x", TensorType::new(DType::F32, &[4, 8]).varying(grid));
        let output = |name: &str, x: Tensor<'_>| t.output_varying(name, x, x.varying());
        let shard = x.reduce_scatter(1, inner);
        output("hierarchical", shard.all_reduce(Reduction::Sum, outer).all_gather(1, inner));
        output("contiguous", x.all_reduce(Reduction::Max, inner));
        output("alone", x.all_reduce(Reduction::Sum, Groups::contiguous(grid, 1)));
        output("all_gather_of_two_axes", x.all_gather(0, grid));
        output("reduce_scatter_of_two_axes", x.reduce_scatter(1, grid));
        output("all_to_all", x.all_to_all(0, 1, Groups::strided(Axis::Data, 2)));
        output("collective_permute", x.collective_permute(&[(0, 1), (1, 0)], outer));
    });
    assert_eq!(text.matches("dense<[[0, 1, 2, 3], [4, 5, 6, 7]]>").count(), 3);
    assert_eq!(text.matches("dense<[[0, 4], [1, 5], [2, 6], [3, 7]]>").count(), 1);
    assert_eq!(text.matches("dense<[[0, 1, 2, 3, 4, 5, 6, 7]]>").count(), 2);
    insta::assert_snapshot!(text);
}

#[test]
fn rows() {
    let text = text(Mesh::SINGLE, |t| {
        let table = f32_input(t, "table", &[9, 4]);
        let ids = t.input("ids", TensorType::new(DType::I32, &[2, 3]));
        let rows = table.take(ids);
        t.output("rows", rows);
        t.output("table", table.scatter_add(ids, rows, 0));
        let batch = f32_input(t, "batch", &[2, 5, 4]);
        let in_batch = batch.gather(ids, 1);
        t.output("in_batch", in_batch);
        t.output("batch", batch.scatter_add(ids, in_batch, 1));
        let (values, indices) = batch.top_k(2);
        t.output("greatest", values);
        t.output("where", indices);
    });
    insta::assert_snapshot!(text);
}

#[test]
fn random_bits() {
    let graph = trace(Mesh::SINGLE, |t| {
        let words = t.input("words", TensorType::new(DType::U32, &[4]));
        let word = |i: usize| words.slice_dim(0, i, i + 1).reshape(&[]);
        let threefry = Threefry { dims: vec![2, 3], strides: vec![5], num_words: 1 };
        t.output("bits", t.threefry(threefry, [word(0), word(1)], [word(2), word(3)])[0]);
    });
    let graph = graph.unwrap();
    let calls = HostCalls { kernels: true, ..HostCalls::default() };
    let texts = [lower(&graph, "test"), lower_with_host_calls(&graph, "test", calls)];
    let [as_ops, as_call] = texts.map(|program| program.text_without_locations().to_string());
    insta::assert_snapshot!(format!("{as_ops}\n{as_call}"));
}

#[test]
fn scans() {
    let graph = trace(Mesh::SINGLE, |t| {
        let (x, w) = (f32_input(t, "x", &[2]), f32_input(t, "w", &[3, 2]));
        let (y, _) = t.scan(3, &[], &[x], &[w], |_, x, w| (vec![(x[0] * w[0]).sine()], vec![]));
        t.output("gradient", grad(y[0].sum(), &[w])[0]);
    });
    insta::assert_snapshot!(lower(&simplify(&graph.unwrap()), "golden").text_without_locations());
}

/// The all_reduce of the gradients, with one group of all four replicas, between backward and
/// update.
fn data_parallel_step() -> Graph {
    let graph = trace(Mesh::data(4), |t| {
        let weight = f32_input(t, "params.weight", &[3]);
        let bias = f32_input(t, "params.bias", &[]);
        let of_batch = |dims| TensorType::new(DType::F32, dims).varying(Axis::Data.into());
        let (x, y) = (t.input("batch.x", of_batch(&[2, 3])), t.input("batch.y", of_batch(&[2])));
        let error = x.dot(weight.vary(Axis::Data)) + bias.vary(Axis::Data) - y;
        let loss = (error * error).sum();
        let gradients = grad(loss, &[weight, bias]);
        t.next_state("params.weight", weight - gradients[0] * 0.125);
        t.next_state("params.bias", bias - gradients[1] * 0.125);
        t.output("loss", loss.all_reduce(Reduction::Sum, Axis::Data) / 8.0);
    });
    simplify(&graph.unwrap())
}

#[test]
fn data_parallel_step_with_donated_state() {
    let graph = data_parallel_step();
    verify(&graph).unwrap();
    let text = lower(&graph, "golden").text_without_locations();
    // Two gradients and the loss, over all four replicas; two leaves of state.
    assert_eq!(text.matches("replica_groups = dense<[[0, 1, 2, 3]]>").count(), 3);
    assert_eq!(text.matches("tf.aliasing_output").count(), 2);
    insta::assert_snapshot!(text);
}

#[test]
fn windows() {
    let text = text(Mesh::SINGLE, |t| {
        let (x, w) = (f32_input(t, "x", &[2, 3, 8, 8]), f32_input(t, "w", &[4, 3, 3, 3]));
        let y = x.convolution(w, Convolution::new(2).stride(2).padding(1));
        let pooled = y.reduce_window(Reduction::Max, Window::nchw(2, 2, 0));
        let gradients = grad(pooled.sum(), &[x, w]);
        t.output("loss", pooled.sum());
        t.output("input", gradients[0]);
        t.output("kernel", gradients[1]);
        let narrow = x.convert(DType::Bf16);
        t.output(
            "groups",
            narrow.convolution(
                w.convert(DType::Bf16).slice_dim(1, 0, 1).slice_dim(0, 0, 3),
                Convolution::new(2).groups(3),
            ),
        );
        t.output("sums", narrow.reduce_window(Reduction::Sum, Window::nchw(8, 1, 0)));
    });
    insta::assert_snapshot!(text);
}

#[test]
fn loops() {
    let text = text(Mesh::data(2), |t| {
        let x = t.input("x", TensorType::new(DType::F32, &[3]).varying(Axis::Data.into()));
        let results = t.fori_loop(5, &[x, t.full(DType::F32, &[], 0.0)], |_, carried| {
            let x = carried[0] * 0.5;
            let sum = x.sum().all_reduce(Reduction::Sum, Axis::Data);
            vec![x, carried[1] + sum]
        });
        t.output_varying("x", results[0], Axis::Data.into());
        t.output("sum", results[1]);
    });
    insta::assert_snapshot!(text);
}

/// `vary` is applied to a branch's constant result if it varies in another branch, and the gradient
/// is also a case.
#[test]
fn cases() {
    let graph = trace(Mesh::data(2), |t| {
        let x = t.input("x", TensorType::new(DType::F32, &[3]).varying(Axis::Data.into()));
        let index = t.input("index", TensorType::new(DType::U32, &[]));
        let branches: [Branch<'_>; 2] =
            [&|x| vec![x[0].tracer().full(DType::F32, &[3], 0.5), x[0].reduce_max(&[0])], &|x| {
                vec![x[0].sine(), x[0].sum()]
            }];
        let y = t.case(index, &[x], &branches);
        t.output_varying("y", y[0], Axis::Data.into());
        t.output_varying("gradient", grad(y[1] + y[0].sum(), &[x])[0], Axis::Data.into());
    });
    let graph = simplify(&graph.unwrap());
    verify(&graph).unwrap();
    insta::assert_snapshot!(lower(&graph, "golden").text_without_locations());
}

/// Attention as a kernel of the backend, and its backward pass as another: results with custom
/// layouts, an unused workspace, a configuration with quotes.
fn attention<'g>(x: &[Tensor<'g>]) -> Vec<Tensor<'g>> {
    let kernel = |target: &str, x: &[TensorType], results: Vec<TensorType>| {
        // In the kernel's layout the heads precede the sequence.
        let layout = |ty: &TensorType| match ty.rank() {
            4 if results.contains(ty) => vec![3, 1, 2, 0],
            rank => (0..rank).rev().collect(),
        };
        let row_major = |ty: &TensorType| (0..ty.rank()).rev().collect();
        let layouts = Layouts {
            operands: x.iter().map(row_major).collect(),
            results: results.iter().map(layout).collect(),
        };
        CustomCall {
            backend_config: r#"{"mask_type": "CAUSAL loc("}"#.into(),
            api_version: 2,
            layouts: Some(layouts),
            ..CustomCall::new(target, results)
        }
    };
    let types = |x: &[Tensor<'_>]| x.iter().map(Tensor::ty).collect::<Vec<_>>();
    let [batch, sequence, heads, size] = x[0].dims();
    let by_head = x[0].ty().with_dims(&[batch, heads, sequence, size]);
    let statistics = TensorType::new(DType::F32, &[batch, heads, sequence]);
    let workspace = TensorType::new(DType::U8, &[0]);
    x[0].tracer().custom_vjp(
        x,
        |x| {
            let results = vec![by_head.clone(), statistics, workspace.clone()];
            let call = kernel("__cudnn$fmhaSoftmax", &types(x), results);
            x[0].tracer().custom_call(call, x)[..2].to_vec()
        },
        |x, y, ct| {
            let operands = [x, &[y[1], ct[0], y[0]]].concat();
            let results =
                vec![by_head.clone(), by_head.clone(), by_head.clone(), workspace.clone()];
            let call = kernel("__cudnn$fmhaSoftmaxBackward", &types(&operands), results);
            let found = x[0].tracer().custom_call(call, &operands);
            found[..3].iter().map(|found| found.transpose(&[0, 2, 1, 3])).collect()
        },
    )
}

#[test]
fn custom_calls() {
    let graph = trace(Mesh::SINGLE, |t| {
        let ty = TensorType::new(DType::Bf16, &[2, 8, 4, 16]);
        let x: Vec<_> = ["q", "k", "v"].iter().map(|name| t.input(*name, ty.clone())).collect();
        let y = attention(&x)[0];
        t.output("y", y);
        t.output("gradient", grad(y.convert(DType::F32).sum(), &x)[1]);
        let typed = CustomCall {
            backend_config: "{rank = 7 : i64}".into(),
            api_version: 4,
            has_side_effect: true,
            ..CustomCall::new("a name, quoted", vec![TensorType::new(DType::F32, &[])])
        };
        // Neither merged nor removed.
        t.custom_call(typed.clone(), &[]);
        t.custom_call(typed, &[]);
    });
    let graph = simplify(&graph.unwrap());
    verify(&graph).unwrap();
    let text = lower(&graph, "golden").text_without_locations();
    assert_eq!(text.matches("stablehlo.custom_call").count(), 4);
    insta::assert_snapshot!(text);
}

/// Each op has a location, gradients have that of the differentiated op, and each location is
/// defined once.
#[test]
fn locations_are_lines_of_the_source() {
    let program = lower(&data_parallel_step(), "golden");
    let lines: Vec<_> = program.text.lines().collect();
    let definitions: Vec<_> = lines.iter().filter(|line| line.starts_with("#loc")).collect();
    assert!(definitions.len() > 5);
    for (index, definition) in definitions.iter().enumerate() {
        let place = definition.strip_prefix(&format!("#loc{index} = loc(")).unwrap();
        let place = place.strip_prefix("\"backward\"(").unwrap_or(place);
        assert!(place.starts_with(&format!("\"{}\":", file!())), "{definition}");
    }
    let location_of = |op: &str| {
        let line = lines.iter().find(|line| line.contains(op)).unwrap();
        let (_, name) = line.rsplit_once(" loc(").unwrap();
        let name = name.trim_end_matches(')');
        definitions.iter().find(|line| line.starts_with(&format!("{name} = "))).unwrap()
    };
    let source_line = |op: &str| -> usize {
        let definition = location_of(op);
        definition.rsplit(':').nth(1).unwrap().parse().unwrap()
    };
    for (op, code) in [
        ("stablehlo.dot_general", "x.dot(weight.vary(Axis::Data))"),
        // The VJP of `vary` in that line.
        ("stablehlo.all_reduce", "weight.vary(Axis::Data)"),
        ("stablehlo.divide", "/ 8.0"),
    ] {
        let source = include_str!("golden.rs").lines().nth(source_line(op) - 1).unwrap();
        assert!(source.contains(code), "{op} is said to come from: {source}");
        let is_gradient = op == "stablehlo.all_reduce";
        assert_eq!(location_of(op).contains("\"backward\""), is_gradient, "{op}");
    }
}
