//! Functions with a hand-written VJP, where the derived one is too slow.

use std::sync::Arc;

use super::body::region;
use crate::region::Region;
use crate::{Op, Tensor, TensorType, Tracer};

/// A function, and its VJP.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CustomVjp {
    /// From operands to results.
    pub forward: Arc<Region>,
    /// From operands, results and the results' cotangents to the cotangents of the float operands.
    pub backward: Arc<Region>,
}

impl Tracer {
    /// `forward(x)`, with the VJP `backward(x, y, cotangents)`: from the operands, the results y and
    /// a cotangent for each result, it returns a cotangent for each float operand, in its type. The results must be
    /// floats. Both functions see outer values only through their arguments.
    ///
    /// Nothing checks that `backward` is the VJP of `forward`: test it against finite differences.
    ///
    /// ```
    /// use hlo::{DType, Literal, Mesh, TensorType, grad, interpret, trace};
    ///
    /// // The derivative of tanh from its result, not from its operand.
    /// let graph = trace(Mesh::SINGLE, |t| {
    ///     let x = t.input("x", TensorType::new(DType::F64, &[]));
    ///     let tanh = t.custom_vjp(&[x], |x| vec![x[0].tanh()], |_, y, ct| {
    ///         vec![ct[0] * (-(y[0] * y[0]) + 1.0)]
    ///     });
    ///     t.output("gradient", grad(tanh[0], &[x])[0]);
    /// })?;
    /// let y = interpret(&graph, &[vec![Literal::scalar(0.5)]]).unwrap();
    /// assert!((y[0][0].to_f64()[0] - (1.0 - 0.5f64.tanh().powi(2))).abs() < 1e-15);
    /// # Ok::<(), hlo::Error>(())
    /// ```
    #[track_caller]
    pub fn custom_vjp<'g>(
        &'g self,
        x: &[Tensor<'g>],
        forward: impl for<'b> FnOnce(&[Tensor<'b>]) -> Vec<Tensor<'b>>,
        backward: impl for<'b> FnOnce(&[Tensor<'b>], &[Tensor<'b>], &[Tensor<'b>]) -> Vec<Tensor<'b>>,
    ) -> Vec<Tensor<'g>> {
        let mut types: Vec<_> = x.iter().map(Tensor::ty).collect();
        let mut is_free: Vec<_> = x.iter().map(Tensor::is_gradient_free).collect();
        let mut num_results = 0;
        let forward = region(self, &types, &is_free, |x| {
            let results = forward(x);
            num_results = results.len();
            results
        });
        let poison = || vec![self.poison(); num_results];
        let forward = match forward {
            Ok(graph) => graph,
            Err(error) => {
                self.keep_first(error);
                return poison();
            }
        };
        let results: Vec<TensorType> =
            forward.outputs().iter().map(|output| forward.ty(output.value).clone()).collect();
        if let Some(ty) = results.iter().find(|ty| !ty.dtype.is_float()) {
            self.fail("custom_vjp", x, format!("the results must be floats, not {ty}"));
            return poison();
        }
        let wanted: Vec<_> = types.iter().filter(|ty| ty.dtype.is_float()).cloned().collect();
        let num_x = types.len();
        types.extend(results.iter().chain(&results).cloned());
        is_free.resize(types.len(), false);
        let backward = region(self, &types, &is_free, |inputs| {
            let (x, rest) = inputs.split_at(num_x);
            let (y, cotangents) = rest.split_at(rest.len() / 2);
            backward(x, y, cotangents)
        });
        let backward = match backward {
            Ok(graph) => graph,
            Err(error) => {
                self.keep_first(error);
                return poison();
            }
        };
        let found = backward.outputs().iter().map(|output| backward.ty(output.value));
        if !found.clone().eq(&wanted) {
            let list = |types: Vec<&TensorType>| {
                types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            };
            let (found, wanted) = (list(found.collect()), list(wanted.iter().collect()));
            let message = format!(
                "the VJP returns cotangents ({found}), but the float operands are ({wanted})"
            );
            self.fail("custom_vjp", x, message);
            return poison();
        }
        let (forward, backward) = (Region::new(forward), Region::new(backward));
        let mut results = self.apply_variadic(Op::CustomVjp(CustomVjp { forward, backward }), x);
        results.resize(num_results, self.poison());
        results
    }
}

/// The cotangents of the operands `x`; missing cotangents of results are zeros.
pub(crate) fn vjp<'g>(
    custom: &CustomVjp,
    x: &[Tensor<'g>],
    y: &[Tensor<'g>],
    cotangents: &[Option<Tensor<'g>>],
) -> Vec<Option<Tensor<'g>>> {
    let cotangents = y.iter().zip(cotangents).map(|(y, ct)| ct.unwrap_or_else(|| y.full_like(0.0)));
    let cotangents: Vec<_> = cotangents.collect();
    let inputs = [x, y, &cotangents].concat();
    let mut found = y[0].tracer().inline(&custom.backward.graph, &inputs).into_iter();
    x.iter().map(|x| if x.dtype().is_float() { found.next() } else { None }).collect()
}
