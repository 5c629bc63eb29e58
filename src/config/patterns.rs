//! Patterns for the paths of parameters.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Patterns such as `*.norm?.*`: `*` matches any characters, including dots, `?` matches one,
/// `[ab]` one of these. A pattern must match the whole path.
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

    /// `true` if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `true` if one of the patterns matches the path.
    pub fn matches(&self, path: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(path))
    }

    /// `true` if one of the patterns is this path itself.
    pub fn contains(&self, path: &str) -> bool {
        self.0.iter().any(|pattern| pattern.as_str() == path)
    }

    /// The first that matches none of the paths.
    pub fn unmatched(&self, paths: &[&str]) -> Option<&str> {
        let is_unmatched =
            |pattern: &&glob::Pattern| !paths.iter().any(|path| pattern.matches(path));
        self.0.iter().find(is_unmatched).map(glob::Pattern::as_str)
    }
}

impl JsonSchema for Patterns {
    fn schema_name() -> Cow<'static, str> {
        "Patterns".into()
    }

    fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
        let items = json_schema!({ "type": "string" });
        json_schema!({ "type": "array", "items": items, "values": "list of patterns" })
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

/// Numbers for the parameters with paths that match patterns, such as `{ "classifier.*" = 10.0 }`.
///
/// ```
/// let rates = lockstep::config::PatternNumbers::new([("*.bias", 2.0), ("head.*", 10.0)])?;
/// assert_eq!(rates.of("head.weight"), Ok(Some(10.0)));
/// assert_eq!(rates.of("embed.weight"), Ok(None));
/// assert_eq!(rates.of("head.bias"), Err(["*.bias", "head.*"]));
/// # Ok::<(), glob::PatternError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PatternNumbers(Vec<(glob::Pattern, f64)>);

impl PatternNumbers {
    /// Reads patterns and takes their numbers.
    ///
    /// # Errors
    /// A pattern that opens a bracket and does not close it, or the like.
    pub fn new<'a>(
        numbers: impl IntoIterator<Item = (&'a str, f64)>,
    ) -> Result<Self, glob::PatternError> {
        let numbers = numbers.into_iter();
        numbers.map(|(pattern, number)| Ok((glob::Pattern::new(pattern)?, number))).collect()
    }

    /// `true` if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of the pattern that matches the path; `None` if none does.
    ///
    /// # Errors
    /// Two patterns that match and have different numbers.
    pub fn of(&self, path: &str) -> Result<Option<f64>, [&str; 2]> {
        let mut matching = self.0.iter().filter(|(pattern, _)| pattern.matches(path));
        let Some((first, number)) = matching.next() else { return Ok(None) };
        match matching.find(|(_, other)| other != number) {
            Some((other, _)) => Err([first.as_str(), other.as_str()]),
            None => Ok(Some(*number)),
        }
    }

    /// The patterns.
    pub fn patterns(&self) -> Patterns {
        Patterns(self.0.iter().map(|(pattern, _)| pattern.clone()).collect())
    }

    /// Each pattern and its number.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(pattern, number)| (pattern.as_str(), *number))
    }
}

impl FromIterator<(glob::Pattern, f64)> for PatternNumbers {
    fn from_iter<I: IntoIterator<Item = (glob::Pattern, f64)>>(numbers: I) -> Self {
        Self(numbers.into_iter().collect())
    }
}

impl JsonSchema for PatternNumbers {
    fn schema_name() -> Cow<'static, str> {
        "PatternNumbers".into()
    }

    fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "additionalProperties": { "type": "number" } })
    }
}

impl Serialize for PatternNumbers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for PatternNumbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let numbers = BTreeMap::<String, f64>::deserialize(deserializer)?;
        let read = Self::new(numbers.iter().map(|(pattern, number)| (pattern.as_str(), *number)));
        read.map_err(|error| de::Error::custom(format!("not a pattern: {}", error.msg)))
    }
}
