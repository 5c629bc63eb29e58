//! `[data]`: where the examples come from.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::error::{KeyErrors, Range, require};
use super::keys::{Exclusive, Reader, Section, choices};

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
        /// A classification task that is computed, not read.
        "synthetic" => Synthetic(SyntheticConfig),
        /// Sequences of tokens that are computed, not read.
        "synthetic_tokens" => SyntheticTokens(SyntheticTokensConfig),
    }
}

// Every path below is made absolute when it is read, so that the copy of the configuration in a
// run's directory names the same file.

/// Images of handwritten digits, from a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DigitsConfig {
    /// The `.csv.gz` file.
    pub path: PathBuf,
    /// Number of training examples, for commands that run without the data; if they are present, it
    /// must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_examples: Option<usize>,
}

/// The bytes of a file, or of all files in a folder: each byte is a token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TextConfig {
    /// The file or the folder.
    pub path: PathBuf,
    /// In a folder, read only files with these extensions, such as `["rs", "md"]`. Default: all.
    #[serde(default)]
    pub extensions: Vec<String>,
    /// Maximum number of tokens that a prediction sees; an example has one more. Default 256.
    #[serde(default = "text_context")]
    pub context: usize,
    /// Share of the text, taken from its end, that is held out for evaluation. Default 0.1.
    #[serde(default = "tenth")]
    pub eval_fraction: f64,
    /// Number of training examples, for commands that run without the data; if they are present, it
    /// must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_examples: Option<usize>,
}

/// Text that is already tokenized: little-endian integers without a header.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokensConfig {
    /// The file.
    pub path: PathBuf,
    /// The file for evaluation; without it the end of `path` is held out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_path: Option<PathBuf>,
    /// Share of `path`, taken from its end, that is held out for evaluation without `eval_path`.
    /// Default 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_fraction: Option<f64>,
    /// `u16` or `u32`. Default `u16`.
    #[serde(default)]
    pub dtype: TokenType,
    /// Size of the vocabulary; token ids are smaller.
    pub vocab_size: usize,
    /// Maximum number of tokens that a prediction sees; an example has one more. Default 1024.
    #[serde(default = "token_context")]
    pub context: usize,
    /// Number of training examples, for commands that run without the data; if they are present, it
    /// must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_examples: Option<usize>,
}

impl TokensConfig {
    /// [`Self::eval_fraction`], or its default.
    pub fn eval_fraction(&self) -> f64 {
        self.eval_fraction.unwrap_or_else(tenth)
    }
}

/// Texts with labels: rows of `.tsv`, `.csv` or `.jsonl` files with named columns, as GLUE has
/// them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassificationConfig {
    /// The file.
    pub path: PathBuf,
    /// The file for evaluation; without it a part of `path` is held out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_path: Option<PathBuf>,
    /// Share of each class in `path`, drawn by the seed, that is held out for evaluation without
    /// `eval_path`. Default 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_fraction: Option<f64>,
    /// The column of the text. Default `sentence`.
    #[serde(default = "sentence")]
    pub text: String,
    /// The column of a second text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text_pair: Option<String>,
    /// The column of the label. Default `label`.
    #[serde(default = "label")]
    pub label: String,
    /// The labels in the order of the classes. Default: the order of the head that a run starts
    /// from if `path` has its names, otherwise the labels of `path`, sorted.
    #[serde(default)]
    pub labels: Vec<String>,
    /// A folder with `tokenizer.json` or `vocab.txt`, or such a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<PathBuf>,
    /// Tokens of an example, special ones included. Default 128.
    #[serde(default = "max_length")]
    pub max_length: usize,
    /// Lengths below `max_length`, ascending, that batches of shorter texts are padded to. Default:
    /// none.
    #[serde(default)]
    pub pad_to: Vec<usize>,
    /// `true` if longer texts lose their end, instead of being errors. Default false.
    #[serde(default)]
    pub truncate: bool,
    /// Number of training examples, for commands that run without the data; if they are present, it
    /// must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_examples: Option<usize>,
}

impl ClassificationConfig {
    /// [`Self::eval_fraction`], or its default.
    pub fn eval_fraction(&self) -> f64 {
        self.eval_fraction.unwrap_or_else(tenth)
    }
}

/// How a token is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IdxConfig {
    /// The folder with the four files.
    pub path: PathBuf,
    /// Default `train-images-idx3-ubyte`.
    #[serde(default = "train_images")]
    pub train_images: String,
    /// Default `train-labels-idx1-ubyte`.
    #[serde(default = "train_labels")]
    pub train_labels: String,
    /// Default `t10k-images-idx3-ubyte`.
    #[serde(default = "eval_images")]
    pub eval_images: String,
    /// Default `t10k-labels-idx1-ubyte`.
    #[serde(default = "eval_labels")]
    pub eval_labels: String,
    /// Number of classes; labels are smaller. Default 10.
    #[serde(default = "ten")]
    pub classes: usize,
    /// `true` if an image is `[H * W]`, as an MLP takes it, instead of `[1, H, W]`. Default false.
    #[serde(default)]
    pub flat: bool,
    /// Number of training examples, for commands that run without the data; if they are present, it
    /// must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_examples: Option<usize>,
}

/// The binary version of CIFAR-10.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cifar10Config {
    /// The folder with `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`.
    pub path: PathBuf,
    /// `true` if training images are cropped and mirrored at random. Default true.
    #[serde(default = "yes")]
    pub augment: bool,
    /// Number of training examples, for commands that run without the data; if they are present, it
    /// must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_examples: Option<usize>,
}

/// A folder of JPEG and PNG images for each class; classes are numbered in the order of their
/// names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImageFolderConfig {
    /// The folder with the classes' folders, such as ImageNet's `train`.
    pub path: PathBuf,
    /// The same for evaluation, such as ImageNet's `val`; without it a part of each class in `path`
    /// is held out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_path: Option<PathBuf>,
    /// Share of each class, taken from its end, that is held out without `eval_path`. Default 0.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_fraction: Option<f64>,
    /// Rows and columns of an example. Default 224.
    #[serde(default = "image_size")]
    pub image_size: usize,
    /// The shorter side that an image is scaled to for evaluation, before the centre is taken.
    /// Default 8/7 of `image_size`, as 256 of 224.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_resize: Option<usize>,
    /// `true` if training images are cropped and mirrored at random. Default true.
    #[serde(default = "yes")]
    pub augment: bool,
    /// What to do about a file that cannot be decoded. Default `stop`.
    #[serde(default)]
    pub on_broken: OnBroken,
    /// Number of training examples, for commands that run without the data; if they are present, it
    /// must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_examples: Option<usize>,
}

impl ImageFolderConfig {
    /// [`Self::eval_fraction`], or its default.
    pub fn eval_fraction(&self) -> f64 {
        self.eval_fraction.unwrap_or_else(tenth)
    }

    /// [`Self::eval_resize`], or its default.
    pub fn eval_resize(&self) -> usize {
        self.eval_resize.unwrap_or(self.image_size * 8 / 7)
    }
}

/// What to do about an example that cannot be decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SyntheticConfig {
    /// Training examples; a fifth as many others, but at least one, are for evaluation. Default
    /// 4096.
    pub num_examples: usize,
    /// Numbers in an example. Default 64.
    pub features: usize,
    /// Dims of an example, like `[3, 32, 32]` for an image. Default none: a row of `features`.
    pub image: Vec<usize>,
    /// Default 10.
    pub classes: usize,
}

impl Default for SyntheticConfig {
    fn default() -> Self {
        Self { num_examples: 4096, features: 64, image: vec![], classes: 10 }
    }
}

/// Sequences of tokens that are computed from the seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyntheticTokensConfig {
    /// Training examples; a fifth as many others, but at least one, are for evaluation. Default
    /// 4096.
    #[serde(default = "num_examples")]
    pub num_examples: usize,
    /// Size of the vocabulary; token ids are smaller.
    pub vocab_size: usize,
    /// Tokens that a prediction sees at most. Default 1024.
    #[serde(default = "token_context")]
    pub context: usize,
}

fn num_examples() -> usize {
    SyntheticConfig::default().num_examples
}

fn text_context() -> usize {
    256
}

fn token_context() -> usize {
    1024
}

fn sentence() -> String {
    "sentence".to_owned()
}

fn label() -> String {
    "label".to_owned()
}

fn max_length() -> usize {
    128
}

fn train_images() -> String {
    "train-images-idx3-ubyte".to_owned()
}

fn train_labels() -> String {
    "train-labels-idx1-ubyte".to_owned()
}

fn eval_images() -> String {
    "t10k-images-idx3-ubyte".to_owned()
}

fn eval_labels() -> String {
    "t10k-labels-idx1-ubyte".to_owned()
}

fn image_size() -> usize {
    224
}

fn yes() -> bool {
    true
}

fn ten() -> usize {
    10
}

fn tenth() -> f64 {
    0.1
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
            Self::Digits(_) | Self::Cifar10(_) | Self::ImageFolder(_) => "data.source",
        }
    }

    /// The key that determines the number of classes.
    pub fn classes_key(&self) -> &'static str {
        match self {
            Self::Synthetic(_) | Self::Idx(_) => "data.classes",
            Self::Classification(_) => "data.labels",
            Self::Tokens(_) | Self::SyntheticTokens(_) => "data.vocab_size",
            Self::Digits(_) | Self::Cifar10(_) | Self::ImageFolder(_) | Self::Text(_) => {
                "data.source"
            }
        }
    }

    /// Checks that involve several keys, and those of fractions.
    fn check(&self, errors: &mut KeyErrors) {
        match self {
            Self::Cifar10(_) | Self::Digits(_) | Self::Idx(_) | Self::SyntheticTokens(_) => {}
            Self::Classification(texts) => {
                let labels = &texts.labels;
                let different: BTreeSet<_> = labels.iter().collect();
                let fits = labels.is_empty() || labels.len() > 1 && different.len() == labels.len();
                let allowed = "an empty list, or two or more different names";
                errors.check(require(fits, "labels", format!("{labels:?}"), allowed));
                let ends = [0].iter().chain(&texts.pad_to).chain([&texts.max_length]);
                let allowed = format!(
                    "at most {MAX_LENGTHS} whole numbers above 0 in ascending order, below data.max_length = {}",
                    texts.max_length
                );
                let fits = texts.pad_to.len() <= MAX_LENGTHS && ends.is_sorted_by(|a, b| a < b);
                errors.check(require(fits, "pad_to", format!("{:?}", texts.pad_to), &allowed));
                check_fraction(texts.eval_fraction(), errors);
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
                check_fraction(images.eval_fraction(), errors);
            }
            Self::Tokens(tokens) => {
                let fits = tokens.dtype == TokenType::U32 || tokens.vocab_size <= 1 << 16;
                let allowed =
                    "a whole number from 1 to 65536, the ids that data.dtype = \"u16\" has";
                errors.check(require(fits, "vocab_size", tokens.vocab_size, allowed));
                check_fraction(tokens.eval_fraction(), errors);
            }
            Self::Text(text) => check_fraction(text.eval_fraction, errors),
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
    const TAG: Option<&'static str> = Some(Self::TAG);
    const CHOICES: &'static [&'static str] = Self::NAMES;

    const EXCLUSIVE: &'static [Exclusive] = &[(&["eval_path"], &["eval_fraction"])];

    fn keys(choice: &str) -> Vec<&'static str> {
        Self::keys_of(choice)
    }

    fn range(choice: &str, key: &str) -> Option<Range> {
        let max = match (key, choice) {
            ("num_examples", _) => u32::MAX as usize,
            ("image_size", _) => MAX_SIDE,
            ("eval_resize", _) => 2 * MAX_SIDE,
            ("vocab_size", _) => i32::MAX as usize,
            ("context" | "max_length", _) => MAX_CONTEXT,
            ("classes", "idx") => 256,
            ("classes", _) => return Some(2..=MAX_FEATURES as i64),
            ("features" | "image", _) => MAX_FEATURES,
            _ => return None,
        };
        Some(1..=max as i64)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let data = Self::read_choice(reader)?;
        data.check(&mut reader.errors);
        Some(data)
    }
}

/// Generous limits, so that a typing error does not allocate terabytes.
const MAX_FEATURES: usize = 1 << 20;
const MAX_CONTEXT: usize = 1 << 24;
const MAX_SIDE: usize = 1 << 13;
/// Each length is a program to compile.
const MAX_LENGTHS: usize = 16;

/// Neither split may be empty: a run ends with an evaluation.
fn check_fraction(value: f64, errors: &mut KeyErrors) {
    let holds = value > 0.0 && value < 1.0;
    errors.check(require(holds, "eval_fraction", value, "a number above 0 and below 1"));
}
