//! Functions with a hand-written VJP, where the derived one is too slow.

use std::collections::HashMap;
use std::sync::Arc;

use super::body::region;
use crate::region::Region;
use crate::{Binary, Node, Op, Tensor, TensorType, Tracer, ValueId};

/// A function, and its VJP.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CustomVjp {
    /// From operands to results.
    pub forward: Arc<Region>,
    /// From operands, results and the results' cotangents to the cotangents of the float operands.
    pub backward: Arc<Region>,
    /// `true` if the results are not kept for the backward pass, which computes them again from the
    /// operands.
    pub recompute: bool,
}

impl Tracer {
    /// `forward(x)`, with the VJP `backward(x, y, cotangents)`: from the operands, the results y
    /// and a cotangent for each result, it returns a cotangent for each float operand, in its type.
    /// The results must be floats. Both functions see outer values only through their arguments.
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
        self.record_custom_vjp(x, false, forward, backward)
    }

    /// [`Self::custom_vjp`] without keeping the results for the backward pass. Where a VJP needs
    /// them, reshaped or converted or not, `forward` runs again on the operands, after a barrier
    /// with the cotangent. So the second run does not begin before the backward pass gets there,
    /// and no compiler merges it with the first. The body of [`Self::remat`] runs again anyway;
    /// `forward` does not run a third time in it.
    ///
    /// For results that are much larger than the operands, such as a parameter gathered from its
    /// shards. `backward` should not use the results: it gets those of the first run, which then
    /// stay in memory.
    #[track_caller]
    pub fn custom_vjp_recomputed<'g>(
        &'g self,
        x: &[Tensor<'g>],
        forward: impl for<'b> FnOnce(&[Tensor<'b>]) -> Vec<Tensor<'b>>,
        backward: impl for<'b> FnOnce(&[Tensor<'b>], &[Tensor<'b>], &[Tensor<'b>]) -> Vec<Tensor<'b>>,
    ) -> Vec<Tensor<'g>> {
        self.record_custom_vjp(x, true, forward, backward)
    }

    #[track_caller]
    fn record_custom_vjp<'g>(
        &'g self,
        x: &[Tensor<'g>],
        recompute: bool,
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
        let mut results =
            self.apply_variadic(Op::CustomVjp(CustomVjp { forward, backward, recompute }), x);
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

/// Whether the VJP computes results of [`Tracer::custom_vjp_recomputed`] again, or uses them as
/// they are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recompute {
    Again,
    /// The forward pass is itself a recomputation, which is used at once.
    Keep,
}

/// Values that the backward pass computes again: results of [`Tracer::custom_vjp_recomputed`], and
/// values derived from them by ops that only move or convert elements.
pub(crate) struct Recomputed<'g> {
    tracer: &'g Tracer,
    /// For each value of the forward pass, `true` if it is computed again.
    is_recomputed: Vec<bool>,
    /// The values that were computed again.
    again: HashMap<ValueId, Tensor<'g>>,
}

impl<'g> Recomputed<'g> {
    pub(crate) fn new(tracer: &'g Tracer, recompute: Recompute) -> Self {
        let graph = tracer.graph();
        let mut is_recomputed = vec![false; graph.num_values()];
        if recompute == Recompute::Again {
            for node in graph.nodes() {
                let moves = moves_elements(&node.op) && is_recomputed[node.operands[0].index()];
                if moves || matches!(&node.op, Op::CustomVjp(custom) if custom.recompute) {
                    for result in node.results() {
                        is_recomputed[result.index()] = true;
                    }
                }
            }
        }
        drop(graph);
        Self { tracer, is_recomputed, again: HashMap::new() }
    }

    /// Replaces the operands of a node that are to be computed again. The barrier that holds back
    /// the computation holds a cotangent too, which is replaced by the barrier's result.
    #[track_caller]
    pub(crate) fn replace(
        &mut self,
        node: &Node,
        operands: &mut [Tensor<'g>],
        cotangents: &mut [Option<Tensor<'g>>],
    ) {
        if moves_elements(&node.op) || !uses_operands(&node.op) {
            return;
        }
        let Some(cotangent) = cotangents.iter_mut().flatten().next() else { return };
        for (id, operand) in node.operands.iter().zip(operands) {
            if self.is_recomputed.get(id.index()).is_some_and(|is_recomputed| *is_recomputed) {
                *operand = self.compute(*id, cotangent);
            }
        }
    }

    #[track_caller]
    fn compute(&mut self, id: ValueId, cotangent: &mut Tensor<'g>) -> Tensor<'g> {
        if let Some(again) = self.again.get(&id) {
            return *again;
        }
        let node = self.tracer.graph().node_of(id).clone();
        let results = match node.op {
            Op::CustomVjp(_) => {
                let operands = node.operands.iter().map(|operand| self.tracer.tensor(*operand));
                let held_back: Vec<_> = operands.chain([*cotangent]).collect();
                let mut held_back = self.tracer.optimization_barrier(&held_back);
                *cotangent = held_back.pop().unwrap_or(*cotangent);
                self.tracer.apply_variadic(node.op.clone(), &held_back)
            }
            _ => {
                let operand = self.compute(node.operands[0], cotangent);
                vec![self.tracer.apply(node.op.clone(), &[operand])]
            }
        };
        self.again.extend(node.results().zip(results));
        self.again.get(&id).copied().unwrap_or_else(|| self.tracer.poison())
    }
}

/// `true` for ops that only move, repeat or convert the elements of their one operand. Their VJPs
/// do not need its values.
pub(crate) fn moves_elements(op: &Op) -> bool {
    matches!(
        op,
        Op::Convert(_)
            | Op::Reshape { .. }
            | Op::Transpose { .. }
            | Op::BroadcastInDim { .. }
            | Op::Slice { .. }
            | Op::Vary { .. }
            | Op::Replicated { .. }
            | Op::FusionBarrier
    )
}

/// `false` if the op's VJP does not use the values of its operands.
fn uses_operands(op: &Op) -> bool {
    !matches!(
        op,
        Op::Binary(Binary::Add | Binary::Subtract) | Op::Concatenate { .. } | Op::Gather { .. }
    )
}
