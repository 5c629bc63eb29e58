//! Recomputing values elementwise from substituted operands.

use std::collections::HashMap;

use crate::{Error, Graph, Op, Tensor, Tracer, ValueId};

impl Tracer {
    /// `values` recomputed with `to` in the place of `from` for each `(from, to)` of `replaced`,
    /// which have the same type. Only elementwise ops are repeated: results of reductions,
    /// products, collectives and loops on `from` are reused.
    ///
    /// So a large value need not be kept in memory between two uses, at the cost of repeating its
    /// last ops. If `to` depends on `values`, no compiler can merge the two computations.
    ///
    /// ```
    /// use hlo::{DType, Literal, Mesh, TensorType, interpret, trace};
    ///
    /// let graph = trace(Mesh::SINGLE, |t| {
    ///     let [x, y] = ["x", "y"].map(|name| t.input(name, TensorType::new(DType::F64, &[2])));
    ///     let scaled = x * 3.0 / x.sum();
    ///     t.output("scaled", t.recompute(&[scaled], &[(x, y)])[0]);
    /// })?;
    /// // y * 3 / sum(x)
    /// let inputs = [[1.0, 5.0], [2.0, 4.0]].map(|x| vec![Literal::from_slice(&[2], &x)]);
    /// assert_eq!(interpret(&graph, &inputs).unwrap()[0][0].to_f64(), [1.0, 2.0]);
    /// # Ok::<(), hlo::Error>(())
    /// ```
    #[track_caller]
    pub fn recompute<'g>(
        &'g self,
        values: &[Tensor<'g>],
        replaced: &[(Tensor<'g>, Tensor<'g>)],
    ) -> Vec<Tensor<'g>> {
        let (from, to): (Vec<_>, Vec<_>) = replaced.iter().copied().unzip();
        let ids = |tensors: &[Tensor<'g>]| self.values_of("recompute", tensors);
        let (Some(wanted), Some(from), Some(to)) = (ids(values), ids(&from), ids(&to)) else {
            return vec![self.poison(); values.len()];
        };
        let again = self.repeat_elementwise(&wanted, from.into_iter().zip(to).collect());
        match again {
            Ok(again) => again.into_iter().map(|value| self.tensor(value)).collect(),
            Err(error) => {
                self.keep_first(error);
                vec![self.poison(); values.len()]
            }
        }
    }

    /// [`Self::recompute`] on values; `again` maps each value to its replacement.
    fn repeat_elementwise(
        &self,
        wanted: &[ValueId],
        mut again: HashMap<ValueId, ValueId>,
    ) -> Result<Vec<ValueId>, Error> {
        let mut graph = self.graph_mut();
        for index in nodes_between(&graph, &again, wanted) {
            let node = graph.nodes()[index].clone();
            let operands = node.operands.iter().map(|x| *again.get(x).unwrap_or(x));
            let operands: Vec<_> = operands.collect();
            let value = graph.push(node.op.clone(), &operands, node.location)?;
            again.insert(node.result(), value);
        }
        Ok(wanted.iter().map(|value| *again.get(value).unwrap_or(value)).collect())
    }
}

/// The elementwise nodes on paths from `starts` to `wanted`, in order.
fn nodes_between(
    graph: &Graph,
    starts: &HashMap<ValueId, ValueId>,
    wanted: &[ValueId],
) -> Vec<usize> {
    let mut follows = vec![false; graph.num_values()];
    for start in starts.keys() {
        follows[start.index()] = true;
    }
    for node in graph.nodes().iter().filter(|node| is_elementwise(&node.op)) {
        if node.operands.iter().any(|operand| follows[operand.index()]) {
            follows[node.result().index()] = true;
        }
    }
    let mut needed = vec![false; graph.num_values()];
    for value in wanted {
        needed[value.index()] = true;
    }
    let mut between = vec![];
    for (index, node) in graph.nodes().iter().enumerate().rev() {
        let result = node.result();
        let is_between = is_elementwise(&node.op) && follows[result.index()];
        if is_between && needed[result.index()] && !starts.contains_key(&result) {
            between.push(index);
            for operand in &node.operands {
                needed[operand.index()] = true;
            }
        }
    }
    between.reverse();
    between
}

/// `true` if each element of the result is a cheap function of one element of each operand.
pub(crate) fn is_elementwise(op: &Op) -> bool {
    matches!(
        op,
        Op::Unary(_)
            | Op::Binary(_)
            | Op::Compare(_)
            | Op::Select
            | Op::Clamp
            | Op::Convert(_)
            | Op::BitcastConvert(_)
            | Op::BroadcastInDim { .. }
            | Op::Reshape { .. }
            | Op::FusionBarrier
            | Op::StopGradient
            | Op::Vary { .. }
            | Op::Replicated { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Literal, Mesh, Reduction, TensorType, interpret, trace};

    #[test]
    fn only_elementwise_ops_are_repeated_and_only_those_between() {
        let ty = TensorType::new(DType::F64, &[3]);
        let graph = trace(Mesh::SINGLE, |t| {
            let [x, y, w] = ["x", "y", "w"].map(|name| t.input(name, ty.clone()));
            let shared = w * 2.0;
            let norm = x.reduce(Reduction::Sum, &[0]);
            let value = (x + shared) * norm;
            let before = t.graph().nodes().len();
            let again = t.recompute(&[value, shared, x, norm], &[(x, y)]);
            // Only the sum and the product: the norm is not elementwise.
            assert_eq!(t.graph().nodes().len(), before + 2);
            assert_eq!(
                again[1..].iter().map(Tensor::value).collect::<Vec<_>>(),
                [shared, y, norm].map(|x| x.value())
            );
            t.output("again", again[0]);
        });
        let inputs = [[1.0, 2.0, 3.0], [5.0, 6.0, 7.0], [10.0, 20.0, 30.0]];
        let inputs = inputs.map(|values| vec![Literal::from_slice(&[3], &values)]);
        let again = interpret(&graph.unwrap(), &inputs).unwrap();
        // (y + 2 w) sum(x)
        assert_eq!(again[0][0].to_f64(), [150.0, 276.0, 402.0]);
    }

    #[test]
    fn a_replacement_of_another_type_is_an_error_of_its_first_user() {
        let graph = trace(Mesh::SINGLE, |t| {
            let x = t.input("x", TensorType::new(DType::F32, &[3]));
            let y = t.input("y", TensorType::new(DType::F32, &[2]));
            t.output("z", t.recompute(&[x + 1.0], &[(x, y)])[0]);
        });
        let error = graph.unwrap_err().to_string();
        assert!(error.starts_with("add(f32[2], f32[3]) at "), "{error}");
    }
}
