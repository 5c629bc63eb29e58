//! Collectives, loops and invalid inputs in the interpreter, on 1 to 8 replicas.

mod values;

use hlo::{
    Axis, AxisSet, CustomCall, DType, Graph, Groups, InterpError, Literal, Mesh, Reduction, Tensor,
    TensorType, Tracer, interpret, trace,
};

use Axis::{Data, Tensor as Model};

/// Replica r holds `[r + 1, 10 (r + 1)]`.
fn inputs(mesh: Mesh) -> Vec<Literal> {
    let value = |replica: usize| {
        Literal::from_slice(&[2], &[1f32, 10.0].map(|x| x * (replica as f32 + 1.0)))
    };
    (0..mesh.num_replicas()).map(value).collect()
}

fn graph(mesh: Mesh, build: impl for<'t> FnOnce(&'t Tracer, Tensor<'t>) -> Tensor<'t>) -> Graph {
    let traced = trace(mesh, |t| {
        let varying = AxisSet::of(&[Data, Model]);
        let x = t.input("x", TensorType::new(DType::F32, &[2]).varying(varying));
        t.output_varying("result", build(t, x), AxisSet::ALL);
    });
    traced.unwrap_or_else(|error| panic!("{error}"))
}

fn as_f64(results: &[Literal]) -> Vec<Vec<f64>> {
    results.iter().map(Literal::to_f64).collect()
}

type Build = for<'t> fn(&'t Tracer, Tensor<'t>) -> Tensor<'t>;

/// Name, mesh, op, and its value on each replica. On the 2x2 mesh, groups along `data` are [0, 2]
/// and [1, 3], along `tensor` [0, 1] and [2, 3].
fn cases() -> Vec<(&'static str, Mesh, Build, Vec<Vec<f64>>)> {
    let two = Mesh::data(2);
    let four = Mesh::data(4);
    let square = Mesh::new(&[(Data, 2), (Model, 2)]);
    let pairs = |[a, b, c, d]: [[f64; 2]; 4]| [a, b, c, d].map(Vec::from).to_vec();
    let quads = |[a, b, c, d]: [[f64; 4]; 4]| [a, b, c, d].map(Vec::from).to_vec();
    let singles = |values: &[f64]| values.iter().map(|x| vec![*x]).collect();
    vec![
        (
            "sum of one",
            Mesh::SINGLE,
            |_, x| x.all_reduce(Reduction::Sum, Data),
            vec![vec![1., 10.]],
        ),
        ("sum of two", two, |_, x| x.all_reduce(Reduction::Sum, Data), vec![vec![3., 30.]; 2]),
        ("sum of four", four, |_, x| x.all_reduce(Reduction::Sum, Data), vec![vec![10., 100.]; 4]),
        ("sum along data", square, |_, x| x.all_reduce(Reduction::Sum, Data), {
            pairs([[4., 40.], [6., 60.], [4., 40.], [6., 60.]])
        }),
        ("sum along tensor", square, |_, x| x.all_reduce(Reduction::Sum, Model), {
            pairs([[3., 30.], [3., 30.], [7., 70.], [7., 70.]])
        }),
        (
            "sum along both",
            square,
            |_, x| x.all_reduce(Reduction::Sum, AxisSet::of(&[Data, Model])),
            { vec![vec![10., 100.]; 4] },
        ),
        ("max along data", square, |_, x| x.all_reduce(Reduction::Max, Data), {
            pairs([[3., 30.], [4., 40.], [3., 30.], [4., 40.]])
        }),
        ("min along tensor", square, |_, x| x.all_reduce(Reduction::Min, Model), {
            pairs([[1., 10.], [1., 10.], [3., 30.], [3., 30.]])
        }),
        ("or along data", square, |_, x| any_or_all(x, Reduction::Or, Data), {
            pairs([[1., 1.], [1., 1.], [1., 1.], [1., 1.]])
        }),
        ("and along tensor", square, |_, x| any_or_all(x, Reduction::And, Model), {
            pairs([[0., 1.], [0., 1.], [1., 1.], [1., 1.]])
        }),
        (
            "several at once",
            two,
            |t, x| t.all_reduce(&[x, x.slice_dim(0, 0, 1) * 2.0], Reduction::Sum, Data)[1],
            { singles(&[6., 6.]) },
        ),
        // ((1e8 + 4) + 4) + 4: each 4 is lost to rounding, but their sum would not be.
        (
            "sum rounds after each",
            four,
            |t, x| {
                let large = t.replica_id(Data).equal(0.0);
                large.select(x.full_like(1e8), x.full_like(4.0)).all_reduce(Reduction::Sum, Data)
            },
            vec![vec![1e8, 1e8]; 4],
        ),
        ("gather along data", square, |_, x| x.all_gather(0, Data), {
            quads([[1., 10., 3., 30.], [2., 20., 4., 40.], [1., 10., 3., 30.], [2., 20., 4., 40.]])
        }),
        ("gather along tensor", square, |_, x| x.all_gather(0, Model), {
            quads([[1., 10., 2., 20.], [1., 10., 2., 20.], [3., 30., 4., 40.], [3., 30., 4., 40.]])
        }),
        ("gather along dim 1", two, |_, x| x.reshape(&[2, 1]).all_gather(1, Data), {
            vec![vec![1., 2., 10., 20.]; 2]
        }),
        ("sum of neighbours", four, |_, x| x.all_reduce(Reduction::Sum, contiguous()), {
            pairs([[3., 30.], [3., 30.], [7., 70.], [7., 70.]])
        }),
        ("max of every second", four, |_, x| x.all_reduce(Reduction::Max, strided()), {
            pairs([[3., 30.], [4., 40.], [3., 30.], [4., 40.]])
        }),
        ("gather of every second", four, |_, x| x.all_gather(0, strided()), {
            quads([[1., 10., 3., 30.], [2., 20., 4., 40.], [1., 10., 3., 30.], [2., 20., 4., 40.]])
        }),
        ("gather along both", square, |_, x| x.all_gather(0, AxisSet::of(&[Data, Model])), {
            vec![vec![1., 10., 2., 20., 3., 30., 4., 40.]; 4]
        }),
        (
            "scatter to neighbours",
            four,
            |_, x| x.reduce_scatter(0, contiguous()),
            singles(&[3., 30., 7., 70.]),
        ),
        ("exchange with every second", four, |_, x| x.all_to_all(0, 0, strided()), {
            pairs([[1., 3.], [2., 4.], [10., 30.], [20., 40.]])
        }),
        ("permute neighbours", four, |_, x| x.collective_permute(&[(0, 1)], contiguous()), {
            pairs([[0., 0.], [1., 10.], [0., 0.], [3., 30.]])
        }),
        ("scatter along two", two, |_, x| x.reduce_scatter(0, Data), singles(&[3., 30.])),
        (
            "scatter along data",
            square,
            |_, x| x.reduce_scatter(0, Data),
            singles(&[4., 6., 40., 60.]),
        ),
        (
            "scatter along tensor",
            square,
            |_, x| x.reduce_scatter(0, Model),
            singles(&[3., 30., 7., 70.]),
        ),
        (
            "all_to_all of two",
            two,
            |_, x| x.all_to_all(0, 0, Data),
            vec![vec![1., 2.], vec![10., 20.]],
        ),
        ("all_to_all along tensor", square, |_, x| x.all_to_all(0, 0, Model), {
            pairs([[1., 2.], [10., 20.], [3., 4.], [30., 40.]])
        }),
        (
            "all_to_all between dims",
            two,
            |_, x| {
                // [[x0, x1], [10 x0, 10 x1]] is cut into columns, and [2, 1] pieces are joined
                // along dim 0.
                x.reshape(&[2, 1])
                    .concatenate(&[x.reshape(&[2, 1]) * -1.0], 1)
                    .all_to_all(1, 0, Data)
            },
            vec![vec![1., 10., 2., 20.], vec![-1., -10., -2., -20.]],
        ),
        ("permute along tensor", square, |_, x| x.collective_permute(&[(0, 1)], Model), {
            pairs([[0., 0.], [1., 10.], [0., 0.], [3., 30.]])
        }),
        (
            "ring of four",
            four,
            |_, x| x.collective_permute(&[(0, 1), (1, 2), (2, 3), (3, 0)], Data),
            { pairs([[4., 40.], [1., 10.], [2., 20.], [3., 30.]]) },
        ),
        ("index along data", square, |t, _| t.replica_id(Data), singles(&[0., 0., 1., 1.])),
        ("index along tensor", square, |t, _| t.replica_id(Model), singles(&[0., 1., 0., 1.])),
        ("index along both", square, |t, _| t.replica_id(AxisSet::of(&[Data, Model])), {
            singles(&[0., 1., 2., 3.])
        }),
        ("vary", two, |t, _| t.full(DType::F32, &[1], 5.0).vary(Data), singles(&[5., 5.])),
        (
            "fori",
            two,
            |t, x| {
                t.fori_loop(4, &[x], |i, carried| {
                    vec![carried[0] + i.convert(DType::F32).vary(carried[0].varying())]
                })[0]
            },
            vec![vec![7., 16.], vec![8., 26.]],
        ),
        ("fori of no trip", two, |t, x| t.fori_loop(0, &[x], |_, x| vec![x[0] * 0.0])[0], {
            vec![vec![1., 10.], vec![2., 20.]]
        }),
        (
            "loop in a loop",
            Mesh::SINGLE,
            |t, x| {
                let outer = t.fori_loop(3, &[x], |_, outer| {
                    outer[0].tracer().fori_loop(2, outer, |_, inner| vec![inner[0] + 1.0])
                });
                outer[0]
            },
            vec![vec![7., 16.]],
        ),
        (
            "sum in a loop",
            two,
            |t, x| {
                let results = t.fori_loop(2, &[x], |_, carried| {
                    vec![carried[0].all_reduce(Reduction::Sum, Data).vary(Data).vary(Model)]
                });
                results[0]
            },
            vec![vec![6., 60.]; 2],
        ),
        // Replicas leave after a different number of iterations: 1 2 .. 128, 2 4 .. 128, 3 6 ..
        // 192, 4 8 .. 128.
        (
            "while",
            four,
            |t, x| {
                let start = x.slice_dim(0, 0, 1);
                t.while_loop(&[start], |x| x[0].reshape(&[]).less(100.0), |x| vec![x[0] * 2.0])[0]
            },
            singles(&[128., 128., 192., 128.]),
        ),
        (
            "while in a loop",
            two,
            |t, x| {
                let start = x.slice_dim(0, 0, 1).reshape(&[]);
                let results = t.fori_loop(2, &[start], |_, x| {
                    let x = x[0].tracer().while_loop(x, |x| x[0].less(4.0), |x| vec![x[0] * 2.0]);
                    vec![x[0] - 1.0]
                });
                results[0]
                // 1 2 4 3 6 5; 2 4 3 6 5
            },
            singles(&[5., 5.]),
        ),
    ]
}

fn contiguous() -> Groups {
    Groups::contiguous(Data, 2)
}

fn strided() -> Groups {
    Groups::strided(Data, 2)
}

/// `true` if the value is above 2.5 on any, or all, replicas.
fn any_or_all(x: Tensor<'_>, reduction: Reduction, axis: Axis) -> Tensor<'_> {
    x.greater(2.5).all_reduce(reduction, axis)
}

#[test]
fn collectives_and_loops_give_the_values_computed_by_hand() {
    for (name, mesh, build, expected) in cases() {
        let graph = graph(mesh, build);
        let results = interpret(&graph, &[inputs(mesh)]).unwrap();
        assert_eq!(as_f64(&results[0]), expected, "{name}");
    }
}

/// With whole numbers: their sums do not depend on the order.
#[test]
fn a_hierarchical_all_reduce_is_an_all_reduce_on_every_replica() {
    let grid = AxisSet::of(&[Data, Model]);
    let inputs = |mesh: Mesh| -> Vec<Literal> {
        let values = |replica| values::uniform(replica as u32, 16, -1e3, 1e3);
        let whole = |replica| values(replica).iter().map(|x| x.round()).collect::<Vec<_>>();
        let literal = |replica| Literal::from_f64(DType::F32, &[16], &whole(replica));
        (0..mesh.num_replicas()).map(literal).collect()
    };
    for (mesh, host) in [
        (Mesh::data(1), 1),
        (Mesh::data(4), 2),
        (Mesh::data(8), 4),
        (Mesh::new(&[(Data, 4), (Model, 2)]), 4),
        (Mesh::new(&[(Data, 2), (Axis::Fsdp, 2), (Model, 2)]), 2),
    ] {
        let (inner, outer) = (Groups::contiguous(grid, host), Groups::strided(grid, host));
        let graph = trace(mesh, |t| {
            let x = t.input("x", TensorType::new(DType::F32, &[16]).varying(AxisSet::ALL));
            let shard = x.reduce_scatter(0, inner).all_reduce(Reduction::Sum, outer);
            t.output_varying("hierarchical", shard.all_gather(0, inner), AxisSet::ALL);
            t.output_varying("plain", x.all_reduce(Reduction::Sum, grid), AxisSet::ALL.minus(grid));
        });
        let graph = graph.unwrap();
        let by_type = |i: usize| graph.ty(graph.outputs()[i].value).varying;
        assert_eq!([by_type(0), by_type(1)], [AxisSet::ALL, AxisSet::ALL.minus(grid)]);
        let results = interpret(&graph, &[inputs(mesh)]).unwrap();
        assert_eq!(results[0], results[1], "{mesh:?}");
    }
}

#[test]
fn a_collective_that_some_replicas_never_reach_is_an_error() {
    let mesh = Mesh::new(&[(Data, 2), (Model, 2)]);
    // Replicas 0 and 1, along `tensor`, leave together; 0 and 2, along `data`, do not.
    let reduced_over = |axis: Axis| {
        graph(mesh, |t, x| {
            let start = t.replica_id(Data).vary(Model);
            let results = t.while_loop(
                &[start, x],
                |carried| carried[0].less(2.0),
                |carried| {
                    let sum = carried[1].all_reduce(Reduction::Sum, axis).vary(axis);
                    vec![carried[0] + 1.0, sum]
                },
            );
            results[1]
        })
    };
    let along_tensor = interpret(&reduced_over(Model), &[inputs(mesh)]).unwrap();
    assert_eq!(as_f64(&along_tensor[0])[0], [6.0, 60.0]);
    match interpret(&reduced_over(Data), &[inputs(mesh)]) {
        Err(InterpError::LeftLoop { op, location, group }) => {
            assert_eq!((op, group), ("all_reduce", vec![0, 2]));
            assert_eq!(location.file(), file!());
        }
        other => panic!("{other:?}"),
    }
}

fn sum(x: Tensor<'_>, axis: Axis) -> Tensor<'_> {
    x.all_reduce(Reduction::Sum, axis).vary(axis)
}

#[test]
fn a_collective_in_a_branch_that_some_replicas_take_is_an_error() {
    let mesh = Mesh::new(&[(Data, 2), (Model, 2)]);
    let reduced_over = |axis: Axis| {
        graph(mesh, |t, x| {
            let index = t.replica_id(Data);
            t.case(index, &[x], &[&|x| vec![sum(x[0], axis)], &|x| vec![sum(x[0], axis) + x[0]]])[0]
        })
    };
    let along_tensor = interpret(&reduced_over(Model), &[inputs(mesh)]).unwrap();
    assert_eq!(as_f64(&along_tensor[0])[0], [3.0, 30.0]);
    assert_eq!(as_f64(&along_tensor[0])[3], [7.0 + 4.0, 70.0 + 40.0]);
    assert_eq!(hlo::verify(&reduced_over(Model)), Ok(()));
    let diverges = reduced_over(Data);
    let error = interpret(&diverges, &[inputs(mesh)]).unwrap_err();
    assert!(matches!(&error, InterpError::LeftLoop { group, .. } if *group == [0, 2]), "{error}");
    let error = hlo::verify(&diverges).unwrap_err();
    assert!(
        matches!(error, hlo::VerifyError::DivergentCollective { axes, .. } if axes == Data.into())
    );
}

#[test]
fn invalid_inputs_are_typed_errors() {
    let mesh = Mesh::data(2);
    let graph = graph(mesh, |_, x| x);
    let good = inputs(mesh);
    let wrong = |second: Literal| vec![vec![good[0].clone(), second]];
    let cases = [
        (vec![], "the graph has 1 inputs, got 0"),
        (vec![good[..1].to_vec()], "input `x` needs values for 2 replicas, got 1"),
        (
            wrong(Literal::from_slice(&[2], &[1, 2])),
            "input `x` is f32[2]{data, tensor}, got i32[2]{data, tensor} on replica 1",
        ),
        (
            wrong(Literal::from_slice(&[1, 2], &[1f32, 2.0])),
            "input `x` is f32[2]{data, tensor}, got f32[1, 2]{data, tensor} on replica 1",
        ),
    ];
    for (inputs, message) in cases {
        assert_eq!(interpret(&graph, &inputs).unwrap_err().to_string(), message);
    }
}

#[test]
fn a_function_of_the_backend_is_an_error() {
    let graph =
        graph(Mesh::SINGLE, |t, x| t.custom_call(CustomCall::new("f", vec![x.ty()]), &[x])[0]);
    match interpret(&graph, &[inputs(Mesh::SINGLE)]) {
        Err(InterpError::CustomCall { target, location }) => {
            assert_eq!((target.as_str(), location.file()), ("f", file!()));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_value_too_large_to_evaluate_is_an_error() {
    let graph = graph(Mesh::SINGLE, |t, _| t.full(DType::F32, &[1 << 14, 1 << 14], 0.0));
    let error = interpret(&graph, &[inputs(Mesh::SINGLE)]).unwrap_err();
    assert!(matches!(error, InterpError::TooLarge { op: "broadcast_in_dim", .. }), "{error}");
}
