//! `[optimizer]`: the update rule, its constants, and the options that all rules share.

use hlo::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::error::{KeyErrors, require, require_not_negative_in, require_positive_in};
use super::key::{KeyInfo, OnResume, POSITIVE_F32};
use super::keys::{Reader, Section, Tag, choices};
use super::patterns::{PatternNumbers, Patterns};

/// `[optimizer]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct OptimizerConfig {
    /// The update rule, selected by `name`.
    #[serde(flatten, skip_deserializing)]
    #[schemars(skip)]
    #[default(UpdateRule::Sgd(Sgd::default()))]
    pub rule: UpdateRule,
    /// Patterns of the parameters without weight decay, such as `["*.bias", "*norm*"]`. An empty
    /// list excludes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend("absent" = "parameters of rank below 2, which are biases and the scales of norms"),
    )]
    pub weight_decay_exclude: Option<Patterns>,
    /// The largest norm of the gradient over all parameters. A larger gradient is scaled down to
    /// it. With `train.precision = "f64"` the range is that of f64.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend(
            "exclusiveMinimum" = 0,
            "values" = POSITIVE_F32,
            "absent" = "gradients are not clipped",
        ),
    )]
    pub clip_grad_norm: Option<f64>,
    /// Decay of a running mean of the parameters, which is then evaluated and saved in their place.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0, "exclusiveMaximum" = 1, "absent" = "no running mean is kept"))]
    pub ema_decay: Option<f64>,
    /// Factors of the learning rate for the parameters that a pattern matches:
    /// `lr_factors = { "classifier.*" = 10 }`. A pattern must match a parameter, and no parameter
    /// may have two factors.
    #[schemars(extend("values" = "table of numbers above 0, up to 1e6, by pattern"))]
    pub lr_factors: PatternNumbers,
    /// Factor of the learning rate from each layer to the one below it. Layers are the blocks and
    /// what precedes them, such as embeddings; what follows the blocks has the rate itself.
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 1))]
    #[default(1.0)]
    pub layer_decay: f64,
    /// Weight decays for the parameters that a pattern matches, in place of `weight_decay` and
    /// `weight_decay_exclude`: `weight_decays = { "embed.*" = 0 }`.
    #[schemars(extend("values" = "table of numbers, 0 or more, by pattern"))]
    pub weight_decays: PatternNumbers,
    /// Patterns of the parameters that are not trained: they have no gradients, no weight decay and
    /// no optimizer state.
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct Sgd {
    /// Factor by which the running sum of gradients is multiplied at each step.
    #[schemars(extend("minimum" = 0, "exclusiveMaximum" = 1))]
    #[default(0.9)]
    pub momentum: f64,
    /// Use Nesterov momentum. Requires `momentum` above 0.
    pub nesterov: bool,
    /// With `true`, a new learning rate applies to the whole momentum, as in PyTorch. With `false`,
    /// past gradients keep the rate of their step.
    #[default(true)]
    pub momentum_correction: bool,
    /// This times the parameter is added to its gradient.
    #[schemars(range(min = 0))]
    pub weight_decay: f64,
}

/// Adam.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct Adam {
    /// Decay of the running mean of gradients.
    #[schemars(extend("minimum" = 0, "exclusiveMaximum" = 1))]
    #[default(0.9)]
    pub beta1: f64,
    /// Decay of the running mean of squared gradients.
    #[schemars(extend("minimum" = 0, "exclusiveMaximum" = 1))]
    #[default(0.999)]
    pub beta2: f64,
    /// Added to the square root of the mean square. With `train.precision = "f64"` the range is
    /// that of f64.
    #[schemars(extend("exclusiveMinimum" = 0, "values" = POSITIVE_F32))]
    #[default(1e-8)]
    pub epsilon: f64,
    /// This times the parameter is added to its gradient.
    #[schemars(range(min = 0))]
    pub weight_decay: f64,
}

/// Adam with decoupled weight decay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct AdamW {
    /// Decay of the running mean of gradients.
    #[schemars(extend("minimum" = 0, "exclusiveMaximum" = 1))]
    #[default(0.9)]
    pub beta1: f64,
    /// Decay of the running mean of squared gradients.
    #[schemars(extend("minimum" = 0, "exclusiveMaximum" = 1))]
    #[default(0.999)]
    pub beta2: f64,
    /// Added to the square root of the mean square. With `train.precision = "f64"` the range is
    /// that of f64.
    #[schemars(extend("exclusiveMinimum" = 0, "values" = POSITIVE_F32))]
    #[default(1e-8)]
    pub epsilon: f64,
    /// Share of a parameter, per unit of learning rate, that each step subtracts.
    #[schemars(range(min = 0), extend("unit" = "share per unit of rate"))]
    #[default(0.01)]
    pub weight_decay: f64,
}

/// SGD with layer-wise adaptive rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct Lars {
    /// Factor by which the running sum of gradients is multiplied at each step.
    #[schemars(extend("minimum" = 0, "exclusiveMaximum" = 1))]
    #[default(0.9)]
    pub momentum: f64,
    /// Use Nesterov momentum. Requires `momentum` above 0.
    pub nesterov: bool,
    /// With `true`, a new learning rate applies to the whole momentum. With `false`, as in the
    /// paper, past gradients keep the rate of their step.
    pub momentum_correction: bool,
    /// This times the parameter is added to its gradient.
    #[schemars(range(min = 0))]
    pub weight_decay: f64,
    /// Norm of an update relative to the norm of its parameter.
    #[schemars(extend("exclusiveMinimum" = 0, "values" = POSITIVE_F32))]
    #[default(0.001)]
    pub trust_coefficient: f64,
    /// Patterns of the parameters without a trust ratio, such as `["*.bias", "*norm*"]`. An empty
    /// list excludes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend("absent" = "parameters of rank below 2, which are biases and the scales of norms"),
    )]
    pub trust_exclude: Option<Patterns>,
}

/// AdamW with layer-wise adaptive rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct Lamb {
    /// Decay of the running mean of gradients.
    #[schemars(extend("minimum" = 0, "exclusiveMaximum" = 1))]
    #[default(0.9)]
    pub beta1: f64,
    /// Decay of the running mean of squared gradients.
    #[schemars(extend("minimum" = 0, "exclusiveMaximum" = 1))]
    #[default(0.999)]
    pub beta2: f64,
    /// Added to the square root of the mean square. With `train.precision = "f64"` the range is
    /// that of f64.
    #[schemars(extend("exclusiveMinimum" = 0, "values" = POSITIVE_F32))]
    #[default(1e-6)]
    pub epsilon: f64,
    /// This times the parameter is added to its update, before the trust ratio is applied.
    #[schemars(range(min = 0))]
    #[default(0.01)]
    pub weight_decay: f64,
    /// Patterns of the parameters without a trust ratio, such as `["*.bias", "*norm*"]`. An empty
    /// list excludes none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend("absent" = "parameters of rank below 2, which are biases and the scales of norms"),
    )]
    pub trust_exclude: Option<Patterns>,
}

impl Section for OptimizerConfig {
    const NAME: &'static str = "optimizer";
    const ABOUT: &str = "\
        The update rule, selected by `name`, and options that all rules share.";
    const TAG: Option<Tag> = Some(Tag {
        name: UpdateRule::TAG,
        choices: UpdateRule::NAMES,
        meaning: "The update rule.",
        on_resume: OnResume::Refuse,
    });

    fn keys(choice: &str) -> Vec<KeyInfo> {
        let shared = KeyInfo::shared::<Self>(OnResume::Warn);
        [UpdateRule::keys_of(choice, OnResume::Warn), shared].concat()
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let rule = UpdateRule::read_choice(reader)?;
        rule.check(&mut reader.errors);
        let config = Self { rule, ..reader.keys()? };
        for (pattern, factor) in config.lr_factors.iter() {
            // `freeze` says more clearly than a rate of 0 that a parameter is not trained, and
            // costs less.
            let found = format!("{pattern:?} = {factor}");
            let allowed =
                "numbers above 0, at most 1e6; optimizer.freeze names what is not trained";
            let is_factor = factor > 0.0 && factor <= 1e6;
            reader.errors.check(require(is_factor, "lr_factors", found, allowed));
        }
        Some(config)
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

    /// Checks keys together.
    fn check(&self, errors: &mut KeyErrors) {
        if let Self::Sgd(Sgd { momentum, nesterov, .. })
        | Self::Lars(Lars { momentum, nesterov, .. }) = self
        {
            let has_momentum = !nesterov || *momentum > 0.0 || !errors.none_of(&["momentum"]);
            let allowed = "false while momentum is 0";
            errors.check(require(has_momentum, "nesterov", nesterov, allowed));
        }
    }
}
