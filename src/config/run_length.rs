//! The arithmetic of a run's length, in one constructor.

use super::span::Span;
use super::train::{Length, MAX_STEPS};

/// How long a run is, in steps.
///
/// ```
/// use lockstep::config::{Length, RunLength, Span};
/// let run = RunLength::new(Length::Epochs(90), Some(1_281_167), 8192)?;
/// assert_eq!((run.steps_per_epoch(), run.total_steps()), (Some(156), 14_040));
/// assert_eq!(run.steps(Span::Epochs(5.0), "schedule.warmup_epochs")?, 780);
/// # Ok::<(), lockstep::config::RunLengthError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLength {
    total_steps: u64,
    steps_per_epoch: Option<u64>,
    global_batch: usize,
}

impl RunLength {
    /// Resolves a length against the data: an epoch has `num_examples / global_batch` steps, and
    /// what remains of it is dropped. `num_examples` is `None` if it is not known: then nothing may
    /// be counted in epochs.
    ///
    /// # Errors
    /// If an epoch does not have one whole batch, or there are more than [`MAX_STEPS`] steps.
    pub fn new(
        length: Length,
        num_examples: Option<usize>,
        global_batch: usize,
    ) -> Result<Self, RunLengthError> {
        let steps_per_epoch = num_examples.map(|num_examples| {
            let steps = num_examples.checked_div(global_batch).unwrap_or(0) as u64;
            let too_few = RunLengthError::BatchExceedsData { num_examples, global_batch };
            if steps == 0 { Err(too_few) } else { Ok(steps) }
        });
        let mut run =
            Self { total_steps: 0, steps_per_epoch: steps_per_epoch.transpose()?, global_batch };
        run.total_steps = match length {
            Length::Steps(steps) => steps,
            Length::Epochs(epochs) => epochs.saturating_mul(run.epoch("train.epochs")?),
            Length::Examples(examples) => match examples.checked_div(global_batch as u64) {
                Some(steps) if steps > 0 => steps,
                _ => return Err(RunLengthError::LessThanABatch { examples, global_batch }),
            },
        };
        if run.total_steps > MAX_STEPS {
            return Err(RunLengthError::TooLong { total_steps: run.total_steps });
        }
        Ok(run)
    }

    /// Steps of the whole run.
    pub fn total_steps(&self) -> u64 {
        self.total_steps
    }

    /// Steps of one epoch, at least 1, where the number of examples is known.
    pub fn steps_per_epoch(&self) -> Option<u64> {
        self.steps_per_epoch
    }

    /// Examples of one step, over all replicas.
    pub fn global_batch(&self) -> usize {
        self.global_batch
    }

    /// A span in steps, rounded to the nearest; saturates. `key` is the key that set it, for the
    /// error.
    ///
    /// # Errors
    /// Epochs, if the number of examples is not known.
    pub fn steps(&self, span: Span, key: &str) -> Result<u64, RunLengthError> {
        Ok(match span {
            Span::Steps(steps) => steps,
            // The conversion saturates, and NaN becomes 0.
            Span::Epochs(epochs) => (epochs * self.epoch(key)? as f64).round() as u64,
            Span::Examples(examples) => {
                let batch = (self.global_batch as u64).max(1);
                let more = u64::from(examples % batch >= batch.div_ceil(2));
                examples / batch + more
            }
        })
    }

    fn epoch(&self, key: &str) -> Result<u64, RunLengthError> {
        let unknown = || RunLengthError::UnknownExamples { key: key.to_owned() };
        self.steps_per_epoch.ok_or_else(unknown)
    }
}

/// A run that cannot be counted in steps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunLengthError {
    /// An epoch has less than one batch.
    #[error(
        "the global batch of {global_batch} is larger than the {num_examples} training examples; \
         it may have at most {num_examples}: lower train.global_batch, or train.batch_per_replica \
         or the number of replicas"
    )]
    BatchExceedsData {
        /// Number of training examples.
        num_examples: usize,
        /// Examples per step.
        global_batch: usize,
    },
    /// The run has less than one batch.
    #[error(
        "train.examples = {examples} is less than one global batch of {global_batch}; make the run \
         longer or the batch smaller"
    )]
    LessThanABatch {
        /// Examples of the run.
        examples: u64,
        /// Examples per step.
        global_batch: usize,
    },
    /// Epochs of unknown length.
    #[error(
        "{key} counts in epochs, but the number of training examples is not known; set \
         data.num_examples, or count in steps or examples"
    )]
    UnknownExamples {
        /// The key.
        key: String,
    },
    /// More than [`MAX_STEPS`] steps.
    #[error(
        "the run has {total_steps} steps, but may have at most {MAX_STEPS}; lower train.epochs or \
         train.examples"
    )]
    TooLong {
        /// Its steps.
        total_steps: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_drops_its_remainder() {
        let run = RunLength::new(Length::Epochs(3), Some(1437), 64).unwrap();
        assert_eq!((run.total_steps(), run.steps_per_epoch()), (66, Some(22)));
        // 631.2 steps, as the reference of the keys says.
        let run = RunLength::new(Length::Epochs(3), Some(67_349), 32).unwrap();
        assert_eq!((run.total_steps(), run.steps_per_epoch()), (6312, Some(2104)));
        assert_eq!(run.steps(Span::Epochs(0.3), "schedule.warmup_epochs"), Ok(631));
        assert_eq!(run.steps(Span::Epochs(0.25 / 2104.0 * 6.0), "schedule.warmup_epochs"), Ok(2));
        assert_eq!(RunLength::new(Length::Steps(7), Some(1437), 64).unwrap().total_steps(), 7);
        let error = RunLength::new(Length::Steps(7), Some(60), 64).unwrap_err();
        assert!(error.to_string().contains("at most 60"), "{error}");
        for (length, batch) in [(Length::Epochs(u64::MAX), 64), (Length::Examples(1 << 40), 1)] {
            let error = RunLength::new(length, Some(128), batch).unwrap_err().to_string();
            assert!(error.contains("at most 100000000; lower train.epochs"), "{error}");
        }
    }

    #[test]
    fn without_the_number_of_examples_steps_and_examples_can_still_be_counted() {
        let run = RunLength::new(Length::Examples(1000), None, 64).unwrap();
        assert_eq!((run.total_steps(), run.steps_per_epoch()), (15, None));
        assert_eq!(run.steps(Span::Examples(95), "a"), Ok(1));
        assert_eq!(run.steps(Span::Examples(96), "a"), Ok(2));
        assert_eq!(run.steps(Span::Examples(u64::MAX), "a"), Ok(1 << 58));
        let error = run.steps(Span::Epochs(1.0), "schedule.warmup_epochs").unwrap_err();
        assert!(error.to_string().contains("schedule.warmup_epochs counts in epochs"), "{error}");
        assert!(error.to_string().contains("set data.num_examples"), "{error}");
        RunLength::new(Length::Epochs(1), None, 64).unwrap_err();
        RunLength::new(Length::Examples(63), None, 64).unwrap_err();
    }
}
