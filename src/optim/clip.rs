//! Clipping of the gradients by their norm.

use hlo::{Tensor, Tree};

use super::{Context, Transformation, global_norm, scalar_for};

/// Scales all updates by one factor so that their global norm is at most `max_norm`.
///
/// ```text
/// u = u * min(1, max_norm / |u|)      |u|: the norm of the updates of all parameters together
/// ```
///
/// Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks" (2013),
/// algorithm 1.
///
/// ```
/// use hlo::{DType, LeafSpec, Literal, Mesh, Tree, interpret, trace};
/// use lockstep::optim::{Context, Transformation, clip_by_global_norm};
///
/// let graph = trace(Mesh::SINGLE, |t| {
///     let gradient = t.constant(Literal::from_slice(&[2], &[3f32, 4.0]));
///     let tree = Tree::from_iter([("w".to_owned(), gradient)]);
///     let context = Context {
///         params: tree.clone(),
///         specs: tree.map(|_, w| LeafSpec::replicated(w.dtype(), &w.shape())),
///         num_updates: t.scalar(DType::U32, 0.0),
///         learning_rate: t.scalar(DType::F32, 1.0),
///     };
///     let updates = clip_by_global_norm(1.0).update(tree, &mut Tree::new(), &context);
///     t.output("clipped", updates["w"]);
/// })?;
/// let clipped = interpret(&graph, &[]).unwrap()[0][0].to_f64();
/// assert!((clipped[0] - 0.6).abs() < 1e-6 && (clipped[1] - 0.8).abs() < 1e-6);
/// # Ok::<(), hlo::Error>(())
/// ```
pub fn clip_by_global_norm(max_norm: f64) -> impl Transformation {
    Clip { max_norm }
}

struct Clip {
    max_norm: f64,
}

impl Transformation for Clip {
    fn update<'g>(
        &self,
        updates: Tree<Tensor<'g>>,
        _state: &mut Tree<Tensor<'g>>,
        context: &Context<'g>,
    ) -> Tree<Tensor<'g>> {
        let Some(norm) = global_norm(&updates, &context.specs) else { return updates };
        // Exactly 1 below the limit, so that nothing is rounded.
        let scale = self.max_norm / norm.maximum(self.max_norm);
        updates.map(|_, update| *update * scalar_for(scale, *update))
    }
}
