//! Weight decay.

use hlo::{LeafSpec, Tensor, Tree};

use super::{Context, Decayed, InvalidPattern, Transformation};

/// Adds `decay` times the parameter to its update.
///
/// ```text
/// u = u + decay w
/// ```
///
/// Krogh and Hertz, "A simple weight decay can improve generalization" (1991).
///
/// `decayed` says which parameters are decayed, and gives some of them a decay of their own.
///
/// ```
/// use hlo::{DType, LeafSpec, Mesh, TensorType, Tree, trace};
/// use lockstep::optim::{Context, Mask, Transformation, add_decayed_weights};
///
/// let graph = trace(Mesh::SINGLE, |t| {
///     let w = t.input("w", TensorType::new(DType::F32, &[2, 3]));
///     let params = Tree::from_iter([("w".to_owned(), w)]);
///     let context = Context {
///         params: params.clone(),
///         specs: params.map(|_, w| LeafSpec::replicated(w.dtype(), &w.shape())),
///         num_updates: t.scalar(DType::U32, 0.0),
///         learning_rate: t.scalar(DType::F32, 1.0),
///     };
///     let gradients = params.map(|_, w| w.full_like(0.0));
///     let link = add_decayed_weights(0.1, Mask::Matrices.into());
///     t.output("u", link.update(gradients, &mut Tree::new(), &context)["w"]);
/// })?;
/// assert_eq!(graph.ty(graph.outputs()[0].value).dims, [2, 3]);
/// # Ok::<(), hlo::Error>(())
/// ```
pub fn add_decayed_weights(decay: f64, decayed: Decayed) -> impl Transformation + use<> {
    DecayedWeights { decay, decayed }
}

struct DecayedWeights {
    decay: f64,
    decayed: Decayed,
}

impl Transformation for DecayedWeights {
    fn check(&self, params: &Tree<LeafSpec>) -> Result<(), InvalidPattern> {
        self.decayed.check(params)
    }

    fn update<'g>(
        &self,
        updates: Tree<Tensor<'g>>,
        _state: &mut Tree<Tensor<'g>>,
        context: &Context<'g>,
    ) -> Tree<Tensor<'g>> {
        updates.map(|path, update| {
            let (Some(param), Some(spec)) = (context.params.get(path), context.specs.get(path))
            else {
                return *update;
            };
            let decays = self.decayed.of_leaf(path, spec, self.decay);
            decays.times(*param).map_or(*update, |decay| *update + decay)
        })
    }
}
