//! The learning rate at every step, evaluated in f64 on the host (phase: run).
//!
//! ```text
//! lr(s) = peak * (factor + (1 - factor) * (s + 1) / warmup)   for s < warmup     (linear, peak_at = "last_step")
//! lr(s) = peak * (factor + (1 - factor) * s / warmup)         for s < warmup     (linear, peak_at = "next_step")
//! lr(s) = peak * factor                                       for s < warmup     (constant)
//! lr(s) = peak * shape(s)                                     from then on
//! ```
//! with steps counted from 0. `factor` is `warmup_factor`, or `base_lr / peak` with
//! `warmup_from = "base"`. The rate is an input of the compiled step: changing the schedule does
//! not recompile it, and the printed rate is the one used. It is a function of the step only, so a
//! resumed run continues with the same rates.
//!
//! The peak is given, or computed from the global batch B and the batch b that the base rate was
//! tuned for:
//!
//! ```text
//! peak = base_lr * B / b          scaling = "linear"     Goyal et al. (2017), section 2.1: SGD
//! peak = base_lr * sqrt(B / b)    scaling = "sqrt"       Krizhevsky (2014); You et al. (2020): LAMB
//! peak = base_lr                  scaling = "none"
//! ```
//!
//! A shape is a function in `shapes.rs` and a line in `Curve::new`. Decays are functions of the
//! fraction `t = (s - start) / (end - start)`, where `start` is the end of the warm-up (0 with
//! `decay_from = "start"`), and `end` the end of the decay, so that the last step is just above the
//! floor (the last step with `floor_at = "last_step"`).
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

use crate::config::{self, Peak, ReachedAt, RunLength, Scaling, Shape, WarmupFrom, WarmupKind};
use curve::Curve;

pub use error::Error;
pub use shapes::{
    constant, cosine, inverse_sqrt, linear, one_minus_sqrt, piecewise_constant, piecewise_linear,
    polynomial, step_decay, warmup,
};

/// The learning rate of a run as a function of the step.
pub struct Schedule {
    peak: f64,
    warmup_steps: u64,
    warmup_kind: WarmupKind,
    warmup_factor: f64,
    peak_at: ReachedAt,
    total_steps: u64,
    curve: Curve,
}

impl Schedule {
    /// Resolves a configuration for the length and global batch of a run.
    ///
    /// # Errors
    /// A rate that is negative, or not finite as an f32; a warm-up or a decay that is too long for
    /// the run, or shorter than a step; boundaries that do not increase; a fraction outside its
    /// range; epochs if the number of examples is unknown.
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
        let warmup_steps = warmup_steps(config, run)?;
        let config::Warmup { kind: warmup_kind, factor, from, peak_at, .. } = config.warmup;
        let curve = Curve::new(&config.shape, run, warmup_steps, peak_at)?;
        let warmup_factor = match (from, config.peak) {
            // A batch smaller than `base_batch` has nothing to warm up from.
            (WarmupFrom::Base, Peak::Scaled { base_lr, .. }) => (base_lr / peak).min(1.0),
            (WarmupFrom::Base | WarmupFrom::Zero, _) => factor,
        };
        let schedule =
            Self { peak, warmup_steps, warmup_kind, warmup_factor, peak_at, total_steps, curve };
        // Only `step` and `piecewise` can exceed the peak. Their maximum is at a boundary, or where
        // the warm-up or the run ends.
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

    /// The learning rate of a step, counted from 0. After its end, a decay keeps its last rate.
    pub fn lr(&self, step: u64) -> f64 {
        let factor = match self.warmup_kind {
            WarmupKind::Linear if step < self.warmup_steps => {
                warmup(step, self.warmup_steps, self.warmup_factor, self.peak_at)
            }
            WarmupKind::Constant if step < self.warmup_steps => self.warmup_factor,
            _ => (self.curve.factor)(step),
        };
        self.peak * factor
    }

    /// The rate at a factor of 1.
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

    /// The step at which the decay ends, for shapes with a decay.
    pub fn end_step(&self) -> Option<u64> {
        self.curve.end_step
    }

    /// The boundaries in the configuration, in steps.
    pub fn boundaries(&self) -> &[u64] {
        &self.curve.boundaries
    }

    /// `true` if the configuration makes the rate jump at this step.
    pub fn is_declared_jump(&self, step: u64) -> bool {
        let ends_constant = self.warmup_kind == WarmupKind::Constant && step == self.warmup_steps;
        ends_constant || self.curve.jumps.contains(&step)
    }
}

/// The length of the warm-up in steps, at most that of the run. Where the configuration says where
/// the schedule ends, the run may be the first part of a longer one; [`Curve::new`] then compares
/// the warm-up with that end.
fn warmup_steps(config: &config::ScheduleConfig, run: &RunLength) -> Result<u64, Error> {
    let warmup = config.warmup;
    if warmup.kind == WarmupKind::None {
        return Ok(0);
    }
    let unit = warmup.length.unit();
    let warmup_steps = run.steps(warmup.length, &format!("schedule.warmup_{unit}"))?;
    let total_steps = run.total_steps();
    match warmup_steps {
        0 => Err(Error::NoWarmup { unit, global_batch: run.global_batch() }),
        _ if warmup_steps > total_steps && config.shape.total().is_none() => {
            Err(Error::Warmup { warmup_steps, total_steps, unit })
        }
        _ => Ok(warmup_steps),
    }
}

/// `true` if the rate is 0 or more and finite as an f32.
fn is_rate(rate: f64) -> bool {
    (0.0..=f64::from(f32::MAX)).contains(&rate)
}

/// The peak learning rate for this global batch.
pub fn peak(peak: Peak, global_batch: usize) -> f64 {
    match peak {
        Peak::Rate(rate) => rate,
        Peak::Scaled { base_lr, base_batch, scaling } => {
            let batch = global_batch as f64;
            match scaling {
                // Multiplying first avoids rounding an inexact ratio.
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
