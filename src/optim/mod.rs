//! Optimizers: transformations of gradients, chained. Belongs to the trace phase, schedules excepted.
//!
//! A [`Transformation`] is `{init, update}`: what state it keeps, and what it makes of the gradients. An
//! optimizer is a [`chain`] of them that ends in [`scale_by_learning_rate`]; the result is added to the
//! parameters. The learning rate is an input of the step, so another schedule compiles nothing anew.

mod adam;
mod clip;
mod ema;
mod lars;
mod mask;
mod momentum;
mod norm;
mod rules;
pub mod schedule;
mod trust_ratio;
mod weight_decay;

use hlo::{Tensor, TensorType, Tree};

pub use adam::scale_by_adam;
pub use clip::clip_by_global_norm;
pub use ema::average_params;
pub use lars::scale_by_lars;
pub use mask::{Mask, UnmatchedPattern};
pub use momentum::momentum;
pub use norm::{global_norm, norm, squared_norm};
pub use rules::{adam, adamw, from_config, lamb, lars, sgd};
pub use trust_ratio::scale_by_trust_ratio;
pub use weight_decay::add_decayed_weights;

/// Prefix, in the optimizer's state, of the running mean of the parameters: what evaluation uses and what
/// is saved, where there is one. It starts as the parameters, not as zeros.
pub const EMA: &str = "ema";

/// One link of an optimizer.
pub trait Transformation {
    /// The state leaves it keeps for parameters of the given types: none, if not said otherwise. They
    /// start as zeros, but for those under [`EMA`].
    fn init(&self, _params: &Tree<TensorType>) -> Tree<TensorType> {
        Tree::new()
    }

    /// Sees whether it fits these parameters.
    ///
    /// # Errors
    /// A pattern that matches none of them.
    fn check(&self, _params: &Tree<TensorType>) -> Result<(), UnmatchedPattern> {
        Ok(())
    }

    /// The updates it makes of `updates` (the gradients, or what the links before made of them), with
    /// its state replaced by the next one. Paths and types of both stay as they are.
    fn update<'g>(
        &self,
        updates: Tree<Tensor<'g>>,
        state: &mut Tree<Tensor<'g>>,
        context: &Context<'g>,
    ) -> Tree<Tensor<'g>>;
}

/// What an update may look at.
#[derive(Clone, Debug)]
pub struct Context<'g> {
    /// The parameters before the update.
    pub params: Tree<Tensor<'g>>,
    /// Number of updates made so far: a u32 scalar.
    pub num_updates: Tensor<'g>,
    /// The learning rate: an f32 scalar.
    pub learning_rate: Tensor<'g>,
}

/// Links in order: each gets what the one before made.
pub fn chain(links: Vec<Box<dyn Transformation>>) -> impl Transformation {
    Chain { links }
}

struct Chain {
    links: Vec<Box<dyn Transformation>>,
}

impl Transformation for Chain {
    fn init(&self, params: &Tree<TensorType>) -> Tree<TensorType> {
        self.links.iter().flat_map(|link| link.init(params)).collect()
    }

    fn check(&self, params: &Tree<TensorType>) -> Result<(), UnmatchedPattern> {
        self.links.iter().try_for_each(|link| link.check(params))
    }

    fn update<'g>(
        &self,
        updates: Tree<Tensor<'g>>,
        state: &mut Tree<Tensor<'g>>,
        context: &Context<'g>,
    ) -> Tree<Tensor<'g>> {
        self.links.iter().fold(updates, |updates, link| link.update(updates, state, context))
    }
}

/// `-lr * u`: the last link.
pub fn scale_by_learning_rate() -> impl Transformation {
    ScaleByLearningRate
}

struct ScaleByLearningRate;

impl Transformation for ScaleByLearningRate {
    fn update<'g>(
        &self,
        updates: Tree<Tensor<'g>>,
        _state: &mut Tree<Tensor<'g>>,
        context: &Context<'g>,
    ) -> Tree<Tensor<'g>> {
        updates.map(|_, update| -(beside(context.learning_rate, *update) * *update))
    }
}

/// The state leaves `name.PATH`, one for each parameter, in the parameter's type.
fn like_params(name: &str, params: &Tree<TensorType>) -> Tree<TensorType> {
    params.clone().prefixed(name)
}

/// A scalar that is the same on all replicas, to compute with a leaf: in its dtype, and handed to the
/// replicas over which the leaf is cut.
fn beside<'g>(scalar: Tensor<'g>, leaf: Tensor<'g>) -> Tensor<'g> {
    scalar.convert(leaf.dtype()).vary(leaf.varying())
}

/// `1 - decay^t`, with all digits also where `decay` is near 1.
fn one_minus_power(decay: f64, t: Tensor<'_>) -> Tensor<'_> {
    // ln 0 times t is minus infinity, as it should be.
    -(t * decay.ln()).exponential_minus_one()
}
