//! What can be wrong with a configuration, said so that the reader knows what to change.

use std::fmt::{self, Display};
use std::io;
use std::path::PathBuf;

use hlo::DType;
use serde::de::{self, Expected, Unexpected};

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is not TOML.
    #[error("{} is not valid TOML: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What the parser says, with the line.
        source: Box<toml::de::Error>,
    },
    /// A `--set` argument that is not `section.key=value`.
    #[error("--set {argument}: {problem}")]
    Set {
        /// The argument as given.
        argument: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A key is wrong, missing or unknown.
    #[error("{place}: {key}: {problem}")]
    Key {
        /// The file, or the `--set` argument that the value came from.
        place: String,
        /// `section.key`.
        key: String,
        /// What is wrong with it.
        problem: Problem,
    },
}

/// What is wrong with one key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// No such key.
    #[error("unknown key{}; known here: {}", suggestion(nearest), known.join(", "))]
    Unknown {
        /// The known key that is spelled most like it.
        nearest: Option<String>,
        /// All keys of the section, for the chosen `name` or `source`.
        known: Vec<&'static str>,
    },
    /// A word that is not among the choices.
    #[error("found {found:?}{}; allowed: {}", suggestion(nearest), quoted(allowed))]
    Choice {
        /// The word.
        found: String,
        /// The choice that is spelled most like it.
        nearest: Option<String>,
        /// Every choice.
        allowed: Vec<&'static str>,
    },
    /// A value of the wrong type or out of range.
    #[error("found {found}; allowed: {allowed}")]
    Value {
        /// The value.
        found: String,
        /// What would do.
        allowed: String,
    },
    /// A key that must be there is not.
    #[error("missing; allowed: {allowed}")]
    Missing {
        /// What would do.
        allowed: String,
    },
    /// Two keys that say the same thing in two ways.
    #[error("cannot be combined with {other}; keep one of the two")]
    Exclusive {
        /// The other key.
        other: String,
    },
    /// Values that do not fit together.
    #[error("{0}")]
    Inconsistent(String),
}

/// A problem with a key of one section; the section and the place are added by the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyError {
    pub key: String,
    pub problem: Problem,
}

impl KeyError {
    pub fn new(key: impl Into<String>, problem: Problem) -> Self {
        Self { key: key.into(), problem }
    }

    pub fn missing(key: &str, allowed: &str) -> Self {
        Self::new(key, Problem::Missing { allowed: allowed.to_owned() })
    }

    pub fn choice(key: &str, found: &str, allowed: &[&'static str]) -> Self {
        let (nearest, allowed) = (nearest(found, allowed), allowed.to_vec());
        Self::new(key, Problem::Choice { found: found.to_owned(), nearest, allowed })
    }

    pub fn unknown(key: &str, known: Vec<&'static str>) -> Self {
        let nearest = nearest(key, &known);
        Self::new(key, Problem::Unknown { nearest, known })
    }

    /// The same problem, `outer` levels up: `outer.key`.
    pub fn within(mut self, outer: &str) -> Self {
        self.key =
            if self.key.is_empty() { outer.to_owned() } else { format!("{outer}.{}", self.key) };
        self
    }
}

/// `Ok` if `holds`, else an error that shows the value and what is allowed.
pub(super) fn require(
    holds: bool,
    key: &str,
    found: impl Display,
    allowed: &str,
) -> Result<(), KeyError> {
    if holds {
        return Ok(());
    }
    let (found, allowed) = (found.to_string(), allowed.to_owned());
    Err(KeyError::new(key, Problem::Value { found, allowed }))
}

/// What a rate, or a factor of it, may be.
pub(super) const POSITIVE: &str = "a finite number above 0";

/// [`require`] that a number is [`POSITIVE`].
pub(super) fn require_positive(key: &str, value: f64) -> Result<(), KeyError> {
    require(value.is_finite() && value > 0.0, key, value, POSITIVE)
}

/// [`require`] that a number above 0 is neither 0 nor infinite in `dtype`. Devices take numbers below the least
/// normal one for 0.
pub(super) fn require_positive_in(dtype: DType, key: &str, value: f64) -> Result<(), KeyError> {
    require_positive(key, value)?;
    let (least, greatest) = range(dtype);
    let allowed =
        format!("a number above 0, from {least:.1e} to {greatest:.1e}, which {dtype} holds");
    require((least..=greatest).contains(&value), key, format!("{value:?}"), &allowed)
}

/// [`require`] that a number from 0 on is not infinite in `dtype`.
pub(super) fn require_not_negative_in(dtype: DType, key: &str, value: f64) -> Result<(), KeyError> {
    let (_, greatest) = range(dtype);
    let allowed = format!("a number from 0 to {greatest:.1e}, which {dtype} holds");
    require((0.0..=greatest).contains(&value), key, format!("{value:?}"), &allowed)
}

/// The least normal number and the greatest, of a dtype that parameters have.
fn range(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F64 => (f64::MIN_POSITIVE, f64::MAX),
        _ => (f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX)),
    }
}

/// The candidate spelled most like `word`, if any is near enough to be meant. Jaro-Winkler finds words
/// that begin alike (`batch_size`), Damerau-Levenshtein swapped letters in short ones (`mpl`).
pub(super) fn nearest(word: &str, candidates: &[&'static str]) -> Option<String> {
    candidates
        .iter()
        .map(|candidate| {
            let prefix = strsim::jaro_winkler(word, candidate);
            let edits = strsim::normalized_damerau_levenshtein(word, candidate);
            (prefix.max(edits), *candidate)
        })
        .filter(|(similarity, _)| *similarity > 0.65)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate.to_owned())
}

fn suggestion(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|word| format!(", did you mean {word:?}?")).unwrap_or_default()
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ")
}

impl Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.problem)
    }
}

impl std::error::Error for KeyError {}

/// serde reports through these; the key is added where the value was taken from its table.
impl de::Error for KeyError {
    fn custom<T: Display>(message: T) -> Self {
        Self::new("", Problem::Inconsistent(message.to_string()))
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let (found, allowed) = (found.to_string(), in_words(&expected.to_string()));
        Self::new("", Problem::Value { found, allowed })
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }

    fn unknown_variant(variant: &str, allowed: &'static [&'static str]) -> Self {
        Self::choice("", variant, allowed)
    }

    fn missing_field(field: &'static str) -> Self {
        Self::missing(field, "a value, for it has no default")
    }
}

/// serde names Rust types; a configuration has numbers and lists.
fn in_words(expected: &str) -> String {
    match expected {
        "usize" | "u64" | "u32" => "a whole number, 0 or more",
        "f64" => "a number",
        "a boolean" | "bool" => "true or false",
        "a sequence" => "a list",
        "path string" => "a path, as a string",
        other => other,
    }
    .to_owned()
}
