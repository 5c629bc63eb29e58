//! `[data]`: where the examples come from.

use std::collections::BTreeSet;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;
use toml::{Table, Value};

use super::arrays::ArraysConfig;
use super::error::{KeyErrors, require};
use super::key::{KeyInfo, OnResume};
use super::keys::{Exclusive, Reader, Section, Tag, choices};
use super::late::LateConfig;
use super::table::TableConfig;

choices! {
    /// `[data]`: where the examples come from, selected by `source`.
    pub enum DataConfig by "source" {
        /// Images of handwritten digits, from a file.
        "digits" => Digits(DigitsConfig),
        /// The binary version of CIFAR-10.
        "cifar10" => Cifar10(Cifar10Config),
        /// Images and labels in the format of MNIST.
        "idx" => Idx(IdxConfig),
        /// A folder of images for each class.
        "image_folder" => ImageFolder(ImageFolderConfig),
        /// Bytes of a file or a folder.
        "text" => Text(TextConfig),
        /// Text that is already tokenized.
        "tokens" => Tokens(TokensConfig),
        /// Texts, or pairs of texts, with a label each.
        "classification" => Classification(ClassificationConfig),
        /// Columns of numbers and words, with a column to predict.
        "table" => Table(TableConfig),
        /// Arrays of NumPy.
        "arrays" => Arrays(ArraysConfig),
        /// A classification task that is computed, not read.
        "synthetic" => Synthetic(SyntheticConfig),
        /// Sequences of tokens that are computed, not read.
        "synthetic_tokens" => SyntheticTokens(SyntheticTokensConfig),
    }
}

// Every path below is made absolute when it is read, so that the copy of the configuration in a
// run's directory names the same file.

/// Images of handwritten digits, from a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default)]
pub struct DigitsConfig {
    /// The `.csv.gz` file.
    #[schemars(extend("values" = "path", "required" = true, "resume" = "place"))]
    pub path: PathBuf,
    /// Number of training examples, for commands that run without the data. If the data are
    /// present, it must match them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1, max = u32::MAX),
        extend("unit" = "examples", "absent" = "counted in the data", "resume" = "place"),
    )]
    pub num_examples: Option<usize>,
}

/// The bytes of a file, or of all files in a folder: each byte is a token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct TextConfig {
    /// A file, or a folder that is read recursively. Each byte is a token. A file that is
    /// compressed or of another known format is refused; in a folder such files are warned of.
    #[schemars(extend("values" = "path", "required" = true, "resume" = "place"))]
    pub path: PathBuf,
    /// In a folder, read only files with these extensions, such as `["rs", "md"]`. An empty list
    /// reads all.
    #[schemars(extend("values" = "list of strings", "resume" = "place"))]
    pub extensions: Vec<String>,
    /// Maximum number of tokens that a prediction sees. An example has one token more.
    #[schemars(range(min = 1, max = MAX_CONTEXT), extend("unit" = "tokens"))]
    #[default(256)]
    pub context: usize,
    /// Share of the text, taken from its end, that is held out for evaluation.
    #[schemars(
        extend(
            "exclusiveMinimum" = 0,
            "exclusiveMaximum" = 1,
            "unit" = "share of the text",
            "resume" = "place",
        ),
    )]
    #[default(0.1)]
    pub eval_fraction: f64,
    /// Number of training examples, for commands that run without the data. If the data are
    /// present, it must match them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1, max = u32::MAX),
        extend("unit" = "examples", "absent" = "counted in the data", "resume" = "place"),
    )]
    pub num_examples: Option<usize>,
}

/// Text that is already tokenized: little-endian integers without a header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct TokensConfig {
    /// The file: little-endian integers without a header. `train` reads all of it once, to find ids
    /// beyond the vocabulary and tokens of another width before the first step; for a file of 16
    /// MiB or more the result is kept in the cache directory until the file changes. Files of other
    /// formats, such as those of llm.c and NumPy, are recognized and refused.
    #[schemars(extend("values" = "path", "required" = true, "resume" = "place"))]
    pub path: PathBuf,
    /// The file for evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend(
            "values" = "path",
            "depends" = "none: `eval_fraction` is held out",
            "resume" = "place",
        ),
    )]
    pub eval_path: Option<PathBuf>,
    /// Share of the tokens, taken from the end, that is held out for evaluation. Only without
    /// `eval_path`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend(
            "exclusiveMinimum" = 0,
            "exclusiveMaximum" = 1,
            "unit" = "share of the tokens",
            "depends" = "`0.1`",
            "resume" = "place",
        ),
    )]
    pub eval_fraction: Option<f64>,
    /// The type of a stored token.
    pub dtype: TokenType,
    /// Number of different tokens. With `dtype = "u32"` it may be up to 2147483647.
    #[schemars(
        range(min = 1, max = i32::MAX),
        extend("values" = "whole number, 1 to 65536", "unit" = "tokens", "required" = true),
    )]
    pub vocab_size: usize,
    /// Maximum number of tokens that a prediction sees. An example has one token more.
    #[schemars(range(min = 1, max = MAX_CONTEXT), extend("unit" = "tokens"))]
    #[default(1024)]
    pub context: usize,
    /// Number of training examples, for commands that run without the data. If the data are
    /// present, it must match them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1, max = u32::MAX),
        extend("unit" = "examples", "absent" = "counted in the data", "resume" = "place"),
    )]
    pub num_examples: Option<usize>,
}

impl TokensConfig {
    /// [`Self::eval_fraction`], or its default.
    pub fn eval_fraction(&self) -> f64 {
        self.eval_fraction.unwrap_or(HELD_OUT)
    }
}

/// Texts with labels: rows of `.tsv`, `.csv` or `.jsonl` files with named columns, as GLUE has
/// them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct ClassificationConfig {
    /// The file: `.tsv` (quotes are ordinary characters), `.csv` or `.jsonl`. The first line of
    /// `.tsv` and `.csv` names the columns.
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
    /// Share of the rows of each class, drawn by `train.seed`, that is held out for evaluation.
    /// Each class keeps at least one row. Only without `eval_path`.
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
    /// The column of the text.
    #[schemars(extend("values" = "column name"))]
    #[default("sentence".to_owned())]
    pub text: String,
    /// The column of the second text of a pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("values" = "column name", "absent" = "none: an example is one text"))]
    pub text_pair: Option<String>,
    /// The column of the label.
    #[schemars(extend("values" = "column name"))]
    #[default("label".to_owned())]
    pub label: String,
    /// The labels in the order of the classes. A label in the file may then also be the number of a
    /// class, from 0 on. An empty list takes those of the head that the run starts from, if `path`
    /// has their names (see [folders](folders.md#classes)), otherwise the labels of `path`, sorted.
    /// Negative numbers, empty labels and numbers among names must be listed here.
    #[schemars(extend("values" = "list of different strings, none or two or more"))]
    pub labels: Vec<String>,
    /// A folder with `tokenizer.json` or BERT's `vocab.txt`, or such a file. What stands beside it
    /// is read as transformers does: see [folders](folders.md#tokens).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend("values" = "path", "absent" = "it must be set to read the data", "resume" = "place"),
    )]
    pub tokenizer: Option<PathBuf>,
    /// Tokens of an example, special ones included. Shorter texts are padded to it.
    #[schemars(range(min = 1, max = MAX_CONTEXT), extend("unit" = "tokens"))]
    #[default(128)]
    pub max_length: usize,
    /// More lengths that batches are padded to: the shortest that holds all texts of the global
    /// batch. Each is one more program of the step and of the evaluation to compile.
    #[schemars(
        extend(
            "values" = "list of at most 16 ascending whole numbers below `max_length`",
            "unit" = "tokens",
        ),
    )]
    pub pad_to: Vec<usize>,
    /// Cut off the end of longer texts (the start, if the tokenizer's folder says so), that of the
    /// longer text in a pair. Without it a longer text is an error.
    pub truncate: bool,
    /// Number of training examples, for commands that run without the data. If the data are
    /// present, it must match them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1, max = u32::MAX),
        extend("unit" = "examples", "absent" = "counted in the data", "resume" = "place"),
    )]
    pub num_examples: Option<usize>,
}

impl ClassificationConfig {
    /// [`Self::eval_fraction`], or its default.
    pub fn eval_fraction(&self) -> f64 {
        self.eval_fraction.unwrap_or(HELD_OUT)
    }
}

/// How a token is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TokenType {
    /// Two bytes.
    #[default]
    U16,
    /// Four bytes.
    U32,
}

impl TokenType {
    /// Bytes of a token.
    pub const fn num_bytes(self) -> usize {
        match self {
            Self::U16 => 2,
            Self::U32 => 4,
        }
    }
}

/// Images and labels in the format of MNIST. A file may also be gzipped, with `.gz` appended to its
/// name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct IdxConfig {
    /// The folder with the four files. Each may be gzipped, with `.gz` at the end of its name.
    #[schemars(extend("values" = "path", "required" = true, "resume" = "place"))]
    pub path: PathBuf,
    /// Images for training.
    #[schemars(extend("values" = "file name", "resume" = "place"))]
    #[default("train-images-idx3-ubyte".to_owned())]
    pub train_images: String,
    /// Labels for training.
    #[schemars(extend("values" = "file name", "resume" = "place"))]
    #[default("train-labels-idx1-ubyte".to_owned())]
    pub train_labels: String,
    /// Images for evaluation.
    #[schemars(extend("values" = "file name", "resume" = "place"))]
    #[default("t10k-images-idx3-ubyte".to_owned())]
    pub eval_images: String,
    /// Labels for evaluation.
    #[schemars(extend("values" = "file name", "resume" = "place"))]
    #[default("t10k-labels-idx1-ubyte".to_owned())]
    pub eval_labels: String,
    /// Number of classes. Labels are smaller than this.
    #[schemars(range(min = 1, max = 256), extend("unit" = "classes"))]
    #[default(10)]
    pub classes: usize,
    /// Make an image a row of pixels, as an MLP takes it.
    pub flat: bool,
    /// Number of training examples, for commands that run without the data. If the data are
    /// present, it must match them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1, max = u32::MAX),
        extend("unit" = "examples", "absent" = "counted in the data", "resume" = "place"),
    )]
    pub num_examples: Option<usize>,
}

/// The binary version of CIFAR-10.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct Cifar10Config {
    /// The folder with `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`.
    #[schemars(extend("values" = "path", "required" = true, "resume" = "place"))]
    pub path: PathBuf,
    /// Crop and mirror training images at random.
    #[default(true)]
    pub augment: bool,
    /// Number of training examples, for commands that run without the data. If the data are
    /// present, it must match them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1, max = u32::MAX),
        extend("unit" = "examples", "absent" = "counted in the data", "resume" = "place"),
    )]
    pub num_examples: Option<usize>,
}

/// A folder of JPEG and PNG images for each class; classes are numbered in the order of their
/// names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct ImageFolderConfig {
    /// The folder with a folder of JPEG and PNG images for each class.
    #[schemars(extend("values" = "path", "required" = true, "resume" = "place"))]
    pub path: PathBuf,
    /// The folder for evaluation, with the same layout.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend(
            "values" = "path",
            "depends" = "none: `eval_fraction` is held out",
            "resume" = "place",
        ),
    )]
    pub eval_path: Option<PathBuf>,
    /// Share of each class, taken from its end, that is held out for evaluation. Only without
    /// `eval_path`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        extend(
            "exclusiveMinimum" = 0,
            "exclusiveMaximum" = 1,
            "unit" = "share of a class",
            "depends" = "`0.1`",
            "resume" = "place",
        ),
    )]
    pub eval_fraction: Option<f64>,
    /// Rows and columns of an example.
    #[schemars(range(min = 1, max = MAX_SIDE), extend("unit" = "pixels"))]
    #[default(224)]
    pub image_size: usize,
    /// Length of the shorter side to which images are scaled for evaluation, before the center is
    /// cropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1, max = 2 * MAX_SIDE),
        extend(
            "values" = "whole number, `image_size` to 16384",
            "unit" = "pixels",
            "depends" = "8/7 of `image_size`",
        ),
    )]
    pub eval_resize: Option<usize>,
    /// Crop and mirror training images at random.
    #[default(true)]
    pub augment: bool,
    /// What to do about a file that cannot be decoded. With `"skip"` the next example takes its
    /// place, and the run lists the skipped files.
    pub on_broken: OnBroken,
    /// Number of training examples, for commands that run without the data. If the data are
    /// present, it must match them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        range(min = 1, max = u32::MAX),
        extend("unit" = "examples", "absent" = "counted in the data", "resume" = "place"),
    )]
    pub num_examples: Option<usize>,
}

impl ImageFolderConfig {
    /// [`Self::eval_fraction`], or its default.
    pub fn eval_fraction(&self) -> f64 {
        self.eval_fraction.unwrap_or(HELD_OUT)
    }

    /// [`Self::eval_resize`], or its default.
    pub fn eval_resize(&self) -> usize {
        self.eval_resize.unwrap_or(self.image_size * 8 / 7)
    }
}

/// What to do about an example that cannot be decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnBroken {
    /// The run stops, naming the file.
    #[default]
    Stop,
    /// In training the next example takes its place, in evaluation it does not count; the run
    /// reports how many and which at its end.
    Skip,
}

/// A classification task that is computed from the seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct SyntheticConfig {
    /// Number of training examples. A fifth as many more, at least one, are for evaluation.
    #[schemars(range(min = 1, max = u32::MAX), extend("unit" = "examples", "resume" = "place"))]
    #[default(4096)]
    pub num_examples: usize,
    /// Length of an example.
    #[schemars(range(min = 1, max = MAX_FEATURES), extend("unit" = "numbers"))]
    #[default(64)]
    pub features: usize,
    /// Dims of an example, such as `[3, 32, 32]`. An empty list makes it a row of `features`.
    #[schemars(
        inner(range(min = 1, max = MAX_FEATURES)),
        extend("values" = "list of whole numbers with a product from 1 to 1048576"),
    )]
    pub image: Vec<usize>,
    /// Number of classes. Labels are smaller than this.
    #[schemars(range(min = 2, max = MAX_FEATURES), extend("unit" = "classes"))]
    #[default(10)]
    pub classes: usize,
}

/// Sequences of tokens that are computed from the seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct SyntheticTokensConfig {
    /// Number of training examples. A fifth as many more, at least one, are for evaluation.
    #[schemars(range(min = 1, max = u32::MAX), extend("unit" = "examples", "resume" = "place"))]
    #[default(4096)]
    pub num_examples: usize,
    /// Number of different tokens.
    #[schemars(range(min = 1, max = i32::MAX), extend("unit" = "tokens", "required" = true))]
    pub vocab_size: usize,
    /// Maximum number of tokens that a prediction sees. An example has one token more.
    #[schemars(range(min = 1, max = MAX_CONTEXT), extend("unit" = "tokens"))]
    #[default(1024)]
    pub context: usize,
}

impl DataConfig {
    /// How many training examples there are, as far as the configuration says.
    pub fn num_examples(&self) -> Option<usize> {
        match self {
            Self::Digits(DigitsConfig { num_examples, .. })
            | Self::Cifar10(Cifar10Config { num_examples, .. })
            | Self::ImageFolder(ImageFolderConfig { num_examples, .. })
            | Self::Idx(IdxConfig { num_examples, .. })
            | Self::Classification(ClassificationConfig { num_examples, .. })
            | Self::Text(TextConfig { num_examples, .. })
            | Self::Table(TableConfig { num_examples, .. })
            | Self::Arrays(ArraysConfig { num_examples, .. })
            | Self::Tokens(TokensConfig { num_examples, .. }) => *num_examples,
            Self::Synthetic(synthetic) => Some(synthetic.num_examples),
            Self::SyntheticTokens(tokens) => Some(tokens.num_examples),
        }
    }

    /// Every path that the section names, with its key.
    pub(super) fn paths_mut(&mut self) -> Vec<(&'static str, &mut PathBuf)> {
        let (path, eval_path) = match self {
            Self::Digits(digits) => (&mut digits.path, None),
            Self::Cifar10(cifar10) => (&mut cifar10.path, None),
            Self::ImageFolder(images) => (&mut images.path, images.eval_path.as_mut()),
            Self::Idx(idx) => (&mut idx.path, None),
            Self::Text(text) => (&mut text.path, None),
            Self::Tokens(tokens) => (&mut tokens.path, tokens.eval_path.as_mut()),
            Self::Table(table) => (&mut table.path, table.eval_path.as_mut()),
            Self::Arrays(arrays) => (&mut arrays.path, arrays.eval_path.as_mut()),
            Self::Classification(texts) => {
                let paths = [
                    ("path", Some(&mut texts.path)),
                    ("eval_path", texts.eval_path.as_mut()),
                    ("tokenizer", texts.tokenizer.as_mut()),
                ];
                return paths.into_iter().filter_map(|(key, path)| Some((key, path?))).collect();
            }
            Self::Synthetic(_) | Self::SyntheticTokens(_) => return vec![],
        };
        let paths = [("path", path)].into_iter();
        paths.chain(eval_path.map(|path| ("eval_path", path))).collect()
    }

    /// Tokens of an example, padding included; `None` if examples are no texts.
    pub fn tokens_per_example(&self) -> Option<usize> {
        match self {
            Self::Text(text) => Some(text.context),
            Self::Tokens(tokens) => Some(tokens.context),
            Self::SyntheticTokens(tokens) => Some(tokens.context),
            Self::Classification(texts) => Some(texts.max_length),
            Self::Digits(_)
            | Self::Cifar10(_)
            | Self::Idx(_)
            | Self::ImageFolder(_)
            | Self::Table(_)
            | Self::Arrays(_)
            | Self::Synthetic(_) => None,
        }
    }

    /// The key that determines the dims of an example.
    pub fn shape_key(&self) -> &'static str {
        match self {
            Self::Synthetic(synthetic) if synthetic.image.is_empty() => "data.features",
            Self::Synthetic(_) => "data.image",
            Self::Idx(_) => "data.flat",
            Self::Classification(_) => "data.max_length",
            Self::Text(_) | Self::Tokens(_) | Self::SyntheticTokens(_) => "data.context",
            Self::Table(_) => "data.features",
            Self::Arrays(_) => "data.x",
            Self::Digits(_) | Self::Cifar10(_) | Self::ImageFolder(_) => "data.source",
        }
    }

    /// The key that determines the number of classes.
    pub fn classes_key(&self) -> &'static str {
        match self {
            Self::Synthetic(_) | Self::Idx(_) => "data.classes",
            Self::Classification(_) | Self::Table(_) | Self::Arrays(_) => "data.labels",
            Self::Tokens(_) | Self::SyntheticTokens(_) => "data.vocab_size",
            Self::Digits(_) | Self::Cifar10(_) | Self::ImageFolder(_) | Self::Text(_) => {
                "data.source"
            }
        }
    }

    /// Checks that involve several keys.
    fn check(&self, errors: &mut KeyErrors) {
        match self {
            Self::Cifar10(_)
            | Self::Digits(_)
            | Self::Idx(_)
            | Self::Text(_)
            | Self::SyntheticTokens(_) => {}
            Self::Classification(texts) => {
                check_labels(&texts.labels, errors);
                let ends = [0].iter().chain(&texts.pad_to).chain([&texts.max_length]);
                let allowed = format!(
                    "at most {MAX_LENGTHS} whole numbers above 0 in ascending order, below \
                     data.max_length = {}",
                    texts.max_length
                );
                let fits = texts.pad_to.len() <= MAX_LENGTHS && ends.is_sorted_by(|a, b| a < b);
                errors.check(require(fits, "pad_to", format!("{:?}", texts.pad_to), &allowed));
            }
            Self::ImageFolder(images) => {
                if errors.none_of(&["image_size"]) {
                    let (least, most) = (images.image_size, 2 * MAX_SIDE);
                    let allowed =
                        format!("a whole number from {least}, which is data.image_size, to {most}");
                    let resize = images.eval_resize();
                    let fits = (least..=most).contains(&resize);
                    errors.check(require(fits, "eval_resize", resize, &allowed));
                }
            }
            Self::Table(table) => check_labels(&table.labels, errors),
            Self::Arrays(arrays) => {
                check_labels(&arrays.labels, errors);
                let is_f32 = |scale: f64| {
                    (f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&scale)
                };
                let scale = arrays.scale.unwrap_or(1.0);
                errors.check(require(is_f32(scale), "scale", scale, "a number, 1.2e-38 to 3.4e38"));
                if arrays.eval_x.is_none() && arrays.eval_y.is_some() {
                    let allowed = "nothing, or set data.eval_x too";
                    errors.check(require(false, "eval_y", "a name", allowed));
                }
            }
            Self::Tokens(tokens) => {
                let fits = tokens.dtype == TokenType::U32 || tokens.vocab_size <= 1 << 16;
                let allowed =
                    "a whole number from 1 to 65536, the ids that data.dtype = \"u16\" has";
                errors.check(require(fits, "vocab_size", tokens.vocab_size, allowed));
            }
            Self::Synthetic(SyntheticConfig { image, .. }) => {
                let size = image.iter().try_fold(1usize, |size, dim| size.checked_mul(*dim));
                let fits = size.is_some_and(|size| (1..=MAX_FEATURES).contains(&size));
                let allowed = format!("dims whose product is from 1 to {MAX_FEATURES}");
                errors.check(require(fits, "image", format!("{image:?}"), &allowed));
            }
        }
    }
}

impl Section for DataConfig {
    const NAME: &'static str = "data";
    const ABOUT: &str = "Where the examples come from, selected by `source`.";
    const TAG: Option<Tag> = Some(Tag {
        name: Self::TAG,
        choices: Self::NAMES,
        meaning: "Where the examples come from.",
        on_resume: OnResume::Warn,
    });
    const EXCLUSIVE: &'static [Exclusive] =
        &[(&["eval_path", "eval_x"], &["eval_fraction"]), (&["eval_path"], &["eval_x"])];

    fn keys(choice: &str) -> Vec<KeyInfo> {
        let mut keys = Self::keys_of(choice, OnResume::Warn);
        keys.extend(KeyInfo::of::<LateConfig>(OnResume::Warn));
        keys
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        // For its errors; `read_late` reads the values.
        reader.keys::<LateConfig>()?;
        let data = Self::read_choice(reader)?;
        data.check(&mut reader.errors);
        Some(data)
    }
}

/// The keys of the section that are the same for all sources. Their errors are those of the
/// section.
pub(super) fn read_late(file: &Table) -> LateConfig {
    let table = file.get(DataConfig::NAME).and_then(Value::as_table).cloned().unwrap_or_default();
    table.try_into().unwrap_or_default()
}

fn check_labels(labels: &[String], errors: &mut KeyErrors) {
    let different: BTreeSet<_> = labels.iter().collect();
    let fits = labels.is_empty() || labels.len() > 1 && different.len() == labels.len();
    let allowed = "an empty list, or two or more different names";
    errors.check(require(fits, "labels", format!("{labels:?}"), allowed));
}

/// The share that is held out by default.
pub(super) const HELD_OUT: f64 = 0.1;

/// Generous limits, so that a typing error does not allocate terabytes.
const MAX_FEATURES: usize = 1 << 20;
const MAX_CONTEXT: usize = 1 << 24;
const MAX_SIDE: usize = 1 << 13;
/// Each length is a program to compile.
const MAX_LENGTHS: usize = 16;
