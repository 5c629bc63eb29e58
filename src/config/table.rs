//! `[data] source = "table"`: columns of numbers and words.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smart_default::SmartDefault;

use super::Patterns;
use super::data::HELD_OUT;

/// Rows of a `.csv`, `.tsv`, `.jsonl` or `.parquet` file with named columns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct TableConfig {
    /// The file: `.csv` (with `,`, `;` or tabs between the cells), `.tsv`, `.jsonl`, each also with
    /// `.gz`, or `.parquet`. The first line of a text file names the columns.
    #[schemars(extend("values" = "path", "required" = true, "resume" = "place"))]
    pub path: PathBuf,
    /// The file for evaluation, with the same columns.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend(
            "values" = "path",
            "depends" = "none: `eval_fraction` is held out",
            "resume" = "place",
        ),
    )]
    pub eval_path: Option<PathBuf>,
    /// Share of the rows that is held out for evaluation, drawn by `train.seed`; of classes, the
    /// same share of each. Only without `eval_path`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend(
            "exclusiveMinimum" = 0,
            "exclusiveMaximum" = 1,
            "unit" = "share of the rows",
            "depends" = "`0.1`",
            "resume" = "place",
        ),
    )]
    pub eval_fraction: Option<f64>,
    /// The columns that the model sees, as patterns such as `["age", "pixel*"]`. An empty list
    /// takes all but the targets.
    pub features: Patterns,
    /// Features in which numbers are names of categories, such as postal codes. Those of words are
    /// categories anyway.
    pub categorical: Patterns,
    /// Columns that are no features although `features` has them, such as `["customer_id"]`.
    pub exclude: Patterns,
    /// The column to predict; or a list of them: values, or labels of 0 and 1.
    #[schemars(extend("required" = true))]
    pub target: ColumnNames,
    /// The names of the classes, in their order. An empty list takes those in `path`, sorted.
    #[schemars(extend("values" = "list of different strings, none or two or more"))]
    pub labels: Vec<String>,
    /// What to do about an empty cell of a feature: refuse the file, or take the mean of its column
    /// (of categories, none of them). A cell with `NA`, `N/A`, `n/a`, `NaN`, `nan`, `null`, `NULL`
    /// or `None` is empty too.
    pub missing: MissingValues,
    /// Scale features, and values to predict, to a mean of 0 and a standard deviation of 1 over the
    /// training rows. Predictions are in the units of the file.
    #[default(true)]
    pub standardize: bool,
    /// What the training rows say about the features. A run writes it down, so that other rows are
    /// read alike.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        extend(
            "values" = "list of columns",
            "absent" = "learned from the training rows",
            "resume" = "refuse",
        ),
    )]
    pub columns: Vec<ColumnEncoding>,
    /// The same about the targets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        extend(
            "values" = "list of columns",
            "absent" = "learned from the training rows",
            "resume" = "refuse",
        ),
    )]
    pub target_columns: Vec<ColumnEncoding>,
    /// Number of training examples, for commands that run without the data. If the data are
    /// present, it must match them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1, max = u32::MAX),
        extend("unit" = "examples", "absent" = "counted in the data", "resume" = "place"),
    )]
    pub num_examples: Option<usize>,
}

impl TableConfig {
    /// [`Self::eval_fraction`], or its default.
    pub fn eval_fraction(&self) -> f64 {
        self.eval_fraction.unwrap_or(HELD_OUT)
    }
}

/// What to do about an empty cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MissingValues {
    /// The file is refused, with line and column.
    #[default]
    Refuse,
    /// The mean of the column over the training rows; of categories, none of them.
    Mean,
}

/// How the cells of a column become numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ColumnEncoding {
    /// The column's name.
    pub name: String,
    /// What is subtracted from its numbers; `None` if its cells are names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean: Option<f64>,
    /// What then divides them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deviation: Option<f64>,
    /// What stands for an empty cell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill: Option<f64>,
    /// The names in its cells, each a feature of 0 or 1, or a class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub categories: Option<Vec<String>>,
}

/// A name or a list of names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColumnNames(pub Vec<String>);

impl Serialize for ColumnNames {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [name] => serializer.serialize_str(name),
            names => names.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ColumnNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = ColumnNames;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name or a list of different names")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<ColumnNames, E> {
                Ok(ColumnNames(vec![name.to_owned()]))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> Result<ColumnNames, A::Error> {
                let mut names: Vec<String> = vec![];
                while let Some(name) = list.next_element()? {
                    if names.contains(&name) {
                        return Err(de::Error::invalid_value(de::Unexpected::Str(&name), &self));
                    }
                    names.push(name);
                }
                match names.is_empty() {
                    true => Err(de::Error::invalid_value(de::Unexpected::Seq, &self)),
                    false => Ok(ColumnNames(names)),
                }
            }
        }
        deserializer.deserialize_any(Names)
    }
}

impl JsonSchema for ColumnNames {
    fn schema_name() -> Cow<'static, str> {
        "ColumnNames".into()
    }

    fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "values": "column name, or a list of them" })
    }
}
