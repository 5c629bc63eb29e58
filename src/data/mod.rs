//! Examples: where they come from, in which order they are used, and how they become batches.
//!
//! A [`Source`] reads single examples; a [`Sampler`] says which ones step `k` takes, as a pure function
//! of the seed that does not know the number of replicas; [`TrainBatches`] and [`EvalBatches`] put them
//! into literals, one for each replica; [`Prefetch`] does so on a thread, ahead of the loop (phase: run).

mod batch;
mod digits;
mod error;
mod prefetch;
mod sampler;
mod source;
mod synthetic;

use std::sync::Arc;

use crate::config;

pub use batch::{EvalBatches, HostBatch, TrainBatches};
pub use digits::Digits;
pub use error::Error;
pub use prefetch::{Prefetch, PrefetchError, Prefetched};
pub use sampler::Sampler;
pub use source::{Field, Source};
pub use synthetic::Synthetic;

/// The two parts of a data set; no example is in both.
#[derive(Clone)]
pub struct Splits {
    /// What the model learns from.
    pub train: Arc<dyn Source>,
    /// What it is measured on.
    pub eval: Arc<dyn Source>,
}

/// Opens the source that a configuration names. `seed` is `train.seed`: computed data follow from it.
///
/// # Errors
/// A file that cannot be read or is not what it should be, with the line.
pub fn open(config: &config::Data, seed: u64) -> Result<Splits, Error> {
    Ok(match config {
        config::Data::Digits(config::Digits { path }) => {
            let (train, eval) = Digits::load(path)?;
            Splits { train: Arc::new(train), eval: Arc::new(eval) }
        }
        config::Data::Synthetic(config) => {
            let config::Synthetic { num_examples, features, image, classes } = config;
            let row = [*features];
            let dims = if image.is_empty() { &row[..] } else { image };
            let (train, eval) = Synthetic::splits(seed, *num_examples, dims, *classes);
            Splits { train: Arc::new(train), eval: Arc::new(eval) }
        }
    })
}
