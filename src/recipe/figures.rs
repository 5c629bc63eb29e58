//! The figures that the rules judge: the kind of model, the resolved learning rates, and the length
//! of the run.

use super::Recipe;
use crate::config::{
    Adam, AdamW, BatchSize, Config, DataConfig, Lamb, Lars, ModelConfig, Peak, Sgd, UpdateRule,
};
use crate::optim::schedule::Schedule;

/// Steps at which the rate is evaluated one by one, and the number of those that are sampled from
/// the rest.
const NUM_SAMPLES: u64 = 4096;

/// The resolved learning rates of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rates {
    /// The highest rate.
    pub max: f64,
    /// The highest rate divided by `schedule.peak`: only `piecewise` and `step` can exceed 1.
    pub max_factor: f64,
    /// The mean rate after the warm-up, as a share of the highest.
    pub mean: f64,
    /// The rate of the last step, as a share of the highest.
    pub last: f64,
    /// Length in steps of the linear warm-up that reaches half of the highest rate at the same
    /// step. 0 if the run starts with more than that.
    pub ramp_steps: u64,
}

impl Rates {
    pub fn new(schedule: &Schedule) -> Self {
        let total = schedule.total_steps().max(1);
        let stride = total.div_ceil(NUM_SAMPLES).max(1);
        let sampled = || (0..total).step_by(stride as usize);
        let ends = [schedule.warmup_steps(), schedule.warmup_steps().saturating_sub(1), total - 1];
        let places = schedule.boundaries().iter().copied().chain(ends).filter(|step| *step < total);
        let max = sampled().chain(places).map(|step| schedule.lr(step)).fold(0.0, f64::max);
        let above = max.max(f64::MIN_POSITIVE);
        let is_high = |step: &u64| schedule.lr(*step) >= 0.5 * max;
        let first = (0..total.min(NUM_SAMPLES)).find(is_high);
        let first = first.or_else(|| sampled().find(is_high)).unwrap_or(total);
        let highest = sampled().find(|step| schedule.lr(*step) >= 0.95 * max).unwrap_or(first);
        let risen = sampled().filter(|step| *step >= highest);
        let (sum, count) =
            risen.fold((0.0, 0u64), |(sum, count), step| (sum + schedule.lr(step), count + 1));
        Self {
            max,
            max_factor: max / schedule.peak().max(f64::MIN_POSITIVE),
            mean: sum / count.max(1) as f64 / above,
            last: schedule.lr(total - 1) / above,
            ramp_steps: 2 * first,
        }
    }
}

/// A kind of model. Rates are comparable within a kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ModelKind {
    /// A convolutional network with batch norm. `is_small` if it is made for images of 32 pixels.
    Convolutional { is_small: bool },
    /// A transformer, with its blocks, its width, and the number of parameters in its blocks.
    Transformer { width: f64, num_parameters: f64 },
    /// Fully connected layers.
    Mlp { has_norm: bool },
    /// A linear classifier, for example on frozen features.
    Linear,
}

impl ModelKind {
    pub fn of(config: &Config) -> Self {
        match &config.model {
            ModelConfig::ResNet(_) => {
                Self::Convolutional { is_small: image_side(&config.data) <= 64 }
            }
            ModelConfig::Gpt(gpt) => {
                let model = gpt.model();
                let (layers, width) = (model.num_layers as f64, model.width as f64);
                Self::Transformer { width, num_parameters: 12.0 * layers * width * width }
            }
            ModelConfig::Bert(bert) => {
                let model = bert.model(2);
                Self::encoder(model.num_layers, model.width, model.num_hidden)
            }
            ModelConfig::DistilBert(bert) => {
                let model = bert.model(2);
                Self::encoder(model.num_layers, model.width, model.num_hidden)
            }
            ModelConfig::Mlp(mlp) if mlp.hidden.is_empty() => Self::Linear,
            ModelConfig::Mlp(mlp) => Self::Mlp { has_norm: mlp.layer_norm },
        }
    }

    fn encoder(num_layers: usize, width: usize, num_hidden: usize) -> Self {
        let (layers, width) = (num_layers as f64, width as f64);
        let of_block = 4.0 * width * width + 2.0 * width * num_hidden as f64;
        Self::Transformer { width, num_parameters: layers * of_block }
    }

    /// Its name in the table of published recipes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Convolutional { is_small: true } => "small-convolutional",
            Self::Convolutional { is_small: false } => "convolutional",
            Self::Transformer { .. } => "transformer",
            Self::Mlp { .. } => "mlp",
            Self::Linear => "linear",
        }
    }

    /// The parameters of a transformer's blocks.
    pub fn num_parameters(self) -> Option<f64> {
        match self {
            Self::Transformer { num_parameters, .. } => Some(num_parameters),
            _ => None,
        }
    }
}

fn image_side(data: &DataConfig) -> usize {
    match data {
        DataConfig::Cifar10(_) => 32,
        DataConfig::Idx(_) | DataConfig::Digits(_) => 28,
        DataConfig::ImageFolder(images) => images.image_size,
        DataConfig::Synthetic(synthetic) => synthetic.image.last().copied().unwrap_or(0),
        _ => 0,
    }
}

impl Recipe<'_> {
    pub(super) fn batch(&self) -> f64 {
        self.global_batch() as f64
    }

    pub(super) fn total_steps(&self) -> u64 {
        self.run.total_steps()
    }

    /// Passes over the data, if the number of examples is known.
    pub(super) fn epochs(&self) -> Option<f64> {
        self.run.steps_per_epoch().map(|steps| self.total_steps() as f64 / steps.max(1) as f64)
    }

    /// Tokens of an example, padding included; 1 for models of images.
    fn tokens_per_example(&self) -> f64 {
        self.config.data.tokens_per_example().unwrap_or(1) as f64
    }

    /// Tokens that the run sees.
    pub(super) fn total_tokens(&self) -> f64 {
        self.total_steps() as f64 * self.batch() * self.tokens_per_example()
    }

    /// Tokens of the data set, if the number of examples is known.
    pub(super) fn tokens_of_data(&self) -> Option<f64> {
        self.num_examples.map(|number| number as f64 * self.tokens_per_example())
    }

    /// `1 / (1 - momentum)` for rules with momentum: the lasting effect of one gradient, in rates.
    pub(super) fn momentum_gain(&self) -> f64 {
        match self.config.optimizer.rule {
            UpdateRule::Sgd(Sgd { momentum, .. }) | UpdateRule::Lars(Lars { momentum, .. }) => {
                1.0 / (1.0 - momentum)
            }
            _ => 1.0,
        }
    }

    /// `beta1`, `beta2` and `epsilon` of rules that have them.
    pub(super) fn adam_constants(&self) -> Option<(f64, f64, f64)> {
        match self.config.optimizer.rule {
            UpdateRule::Adam(Adam { beta1, beta2, epsilon, .. })
            | UpdateRule::AdamW(AdamW { beta1, beta2, epsilon, .. })
            | UpdateRule::Lamb(Lamb { beta1, beta2, epsilon, .. }) => Some((beta1, beta2, epsilon)),
            UpdateRule::Sgd(_) | UpdateRule::Lars(_) => None,
        }
    }

    pub(super) fn is_adam(&self) -> bool {
        matches!(self.config.optimizer.rule, UpdateRule::Adam(_) | UpdateRule::AdamW(_))
    }

    /// SGD's lasting step for each 256 examples: 1 in the recipe of Goyal et al. (2017), whatever
    /// the batch.
    pub(super) fn rate_per_256(&self, rates: &Rates) -> f64 {
        rates.max * self.momentum_gain() * 256.0 / self.batch()
    }

    /// `true` if an image model is trained from its initial values, as far as data and length show
    /// it: fine-tuning takes fewer epochs, or a small data set of large images.
    pub(super) fn is_from_scratch(&self) -> bool {
        let epochs = self.epochs().unwrap_or(0.0);
        match self.kind {
            ModelKind::Convolutional { is_small: true } => epochs >= 10.0,
            ModelKind::Convolutional { is_small: false } => {
                epochs >= 40.0 && self.num_examples.is_some_and(|number| number >= 200_000)
            }
            _ => false,
        }
    }

    /// `true` if a step sees so much of the data that its gradient has next to no noise.
    pub(super) fn is_full_batch(&self) -> bool {
        self.run.steps_per_epoch().is_some_and(|steps| steps < 8)
    }

    /// Assignments that make this the highest rate.
    pub(super) fn set_peak(&self, rates: &Rates, target: f64) -> Vec<String> {
        let peak = two_digits(target / rates.max_factor.max(f64::MIN_POSITIVE));
        match (self.config.train.batch, self.config.schedule.peak) {
            (BatchSize::PerReplica(_), _) | (_, Peak::Scaled { .. }) => {
                let scaling = if self.scales_linearly() { "linear" } else { "sqrt" };
                vec![
                    format!("schedule.base_lr={peak:?}"),
                    format!("schedule.base_batch={}", self.global_batch()),
                    format!("schedule.scaling={scaling:?}"),
                ]
            }
            (BatchSize::Global(_), Peak::Rate(_)) => vec![format!("schedule.peak={peak:?}")],
        }
    }

    /// How papers scale the rate of this optimizer with the batch.
    pub(super) fn scales_linearly(&self) -> bool {
        matches!(self.config.optimizer.rule, UpdateRule::Sgd(_) | UpdateRule::Lars(_))
    }
}

/// Rounds to two significant digits.
pub(super) fn two_digits(value: f64) -> f64 {
    format!("{value:.1e}").parse().unwrap_or(value)
}
