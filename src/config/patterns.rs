//! Patterns for the paths of parameters.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Patterns such as `*.norm?.*`: `*` matches any characters, including dots, `?` matches one, `[ab]` one of
/// these. A pattern must match the whole path.
///
/// ```
/// let patterns = lockstep::config::Patterns::new(["*.bias", "*norm*"])?;
/// assert!(patterns.matches("blocks.0.norm1.weight") && !patterns.matches("head.weight"));
/// # Ok::<(), glob::PatternError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patterns(Vec<glob::Pattern>);

impl Patterns {
    /// Reads patterns.
    ///
    /// # Errors
    /// One that opens a bracket and does not close it, or the like.
    pub fn new<'a>(
        patterns: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, glob::PatternError> {
        patterns.into_iter().map(glob::Pattern::new).collect::<Result<_, _>>().map(Self)
    }

    /// `true` if one of the patterns matches the path.
    pub fn matches(&self, path: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(path))
    }

    /// The first that matches none of the paths.
    pub fn unmatched(&self, paths: &[&str]) -> Option<&str> {
        let is_unmatched =
            |pattern: &&glob::Pattern| !paths.iter().any(|path| pattern.matches(path));
        self.0.iter().find(is_unmatched).map(glob::Pattern::as_str)
    }
}

impl Serialize for Patterns {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(glob::Pattern::as_str))
    }
}

impl<'de> Deserialize<'de> for Patterns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let patterns = Vec::<String>::deserialize(deserializer)?;
        let read = Self::new(patterns.iter().map(String::as_str));
        read.map_err(|error| de::Error::custom(format!("not a pattern: {}", error.msg)))
    }
}
