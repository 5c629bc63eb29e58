//! Optimizers: transformations of gradients, chained. Belongs to the trace phase, schedules excepted.
//!
//! A [`Transformation`] is `{init, update}`: what state it keeps, and what it makes of the gradients. An
//! optimizer is a [`chain`] of them that ends in [`scale_by_learning_rate`]; the result is added to the
//! parameters. The learning rate is an input of the step, so another schedule compiles nothing anew.

mod adam;
mod momentum;
pub mod schedule;
mod weight_decay;

use hlo::{Tensor, TensorType, Tree};

use crate::config;

pub use adam::scale_by_adam;
pub use momentum::momentum;
pub use weight_decay::add_decayed_weights;

/// One link of an optimizer.
pub trait Transformation {
    /// The state leaves it keeps for parameters of the given types: none, if not said otherwise. They
    /// start as zeros.
    fn init(&self, _params: &Tree<TensorType>) -> Tree<TensorType> {
        Tree::new()
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
        updates.map(|_, update| -(context.learning_rate.convert(update.dtype()) * *update))
    }
}

/// Stochastic gradient descent: `g = grad + decay w; m = mu m + g; w -= lr m` (Nesterov: `w -= lr (g +
/// mu m)`), which is PyTorch's `SGD`. Sutskever, Martens, Dahl and Hinton (2013).
pub fn sgd(config: &config::Sgd) -> impl Transformation + use<> {
    chain(vec![
        Box::new(add_decayed_weights(config.weight_decay)),
        Box::new(momentum(config.momentum, config.nesterov)),
        Box::new(scale_by_learning_rate()),
    ])
}

/// Adam with decoupled weight decay: `w -= lr (adam(grad) + decay w)`. Loshchilov and Hutter,
/// "Decoupled weight decay regularization" (2019), algorithm 2 with the decay scaled by the rate.
pub fn adamw(config: &config::AdamW) -> impl Transformation + use<> {
    chain(vec![
        Box::new(scale_by_adam(config.beta1, config.beta2, config.epsilon)),
        Box::new(add_decayed_weights(config.weight_decay)),
        Box::new(scale_by_learning_rate()),
    ])
}

/// The optimizer that a configuration names.
pub fn from_config(config: &config::Optimizer) -> Box<dyn Transformation> {
    match config {
        config::Optimizer::Sgd(config) => Box::new(sgd(config)),
        config::Optimizer::AdamW(config) => Box::new(adamw(config)),
    }
}

/// The state leaves `name.PATH`, one for each parameter, in the parameter's type.
fn like_params(name: &str, params: &Tree<TensorType>) -> Tree<TensorType> {
    params.clone().prefixed(name)
}
