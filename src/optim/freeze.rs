//! Training of some parameters only.

use hlo::{LeafSpec, Tensor, Tree};

use super::mask::{Included, InvalidPattern};
use super::{Context, Mask, Transformation};

/// Applies `inner` to the parameters of the mask; the others keep their values.
///
/// ```text
/// u = inner(u)      parameters in the mask
/// u = 0             all others
/// ```
///
/// Freezing parameters under fine-tuning: Howard and Ruder, "Universal language model fine-tuning
/// for text classification" (2018), section 3.3. In optax this is `partition` with `set_to_zero`.
///
/// Frozen parameters have no state. If only some rows of a stacked leaf are trained, `inner` has
/// state for all of its rows.
///
/// ```
/// use hlo::{DType, LeafSpec, Tree};
/// use lockstep::config::Patterns;
/// use lockstep::optim::{Mask, Transformation, scale_by_adam, train_only};
///
/// let leaf = |path: &str| (path.to_owned(), LeafSpec::replicated(DType::F32, &[3]));
/// let params = Tree::from_iter(["embed.weight", "head.weight"].map(leaf));
/// let mask = Mask::new("freeze", Some(&Patterns::new(["embed.*"])?));
/// let state = train_only(mask, Box::new(scale_by_adam(0.9, 0.999, 1e-8))).init(&params);
/// assert_eq!(state.paths().collect::<Vec<_>>(), ["first_moment.head.weight", "second_moment.head.weight"]);
/// # Ok::<(), glob::PatternError>(())
/// ```
pub fn train_only(mask: Mask, inner: Box<dyn Transformation>) -> impl Transformation {
    TrainOnly { mask, inner }
}

struct TrainOnly {
    mask: Mask,
    inner: Box<dyn Transformation>,
}

impl TrainOnly {
    fn trainable(&self, params: &Tree<LeafSpec>) -> Tree<LeafSpec> {
        let is_trainable = |(path, spec): &(&str, &LeafSpec)| !self.freezes(path, spec);
        let trainable = params.iter().filter(is_trainable);
        trainable.map(|(path, spec)| (path.to_owned(), spec.clone())).collect()
    }
}

impl Transformation for TrainOnly {
    fn init(&self, params: &Tree<LeafSpec>) -> Tree<LeafSpec> {
        self.inner.init(&self.trainable(params))
    }

    fn check(&self, params: &Tree<LeafSpec>) -> Result<(), InvalidPattern> {
        self.mask.check(params)?;
        // Patterns of other keys may match parameters that are not trained.
        self.inner.check(params)?;
        match params.is_empty() || !self.trainable(params).is_empty() {
            true => Ok(()),
            false => Err(InvalidPattern::AllFrozen),
        }
    }

    fn freezes(&self, path: &str, spec: &LeafSpec) -> bool {
        matches!(self.mask.of_leaf(path, spec), Included::None)
    }

    fn mask_gradient<'g>(&self, path: &str, spec: &LeafSpec, gradient: Tensor<'g>) -> Tensor<'g> {
        self.mask.of_leaf(path, spec).choose(|| gradient, gradient.full_like(0.0))
    }

    fn update<'g>(
        &self,
        updates: Tree<Tensor<'g>>,
        state: &mut Tree<Tensor<'g>>,
        context: &Context<'g>,
    ) -> Tree<Tensor<'g>> {
        let specs = self.trainable(&context.specs);
        let trainable = updates.iter().filter(|(path, _)| specs.get(path).is_some());
        let trainable = trainable.map(|(path, update)| (path.to_owned(), *update)).collect();
        let trainable = self.inner.update(trainable, state, context);
        updates.map(|path, update| {
            // Adding it changes no bit, not even the sign of a zero.
            let unchanged = || update.full_like(-0.0);
            match (trainable.get(path), context.specs.get(path)) {
                (Some(update), Some(spec)) => {
                    self.mask.of_leaf(path, spec).choose(|| *update, unchanged())
                }
                _ => unchanged(),
            }
        })
    }
}
