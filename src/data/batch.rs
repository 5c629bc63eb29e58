//! Batches in host memory, one piece for each replica.

use std::sync::Arc;

use hlo::{DType, Literal, Tree};

use super::{Error, Field, Sampler, Source};

/// A global batch, cut over the replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct HostBatch {
    /// Which batch of the run (or of the evaluation) it is, from 0: the cursor to save once it has been
    /// consumed.
    pub index: u64,
    /// For each field a literal `[global_batch / num_replicas, ...]` for each replica. Replicas hold
    /// contiguous pieces of the global batch, in replica order.
    pub fields: Tree<Vec<Arc<Literal>>>,
}

/// The batches of a training run, by index: fields are those of the source.
#[derive(Clone)]
pub struct TrainBatches {
    source: Arc<dyn Source>,
    sampler: Sampler,
    num_replicas: usize,
}

impl TrainBatches {
    /// Batches of `global_batch` examples in the order that follows from `seed`.
    ///
    /// # Errors
    /// If the batch does not divide over the replicas, or is more than there are examples.
    pub fn new(
        source: Arc<dyn Source>,
        seed: u64,
        global_batch: usize,
        num_replicas: usize,
    ) -> Result<Self, Error> {
        check_even(global_batch, num_replicas)?;
        let num_examples = source.num_examples();
        let sampler = Sampler::new(seed, num_examples, global_batch);
        if sampler.batches_per_epoch() == 0 {
            return Err(Error::BatchExceedsData { batch: global_batch, num_examples });
        }
        Ok(Self { source, sampler, num_replicas })
    }

    /// Batch `k` of the run.
    ///
    /// # Errors
    /// If an example cannot be read.
    pub fn get(&self, k: u64) -> Result<HostBatch, Error> {
        let ids = self.sampler.batch(k);
        let fields =
            assemble(self.source.as_ref(), &ids, Some(self.sampler.epoch(k)), self.num_replicas)?;
        Ok(HostBatch { index: k, fields })
    }

    /// The batches from `start` to before `end`, for [`super::Prefetch`]; `start` is the cursor of a run
    /// that continues.
    pub fn range(
        &self,
        start: u64,
        end: u64,
    ) -> impl Iterator<Item = Result<HostBatch, Error>> + Send + use<> {
        let batches = self.clone();
        (start..end).map(move |k| batches.get(k))
    }
}

/// The batches of one evaluation: every example once, in the order of the source. The last batch is
/// filled up with copies of the last example, and the field `weight` (f32, `[global_batch /
/// num_replicas]`) is 1 for an example and 0 for a copy: sums of weighted losses are exact on any number
/// of replicas.
#[derive(Clone)]
pub struct EvalBatches {
    source: Arc<dyn Source>,
    global_batch: usize,
    num_replicas: usize,
}

impl EvalBatches {
    /// The name of the field that masks what was filled up.
    pub const WEIGHT: &'static str = "weight";

    /// Batches of `global_batch` examples.
    ///
    /// # Errors
    /// If the batch is 0 or does not divide over the replicas.
    pub fn new(
        source: Arc<dyn Source>,
        global_batch: usize,
        num_replicas: usize,
    ) -> Result<Self, Error> {
        check_even(global_batch, num_replicas)?;
        Ok(Self { source, global_batch, num_replicas })
    }

    /// Batches that cover every example.
    pub fn num_batches(&self) -> u64 {
        self.source.num_examples().div_ceil(self.global_batch as u64)
    }

    /// The fields of every batch: those of the source, and the weight behind them.
    pub fn fields(&self) -> Vec<Field> {
        let weight = Field { name: Self::WEIGHT, dtype: DType::F32, dims: vec![] };
        self.source.fields().iter().cloned().chain([weight]).collect()
    }

    /// Batch `k`, below [`Self::num_batches`].
    ///
    /// # Errors
    /// If there is no such batch, or an example cannot be read.
    pub fn get(&self, k: u64) -> Result<HostBatch, Error> {
        let num_examples = self.source.num_examples();
        if k >= self.num_batches() {
            let example = k.saturating_mul(self.global_batch as u64);
            return Err(Error::NoSuchExample { example, num_examples });
        }
        let first = k * self.global_batch as u64;
        let places = first..first + self.global_batch as u64;
        let ids: Vec<_> = places.clone().map(|place| place.min(num_examples - 1)).collect();
        let weights: Vec<_> =
            places.map(|place| if place < num_examples { 1f32 } else { 0.0 }).collect();
        let mut fields = assemble(self.source.as_ref(), &ids, None, self.num_replicas)?;
        let per_replica = self.global_batch / self.num_replicas;
        let weights = weights
            .chunks_exact(per_replica)
            .map(|weights| Arc::new(Literal::from_slice(&[per_replica], weights)));
        fields.insert(Self::WEIGHT, weights.collect());
        Ok(HostBatch { index: k, fields })
    }

    /// All batches, for [`super::Prefetch`].
    pub fn iter(&self) -> impl Iterator<Item = Result<HostBatch, Error>> + Send + use<> {
        let batches = self.clone();
        (0..self.num_batches()).map(move |k| batches.get(k))
    }
}

fn check_even(batch: usize, num_replicas: usize) -> Result<(), Error> {
    if batch == 0 || num_replicas == 0 || !batch.is_multiple_of(num_replicas) {
        return Err(Error::UnevenBatch { batch, num_replicas });
    }
    Ok(())
}

/// Reads the examples into literals, one of each field for each replica. The number of ids must be a
/// multiple of the replicas.
fn assemble(
    source: &dyn Source,
    ids: &[u64],
    epoch: Option<u64>,
    num_replicas: usize,
) -> Result<Tree<Vec<Arc<Literal>>>, Error> {
    let per_replica = ids.len() / num_replicas;
    let fields = source.fields();
    let mut pieces: Vec<Vec<_>> = vec![vec![]; fields.len()];
    for ids in ids.chunks_exact(per_replica) {
        let mut literals: Vec<_> = fields
            .iter()
            .map(|field| {
                let dims: Vec<_> = [per_replica].iter().chain(&field.dims).copied().collect();
                Literal::zeros(field.dtype, &dims)
            })
            .collect();
        let mut rest: Vec<&mut [u8]> = literals.iter_mut().map(Literal::bytes_mut).collect();
        for id in ids {
            let mut example: Vec<&mut [u8]> = rest
                .iter_mut()
                .zip(fields)
                .map(|(rest, field)| {
                    let (first, others) = std::mem::take(rest).split_at_mut(field.num_bytes());
                    *rest = others;
                    first
                })
                .collect();
            source.read(*id, epoch, &mut example)?;
        }
        for (pieces, literal) in pieces.iter_mut().zip(literals) {
            pieces.push(Arc::new(literal));
        }
    }
    Ok(fields.iter().zip(pieces).map(|(field, pieces)| (field.name.to_owned(), pieces)).collect())
}
