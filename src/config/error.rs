//! Errors in a configuration, which say what to change.

use std::fmt::{self, Display};
use std::io;
use std::path::PathBuf;

use hlo::DType;
use serde::de::{self, Expected, Unexpected};

use super::UNSET;
use super::shorten::shorten;

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
    /// Everything that is wrong with the file and the arguments; at least one thing.
    #[error("{}", listed(.0))]
    Invalid(Vec<Complaint>),
}

/// One thing that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// Where it was said.
    pub place: Place,
    /// `section.key`; empty if the problem is not with a key.
    pub key: String,
    /// The problem.
    pub problem: Problem,
}

/// Where a value comes from. Places of the file come first, in its order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The file.
    File {
        /// Its path.
        path: PathBuf,
        /// The line, from 1, if it is known.
        line: Option<usize>,
    },
    /// A `--set` or `--unset` argument.
    Set {
        /// Index of the argument, from 0.
        index: usize,
        /// As given.
        argument: String,
    },
}

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line: Some(line) } => write!(f, "{}:{line}", path.display()),
            Self::File { path, line: None } => path.display().fmt(f),
            Self::Set { argument, .. } if argument.starts_with(UNSET) => {
                f.write_str(&shorten(argument))
            }
            Self::Set { argument, .. } => write!(f, "--set {}", shorten(argument)),
        }
    }
}

impl Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, key, problem } = self;
        match key.is_empty() {
            true => write!(f, "{place}: {problem}"),
            false => write!(f, "{place}: {}: {problem}", shorten(key)),
        }
    }
}

/// Number of complaints that are listed; a file of another program has one for each of its keys.
const MAX_LISTED: usize = 20;

/// One complaint on the same line, several below each other.
fn listed(complaints: &[Complaint]) -> String {
    if let [complaint] = complaints {
        return complaint.to_string();
    }
    let mut text = format!("{} errors in the configuration:", complaints.len());
    for complaint in complaints.iter().take(MAX_LISTED) {
        text += &format!("\n  {complaint}");
    }
    if complaints.len() > MAX_LISTED {
        text += &format!("\n  and {} more", complaints.len() - MAX_LISTED);
    }
    text
}

/// The problem with one key.
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
    /// A word that is not one of the choices.
    #[error("found {:?}{}; allowed: {}", shorten(found), suggestion(nearest), quoted(allowed))]
    Choice {
        /// The word.
        found: String,
        /// The choice that is spelled most like it.
        nearest: Option<String>,
        /// Every choice.
        allowed: Vec<&'static str>,
    },
    /// A value of the wrong type or out of range.
    #[error("found {}; allowed: {allowed}", shorten(found))]
    Value {
        /// The value.
        found: String,
        /// The allowed values.
        allowed: String,
    },
    /// A required key is missing.
    #[error("missing; allowed: {allowed}")]
    Missing {
        /// The allowed values.
        allowed: String,
    },
    /// Two keys that exclude each other.
    #[error(
        "cannot be combined with {other}; keep one of the two (--unset takes a key of the file \
         back)"
    )]
    Exclusive {
        /// The other key.
        other: String,
    },
    /// Values that do not fit together.
    #[error("{0}")]
    Inconsistent(String),
    /// A text that is not TOML.
    #[error("not valid TOML: {}", shorten(.0))]
    Toml(String),
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

/// The errors of a section, or of all sections.
///
/// Each key is reported once: reading continues with a default or a substitute for a wrong value.
/// Errors about a substitute would be meaningless, so a check that involves several keys asks
/// [`Self::none_of`] first.
#[derive(Debug, Default)]
pub(super) struct KeyErrors(Vec<KeyError>);

impl KeyErrors {
    pub fn push(&mut self, error: KeyError) {
        let is_known = self.0.iter().any(|known| known.key == error.key);
        let is_there =
            matches!(error.problem, Problem::Missing { .. }) && self.is_misspelled(&error.key);
        if !is_known && !is_there {
            self.0.push(error);
        }
    }

    /// `true` if there is an unknown key with nearly the same spelling.
    pub fn is_misspelled(&self, key: &str) -> bool {
        let nearest = |error: &KeyError| match &error.problem {
            Problem::Unknown { nearest, .. } => nearest.as_deref() == Some(key),
            _ => false,
        };
        self.0.iter().any(nearest)
    }

    pub fn check(&mut self, result: Result<(), KeyError>) {
        result.unwrap_or_else(|error| self.push(error));
    }

    /// `true` if there are no errors in these keys or in keys below them.
    pub fn none_of(&self, keys: &[&str]) -> bool {
        let is_of = |error: &KeyError, key: &str| {
            let rest = error.key.strip_prefix(key);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        !self.0.iter().any(|error| keys.iter().any(|key| is_of(error, key)))
    }

    /// Adds the errors of a section.
    pub fn extend_from(&mut self, section: &str, errors: Self) {
        self.0.extend(errors.0.into_iter().map(|error| error.within(section)));
    }

    pub fn into_vec(self) -> Vec<KeyError> {
        self.0
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

/// The range of rates and factors, in words.
pub(super) const POSITIVE: &str = "a finite number above 0";

/// [`require`] that a number is [`POSITIVE`].
pub(super) fn require_positive(key: &str, value: f64) -> Result<(), KeyError> {
    require(value.is_finite() && value > 0.0, key, value, POSITIVE)
}

/// [`require`] that a number above 0 is neither 0 nor infinite in `dtype`. Devices flush numbers
/// below the least normal one to 0.
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

/// How alike two words are spelled, if one may be meant by the other. Jaro-Winkler finds words
/// that begin alike (`batch_size`), Damerau-Levenshtein swapped letters in short ones (`mpl`).
fn similarity(word: &str, candidate: &str) -> Option<f64> {
    let prefix = strsim::jaro_winkler(word, candidate);
    let edits = strsim::normalized_damerau_levenshtein(word, candidate);
    Some(prefix.max(edits)).filter(|similarity| *similarity > 0.65)
}

/// The candidate spelled most like `word`, if any is near enough to be meant.
pub(super) fn nearest(word: &str, candidates: &[&str]) -> Option<String> {
    candidates
        .iter()
        .filter_map(|candidate| Some((similarity(word, candidate)?, *candidate)))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate.to_owned())
}

/// The names that may be meant by `word`: those that begin with it, those that contain it, both
/// with the shortest first, and then those that are spelled like it, the most similar first. Case
/// does not matter.
///
/// ```
/// use lockstep::config::near_names;
/// let names = ["roberta-base", "bert-large", "resnet50", "beit"];
/// assert_eq!(near_names("BERT", names), ["bert-large", "roberta-base", "beit"]);
/// assert!(near_names("xyz", names).is_empty());
/// ```
pub fn near_names<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let word = word.to_lowercase();
    let (mut within, others): (Vec<&str>, Vec<&str>) =
        names.into_iter().partition(|name| !word.is_empty() && name.to_lowercase().contains(&word));
    within.sort_by_key(|name| (!name.to_lowercase().starts_with(&word), name.len(), *name));
    let similar = |name| Some((similarity(&word, &str::to_lowercase(name))?, name));
    let mut similar: Vec<_> = others.into_iter().filter_map(similar).collect();
    similar.sort_by(|a, b| b.0.total_cmp(&a.0));
    within.into_iter().chain(similar.into_iter().map(|(_, name)| name)).collect()
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

/// serde reports through these functions; the key is added by the entry of the table.
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

/// The default range of integers, in words.
pub(super) const COUNT: &str = "a whole number, 0 or more";

/// The range of an integer.
pub(super) type Range = std::ops::RangeInclusive<i64>;

/// A range in words.
pub(super) fn allowed_in(range: &Range) -> String {
    match *range.end() {
        i64::MAX => format!("a whole number, {} or more", range.start()),
        end => format!("a whole number from {} to {end}", range.start()),
    }
}

/// Names for users in place of the Rust types that serde names.
fn in_words(expected: &str) -> String {
    match expected {
        "usize" | "u64" | "u32" => COUNT,
        "f64" => "a number",
        "a boolean" | "bool" => "true or false",
        "a sequence" => "a list",
        "path string" => "a path, as a string",
        other => other,
    }
    .to_owned()
}
