//! Shapes of the learning rate after the warm-up: the choices of `[schedule] name` and their keys.

use hlo::counted;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::error::{KeyError, KeyErrors, Problem, require};
use super::keys::choices;
use super::span::Span;

choices! {
    /// Shape of the learning rate after the warm-up.
    pub enum Shape by "name" {
        /// Stays at the peak.
        "constant" => Constant(Constant),
        /// Decays along half a cosine.
        "cosine" => Cosine(Decay),
        /// Decays linearly.
        "linear" => Linear(Decay),
        /// Decays as a power of the remaining share of the run.
        "polynomial" => Polynomial(Polynomial),
        /// Decays as the inverse square root of the step.
        "inverse_sqrt" => InverseSqrt(InverseSqrt),
        /// Drops by a factor at given boundaries.
        "step" => Step(StepDecay),
        /// Stays at the peak and decays at the end: warm-up, stable, decay.
        "wsd" => Wsd(Wsd),
        /// Passes through given points.
        "piecewise" => Piecewise(Piecewise),
    }
}

/// No keys of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Constant {}

/// No keys of its own: the warm-up's length is the scale.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InverseSqrt {}

/// A decay to `floor`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct Decay {
    /// The rate at the end of the decay.
    #[schemars(range(min = 0, max = 1), extend("unit" = "fraction of the peak"))]
    pub floor: f64,
    /// Where the decay reaches `floor`: at its last step, or at the one after it, which may be the
    /// end of the run.
    pub floor_at: ReachedAt,
    /// Where the decay is counted from: the end of the warm-up, where it is at the peak, or the
    /// start of the run. Then the rate drops at the end of the warm-up to where the decay is by
    /// that step.
    pub decay_from: DecayFrom,
    /// The step at which the decay ends, counted from the start of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("unit" = "steps", "absent" = "the end of the run"))]
    pub total_steps: Option<u64>,
    /// The same in epochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend("exclusiveMinimum" = 0, "unit" = "epochs", "depends" = "instead of `total_steps`"),
    )]
    pub total_epochs: Option<f64>,
    /// The same in examples.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("unit" = "examples", "depends" = "instead of `total_steps`"))]
    pub total_examples: Option<u64>,
}

impl Decay {
    /// Where the decay ends, if it is set.
    pub fn total(&self) -> Option<Span> {
        Span::one_of(self.total_steps, self.total_epochs, self.total_examples)
    }
}

/// A polynomial decay to `floor`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct Polynomial {
    /// The exponent. 1 is linear.
    #[schemars(extend("exclusiveMinimum" = 0))]
    #[default(2.0)]
    pub power: f64,
    /// The rate at the end of the decay.
    #[schemars(range(min = 0, max = 1), extend("unit" = "fraction of the peak"))]
    pub floor: f64,
    /// Where the decay reaches `floor`: at its last step, or at the one after it, which may be the
    /// end of the run.
    pub floor_at: ReachedAt,
    /// Where the decay is counted from: the end of the warm-up, where it is at the peak, or the
    /// start of the run. Then the rate drops at the end of the warm-up to where the decay is by
    /// that step.
    pub decay_from: DecayFrom,
    /// The step at which the decay ends, counted from the start of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("unit" = "steps", "absent" = "the end of the run"))]
    pub total_steps: Option<u64>,
    /// The same in epochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend("exclusiveMinimum" = 0, "unit" = "epochs", "depends" = "instead of `total_steps`"),
    )]
    pub total_epochs: Option<f64>,
    /// The same in examples.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("unit" = "examples", "depends" = "instead of `total_steps`"))]
    pub total_examples: Option<u64>,
}

impl Polynomial {
    /// Its keys without the power.
    pub fn decay(&self) -> Decay {
        let Self { floor, floor_at, decay_from, total_steps, total_epochs, total_examples, .. } =
            *self;
        Decay { floor, floor_at, decay_from, total_steps, total_epochs, total_examples }
    }

    /// Where the decay ends, if it is set.
    pub fn total(&self) -> Option<Span> {
        self.decay().total()
    }
}

/// A drop by `factor` at each boundary; boundaries increase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct StepDecay {
    /// Steps at which the rate drops (`step`) or is given (`piecewise`); or set one of the next
    /// two.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend(
            "values" = "list of 1 to 1000 whole numbers from 0 on, rising",
            "unit" = "steps",
            "required" = true,
        ),
    )]
    pub boundaries: Option<Vec<u64>>,
    /// The same in epochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend(
            "values" = "list of 1 to 1000 numbers from 0 on, rising",
            "unit" = "epochs",
            "depends" = "instead of `boundaries`",
        ),
    )]
    pub boundary_epochs: Option<Vec<f64>>,
    /// The same in examples.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend(
            "values" = "list of 1 to 1000 whole numbers from 0 on, rising",
            "unit" = "examples",
            "depends" = "instead of `boundaries`",
        ),
    )]
    pub boundary_examples: Option<Vec<u64>>,
    /// Factor for the rate at each boundary.
    #[schemars(extend("exclusiveMinimum" = 0))]
    #[default(0.1)]
    pub factor: f64,
    /// Where boundaries are counted from: the start of the run, or the end of the warm-up.
    pub boundaries_from: BoundariesFrom,
}

impl StepDecay {
    /// The boundaries, in whichever unit they are given.
    pub fn boundaries(&self) -> Vec<Span> {
        Span::all_of(&self.boundaries, &self.boundary_epochs, &self.boundary_examples)
    }
}

/// The peak, and a decay to `floor` over the last steps. One of the three lengths must be set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct Wsd {
    /// Length of the decay at the end; or set one of the next two.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("unit" = "steps", "required" = true))]
    pub decay_steps: Option<u64>,
    /// The same in epochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend("exclusiveMinimum" = 0, "unit" = "epochs", "depends" = "instead of `decay_steps`"),
    )]
    pub decay_epochs: Option<f64>,
    /// The same in examples.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("unit" = "examples", "depends" = "instead of `decay_steps`"))]
    pub decay_examples: Option<u64>,
    /// Shape of the decay: linear, half a cosine, or 1 - sqrt(x) for the elapsed share x.
    pub decay_shape: DecayShape,
    /// The rate at the end of the decay.
    #[schemars(range(min = 0, max = 1), extend("unit" = "fraction of the peak"))]
    pub floor: f64,
    /// Where the decay reaches `floor`: at its last step, or at the one after it, which may be the
    /// end of the run.
    pub floor_at: ReachedAt,
    /// The step at which the decay ends, counted from the start of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("unit" = "steps", "absent" = "the end of the run"))]
    pub total_steps: Option<u64>,
    /// The same in epochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend("exclusiveMinimum" = 0, "unit" = "epochs", "depends" = "instead of `total_steps`"),
    )]
    pub total_epochs: Option<f64>,
    /// The same in examples.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("unit" = "examples", "depends" = "instead of `total_steps`"))]
    pub total_examples: Option<u64>,
}

impl Wsd {
    /// The length of the decay; 0 if none is set, which a valid configuration excludes.
    pub fn decay(&self) -> Span {
        let decay = Span::one_of(self.decay_steps, self.decay_epochs, self.decay_examples);
        decay.unwrap_or(Span::ZERO)
    }

    /// Where the decay ends, if it is set.
    pub fn total(&self) -> Option<Span> {
        Span::one_of(self.total_steps, self.total_epochs, self.total_examples)
    }
}

/// Shape of the decay of [`Wsd`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DecayShape {
    /// Linear.
    #[default]
    Linear,
    /// Half a cosine.
    Cosine,
    /// `1 - sqrt(x)`, with x the elapsed share of the decay.
    Sqrt,
}

/// A curve through the points (boundary, factor), constant before the first and after the last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct Piecewise {
    /// Steps at which the rate drops (`step`) or is given (`piecewise`); or set one of the next
    /// two.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend(
            "values" = "list of 1 to 1000 whole numbers from 0 on, rising",
            "unit" = "steps",
            "required" = true,
        ),
    )]
    pub boundaries: Option<Vec<u64>>,
    /// The same in epochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend(
            "values" = "list of 1 to 1000 numbers from 0 on, rising",
            "unit" = "epochs",
            "depends" = "instead of `boundaries`",
        ),
    )]
    pub boundary_epochs: Option<Vec<f64>>,
    /// The same in examples.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend(
            "values" = "list of 1 to 1000 whole numbers from 0 on, rising",
            "unit" = "examples",
            "depends" = "instead of `boundaries`",
        ),
    )]
    pub boundary_examples: Option<Vec<u64>>,
    /// The rate at each of the boundaries.
    #[schemars(
        extend(
            "values" = "list of numbers, 0 or more, one for each boundary",
            "unit" = "fraction of the peak",
            "required" = true,
        ),
    )]
    pub factors: Vec<f64>,
    /// How the rate changes between boundaries: linearly, or not.
    pub interpolation: Interpolation,
    /// Where boundaries are counted from: the start of the run, or the end of the warm-up.
    pub boundaries_from: BoundariesFrom,
}

impl Piecewise {
    /// The boundaries, in whichever unit they are given.
    pub fn boundaries(&self) -> Vec<Span> {
        Span::all_of(&self.boundaries, &self.boundary_epochs, &self.boundary_examples)
    }
}

/// How a rate changes between two points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Interpolation {
    /// Linearly.
    #[default]
    Linear,
    /// Constant until the second point.
    Constant,
}

/// The step at which a warm-up reaches the peak (`peak_at`), or a decay `floor` (`floor_at`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReachedAt {
    /// Its last step.
    LastStep,
    /// The step after its last one.
    #[default]
    NextStep,
}

/// Where a decay is counted from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DecayFrom {
    /// The end of the warm-up.
    #[default]
    Warmup,
    /// The start of the run, so that the rate drops at the end of the warm-up, to where the decay
    /// is by then.
    Start,
}

/// Where the boundaries of [`StepDecay`] and [`Piecewise`] are counted from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BoundariesFrom {
    /// The start of the run.
    #[default]
    Start,
    /// The end of the warm-up, as in optax's `join_schedules` and PyTorch's `SequentialLR`.
    Warmup,
}

impl Shape {
    /// Where the decay is counted from, for shapes with that key.
    pub(super) fn decay_from(&self) -> Option<DecayFrom> {
        match self {
            Self::Cosine(decay) | Self::Linear(decay) => Some(decay.decay_from),
            Self::Polynomial(decay) => Some(decay.decay_from),
            _ => None,
        }
    }

    /// Where the decay ends, if the configuration says so. Without it, the decay ends with the run.
    pub fn total(&self) -> Option<Span> {
        match self {
            Self::Cosine(decay) | Self::Linear(decay) => decay.total(),
            Self::Polynomial(decay) => decay.total(),
            Self::Wsd(wsd) => wsd.total(),
            Self::Constant(_) | Self::InverseSqrt(_) | Self::Step(_) | Self::Piecewise(_) => None,
        }
    }

    /// Checks what must be set, and that lists have the same length.
    pub(super) fn check(&self, errors: &mut KeyErrors) {
        match self {
            Self::Constant(_) | Self::InverseSqrt(_) => {}
            Self::Cosine(_) | Self::Linear(_) | Self::Polynomial(_) => {}
            Self::Step(step) => check_boundaries(&step.boundaries(), errors),
            Self::Wsd(wsd) => {
                if !errors.none_of(&["decay_steps", "decay_epochs", "decay_examples"]) {
                    return;
                }
                if wsd.decay() == Span::ZERO {
                    let allowed = "the length of the decay, 1 or more; or set \
                                   schedule.decay_epochs or schedule.decay_examples instead";
                    errors.push(KeyError::missing("decay_steps", allowed));
                }
            }
            Self::Piecewise(piecewise) => check_points(piecewise, errors),
        }
    }
}

const BOUNDARIES: [&str; 3] = ["boundaries", "boundary_epochs", "boundary_examples"];

/// Largest number of boundaries: every evaluation of the rate looks at all of them.
const MAX_BOUNDARIES: usize = 1000;

fn check_boundaries(boundaries: &[Span], errors: &mut KeyErrors) {
    let key = match boundaries.first() {
        Some(Span::Steps(_)) => BOUNDARIES[0],
        Some(Span::Epochs(_)) => BOUNDARIES[1],
        Some(Span::Examples(_)) => BOUNDARIES[2],
        None if errors.none_of(&BOUNDARIES) => {
            let allowed = "a list of steps, one or more; or set schedule.boundary_epochs or \
                           schedule.boundary_examples instead";
            return errors.push(KeyError::missing(BOUNDARIES[0], allowed));
        }
        None => return,
    };
    let allowed = format!("at most {MAX_BOUNDARIES} places");
    let found = format!("{} of them", boundaries.len());
    errors.check(require(boundaries.len() <= MAX_BOUNDARIES, key, found, &allowed));
    let counts: Vec<_> = boundaries.iter().map(|boundary| boundary.count()).collect();
    let are_places = counts.iter().all(|count| count.is_finite() && *count >= 0.0);
    let rising = counts.is_sorted_by(|a, b| a < b);
    let allowed = "numbers from 0 on in rising order, each once";
    errors.check(require(are_places && rising, key, format!("{counts:?}"), allowed));
}

fn check_points(piecewise: &Piecewise, errors: &mut KeyErrors) {
    let (boundaries, factors) = (piecewise.boundaries(), &piecewise.factors);
    check_boundaries(&boundaries, errors);
    let found = format!("{factors:?}");
    let fit = factors.iter().all(|factor| factor.is_finite() && *factor >= 0.0);
    errors.check(require(fit, "factors", found, "fractions of the peak, 0 or more"));
    if boundaries.len() != factors.len() && errors.none_of(&BOUNDARIES) {
        let problem = format!(
            "found {} for {}; give one for each boundary",
            counted(factors.len(), "factor"),
            counted(boundaries.len(), "boundary")
        );
        errors.push(KeyError::new("factors", Problem::Inconsistent(problem)));
    }
}
