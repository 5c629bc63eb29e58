//! Batches in host memory, one piece per batch shard.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use hlo::{DType, Literal, Tree};
use rayon::prelude::*;

use super::{Error, Field, Sampler, Source};
use crate::config::{BatchSize, BatchSplit, Microbatches};

/// A global batch, or those of several steps, in shards.
#[derive(Clone, Debug, PartialEq)]
pub struct HostBatch {
    /// Index of the (first) batch in the run or the evaluation, from 0.
    pub index: u64,
    /// Number of consecutive batches, one per step of the launch.
    pub num_steps: usize,
    /// The index of its fields in [`Source::smaller_fields`], or the number of those if it has
    /// [`Source::fields`].
    pub size_class: usize,
    /// The batch shards that the fields hold, ascending: all of them, or those that were asked for.
    pub shards: Arc<[usize]>,
    /// Per field, one literal per shard: `[batch_per_replica, ...]`, or for several steps
    /// `[num_steps, batch_per_replica, ...]`. Shards are contiguous pieces of a global batch, in
    /// order; surplus microbatches have the examples of the last one.
    pub fields: Tree<Vec<Arc<Literal>>>,
}

/// The batches of a training run, by index. Their fields are those of the source.
#[derive(Clone)]
pub struct TrainBatches {
    source: Arc<dyn Source>,
    sampler: Sampler,
    split: BatchSplit,
    shards: Arc<[usize]>,
    /// The smallest size of a batch.
    min_size_class: usize,
}

impl TrainBatches {
    /// Batches of `global_batch` examples in the order that follows from `seed`, in equal shards.
    ///
    /// # Errors
    /// If the replicas do not divide the batch, or the batch has more examples than the source.
    pub fn new(
        source: Arc<dyn Source>,
        seed: u64,
        global_batch: usize,
        num_batch_shards: usize,
    ) -> Result<Self, Error> {
        let batch = BatchSize::Global(global_batch);
        let split = BatchSplit::new(batch, Microbatches::Number(1), num_batch_shards)
            .map_err(|_| Error::UnevenBatch { batch: global_batch, num_batch_shards })?;
        Self::split(source, seed, split)
    }

    /// Batches in the order that follows from `seed`, split as `split` says.
    ///
    /// # Errors
    /// If the batch has more examples than the source.
    pub fn split(source: Arc<dyn Source>, seed: u64, split: BatchSplit) -> Result<Self, Error> {
        let (batch, num_examples) = (split.global_batch(), source.num_examples());
        let sampler = Sampler::new(seed, num_examples, batch);
        if sampler.batches_per_epoch() == 0 {
            return Err(Error::BatchExceedsData { batch, num_examples });
        }
        let shards = (0..split.num_batch_shards()).collect();
        Ok(Self { source, sampler, split, shards, min_size_class: 0 })
    }

    /// The same batches, all in the largest size, so that their steps take equally long.
    #[must_use]
    pub fn of_full_size(self) -> Self {
        Self { min_size_class: self.source.smaller_fields().len(), ..self }
    }

    /// The same batches, but only these shards of them are read; they must be in ascending order.
    #[must_use]
    pub fn of_shards(self, shards: Arc<[usize]>) -> Self {
        Self { shards, ..self }
    }

    /// Batch `k` of the run.
    ///
    /// # Errors
    /// If an example cannot be read.
    pub fn get(&self, k: u64) -> Result<HostBatch, Error> {
        self.launch(k..k + 1)
    }

    /// The batches of the steps of one launch.
    ///
    /// # Errors
    /// If an example cannot be read.
    pub fn launch(&self, steps: Range<u64>) -> Result<HostBatch, Error> {
        let (index, num_steps) = (steps.start, steps.clone().count());
        let num_examples = self.split.batch_per_replica() * self.split.num_batch_shards();
        let num_examples = (num_examples as u64).saturating_mul(num_steps as u64);
        check_bytes(self.source.as_ref(), num_examples)?;
        let batches: Vec<_> =
            steps.map(|k| (self.sampler.batch(k), self.sampler.epoch(k))).collect();
        let mut examples = vec![];
        for shard in &*self.shards {
            for (ids, epoch) in &batches {
                let places = self.split.places_of_shard(*shard);
                examples
                    .extend(places.map(|place| Example { id: ids[place], epoch: Some(*epoch) }));
            }
        }
        // Of the whole batch, so that all replicas run the same program.
        let ids = batches.iter().flat_map(|(ids, _)| ids.iter().copied());
        let size_class = size_class_of(self.source.as_ref(), ids).max(self.min_size_class);
        let num_shards = self.shards.len();
        let dims = match num_steps {
            1 => vec![examples.len() / num_shards],
            _ => vec![num_steps, examples.len() / num_shards / num_steps],
        };
        let batch = assemble(self.source.as_ref(), &examples, num_shards, &dims, size_class)?;
        Ok(HostBatch {
            index,
            num_steps,
            size_class,
            shards: self.shards.clone(),
            fields: batch.fields,
        })
    }

    /// The batches `start..end`, for [`super::Prefetch`].
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
/// padded with copies of the last example. The field `weight` (f32, `[global_batch /
/// num_batch_shards]`) is 1 for an example, and 0 for padding and for a broken example that is
/// skipped, so that weighted sums are exact on any number of replicas.
#[derive(Clone)]
pub struct EvalBatches {
    source: Arc<dyn Source>,
    global_batch: usize,
    num_batch_shards: usize,
    shards: Arc<[usize]>,
}

impl EvalBatches {
    /// The name of the field that masks the padding.
    pub const WEIGHT: &'static str = "weight";

    /// Batches of `global_batch` examples.
    ///
    /// # Errors
    /// If the batch is 0, or the replicas do not divide it.
    pub fn new(
        source: Arc<dyn Source>,
        global_batch: usize,
        num_batch_shards: usize,
    ) -> Result<Self, Error> {
        check_even(global_batch, num_batch_shards)?;
        let shards = (0..num_batch_shards).collect();
        Ok(Self { source, global_batch, num_batch_shards, shards })
    }

    /// The same batches, but only these shards of them are read; they must be in ascending order.
    #[must_use]
    pub fn of_shards(self, shards: Arc<[usize]>) -> Self {
        Self { shards, ..self }
    }

    /// Number of batches.
    pub fn num_batches(&self) -> u64 {
        self.source.num_examples().div_ceil(self.global_batch as u64)
    }

    /// The fields of every batch: those of the source, then the weight.
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
        let per_shard = self.global_batch / self.num_batch_shards;
        check_bytes(self.source.as_ref(), (per_shard * self.shards.len()) as u64)?;
        let first = k * self.global_batch as u64;
        let end = first.saturating_add(self.global_batch as u64).min(num_examples);
        let size_class = size_class_of(self.source.as_ref(), first..end);
        let of_shard = |shard: &usize| {
            let first = first + (shard * per_shard) as u64;
            first..first + per_shard as u64
        };
        let places: Vec<_> = self.shards.iter().flat_map(of_shard).collect();
        let example = |place: &u64| Example { id: (*place).min(num_examples - 1), epoch: None };
        let examples: Vec<_> = places.iter().map(example).collect();
        let Assembled { mut fields, is_there } =
            assemble(self.source.as_ref(), &examples, self.shards.len(), &[per_shard], size_class)?;
        let counts =
            places.into_iter().zip(is_there).map(|(place, there)| there && place < num_examples);
        let weights: Vec<_> = counts.map(|counts| if counts { 1f32 } else { 0.0 }).collect();
        let weights = weights
            .chunks_exact(per_shard)
            .map(|weights| Arc::new(Literal::from_slice(&[per_shard], weights)));
        fields.insert(Self::WEIGHT, weights.collect());
        Ok(HostBatch { index: k, num_steps: 1, size_class, shards: self.shards.clone(), fields })
    }

    /// `true` if broken examples were skipped.
    pub(crate) fn has_skipped(&self) -> bool {
        self.source.skipped().is_some_and(|skipped| skipped.count() > 0)
    }

    /// All batches, for [`super::Prefetch`].
    pub fn iter(&self) -> impl Iterator<Item = Result<HostBatch, Error>> + Send + use<> {
        let batches = self.clone();
        (0..self.num_batches()).map(move |k| batches.get(k))
    }
}

fn check_even(batch: usize, num_batch_shards: usize) -> Result<(), Error> {
    if batch == 0 || num_batch_shards == 0 || !batch.is_multiple_of(num_batch_shards) {
        return Err(Error::UnevenBatch { batch, num_batch_shards });
    }
    Ok(())
}

/// The smallest size class in which all examples fit.
fn size_class_of(source: &dyn Source, mut examples: impl Iterator<Item = u64>) -> usize {
    let largest = source.smaller_fields().len();
    let widen = |class: usize, example| match class.max(source.size_class_of(example)) {
        class if class < largest => ControlFlow::Continue(class),
        _ => ControlFlow::Break(largest),
    };
    match examples.try_fold(0, widen) {
        ControlFlow::Continue(class) | ControlFlow::Break(class) => class,
    }
}

/// Upper limit for the bytes of one launch, far above practical sizes. An allocation that exceeds
/// the memory would end the process without an error message.
const MAX_BYTES: u128 = 1 << 36;

fn check_bytes(source: &dyn Source, num_examples: u64) -> Result<(), Error> {
    let num_bytes: usize = source.fields().iter().map(Field::num_bytes).sum();
    let bytes = num_bytes as u128 * u128::from(num_examples);
    if bytes > MAX_BYTES {
        return Err(Error::BatchBytes { examples: num_examples, bytes, max: MAX_BYTES });
    }
    Ok(())
}

/// An example to be read.
#[derive(Clone, Copy)]
struct Example {
    id: u64,
    /// The epoch in training, which determines the augmentation; `None` in evaluation.
    epoch: Option<u64>,
}

/// Assembled examples, and for each whether it could be read.
struct Assembled {
    fields: Tree<Vec<Arc<Literal>>>,
    is_there: Vec<bool>,
}

/// Reads the examples, shard by shard, into one literal `[dims.., field dims..]` per field and
/// shard. The number of examples is the product of `num_shards` and `dims`, and they fit in
/// `size_class`.
fn assemble(
    source: &dyn Source,
    examples: &[Example],
    num_shards: usize,
    dims: &[usize],
    size_class: usize,
) -> Result<Assembled, Error> {
    let per_shard = examples.len() / num_shards;
    let fields = source.fields_of_size_class(size_class);
    let mut literals: Vec<Vec<_>> = (0..num_shards)
        .map(|_| {
            let zeros =
                |field: &Field| Literal::zeros(field.dtype, &[dims, &field.dims[..]].concat());
            fields.iter().map(zeros).collect()
        })
        .collect();
    // Every example is read directly into its place in the literals.
    let mut places: Vec<Vec<&mut [u8]>> = examples.iter().map(|_| vec![]).collect();
    for (literals, places) in literals.iter_mut().zip(places.chunks_exact_mut(per_shard)) {
        for (literal, field) in literals.iter_mut().zip(fields) {
            let mut rest = literal.bytes_mut();
            for place in &mut *places {
                let (first, others) = rest.split_at_mut(field.num_bytes());
                place.push(first);
                rest = others;
            }
        }
    }
    let read =
        |(example, mut place): (&Example, Vec<&mut [u8]>)| read_one(source, *example, &mut place);
    let results: Vec<_> = if source.is_costly() {
        examples.par_iter().zip(places).map(read).collect()
    } else {
        examples.iter().zip(places).map(read).collect()
    };
    // The first error in batch order, whichever thread was faster.
    let is_there = results.into_iter().collect::<Result<_, _>>()?;
    let mut pieces: Vec<Vec<_>> = vec![vec![]; fields.len()];
    for literals in literals {
        for (pieces, literal) in pieces.iter_mut().zip(literals) {
            pieces.push(Arc::new(literal));
        }
    }
    let fields = fields.iter().zip(pieces).map(|(field, pieces)| (field.name.to_owned(), pieces));
    Ok(Assembled { fields: fields.collect(), is_there })
}

/// The number of consecutive broken examples that is tolerated. More mean that something else is
/// wrong with the folder.
const MAX_BROKEN_RUN: u64 = 64;

/// Reads an example, and returns `false` if it is skipped. If an example is broken and the source
/// tolerates that, training takes the next intact one: it depends on the id alone, and is usually
/// of the same class. Evaluation leaves it out.
fn read_one(
    source: &dyn Source,
    Example { id, epoch }: Example,
    place: &mut [&mut [u8]],
) -> Result<bool, Error> {
    let num_examples = source.num_examples();
    let mut first_error = None;
    for offset in 0..MAX_BROKEN_RUN.min(num_examples) {
        let id = if offset == 0 { id } else { (id + offset) % num_examples };
        match (source.read(id, epoch, place), source.skipped()) {
            (Ok(()), _) => return Ok(true),
            (Err(error @ Error::Image { .. }), Some(skipped)) => {
                skipped.note(id, &error);
                first_error.get_or_insert(error);
            }
            (Err(error), _) => return Err(error),
        }
        if epoch.is_none() {
            place.iter_mut().for_each(|bytes| bytes.fill(0));
            return Ok(false);
        }
    }
    Err(match first_error {
        Some(Error::Image { path, reason }) => {
            let tried = MAX_BROKEN_RUN.min(num_examples);
            Error::NothingDecodes { tried, path, reason, key: "data.path" }
        }
        _ => Error::NoSuchExample { example: id, num_examples },
    })
}
