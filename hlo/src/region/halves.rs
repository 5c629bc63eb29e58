//! The two halves of a function's VJP as values, for loops that run them at different times.

use super::vjp::{Joint, Parts};
use super::{Region, Scan};
use crate::ops::body;
use crate::{Graph, Tensor, TensorType, Tracer};

/// A function `y = f(consts, x, given)` and its VJP, cut in two: the *forward half* returns y and
/// the *residuals*, values that the *backward half* takes. What the two have anyway, `consts` and
/// `given`, is no residual; x is one if its value is needed.
///
/// y has the type of x. No gradient flows into `given`.
///
/// ```
/// use hlo::{DType, Literal, Mesh, TensorType, VjpHalves, interpret, trace};
///
/// // y = sin(w x)
/// let graph = trace(Mesh::SINGLE, |t| {
///     let number = || TensorType::new(DType::F64, &[]);
///     let [w, x] = ["w", "x"].map(|name| t.input(name, number()));
///     let halves = VjpHalves::trace(t, &[number()], &[true], &number(), &[], |w, x, _| {
///         (w[0] * x).sine()
///     });
///     let Some(halves) = halves else { return };
///     let (y, residuals) = halves.forward(&[w], x, &[]);
///     let sum = t.scalar(DType::F64, 10.0);
///     let (sums, of_x) = halves.backward(&[w], &[sum], &[], &residuals, y.full_like(1.0));
///     t.output("sum", sums[0]);
///     t.output("of_x", of_x);
/// })?;
/// let inputs = [2.0, 0.5].map(|value| vec![Literal::scalar(value)]);
/// let found = interpret(&graph, &inputs).unwrap();
/// assert_eq!(found[0][0].to_f64(), [10.0 + 0.5 * 1f64.cos()]);
/// assert_eq!(found[1][0].to_f64(), [2.0 * 1f64.cos()]);
/// # Ok::<(), hlo::Error>(())
/// ```
#[derive(Debug)]
pub struct VjpHalves {
    forward: Graph,
    backward: Graph,
    used_consts: Vec<usize>,
    used_given: Vec<usize>,
    residuals: Vec<TensorType>,
}

impl VjpHalves {
    /// Traces `f`. `is_wanted` says for which of the constants the backward half adds up gradients.
    /// `None` if `f` does not trace, or y has another type than x: the trace then has that error.
    pub fn trace(
        outer: &Tracer,
        consts: &[TensorType],
        is_wanted: &[bool],
        x: &TensorType,
        given: &[TensorType],
        f: impl for<'b> FnOnce(&[Tensor<'b>], Tensor<'b>, &[Tensor<'b>]) -> Tensor<'b>,
    ) -> Option<Self> {
        let types: Vec<_> = consts.iter().chain([x]).chain(given).cloned().collect();
        let is_const_free = is_wanted.iter().map(|wanted| !wanted);
        let is_free = is_const_free.chain([false]).chain(given.iter().map(|_| true));
        let is_free: Vec<_> = is_free.collect();
        let num_consts = consts.len();
        let body = body::region(outer, &types, &is_free, |inputs| {
            let (consts, rest) = inputs.split_at(num_consts);
            let y = f(consts, rest[0], &rest[1..]);
            if y.ty() != *x {
                y.reject("pipeline", format!("a block returns {} for x of type {x}", y.ty()));
            }
            vec![y]
        });
        let kept = |error| outer.keep_first(error);
        let body = body.map_err(kept).ok()?;
        // A loop of one iteration, which carries x.
        let body = Region::new(body);
        let scan = Scan { body, length: 1, num_consts, num_carried: 1, reverse: false };
        let is_wanted: Vec<_> = is_free.iter().map(|is_free| !is_free).collect();
        let joint = Joint::trace(&scan, &[None], &is_wanted).map_err(kept).ok()?;
        let parts = joint.cut();
        let residuals = parts.residuals.iter().map(|value| joint.graph.ty(*value).clone());
        let residuals = residuals.collect();
        let (forward, backward) = (joint.forward(&parts), joint.backward(&parts));
        let Parts { used_consts, used_xs: used_given, .. } = parts;
        Some(Self { forward, backward, used_consts, used_given, residuals })
    }

    /// The types of the residuals.
    pub fn residuals(&self) -> &[TensorType] {
        &self.residuals
    }

    /// y and the residuals.
    #[track_caller]
    pub fn forward<'g>(
        &self,
        consts: &[Tensor<'g>],
        x: Tensor<'g>,
        given: &[Tensor<'g>],
    ) -> (Tensor<'g>, Vec<Tensor<'g>>) {
        let inputs = [consts, &[x], given].concat();
        let mut results = x.tracer().inline(&self.forward, &inputs);
        let residuals = results.split_off(1);
        (results[0], residuals)
    }

    /// `sums` plus the gradients of the constants that are wanted, in their order, and the gradient
    /// of x, from the cotangent of y. Sums are in f32, or in f64 for constants in f64.
    #[track_caller]
    pub fn backward<'g>(
        &self,
        consts: &[Tensor<'g>],
        sums: &[Tensor<'g>],
        given: &[Tensor<'g>],
        residuals: &[Tensor<'g>],
        cotangent: Tensor<'g>,
    ) -> (Vec<Tensor<'g>>, Tensor<'g>) {
        let t = cotangent.tracer();
        let mut inputs: Vec<_> = self.used_consts.iter().map(|i| consts[*i]).collect();
        inputs.extend_from_slice(sums);
        inputs.push(cotangent);
        inputs.extend(self.used_given.iter().map(|i| given[*i]));
        inputs.extend_from_slice(residuals);
        let mut results = t.in_backward(|| t.inline(&self.backward, &inputs));
        let of_x = results.pop().unwrap_or(cotangent);
        (results, of_x)
    }
}
