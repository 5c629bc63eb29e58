//! The trait of data sets: examples by id.

use hlo::DType;

use super::{Error, Skipped};
use crate::config::DataConfig;

/// A part of every example, such as an image or a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name in batches: `x` for the input, `y` for the label.
    pub name: &'static str,
    /// Element type.
    pub dtype: DType,
    /// Dims of one example, without a batch dim.
    pub dims: Vec<usize>,
}

impl Field {
    /// Bytes of this field in one example.
    pub fn num_bytes(&self) -> usize {
        self.dims.iter().product::<usize>() * self.dtype.size_bytes()
    }
}

/// What the label `y` of an example is.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum LabelKind {
    /// One class, or one for each position: integers.
    #[default]
    Class,
    /// Any number of labels: f32 `[num_outputs]`, 1 for those that it has, 0 for the others.
    Labels,
    /// Values: f32 `[num_outputs]`, each scaled as is said here.
    Values(Vec<LabelScale>),
}

/// How a value of a label is scaled: field `y` has `(value - mean) / deviation`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LabelScale {
    /// What is subtracted.
    pub mean: f64,
    /// What divides the rest; above 0.
    pub deviation: f64,
}

impl LabelScale {
    /// Values as they are.
    pub const NONE: Self = Self { mean: 0.0, deviation: 1.0 };
}

/// Examples with the ids 0 to [`Self::num_examples`] - 1. What is read depends on id and epoch
/// only, so that any process can read any example in any order, and repeatedly.
pub trait Source: Send + Sync {
    /// Number of examples.
    fn num_examples(&self) -> u64;

    /// Number of classes, which field `y` is below, or of the values or labels that it has.
    fn num_outputs(&self) -> usize;

    /// What field `y` is.
    fn label_kind(&self) -> LabelKind {
        LabelKind::Class
    }

    /// Number of examples of each class, if they are counted.
    fn class_counts(&self) -> Option<Vec<u64>> {
        None
    }

    /// The names of the classes, if they have some.
    fn labels(&self) -> &[String] {
        &[]
    }

    /// One more than the highest id of a token, if examples are tokens and their labels are not.
    fn vocab_size(&self) -> Option<usize> {
        None
    }

    /// Writes what the training examples teach, such as the names of the classes, into the
    /// configuration that they were read by, so that other examples are read alike.
    fn write_learned(&self, _config: &mut DataConfig) {}

    /// The fields of every example.
    fn fields(&self) -> &[Field];

    /// The same fields with smaller dims, ascending, for batches of examples that all fit in them.
    /// Empty if all batches have the same dims.
    fn smaller_fields(&self) -> &[Vec<Field>] {
        &[]
    }

    /// The size class of an example: the index in [`Self::smaller_fields`] of the first that it
    /// fits in; their number if it fits in none.
    fn size_class_of(&self, _example: u64) -> usize {
        self.smaller_fields().len()
    }

    /// The fields of batches of a size class: of [`Self::smaller_fields`], or [`Self::fields`].
    fn fields_of_size_class(&self, size_class: usize) -> &[Field] {
        self.smaller_fields().get(size_class).map_or(self.fields(), |fields| fields)
    }

    /// Writes one example. `out` has one slice of [`Field::num_bytes`] bytes per field, in order,
    /// of a size that the example fits in; elements are row-major and in the host's byte order.
    /// With an `epoch` (training) the example may be augmented, at random but determined by the
    /// epoch; without one (evaluation) it is not.
    ///
    /// # Errors
    /// If there is no such example, or it cannot be read.
    fn read(&self, example: u64, epoch: Option<u64>, out: &mut [&mut [u8]]) -> Result<(), Error>;

    /// Finds what is wrong with examples that would otherwise be read hours later: what takes
    /// longer than opening the files, but no longer than reading them once. `tell` gets lines for
    /// the user: what takes long, and, after `warning: `, what is doubtful. Told and checked once,
    /// however often this is called.
    ///
    /// # Errors
    /// What is wrong.
    fn check(&self, _tell: &(dyn Fn(&str) + Sync)) -> Result<(), Error> {
        Ok(())
    }

    /// A hash of the examples, by which a run that is continued recognizes its data: equal for the
    /// same examples at any path and on any machine, different if they differ. By default there is
    /// none, and only the number of examples is compared.
    ///
    /// # Errors
    /// What cannot be read.
    fn fingerprint(&self) -> Result<Option<u128>, Error> {
        Ok(None)
    }

    /// `true` if reading an example is slow enough that several threads should share a batch.
    fn is_costly(&self) -> bool {
        false
    }

    /// Where broken examples are recorded, if the run is to go on without them.
    fn skipped(&self) -> Option<&Skipped> {
        None
    }
}

/// Converts an id to an index.
///
/// # Errors
/// If there is no such example.
pub(super) fn checked_index(example: u64, num_examples: u64) -> Result<usize, Error> {
    usize::try_from(example)
        .ok()
        .filter(|_| example < num_examples)
        .ok_or(Error::NoSuchExample { example, num_examples })
}
