//! Tracing the bodies of ops: loops, branches, functions with their own VJP.

use crate::{AxisSet, Error, Graph, Tensor, TensorType, Tracer};

/// Traces a region with inputs of the given types; no gradient flows into those for which `is_free`
/// is true.
pub(crate) fn region(
    outer: &Tracer,
    types: &[TensorType],
    is_free: &[bool],
    f: impl for<'b> FnOnce(&[Tensor<'b>]) -> Vec<Tensor<'b>>,
) -> Result<Graph, Error> {
    let t = outer.within();
    let inputs = t.region_inputs(types, is_free);
    for (i, result) in f(&inputs).into_iter().enumerate() {
        t.output_varying(format!("output.{i}"), result, AxisSet::ALL);
    }
    t.finish()
}

/// The carried values with which a loop's body is traced. Their types, and whether gradients flow
/// into them, depend on their initial values and on the body's results.
pub(super) struct Carried<'g> {
    pub(super) starts: Vec<Tensor<'g>>,
    /// For each value, `true` if no gradient flows into it in any iteration.
    pub(super) is_free: Vec<bool>,
}

impl<'g> Carried<'g> {
    pub(super) fn new(starts: &[Tensor<'g>]) -> Self {
        let is_free = starts.iter().map(Tensor::is_gradient_free).collect();
        Self { starts: starts.to_vec(), is_free }
    }

    /// Updates the carried values from the first results of the traced body: a value that is
    /// initially constant may vary, or have gradients flow into it, after the first iteration; then
    /// `vary` is applied to its initial value too. Returns `true` if the body must be traced again.
    /// Each call adds an axis or clears a flag, so this ends.
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
