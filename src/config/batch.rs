//! The arithmetic of the global batch and of the run's length, each in one constructor.

use std::fmt;

use super::train::{BatchSize, Length};

/// How the global batch falls into pieces:
/// `global_batch = microbatch * num_microbatches * data-parallel size`.
///
/// ```
/// use lockstep::config::{BatchPlan, BatchSize};
/// let plan = BatchPlan::new(BatchSize::Global(64), 2, 4)?;
/// assert_eq!(plan.microbatch(), 8);
/// assert_eq!(plan.to_string(), "64 = 8 microbatch * 2 num_microbatches * 4 replicas");
/// # Ok::<(), lockstep::config::BatchError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPlan {
    microbatch: usize,
    num_microbatches: usize,
    data_parallel_size: usize,
}

impl BatchPlan {
    /// Cuts a batch over `data_parallel_size` replicas and `num_microbatches` microbatches.
    ///
    /// # Errors
    /// If a number is 0, if the batch does not divide (the nearest that would are named), or if the
    /// product does not fit in a `usize`.
    pub fn new(
        batch: BatchSize,
        num_microbatches: usize,
        data_parallel_size: usize,
    ) -> Result<Self, BatchError> {
        let (key, size, num_pieces) = match batch {
            BatchSize::Global(size) => {
                ("global_batch", size, num_microbatches.checked_mul(data_parallel_size))
            }
            BatchSize::PerReplica(size) => ("batch_per_replica", size, Some(num_microbatches)),
        };
        let num_pieces = num_pieces.ok_or(BatchError::Overflow)?;
        if num_pieces == 0 || size == 0 || data_parallel_size == 0 {
            return Err(BatchError::Zero);
        }
        if !size.is_multiple_of(num_pieces) {
            let below = size / num_pieces * num_pieces;
            let above = below.checked_add(num_pieces).ok_or(BatchError::Overflow)?;
            let below = (below > 0).then_some(below);
            return Err(BatchError::Uneven {
                key,
                size,
                num_microbatches,
                data_parallel_size,
                below,
                above,
            });
        }
        let plan = Self { microbatch: size / num_pieces, num_microbatches, data_parallel_size };
        let replica = plan.microbatch.checked_mul(num_microbatches).ok_or(BatchError::Overflow)?;
        replica.checked_mul(data_parallel_size).ok_or(BatchError::Overflow)?;
        Ok(plan)
    }

    /// Examples per step, over all replicas.
    pub fn global_batch(&self) -> usize {
        self.batch_per_replica() * self.data_parallel_size
    }

    /// Examples per step on one replica.
    pub fn batch_per_replica(&self) -> usize {
        self.microbatch * self.num_microbatches
    }

    /// Examples that go through the model at once on one replica.
    pub fn microbatch(&self) -> usize {
        self.microbatch
    }

    /// Microbatches whose gradients are summed before the reduction.
    pub fn num_microbatches(&self) -> usize {
        self.num_microbatches
    }

    /// The number of replicas that the batch is cut over.
    pub fn data_parallel_size(&self) -> usize {
        self.data_parallel_size
    }
}

impl fmt::Display for BatchPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} = {} microbatch * {} num_microbatches * {} replicas",
            self.global_batch(),
            self.microbatch,
            self.num_microbatches,
            self.data_parallel_size
        )
    }
}

/// A batch that cannot be cut as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// It does not divide.
    #[error(
        "train.{key} = {size} does not divide over {}{data_parallel_size} replicas; \
         the nearest that would: {}{above}",
        if *num_microbatches == 1 { String::new() } else { format!("{num_microbatches} microbatches on ") },
        below.map(|below| format!("{below} or ")).unwrap_or_default()
    )]
    Uneven {
        /// `global_batch` or `batch_per_replica`.
        key: &'static str,
        /// Its value.
        size: usize,
        /// Microbatches on each replica.
        num_microbatches: usize,
        /// Replicas that the batch is cut over.
        data_parallel_size: usize,
        /// The largest smaller batch that divides, if there is one.
        below: Option<usize>,
        /// The smallest larger batch that divides.
        above: usize,
    },
    /// A factor is 0.
    #[error("the batch, train.num_microbatches and the number of replicas must each be at least 1")]
    Zero,
    /// The product is too large.
    #[error("the global batch is too large to count; make train.batch_per_replica smaller")]
    Overflow,
}

/// How long a run is, in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLength {
    total_steps: u64,
    steps_per_epoch: u64,
}

impl RunLength {
    /// Resolves a length against the data: an epoch has `num_examples / global_batch` steps, and what
    /// remains of it is dropped.
    ///
    /// # Errors
    /// If an epoch has not one whole batch, or the steps cannot be counted.
    pub fn new(
        length: Length,
        num_examples: usize,
        global_batch: usize,
    ) -> Result<Self, RunLengthError> {
        let steps_per_epoch = num_examples.checked_div(global_batch).unwrap_or(0) as u64;
        if steps_per_epoch == 0 {
            return Err(RunLengthError::BatchExceedsData { num_examples, global_batch });
        }
        let total_steps = match length {
            Length::Steps(steps) => Some(steps),
            Length::Epochs(epochs) => epochs.checked_mul(steps_per_epoch),
        };
        let total_steps = total_steps.ok_or(RunLengthError::Overflow)?;
        Ok(Self { total_steps, steps_per_epoch })
    }

    /// Steps of the whole run.
    pub fn total_steps(&self) -> u64 {
        self.total_steps
    }

    /// Steps of one epoch, at least 1.
    pub fn steps_per_epoch(&self) -> u64 {
        self.steps_per_epoch
    }
}

/// A run that cannot be counted in steps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunLengthError {
    /// Not one whole batch in an epoch.
    #[error(
        "the global batch of {global_batch} is larger than the {num_examples} training examples; \
         set train.global_batch to at most {num_examples}"
    )]
    BatchExceedsData {
        /// Training examples there are.
        num_examples: usize,
        /// Examples per step.
        global_batch: usize,
    },
    /// More steps than can be counted.
    #[error("train.epochs is too large: the steps cannot be counted")]
    Overflow,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_divides_or_the_nearest_are_named() {
        let plan = BatchPlan::new(BatchSize::PerReplica(6), 3, 4).unwrap();
        assert_eq!((plan.global_batch(), plan.microbatch(), plan.batch_per_replica()), (24, 2, 6));
        let cases = [
            (BatchSize::Global(66), 1, 4, "over 4 replicas; the nearest that would: 64 or 68"),
            (BatchSize::Global(3), 1, 4, "would: 4"),
            (
                BatchSize::Global(64),
                3,
                4,
                "over 3 microbatches on 4 replicas; the nearest that would: 60",
            ),
            (BatchSize::PerReplica(10), 4, 2, "8 or 12"),
            (BatchSize::Global(64), 0, 4, "at least 1"),
            (BatchSize::Global(64), 1, 0, "at least 1"),
            (BatchSize::PerReplica(usize::MAX), 1, 2, "too large"),
            (BatchSize::Global(usize::MAX), 2, 1, "too large"),
        ];
        for (batch, num_microbatches, replicas, expected) in cases {
            let message =
                BatchPlan::new(batch, num_microbatches, replicas).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn an_epoch_drops_its_remainder() {
        let run = RunLength::new(Length::Epochs(3), 1437, 64).unwrap();
        assert_eq!((run.total_steps(), run.steps_per_epoch()), (66, 22));
        assert_eq!(RunLength::new(Length::Steps(7), 1437, 64).unwrap().total_steps(), 7);
        let error = RunLength::new(Length::Steps(7), 60, 64).unwrap_err();
        assert!(error.to_string().contains("at most 60"), "{error}");
        RunLength::new(Length::Epochs(u64::MAX), 128, 64).unwrap_err();
    }
}
