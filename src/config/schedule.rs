//! `[schedule]`: the learning rate over the run. What the shapes mean is in `optim::schedule`.

use serde::{Deserialize, Serialize, Serializer};
use toml::Table;

use super::error::{KeyError, require};
use super::keys::{Exclusive, Section, choices, field_names, read_keys};

/// `[schedule]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// What the rate does after the warm-up, picked by `name`.
    pub shape: Shape,
    /// The highest rate: `peak`, or `base_lr` with `base_batch`.
    pub peak: Peak,
    /// `warmup_steps` or `warmup_epochs`: how long the rate rises linearly. Default 0 steps.
    pub warmup: Warmup,
}

choices! {
    /// What the rate does after the warm-up.
    pub enum Shape by "name" {
        /// Stays at the peak.
        "constant" => Constant(Constant),
        /// Falls along half a cosine.
        "cosine" => Cosine(Decay),
        /// Falls along a line.
        "linear" => Linear(Decay),
        /// Falls by a factor at given steps.
        "step" => Step(StepDecay),
    }
}

/// No keys of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Constant {}

/// A fall to `floor` over the rest of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Decay {
    /// Where the fall ends, as a fraction of the peak, 0 to 1: a fraction, so that it keeps its
    /// meaning when the peak is scaled with the batch. Default 0.
    pub floor: f64,
}

/// A fall by `factor` at each of `boundaries`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepDecay {
    /// Steps, counted from the start of the run and rising, from which one more factor holds.
    pub boundaries: Vec<u64>,
    /// What the rate is multiplied by at each boundary. Default 0.1.
    pub factor: f64,
}

impl Default for StepDecay {
    fn default() -> Self {
        Self { boundaries: vec![], factor: 0.1 }
    }
}

/// The highest rate of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Peak {
    /// `peak`: the rate itself.
    Rate(f64),
    /// `base_lr` with `base_batch`: the rate is `base_lr * global_batch / base_batch`.
    Scaled {
        /// The rate at `base_batch`.
        base_lr: f64,
        /// The global batch that `base_lr` was found at.
        base_batch: usize,
    },
}

/// How long the rate rises linearly at the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Warmup {
    /// `warmup_steps`.
    Steps(u64),
    /// `warmup_epochs`, which may be a fraction.
    Epochs(f64),
}

/// The keys that every shape has, as they are written.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct RateKeys {
    #[serde(skip_serializing_if = "Option::is_none")]
    peak: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_lr: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base_batch: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warmup_steps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warmup_epochs: Option<f64>,
}

impl Section for Schedule {
    const NAME: &'static str = "schedule";
    const TAG: Option<&'static str> = Some(Shape::TAG);
    const CHOICES: &'static [&'static str] = Shape::NAMES;
    const EXCLUSIVE: &'static [Exclusive] =
        &[(&["peak"], &["base_lr", "base_batch"]), (&["warmup_steps"], &["warmup_epochs"])];

    fn keys(choice: &str) -> Vec<&'static str> {
        let mut keys = field_names::<RateKeys>().to_vec();
        keys.extend(Shape::keys_of(choice));
        keys
    }

    fn read(choice: &str, table: &Table) -> Result<Self, KeyError> {
        const RATE: &str = "a finite number above 0";
        let positive = |rate: f64| rate.is_finite() && rate > 0.0;
        let keys: RateKeys = read_keys(table)?;
        let peak = match (keys.peak, keys.base_lr, keys.base_batch) {
            (Some(rate), _, _) => {
                require(positive(rate), "peak", rate, RATE)?;
                Peak::Rate(rate)
            }
            (None, Some(base_lr), Some(base_batch)) => {
                require(positive(base_lr), "base_lr", base_lr, RATE)?;
                require(base_batch > 0, "base_batch", base_batch, "a whole number, 1 or more")?;
                Peak::Scaled { base_lr, base_batch }
            }
            (None, Some(_), None) => {
                let allowed = "the global batch that schedule.base_lr was found at";
                return Err(KeyError::missing("base_batch", allowed));
            }
            (None, None, Some(_)) => return Err(KeyError::missing("base_lr", RATE)),
            (None, None, None) => {
                let allowed = "a finite number above 0; or set schedule.base_lr with \
                               schedule.base_batch instead";
                return Err(KeyError::missing("peak", allowed));
            }
        };
        let warmup = match (keys.warmup_steps, keys.warmup_epochs) {
            (None, Some(epochs)) => {
                let allowed = "a finite number, 0 or more";
                require(epochs.is_finite() && epochs >= 0.0, "warmup_epochs", epochs, allowed)?;
                Warmup::Epochs(epochs)
            }
            (steps, _) => Warmup::Steps(steps.unwrap_or(0)),
        };
        let shape = Shape::read_choice(choice, table)?;
        match &shape {
            Shape::Constant(_) => {}
            Shape::Cosine(Decay { floor }) | Shape::Linear(Decay { floor }) => {
                require(
                    (0.0..=1.0).contains(floor),
                    "floor",
                    floor,
                    "a fraction of the peak, 0 to 1",
                )?;
            }
            Shape::Step(StepDecay { boundaries, factor }) => {
                require(positive(*factor), "factor", factor, RATE)?;
                let rising = boundaries.is_sorted_by(|a, b| a < b);
                let found = format!("{boundaries:?}");
                require(rising, "boundaries", found, "steps in rising order, each once")?;
            }
        }
        Ok(Self { shape, peak, warmup })
    }
}

impl Serialize for Schedule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut keys = RateKeys::default();
        match self.peak {
            Peak::Rate(rate) => keys.peak = Some(rate),
            Peak::Scaled { base_lr, base_batch } => {
                (keys.base_lr, keys.base_batch) = (Some(base_lr), Some(base_batch));
            }
        }
        match self.warmup {
            Warmup::Steps(steps) => keys.warmup_steps = Some(steps),
            Warmup::Epochs(epochs) => keys.warmup_epochs = Some(epochs),
        }
        let mut table = Table::try_from(&self.shape).map_err(serde::ser::Error::custom)?;
        table.extend(Table::try_from(&keys).map_err(serde::ser::Error::custom)?);
        table.serialize(serializer)
    }
}
