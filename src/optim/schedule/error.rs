//! Schedules that cannot be followed.

use crate::config::RunLengthError;

/// A schedule that cannot be followed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// A length or a place cannot be counted in steps.
    #[error(transparent)]
    Length(#[from] RunLengthError),
    /// The highest rate is no rate.
    #[error(
        "the peak learning rate is {peak:?}; set schedule.{key} so that it is a number that f32 holds, 0 to 3.4e38"
    )]
    Peak {
        /// The rate.
        peak: f64,
        /// The key that it follows from.
        key: &'static str,
    },
    /// A rate that is infinite in the step.
    #[error(
        "the learning rate of step {step} is {rate:?}, which f32 does not hold; lower schedule.{key} or \
         schedule.{factor_key}"
    )]
    Rate {
        /// The step, from 0.
        step: u64,
        /// The rate.
        rate: f64,
        /// The key that the peak follows from.
        key: &'static str,
        /// The key of what it is multiplied with.
        factor_key: &'static str,
    },
    /// The warm-up does not end.
    #[error(
        "the warm-up of {warmup_steps} steps is longer than the run of {total_steps}; shorten \
         schedule.warmup_{unit}, or lengthen train.steps (or train.epochs)"
    )]
    Warmup {
        /// Steps of the warm-up.
        warmup_steps: u64,
        /// Steps of the run.
        total_steps: u64,
        /// The unit that the warm-up was given in.
        unit: &'static str,
    },
    /// A warm-up was asked for and there would be none.
    #[error(
        "schedule.warmup_{unit} is less than one step of {global_batch} examples, so there would be no \
         warm-up; make it longer, or set schedule.warmup = \"none\""
    )]
    NoWarmup {
        /// The unit that the warm-up was given in.
        unit: &'static str,
        /// Examples of a step.
        global_batch: usize,
    },
    /// The rate would have to fall before it has risen.
    #[error(
        "the decay of {decay_steps} steps that ends at step {end_step} begins inside the warm-up of \
         {warmup_steps}; shorten schedule.decay_{unit} or the warm-up"
    )]
    Decay {
        /// Steps of the decay.
        decay_steps: u64,
        /// Step at which it ends.
        end_step: u64,
        /// Steps of the warm-up.
        warmup_steps: u64,
        /// The unit that the decay was given in.
        unit: &'static str,
    },
    /// A decay was asked for and there would be none.
    #[error(
        "schedule.decay_{unit} is less than one step of {global_batch} examples; make it longer"
    )]
    NoDecay {
        /// The unit that the decay was given in.
        unit: &'static str,
        /// Examples of a step.
        global_batch: usize,
    },
    /// The schedule ends before its warm-up.
    #[error(
        "the schedule ends at step {end_step}, inside the warm-up of {warmup_steps} steps; raise \
         schedule.total_{unit} or shorten the warm-up"
    )]
    Total {
        /// Step at which the schedule ends.
        end_step: u64,
        /// Steps of the warm-up.
        warmup_steps: u64,
        /// The unit that the end was given in.
        unit: &'static str,
    },
    /// A boundary is not behind the one before it.
    #[error(
        "schedule.{key} must rise, but step {next} follows step {previous}; places that close fall on \
         the same step of this batch"
    )]
    BoundaryOrder {
        /// The key.
        key: &'static str,
        /// A boundary, in steps.
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
