//! Shapes of the learning rate after the warm-up: the choices of `[schedule] name` and their keys.

use hlo::counted;
use serde::{Deserialize, Serialize};

use super::error::{KeyError, KeyErrors, Problem, require, require_positive};
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Constant {}

/// No keys of its own: the warm-up's length is the scale.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InverseSqrt {}

/// A decay to `floor`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Decay {
    /// The final rate, as a fraction of the peak, 0 to 1: a fraction, so that it keeps its
    /// meaning when the peak is scaled with the batch. Default 0.
    pub floor: f64,
    /// The step at which the rate reaches `floor`. Default `next_step`.
    pub floor_at: ReachedAt,
    /// Where the decay is counted from. Default `warmup`.
    pub decay_from: DecayFrom,
    /// Where it ends in steps, counted from the start of the run. Default: at the end of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<u64>,
    /// The same in epochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_epochs: Option<f64>,
    /// The same in examples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_examples: Option<u64>,
}

impl Decay {
    /// Where the decay ends, if it is set.
    pub fn total(&self) -> Option<Span> {
        Span::one_of(self.total_steps, self.total_epochs, self.total_examples)
    }
}

/// A polynomial decay to `floor`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Polynomial {
    /// The exponent, above 0: 1 is linear. Default 2.
    pub power: f64,
    /// The final rate, as a fraction of the peak, 0 to 1. Default 0.
    pub floor: f64,
    /// The step at which the rate reaches `floor`. Default `next_step`.
    pub floor_at: ReachedAt,
    /// Where the decay is counted from. Default `warmup`.
    pub decay_from: DecayFrom,
    /// Where it ends in steps, counted from the start of the run. Default: at the end of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<u64>,
    /// The same in epochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_epochs: Option<f64>,
    /// The same in examples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_examples: Option<u64>,
}

impl Default for Polynomial {
    fn default() -> Self {
        let Decay { floor, floor_at, decay_from, .. } = Decay::default();
        let (total_steps, total_epochs, total_examples) = (None, None, None);
        Self { power: 2.0, floor, floor_at, decay_from, total_steps, total_epochs, total_examples }
    }
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepDecay {
    /// Steps at which the rate drops.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boundaries: Option<Vec<u64>>,
    /// The same in epochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boundary_epochs: Option<Vec<f64>>,
    /// The same in examples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boundary_examples: Option<Vec<u64>>,
    /// Factor for the rate at each boundary. Default 0.1.
    pub factor: f64,
    /// Where boundaries are counted from. Default `start`.
    pub boundaries_from: BoundariesFrom,
}

impl Default for StepDecay {
    fn default() -> Self {
        let (boundaries, boundary_epochs, boundary_examples) = (None, None, None);
        let boundaries_from = BoundariesFrom::Start;
        Self { boundaries, boundary_epochs, boundary_examples, factor: 0.1, boundaries_from }
    }
}

impl StepDecay {
    /// The boundaries, in whichever unit they are given.
    pub fn boundaries(&self) -> Vec<Span> {
        Span::all_of(&self.boundaries, &self.boundary_epochs, &self.boundary_examples)
    }
}

/// The peak, and a decay to `floor` over the last steps. One of the three lengths must be set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wsd {
    /// Length of the decay in steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_steps: Option<u64>,
    /// The same in epochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_epochs: Option<f64>,
    /// The same in examples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_examples: Option<u64>,
    /// Shape of the decay. Default `linear`.
    pub decay_shape: DecayShape,
    /// The final rate, as a fraction of the peak, 0 to 1. Default 0.
    pub floor: f64,
    /// The step at which the rate reaches `floor`. Default `next_step`.
    pub floor_at: ReachedAt,
    /// Where it ends in steps, counted from the start of the run. Default: at the end of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<u64>,
    /// The same in epochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_epochs: Option<f64>,
    /// The same in examples.
    #[serde(skip_serializing_if = "Option::is_none")]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Piecewise {
    /// Steps at which the rate is given, rising.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boundaries: Option<Vec<u64>>,
    /// The same in epochs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boundary_epochs: Option<Vec<f64>>,
    /// The same in examples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boundary_examples: Option<Vec<u64>>,
    /// The rate at each of them, as a fraction of the peak.
    pub factors: Vec<f64>,
    /// How the rate changes between them. Default `linear`.
    pub interpolation: Interpolation,
    /// Where boundaries are counted from. Default `start`.
    pub boundaries_from: BoundariesFrom,
}

impl Piecewise {
    /// The boundaries, in whichever unit they are given.
    pub fn boundaries(&self) -> Vec<Span> {
        Span::all_of(&self.boundaries, &self.boundary_epochs, &self.boundary_examples)
    }
}

/// How a rate changes between two points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interpolation {
    /// Linearly.
    #[default]
    Linear,
    /// Constant until the second point.
    Constant,
}

/// The step at which a warm-up reaches the peak (`peak_at`), or a decay `floor` (`floor_at`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReachedAt {
    /// Its last step.
    LastStep,
    /// The step after its last one.
    #[default]
    NextStep,
}

/// Where a decay is counted from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

    /// Checks each key, and that lists have the same length.
    pub(super) fn check(&self, errors: &mut KeyErrors) {
        match self {
            Self::Constant(_) | Self::InverseSqrt(_) => {}
            Self::Cosine(decay) | Self::Linear(decay) => {
                check_fall(decay.floor, decay.total(), errors);
            }
            Self::Polynomial(decay) => {
                errors.check(require_positive("power", decay.power));
                check_fall(decay.floor, decay.total(), errors);
            }
            Self::Step(step) => {
                errors.check(require_positive("factor", step.factor));
                check_boundaries(&step.boundaries(), errors);
            }
            Self::Wsd(wsd) => {
                check_fall(wsd.floor, wsd.total(), errors);
                if !errors.none_of(&["decay_steps", "decay_epochs", "decay_examples"]) {
                    return;
                }
                if wsd.decay() == Span::ZERO {
                    let allowed = "the length of the decay, 1 or more; or set schedule.decay_epochs \
                                   or schedule.decay_examples instead";
                    errors.push(KeyError::missing("decay_steps", allowed));
                } else {
                    wsd.decay().check("decay", errors);
                }
            }
            Self::Piecewise(piecewise) => check_points(piecewise, errors),
        }
    }
}

fn check_fall(floor: f64, total: Option<Span>, errors: &mut KeyErrors) {
    let holds = (0.0..=1.0).contains(&floor);
    errors.check(require(holds, "floor", floor, "a fraction of the peak, 0 to 1"));
    if let Some(total) = total {
        total.check("total", errors);
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
