//! The arithmetic of the global batch, in one constructor.

use std::fmt;

use hlo::counted;

use super::train::BatchSize;

/// How the global batch is divided:
/// `global_batch = microbatch * num_microbatches * num_batch_shards`.
///
/// ```
/// use lockstep::config::{BatchSplit, BatchSize};
/// let split = BatchSplit::new(BatchSize::Global(64), 2, 4)?;
/// assert_eq!(split.microbatch(), 8);
/// assert_eq!(split.to_string(), "64 = 8 microbatch * 2 num_microbatches * 4 replicas");
/// # Ok::<(), lockstep::config::BatchError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSplit {
    microbatch: usize,
    num_microbatches: usize,
    num_batch_shards: usize,
}

impl BatchSplit {
    /// Divides a batch over `num_batch_shards` replicas and `num_microbatches` microbatches.
    ///
    /// # Errors
    /// If a number is 0, if the batch does not divide (the nearest that would are named), or if the
    /// product does not fit in a `usize`.
    pub fn new(
        batch: BatchSize,
        num_microbatches: usize,
        num_batch_shards: usize,
    ) -> Result<Self, BatchError> {
        let (key, size, num_pieces) = match batch {
            BatchSize::Global(size) => {
                ("global_batch", size, num_microbatches.checked_mul(num_batch_shards))
            }
            BatchSize::PerReplica(size) => ("batch_per_replica", size, Some(num_microbatches)),
        };
        let num_pieces = num_pieces.ok_or(BatchError::Overflow)?;
        if num_pieces == 0 || size == 0 || num_batch_shards == 0 {
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
                num_batch_shards,
                below,
                above,
            });
        }
        let split = Self { microbatch: size / num_pieces, num_microbatches, num_batch_shards };
        let replica = split.microbatch.checked_mul(num_microbatches).ok_or(BatchError::Overflow)?;
        replica.checked_mul(num_batch_shards).ok_or(BatchError::Overflow)?;
        Ok(split)
    }

    /// Examples per step, over all replicas.
    pub fn global_batch(&self) -> usize {
        self.batch_per_replica() * self.num_batch_shards
    }

    /// Examples per step on one replica.
    pub fn batch_per_replica(&self) -> usize {
        self.microbatch * self.num_microbatches
    }

    /// Examples in one forward pass on one replica.
    pub fn microbatch(&self) -> usize {
        self.microbatch
    }

    /// Number of microbatches; their gradients are summed.
    pub fn num_microbatches(&self) -> usize {
        self.num_microbatches
    }

    /// The number of replicas that the batch is divided over.
    pub fn num_batch_shards(&self) -> usize {
        self.num_batch_shards
    }

    /// `true` if microbatches can be made of whole groups of neighbouring examples: several on one
    /// replica, or one on several.
    pub fn makes_groups_of(&self, num_examples: usize) -> bool {
        let microbatch = self.microbatch;
        num_examples > 0
            && (microbatch.is_multiple_of(num_examples)
                || (num_examples.is_multiple_of(microbatch)
                    && self.num_batch_shards.is_multiple_of(num_examples / microbatch)))
    }

    /// Checks the groups of examples that batch norm normalizes together.
    ///
    /// # Errors
    /// Groups that microbatches cannot be made of, with the nearest ones that they can.
    pub fn check_norm_group(&self, group: usize) -> Result<(), BatchError> {
        let Self { microbatch, num_batch_shards, .. } = *self;
        if self.makes_groups_of(group) {
            return Ok(());
        }
        let most = microbatch * num_batch_shards;
        let mut below = (1..=group.saturating_sub(1).min(most)).rev();
        let mut above = group.saturating_add(1)..=most;
        Err(BatchError::NormGroup {
            group,
            microbatch,
            num_batch_shards,
            below: below.find(|group| self.makes_groups_of(*group)),
            above: above.find(|group| self.makes_groups_of(*group)),
        })
    }
}

impl fmt::Display for BatchSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} = {} microbatch * {} num_microbatches * {}",
            self.global_batch(),
            self.microbatch,
            self.num_microbatches,
            counted(self.num_batch_shards, "replica")
        )
    }
}

/// A batch that cannot be divided as configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The batch does not divide.
    #[error(
        "train.{key} = {size} does not divide over {}{}; the nearest that would: {}{above}",
        if *num_microbatches == 1 { String::new() } else { format!("{num_microbatches} \
            microbatches on ") },
        counted(*num_batch_shards, "replica"),
        below.map(|below| format!("{below} or ")).unwrap_or_default()
    )]
    Uneven {
        /// `global_batch` or `batch_per_replica`.
        key: &'static str,
        /// Its value.
        size: usize,
        /// Microbatches on each replica.
        num_microbatches: usize,
        /// Replicas that the batch is divided over.
        num_batch_shards: usize,
        /// The largest smaller batch that divides, if there is one.
        below: Option<usize>,
        /// The smallest larger batch that divides.
        above: usize,
    },
    /// Groups of batch norm that the microbatches cannot be made of.
    #[error(
        "model.batch_norm_group = {group}: groups of {} cannot be made of {microbatch} on {}{}; \
         the nearest that can: {}",
        counted(*group, "example"),
        if *num_batch_shards == 1 { "" } else { "each of " },
        counted(*num_batch_shards, "replica"),
        [below, above].into_iter().flatten().map(usize::to_string).collect::<Vec<_>>().join(" or ")
    )]
    NormGroup {
        /// Examples that batch norm normalizes together.
        group: usize,
        /// Examples in one forward pass on one replica.
        microbatch: usize,
        /// Replicas that the batch is divided over.
        num_batch_shards: usize,
        /// The largest smaller group that fits, if there is one.
        below: Option<usize>,
        /// The smallest larger group that fits, if there is one.
        above: Option<usize>,
    },
    /// A factor is 0.
    #[error("the batch, train.num_microbatches and the number of replicas must each be at least 1")]
    Zero,
    /// The product is too large.
    #[error("the global batch is too large to count; make train.batch_per_replica smaller")]
    Overflow,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_divides_or_the_nearest_are_named() {
        let split = BatchSplit::new(BatchSize::PerReplica(6), 3, 4).unwrap();
        assert_eq!(
            (split.global_batch(), split.microbatch(), split.batch_per_replica()),
            (24, 2, 6)
        );
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
                BatchSplit::new(batch, num_microbatches, replicas).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn groups_of_batch_norm_fit_or_the_nearest_are_named() {
        let split = |size, replicas| BatchSplit::new(BatchSize::Global(size), 1, replicas).unwrap();
        for group in [1, 2, 27, 54] {
            assert_eq!(split(54, 1).check_norm_group(group), Ok(()), "{group}");
        }
        for (batch, replicas, group, expected) in [
            (
                54,
                1,
                32,
                "32: groups of 32 examples cannot be made of 54 on 1 replica; the nearest that \
                 can: 27 or 54",
            ),
            (54, 1, 1, ""),
            (
                64,
                4,
                48,
                "48: groups of 48 examples cannot be made of 16 on each of 4 replicas; the nearest \
                 that can: 32 or 64",
            ),
            (6, 6, 4, "the nearest that can: 3 or 6"),
            (8, 1, 4096, "the nearest that can: 8"),
            (8, 1, 0, "the nearest that can: 1"),
        ] {
            let message = split(batch, replicas).check_norm_group(group).err();
            let message = message.map_or(String::new(), |error| error.to_string());
            assert!(message.ends_with(expected), "{message}");
        }
    }
}
