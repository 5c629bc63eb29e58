//! The update rules as chains, and the chain of a configuration.

use hlo::{LeafSpec, Tensor, Tree};

use super::{
    Context, Decayed, InvalidPattern, Mask, Transformation, add_decayed_weights, average_params,
    chain, clip_by_global_norm, momentum, scale_by_adam, scale_by_lars, scale_by_learning_rate,
    scale_by_trust_ratio, scale_rates, train_only,
};
use crate::config::{self, UpdateRule};

type Links = Vec<Box<dyn Transformation>>;

/// The optimizer of a configuration: gradient clipping, the update rule, the factors of its rates,
/// the running mean of the parameters; all of this for the parameters that are trained.
pub fn from_config(config: &config::OptimizerConfig) -> Box<dyn Transformation> {
    of_rule(config, sgd)
}

/// [`from_config`] for gradients that have the momentum of SGD already; what decay adds to them has
/// not.
pub fn from_config_after_momentum(config: &config::OptimizerConfig) -> Box<dyn Transformation> {
    of_rule(config, sgd_after_momentum)
}

fn of_rule<T: Transformation + 'static>(
    config: &config::OptimizerConfig,
    sgd: fn(&config::Sgd, Decayed) -> T,
) -> Box<dyn Transformation> {
    let mask = Mask::new("weight_decay_exclude", config.weight_decay_exclude.as_ref());
    let decayed = Decayed { mask, own: config.weight_decays.clone() };
    let rule: Box<dyn Transformation> = match &config.rule {
        UpdateRule::Sgd(config) => Box::new(sgd(config, decayed)),
        UpdateRule::Adam(config) => Box::new(adam(config, decayed)),
        UpdateRule::AdamW(config) => Box::new(adamw(config, decayed)),
        UpdateRule::Lars(config) => Box::new(lars(config, decayed)),
        UpdateRule::Lamb(config) => Box::new(lamb(config, decayed)),
    };
    let mut links: Links = vec![];
    links.extend(config.clip_grad_norm.map(|norm| Box::new(clip_by_global_norm(norm)) as _));
    links.push(rule);
    if !config.lr_factors.is_empty() || config.layer_decay != 1.0 {
        links.push(Box::new(scale_rates(config.lr_factors.clone(), config.layer_decay)));
    }
    links.extend(config.ema_decay.map(|decay| Box::new(average_params(decay)) as _));
    let optimizer = Box::new(chain(links));
    match config.freeze.is_empty() {
        true => optimizer,
        false => Box::new(train_only(Mask::new("freeze", Some(&config.freeze)), optimizer)),
    }
}

/// Stochastic gradient descent with momentum.
///
/// ```text
/// g = grad + decay w
/// m = mu m + g
/// w = w - lr m               heavy ball
/// w = w - lr (g + mu m)      Nesterov
/// ```
///
/// Sutskever, Martens, Dahl and Hinton, "On the importance of initialization and momentum in deep
/// learning" (2013), in the form of PyTorch's `SGD`.
///
/// Here `m` is not scaled by the learning rate, so a changed rate applies to all of `m` at once. In
/// the other form, `m = mu m + lr g; w = w - m`, `m` contains the rates of earlier steps; Goyal et
/// al., "Accurate, large minibatch SGD" (2017), section 3, remark 2, multiply it by
/// `lr_now / lr_before`, which gives the first form. `momentum_correction = false` is the second
/// form without that correction.
///
/// ```
/// use lockstep::{config::Sgd, optim::{Mask, Transformation, sgd}};
/// use hlo::{DType, LeafSpec, Tree};
/// let params = Tree::from_iter([("w".to_owned(), LeafSpec::replicated(DType::F32, &[3]))]);
/// let state = sgd(&Sgd::default(), Mask::Matrices.into()).init(&params);
/// assert_eq!(state.paths().collect::<Vec<_>>(), ["momentum.w"]);
/// ```
pub fn sgd(config: &config::Sgd, decayed: Decayed) -> impl Transformation + use<> {
    let decay = Box::new(add_decayed_weights(config.weight_decay, decayed));
    let config::Sgd { momentum, nesterov, momentum_correction, .. } = *config;
    with_momentum(decay, momentum, nesterov, momentum_correction)
}

/// [`sgd`] of the form with `momentum_correction`, for gradients that have the momentum already.
fn sgd_after_momentum(config: &config::Sgd, decayed: Decayed) -> impl Transformation + use<> {
    let decay = Box::new(add_decayed_weights(config.weight_decay, decayed));
    let momentum = Box::new(momentum(config.momentum, config.nesterov));
    let links: Links =
        vec![Box::new(of_zeros(chain(vec![decay, momentum]))), Box::new(scale_by_learning_rate())];
    chain(links)
}

/// Adds to each update what `inner` makes of zeros.
fn of_zeros(inner: impl Transformation) -> impl Transformation {
    OfZeros { inner }
}

struct OfZeros<T> {
    inner: T,
}

impl<T: Transformation> Transformation for OfZeros<T> {
    fn init(&self, params: &Tree<LeafSpec>) -> Tree<LeafSpec> {
        self.inner.init(params)
    }

    fn check(&self, params: &Tree<LeafSpec>) -> Result<(), InvalidPattern> {
        self.inner.check(params)
    }

    fn update<'g>(
        &self,
        updates: Tree<Tensor<'g>>,
        state: &mut Tree<Tensor<'g>>,
        context: &Context<'g>,
    ) -> Tree<Tensor<'g>> {
        let zeros = updates.map(|_, update| update.full_like(0.0));
        let added = self.inner.update(zeros, state, context);
        updates.map(|path, update| *update + added[path])
    }
}

/// Adam, with the weight decay in the gradient.
///
/// ```text
/// w = w - lr adam(grad + decay w)      adam: scale_by_adam
/// ```
///
/// Kingma and Ba, "Adam: a method for stochastic optimization" (2015), algorithm 1, in the form of
/// PyTorch's `Adam`.
///
/// ```
/// use lockstep::{config::Adam, optim::{Mask, Transformation, adam}};
/// use hlo::{DType, LeafSpec, Tree};
/// let params = Tree::from_iter([("w".to_owned(), LeafSpec::replicated(DType::F32, &[3]))]);
/// assert_eq!(adam(&Adam::default(), Mask::Matrices.into()).init(&params).len(), 2);
/// ```
pub fn adam(config: &config::Adam, decayed: Decayed) -> impl Transformation + use<> {
    chain(vec![
        Box::new(add_decayed_weights(config.weight_decay, decayed)),
        Box::new(scale_by_adam(config.beta1, config.beta2, config.epsilon)),
        Box::new(scale_by_learning_rate()),
    ])
}

/// Adam with decoupled weight decay.
///
/// ```text
/// w = w - lr (adam(grad) + decay w)      adam: scale_by_adam
/// ```
///
/// Loshchilov and Hutter, "Decoupled weight decay regularization" (2019), algorithm 2, with the
/// decay scaled by the rate.
///
/// ```
/// use lockstep::{config::AdamW, optim::{Mask, Transformation, adamw}};
/// use hlo::{DType, LeafSpec, Tree};
/// let params = Tree::from_iter([("w".to_owned(), LeafSpec::replicated(DType::F32, &[3]))]);
/// let state = adamw(&AdamW::default(), Mask::Matrices.into()).init(&params);
/// assert_eq!(state.paths().collect::<Vec<_>>(), ["first_moment.w", "second_moment.w"]);
/// ```
pub fn adamw(config: &config::AdamW, decayed: Decayed) -> impl Transformation + use<> {
    chain(vec![
        Box::new(scale_by_adam(config.beta1, config.beta2, config.epsilon)),
        Box::new(add_decayed_weights(config.weight_decay, decayed)),
        Box::new(scale_by_learning_rate()),
    ])
}

/// LARS: momentum on updates with layer-wise adaptive rates.
///
/// ```text
/// m = mu m + lr lars(grad)      lars: scale_by_lars, which adds the decay
/// w = w - m
/// ```
///
/// You, Gitman and Ginsburg, "Large batch training of convolutional networks" (2017), algorithm 1.
///
/// The momentum contains the rate, unless `momentum_correction` moves the rate out of it, as in
/// [`sgd`].
///
/// ```
/// use lockstep::{config::Lars, optim::{Mask, Transformation, lars}};
/// use hlo::{DType, LeafSpec, Tree};
/// let params = Tree::from_iter([("w".to_owned(), LeafSpec::replicated(DType::F32, &[3]))]);
/// let state = lars(&Lars::default(), Mask::Matrices.into()).init(&params);
/// assert_eq!(state.paths().collect::<Vec<_>>(), ["momentum.w"]);
/// ```
pub fn lars(config: &config::Lars, decayed: Decayed) -> impl Transformation + use<> {
    let config::Lars { momentum, nesterov, momentum_correction, .. } = *config;
    let adapted = Mask::new("trust_exclude", config.trust_exclude.as_ref());
    let (coefficient, decay) = (config.trust_coefficient, config.weight_decay);
    let scaled = Box::new(scale_by_lars(coefficient, decay, decayed, adapted));
    with_momentum(scaled, momentum, nesterov, momentum_correction)
}

/// LAMB: AdamW with a trust ratio for each parameter.
///
/// ```text
/// u = adam(grad) + decay w      adam: scale_by_adam
/// w = w - lr u |w| / |u|
/// ```
///
/// You et al., "Large batch optimization for deep learning: training BERT in 76 minutes" (2020),
/// algorithm 2.
///
/// ```
/// use lockstep::{config::Lamb, optim::{Mask, Transformation, lamb}};
/// use hlo::{DType, LeafSpec, Tree};
/// let params = Tree::from_iter([("w".to_owned(), LeafSpec::replicated(DType::F32, &[3]))]);
/// assert_eq!(lamb(&Lamb::default(), Mask::Matrices.into()).init(&params).len(), 2);
/// ```
pub fn lamb(config: &config::Lamb, decayed: Decayed) -> impl Transformation + use<> {
    chain(vec![
        Box::new(scale_by_adam(config.beta1, config.beta2, config.epsilon)),
        Box::new(add_decayed_weights(config.weight_decay, decayed)),
        Box::new(scale_by_trust_ratio(Mask::new("trust_exclude", config.trust_exclude.as_ref()))),
        Box::new(scale_by_learning_rate()),
    ])
}

/// `first`, then momentum and learning rate, in this order if `corrected`: a changed rate then
/// applies to all of the momentum. Otherwise the rate comes before the momentum.
fn with_momentum(
    first: Box<dyn Transformation>,
    mu: f64,
    nesterov: bool,
    corrected: bool,
) -> impl Transformation + use<> {
    let momentum: Box<dyn Transformation> = Box::new(momentum(mu, nesterov));
    let rate: Box<dyn Transformation> = Box::new(scale_by_learning_rate());
    chain(if corrected { vec![first, momentum, rate] } else { vec![first, rate, momentum] })
}
