//! Where an op comes from.

use std::fmt;
use std::panic::Location;

/// The source line that recorded an op, and the pass it belongs to. It does not affect results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The source line; for the ops of a gradient, that of the op that is differentiated.
    pub line: &'static Location<'static>,
    /// `true` if the op belongs to a backward pass: a VJP, or the recomputation that a VJP asks
    /// for.
    pub is_backward: bool,
}

impl Origin {
    /// The name that ops of a backward pass get in the program's locations. Compilers keep it in
    /// the op's metadata.
    pub const BACKWARD: &str = "backward";

    /// The same line in a backward pass, if `is_backward`; otherwise unchanged.
    #[must_use]
    pub(crate) fn or_backward(self, is_backward: bool) -> Self {
        Self { is_backward: self.is_backward || is_backward, ..self }
    }
}

/// For example `src/zero.rs:10:5`.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.line.fmt(f)
    }
}

impl From<&'static Location<'static>> for Origin {
    fn from(line: &'static Location<'static>) -> Self {
        Self { line, is_backward: false }
    }
}

#[cfg(test)]
mod tests {
    use crate::passes::simplify;
    use crate::{Axis, DType, Graph, Mesh, Op, TensorType, grad, lower, trace};

    /// The names of the ops that `is_wanted`, and whether they belong to the backward pass, in
    /// loops too.
    fn origins(graph: &Graph, is_wanted: fn(&Op) -> bool) -> Vec<(&'static str, bool)> {
        let mut found = vec![];
        for node in graph.nodes() {
            found.extend(is_wanted(&node.op).then(|| (node.op.name(), node.location.is_backward)));
            let inner = node.op.regions().into_iter();
            found.extend(inner.flat_map(|region| origins(region, is_wanted)));
        }
        found
    }

    fn is_dot(op: &Op) -> bool {
        matches!(op, Op::DotGeneral(_))
    }

    fn f64s(dims: &[usize]) -> TensorType {
        TensorType::new(DType::F64, dims)
    }

    #[test]
    fn a_gather_is_forward_and_the_scatter_of_its_gradient_backward() {
        let mesh = Mesh::new(&[(Axis::Fsdp, 2)]);
        let graph = trace(mesh, |t| {
            let x = t.input("x", f64s(&[4]).varying(Axis::Fsdp.into()));
            let loss = x.all_gather(0, Axis::Fsdp).tanh().sum();
            t.output_varying("gradient", grad(loss, &[x])[0], Axis::Fsdp.into());
        });
        let graph = graph.unwrap();
        let moves = |op: &Op| matches!(op, Op::AllGather { .. } | Op::ReduceScatter { .. });
        assert_eq!(origins(&graph, moves), [("all_gather", false), ("reduce_scatter", true)]);
        let program = lower(&graph, "step");
        let marked =
            program.text.lines().find(|line| line.starts_with("#loc") && line.contains("backward"));
        assert!(marked.unwrap().contains("= loc(\"backward\"(\""), "{}", program.text);
        assert!(!program.text_without_locations().contains("backward"));
    }

    #[test]
    fn recomputation_belongs_to_the_backward_pass() {
        let graph = trace(Mesh::SINGLE, |t| {
            let [x, w] = ["x", "w"].map(|name| t.input(name, f64s(&[4, 4])));
            let y = t.remat(&[x, w], |x| vec![x[0].dot(x[1]).tanh()]);
            t.output("gradient", grad(y[0].sum(), &[w])[0]);
            t.output("y", y[0]);
        });
        let dots = origins(&simplify(&graph.unwrap()), is_dot);
        // The product, the same again, and the gradient.
        assert_eq!(dots.iter().map(|dot| dot.1).collect::<Vec<_>>(), [false, true, true]);
    }

    #[test]
    fn the_loop_of_a_gradient_belongs_to_the_backward_pass() {
        let graph = trace(Mesh::SINGLE, |t| {
            let [x, w] = ["x", "w"].map(|name| t.input(name, f64s(&[4, 4])));
            let y = t.scan(3, &[w], &[x], &[], |w, x, _| (vec![x[0].dot(w[0]).tanh()], vec![]));
            t.output("gradient", grad(y.0[0].sum(), &[w])[0]);
        });
        let dots = origins(&simplify(&graph.unwrap()), is_dot);
        assert_eq!(dots.iter().map(|dot| dot.1).collect::<Vec<_>>(), [false, true, true]);
    }
}
