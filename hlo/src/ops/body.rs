//! Tracing the bodies of ops that have some: loops, branches, functions with gradients of their own.

use crate::{AxisSet, Error, Graph, Tensor, TensorType, Tracer};

/// Traces a region whose inputs are of the given types, some free of gradients.
pub(super) fn region(
    outer: &Tracer,
    types: &[TensorType],
    is_free: &[bool],
    f: impl for<'b> FnOnce(&[Tensor<'b>]) -> Vec<Tensor<'b>>,
) -> Result<Graph, Error> {
    let t = Tracer::new(outer.mesh());
    let inputs = t.region_inputs(types, is_free);
    for (i, result) in f(&inputs).into_iter().enumerate() {
        t.output_varying(format!("output.{i}"), result, AxisSet::ALL);
    }
    t.finish()
}

/// What a loop's body is traced with: types and freedom of gradients of its carried values follow from their
/// starts, and from what the body returns for them.
pub(super) struct Carried<'g> {
    pub(super) starts: Vec<Tensor<'g>>,
    /// Does no gradient flow into the value, in any round?
    pub(super) is_free: Vec<bool>,
}

impl<'g> Carried<'g> {
    pub(super) fn new(starts: &[Tensor<'g>]) -> Self {
        let is_free = starts.iter().map(Tensor::is_gradient_free).collect();
        Self { starts: starts.to_vec(), is_free }
    }

    /// A value that starts as a constant may vary, and gradients may flow into it, once the body has added to
    /// it: then its start is handed over too. Must the body be traced once more? The values are the first that
    /// it returns. Each time adds an axis or takes a mark somewhere, so this ends.
    pub(super) fn follow(&mut self, body: &Graph) -> bool {
        let mut changed = false;
        let carried = self.starts.iter_mut().zip(&mut self.is_free);
        for ((start, is_free), output) in carried.zip(body.outputs()) {
            let missing = body.ty(output.value).varying.minus(start.varying());
            if !missing.is_empty() && start.is_gradient_free() {
                *start = start.vary(missing);
                changed = true;
            }
            if *is_free && !body.is_gradient_free(output.value) {
                *is_free = false;
                changed = true;
            }
        }
        changed
    }
}
