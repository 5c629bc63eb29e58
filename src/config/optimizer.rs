//! `[optimizer]`: the update rule, its constants, and the options that all rules share.

use hlo::DType;
use serde::{Deserialize, Serialize, Serializer};
use toml::Table;

use super::error::{KeyError, KeyErrors, require, require_not_negative_in, require_positive_in};
use super::keys::{Reader, Section, choices, field_names};
use super::patterns::{PatternNumbers, Patterns};

/// `[optimizer]`.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerConfig {
    /// The update rule, selected by `name`.
    pub rule: UpdateRule,
    /// Patterns of the parameters without weight decay. Default: those of rank below 2, which are
    /// biases and the scales of norms. An empty list excludes none.
    pub weight_decay_exclude: Option<Patterns>,
    /// The largest norm of the gradient over all parameters; a larger one is scaled down. Default:
    /// no limit.
    pub clip_grad_norm: Option<f64>,
    /// Decay of a running mean of the parameters, which is evaluated and saved in their place.
    /// Default: no running mean.
    pub ema_decay: Option<f64>,
    /// Factors of the learning rate, by the parameters' patterns. Default: 1 for all.
    pub lr_factors: PatternNumbers,
    /// Factor of the learning rate from each layer to the one below it, above 0 to 1. Default 1.
    pub layer_decay: f64,
    /// Weight decays that replace the rule's, by the parameters' patterns. Default: none.
    pub weight_decays: PatternNumbers,
    /// Patterns of the parameters that are not trained. Default: none.
    pub freeze: Patterns,
}

choices! {
    /// The update rule.
    pub enum UpdateRule by "name" {
        /// Stochastic gradient descent.
        "sgd" => Sgd(Sgd),
        /// Adam; weight decay is added to the gradient.
        "adam" => Adam(Adam),
        /// Adam with decoupled weight decay.
        "adamw" => AdamW(AdamW),
        /// SGD with a rate for each parameter.
        "lars" => Lars(Lars),
        /// AdamW with a rate for each parameter.
        "lamb" => Lamb(Lamb),
    }
}

/// Stochastic gradient descent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sgd {
    /// Factor for the running sum of gradients at each step, 0 to below 1. Default 0.9.
    pub momentum: f64,
    /// `true` for Nesterov momentum. Default false.
    pub nesterov: bool,
    /// `true` if a new learning rate applies to the whole momentum. Default true, as in PyTorch.
    pub momentum_correction: bool,
    /// This times the parameter is added to its gradient. Default 0.
    pub weight_decay: f64,
}

impl Default for Sgd {
    fn default() -> Self {
        Self { momentum: 0.9, nesterov: false, momentum_correction: true, weight_decay: 0.0 }
    }
}

/// Adam.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Adam {
    /// Decay of the running mean of gradients, 0 to below 1. Default 0.9.
    pub beta1: f64,
    /// Decay of the running mean of squared gradients, 0 to below 1. Default 0.999.
    pub beta2: f64,
    /// Added to the square root of the mean square, above 0. Default 1e-8.
    pub epsilon: f64,
    /// This times the parameter is added to its gradient. Default 0.
    pub weight_decay: f64,
}

impl Default for Adam {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 }
    }
}

/// Adam with decoupled weight decay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AdamW {
    /// Decay of the running mean of gradients, 0 to below 1. Default 0.9.
    pub beta1: f64,
    /// Decay of the running mean of squared gradients, 0 to below 1. Default 0.999.
    pub beta2: f64,
    /// Added to the square root of the mean square, above 0. Default 1e-8.
    pub epsilon: f64,
    /// Share of a parameter, per unit of learning rate, that each step subtracts. Default 0.01.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 }
    }
}

/// SGD with layer-wise adaptive rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lars {
    /// Factor for the running sum at each step, 0 to below 1. Default 0.9.
    pub momentum: f64,
    /// `true` for Nesterov momentum. Default false.
    pub nesterov: bool,
    /// `true` if a new learning rate applies to the whole momentum. Default false, as in the paper.
    pub momentum_correction: bool,
    /// This times the parameter is added to its gradient. Default 0.
    pub weight_decay: f64,
    /// Norm of an update relative to the norm of its parameter, above 0. Default 0.001.
    pub trust_coefficient: f64,
    /// Patterns of the parameters without a trust ratio. Default: those of rank below 2, which are
    /// biases and the scales of norms. An empty list excludes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust_exclude: Option<Patterns>,
}

impl Default for Lars {
    fn default() -> Self {
        Self {
            momentum: 0.9,
            nesterov: false,
            momentum_correction: false,
            weight_decay: 0.0,
            trust_coefficient: 0.001,
            trust_exclude: None,
        }
    }
}

/// AdamW with layer-wise adaptive rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lamb {
    /// Decay of the running mean of gradients, 0 to below 1. Default 0.9.
    pub beta1: f64,
    /// Decay of the running mean of squared gradients, 0 to below 1. Default 0.999.
    pub beta2: f64,
    /// Added to the square root of the mean square, above 0. Default 1e-6.
    pub epsilon: f64,
    /// This times the parameter is added to its update, before the trust ratio is applied. Default
    /// 0.01.
    pub weight_decay: f64,
    /// Patterns of the parameters without a trust ratio. Default: those of rank below 2, which are
    /// biases and the scales of norms. An empty list excludes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust_exclude: Option<Patterns>,
}

impl Default for Lamb {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-6, weight_decay: 0.01, trust_exclude: None }
    }
}

/// The keys that all rules share.
#[derive(Serialize, Deserialize)]
#[serde(default)]
struct SharedKeys {
    #[serde(skip_serializing_if = "Option::is_none")]
    weight_decay_exclude: Option<Patterns>,
    #[serde(skip_serializing_if = "Option::is_none")]
    clip_grad_norm: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ema_decay: Option<f64>,
    lr_factors: PatternNumbers,
    layer_decay: f64,
    weight_decays: PatternNumbers,
    freeze: Patterns,
}

impl Default for SharedKeys {
    fn default() -> Self {
        Self {
            weight_decay_exclude: None,
            clip_grad_norm: None,
            ema_decay: None,
            lr_factors: PatternNumbers::default(),
            layer_decay: 1.0,
            weight_decays: PatternNumbers::default(),
            freeze: Patterns::default(),
        }
    }
}

impl Section for OptimizerConfig {
    const NAME: &'static str = "optimizer";
    const TAG: Option<&'static str> = Some(UpdateRule::TAG);
    const CHOICES: &'static [&'static str] = UpdateRule::NAMES;

    fn keys(choice: &str) -> Vec<&'static str> {
        let mut keys = UpdateRule::keys_of(choice);
        keys.extend(field_names::<SharedKeys>());
        keys
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let rule = UpdateRule::read_choice(reader)?;
        rule.check(&mut reader.errors);
        let keys: SharedKeys = reader.keys()?;
        if let Some(decay) = keys.ema_decay {
            reader.errors.check(decay_rate("ema_decay", decay));
        }
        let is_share = keys.layer_decay > 0.0 && keys.layer_decay <= 1.0;
        let allowed = "a number above 0, at most 1";
        reader.errors.check(require(is_share, "layer_decay", keys.layer_decay, allowed));
        for (pattern, factor) in keys.lr_factors.iter() {
            // What a rate of 0 means is said more clearly, and costs less, with `freeze`.
            let found = format!("{pattern:?} = {factor}");
            let allowed =
                "numbers above 0, at most 1e6; optimizer.freeze names what is not trained";
            let is_factor = factor > 0.0 && factor <= 1e6;
            reader.errors.check(require(is_factor, "lr_factors", found, allowed));
        }
        let SharedKeys { weight_decay_exclude, clip_grad_norm, ema_decay, .. } = keys;
        let SharedKeys { lr_factors, layer_decay, weight_decays, freeze, .. } = keys;
        Some(Self {
            rule,
            weight_decay_exclude,
            clip_grad_norm,
            ema_decay,
            lr_factors,
            layer_decay,
            weight_decays,
            freeze,
        })
    }
}

impl OptimizerConfig {
    /// Checks the constants that must not round to 0 or infinity in the dtype of the parameters, in
    /// which updates are computed, because updates are divided by them.
    pub(super) fn check_in(&self, dtype: DType, errors: &mut KeyErrors) {
        let divisor = match &self.rule {
            UpdateRule::Sgd(_) => None,
            UpdateRule::Adam(Adam { epsilon, .. })
            | UpdateRule::AdamW(AdamW { epsilon, .. })
            | UpdateRule::Lamb(Lamb { epsilon, .. }) => Some(("epsilon", *epsilon)),
            UpdateRule::Lars(Lars { trust_coefficient, .. }) => {
                Some(("trust_coefficient", *trust_coefficient))
            }
        };
        let norm = self.clip_grad_norm.map(|norm| ("clip_grad_norm", norm));
        for (key, value) in norm.into_iter().chain(divisor) {
            errors.check(require_positive_in(dtype, key, value));
        }
        errors.check(require_not_negative_in(dtype, "weight_decay", self.rule.weight_decay()));
        for (_, decay) in self.weight_decays.iter() {
            errors.check(require_not_negative_in(dtype, "weight_decays", decay));
        }
    }
}

impl UpdateRule {
    /// The weight decay, coupled or not.
    pub fn weight_decay(&self) -> f64 {
        match self {
            Self::Sgd(Sgd { weight_decay, .. })
            | Self::Adam(Adam { weight_decay, .. })
            | Self::AdamW(AdamW { weight_decay, .. })
            | Self::Lars(Lars { weight_decay, .. })
            | Self::Lamb(Lamb { weight_decay, .. }) => *weight_decay,
        }
    }

    /// Checks each key by itself.
    fn check(&self, errors: &mut KeyErrors) {
        match self {
            Self::Sgd(Sgd { momentum, nesterov, .. })
            | Self::Lars(Lars { momentum, nesterov, .. }) => {
                errors.check(decay_rate("momentum", *momentum));
                let has_momentum = !nesterov || *momentum > 0.0 || !errors.none_of(&["momentum"]);
                errors.check(require(
                    has_momentum,
                    "nesterov",
                    nesterov,
                    "false while momentum is 0",
                ));
            }
            Self::Adam(Adam { beta1, beta2, .. })
            | Self::AdamW(AdamW { beta1, beta2, .. })
            | Self::Lamb(Lamb { beta1, beta2, .. }) => {
                errors.check(decay_rate("beta1", *beta1));
                errors.check(decay_rate("beta2", *beta2));
            }
        }
    }
}

impl Serialize for OptimizerConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let keys = SharedKeys {
            weight_decay_exclude: self.weight_decay_exclude.clone(),
            clip_grad_norm: self.clip_grad_norm,
            ema_decay: self.ema_decay,
            lr_factors: self.lr_factors.clone(),
            layer_decay: self.layer_decay,
            weight_decays: self.weight_decays.clone(),
            freeze: self.freeze.clone(),
        };
        let mut table = Table::try_from(&self.rule).map_err(serde::ser::Error::custom)?;
        table.extend(Table::try_from(&keys).map_err(serde::ser::Error::custom)?);
        table.serialize(serializer)
    }
}

fn decay_rate(key: &str, value: f64) -> Result<(), KeyError> {
    require((0.0..1.0).contains(&value), key, value, "a number from 0 to below 1")
}
