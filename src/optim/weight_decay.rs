//! `u + decay w`, for matrices

use hlo::{Tensor, Tree};

use super::{Context, Transformation};

/// Adds the decayed parameter to its update. Parameters of rank below 2, which are biases and the scales
/// of norms, are left alone: decaying them hurts. He et al., "Bag of tricks for image classification"
/// (2019), section 3.1.
///
/// ```
/// use hlo::{DType, Mesh, TensorType, Tree, trace};
/// use lockstep::optim::{Context, Transformation, add_decayed_weights};
///
/// let graph = trace(Mesh::SINGLE, |t| {
///     let w = t.input("w", TensorType::new(DType::F32, &[2, 3]));
///     let params = Tree::from_iter([("w".to_owned(), w)]);
///     let context = Context {
///         params: params.clone(),
///         num_updates: t.scalar(DType::U32, 0.0),
///         learning_rate: t.scalar(DType::F32, 1.0),
///     };
///     let gradients = params.map(|_, w| w.full_like(0.0));
///     let updates = add_decayed_weights(0.1).update(gradients, &mut Tree::new(), &context);
///     t.output("u", updates.get("w").copied().unwrap());
/// })?;
/// assert_eq!(graph.ty(graph.outputs()[0].value).dims, [2, 3]);
/// # Ok::<(), hlo::Error>(())
/// ```
pub fn add_decayed_weights(decay: f64) -> impl Transformation {
    DecayedWeights { decay }
}

struct DecayedWeights {
    decay: f64,
}

impl Transformation for DecayedWeights {
    fn update<'g>(
        &self,
        updates: Tree<Tensor<'g>>,
        _state: &mut Tree<Tensor<'g>>,
        context: &Context<'g>,
    ) -> Tree<Tensor<'g>> {
        updates.map(|path, update| match context.params.get(path) {
            Some(param) if param.rank() >= 2 && self.decay != 0.0 => *update + *param * self.decay,
            _ => *update,
        })
    }
}
