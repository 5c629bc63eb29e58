//! The learning rate at every step, evaluated in f64 on the host (phase: run).
//!
//! ```text
//! lr(s) = peak * (factor + (1 - factor) * (s + 1) / warmup)   for s < warmup     (linear warm-up)
//! lr(s) = peak * factor                                       for s < warmup     (constant warm-up)
//! lr(s) = peak * shape(s)                                     from then on
//! ```
//! with steps counted from 0, so that the first step already learns and step `warmup - 1` has the peak
//! (Goyal et al., "Accurate, Large Minibatch SGD", 2017, section 2.2). The rate enters the compiled step
//! as an input: another schedule compiles nothing anew, and what is printed is what runs. It is a function
//! of the step and of nothing else, so a run that is started again in the middle goes on alike.
//!
//! The peak is given, or follows from the global batch B and the batch b that a base rate was found at:
//!
//! ```text
//! peak = base_lr * B / b          scaling = "linear"     Goyal et al. (2017), section 2.1: SGD
//! peak = base_lr * sqrt(B / b)    scaling = "sqrt"       Krizhevsky (2014); You et al. (2020): LAMB
//! peak = base_lr                  scaling = "none"
//! ```
//!
//! A shape is a function in `shapes.rs` and a line in `Curve::new`'s table. The fraction that the decays
//! follow is `t = (s - warmup) / (end - warmup)`, 0 to below 1.
//!
//! ```
//! use lockstep::config::{self, Decay, Length, Peak, RunLength, Scaling, Shape, Span, Warmup};
//! use lockstep::optim::schedule::Schedule;
//! let config = config::ScheduleConfig {
//!     shape: Shape::Cosine(Decay::default()),
//!     peak: Peak::Scaled { base_lr: 0.1, base_batch: 256, scaling: Scaling::Linear },
//!     warmup: Warmup::linear(Span::Epochs(0.4)),
//! };
//! let run = RunLength::new(Length::Epochs(4), Some(10 * 512), 512)?;
//! let schedule = Schedule::new(&config, &run)?;
//! assert_eq!(schedule.peak(), 0.2);
//! assert_eq!(schedule.lr(0), 0.05);
//! assert_eq!(schedule.lr(4), 0.2);
//! assert!(schedule.lr(39) < 0.001);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod curve;
mod error;
mod shapes;

use std::fmt;

use crate::config::{self, Peak, RunLength, Scaling, Shape, WarmupKind};
use curve::Curve;

pub use error::Error;
pub use shapes::{
    constant, cosine, inverse_sqrt, linear, one_minus_sqrt, piecewise_constant, piecewise_linear,
    polynomial, step_decay, warmup,
};

/// The learning rate of one run: a function of the step.
pub struct Schedule {
    peak: f64,
    warmup_steps: u64,
    warmup_kind: WarmupKind,
    warmup_factor: f64,
    total_steps: u64,
    curve: Curve,
}

impl Schedule {
    /// Resolves a configuration against the length of the run, which knows the global batch.
    ///
    /// # Errors
    /// A rate that is negative, or not finite as an f32; a warm-up or a decay that is longer than there is room for,
    /// or shorter than a step; boundaries that do not rise; a fraction outside its range; epochs where
    /// nobody knows how many examples there are.
    pub fn new(config: &config::ScheduleConfig, run: &RunLength) -> Result<Self, Error> {
        let total_steps = run.total_steps();
        let peak = peak(config.peak, run.global_batch());
        let key = match config.peak {
            Peak::Rate(_) => "peak",
            Peak::Scaled { .. } => "base_lr",
        };
        if !is_rate(peak) {
            return Err(Error::Peak { peak, key });
        }
        let warmup_steps = warmup_steps(config.warmup, run)?;
        let curve = Curve::new(&config.shape, run, warmup_steps)?;
        let config::Warmup { kind: warmup_kind, factor: warmup_factor, .. } = config.warmup;
        let schedule = Self { peak, warmup_steps, warmup_kind, warmup_factor, total_steps, curve };
        // Above the peak there are only a `step`'s powers of its factor and a `piecewise`'s factors, which are
        // greatest at a boundary, or where the warm-up or the run ends.
        let ends = [0, warmup_steps, total_steps.saturating_sub(1)];
        let places = schedule.boundaries().iter().copied().chain(ends);
        for step in places.filter(|step| *step < total_steps) {
            let rate = schedule.lr(step);
            if !is_rate(rate) {
                let factor_key = match &config.shape {
                    Shape::Piecewise(_) => "factors",
                    _ => "factor",
                };
                return Err(Error::Rate { step, rate, key, factor_key });
            }
        }
        Ok(schedule)
    }

    /// The learning rate of a step, counted from 0. Behind their end the decays stay where they ended.
    pub fn lr(&self, step: u64) -> f64 {
        let factor = match self.warmup_kind {
            WarmupKind::Linear if step < self.warmup_steps => {
                warmup(step, self.warmup_steps, self.warmup_factor)
            }
            WarmupKind::Constant if step < self.warmup_steps => self.warmup_factor,
            _ => (self.curve.factor)(step),
        };
        self.peak * factor
    }

    /// The rate that a factor of 1 stands for.
    pub fn peak(&self) -> f64 {
        self.peak
    }

    /// Steps of the warm-up.
    pub fn warmup_steps(&self) -> u64 {
        self.warmup_steps
    }

    /// Steps of the run.
    pub fn total_steps(&self) -> u64 {
        self.total_steps
    }

    /// The step at which the decay has ended, for shapes that have one.
    pub fn end_step(&self) -> Option<u64> {
        self.curve.end_step
    }

    /// The steps that the configuration names as boundaries.
    pub fn boundaries(&self) -> &[u64] {
        &self.curve.boundaries
    }

    /// Does the configuration say that the rate jumps at this step?
    pub fn is_declared_jump(&self, step: u64) -> bool {
        let ends_constant = self.warmup_kind == WarmupKind::Constant && step == self.warmup_steps;
        ends_constant || self.curve.jumps.contains(&step)
    }
}

/// The length of the warm-up, which fits into the run.
fn warmup_steps(warmup: config::Warmup, run: &RunLength) -> Result<u64, Error> {
    if warmup.kind == WarmupKind::None {
        return Ok(0);
    }
    let unit = warmup.length.unit();
    let warmup_steps = run.steps(warmup.length, &format!("schedule.warmup_{unit}"))?;
    let total_steps = run.total_steps();
    match warmup_steps {
        0 => Err(Error::NoWarmup { unit, global_batch: run.global_batch() }),
        _ if warmup_steps > total_steps => Err(Error::Warmup { warmup_steps, total_steps, unit }),
        _ => Ok(warmup_steps),
    }
}

/// Can the step take it, as an f32?
fn is_rate(rate: f64) -> bool {
    (0.0..=f64::from(f32::MAX)).contains(&rate)
}

/// The highest rate, at this global batch.
pub fn peak(peak: Peak, global_batch: usize) -> f64 {
    match peak {
        Peak::Rate(rate) => rate,
        Peak::Scaled { base_lr, base_batch, scaling } => {
            let batch = global_batch as f64;
            match scaling {
                // In this order the whole product is rounded once where the ratio is not exact.
                Scaling::Linear => base_lr * batch / base_batch as f64,
                Scaling::Sqrt => base_lr * (batch / base_batch as f64).sqrt(),
                Scaling::None => base_lr,
            }
        }
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schedule")
            .field("peak", &self.peak)
            .field("warmup_steps", &self.warmup_steps)
            .field("total_steps", &self.total_steps)
            .field("end_step", &self.curve.end_step)
            .finish_non_exhaustive()
    }
}
