//! Lengths of, and places in, a run: in steps, epochs or examples.

use super::error::{KeyErrors, POSITIVE, require};

/// A length, or a position in the run, in the unit of its key.
/// [`RunLength::steps`](super::RunLength::steps) counts it in steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Span {
    /// Steps.
    Steps(u64),
    /// Epochs, which may be a fraction.
    Epochs(f64),
    /// Examples, over all replicas.
    Examples(u64),
}

impl Span {
    /// No steps.
    pub const ZERO: Self = Self::Steps(0);

    /// `true` if the number is 0.
    pub fn is_zero(self) -> bool {
        match self {
            Self::Steps(count) | Self::Examples(count) => count == 0,
            Self::Epochs(epochs) => epochs == 0.0,
        }
    }

    /// The suffix of keys in this unit.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Steps(_) => "steps",
            Self::Epochs(_) => "epochs",
            Self::Examples(_) => "examples",
        }
    }

    /// Checks that the length is above 0; its key is `prefix` with the unit.
    pub(super) fn check(self, prefix: &str, errors: &mut KeyErrors) {
        let (key, count) = (format!("{prefix}_{}", self.unit()), self.count());
        errors.check(require(count.is_finite() && count > 0.0, &key, count, POSITIVE));
    }

    /// The one that is set of three keys.
    pub(super) fn one_of(
        steps: Option<u64>,
        epochs: Option<f64>,
        examples: Option<u64>,
    ) -> Option<Self> {
        steps.map(Self::Steps).or(epochs.map(Self::Epochs)).or(examples.map(Self::Examples))
    }

    /// The one that is set of three lists; an empty list if none is.
    pub(super) fn all_of(
        steps: &Option<Vec<u64>>,
        epochs: &Option<Vec<f64>>,
        examples: &Option<Vec<u64>>,
    ) -> Vec<Self> {
        let steps = steps.iter().flatten().copied().map(Self::Steps);
        let epochs = epochs.iter().flatten().copied().map(Self::Epochs);
        steps.chain(epochs).chain(examples.iter().flatten().copied().map(Self::Examples)).collect()
    }

    /// The number, whatever its unit.
    pub(super) fn count(self) -> f64 {
        match self {
            Self::Steps(count) | Self::Examples(count) => count as f64,
            Self::Epochs(epochs) => epochs,
        }
    }
}
