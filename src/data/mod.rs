//! Examples: where they come from, in which order they are used, and how they become batches.
//!
//! A [`Source`] reads single examples; a [`Sampler`] says which ones step `k` takes, as a pure function
//! of the seed that does not know the number of replicas; [`TrainBatches`] and [`EvalBatches`] put them
//! into literals, one for each replica; [`Prefetch`] does so on a thread, ahead of the loop (phase: run).

mod augment;
mod batch;
mod cifar10;
mod digits;
mod error;
mod files;
mod idx;
mod image;
mod image_folder;
mod prefetch;
mod sampler;
mod skipped;
mod source;
mod synthetic;
mod synthetic_tokens;
mod text;
mod tokens;
mod windows;

use std::sync::Arc;

use crate::config;

pub use batch::{EvalBatches, HostBatch, TrainBatches};
pub use cifar10::Cifar10;
pub use digits::Digits;
pub use error::Error;
pub use idx::Idx;
pub use image_folder::ImageFolder;
pub use prefetch::{Prefetch, PrefetchError, Prefetched};
pub use sampler::Sampler;
pub use skipped::Skipped;
pub use source::{Field, Source};
pub use synthetic::Synthetic;
pub use synthetic_tokens::SyntheticTokens;
pub use text::Text;
pub use tokens::Tokens;

/// The two parts of a data set; no example is in both.
#[derive(Clone)]
pub struct Splits {
    /// What the model learns from.
    pub train: Arc<dyn Source>,
    /// What it is measured on.
    pub eval: Arc<dyn Source>,
}

impl Splits {
    /// What was left out of either part as broken, if anything was.
    pub fn skipped_report(&self) -> Option<String> {
        let parts = [("training", &self.train), ("evaluation", &self.eval)];
        let reports: Vec<_> = parts
            .iter()
            .filter_map(|(name, part)| Some(format!("{name}: {}", part.skipped()?.report()?)))
            .collect();
        (!reports.is_empty()).then(|| reports.join("\n"))
    }

    fn of<S: Source + 'static>(train: S, eval: S) -> Self {
        Self { train: Arc::new(train), eval: Arc::new(eval) }
    }
}

/// Opens the source that a configuration names. `seed` is `train.seed`: computed data and the random changes to
/// training images follow from it.
///
/// # Errors
/// A file that cannot be read or is not what it should be, with the place; or another number of training
/// examples than the configuration says.
pub fn open(config: &config::DataConfig, seed: u64) -> Result<Splits, Error> {
    let splits = open_source(config, seed)?;
    let found = splits.train.num_examples();
    match config.num_examples() {
        Some(given) if given as u64 != found => Err(Error::NumExamples { given, found }),
        _ => Ok(splits),
    }
}

fn open_source(config: &config::DataConfig, seed: u64) -> Result<Splits, Error> {
    Ok(match config {
        config::DataConfig::Cifar10(config) => {
            let (train, eval) = Cifar10::load(config, seed)?;
            Splits::of(train, eval)
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
