//! `scan` against the unrolled loop: values and gradients in f64, on one replica and on four.
//! `remat` against no `remat`.

mod values;

use hlo::{
    Axis, AxisSet, DType, Graph, Literal, Mesh, Op, Reduction, Tensor, TensorType, Tracer, count,
    grad, interpret, lower, passes, rewrites, trace, verify,
};

const LENGTH: usize = 3;

/// An iteration: from constants, carried values and slices to carried values and slices.
type Round =
    for<'b> fn(&[Tensor<'b>], &[Tensor<'b>], &[Tensor<'b>]) -> (Vec<Tensor<'b>>, Vec<Tensor<'b>>);

struct Case {
    name: &'static str,
    mesh: Mesh,
    consts: Vec<TensorType>,
    init: Vec<TensorType>,
    xs: Vec<TensorType>,
    /// `true` if the last carried value is initially a constant zero.
    from_zero: bool,
    round: Round,
}

fn f64s(dims: &[usize]) -> TensorType {
    TensorType::new(DType::F64, dims)
}

fn shard(dims: &[usize]) -> TensorType {
    f64s(dims).varying(Axis::Data.into())
}

fn cases() -> Vec<Case> {
    let case = |name, consts: &[_], init: &[_], xs: &[_], round| Case {
        name,
        mesh: Mesh::SINGLE,
        consts: consts.to_vec(),
        init: init.to_vec(),
        xs: xs.to_vec(),
        from_zero: false,
        round,
    };
    let four = |name, consts: &[_], init: &[_], xs: &[_], round| Case {
        mesh: Mesh::data(4),
        ..case(name, consts, init, xs, round)
    };
    vec![
        case("layers", &[], &[f64s(&[2, 3])], &[f64s(&[LENGTH, 3, 3])], |_, h, w| {
            (vec![h[0].dot(w[0]).tanh()], vec![h[0].sum()])
        }),
        case(
            "a constant, and stacks without a carried value",
            &[f64s(&[3])],
            &[],
            &[f64s(&[LENGTH, 3])],
            |c, _, x| (vec![], vec![(c[0] * x[0]).sine(), x[0].exponential().sum()]),
        ),
        case("only carried", &[], &[f64s(&[2]), f64s(&[2])], &[], |_, s, _| {
            (vec![s[1].sine(), s[0] * s[1]], vec![])
        }),
        Case {
            from_zero: true,
            ..case(
                "a sum from zero",
                &[f64s(&[])],
                &[f64s(&[2])],
                &[f64s(&[LENGTH, 2])],
                |c, s, x| (vec![s[0] * x[0] + c[0], s[1] + (s[0] * s[0]).sum()], vec![s[0]]),
            )
        },
        case("softmax, which is kept small", &[f64s(&[3, 4])], &[f64s(&[2, 3])], &[], |c, s, _| {
            let p = s[0].dot(c[0]).log_softmax().exponential();
            (vec![p.dot_general(c[0], hlo::DotDims::contract(&[1], &[1]))], vec![])
        }),
        case(
            "a scan in a scan",
            &[f64s(&[2, 2])],
            &[f64s(&[2])],
            &[f64s(&[LENGTH, 2, 2])],
            |c, s, x| {
                let t = s[0].tracer();
                let (inner, ys) = t.scan(2, c, s, x, |c, s, x| {
                    let next = (s[0] * x[0]).sine().dot(c[0]);
                    (vec![next], vec![next * x[0]])
                });
                (vec![inner[0] + ys[0].reduce_sum(&[0])], vec![ys[0]])
            },
        ),
        case("remat inside", &[], &[f64s(&[2, 3])], &[f64s(&[LENGTH, 3, 3])], |_, h, w| {
            let y = h[0].tracer().remat(&[h[0], w[0]], |x| vec![x[0].dot(x[1]).tanh().sine()]);
            (y, vec![])
        }),
        case("a case inside", &[], &[f64s(&[2, 3])], &[f64s(&[LENGTH, 3, 3])], |_, h, w| {
            let index = w[0].sum().greater(0.0).convert(DType::I32);
            let y = h[0].tracer().case(
                index,
                &[h[0], w[0]],
                &[&|x| vec![x[0].dot(x[1]).tanh()], &|x| vec![x[0].sine()]],
            );
            (y.clone(), y)
        }),
        four("vary outside", &[], &[shard(&[2, 3])], &[shard(&[LENGTH, 3, 3])], |_, h, w| {
            (vec![h[0].dot(w[0]).tanh()], vec![h[0].sum()])
        }),
        four(
            "vary inside",
            &[f64s(&[3])],
            &[shard(&[2, 3])],
            &[f64s(&[LENGTH, 3, 3])],
            |c, h, w| {
                let [c, w] = [c[0], w[0]].map(|x| x.vary(Axis::Data));
                (vec![h[0].dot(w).tanh() + c.broadcast_like(h[0], &[1])], vec![])
            },
        ),
        four("all_reduce inside", &[shard(&[2])], &[f64s(&[2])], &[], |c, s, _| {
            let sum = (c[0] * s[0].vary(Axis::Data)).sine().all_reduce(Reduction::Sum, Axis::Data);
            (vec![sum * 0.5], vec![s[0]])
        }),
        Case {
            from_zero: true,
            ..four("a sum from zero that comes to vary", &[], &[shard(&[2])], &[], |_, s, _| {
                (vec![s[0].sine(), s[1] + s[0].sum()], vec![])
            })
        },
    ]
}

/// The unrolled loop.
fn unrolled<'g>(
    round: Round,
    consts: &[Tensor<'g>],
    init: &[Tensor<'g>],
    xs: &[Tensor<'g>],
) -> (Vec<Tensor<'g>>, Vec<Tensor<'g>>) {
    let (mut carried, mut all) = (init.to_vec(), vec![]);
    for i in 0..LENGTH {
        let slice = |x: &Tensor<'g>| x.slice_dim(0, i, i + 1).reshape(&x.shape()[1..]);
        let slices: Vec<_> = xs.iter().map(slice).collect();
        let (next, ys) = round(consts, &carried, &slices);
        carried = next;
        all.push(ys);
    }
    let stack = |j: usize| {
        let rows = all.iter().map(|ys| ys[j].reshape(&[&[1], &ys[j].shape()[..]].concat()));
        let rows: Vec<_> = rows.collect();
        rows[0].concatenate(&rows[1..], 0)
    };
    let num_ys = all[0].len();
    (carried, (0..num_ys).map(stack).collect())
}

impl Case {
    /// From the inputs to the results, and to gradients of their weighted sum.
    fn graph(&self, scanned: bool) -> Graph {
        let types: Vec<_> = [&self.consts, &self.init, &self.xs].into_iter().flatten().collect();
        let graph = trace(self.mesh, |t| {
            let inputs: Vec<_> = types
                .iter()
                .enumerate()
                .map(|(i, ty)| t.input(format!("x.{i}"), (*ty).clone()))
                .collect();
            let (consts, rest) = inputs.split_at(self.consts.len());
            let (init, xs) = rest.split_at(self.init.len());
            let mut init = init.to_vec();
            if self.from_zero {
                let zero = t.scalar(DType::F64, 0.0);
                // Unrolled, `vary` is applied to the zero by the first sum.
                init.push(if scanned { zero } else { zero.vary(init[0].varying()) });
            }
            let (carried, ys) = match scanned {
                true => t.scan(LENGTH, consts, &init, xs, self.round),
                false => unrolled(self.round, consts, &init, xs),
            };
            let results = [carried, ys].concat();
            let mut loss: Option<Tensor<'_>> = None;
            for (i, result) in results.iter().enumerate() {
                t.output_varying(format!("result.{i}"), *result, AxisSet::ALL);
                let part = (result.sine() * (i as f64 + 1.0)).sum();
                let part = match part.varying() == self.loss_varying() {
                    true => part,
                    false => part.vary(self.loss_varying()),
                };
                loss = Some(loss.map_or(part, |loss| loss + part));
            }
            for (i, gradient) in grad(loss.unwrap(), &inputs).into_iter().enumerate() {
                t.output_varying(format!("gradient.{i}"), gradient, types[i].varying);
            }
        });
        let graph = graph.unwrap_or_else(|error| panic!("{}: {error}", self.name));
        verify(&graph).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        graph
    }

    fn loss_varying(&self) -> AxisSet {
        let all = [&self.consts, &self.init, &self.xs].into_iter().flatten();
        all.fold(AxisSet::EMPTY, |varying, ty| varying | ty.varying)
    }

    fn inputs(&self) -> Vec<Vec<Literal>> {
        let types = [&self.consts, &self.init, &self.xs].into_iter().flatten();
        let on_replica = |i: usize, ty: &TensorType, replica: usize| {
            let stream = (10 * i + if ty.varying.is_empty() { 0 } else { replica }) as u32;
            Literal::from_slice(&ty.dims, &values::uniform(stream, ty.num_elements(), -1.0, 1.0))
        };
        let replicas = 0..self.mesh.num_replicas();
        types
            .enumerate()
            .map(|(i, ty)| replicas.clone().map(|replica| on_replica(i, ty, replica)).collect())
            .collect()
    }
}

fn close(name: &str, got: &[Vec<Literal>], expected: &[Vec<Literal>]) {
    assert_eq!(got.len(), expected.len(), "{name}");
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        for (replica, (got, expected)) in got.iter().zip(expected).enumerate() {
            for (got, expected) in got.to_f64().into_iter().zip(expected.to_f64()) {
                let error = (got - expected).abs() / expected.abs().max(1.0);
                assert!(error < 1e-13, "{name}: output {i}, replica {replica}: {got}, {expected}");
            }
        }
    }
}

#[test]
fn a_scan_has_the_values_and_gradients_of_the_unrolled_loop() {
    for case in cases() {
        let inputs = case.inputs();
        let expected = interpret(&case.graph(false), &inputs).unwrap();
        let graph = case.graph(true);
        close(case.name, &interpret(&graph, &inputs).unwrap(), &expected);
        let simple = passes::simplify(&graph);
        assert_eq!(verify(&simple), Ok(()), "{}", case.name);
        close(case.name, &interpret(&simple, &inputs).unwrap(), &expected);
    }
}

fn num_scans(graph: &Graph) -> usize {
    graph.nodes().iter().filter(|node| matches!(node.op, Op::Scan(_))).count()
}

#[test]
fn the_forward_pass_runs_once_and_keeps_the_residuals() {
    for case in cases() {
        let graph = case.graph(true);
        assert_eq!(num_scans(&passes::simplify(&graph)), 2, "{}", case.name);
    }
}

#[test]
fn a_scan_costs_as_much_as_its_iterations() {
    let matmuls = |graph: &Graph| count(&passes::simplify(graph)).transcendentals;
    for case in cases() {
        let (scanned, unrolled) = (case.graph(true), case.graph(false));
        assert_eq!(matmuls(&scanned), matmuls(&unrolled), "{}", case.name);
    }
}

#[test]
fn values_at_hand_are_not_kept() {
    let graph = trace(Mesh::SINGLE, |t| {
        let (h, w) = (t.input("h", f64s(&[2, 3])), t.input("w", f64s(&[LENGTH, 3, 3])));
        let (y, _) = t.scan(LENGTH, &[], &[h], &[w], |_, h, w| {
            let sum = h[0].reduce_sum(&[1]);
            (vec![h[0].dot(w[0]) * sum.broadcast_like(h[0], &[0])], vec![])
        });
        t.output("gradient", grad(y[0].sum(), &[w])[0]);
    });
    let graph = passes::simplify(&graph.unwrap());
    let results = graph.nodes().iter().find(|node| matches!(node.op, Op::Scan(_)));
    // Carried, then kept: h, the product and the row sums, but neither w nor the sums' broadcast.
    let dims: Vec<_> = results.unwrap().results().map(|y| graph.ty(y).dims.clone()).collect();
    assert_eq!(dims[1..], [vec![LENGTH, 2, 3], vec![LENGTH, 2], vec![LENGTH, 2, 3]]);
}

#[test]
fn cheap_functions_of_kept_values_are_recomputed() {
    let graph = trace(Mesh::SINGLE, |t| {
        let (h, w) = (t.input("h", f64s(&[2, 3])), t.input("w", f64s(&[LENGTH, 2, 3])));
        let (y, _) = t.scan(LENGTH, &[], &[h], &[w], |_, h, w| {
            let power = h[0].exponential();
            let root = (power * w[0] + 1.0).sqrt();
            (vec![power * root * (root + w[0])], vec![])
        });
        t.output("gradient", grad(y[0].sum(), &[h])[0]);
    });
    let graph = passes::simplify(&graph.unwrap());
    let forward = graph.nodes().iter().find(|node| matches!(node.op, Op::Scan(_)));
    // Carried, then kept: the exponential and the root, but not their product or the sum.
    assert_eq!(forward.unwrap().results().len(), 1 + 2);
}

/// Masks, other layers' inputs and values that are only read get no cotangents: their sums and
/// stacks would be carried through the backward pass.
#[test]
fn the_backward_pass_only_computes_wanted_cotangents() {
    let graph = trace(Mesh::SINGLE, |t| {
        let consts = ["w", "offset"].map(|name| t.input(name, f64s(&[2])));
        let init = ["h", "unrelated"].map(|name| t.input(name, f64s(&[2])));
        let xs = ["v", "mask"].map(|name| t.input(name, f64s(&[LENGTH, 2])));
        let ([w, _], [v, _]) = (consts, xs);
        let (s, _) = t.scan(LENGTH, &consts, &init, &xs, |c, s, x| {
            let next = (s[0] * x[0] * x[1] + c[1] * s[1]).tanh() * c[0].stop_gradient();
            (vec![next + c[0], s[1].sine()], vec![])
        });
        for (i, gradient) in grad((s[0] * s[1]).sum(), &[w, v]).into_iter().enumerate() {
            t.output(format!("gradient.{i}"), gradient);
        }
    });
    let graph = passes::simplify(&graph.unwrap());
    let backward = graph.nodes().iter().rfind(|node| matches!(node.op, Op::Scan(_))).unwrap();
    // The sum for w, the cotangent of h, the stack for v.
    assert_eq!(backward.results().len(), 3);
}

#[test]
fn a_while_has_no_gradient_and_needs_none_after_stop_gradient() {
    let gradient = |stops: bool| {
        trace(Mesh::SINGLE, |t| {
            let x = t.input("x", f64s(&[]));
            let start = if stops { x.stop_gradient() } else { x };
            let y = t.fori_loop(3, &[start], |_, y| vec![y[0] * y[0]])[0];
            t.output("gradient", grad(x * y, &[x])[0]);
        })
    };
    let outputs = interpret(&gradient(true).unwrap(), &[vec![Literal::scalar(0.5)]]).unwrap();
    assert_eq!(outputs[0][0].to_f64(), [0.5f64.powi(8)]);
    let error = gradient(false).unwrap_err();
    assert!(error.message.contains("not reverse-differentiable"), "{error}");
}

#[test]
fn a_scan_is_lowered_to_a_while() {
    let program = lower(&passes::simplify(&cases()[0].graph(true)), "test");
    let text = program.text_without_locations();
    assert_eq!(text.matches("stablehlo.while").count(), 2);
    assert!(!text.contains("scan"));
}

/// The loop that keeps residuals takes the place of the plain one, also if a rewrite has copied
/// their bodies.
#[test]
fn a_marked_scan_runs_forward_once() {
    let graph = trace(Mesh::SINGLE, |t| {
        let (x, w) = (t.input("x", f64s(&[4])), t.input("w", f64s(&[3, 4])));
        let (y, _) = t.scan(3, &[], &[x.block_boundary()], &[w], |_, x, w| {
            (vec![(x[0] * w[0]).tanh().block_boundary()], vec![])
        });
        let loss = y[0].sum();
        t.output("loss", loss);
        t.output("gradient", grad(loss, &[w])[0]);
    });
    let unmarked = rewrites::without_block_boundaries(&graph.unwrap());
    let text = lower(&passes::simplify(&unmarked), "test").text;
    assert_eq!(text.matches("stablehlo.while").count(), 2);
    assert_eq!(count(&unmarked).transcendentals, 3 * 4);
}

fn deep<'g>(t: &'g Tracer, remat: bool) -> (Tensor<'g>, Vec<Tensor<'g>>) {
    let mut x = t.input("x", f64s(&[4, 4]));
    let weights: Vec<_> = (0..3).map(|i| t.input(format!("w.{i}"), f64s(&[4, 4]))).collect();
    for w in &weights {
        let inputs = [x, *w];
        x = match remat {
            true => t.remat(&inputs, layer)[0],
            false => layer(&inputs)[0],
        };
    }
    (x.sum(), weights)
}

fn layer<'b>(x: &[Tensor<'b>]) -> Vec<Tensor<'b>> {
    vec![x[0].dot(x[1]).tanh().sine() + x[0]]
}

fn deep_gradients(remat: bool) -> Graph {
    trace(Mesh::SINGLE, |t| {
        let (loss, weights) = deep(t, remat);
        t.output("loss", loss);
        for (i, gradient) in grad(loss, &weights).into_iter().enumerate() {
            t.output(format!("gradient.{i}"), gradient);
        }
    })
    .unwrap()
}

#[test]
fn remat_gives_the_same_gradients_bit_for_bit() {
    let inputs: Vec<_> = (0..4)
        .map(|i| vec![Literal::from_slice(&[4, 4], &values::uniform(i, 16, -1.0, 1.0))])
        .collect();
    let expected = interpret(&deep_gradients(false), &inputs).unwrap();
    let graph = deep_gradients(true);
    assert_eq!(interpret(&graph, &inputs).unwrap(), expected);
    assert_eq!(interpret(&passes::simplify(&graph), &inputs).unwrap(), expected);
}

#[test]
fn a_recomputation_survives_simplification() {
    let dots = |remat: bool| {
        let graph = passes::simplify(&deep_gradients(remat));
        let is_dot = |op: &Op| matches!(op, Op::DotGeneral(_));
        graph.nodes().iter().filter(|node| is_dot(&node.op)).count()
    };
    assert_eq!(dots(true), dots(false) + 3);
}

#[test]
fn a_remat_without_gradient_is_its_body() {
    let forward = |remat: bool| {
        let graph = trace(Mesh::SINGLE, |t| t.output("loss", deep(t, remat).0)).unwrap();
        lower(&passes::simplify(&graph), "test").text_without_locations()
    };
    assert_eq!(forward(true), forward(false));
}

#[test]
fn remat_keeps_replicas_in_lockstep() {
    let graph = trace(Mesh::data(4), |t| {
        let (x, w) = (t.input("x", shard(&[2, 3])), t.input("w", f64s(&[3, 3])));
        let y = t.remat(&[x, w], |x| vec![x[0].dot(x[1].vary(Axis::Data)).tanh()])[0];
        t.output("gradient", grad(y.sum(), &[w])[0]);
    });
    let graph = graph.unwrap();
    assert_eq!(verify(&graph), Ok(()));
    let meets = |graph: &Graph| count(graph).collectives.iter().map(|c| c.count).sum::<u64>();
    assert_eq!(meets(&passes::simplify(&graph)), 1);
}
