//! The arithmetic of the global batch, in one constructor.

use std::fmt;

use hlo::counted;

use super::train::{BatchSize, MAX_ROUNDS, Microbatches};

/// How the global batch is divided into microbatches, and these over the replicas.
///
/// With a number of microbatches on each replica,
/// `global_batch = microbatch * num_microbatches * num_batch_shards`. With microbatches of a fixed
/// size the batch is `T` of them on any number `R` of replicas: each replica runs
/// `K = ceil(T / R)`, replica `r` those from `r * K` on. An index of `T` or more is surplus: the
/// replica runs microbatch `T - 1` again, with weight 0.
///
/// ```
/// use lockstep::config::{BatchSplit, BatchSize, Microbatches};
/// let split = BatchSplit::new(BatchSize::Global(64), Microbatches::Number(2), 4)?;
/// assert_eq!(split.microbatch(), 8);
/// assert_eq!(split.to_string(), "64 = 8 microbatch * 2 num_microbatches * 4 replicas");
///
/// let split = BatchSplit::new(BatchSize::Global(24), Microbatches::Size(4), 4)?;
/// assert_eq!((split.num_microbatches(), split.num_global_microbatches()), (2, 6));
/// assert_eq!(split.efficiency(), 0.75);
/// # Ok::<(), lockstep::config::BatchError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchSplit {
    microbatch: usize,
    num_microbatches: usize,
    num_batch_shards: usize,
    num_global_microbatches: usize,
    /// `true` if the microbatch is the same on any number of replicas.
    is_microbatch_fixed: bool,
}

impl BatchSplit {
    /// Divides a batch into microbatches, and these over `num_batch_shards` replicas.
    ///
    /// # Errors
    /// If a number is 0, if the batch does not divide (the nearest that would are named), if there
    /// are more than [`MAX_ROUNDS`] microbatches of a fixed size, or if a product is too large.
    pub fn new(
        batch: BatchSize,
        microbatches: Microbatches,
        num_batch_shards: usize,
    ) -> Result<Self, BatchError> {
        match microbatches {
            Microbatches::Number(number) => Self::of_number(batch, number, num_batch_shards),
            Microbatches::Size(size) => Self::of_size(batch, size, num_batch_shards),
        }
    }

    fn of_number(
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
            let (below, above) = multiples(size, num_pieces)?;
            return Err(BatchError::Uneven {
                key,
                size,
                num_microbatches,
                num_batch_shards,
                below,
                above,
            });
        }
        let (microbatch, total) =
            (size / num_pieces, num_microbatches.checked_mul(num_batch_shards));
        let num_global_microbatches = total.ok_or(BatchError::Overflow)?;
        microbatch.checked_mul(num_global_microbatches).ok_or(BatchError::Overflow)?;
        Ok(Self {
            microbatch,
            num_microbatches,
            num_batch_shards,
            num_global_microbatches,
            is_microbatch_fixed: false,
        })
    }

    fn of_size(
        batch: BatchSize,
        microbatch: usize,
        num_batch_shards: usize,
    ) -> Result<Self, BatchError> {
        let (key, size) = match batch {
            BatchSize::Global(size) => ("global_batch", size),
            BatchSize::PerReplica(size) => ("batch_per_replica", size),
        };
        if microbatch == 0 || size == 0 || num_batch_shards == 0 {
            return Err(BatchError::Zero);
        }
        if !size.is_multiple_of(microbatch) {
            let (below, above) = multiples(size, microbatch)?;
            let divides = |number: &usize| size.is_multiple_of(*number);
            let smaller = (1..microbatch.min(size + 1)).rev().find(divides);
            return Err(BatchError::UnevenMicrobatch {
                key,
                size,
                microbatch,
                below,
                above,
                smaller,
            });
        }
        let number = size / microbatch;
        if number > MAX_ROUNDS {
            let enough = |divisor: &usize| size.is_multiple_of(*divisor);
            let least = (size.div_ceil(MAX_ROUNDS)..=size).find(enough).unwrap_or(size);
            return Err(BatchError::ManyMicrobatches { key, size, number, microbatch, least });
        }
        let (num_microbatches, total) = match batch {
            BatchSize::Global(_) => (number.div_ceil(num_batch_shards), Some(number)),
            BatchSize::PerReplica(_) => (number, number.checked_mul(num_batch_shards)),
        };
        let num_global_microbatches = total.ok_or(BatchError::Overflow)?;
        // Programs count the examples of all replicas in u32, surplus ones too.
        let examples = microbatch.checked_mul(num_microbatches);
        let examples = examples.and_then(|examples| examples.checked_mul(num_batch_shards));
        examples.filter(|n| u32::try_from(*n).is_ok()).ok_or(BatchError::Overflow)?;
        Ok(Self {
            microbatch,
            num_microbatches,
            num_batch_shards,
            num_global_microbatches,
            is_microbatch_fixed: true,
        })
    }

    /// Examples per step, over all replicas.
    pub fn global_batch(&self) -> usize {
        self.microbatch * self.num_global_microbatches
    }

    /// Examples per step on one replica, those of surplus microbatches included.
    pub fn batch_per_replica(&self) -> usize {
        self.microbatch * self.num_microbatches
    }

    /// Examples in one forward pass on one replica.
    pub fn microbatch(&self) -> usize {
        self.microbatch
    }

    /// Number of microbatches on one replica; their gradients are summed.
    pub fn num_microbatches(&self) -> usize {
        self.num_microbatches
    }

    /// Number of microbatches that the global batch is. If the replicas run more, those are
    /// surplus: they have weight 0.
    pub fn num_global_microbatches(&self) -> usize {
        self.num_global_microbatches
    }

    /// The share of what the replicas compute that counts, up to 1: `T / (K * R)`.
    pub fn efficiency(&self) -> f64 {
        let num_run = self.num_microbatches * self.num_batch_shards;
        self.num_global_microbatches as f64 / num_run as f64
    }

    /// The places in the global batch of the examples that a batch shard runs, in order. Those of
    /// surplus microbatches are those of the last microbatch again.
    pub fn places_of_shard(&self, shard: usize) -> impl Iterator<Item = usize> + use<> {
        let Self { microbatch, num_microbatches, num_global_microbatches, .. } = *self;
        let first = shard * num_microbatches;
        (first..first + num_microbatches).flat_map(move |index| {
            let first = index.min(num_global_microbatches - 1) * microbatch;
            first..first + microbatch
        })
    }

    /// The number of replicas that the batch is divided over.
    pub fn num_batch_shards(&self) -> usize {
        self.num_batch_shards
    }

    /// `true` if microbatches can be made of whole groups of neighbouring examples: several on one
    /// replica, or one on several. Microbatches of a fixed size have whole groups each.
    pub fn makes_groups_of(&self, num_examples: usize) -> bool {
        let microbatch = self.microbatch;
        num_examples > 0
            && (microbatch.is_multiple_of(num_examples)
                || (!self.is_microbatch_fixed
                    && num_examples.is_multiple_of(microbatch)
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
        if self.is_microbatch_fixed {
            let divides = |number: &usize| microbatch.is_multiple_of(*number);
            let nearest = (1..=group.min(microbatch)).rev().find(divides).unwrap_or(1);
            return Err(BatchError::FixedNormGroup { group, microbatch, nearest });
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

/// The multiples of a number on both sides of `size`, which is none.
fn multiples(size: usize, number: usize) -> Result<(Option<usize>, usize), BatchError> {
    let below = size / number * number;
    let above = below.checked_add(number).ok_or(BatchError::Overflow)?;
    Ok(((below > 0).then_some(below), above))
}

impl fmt::Display for BatchSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.efficiency() < 1.0 {
            return write!(
                f,
                "{} = {} microbatch * {} microbatches; {} run {} each, and {:.0} % of that counts",
                self.global_batch(),
                self.microbatch,
                self.num_global_microbatches,
                counted(self.num_batch_shards, "replica"),
                self.num_microbatches,
                100.0 * self.efficiency()
            );
        }
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
    /// The batch does not divide into microbatches of the size that is set.
    #[error(
        "train.{key} = {size} is not a multiple of train.microbatch = {microbatch}; the nearest \
         that would be: {}{above}{}",
        below.map(|below| format!("{below} or ")).unwrap_or_default(),
        smaller.map(|smaller| format!("; or set train.microbatch to {smaller}")).unwrap_or_default()
    )]
    UnevenMicrobatch {
        /// `global_batch` or `batch_per_replica`.
        key: &'static str,
        /// Its value.
        size: usize,
        /// Examples of a microbatch.
        microbatch: usize,
        /// The largest smaller batch that divides, if there is one.
        below: Option<usize>,
        /// The smallest larger batch that divides.
        above: usize,
        /// The largest smaller microbatch that divides this batch, if there is one.
        smaller: Option<usize>,
    },
    /// The batch is too many microbatches.
    #[error(
        "train.{key} = {size} is {number} microbatches of train.microbatch = {microbatch}, and \
         {MAX_ROUNDS} is the most; set train.microbatch to {least} or more"
    )]
    ManyMicrobatches {
        /// `global_batch` or `batch_per_replica`.
        key: &'static str,
        /// Its value.
        size: usize,
        /// How many microbatches it is.
        number: usize,
        /// Examples of each.
        microbatch: usize,
        /// The smallest microbatch that divides the batch into few enough.
        least: usize,
    },
    /// Groups of batch norm that the microbatches of a fixed size cannot be made of.
    #[error(
        "model.batch_norm_group = {group}: it must divide train.microbatch = {microbatch}, so that \
         any replica may run any microbatch; the nearest that does: {nearest}"
    )]
    FixedNormGroup {
        /// Examples that batch norm normalizes together.
        group: usize,
        /// Examples of a microbatch.
        microbatch: usize,
        /// The nearest group that fits.
        nearest: usize,
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
    #[error(
        "the examples of all replicas are too large a number to count; make the batch smaller, or \
         train.microbatch if it is set"
    )]
    Overflow,
}

#[cfg(test)]
mod tests {
    use super::Microbatches::{Number, Size};
    use super::*;

    #[test]
    fn a_batch_divides_or_the_nearest_are_named() {
        let split = BatchSplit::new(BatchSize::PerReplica(6), Number(3), 4).unwrap();
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
                BatchSplit::new(batch, Number(num_microbatches), replicas).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn microbatches_of_a_fixed_size_are_shared_by_any_number_of_replicas() {
        for num_examples in [4, 20, 48] {
            for num_batch_shards in 1..=14 {
                let batch = BatchSize::Global(num_examples);
                let split = BatchSplit::new(batch, Size(4), num_batch_shards).unwrap();
                let (each, total) = (split.num_microbatches(), split.num_global_microbatches());
                assert_eq!((split.global_batch(), total), (num_examples, num_examples / 4));
                assert_eq!(each, total.div_ceil(num_batch_shards));
                let places: Vec<_> =
                    (0..num_batch_shards).flat_map(|shard| split.places_of_shard(shard)).collect();
                assert_eq!(places.len(), num_batch_shards * split.batch_per_replica());
                let (first, rest) = places.split_at(num_examples);
                assert!(first.iter().copied().eq(0..num_examples), "{places:?}");
                let last: Vec<_> = (num_examples - 4..num_examples).collect();
                assert!(rest.chunks(4).all(|surplus| surplus == last), "{places:?}");
                let share = num_examples as f64 / places.len() as f64;
                assert!((split.efficiency() - share).abs() < 1e-15, "{split}");
            }
        }
        let split = BatchSplit::new(BatchSize::Global(24), Size(4), 4).unwrap();
        let expected = "24 = 4 microbatch * 6 microbatches; 4 replicas run 2 each, and 75 % of \
                        that counts";
        assert_eq!(split.to_string(), expected);
        let split = BatchSplit::new(BatchSize::PerReplica(8), Size(4), 3).unwrap();
        assert_eq!(split.to_string(), "24 = 4 microbatch * 2 num_microbatches * 3 replicas");
    }

    #[test]
    fn microbatches_of_a_fixed_size_divide_the_batch_or_what_would_is_named() {
        for (batch, microbatch, replicas, expected) in [
            (
                BatchSize::Global(26),
                4,
                3,
                "train.global_batch = 26 is not a multiple of train.microbatch = 4; the nearest \
                 that would be: 24 or 28; or set train.microbatch to 2",
            ),
            (BatchSize::Global(3), 4, 1, "would be: 4; or set train.microbatch to 3"),
            (BatchSize::PerReplica(10), 4, 2, "would be: 8 or 12; or set train.microbatch to 2"),
            (BatchSize::Global(1 << 24), 128, 2, "131072 microbatches"),
            (BatchSize::Global(1 << 24), 128, 2, "65536 is the most; set train.microbatch to 256"),
            (BatchSize::Global(1 << 24), 1 << 24, 1 << 9, "too large"),
            (BatchSize::Global(64), 0, 4, "at least 1"),
            (BatchSize::Global(64), 4, 0, "at least 1"),
        ] {
            let message =
                BatchSplit::new(batch, Size(microbatch), replicas).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
        let split = BatchSplit::new(BatchSize::Global(24), Size(4), 3).unwrap();
        assert_eq!([1, 2, 4].map(|group| split.check_norm_group(group)), [Ok(()), Ok(()), Ok(())]);
        for (group, expected) in [(8, "does: 4"), (3, "does: 2"), (0, "does: 1")] {
            let message = split.check_norm_group(group).unwrap_err().to_string();
            assert!(message.contains("must divide train.microbatch = 4"), "{message}");
            assert!(message.ends_with(expected), "{message}");
        }
    }

    #[test]
    fn groups_of_batch_norm_fit_or_the_nearest_are_named() {
        let split =
            |size, replicas| BatchSplit::new(BatchSize::Global(size), Number(1), replicas).unwrap();
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
