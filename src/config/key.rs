//! A key of the configuration. Its field in the struct of its section declares all of it: name,
//! type, range, default, documentation, and what another value means to a run that is resumed.
//!
//! The documentation of the field is that of the key. Attributes say the rest:
//!
//! - `#[default(..)]`: its default, if it is not that of its type
//! - `#[schemars(range(min = .., max = ..))]`: the accepted numbers, or those of its list;
//!   `"exclusiveMinimum"` and `"exclusiveMaximum"` are extensions
//! - `#[schemars(extend(..))]`, with any of
//!   - `"values"`: the accepted values in words, if type and range do not describe them
//!   - `"unit"`
//!   - `"required" = true`: it has no default
//!   - `"absent"`: the meaning of leaving it unset
//!   - `"depends"`: its default in words, if it follows from other keys
//!   - `"resume"`: an [`OnResume`], if it is not that of its section

use std::fmt;
use std::ops::{Bound, RangeBounds};

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::{Range, allowed_in};
use super::field_names::field_names;

/// The pattern of a key that takes `"auto"` beside other values.
pub(super) const AUTO_PATTERN: &str = "^auto$";

/// `values` of a number that must not round to 0 or infinity as f32.
pub(super) const POSITIVE_F32: &str = "number, 1.2e-38 to 3.4e38";

/// The attributes that the schema of a key may have.
const ATTRIBUTES: &[&str] = &[
    "absent",
    "additionalProperties",
    "anyOf",
    "default",
    "depends",
    "description",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maximum",
    "minimum",
    "oneOf",
    "pattern",
    "required",
    "resume",
    "type",
    "unit",
    "values",
];

/// One key of a section.
#[derive(Clone, Debug)]
pub(super) struct KeyInfo {
    pub name: &'static str,
    /// `true` if the section has it whatever the value of its tag is.
    pub is_shared: bool,
    pub kind: Kind,
    pub limits: KeyLimits,
    /// The unit of a number; may be empty.
    pub unit: String,
    pub fallback: Fallback,
    /// The documentation, in one line.
    pub meaning: String,
    pub on_resume: OnResume,
}

/// The values that a key takes, for the user who reads about it; [`KeyLimits`] has the range of a
/// number.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Bool,
    Integer,
    Number,
    /// One of these words.
    OneOf(Vec<String>),
    /// `"auto"`, or a whole number.
    AutoOrInteger,
    /// Described in words.
    Other(String),
}

/// The numbers that a key takes, or that each element of its list is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum KeyLimits {
    /// The key takes no numbers, or any number.
    None,
    Integer(Range),
    Number(Bound<f64>, Bound<f64>),
}

/// The default of a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fallback {
    /// The key must be set.
    Required,
    /// This value.
    Value(toml::Value),
    /// Described by this text, which a resolved configuration has as a comment.
    Absent(String),
    /// Described by this text; other keys decide it.
    Depends(String),
}

/// The meaning of a changed key for a run that is resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnResume {
    /// `same`: the same run, run in another way.
    Same,
    /// `batch`: the size of the batch, in one of two ways.
    Batch,
    /// `length`: a longer or shorter run, so its rates may differ.
    Length,
    /// `place`: where the data are; the same run if they are the same data.
    Place,
    /// `warn`: another run from here on.
    Warn,
    /// `refuse`: the state has no meaning in it.
    Refuse,
}

impl OnResume {
    const NAMES: [(&str, Self); 6] = [
        ("same", Self::Same),
        ("batch", Self::Batch),
        ("length", Self::Length),
        ("place", Self::Place),
        ("warn", Self::Warn),
        ("refuse", Self::Refuse),
    ];
}

impl KeyInfo {
    /// The keys of a struct that a section has for one value of its tag, in the order of its
    /// fields.
    pub fn of<T: JsonSchema + DeserializeOwned>(on_resume: OnResume) -> Vec<Self> {
        let schema = generator().into_root_schema_for::<T>();
        Self::of_schema(field_names::<T>(), &schema, on_resume)
    }

    /// [`Self::of`] for every value of the tag.
    pub fn shared<T: JsonSchema + DeserializeOwned>(on_resume: OnResume) -> Vec<Self> {
        let mut keys = Self::of::<T>(on_resume);
        keys.iter_mut().for_each(|key| key.is_shared = true);
        keys
    }

    /// The keys with these names, in a schema of [`generator`].
    pub fn of_schema(names: &[&'static str], schema: &Schema, on_resume: OnResume) -> Vec<Self> {
        let empty = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let of = |name: &&'static str| {
            let declared = properties.get(*name).and_then(Value::as_object).unwrap_or(&empty);
            Self::declared(name, declared, on_resume)
        };
        names.iter().map(of).collect()
    }

    /// The values, for the reference.
    pub fn values(&self) -> String {
        match &self.kind {
            Kind::Bool => "`true` or `false`".to_owned(),
            Kind::Integer | Kind::Number => self.limits.to_string(),
            Kind::AutoOrInteger => format!("`\"auto\"` or a {}", self.limits),
            Kind::OneOf(words) => {
                let words: Vec<_> = words.iter().map(|word| format!("`{word:?}`")).collect();
                words.join(", ")
            }
            Kind::Other(text) => text.clone(),
        }
    }

    /// The allowed values in words, for an error; `None` if the schema has no limits.
    pub fn allowed(&self) -> Option<String> {
        let numbers = self.limits.in_words()?;
        Some(match self.kind {
            Kind::AutoOrInteger => format!("\"auto\" or {numbers}"),
            _ => numbers,
        })
    }

    fn declared(name: &'static str, schema: &Map<String, Value>, on_resume: OnResume) -> Self {
        let text = |key: &str| schema.get(key).and_then(Value::as_str);
        let default = schema.get("default").and_then(|value| toml::Value::try_from(value).ok());
        let fallback = match (text("absent"), text("depends"), default) {
            (Some(text), _, _) => Fallback::Absent(text.to_owned()),
            (None, Some(text), _) => Fallback::Depends(text.to_owned()),
            (None, None, Some(value)) if schema.get("required").is_none() => Fallback::Value(value),
            (None, None, _) => Fallback::Required,
        };
        let named = |word: &str| OnResume::NAMES.iter().find(|row| row.0 == word);
        // What no compiler checks: the words in attributes.
        let unknown = schema.keys().find(|word| !ATTRIBUTES.contains(&word.as_str()));
        debug_assert!(unknown.is_none(), "{name}: {unknown:?}");
        debug_assert!(text("resume").is_none_or(|word| named(word).is_some()), "{name}: resume");
        Self {
            name,
            is_shared: false,
            kind: Kind::of(schema),
            limits: KeyLimits::of(schema),
            unit: text("unit").unwrap_or_default().to_owned(),
            fallback,
            meaning: text("description").unwrap_or_default().replace('\n', " "),
            on_resume: text("resume").and_then(named).map_or(on_resume, |row| row.1),
        }
    }
}

/// A generator of schemas without references.
pub(super) fn generator() -> SchemaGenerator {
    let mut settings = SchemaSettings::default();
    settings.inline_subschemas = true;
    settings.into_generator()
}

/// The subschemas if one of several holds; that of an absent value is among them.
fn alternatives(schema: &Map<String, Value>) -> Vec<&Map<String, Value>> {
    let any = ["anyOf", "oneOf"].iter().find_map(|key| schema.get(*key)?.as_array());
    any.map_or(vec![], |all| all.iter().filter_map(Value::as_object).collect())
}

fn is_type(schema: &Map<String, Value>, name: &str) -> bool {
    match schema.get("type") {
        Some(Value::String(found)) => found == name,
        Some(Value::Array(found)) => found.iter().any(|found| found == name),
        _ => false,
    }
}

/// The words of an enum, also of one that may be absent.
fn words(schema: &Map<String, Value>) -> Vec<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let own = schema.get("enum").and_then(Value::as_array).into_iter().flatten().filter_map(text);
    let constant = schema.get("const").and_then(text);
    let below = alternatives(schema).into_iter().flat_map(words);
    own.chain(constant).chain(below).collect()
}

impl Kind {
    fn of(schema: &Map<String, Value>) -> Self {
        let words = words(schema);
        let takes_auto = schema.get("pattern").is_some_and(|pattern| pattern == AUTO_PATTERN);
        match schema.get("values").and_then(Value::as_str) {
            Some(text) => Self::Other(text.to_owned()),
            None if takes_auto && is_type(schema, "integer") => Self::AutoOrInteger,
            None if !words.is_empty() => Self::OneOf(words),
            None if is_type(schema, "boolean") => Self::Bool,
            None if is_type(schema, "integer") => Self::Integer,
            None if is_type(schema, "number") => Self::Number,
            // A type that describes itself, and may be absent.
            None => {
                let below =
                    alternatives(schema).into_iter().find_map(|schema| schema.get("values"));
                Self::Other(below.and_then(Value::as_str).unwrap_or_default().to_owned())
            }
        }
    }
}

impl KeyLimits {
    fn of(schema: &Map<String, Value>) -> Self {
        if let Some(items) = schema.get("items").and_then(Value::as_object) {
            return Self::of(items);
        }
        let number = |key: &str| schema.get(key).and_then(Value::as_f64);
        let bound = |included: &str, excluded: &str| match (number(included), number(excluded)) {
            (_, Some(number)) => Bound::Excluded(number),
            (Some(number), None) => Bound::Included(number),
            (None, None) => Bound::Unbounded,
        };
        if is_type(schema, "integer") {
            let integer = |key: &str| schema.get(key).and_then(Value::as_i64);
            let (low, high) = (integer("minimum"), integer("maximum"));
            Self::Integer(low.unwrap_or(0)..=high.unwrap_or(i64::MAX))
        } else if is_type(schema, "number") {
            Self::Number(bound("minimum", "exclusiveMinimum"), bound("maximum", "exclusiveMaximum"))
        } else {
            Self::None
        }
    }

    /// Whether a number is within them.
    pub fn allow(&self, value: &toml::Value) -> bool {
        let number = value.as_float().or(value.as_integer().map(|value| value as f64));
        match (self, value.as_integer(), number) {
            (Self::Integer(range), Some(value), _) => range.contains(&value),
            (Self::Number(low, high), _, Some(number)) => {
                let is_bounded = *low != Bound::Unbounded || *high != Bound::Unbounded;
                (*low, *high).contains(&number) && (number.is_finite() || !is_bounded)
            }
            _ => true,
        }
    }

    /// The numbers that are allowed, in words; `None` without limits.
    pub fn in_words(&self) -> Option<String> {
        let (low, high) = match self {
            Self::None => return None,
            Self::Integer(range) => return Some(allowed_in(range)),
            Self::Number(low, high) => (*low, *high),
        };
        Some(match (low, high) {
            (Bound::Unbounded, Bound::Unbounded) => "a number".to_owned(),
            (Bound::Included(low), Bound::Unbounded) => format!("a finite number, {low} or more"),
            (Bound::Excluded(low), Bound::Unbounded) => format!("a finite number above {low}"),
            (Bound::Included(low), Bound::Included(high)) => {
                format!("a number from {low} to {high}")
            }
            (Bound::Included(low), Bound::Excluded(high)) => {
                format!("a number from {low} to below {high}")
            }
            (Bound::Excluded(low), Bound::Included(high)) => {
                format!("a number above {low}, at most {high}")
            }
            (Bound::Excluded(low), Bound::Excluded(high)) => {
                format!("a number above {low} and below {high}")
            }
            (Bound::Unbounded, Bound::Included(high)) => format!("a number, at most {high}"),
            (Bound::Unbounded, Bound::Excluded(high)) => format!("a number below {high}"),
        })
    }
}

/// A range, for the reference.
impl fmt::Display for KeyLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (low, high) = match self {
            Self::None => return Ok(()),
            Self::Integer(range) if *range.end() == i64::MAX => {
                return write!(f, "whole number, {} or more", range.start());
            }
            Self::Integer(range) => {
                return write!(f, "whole number, {} to {}", range.start(), range.end());
            }
            Self::Number(low, high) => (*low, *high),
        };
        f.write_str("number")?;
        match low {
            Bound::Included(low) if high == Bound::Unbounded => {
                return write!(f, ", {low} or more");
            }
            Bound::Included(low) => write!(f, ", {low}")?,
            Bound::Excluded(low) => write!(f, " above {low}")?,
            Bound::Unbounded => {}
        }
        match high {
            Bound::Included(high) => write!(f, " to {high}"),
            Bound::Excluded(high) => write!(f, " to below {high}"),
            Bound::Unbounded => Ok(()),
        }
    }
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Required => f.write_str("must be set"),
            Self::Value(value) => write!(f, "`{}`", literal(value)),
            Self::Absent(text) | Self::Depends(text) => f.write_str(text),
        }
    }
}

/// A value in TOML. Numbers far from 1 have an exponent: `1e-8`, not `0.00000001`.
pub(super) fn literal(value: &toml::Value) -> String {
    match value {
        toml::Value::Float(number) if number.is_finite() => format!("{number:?}"),
        other => other.to_string(),
    }
}
