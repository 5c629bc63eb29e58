//! The learning rate at every step, evaluated in f64 on the host (phase: run).
//!
//! ```text
//! lr(s) = peak * (s + 1) / warmup          for s < warmup     (linear warm-up)
//! lr(s) = peak * shape(s)                  from then on
//! ```
//! with steps counted from 0, so that the first step already learns and step `warmup - 1` has the peak
//! (Goyal et al., "Accurate, Large Minibatch SGD", 2017, section 2.2). The rate enters the compiled step
//! as an input: another schedule compiles nothing anew, and what is printed is what runs.
//!
//! A shape is a function in this file and a line in [`Schedule::new`]'s table. The fraction that the
//! decays follow is `t = (s - warmup) / (total - warmup)`, 0 to below 1.
//!
//! ```
//! use lockstep::config::{self, Decay, Length, Peak, RunLength, Shape, Warmup};
//! use lockstep::optim::schedule::Schedule;
//! let config = config::Schedule {
//!     shape: Shape::Cosine(Decay { floor: 0.0 }),
//!     peak: Peak::Scaled { base_lr: 0.1, base_batch: 256 },
//!     warmup: Warmup::Epochs(0.4),
//! };
//! let run = RunLength::new(Length::Epochs(4), 10 * 512, 512)?;
//! let schedule = Schedule::new(&config, &run, 512)?;
//! assert_eq!(schedule.peak(), 0.2);
//! assert_eq!(schedule.lr(0), 0.05);
//! assert_eq!(schedule.lr(4), 0.2);
//! assert!(schedule.lr(39) < 0.001);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::f64::consts::PI;
use std::fmt;

use crate::config::{self, Decay, Peak, RunLength, Shape, StepDecay, Warmup};

/// The learning rate of one run: a function of the step.
pub struct Schedule {
    peak: f64,
    warmup_steps: u64,
    total_steps: u64,
    /// Fraction of the peak after the warm-up.
    shape: Box<dyn Fn(Point) -> f64 + Send + Sync>,
}

/// Where in the run a step is.
#[derive(Clone, Copy, Debug)]
struct Point {
    step: u64,
    /// How much of the run after the warm-up has passed, 0 to 1.
    fraction: f64,
}

impl Schedule {
    /// Resolves a configuration against the length of the run and the global batch, which the linear
    /// scaling rule needs: `peak = base_lr * global_batch / base_batch`.
    ///
    /// # Errors
    /// A peak that is negative or not finite, a warm-up longer than the run, boundaries that do not
    /// rise, a floor outside 0 to 1, a factor that is negative.
    pub fn new(
        config: &config::Schedule,
        run: &RunLength,
        global_batch: usize,
    ) -> Result<Self, Error> {
        let total_steps = run.total_steps();
        let peak = match config.peak {
            Peak::Rate(rate) => rate,
            Peak::Scaled { base_lr, base_batch } => {
                base_lr * global_batch as f64 / base_batch as f64
            }
        };
        if !peak.is_finite() || peak < 0.0 {
            return Err(Error::Peak { peak });
        }
        let warmup_steps = match config.warmup {
            Warmup::Steps(steps) => steps,
            // The conversion saturates, and NaN becomes 0: what is too long is refused below.
            Warmup::Epochs(epochs) => (epochs * run.steps_per_epoch() as f64).round() as u64,
        };
        if warmup_steps > total_steps {
            return Err(Error::Warmup { warmup_steps, total_steps });
        }
        let shape: Box<dyn Fn(Point) -> f64 + Send + Sync> = match config.shape.clone() {
            Shape::Constant(_) => Box::new(|_| constant()),
            Shape::Cosine(Decay { floor }) => {
                check_floor(floor)?;
                Box::new(move |at| cosine(at.fraction, floor))
            }
            Shape::Linear(Decay { floor }) => {
                check_floor(floor)?;
                Box::new(move |at| linear(at.fraction, floor))
            }
            Shape::Step(StepDecay { boundaries, factor }) => {
                check_boundaries(&boundaries, factor)?;
                Box::new(move |at| step_decay(at.step, &boundaries, factor))
            }
        };
        Ok(Self { peak, warmup_steps, total_steps, shape })
    }

    /// The learning rate of a step, counted from 0. Behind the end of the run the decays stay where
    /// they ended.
    pub fn lr(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.peak * warmup(step, self.warmup_steps);
        }
        let passed = (step - self.warmup_steps) as f64;
        let length = (self.total_steps - self.warmup_steps).max(1) as f64;
        let fraction = (passed / length).min(1.0);
        self.peak * (self.shape)(Point { step, fraction })
    }

    /// The highest rate.
    pub fn peak(&self) -> f64 {
        self.peak
    }

    /// Steps of linear warm-up.
    pub fn warmup_steps(&self) -> u64 {
        self.warmup_steps
    }

    /// Steps of the run.
    pub fn total_steps(&self) -> u64 {
        self.total_steps
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schedule")
            .field("peak", &self.peak)
            .field("warmup_steps", &self.warmup_steps)
            .field("total_steps", &self.total_steps)
            .finish_non_exhaustive()
    }
}

/// Linear warm-up: `(step + 1) / warmup_steps`, a fraction of the peak, for `step < warmup_steps`.
///
/// Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour" (2017), section 2.2.
///
/// ```
/// use lockstep::optim::schedule::warmup;
/// assert_eq!([0, 1, 2, 3].map(|step| warmup(step, 4)), [0.25, 0.5, 0.75, 1.0]);
/// ```
pub fn warmup(step: u64, warmup_steps: u64) -> f64 {
    (step + 1) as f64 / warmup_steps as f64
}

/// The peak throughout: `1`.
///
/// ```
/// assert_eq!(lockstep::optim::schedule::constant(), 1.0);
/// ```
pub fn constant() -> f64 {
    1.0
}

/// Cosine decay without restarts: `floor + (1 - floor) * (1 + cos(pi * t)) / 2`, a fraction of the peak.
///
/// Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (ICLR 2017),
/// equation 5, with one cycle.
///
/// ```
/// use lockstep::optim::schedule::cosine;
/// assert_eq!(cosine(0.0, 0.1), 1.0);
/// assert!((cosine(0.5, 0.1) - 0.55).abs() < 1e-15);
/// assert!((cosine(1.0, 0.1) - 0.1).abs() < 1e-15);
/// ```
pub fn cosine(t: f64, floor: f64) -> f64 {
    floor + (1.0 - floor) * 0.5 * (1.0 + (PI * t).cos())
}

/// Linear decay: `floor + (1 - floor) * (1 - t)`, a fraction of the peak.
///
/// Devlin et al., "BERT" (NAACL 2019), appendix A.2, with floor 0.
///
/// ```
/// use lockstep::optim::schedule::linear;
/// assert_eq!([0.0, 0.5, 1.0].map(|t| linear(t, 0.0)), [1.0, 0.5, 0.0]);
/// ```
pub fn linear(t: f64, floor: f64) -> f64 {
    floor + (1.0 - floor) * (1.0 - t)
}

/// Step decay: `factor ^ (number of boundaries at or before the step)`, a fraction of the peak.
///
/// He et al., "Deep Residual Learning for Image Recognition" (CVPR 2016), section 4.2, with factor 0.1.
///
/// ```
/// use lockstep::optim::schedule::step_decay;
/// assert_eq!([9, 10, 20].map(|step| step_decay(step, &[10, 20], 0.5)), [1.0, 0.5, 0.25]);
/// ```
pub fn step_decay(step: u64, boundaries: &[u64], factor: f64) -> f64 {
    let num_passed = boundaries.iter().filter(|boundary| **boundary <= step).count();
    (0..num_passed).fold(1.0, |rate, _| rate * factor)
}

/// A schedule that cannot be followed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The highest rate is no rate.
    #[error(
        "the peak learning rate is {peak}; set schedule.peak or schedule.base_lr to a finite number, 0 or more"
    )]
    Peak {
        /// The rate.
        peak: f64,
    },
    /// The warm-up does not end.
    #[error(
        "the warm-up of {warmup_steps} steps is longer than the run of {total_steps}; shorten \
         schedule.warmup_steps (or warmup_epochs), or lengthen train.steps (or train.epochs)"
    )]
    Warmup {
        /// Steps of the warm-up.
        warmup_steps: u64,
        /// Steps of the run.
        total_steps: u64,
    },
    /// A boundary is not behind the one before it.
    #[error("schedule.boundaries must rise, but {next} follows {previous}")]
    BoundaryOrder {
        /// A boundary.
        previous: u64,
        /// The one after it.
        next: u64,
    },
    /// A fraction of the peak that is none.
    #[error("schedule.{key} is {value}; it must be {allowed}")]
    Fraction {
        /// Which key.
        key: &'static str,
        /// Its value.
        value: f64,
        /// What would do.
        allowed: &'static str,
    },
}

fn check_floor(floor: f64) -> Result<(), Error> {
    if (0.0..=1.0).contains(&floor) {
        return Ok(());
    }
    Err(Error::Fraction { key: "floor", value: floor, allowed: "a fraction of the peak, 0 to 1" })
}

fn check_boundaries(boundaries: &[u64], factor: f64) -> Result<(), Error> {
    if !factor.is_finite() || factor < 0.0 {
        let allowed = "a finite number, 0 or more";
        return Err(Error::Fraction { key: "factor", value: factor, allowed });
    }
    match boundaries.windows(2).find(|pair| pair[0] >= pair[1]) {
        Some(pair) => Err(Error::BoundaryOrder { previous: pair[0], next: pair[1] }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Constant, Length};

    fn schedule(
        shape: Shape,
        peak: Peak,
        warmup: Warmup,
        total_steps: u64,
    ) -> Result<Schedule, Error> {
        let run = RunLength::new(Length::Steps(total_steps), 640, 64).unwrap();
        Schedule::new(&config::Schedule { shape, peak, warmup }, &run, 64)
    }

    fn shapes() -> Vec<Shape> {
        let shapes = vec![
            Shape::Constant(Constant {}),
            Shape::Cosine(Decay { floor: 0.1 }),
            Shape::Linear(Decay { floor: 0.1 }),
            Shape::Step(StepDecay { boundaries: vec![40, 80], factor: 0.1 }),
        ];
        assert_eq!(shapes.iter().map(Shape::name).collect::<Vec<_>>(), Shape::NAMES);
        shapes
    }

    #[test]
    fn every_shape_rises_to_its_peak_and_never_above_or_below_zero() {
        for shape in shapes() {
            let schedule =
                schedule(shape.clone(), Peak::Rate(0.5), Warmup::Steps(10), 100).unwrap();
            let rates: Vec<_> = (0..100).map(|step| schedule.lr(step)).collect();
            assert_eq!((rates[0], rates[9], rates[10]), (0.05, 0.5, 0.5), "{}", shape.name());
            assert!(rates[..10].is_sorted(), "{}", shape.name());
            assert!(rates[10..].is_sorted_by(|a, b| a >= b), "{}", shape.name());
            assert!(rates.iter().all(|rate| *rate > 0.0), "{}", shape.name());
            assert!(schedule.lr(u64::MAX).is_finite());
        }
    }

    #[test]
    fn a_run_may_be_all_warm_up_or_have_none() {
        for shape in shapes().into_iter().take(3) {
            let all = schedule(shape.clone(), Peak::Rate(1.0), Warmup::Epochs(1.0), 10).unwrap();
            assert_eq!((all.lr(9), all.warmup_steps()), (1.0, 10));
            let none = schedule(shape, Peak::Rate(1.0), Warmup::Steps(0), 10).unwrap();
            assert_eq!(none.lr(0), 1.0);
        }
    }

    #[test]
    fn bad_schedules_say_what_to_change() {
        let steps = |boundaries: &[u64], factor| {
            Shape::Step(StepDecay { boundaries: boundaries.to_vec(), factor })
        };
        let constant = || Shape::Constant(Constant {});
        let none = Warmup::Steps(0);
        let scaled = Peak::Scaled { base_lr: 0.1, base_batch: 0 };
        let cases = [
            (constant(), Peak::Rate(1.0), Warmup::Steps(101), "warm-up of 101 steps"),
            (constant(), Peak::Rate(1.0), Warmup::Epochs(1e30), "longer than the run of 100"),
            (constant(), Peak::Rate(-1.0), none, "peak learning rate is -1"),
            (constant(), scaled, none, "is inf"),
            (steps(&[5, 5], 0.1), Peak::Rate(1.0), none, "5 follows 5"),
            (steps(&[5], -0.1), Peak::Rate(1.0), none, "schedule.factor is -0.1"),
            (Shape::Cosine(Decay { floor: 2.0 }), Peak::Rate(1.0), none, "schedule.floor is 2"),
        ];
        for (shape, peak, warmup, expected) in cases {
            let message = schedule(shape, peak, warmup, 100).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
