//! Optimizers: chains of gradient transformations. Everything except schedules belongs to the trace
//! phase.
//!
//! A [`Transformation`] is `{init, update}`, as in optax: the state that it keeps, and how it
//! transforms the gradients. An optimizer is a [`chain`] of them that ends in
//! [`scale_by_learning_rate`]; the result is added to the parameters. The learning rate is an input
//! of the step, so changing the schedule does not recompile it.

mod adam;
mod clip;
mod ema;
mod freeze;
mod lars;
mod mask;
mod momentum;
mod norm;
mod per_parameter;
mod rules;
pub mod schedule;
mod trust_ratio;
mod weight_decay;

use hlo::{Axis, DType, LeafSpec, Tensor, Tree};

pub use adam::scale_by_adam;
pub use clip::clip_by_global_norm;
pub use ema::average_params;
pub use freeze::train_only;
pub use lars::scale_by_lars;
pub use mask::{InvalidPattern, Mask};
pub use momentum::momentum;
pub use norm::global_norm;
pub(crate) use norm::squared_norms;
pub use per_parameter::{Decayed, RateFactors, scale_rates};
pub use rules::{adam, adamw, from_config, from_config_after_momentum, lamb, lars, sgd};
pub use trust_ratio::scale_by_trust_ratio;
pub use weight_decay::add_decayed_weights;

/// Prefix, in the optimizer's state, of the running mean of the parameters. If it exists,
/// evaluation uses it and `params.safetensors` holds it. It starts as the parameters, not as zeros.
pub const EMA: &str = "ema";

/// One link of an optimizer.
pub trait Transformation {
    /// The state leaves that it keeps for these parameters; none by default. They start as zeros,
    /// except those under [`EMA`].
    fn init(&self, _params: &Tree<LeafSpec>) -> Tree<LeafSpec> {
        Tree::new()
    }

    /// Checks its patterns against these parameters. A stacked leaf is not a parameter: its rows
    /// are.
    ///
    /// # Errors
    /// If a pattern matches none of them, or two contradict each other.
    fn check(&self, _params: &Tree<LeafSpec>) -> Result<(), InvalidPattern> {
        Ok(())
    }

    /// `true` if the parameters of a leaf stay as they are, so that their gradients are not needed.
    fn freezes(&self, _path: &str, _spec: &LeafSpec) -> bool {
        false
    }

    /// The gradient of a leaf, with zeros for the rows that stay as they are.
    fn mask_gradient<'g>(&self, _path: &str, _spec: &LeafSpec, gradient: Tensor<'g>) -> Tensor<'g> {
        gradient
    }

    /// Transforms `updates` (the gradients, or the result of the previous link), and replaces
    /// `state` by the next one. Paths and types of both stay the same.
    fn update<'g>(
        &self,
        updates: Tree<Tensor<'g>>,
        state: &mut Tree<Tensor<'g>>,
        context: &Context<'g>,
    ) -> Tree<Tensor<'g>>;
}

/// The values that a transformation may read besides the updates.
#[derive(Clone, Debug)]
pub struct Context<'g> {
    /// The parameters before the update.
    pub params: Tree<Tensor<'g>>,
    /// The specifications of their leaves, which say which of them are stacks of parameters.
    pub specs: Tree<LeafSpec>,
    /// Number of updates made so far: a u32 scalar.
    pub num_updates: Tensor<'g>,
    /// The learning rate: an f32 scalar.
    pub learning_rate: Tensor<'g>,
}

/// Applies the links in order, each to the result of the previous one.
///
/// ```text
/// u = link_n(.. link_2(link_1(u)))
/// ```
///
/// `chain` of optax: DeepMind et al., "The DeepMind JAX Ecosystem" (2020).
pub fn chain(links: Vec<Box<dyn Transformation>>) -> impl Transformation {
    Chain { links }
}

struct Chain {
    links: Vec<Box<dyn Transformation>>,
}

impl Transformation for Chain {
    fn init(&self, params: &Tree<LeafSpec>) -> Tree<LeafSpec> {
        self.links.iter().flat_map(|link| link.init(params)).collect()
    }

    fn check(&self, params: &Tree<LeafSpec>) -> Result<(), InvalidPattern> {
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

/// Turns an update into the step against it, with the learning rate as its length.
///
/// ```text
/// u = -lr u
/// ```
///
/// Robbins and Monro, "A stochastic approximation method" (1951).
///
/// The sum of the result and the parameter is the next parameter.
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
        updates.map(|_, update| -(scalar_for(context.learning_rate, *update) * *update))
    }
}

/// The state leaves `name.PATH`, one for each parameter, with its dtype, dims and sharding.
fn like_params(name: &str, params: &Tree<LeafSpec>) -> Tree<LeafSpec> {
    params.clone().prefixed(name)
}

/// A scalar that is the same on all replicas, converted to the dtype of `leaf` and typed as varying
/// over the same axes, so that the two can be combined.
fn scalar_for<'g>(scalar: Tensor<'g>, leaf: Tensor<'g>) -> Tensor<'g> {
    scalar.convert(leaf.dtype()).vary(leaf.varying())
}

/// Like [`scalar_for`], with one number for each row of a stacked leaf, `[stack sizes]`. `leaf` may
/// itself hold one number for each row.
fn of_rows_for<'g>(numbers: Tensor<'g>, leaf: Tensor<'g>) -> Tensor<'g> {
    let numbers = scalar_for(of_stage(numbers, leaf), leaf);
    match numbers.rank() {
        0 => numbers,
        num_stacked => numbers.broadcast_like(leaf, &(0..num_stacked).collect::<Vec<_>>()),
    }
}

/// Of something for each row of a leaf, `[stack sizes]`, what belongs to the rows that this stage
/// of a pipeline has of the leaf.
fn of_stage<'g>(of_rows: Tensor<'g>, leaf: Tensor<'g>) -> Tensor<'g> {
    let is_of_leaf = |dim: usize| of_rows.dim(dim) == leaf.dim(dim);
    if of_rows.rank() != LeafSpec::PIPELINE_DIMS || is_of_leaf(1) {
        return of_rows;
    }
    let t = leaf.tracer();
    let (zero, stage) = (t.scalar(DType::U32, 0.0), t.replica_id(Axis::Pipeline));
    let [chunks, _, blocks] = of_rows.dims();
    of_rows.dynamic_slice(&[zero, stage, zero], &[chunks, leaf.dim(1), blocks])
}

/// `1 - decay^t`, without cancellation where `decay` is near 1.
fn one_minus_power(decay: f64, t: Tensor<'_>) -> Tensor<'_> {
    // For a decay of 0, `t * ln 0` is minus infinity, which gives the right result, 1.
    -(t * decay.ln()).exponential_minus_one()
}
