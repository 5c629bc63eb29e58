//! The reference of all keys: one table, from which `docs/configuration.md` and the comments of a
//! resolved configuration are generated. Tests compare its names, defaults and ranges with what is
//! actually accepted.

mod rows;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Bound;

use super::SECTIONS;
use super::keys::SectionInfo;

/// One key of one section.
pub(super) struct KeyRow {
    pub section: &'static str,
    pub name: &'static str,
    /// The values of the section's tag for which the key exists; empty if it exists for all.
    pub choices: &'static [&'static str],
    pub kind: Kind,
    /// The unit of a number; may be empty.
    pub unit: &'static str,
    pub fallback: Fallback,
    /// The description, as a sentence.
    pub meaning: &'static str,
}

/// The values that a key takes.
pub(super) enum Kind {
    Bool,
    /// From the first on, up to the second if there is one.
    Integer(i64, Option<i64>),
    Number(Bound<f64>, Bound<f64>),
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// `"auto"`, or a whole number as in [`Self::Integer`].
    AutoOrInteger(i64, Option<i64>),
    /// Described in words.
    Other(&'static str),
}

/// The default of a key.
#[derive(Clone, Copy)]
pub(super) enum Fallback {
    /// It must be set.
    Required,
    /// This value, as TOML.
    Value(&'static str),
    /// Described by this text, which a resolved configuration has as a comment.
    Absent(&'static str),
    /// Described by this text; other keys decide it.
    Depends(&'static str),
}

impl KeyRow {
    /// `true` if the section has the key for this value of its tag.
    fn belongs_to(&self, section: &str, choice: &str) -> bool {
        self.section == section && (self.choices.is_empty() || self.choices.contains(&choice))
    }
}

/// The keys of a section for a choice, in the order in which they are shown.
pub(super) fn keys_of(section: &str, choice: &str) -> impl Iterator<Item = &'static KeyRow> {
    rows::KEYS.iter().filter(move |key| key.belongs_to(section, choice))
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool => f.write_str("`true` or `false`"),
            Self::Integer(low, None) => write!(f, "whole number, {low} or more"),
            Self::Integer(low, Some(high)) => write!(f, "whole number, {low} to {high}"),
            Self::Number(low, high) => write_range(f, *low, *high),
            Self::OneOf(words) => {
                let words: Vec<_> = words.iter().map(|word| format!("`{word:?}`")).collect();
                f.write_str(&words.join(", "))
            }
            Self::AutoOrInteger(low, high) => {
                write!(f, "`\"auto\"` or a {}", Self::Integer(*low, *high))
            }
            Self::Other(text) => f.write_str(text),
        }
    }
}

fn write_range(f: &mut fmt::Formatter<'_>, low: Bound<f64>, high: Bound<f64>) -> fmt::Result {
    f.write_str("number")?;
    match (low, high) {
        (Bound::Included(low), Bound::Unbounded) => write!(f, ", {} or more", short(low)),
        (low, high) => {
            match low {
                Bound::Included(low) => write!(f, ", {}", short(low))?,
                Bound::Excluded(low) => write!(f, " above {}", short(low))?,
                Bound::Unbounded => {}
            }
            match high {
                Bound::Included(high) => write!(f, " to {}", short(high)),
                Bound::Excluded(high) => write!(f, " to below {}", short(high)),
                Bound::Unbounded => Ok(()),
            }
        }
    }
}

fn short(number: f64) -> String {
    let is_plain = number == 0.0 || (1e-3..1e6).contains(&number);
    if is_plain { number.to_string() } else { format!("{number:.1e}") }
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Required => f.write_str("must be set"),
            Self::Value(value) => write!(f, "`{value}`"),
            Self::Absent(text) | Self::Depends(text) => f.write_str(text),
        }
    }
}

/// The reference of all keys, in Markdown: `docs/configuration.md`.
pub fn reference() -> String {
    let mut page = rows::INTRODUCTION.to_owned();
    for section in SECTIONS {
        page += &format!("\n## `[{}]`\n\n{}\n", section.name, rows::about(section.name));
        let everywhere = |key: &&KeyRow| key.section == section.name && key.choices.is_empty();
        page += &table(rows::KEYS.iter().filter(everywhere));
        for choice in section.choices {
            page += &of_choice(&section, choice);
        }
    }
    page
}

/// What comes with one value of a section's tag.
fn of_choice(section: &SectionInfo, choice: &str) -> String {
    let heading = format!("\n### `{} = {choice:?}`\n", section.tag.unwrap_or_default());
    let own = keys_of(section.name, choice).filter(|key| !key.choices.is_empty());
    match table(own) {
        rows if rows.is_empty() => format!("{heading}\nNo keys of its own.\n"),
        rows => heading + &rows,
    }
}

fn table(keys: impl Iterator<Item = &'static KeyRow>) -> String {
    let rows: String = keys
        .map(|key| {
            let KeyRow { name, kind, unit, fallback, meaning, .. } = key;
            format!("| `{name}` | {kind} | {unit} | {fallback} | {meaning} |\n")
        })
        .collect();
    if rows.is_empty() {
        return rows;
    }
    format!("\n| key | type and range | unit | default | meaning |\n|---|---|---|---|---|\n{rows}")
}
