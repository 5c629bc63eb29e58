//! Gradients on four replicas against one replica with the whole batch and the whole parameters.
//!
//! Each loss is written twice: for one replica, in ordinary maths, and for a mesh, with the batch
//! and the parameters sharded. Both are interpreted in f64 on the same inputs; the joined gradients
//! must agree to rounding, and each replica's loss must be the whole one. So the reference is the
//! loss on one replica, not the conventions of `hlo::grad`. The other tests are programs that would
//! lose lockstep: they must fail to trace or to verify.

mod values;

use hlo::{
    Axis, AxisSet, DType, DotDims, Error, Graph, Literal, Mesh, Reduction, Tensor, TensorType,
    Tracer, VerifyError, grad, interpret, trace, verify,
};

const TOLERANCE: f64 = 1e-12;

/// Traces the loss: for data parallelism a sum over the replica's examples.
type Loss = for<'g> fn(&[Tensor<'g>]) -> Tensor<'g>;

/// An input: its global dims, and the axes over which each dim is sharded.
#[derive(Clone, Copy)]
struct Leaf {
    dims: &'static [usize],
    cut: &'static [(usize, Axis)],
}

struct Case {
    name: &'static str,
    mesh: Mesh,
    leaves: Vec<Leaf>,
    whole: Loss,
    on_mesh: Loss,
}

fn cases() -> Vec<Case> {
    let data = Mesh::data(4);
    let fsdp = Mesh::new(&[(Axis::Fsdp, 4)]);
    let hybrid = Mesh::new(&[(Axis::Data, 2), (Axis::Fsdp, 2)]);
    let tensor = Mesh::new(&[(Axis::Data, 2), (Axis::Tensor, 2)]);
    let mlp = [
        Leaf { dims: &[8, 3], cut: &[(0, Axis::Data)] },
        Leaf { dims: &[3, 4], cut: &[] },
        Leaf { dims: &[4, 2], cut: &[] },
    ];
    let megatron = [
        Leaf { dims: &[8, 3], cut: &[(0, Axis::Data)] },
        Leaf { dims: &[3, 4], cut: &[(1, Axis::Tensor)] },
        Leaf { dims: &[4, 2], cut: &[(0, Axis::Tensor)] },
    ];
    vec![
        Case {
            name: "data-parallel sum of losses",
            mesh: data,
            leaves: mlp.to_vec(),
            whole: |x| x[0].dot(x[1]).tanh().dot(x[2]).sine().sum(),
            on_mesh: |x| {
                let w = [x[1], x[2]].map(|w| w.vary(Axis::Data));
                x[0].dot(w[0]).tanh().dot(w[1]).sine().sum()
            },
        },
        Case {
            name: "a parameter handed out twice",
            mesh: data,
            leaves: mlp[..2].to_vec(),
            whole: |x| {
                let y = x[0].dot(x[1]).tanh();
                y.dot_general(x[1], DotDims::contract(&[1], &[1])).sine().sum()
            },
            on_mesh: |x| {
                let y = x[0].dot(x[1].vary(Axis::Data)).tanh();
                let again = x[1].vary(Axis::Data);
                y.dot_general(again, DotDims::contract(&[1], &[1])).sine().sum()
            },
        },
        Case {
            name: "a loss after an all_reduce: the global mean",
            mesh: data,
            leaves: mlp[..2].to_vec(),
            whole: |x| x[0].dot(x[1]).tanh().sum() / 8.0,
            on_mesh: |x| {
                let sum = x[0].dot(x[1].vary(Axis::Data)).tanh().sum();
                sum.all_reduce(Reduction::Sum, Axis::Data) / 8.0
            },
        },
        Case {
            name: "a loss that is replicated, of a penalty and a global mean",
            mesh: data,
            leaves: mlp[..2].to_vec(),
            whole: |x| x[0].dot(x[1]).tanh().sum() / 8.0 + (x[1] * x[1]).sum() * 0.1,
            on_mesh: |x| {
                let sum = x[0].dot(x[1].vary(Axis::Data)).tanh().sum();
                let penalty = (x[1] * x[1]).sum() * 0.1;
                sum.all_reduce(Reduction::Sum, Axis::Data) / 8.0 + penalty
            },
        },
        Case {
            name: "an all_reduce in the middle: batch norm",
            mesh: data,
            leaves: mlp[..2].to_vec(),
            whole: |x| {
                let y = x[0].dot(x[1]);
                let [mean, square] = [y, y * y].map(|y| y.reduce_sum(&[0]) / 8.0);
                let variance = square - mean * mean;
                let centered = y - mean.broadcast_like(y, &[1]);
                (centered * (variance + 1e-3).rsqrt().broadcast_like(y, &[1])).sine().sum()
            },
            on_mesh: |x| {
                let y = x[0].dot(x[1].vary(Axis::Data));
                let sums = [y, y * y].map(|y| y.reduce_sum(&[0]));
                let sums = y.tracer().all_reduce(&sums, Reduction::Sum, Axis::Data);
                let (mean, square) = (sums[0] / 8.0, sums[1] / 8.0);
                let scale = (square - mean * mean + 1e-3).rsqrt();
                let [mean, scale] =
                    [mean, scale].map(|x| x.vary(Axis::Data).broadcast_like(y, &[1]));
                ((y - mean) * scale).sine().sum()
            },
        },
        Case {
            name: "tensor-parallel dots: cut by columns, then by rows",
            mesh: tensor,
            leaves: megatron.to_vec(),
            whole: |x| x[0].dot(x[1]).tanh().dot(x[2]).sine().sum(),
            on_mesh: |x| {
                let [columns, rows] = [x[1], x[2]].map(|w| w.vary(Axis::Data));
                let hidden = x[0].vary(Axis::Tensor).dot(columns).tanh();
                hidden.dot(rows).all_reduce(Reduction::Sum, Axis::Tensor).sine().sum()
            },
        },
        Case {
            name: "tensor-parallel dots with a shortcut around them",
            mesh: tensor,
            leaves: [&megatron[..2], &[Leaf { dims: &[4, 3], cut: &[(0, Axis::Tensor)] }]].concat(),
            whole: |x| (x[0].dot(x[1]).tanh().dot(x[2]) + x[0]).sine().sum(),
            on_mesh: |x| {
                let [columns, rows] = [x[1], x[2]].map(|w| w.vary(Axis::Data));
                let hidden = x[0].vary(Axis::Tensor).dot(columns).tanh();
                let y = hidden.dot(rows).all_reduce(Reduction::Sum, Axis::Tensor);
                (y + x[0]).sine().sum()
            },
        },
        Case {
            name: "a parameter sharded over fsdp, with its batch",
            mesh: fsdp,
            leaves: vec![
                Leaf { dims: &[8, 3], cut: &[(0, Axis::Fsdp)] },
                Leaf { dims: &[4, 3], cut: &[(0, Axis::Fsdp)] },
            ],
            whole: |x| x[0].dot_general(x[1], DotDims::contract(&[1], &[1])).tanh().sum(),
            on_mesh: |x| {
                let w = x[1].all_gather(0, Axis::Fsdp);
                x[0].dot_general(w, DotDims::contract(&[1], &[1])).tanh().sum()
            },
        },
        Case {
            name: "a parameter sharded over fsdp and replicated over data",
            mesh: hybrid,
            leaves: vec![
                Leaf { dims: &[8, 3], cut: &[(0, Axis::Data), (0, Axis::Fsdp)] },
                Leaf { dims: &[3, 4], cut: &[(1, Axis::Fsdp)] },
            ],
            whole: |x| x[0].dot(x[1]).tanh().sum(),
            on_mesh: |x| {
                let w = x[1].all_gather(1, Axis::Fsdp).vary(Axis::Data);
                x[0].dot(w).tanh().sum()
            },
        },
        Case {
            name: "a mean over both axes of the batch",
            mesh: hybrid,
            leaves: vec![
                Leaf { dims: &[8, 3], cut: &[(0, Axis::Data), (0, Axis::Fsdp)] },
                Leaf { dims: &[4, 3], cut: &[(0, Axis::Fsdp)] },
            ],
            whole: |x| x[0].dot_general(x[1], DotDims::contract(&[1], &[1])).tanh().sum() / 8.0,
            on_mesh: |x| {
                let w = x[1].vary(Axis::Data).all_gather(0, Axis::Fsdp);
                let sum = x[0].dot_general(w, DotDims::contract(&[1], &[1])).tanh().sum();
                sum.all_reduce(Reduction::Sum, AxisSet::of(&[Axis::Data, Axis::Fsdp])) / 8.0
            },
        },
        Case {
            name: "activations scattered and gathered again: sequence parallelism",
            mesh: tensor,
            leaves: megatron.to_vec(),
            whole: |x| x[0].dot(x[1]).tanh().dot(x[2]).sine().sum(),
            on_mesh: |x| {
                let [columns, rows] = [x[1], x[2]].map(|w| w.vary(Axis::Data));
                let hidden = x[0].vary(Axis::Tensor).dot(columns).tanh();
                // Each tensor replica ends with its own half of the examples.
                hidden.dot(rows).reduce_scatter(0, Axis::Tensor).sine().sum()
            },
        },
        Case {
            name: "all_to_all and back, with work on the other cut in between",
            mesh: data,
            leaves: vec![
                Leaf { dims: &[8, 4], cut: &[(0, Axis::Data)] },
                Leaf { dims: &[4], cut: &[(0, Axis::Data)] },
                Leaf { dims: &[8, 4], cut: &[(0, Axis::Data)] },
            ],
            whole: |x| ((x[0] * x[1].broadcast_like(x[0], &[1])).tanh() * x[2]).sum(),
            on_mesh: |x| {
                // From sharded rows to sharded columns.
                let columns = x[0].all_to_all(1, 0, Axis::Data);
                let scaled = (columns * x[1].broadcast_like(columns, &[1])).tanh();
                (scaled.all_to_all(0, 1, Axis::Data) * x[2]).sum()
            },
        },
        Case {
            name: "collective_permute around the ring",
            mesh: data,
            leaves: vec![Leaf { dims: &[8, 2], cut: &[(0, Axis::Data)] }; 2],
            whole: |x| {
                let (first, rest) = (x[0].slice_dim(0, 6, 8), x[0].slice_dim(0, 0, 6));
                (first.concatenate(&[rest], 0) * x[1]).tanh().sum()
            },
            on_mesh: |x| {
                let from_the_left =
                    x[0].collective_permute(&[(0, 1), (1, 2), (2, 3), (3, 0)], Axis::Data);
                (from_the_left * x[1]).tanh().sum()
            },
        },
        Case {
            name: "collective_permute that nothing comes to at the start of the line",
            mesh: data,
            leaves: vec![Leaf { dims: &[8, 2], cut: &[(0, Axis::Data)] }; 2],
            whole: |x| {
                let shifted = x[0].slice_dim(0, 0, 6).pad(0.0, &[2, 0], &[0, 0], &[0, 0]);
                ((shifted + 1.0) * x[1]).tanh().sum()
            },
            on_mesh: |x| {
                let from_the_left = x[0].collective_permute(&[(0, 1), (1, 2), (2, 3)], Axis::Data);
                ((from_the_left + 1.0) * x[1]).tanh().sum()
            },
        },
    ]
}

#[test]
fn four_replicas_have_the_gradients_of_one() {
    for case in cases() {
        case.check();
    }
}

/// The first error in the docs of `hlo::grad`: gradients that grow with the number of replicas.
#[test]
fn a_loss_after_an_all_reduce_has_the_same_gradient_on_any_number_of_replicas() {
    for num_replicas in [1, 2, 4, 8] {
        let graph = trace(Mesh::data(num_replicas), |t| {
            let w = t.input("w", TensorType::new(DType::F64, &[]));
            let x = t.input("x", TensorType::new(DType::F64, &[]).varying(Axis::Data.into()));
            let mean = (w.vary(Axis::Data) * x).all_reduce(Reduction::Sum, Axis::Data)
                / num_replicas as f64;
            t.output("gradient", grad(mean, &[w])[0]);
        });
        let of = |value| vec![Literal::scalar(value); num_replicas];
        let outputs = interpret(&graph.unwrap(), &[of(5.0), of(3.0)]).unwrap();
        assert_eq!(outputs[0], of(3.0), "{num_replicas} replicas");
    }
}

/// A replicated parameter `w` and one descent step along `direction(w, x)`.
fn step(direction: for<'g> fn(Tensor<'g>, Tensor<'g>) -> Tensor<'g>) -> Result<Graph, Error> {
    trace(Mesh::data(4), |t| {
        let w = t.input("params.head.weight", TensorType::new(DType::F64, &[3]));
        let x = t.input("x", TensorType::new(DType::F64, &[2, 3]).varying(Axis::Data.into()));
        t.next_state("params.head.weight", direction(w, x));
    })
}

#[test]
fn a_step_with_reduced_gradients_is_in_lockstep() {
    let graph = step(|w, x| w - grad(x.dot(w.vary(Axis::Data)).tanh().sum(), &[w])[0] * 0.1);
    assert_eq!(verify(&graph.unwrap()), Ok(()));
}

/// The second error: each replica uses the gradient of its own part of the batch.
#[test]
fn updating_a_replicated_parameter_with_an_unreduced_gradient_is_rejected_by_name() {
    let graph = step(|w, x| {
        let handed_out = w.vary(Axis::Data);
        let unreduced = grad(x.dot(handed_out).tanh().sum(), &[handed_out])[0];
        handed_out - unreduced * 0.1
    });
    let error = verify(&graph.unwrap()).unwrap_err();
    let VerifyError::LosesLockstep { name, excess, .. } = &error else { panic!("{error}") };
    assert_eq!((name.as_str(), *excess), ("params.head.weight", Axis::Data.into()));
    assert!(error.to_string().contains("`params.head.weight` would lose lockstep"), "{error}");
}

#[test]
fn a_replicated_parameter_and_a_varying_batch_do_not_type_check_without_vary() {
    let (line, error) = (line!(), step(|w, x| x.dot(w)).unwrap_err());
    assert_eq!((error.op, error.location.file()), ("dot_general", file!()));
    assert_eq!(error.location.line(), line);
    let message = error.to_string();
    assert!(message.starts_with("dot_general(f64[2, 3]{data}, f64[3]) at "), "{message}");
    assert!(
        message.contains("apply `vary` to it: gradients through it are then summed"),
        "{message}"
    );
}

#[test]
fn an_unreduced_gradient_and_a_replicated_parameter_do_not_type_check() {
    let error = step(|w, x| {
        let handed_out = w.vary(Axis::Data);
        w - grad(x.dot(handed_out).sum(), &[handed_out])[0]
    });
    let message = error.unwrap_err().to_string();
    assert!(message.starts_with("subtract(f64[3], f64[3]{data}) at "), "{message}");
}

/// Reducing a replicated value would give a multiple of it.
#[test]
fn a_value_that_does_not_vary_is_not_reduced() {
    let error = step(|w, _| w.all_reduce(Reduction::Sum, Axis::Data)).unwrap_err();
    assert!(error.to_string().contains("does not vary over all of {data}"), "{error}");
}

#[test]
fn an_output_declared_as_replicated_must_not_vary() {
    let graph = trace(Mesh::data(2), |t| {
        let x = t.input("x", TensorType::new(DType::F64, &[]).varying(Axis::Data.into()));
        t.output("metrics.loss", x * 2.0);
    });
    let error = verify(&graph.unwrap()).unwrap_err().to_string();
    assert!(error.starts_with("`metrics.loss` would lose lockstep"), "{error}");
}

/// A loop around an all_reduce that each replica leaves when its own `limit` is reached.
fn loop_until<'g>(t: &'g Tracer, limit: Tensor<'g>) -> Tensor<'g> {
    let start = [t.scalar(DType::F64, 0.0).vary(Axis::Data), limit];
    let results = t.while_loop(
        &start,
        |carried| carried[0].less(carried[1]),
        |carried| {
            let total = (carried[0] + 1.0).all_reduce(Reduction::Sum, Axis::Data);
            vec![total.vary(Axis::Data), carried[1]]
        },
    );
    results[0]
}

#[test]
fn a_collective_in_a_loop_that_replicas_may_leave_at_different_times_is_rejected() {
    let varying = TensorType::new(DType::F64, &[]).varying(Axis::Data.into());
    let graph = trace(Mesh::data(2), |t| {
        let sum = loop_until(t, t.input("limit", varying));
        t.output_varying("sum", sum, Axis::Data.into());
    });
    let error = verify(&graph.unwrap()).unwrap_err();
    let VerifyError::DivergentCollective { axes, location } = &error else { panic!("{error}") };
    assert_eq!((*axes, location.file()), (Axis::Data.into(), file!()));
    assert!(error.to_string().contains("some would wait forever"), "{error}");
}

/// Descent from zero in a loop: the carried value depends on constants alone only in the first
/// iteration.
#[test]
fn vary_is_not_automatic_for_carried_values_once_gradients_flow_into_them() {
    let descent = |is_explicit: bool| {
        trace(Mesh::data(2), |t| {
            let ty = TensorType::new(DType::F64, &[2]).varying(Axis::Data.into());
            let (w, x) = (t.full(DType::F64, &[2], 0.0), t.input("x", ty));
            let results = t.fori_loop(3, &[w, x], |_, carried| {
                let [w, x] = [carried[0], carried[1]];
                let varying = if is_explicit { w.vary(Axis::Data) } else { w };
                let loss = ((varying - x) * (varying - x)).sum();
                vec![w - grad(loss, &[w])[0] * 0.25, x]
            });
            t.output("w", results[0]);
        })
    };
    let error = descent(false).unwrap_err();
    assert!(error.message.contains("apply `vary` to it"), "{error}");

    let x = [[1.0, 2.0], [3.0, 6.0]].map(|x| Literal::from_slice(&[2], &x)).to_vec();
    let outputs = interpret(&descent(true).unwrap(), &[x]).unwrap();
    for w in &outputs[0] {
        assert_eq!(w.to_f64(), [2.0, 4.0]);
    }
}

/// Replicas that leave a loop in different iterations return different values, even if these are
/// equal on all replicas in each iteration.
#[test]
fn results_of_a_loop_that_replicas_leave_at_different_times_vary() {
    let graph = trace(Mesh::data(2), |t| {
        let limit = t.input("limit", TensorType::new(DType::U32, &[]).varying(Axis::Data.into()));
        let rounds = t.input("rounds", TensorType::new(DType::U32, &[]));
        let results = t.while_loop(
            &[rounds, limit],
            |carried| carried[0].less(carried[1]),
            |carried| vec![carried[0] + 1.0, carried[1]],
        );
        t.next_state("rounds", results[0]);
    })
    .unwrap();
    let of = |values: [u32; 2]| values.map(Literal::scalar).to_vec();
    let outputs = interpret(&graph, &[of([2, 3]), of([0, 0])]).unwrap();
    assert_eq!(outputs[0], of([2, 3]));
    let error = verify(&graph).unwrap_err();
    let VerifyError::LosesLockstep { name, excess, .. } = &error else { panic!("{error}") };
    assert_eq!((name.as_str(), *excess), ("rounds", Axis::Data.into()));
}

#[test]
fn a_loop_whose_collective_runs_over_other_axes_than_its_condition_is_fine() {
    let graph = trace(Mesh::new(&[(Axis::Data, 2), (Axis::Tensor, 2)]), |t| {
        let ty = TensorType::new(DType::F64, &[]).varying(Axis::Tensor.into());
        let limit = t.input("limit", ty);
        let both = AxisSet::of(&[Axis::Data, Axis::Tensor]);
        let x = t.input("x", TensorType::new(DType::F64, &[]).varying(both));
        let results = t.while_loop(
            &[t.scalar(DType::F64, 0.0).vary(Axis::Tensor), limit, x],
            |carried| carried[0].less(carried[1]),
            |carried| {
                let total = carried[2].all_reduce(Reduction::Sum, Axis::Data);
                vec![carried[0] + total, carried[1], carried[2]]
            },
        );
        t.output_varying("sum", results[0], Axis::Tensor.into());
    })
    .unwrap();
    assert_eq!(verify(&graph), Ok(()));
    let of = |values: [f64; 4]| values.map(Literal::scalar).to_vec();
    // The two tensor replicas run three and five iterations; data replicas run the same number.
    let outputs = interpret(&graph, &[of([3.0, 5.0, 3.0, 5.0]), of([0.5; 4])]).unwrap();
    assert_eq!(outputs[0], of([3.0, 5.0, 3.0, 5.0]));
}

impl Case {
    fn check(&self) {
        let Case { name, mesh, leaves, .. } = self;
        let x: Vec<Vec<f64>> = (0u32..)
            .zip(leaves)
            .map(|(i, leaf)| values::uniform(i, leaf.dims.iter().product(), -1.0, 1.0))
            .collect();

        let whole = self.graph(&Mesh::SINGLE);
        let literals: Vec<_> = (x.iter().zip(leaves))
            .map(|(x, leaf)| vec![Literal::from_slice(leaf.dims, x)])
            .collect();
        let expected = interpret(&whole, &literals).unwrap();

        let graph = self.graph(mesh);
        verify(&graph).unwrap_or_else(|error| panic!("{name}: {error}"));
        let shards: Vec<_> = (x.iter().zip(leaves))
            .map(|(x, leaf)| {
                let shard = |replica| leaf.shard(mesh, replica, x);
                (0..mesh.num_replicas()).map(shard).collect()
            })
            .collect();
        let got = interpret(&graph, &shards).unwrap();

        let loss_type = graph.ty(graph.outputs()[0].value);
        let losses = (0..mesh.num_replicas())
            .filter(|r| mesh.index(*r, AxisSet::ALL.minus(loss_type.varying)) == 0)
            .map(|replica| got[0][replica].to_f64()[0]);
        close(&format!("{name}: loss"), &[losses.sum()], &expected[0][0].to_f64());
        for (i, leaf) in leaves.iter().enumerate() {
            let expected = expected[i + 1][0].to_f64();
            for (replica, gradient) in got[i + 1].iter().enumerate() {
                let what = format!("{name}: gradient {i} on replica {replica}");
                let expected = leaf.shard(mesh, replica, &expected).to_f64();
                close(&what, &gradient.to_f64(), &expected);
            }
        }
    }

    /// From the inputs to the loss and its gradient with respect to each.
    fn graph(&self, mesh: &Mesh) -> Graph {
        let is_whole = *mesh == Mesh::SINGLE;
        let graph = trace(*mesh, |t| {
            let input = |(i, leaf): (usize, &Leaf)| {
                let ty = if is_whole {
                    TensorType::new(DType::F64, leaf.dims)
                } else {
                    TensorType::new(DType::F64, &leaf.local_dims(mesh)).varying(leaf.varying())
                };
                t.input(format!("x.{i}"), ty)
            };
            let x: Vec<_> = self.leaves.iter().enumerate().map(input).collect();
            let loss = if is_whole { (self.whole)(&x) } else { (self.on_mesh)(&x) };
            t.output_varying("loss", loss, loss.varying());
            for (i, gradient) in grad(loss, &x).into_iter().enumerate() {
                t.output_varying(format!("gradient.{i}"), gradient, x[i].varying());
            }
        });
        graph.unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }
}

impl Leaf {
    fn axes_of(&self, dim: usize) -> AxisSet {
        let cut = self.cut.iter().filter(|cut| cut.0 == dim);
        AxisSet::of(&cut.map(|cut| cut.1).collect::<Vec<_>>())
    }

    fn varying(&self) -> AxisSet {
        AxisSet::of(&self.cut.iter().map(|cut| cut.1).collect::<Vec<_>>())
    }

    fn local_dims(&self, mesh: &Mesh) -> Vec<usize> {
        let local = |(dim, size): (usize, &usize)| size / mesh.group_size(self.axes_of(dim));
        self.dims.iter().enumerate().map(local).collect()
    }

    /// A replica's shard of a value.
    fn shard(&self, mesh: &Mesh, replica: usize, whole: &[f64]) -> Literal {
        let local = self.local_dims(mesh);
        let num_elements = local.iter().product();
        let element = |mut index: usize| {
            let (mut offset, mut stride) = (0, 1);
            for dim in (0..local.len()).rev() {
                let first = mesh.index(replica, self.axes_of(dim)) * local[dim];
                offset += (first + index % local[dim]) * stride;
                index /= local[dim];
                stride *= self.dims[dim];
            }
            whole[offset]
        };
        Literal::from_slice(&local, &(0..num_elements).map(element).collect::<Vec<_>>())
    }
}

fn close(what: &str, got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (got, expected) in got.iter().zip(expected) {
        let error = (got - expected).abs();
        assert!(error <= TOLERANCE * expected.abs().max(1.0), "{what}: {got}, not {expected}");
    }
}
