//! Gradients through ops with a body: all nestings of two of them, and all origins of the
//! differentiated variable, against central finite differences of the interpreter in f64.
//!
//! For the finite differences the variable is an input, so that the special treatment of values
//! computed from constants does not affect them.

mod values;

use hlo::{
    Axis, AxisSet, DType, Graph, Literal, Mesh, Reduction, Tensor, TensorType, Tracer, grad,
    interpret, passes, random, trace, verify, vjp,
};

const STEP: f64 = 1e-5;
const TOLERANCE: f64 = 1e-6;
const LEN: usize = 3;

/// An op around a function of w and x.
#[derive(Clone, Copy, Debug)]
enum Wrap {
    Remat,
    ScanConsts,
    ScanCarried,
    /// The carried values are initially constants, and depend on w only from the third iteration
    /// on.
    ScanFromZero,
    ScanXs,
    Case,
    CustomVjp,
}

const WRAPS: [Wrap; 7] = [
    Wrap::Remat,
    Wrap::ScanConsts,
    Wrap::ScanCarried,
    Wrap::ScanFromZero,
    Wrap::ScanXs,
    Wrap::Case,
    Wrap::CustomVjp,
];

/// A function of w and x, of the same shape, inside `wraps`, outermost first. Its result has that
/// shape.
fn nested<'g>(wraps: &[Wrap], w: Tensor<'g>, x: Tensor<'g>) -> Tensor<'g> {
    let t = w.tracer();
    let Some((wrap, inner)) = wraps.split_first() else { return (w * x).tanh() + w * 0.5 };
    match wrap {
        Wrap::Remat => t.remat(&[w, x], |v| vec![nested(inner, v[0], v[1])])[0],
        Wrap::ScanConsts => {
            let (s, ys) = t.scan(2, &[w], &[x], &[], |c, s, _| {
                (vec![nested(inner, c[0], s[0])], vec![s[0].sine()])
            });
            s[0] + ys[0].reduce_sum(&[0])
        }
        Wrap::ScanCarried => {
            let (s, ys) = t.scan(2, &[x], &[w], &[], |c, s, _| {
                (vec![nested(inner, s[0], c[0])], vec![s[0].sine()])
            });
            s[0] + ys[0].reduce_sum(&[0])
        }
        Wrap::ScanFromZero => {
            let zeros = [t.full(w.dtype(), &w.shape(), 0.0); 3];
            let (s, _) = t.scan(4, &[w, x], &zeros, &[], |c, s, _| {
                let last = nested(inner, c[0], c[1] + s[2]);
                (vec![s[1] * c[1], s[2].sine() + s[0], last], vec![])
            });
            s[0]
        }
        Wrap::ScanXs if w.rank() == 0 => {
            let pair = |x: Tensor<'g>| x.broadcast_in_dim(&[2], &[]);
            nested(wraps, pair(w), pair(x)).sum()
        }
        Wrap::ScanXs => {
            let (_, ys) = t.scan(w.dim(0), &[], &[], &[w, x], |_, _, x| {
                (vec![], vec![nested(inner, x[0], x[1])])
            });
            ys[0]
        }
        Wrap::Case => {
            let index = t.scalar(DType::I32, 1.0);
            t.case(index, &[w, x], &[&|v| vec![v[0] - v[1]], &|v| vec![nested(inner, v[0], v[1])]])
                [0]
        }
        Wrap::CustomVjp => t.custom_vjp(
            &[w, x],
            |v| vec![nested(inner, v[0], v[1])],
            |v, _, ct| vjp(&[(nested(inner, v[0], v[1]), ct[0])], v),
        )[0],
    }
}

/// No wrap, each wrap, and each wrap inside each.
fn nests() -> Vec<Vec<Wrap>> {
    let one = WRAPS.iter().map(|wrap| vec![*wrap]);
    let two = WRAPS.iter().flat_map(|outer| WRAPS.map(|inner| vec![*outer, inner]));
    std::iter::once(vec![]).chain(one).chain(two).collect()
}

/// How the differentiated variable is computed, and how it is transformed before its use.
struct Origin {
    name: &'static str,
    value: for<'g> fn(&'g Tracer) -> Tensor<'g>,
    used: for<'g> fn(Tensor<'g>) -> Tensor<'g>,
}

fn given(t: &Tracer) -> Tensor<'_> {
    t.input("given", TensorType::new(DType::F64, &[LEN]))
}

fn key(t: &Tracer) -> random::Key<'_> {
    random::Key::from_seed(t.constant(Literal::from_slice(&[2], &[7u32, 8])))
}

fn normal(t: &Tracer) -> Tensor<'_> {
    key(t).normal(&random::GlobalSlice::whole(&[LEN]), DType::F64)
}

fn origins() -> Vec<Origin> {
    let origin = |name, value, used| Origin { name, value, used };
    vec![
        origin("an input", given, |w| w),
        origin("what follows from an input", |t| given(t).sine(), |w| w),
        origin("normal", normal, |w| w),
        origin("what normal is multiplied to", normal, |w| w * 2.0),
        origin(
            "uniform",
            |t| key(t).uniform(&random::GlobalSlice::whole(&[LEN]), DType::F64),
            |w| w,
        ),
        origin("iota", |t| t.iota(DType::F64, &[LEN], 0), |w| w),
        origin("full", |t| t.full(DType::F64, &[LEN], 0.25), |w| w * w),
        origin("a converted bool", |t| normal(t).greater(0.0).convert(DType::F64), |w| w),
    ]
}

/// A case: the function to differentiate.
#[derive(Clone, Copy)]
struct Case<'a> {
    wraps: &'a [Wrap],
    origin: &'a Origin,
    /// x varies over `data`.
    mesh: Mesh,
    /// 1: the loss; 2: a function of its gradient for w.
    order: usize,
}

impl Case<'_> {
    fn name(&self) -> String {
        let Self { wraps, origin, mesh, order } = self;
        format!("{wraps:?} of {}, {} replicas, order {order}", origin.name, mesh.num_replicas())
    }

    fn x_type(&self) -> TensorType {
        let varying = if self.mesh == Mesh::SINGLE { AxisSet::EMPTY } else { Axis::Data.into() };
        TensorType::new(DType::F64, &[LEN]).varying(varying)
    }

    /// The loss of the variable and x.
    fn loss<'g>(&self, value: Tensor<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let mut w = (self.origin.used)(value);
        if !w.is_gradient_free() {
            w = w.vary(x.varying());
        }
        let loss = nested(self.wraps, w, x).sine().sum();
        match self.order {
            1 => loss,
            _ => grad(loss, &[value])[0].sine().sum(),
        }
    }

    /// From the origin's input and x: the variable, and gradients with respect to it alone, and to
    /// it and x.
    fn gradients(&self) -> Graph {
        let graph = trace(self.mesh, |t| {
            let (value, x) = ((self.origin.value)(t), t.input("x", self.x_type()));
            let loss = self.loss(value, x);
            t.output("value", value);
            t.output("alone", grad(loss, &[value])[0]);
            let both = grad(loss, &[value, x]);
            t.output("with x", both[0]);
            t.output_varying("x", both[1], AxisSet::ALL);
        });
        let graph = graph.unwrap_or_else(|error| panic!("{}: {error}", self.name()));
        verify(&graph).unwrap_or_else(|error| panic!("{}: {error}", self.name()));
        graph
    }

    /// From the variable and x to the sum of the replicas' losses.
    fn summed(&self) -> Graph {
        let graph = trace(self.mesh, |t| {
            let (value, x) = (given(t), t.input("x", self.x_type()));
            let loss = self.loss(value, x);
            let sum = match loss.varying().is_empty() {
                true => loss,
                false => loss.all_reduce(Reduction::Sum, loss.varying()),
            };
            t.output("loss", sum);
        });
        graph.unwrap_or_else(|error| panic!("{}: {error}", self.name()))
    }
}

/// Slopes of a graph's scalar output in the elements of an input, which is moved on the first
/// `moved` replicas.
fn slopes(graph: &Graph, inputs: &[Vec<Literal>], index: usize, moved: usize) -> Vec<f64> {
    let at = |element: usize, step: f64| {
        let mut inputs = inputs.to_vec();
        for literal in inputs[index].iter_mut().take(moved) {
            let mut elements = literal.to_f64();
            elements[element] += step;
            *literal = Literal::from_slice(&[LEN], &elements);
        }
        interpret(graph, &inputs).unwrap()[0][0].to_f64()[0]
    };
    (0..LEN).map(|i| (at(i, STEP) - at(i, -STEP)) / (2.0 * STEP)).collect()
}

fn close(name: &str, got: &Literal, expected: &[f64]) {
    for (got, expected) in got.to_f64().into_iter().zip(expected) {
        let error = (got - expected).abs() / expected.abs().max(1.0);
        assert!(error < TOLERANCE, "{name}: {got} where the slope is {expected}");
    }
}

fn random_inputs(stream: u32, num_replicas: usize) -> Vec<Literal> {
    let on = |replica| values::uniform(stream + replica as u32, LEN, -1.0, 1.0);
    (0..num_replicas).map(|replica| Literal::from_slice(&[LEN], &on(replica))).collect()
}

fn holds(case: Case<'_>) {
    let (name, num_replicas) = (case.name(), case.mesh.num_replicas());
    let graph = case.gradients();
    let given = vec![random_inputs(0, 1)[0].clone(); num_replicas];
    let x = random_inputs(10, num_replicas);
    let inputs = match graph.inputs().len() {
        1 => vec![x.clone()],
        _ => vec![given, x.clone()],
    };
    let outputs = interpret(&graph, &inputs).unwrap();
    let simple = interpret(&passes::simplify(&graph), &inputs).unwrap();
    let (loss, at) = (case.summed(), [outputs[0].clone(), x]);
    let expected = slopes(&loss, &at, 0, num_replicas);
    close(&name, &outputs[1][0], &expected);
    close(&name, &outputs[2][0], &expected);
    close(&name, &simple[1][0], &expected);
    close(&format!("{name}, for x"), &outputs[3][0], &slopes(&loss, &at, 1, 1));
}

#[test]
fn gradients_do_not_depend_on_wraps_or_origins() {
    for wraps in nests() {
        for origin in &origins() {
            for mesh in [Mesh::SINGLE, Mesh::data(2)] {
                holds(Case { wraps: &wraps, origin, mesh, order: 1 });
            }
        }
    }
}

#[test]
fn second_derivatives_do_not_depend_on_wraps_or_origins() {
    for wraps in nests().iter().filter(|wraps| wraps.len() < 2) {
        for origin in &origins() {
            holds(Case { wraps, origin, mesh: Mesh::SINGLE, order: 2 });
        }
    }
}

fn step<'g>(wraps: &[Wrap], w: Tensor<'g>, x: Tensor<'g>) -> Tensor<'g> {
    w - grad(nested(wraps, w, x).sine().sum(), &[w])[0] * 0.5
}

/// Three descent steps from the value of an origin, in a loop; or unrolled, from an input.
fn descent(wraps: &[Wrap], origin: &Origin, looped: bool) -> Graph {
    let graph = trace(Mesh::SINGLE, |t| {
        let value = if looped { (origin.value)(t) } else { given(t) };
        let x = t.input("x", TensorType::new(DType::F64, &[LEN]));
        let w = match looped {
            true => t.fori_loop(3, &[value, x], |_, v| vec![step(wraps, v[0], v[1]), v[1]])[0],
            false => (0..3).fold(value, |w, _| step(wraps, w, x)),
        };
        t.output("value", value);
        t.output("w", w);
    });
    graph.unwrap_or_else(|error| panic!("{wraps:?} of {}: {error}", origin.name))
}

#[test]
fn a_loop_descends_from_any_value() {
    for wraps in nests() {
        for origin in &origins() {
            let x = random_inputs(10, 1);
            let looped = descent(&wraps, origin, true);
            let inputs = match looped.inputs().len() {
                1 => vec![x.clone()],
                _ => vec![random_inputs(0, 1), x.clone()],
            };
            let outputs = interpret(&looped, &inputs).unwrap();
            let written_out = descent(&wraps, origin, false);
            let expected = interpret(&written_out, &[outputs[0].clone(), x]).unwrap();
            close(
                &format!("{wraps:?} of {}", origin.name),
                &outputs[1][0],
                &expected[1][0].to_f64(),
            );
        }
    }
}
