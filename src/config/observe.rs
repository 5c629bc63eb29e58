//! `[observe]`: what is written about a run, beside `metrics.jsonl` and `summary.json`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::key::{KeyInfo, OnResume};
use super::keys::{Reader, Section};

/// `[observe]`. All of it is in the output directory; without `--out` nothing is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct ObserveConfig {
    /// Write the numbers of each step and evaluation for TensorBoard, into the folder `tensorboard`
    /// of the output directory. See [Outputs](outputs.md#tensorboard).
    pub tensorboard: bool,
}

impl Section for ObserveConfig {
    const NAME: &'static str = "observe";
    const ABOUT: &str = "What is written about a run.";

    fn keys(_choice: &str) -> Vec<KeyInfo> {
        KeyInfo::shared::<Self>(OnResume::Same)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        reader.keys()
    }
}
