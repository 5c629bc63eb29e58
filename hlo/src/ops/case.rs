//! Selection of a branch by an index.

use std::sync::Arc;

use super::body::region;
use crate::region::Region;
use crate::{AxisSet, DType, Graph, Mesh, Op, Tensor, TensorType, Tracer};

/// One function of a [`Tracer::case`].
pub type Branch<'f> = &'f dyn for<'b> Fn(&[Tensor<'b>]) -> Vec<Tensor<'b>>;

impl Tracer {
    /// `branches[index](x)`; only this branch runs. `index` is an i32 or u32 scalar; an index out
    /// of range, negative or too large, takes the last branch. The branches return values of the
    /// same types and see outer values only through their arguments.
    ///
    /// If the index varies, each replica takes its own branch: the operands must vary over the
    /// index's axes too, and no branch may contain a collective over them (checked by
    /// [`crate::verify`]). The VJP is also a case, which recomputes the branch.
    ///
    /// ```
    /// use hlo::{DType, Literal, Mesh, TensorType, grad, interpret, trace};
    ///
    /// let graph = trace(Mesh::SINGLE, |t| {
    ///     let index = t.input("index", TensorType::new(DType::I32, &[]));
    ///     let x = t.input("x", TensorType::new(DType::F64, &[]));
    ///     let y = t.case(index, &[x], &[&|x| vec![x[0] * 2.0], &|x| vec![x[0] * x[0]]]);
    ///     t.output("gradient", grad(y[0], &[x])[0]);
    /// })?;
    /// let gradient = |index: i32| {
    ///     let inputs = [vec![Literal::scalar(index)], vec![Literal::scalar(5.0)]];
    ///     interpret(&graph, &inputs).unwrap()[0][0].to_f64()[0]
    /// };
    /// assert_eq!([0, 1, 7].map(gradient), [2.0, 10.0, 10.0]);
    /// # Ok::<(), hlo::Error>(())
    /// ```
    #[track_caller]
    pub fn case<'g>(
        &'g self,
        index: Tensor<'g>,
        x: &[Tensor<'g>],
        branches: &[Branch<'_>],
    ) -> Vec<Tensor<'g>> {
        let index_varying = index.varying();
        // `vary` is applied to values into which no gradient flows.
        let x: Vec<_> = x.iter().map(|x| vary_if_gradient_free(*x, index_varying)).collect();
        let types: Vec<_> = x.iter().map(Tensor::ty).collect();
        let is_free: Vec<_> = x.iter().map(Tensor::is_gradient_free).collect();
        let mut num_results = 0;
        let mut trace_all = |varying: &[AxisSet]| -> Result<Vec<Graph>, crate::Error> {
            let traced = branches.iter().map(|branch| {
                region(self, &types, &is_free, |x| {
                    let results = branch(x);
                    num_results = num_results.max(results.len());
                    let needed = varying.iter().copied().chain(std::iter::repeat(index_varying));
                    results
                        .into_iter()
                        .zip(needed)
                        .map(|(y, axes)| vary_if_gradient_free(y, axes))
                        .collect()
                })
            });
            traced.collect()
        };
        // Traced again if a branch returns a constant for a value that varies in another.
        let graphs = trace_all(&[]).and_then(|graphs| {
            let varying = joint_varying(&graphs);
            let agree =
                graphs.iter().all(|graph| output_varying(graph).eq(varying.iter().copied()));
            if agree { Ok(graphs) } else { trace_all(&varying) }
        });
        let mut results = match graphs {
            Ok(graphs) => {
                let branches = graphs.into_iter().map(Region::new).collect();
                self.apply_variadic(Op::Case { branches }, &[&[index], &x[..]].concat())
            }
            Err(error) => {
                self.keep_first(error);
                vec![]
            }
        };
        results.resize(num_results, self.poison());
        results
    }
}

/// Applies `vary` over `axes` if no gradient flows into the value; otherwise returns it unchanged.
fn vary_if_gradient_free(x: Tensor<'_>, axes: AxisSet) -> Tensor<'_> {
    let missing = axes.minus(x.varying());
    if missing.is_empty() || !x.is_gradient_free() { x } else { x.vary(missing) }
}

fn output_varying(graph: &Graph) -> impl Iterator<Item = AxisSet> {
    graph.outputs().iter().map(|output| graph.ty(output.value).varying)
}

/// For each result, the axes over which it varies in any branch.
fn joint_varying(graphs: &[Graph]) -> Vec<AxisSet> {
    let mut joint = vec![];
    for graph in graphs {
        joint.resize(joint.len().max(graph.outputs().len()), AxisSet::EMPTY);
        for (joint, varying) in joint.iter_mut().zip(output_varying(graph)) {
            *joint = *joint | varying;
        }
    }
    joint
}

/// The types of the results, which are the same in all branches.
pub(crate) fn infer(
    branches: &[Arc<Region>],
    t: &[&TensorType],
    mesh: &Mesh,
) -> Result<Vec<TensorType>, String> {
    let [index, x @ ..] = t else { return Err("takes an index".into()) };
    if !matches!(index.dtype, DType::I32 | DType::U32) || index.rank() != 0 {
        return Err(format!("the index is {index}, not an i32 or u32 scalar"));
    }
    let index_varying = index.varying;
    if let Some(i) = x.iter().position(|ty| !index_varying.is_subset(ty.varying)) {
        return Err(format!(
            "the index varies over {index_varying}, but operand {i} is {}; apply `vary` to it: \
             gradients through it are then summed over the replicas",
            x[i]
        ));
    }
    let Some((first, others)) = branches.split_first() else {
        return Err("needs at least one branch".into());
    };
    let results = crate::region::infer_inlined(&first.graph, x, mesh)?;
    for (i, branch) in others.iter().enumerate() {
        let other = crate::region::infer_inlined(&branch.graph, x, mesh)?;
        if other.len() != results.len() {
            let (first, other) = (results.len(), other.len());
            return Err(format!("branch {} returns {other} values, branch 0 {first}", i + 1));
        }
        if let Some((first, other)) = results.iter().zip(&other).find(|(a, b)| a != b) {
            return Err(format!("branch {} returns {other} where branch 0 returns {first}", i + 1));
        }
    }
    match results.iter().find(|ty| !index_varying.is_subset(ty.varying)) {
        None => Ok(results),
        Some(ty) => {
            Err(format!("the index varies over {index_varying}, so a result cannot be {ty}"))
        }
    }
}
