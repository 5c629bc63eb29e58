//! The trust ratio of LAMB.

use hlo::{LeafSpec, Tensor, Tree};

use super::norm::{param_norm, ratio};
use super::{Context, InvalidPattern, Mask, Transformation, of_rows_for};

/// Scales the update of each parameter in `adapted` to the parameter's norm.
///
/// ```text
/// u = u * |w| / |u|
/// ```
///
/// You et al., "Large batch optimization for deep learning: training BERT in 76 minutes" (2020),
/// algorithm 2, with the identity as phi.
///
/// If either norm is 0, the update is unchanged.
///
/// ```
/// use hlo::{DType, LeafSpec, Literal, Mesh, Tree, interpret, trace};
/// use lockstep::optim::{Context, Mask, Transformation, scale_by_trust_ratio};
///
/// let graph = trace(Mesh::SINGLE, |t| {
///     let tree = |values: [f32; 2]| {
///         let leaf = t.constant(Literal::from_slice(&[1, 2], &values));
///         Tree::from_iter([("w".to_owned(), leaf)])
///     };
///     let context = Context {
///         params: tree([6.0, 8.0]),
///         specs: tree([6.0, 8.0]).map(|_, w| LeafSpec::replicated(w.dtype(), &w.shape())),
///         num_updates: t.scalar(DType::U32, 0.0),
///         learning_rate: t.scalar(DType::F32, 1.0),
///     };
///     let link = scale_by_trust_ratio(Mask::Matrices);
///     let updates = link.update(tree([3.0, 4.0]), &mut Tree::new(), &context);
///     t.output("u", updates["w"]);
/// })?;
/// assert_eq!(interpret(&graph, &[]).unwrap()[0][0].to_f64(), [6.0, 8.0]);
/// # Ok::<(), hlo::Error>(())
/// ```
pub fn scale_by_trust_ratio(adapted: Mask) -> impl Transformation {
    TrustRatio { adapted }
}

struct TrustRatio {
    adapted: Mask,
}

impl Transformation for TrustRatio {
    fn check(&self, params: &Tree<LeafSpec>) -> Result<(), InvalidPattern> {
        self.adapted.check(params)
    }

    fn update<'g>(
        &self,
        updates: Tree<Tensor<'g>>,
        _state: &mut Tree<Tensor<'g>>,
        context: &Context<'g>,
    ) -> Tree<Tensor<'g>> {
        self.adapted.map(updates, context, |update, param, spec| {
            let ratio = ratio(param_norm(param, spec), param_norm(update, spec));
            update * of_rows_for(ratio, update)
        })
    }
}
