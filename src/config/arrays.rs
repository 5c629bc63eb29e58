//! `[data] source = "arrays"`: NumPy's files.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::data::HELD_OUT;

/// Arrays of NumPy: an `.npz` file, or a folder of `.npy` files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct ArraysConfig {
    /// The `.npz` file, or the folder with the `.npy` files. The first dim of every array counts
    /// the examples.
    #[schemars(extend("values" = "path", "required" = true, "resume" = "place"))]
    pub path: PathBuf,
    /// The file or folder for evaluation, with arrays of the same names.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend(
            "values" = "path",
            "depends" = "none: `eval_x`, or `eval_fraction` is held out",
            "resume" = "place",
        ),
    )]
    pub eval_path: Option<PathBuf>,
    /// Share of the examples that is held out for evaluation, drawn by `train.seed`; of classes,
    /// the same share of each. Only without `eval_path` and `eval_x`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend(
            "exclusiveMinimum" = 0,
            "exclusiveMaximum" = 1,
            "unit" = "share of the examples",
            "depends" = "`0.1`",
            "resume" = "place",
        ),
    )]
    pub eval_fraction: Option<f64>,
    /// The inputs: numbers of any dims, images `[n, height, width]`, `[n, height, width, channels]`
    /// or `[n, channels, height, width]`, or for models of tokens whole numbers `[n, positions]`;
    /// for `gpt` with one position more: the last token is only a label.
    #[schemars(extend("values" = "name of an array"))]
    #[default("x".to_owned())]
    pub x: String,
    /// The labels `[n]` or `[n, k]`: whole numbers are classes, others values, and rows of 0 and 1
    /// any number of labels. `gpt` needs none.
    #[schemars(extend("values" = "name of an array"))]
    #[default("y".to_owned())]
    pub y: String,
    /// The inputs for evaluation, in the same file or folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("values" = "name of an array", "depends" = "none: see `eval_path`"))]
    pub eval_x: Option<String>,
    /// The labels for evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("values" = "name of an array", "absent" = "those of `eval_path`, if that is set"))]
    pub eval_y: Option<String>,
    /// Which dim of images counts the channels. `"auto"`: the last, if it is 1, 3 or 4 and the
    /// second is not.
    pub channels: ChannelsDim,
    /// What inputs are multiplied with.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend(
        "values" = "number, 1.2e-38 to 3.4e38",
        "absent" = "1 / 255 for bytes, 1 for others",
    ))]
    pub scale: Option<f64>,
    /// The names of the classes, in their order; then they are as many.
    #[schemars(extend("values" = "list of different strings, none or two or more"))]
    pub labels: Vec<String>,
    /// Scale values to predict to a mean of 0 and a standard deviation of 1 over the training
    /// examples. Predictions are in the units of the file.
    #[default(true)]
    pub standardize: bool,
    /// What the training examples say about the labels. A run writes it down, so that others are
    /// read alike.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        extend(
            "values" = "list of columns",
            "absent" = "learned from the training examples",
            "resume" = "refuse",
        ),
    )]
    pub target_columns: Vec<super::ColumnEncoding>,
    /// Number of training examples, for commands that run without the data. If the data are
    /// present, it must match them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1, max = u32::MAX),
        extend("unit" = "examples", "absent" = "counted in the data", "resume" = "place"),
    )]
    pub num_examples: Option<usize>,
}

impl ArraysConfig {
    /// [`Self::eval_fraction`], or its default.
    pub fn eval_fraction(&self) -> f64 {
        self.eval_fraction.unwrap_or(HELD_OUT)
    }
}

/// Which dim of images counts the channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChannelsDim {
    /// The last, if it is 1, 3 or 4 and the second is not.
    #[default]
    Auto,
    /// The second.
    First,
    /// The last.
    Last,
}
