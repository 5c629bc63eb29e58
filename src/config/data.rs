//! `[data]`: where the examples come from.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use toml::Table;

use super::error::{KeyError, require};
use super::keys::{Section, choices};

choices! {
    /// `[data]`: where the examples come from, picked by `source`.
    pub enum Data by "source" {
        /// Images of handwritten digits, from a file.
        "digits" => Digits(Digits),
        /// Bytes of a file or a folder.
        "text" => Text(Text),
        /// A classification task that is computed, not read.
        "synthetic" => Synthetic(Synthetic),
    }
}

// Every path below is relative to the configuration; it is made absolute when that is read, so that a
// copy of the configuration beside the results names the same file.

/// Images of handwritten digits, from a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Digits {
    /// The `.csv.gz` file.
    pub path: PathBuf,
}

/// The bytes of a file, or of all files in a folder: each byte is a token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Text {
    /// The file or the folder.
    pub path: PathBuf,
    /// Of a folder only the files that end so, such as `["rs", "md"]`. Default: all.
    #[serde(default)]
    pub extensions: Vec<String>,
    /// Tokens that a prediction sees at most; an example is one more. Default 256.
    #[serde(default = "text_context")]
    pub context: usize,
    /// What is held out for evaluation, at the end. Default 0.1.
    #[serde(default = "tenth")]
    pub eval_fraction: f64,
}

/// A classification task that is computed from the seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Synthetic {
    /// Training examples; a fifth as many others, but at least one, are for evaluation. Default 4096.
    pub num_examples: usize,
    /// Numbers in an example. Default 64.
    pub features: usize,
    /// Default 10.
    pub classes: usize,
}

impl Default for Synthetic {
    fn default() -> Self {
        Self { num_examples: 4096, features: 64, classes: 10 }
    }
}

fn text_context() -> usize {
    256
}

fn tenth() -> f64 {
    0.1
}

impl Data {
    /// Every path that the section names.
    pub(super) fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        match self {
            Self::Digits(digits) => vec![&mut digits.path],
            Self::Text(text) => vec![&mut text.path],
            Self::Synthetic(_) => vec![],
        }
    }

    fn check(&self) -> Result<(), KeyError> {
        match self {
            Self::Digits(_) => Ok(()),
            Self::Text(text) => {
                check_count("context", text.context, 1, MAX_CONTEXT)?;
                check_fraction(text.eval_fraction)
            }
            Self::Synthetic(Synthetic { num_examples, features, classes }) => {
                check_count("num_examples", *num_examples, 1, u32::MAX as usize)?;
                check_count("features", *features, 1, MAX_FEATURES)?;
                check_count("classes", *classes, 2, MAX_FEATURES)
            }
        }
    }
}

impl Section for Data {
    const NAME: &'static str = "data";
    const TAG: Option<&'static str> = Some(Self::TAG);
    const CHOICES: &'static [&'static str] = Self::NAMES;

    fn keys(choice: &str) -> Vec<&'static str> {
        Self::keys_of(choice)
    }

    fn read(choice: &str, table: &Table) -> Result<Self, KeyError> {
        let data = Self::read_choice(choice, table)?;
        data.check()?;
        Ok(data)
    }
}

/// Far more than is of use; a slip of the finger should not ask for terabytes.
const MAX_FEATURES: usize = 1 << 20;
const MAX_CONTEXT: usize = 1 << 24;

fn check_count(key: &str, value: usize, min: usize, max: usize) -> Result<(), KeyError> {
    let allowed = format!("a whole number from {min} to {max}");
    require((min..=max).contains(&value), key, value, &allowed)
}

/// Neither split may be empty: a run ends with an evaluation.
fn check_fraction(value: f64) -> Result<(), KeyError> {
    let holds = value > 0.0 && value < 1.0;
    require(holds, "eval_fraction", value, "a number above 0 and below 1")
}
