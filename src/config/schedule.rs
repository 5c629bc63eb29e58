//! `[schedule]`: the learning rate over the run. `optim::schedule` has the formulas.

use hlo::DType;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use toml::Table;

use super::error::{KeyError, KeyErrors, POSITIVE, Problem, require_positive_in};
use super::key::{KeyInfo, OnResume, POSITIVE_F32};
use super::keys::{Exclusive, Reader, Section, Tag};
use super::shape::{DecayFrom, ReachedAt, Shape};
use super::span::Span;

/// `[schedule]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ScheduleConfig {
    /// Shape of the rate after the warm-up, selected by `name`.
    pub shape: Shape,
    /// The peak rate: `peak`, or `base_lr` with `base_batch`.
    pub peak: Peak,
    /// How the rate starts. Default: at the peak.
    pub warmup: Warmup,
}

/// The peak rate of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Peak {
    /// `peak`: the rate itself.
    Rate(f64),
    /// `base_lr` with `base_batch`: the rate is computed from the global batch.
    Scaled {
        /// The rate at `base_batch`.
        base_lr: f64,
        /// The global batch for which `base_lr` was tuned.
        base_batch: usize,
        /// How the rate scales. Default `linear`.
        scaling: Scaling,
    },
}

/// How the peak rate scales with the global batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

/// The warm-up: the rate starts below the peak.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warmup {
    /// `warmup_steps`, `warmup_epochs` or `warmup_examples`; 0 is no warm-up, the default.
    pub length: Span,
    /// `warmup`: its shape. Default `linear` if there is a length.
    pub kind: WarmupKind,
    /// `warmup_factor`: the share of the peak that a linear warm-up starts from (default 0) or that
    /// a constant one stays at. Not used with [`WarmupFrom::Base`].
    pub factor: f64,
    /// `warmup_from`: the rate that the warm-up starts from.
    pub from: WarmupFrom,
    /// `peak_at`: the step at which a linear warm-up reaches the peak.
    pub peak_at: ReachedAt,
}

impl Warmup {
    /// At the peak from the first step on.
    pub const NONE: Self = Self {
        length: Span::ZERO,
        kind: WarmupKind::None,
        factor: 0.0,
        from: WarmupFrom::Zero,
        peak_at: ReachedAt::LastStep,
    };

    /// A linear one from 0 that reaches the peak at its last step.
    pub const fn linear(length: Span) -> Self {
        Self { length, kind: WarmupKind::Linear, ..Self::NONE }
    }
}

/// The rate that a warm-up starts from, or stays at if it is constant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WarmupFrom {
    /// 0, or `warmup_factor`.
    #[default]
    Zero,
    /// `base_lr` (Goyal et al., 2017, section 2.2), but not more than the peak.
    Base,
}

/// Shape of a warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WarmupKind {
    /// Increases linearly.
    #[default]
    Linear,
    /// Constant.
    Constant,
    /// No warm-up, even if a length is set: `--set` can disable the warm-up of a file.
    None,
}

/// The keys that all shapes share.
#[derive(Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
struct RateKeys {
    /// The peak learning rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0, "values" = POSITIVE_F32, "required" = true))]
    peak: Option<f64>,
    /// The learning rate for a global batch of `base_batch`, from which the peak is computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend("exclusiveMinimum" = 0, "values" = POSITIVE_F32, "depends" = "instead of `peak`"),
    )]
    base_lr: Option<f64>,
    /// The global batch for which `base_lr` was tuned.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1),
        extend("unit" = "examples", "depends" = "must be set with `base_lr`"),
    )]
    base_batch: Option<usize>,
    /// How the peak scales with the global batch: in proportion, with the square root, or not at
    /// all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("depends" = "`\"linear\"`, with `base_lr`"))]
    scaling: Option<Scaling>,
    /// Length of the warm-up. 0 disables it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("unit" = "steps", "absent" = "no warm-up"))]
    warmup_steps: Option<u64>,
    /// The same in epochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0), extend("unit" = "epochs", "depends" = "instead of `warmup_steps`"))]
    warmup_epochs: Option<f64>,
    /// The same in examples.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("unit" = "examples", "depends" = "instead of `warmup_steps`"))]
    warmup_examples: Option<u64>,
    /// Shape of the warm-up. `"none"` disables a warm-up that has a length.
    #[schemars(extend("depends" = "`\"linear\"`, where there is a length"))]
    warmup: WarmupKind,
    /// Where a linear warm-up starts, or the rate of a constant one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 0, max = 1),
        extend(
            "unit" = "fraction of the peak",
            "depends" = "0 if it rises; must be set if it stays",
        ),
    )]
    warmup_factor: Option<f64>,
    /// Where a linear warm-up starts, or the rate of a constant one: 0, or `base_lr`, which must
    /// then be set. Never above the peak.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("depends" = "`\"zero\"`; instead of `warmup_factor`"))]
    warmup_from: Option<WarmupFrom>,
    /// Where a linear warm-up of W steps reaches the peak: at its last step W-1, so that step s has
    /// the share (s+1)/W of the way, or at step W after it, with the share s/W.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend(
            "depends" =
                "`\"last_step\"`, or `\"next_step\"` with `warmup_from = \"base\"` or `decay_from \
                = \"start\"`",
        ),
    )]
    peak_at: Option<ReachedAt>,
}

impl Section for ScheduleConfig {
    const NAME: &'static str = "schedule";
    const ABOUT: &str = "\
        The learning rate over the run. `name` selects its shape after the warm-up. Each \
        length may be given in steps, epochs or examples. One in epochs or examples is \
        rounded to the nearest step, and half a step up: with 2104 steps per epoch, \
        `warmup_epochs = 0.3` is 631.2 steps and becomes 631. (Hugging Face's Trainer rounds \
        `warmup_ratio` up, here to 632.) A warm-up or a decay that would become 0 steps is \
        an error. `peak`, or `base_lr` with `base_batch`, must be set.";
    const TAG: Option<Tag> = Some(Tag {
        name: Shape::TAG,
        choices: Shape::NAMES,
        meaning: "Shape of the learning rate after the warm-up.",
        on_resume: OnResume::Warn,
    });
    const EXCLUSIVE: &'static [Exclusive] = &[
        (&["peak"], &["base_lr", "base_batch", "scaling"]),
        (&["warmup_steps"], &["warmup_epochs"]),
        (&["warmup_steps"], &["warmup_examples"]),
        (&["warmup_epochs"], &["warmup_examples"]),
        (&["warmup_factor"], &["warmup_from"]),
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

    fn keys(choice: &str) -> Vec<KeyInfo> {
        let shared = KeyInfo::shared::<RateKeys>(OnResume::Warn);
        [shared, Shape::keys_of(choice, OnResume::Warn)].concat()
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let keys: RateKeys = reader.keys()?;
        let shape = Shape::read_choice(reader)?;
        let errors = &mut reader.errors;
        let (peak, warmup) = (read_peak(&keys, errors), read_warmup(&keys, &shape, errors));
        shape.check(errors);
        Some(Self { shape, peak, warmup })
    }
}

/// The dtype of the rate in the step, whatever the precision.
const RATE_DTYPE: DType = DType::F32;

fn read_peak(keys: &RateKeys, errors: &mut KeyErrors) -> Peak {
    if let Some(rate) = keys.peak {
        errors.check(require_positive_in(RATE_DTYPE, "peak", rate));
        return Peak::Rate(rate);
    }
    if let Some(base_lr) = keys.base_lr {
        errors.check(require_positive_in(RATE_DTYPE, "base_lr", base_lr));
    }
    let missing = match (keys.base_lr, keys.base_batch) {
        (Some(base_lr), Some(base_batch)) => {
            return Peak::Scaled { base_lr, base_batch, scaling: keys.scaling.unwrap_or_default() };
        }
        (Some(_), None) => {
            KeyError::missing("base_batch", "the global batch that schedule.base_lr was found at")
        }
        (None, Some(_)) => KeyError::missing("base_lr", POSITIVE),
        (None, None) => {
            let allowed = "a finite number above 0; or set schedule.base_lr with \
                           schedule.base_batch instead";
            KeyError::missing("peak", allowed)
        }
    };
    if errors.none_of(&["peak", "base_lr", "base_batch"]) {
        errors.push(missing);
    }
    Peak::Rate(1.0)
}

fn read_warmup(keys: &RateKeys, shape: &Shape, errors: &mut KeyErrors) -> Warmup {
    let length = Span::one_of(keys.warmup_steps, keys.warmup_epochs, keys.warmup_examples);
    let lengths = ["warmup_steps", "warmup_epochs", "warmup_examples"];
    if keys.warmup == WarmupKind::None || !errors.none_of(&lengths) {
        return Warmup::NONE;
    }
    let asking = [
        ("warmup", keys.warmup != WarmupKind::Linear),
        ("warmup_factor", keys.warmup_factor.is_some()),
        ("warmup_from", keys.warmup_from.is_some()),
        ("peak_at", keys.peak_at.is_some()),
    ];
    if let (None, Some((key, _))) = (length, asking.iter().find(|(_, is_set)| *is_set)) {
        let allowed = format!(
            "its length, since schedule.{key} asks for a warm-up; or set schedule.warmup_epochs or \
             schedule.warmup_examples instead"
        );
        errors.push(KeyError::missing("warmup_steps", &allowed));
    }
    let Some(length) = length.filter(|length| !length.is_zero()) else { return Warmup::NONE };
    length.check("warmup", errors);
    let from = keys.warmup_from.unwrap_or_default();
    if from == WarmupFrom::Base && keys.base_lr.is_none() && errors.none_of(&["base_lr"]) {
        let problem = "\"base\" starts from schedule.base_lr, which is not set; set it with \
                       schedule.base_batch in place of schedule.peak, or set \
                       schedule.warmup_factor";
        errors.push(KeyError::new("warmup_from", Problem::Inconsistent(problem.to_owned())));
    }
    if keys.warmup == WarmupKind::Constant && keys.peak_at.is_some() {
        let problem = "a constant warm-up reaches the peak after its last step; leave this key out";
        errors.push(KeyError::new("peak_at", Problem::Inconsistent(problem.to_owned())));
    }
    if (keys.warmup, keys.warmup_factor, from) == (WarmupKind::Constant, None, WarmupFrom::Zero)
        && errors.none_of(&["warmup_factor"])
    {
        let allowed = "the share of the peak that a constant warm-up stays at, 0 to 1";
        errors.push(KeyError::missing("warmup_factor", allowed));
    }
    // The published form: Goyal et al. start at the base rate, and BERT at 0, with a decay that
    // counts from the start of the run.
    let peak_at = match (keys.warmup, from, shape.decay_from()) {
        (WarmupKind::Linear, WarmupFrom::Base, _) => ReachedAt::NextStep,
        (WarmupKind::Linear, _, Some(DecayFrom::Start)) => ReachedAt::NextStep,
        _ => ReachedAt::LastStep,
    };
    Warmup {
        length,
        kind: keys.warmup,
        factor: keys.warmup_factor.unwrap_or(0.0),
        from,
        peak_at: keys.peak_at.unwrap_or(peak_at),
    }
}

impl Serialize for ScheduleConfig {
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
            match self.warmup.from {
                WarmupFrom::Zero => keys.warmup_factor = Some(self.warmup.factor),
                WarmupFrom::Base => keys.warmup_from = Some(WarmupFrom::Base),
            }
            if self.warmup.kind == WarmupKind::Linear {
                keys.peak_at = Some(self.warmup.peak_at);
            }
        }
        let mut table = Table::try_from(&self.shape).map_err(serde::ser::Error::custom)?;
        table.extend(Table::try_from(&keys).map_err(serde::ser::Error::custom)?);
        table.serialize(serializer)
    }
}
