//! What a data set must offer: examples by id.

use hlo::DType;

use super::{Error, Skipped};

/// One part of every example: an image, a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name under which batches carry it: `x` for the input, `y` for the label.
    pub name: &'static str,
    /// Element type.
    pub dtype: DType,
    /// Dims of one example, without the batch.
    pub dims: Vec<usize>,
}

impl Field {
    /// Bytes of one example.
    pub fn num_bytes(&self) -> usize {
        self.dims.iter().product::<usize>() * self.dtype.size_bytes()
    }
}

/// Examples by id, 0 to [`Self::num_examples`]. What is read depends on the id and the epoch only, so that
/// any process may read any example, in any order and again.
pub trait Source: Send + Sync {
    /// Number of examples.
    fn num_examples(&self) -> u64;

    /// Number of classes that the field `y` counts in.
    fn num_classes(&self) -> usize;

    /// The fields of every example.
    fn fields(&self) -> &[Field];

    /// Writes one example: `out` has a slice for each field, in order, of [`Field::num_bytes`] bytes,
    /// elements row-major in the host's byte order. One call for all fields, so that what is decoded
    /// together is decoded once. `epoch` keys what is changed at random for training; without it the
    /// example is read as it is, for evaluation.
    ///
    /// # Errors
    /// If there is no such example, or it cannot be read.
    fn read(&self, example: u64, epoch: Option<u64>, out: &mut [&mut [u8]]) -> Result<(), Error>;

    /// Does reading an example take so long that several threads should share a batch?
    fn is_costly(&self) -> bool {
        false
    }

    /// Where examples that cannot be decoded are noted, if the run is to go on without them.
    fn skipped(&self) -> Option<&Skipped> {
        None
    }
}

/// The id as an index, if there is such an example.
pub(super) fn checked_index(example: u64, num_examples: u64) -> Result<usize, Error> {
    usize::try_from(example)
        .ok()
        .filter(|_| example < num_examples)
        .ok_or(Error::NoSuchExample { example, num_examples })
}
