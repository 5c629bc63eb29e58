//! `[schedule]`: the learning rate over the run. What the words mean is in `optim::schedule`.

use hlo::DType;
use serde::{Deserialize, Serialize, Serializer};
use toml::Table;

use super::error::{KeyError, POSITIVE, require, require_positive_in};
use super::keys::{Exclusive, Section, field_names, read_keys};
use super::shape::Shape;
use super::span::Span;

/// `[schedule]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// What the rate does after the warm-up, picked by `name`.
    pub shape: Shape,
    /// The highest rate: `peak`, or `base_lr` with `base_batch`.
    pub peak: Peak,
    /// How the rate starts. Default: at the peak.
    pub warmup: Warmup,
}

/// The highest rate of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Peak {
    /// `peak`: the rate itself.
    Rate(f64),
    /// `base_lr` with `base_batch`: the rate follows from the global batch.
    Scaled {
        /// The rate at `base_batch`.
        base_lr: f64,
        /// The global batch that `base_lr` was found at.
        base_batch: usize,
        /// How it follows. Default `linear`.
        scaling: Scaling,
    },
}

/// How the highest rate follows from the global batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scaling {
    /// `base_lr * global_batch / base_batch`.
    #[default]
    Linear,
    /// `base_lr * sqrt(global_batch / base_batch)`.
    Sqrt,
    /// `base_lr`.
    None,
}

/// How the rate starts: below the peak for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warmup {
    /// `warmup_steps`, `warmup_epochs` or `warmup_examples`, above 0. Default: no warm-up.
    pub length: Span,
    /// `warmup`: what it does meanwhile. Default `linear` where there is a length.
    pub kind: WarmupKind,
    /// `warmup_factor`: the share of the peak that a linear warm-up starts from (default 0) or that a
    /// constant one stays at.
    pub factor: f64,
}

impl Warmup {
    /// At the peak from the first step on.
    pub const NONE: Self = Self { length: Span::ZERO, kind: WarmupKind::None, factor: 0.0 };

    /// A linear one from 0.
    pub const fn linear(length: Span) -> Self {
        Self { length, kind: WarmupKind::Linear, factor: 0.0 }
    }
}

/// What the rate does in a warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WarmupKind {
    /// Rises along a line.
    #[default]
    Linear,
    /// Stays where it is.
    Constant,
    /// There is none, and a length is not looked at: so the warm-up of a file can be switched off.
    None,
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
    scaling: Option<Scaling>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warmup_steps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warmup_epochs: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warmup_examples: Option<u64>,
    warmup: WarmupKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    warmup_factor: Option<f64>,
}

impl Section for Schedule {
    const NAME: &'static str = "schedule";
    const TAG: Option<&'static str> = Some(Shape::TAG);
    const CHOICES: &'static [&'static str] = Shape::NAMES;
    const EXCLUSIVE: &'static [Exclusive] = &[
        (&["peak"], &["base_lr", "base_batch", "scaling"]),
        (&["warmup_steps"], &["warmup_epochs"]),
        (&["warmup_steps"], &["warmup_examples"]),
        (&["warmup_epochs"], &["warmup_examples"]),
        (&["total_steps"], &["total_epochs"]),
        (&["total_steps"], &["total_examples"]),
        (&["total_epochs"], &["total_examples"]),
        (&["boundaries"], &["boundary_epochs"]),
        (&["boundaries"], &["boundary_examples"]),
        (&["boundary_epochs"], &["boundary_examples"]),
        (&["decay_steps"], &["decay_epochs"]),
        (&["decay_steps"], &["decay_examples"]),
        (&["decay_epochs"], &["decay_examples"]),
    ];

    fn keys(choice: &str) -> Vec<&'static str> {
        let mut keys = field_names::<RateKeys>().to_vec();
        keys.extend(Shape::keys_of(choice));
        keys
    }

    fn read(choice: &str, table: &Table) -> Result<Self, KeyError> {
        let keys: RateKeys = read_keys(table)?;
        let (peak, warmup) = (read_peak(&keys)?, read_warmup(&keys)?);
        let shape = Shape::read_choice(choice, table)?;
        shape.check()?;
        Ok(Self { shape, peak, warmup })
    }
}

/// What the rate is in the step, whatever the precision.
const RATE_DTYPE: DType = DType::F32;

fn read_peak(keys: &RateKeys) -> Result<Peak, KeyError> {
    match (keys.peak, keys.base_lr, keys.base_batch) {
        (Some(rate), _, _) => {
            require_positive_in(RATE_DTYPE, "peak", rate)?;
            Ok(Peak::Rate(rate))
        }
        (None, Some(base_lr), Some(base_batch)) => {
            require_positive_in(RATE_DTYPE, "base_lr", base_lr)?;
            require(base_batch > 0, "base_batch", base_batch, "a whole number, 1 or more")?;
            Ok(Peak::Scaled { base_lr, base_batch, scaling: keys.scaling.unwrap_or_default() })
        }
        (None, Some(_), None) => {
            let allowed = "the global batch that schedule.base_lr was found at";
            Err(KeyError::missing("base_batch", allowed))
        }
        (None, None, Some(_)) => Err(KeyError::missing("base_lr", POSITIVE)),
        (None, None, None) => {
            let allowed = "a finite number above 0; or set schedule.base_lr with \
                           schedule.base_batch instead";
            Err(KeyError::missing("peak", allowed))
        }
    }
}

fn read_warmup(keys: &RateKeys) -> Result<Warmup, KeyError> {
    let length = Span::one_of(keys.warmup_steps, keys.warmup_epochs, keys.warmup_examples);
    if keys.warmup == WarmupKind::None {
        return Ok(Warmup::NONE);
    }
    let asked_for = keys.warmup != WarmupKind::Linear || keys.warmup_factor.is_some();
    let Some(length) = length else {
        if asked_for {
            let allowed = "its length, since schedule.warmup or schedule.warmup_factor asks for a \
                           warm-up; or set schedule.warmup_epochs or schedule.warmup_examples instead";
            return Err(KeyError::missing("warmup_steps", allowed));
        }
        return Ok(Warmup::NONE);
    };
    let otherwise = "; to start at the peak leave the key out, or set schedule.warmup = \"none\"";
    length.check("warmup", otherwise)?;
    let factor = match (keys.warmup, keys.warmup_factor) {
        (_, Some(factor)) => {
            let allowed = "a share of the peak, 0 to 1";
            require((0.0..=1.0).contains(&factor), "warmup_factor", factor, allowed)?;
            factor
        }
        (WarmupKind::Constant, None) => {
            let allowed = "the share of the peak that a constant warm-up stays at, 0 to 1";
            return Err(KeyError::missing("warmup_factor", allowed));
        }
        (WarmupKind::Linear | WarmupKind::None, None) => 0.0,
    };
    Ok(Warmup { length, kind: keys.warmup, factor })
}

impl Serialize for Schedule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut keys = RateKeys { warmup: self.warmup.kind, ..RateKeys::default() };
        match self.peak {
            Peak::Rate(rate) => keys.peak = Some(rate),
            Peak::Scaled { base_lr, base_batch, scaling } => {
                (keys.base_lr, keys.base_batch) = (Some(base_lr), Some(base_batch));
                keys.scaling = Some(scaling);
            }
        }
        if self.warmup.kind != WarmupKind::None {
            match self.warmup.length {
                Span::Steps(steps) => keys.warmup_steps = Some(steps),
                Span::Epochs(epochs) => keys.warmup_epochs = Some(epochs),
                Span::Examples(examples) => keys.warmup_examples = Some(examples),
            }
            keys.warmup_factor = Some(self.warmup.factor);
        }
        let mut table = Table::try_from(&self.shape).map_err(serde::ser::Error::custom)?;
        table.extend(Table::try_from(&keys).map_err(serde::ser::Error::custom)?);
        table.serialize(serializer)
    }
}
