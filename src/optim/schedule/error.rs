//! Errors in a schedule's configuration.

use hlo::counted;

use crate::config::RunLengthError;

/// Why a schedule is rejected.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// A length or a boundary cannot be converted to steps.
    #[error(transparent)]
    Length(#[from] RunLengthError),
    /// The peak is negative, or not finite as an f32.
    #[error(
        "the peak learning rate is {peak:?}; set schedule.{key} so that it is a number that f32 \
         holds, 0 to 3.4e38"
    )]
    Peak {
        /// The peak.
        peak: f64,
        /// The key that determines it.
        key: &'static str,
    },
    /// The rate of a step is not finite as an f32.
    #[error(
        "the learning rate of step {step} is {rate:?}, which f32 does not hold; lower \
         schedule.{key} or schedule.{factor_key}"
    )]
    Rate {
        /// The step, from 0.
        step: u64,
        /// The rate.
        rate: f64,
        /// The key that determines the peak.
        key: &'static str,
        /// The key of the factor that multiplies the peak.
        factor_key: &'static str,
    },
    /// The warm-up is longer than the run.
    #[error(
        "the warm-up of {} is longer than the run of {total_steps}; shorten \
         schedule.warmup_{unit}, or lengthen train.steps (or train.epochs)",
        counted(*warmup_steps, "step")
    )]
    Warmup {
        /// Steps of the warm-up.
        warmup_steps: u64,
        /// Steps of the run.
        total_steps: u64,
        /// The unit that the warm-up was given in.
        unit: &'static str,
    },
    /// The warm-up is shorter than one step.
    #[error(
        "schedule.warmup_{unit} is less than one step of {}, so there would be no warm-up; make it \
         longer, or set schedule.warmup = \"none\"",
        counted(*global_batch, "example")
    )]
    NoWarmup {
        /// The unit that the warm-up was given in.
        unit: &'static str,
        /// Examples of a step.
        global_batch: usize,
    },
    /// The decay begins inside the warm-up.
    #[error(
        "the decay of {} that ends at step {end_step} begins inside the warm-up of {warmup_steps}; \
         shorten schedule.decay_{unit} or the warm-up",
        counted(*decay_steps, "step")
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
    /// The decay is shorter than one step.
    #[error(
        "schedule.decay_{unit} is less than one step of {}; make it longer", counted(*global_batch, "example")
    )]
    NoDecay {
        /// The unit that the decay was given in.
        unit: &'static str,
        /// Examples of a step.
        global_batch: usize,
    },
    /// The schedule ends inside its warm-up.
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
    /// A boundary does not come after the previous one.
    #[error(
        "schedule.{key} must increase, but step {next} follows step {previous}; boundaries that \
         are too close fall on the same step with this batch"
    )]
    BoundaryOrder {
        /// The key.
        key: &'static str,
        /// A boundary, in steps.
        previous: u64,
        /// The next one.
        next: u64,
    },
    /// A fraction of the peak is out of range.
    #[error("schedule.{key} is {value}; it must be {allowed}")]
    Fraction {
        /// The key.
        key: &'static str,
        /// Its value.
        value: f64,
        /// The values allowed.
        allowed: &'static str,
    },
}
