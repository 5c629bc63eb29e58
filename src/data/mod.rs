//! Examples: where they come from, the order in which they are used, and how they become batches
//! (phase: run).
//!
//! A [`Source`] reads single examples. A [`Sampler`] computes the ids of step `k`'s batch from the
//! seed, the number of examples and the global batch, not from the number of replicas.
//! [`TrainBatches`] and [`EvalBatches`] assemble the examples into one literal per field and shard
//! of the batch, those of this process only; [`Prefetch`] does so on a thread, ahead of the loop.

mod arrays;
mod augment;
mod batch;
mod cifar10;
mod classification;
mod digits;
mod error;
mod files;
mod fingerprint;
mod formats;
mod idx;
mod image;
mod image_folder;
mod like_training;
mod memory;
mod prefetch;
mod row_labels;
mod sampler;
mod skipped;
mod source;
mod stratified;
mod synthetic;
mod synthetic_tokens;
mod table;
mod text;
mod token_format;
mod token_scan;
mod tokens;
mod windows;

use std::sync::Arc;

use crate::config::{self, Config, LossConfig};

pub use arrays::{ArrayLabels, ArraySplits, Arrays, npy_file};
pub use batch::{EvalBatches, HostBatch, TrainBatches};
pub use cifar10::Cifar10;
pub use classification::{
    Classification, ClassificationSplits, EncodedText, TextEncoder, TextRow, TokenizerClass,
    class_names, labels_of_file, read_text_rows,
};
pub use digits::Digits;
pub use error::Error;
pub use idx::Idx;
pub use image_folder::ImageFolder;
pub use like_training::LikeTraining;
pub(crate) use memory::SystemMemory;
pub use prefetch::{NextBatch, Prefetch, PrefetchError, Prefetched};
pub use sampler::Sampler;
pub use skipped::Skipped;
pub use source::{Field, LabelKind, LabelScale, Source};
pub use stratified::StratifiedSplit;
pub use synthetic::Synthetic;
pub use synthetic_tokens::SyntheticTokens;
pub use table::{SurveyedColumn, Table, TableSplits, column_names, survey};
pub use text::Text;
pub use tokens::Tokens;

/// The two parts of a data set; no example is in both.
#[derive(Clone)]
pub struct Splits {
    /// The training examples.
    pub train: Arc<dyn Source>,
    /// The evaluation examples.
    pub eval: Arc<dyn Source>,
    /// What looks like a mistake in the data, but may be none. Who opens them says so.
    pub warnings: Vec<String>,
}

impl Splits {
    /// Reads what could otherwise end a run in its middle; see [`Source::check`].
    ///
    /// # Errors
    /// What is wrong with the data.
    pub fn check(&self, tell: &(dyn Fn(&str) + Sync)) -> Result<(), Error> {
        self.train.check(tell)?;
        self.eval.check(tell)
    }

    /// The broken examples that were skipped in either part, or `None` if there are none.
    pub fn skipped_report(&self) -> Option<String> {
        let parts = [("training", &self.train), ("evaluation", &self.eval)];
        let reports: Vec<_> = parts
            .iter()
            .filter_map(|(name, part)| Some(format!("{name}: {}", part.skipped()?.report()?)))
            .collect();
        (!reports.is_empty()).then(|| reports.join("\n"))
    }

    fn of<S: Source + 'static>(train: S, eval: S) -> Self {
        Self { train: Arc::new(train), eval: Arc::new(eval), warnings: vec![] }
    }
}

/// Opens the source that a configuration names. `train.seed` determines synthetic data, the
/// augmentation of training images, and which examples are held out; `train.loss` says whether
/// columns of numbers are classes.
///
/// # Errors
/// A file that cannot be read or has the wrong format; or a number of training examples other than
/// the configured one.
pub fn open(config: &Config) -> Result<Splits, Error> {
    let purpose = Purpose {
        seed: config.train.seed,
        loss: config.train.loss,
        examples: ExampleKind::of(&config.model),
    };
    open_for(&config.data, purpose)
}

/// What examples are read for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purpose {
    /// `train.seed`.
    pub seed: u64,
    /// `train.loss`.
    pub loss: LossConfig,
    /// What the model takes.
    pub examples: ExampleKind,
}

/// What a model takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExampleKind {
    /// Numbers of any dims, with a label.
    #[default]
    Numbers,
    /// Ids of tokens, with a label.
    Text,
    /// Ids of tokens, with the id of a token as the label of each.
    Sequence,
}

impl ExampleKind {
    /// What a configured model takes.
    pub fn of(model: &config::ModelConfig) -> Self {
        let example = model.example();
        let of_field = |wanted: &str| example.iter().find(|(name, _)| *name == wanted);
        match (of_field("x"), of_field("y")) {
            (Some((_, x)), _) if x.dtype.is_float() => Self::Numbers,
            (_, Some((_, y))) if y.dims.is_empty() => Self::Text,
            _ => Self::Sequence,
        }
    }
}

/// [`open`] for a section of a configuration.
///
/// # Errors
/// As [`open`].
pub fn open_for(config: &config::DataConfig, purpose: Purpose) -> Result<Splits, Error> {
    let splits = open_source(config, purpose)?;
    let found = splits.train.num_examples();
    match config.num_examples() {
        Some(given) if given as u64 != found => Err(Error::NumExamples { given, found }),
        _ => Ok(splits),
    }
}

fn open_source(config: &config::DataConfig, purpose: Purpose) -> Result<Splits, Error> {
    let seed = purpose.seed;
    Ok(match config {
        config::DataConfig::Cifar10(config) => {
            let (train, eval) = Cifar10::load(config, seed)?;
            Splits::of(train, eval)
        }
        config::DataConfig::Classification(config) => {
            let ClassificationSplits { train, eval, warnings } =
                Classification::load(config, seed)?;
            Splits { warnings, ..Splits::of(train, eval) }
        }
        config::DataConfig::Digits(config::DigitsConfig { path, .. }) => {
            let (train, eval) = Digits::load(path)?;
            Splits::of(train, eval)
        }
        config::DataConfig::Idx(config) => {
            let (train, eval) = Idx::load(config)?;
            Splits::of(train, eval)
        }
        config::DataConfig::ImageFolder(config) => {
            let (train, eval) = ImageFolder::open(config, seed)?;
            Splits::of(train, eval)
        }
        config::DataConfig::Table(config) => {
            let TableSplits { train, eval, warnings } = Table::load(config, purpose)?;
            Splits { warnings, ..Splits::of(train, eval) }
        }
        config::DataConfig::Arrays(config) => {
            let ArraySplits { train, eval, warnings } = Arrays::load(config, purpose)?;
            Splits { warnings, ..Splits::of(train, eval) }
        }
        config::DataConfig::Text(config) => {
            let (train, eval) = Text::load(config)?;
            Splits::of(train, eval)
        }
        config::DataConfig::Tokens(config) => {
            let (train, eval) = Tokens::open(config)?;
            Splits::of(train, eval)
        }
        config::DataConfig::Synthetic(config) => {
            let config::SyntheticConfig { num_examples, features, image, classes } = config;
            let row = [*features];
            let dims = if image.is_empty() { &row[..] } else { image };
            let (train, eval) = Synthetic::splits(seed, *num_examples, dims, *classes);
            Splits::of(train, eval)
        }
        config::DataConfig::SyntheticTokens(config) => {
            let config::SyntheticTokensConfig { num_examples, vocab_size, context } = *config;
            let (train, eval) = SyntheticTokens::splits(seed, num_examples, context, vocab_size);
            Splits::of(train, eval)
        }
    })
}
