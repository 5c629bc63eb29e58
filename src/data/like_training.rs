//! Inputs without labels, in the place of those that a model was trained on.

use std::sync::Arc;

use super::{Error, Field, LabelKind, Source};

/// The inputs of one source, with classes, values or labels like those of another, which the model
/// was trained on. Field `y` is 0.
pub struct LikeTraining {
    inputs: Arc<dyn Source>,
    training: Arc<dyn Source>,
    /// What is subtracted from each channel, and what divides the rest.
    normalization: Vec<(f32, f32)>,
}

impl LikeTraining {
    /// Both must have a field `x` of the same dims and type.
    ///
    /// # Errors
    /// Inputs of other dims.
    pub fn new(inputs: Arc<dyn Source>, training: Arc<dyn Source>) -> Result<Self, Error> {
        let x = |source: &Arc<dyn Source>| source.fields().first().cloned();
        match (x(&inputs), x(&training)) {
            (Some(given), Some(wanted)) if given != wanted => Err(Error::Array {
                problem: format!(
                    "an example has {} {:?}, but the model takes {} {:?}; reshape the array",
                    given.dtype, given.dims, wanted.dtype, wanted.dims
                ),
            }),
            _ => Ok(Self { inputs, training, normalization: vec![] }),
        }
    }

    /// Subtracts the first number of a pair from each element of a channel of `x`, and divides by
    /// the second; a pair for each channel, which is the first dim.
    pub fn normalized(self, normalization: &[(f32, f32)]) -> Self {
        Self { normalization: normalization.to_vec(), ..self }
    }
}

impl Source for LikeTraining {
    fn num_examples(&self) -> u64 {
        self.inputs.num_examples()
    }

    fn num_outputs(&self) -> usize {
        self.training.num_outputs()
    }

    fn label_kind(&self) -> LabelKind {
        self.training.label_kind()
    }

    fn labels(&self) -> &[String] {
        self.training.labels()
    }

    fn vocab_size(&self) -> Option<usize> {
        self.training.vocab_size()
    }

    fn fields(&self) -> &[Field] {
        self.training.fields()
    }

    fn read(&self, example: u64, epoch: Option<u64>, out: &mut [&mut [u8]]) -> Result<(), Error> {
        let mut label = vec![0; self.inputs.fields().last().map_or(0, Field::num_bytes)];
        let Some((x, others)) = out.split_first_mut() else { return Ok(()) };
        self.inputs.read(example, epoch, &mut [&mut **x, &mut label])?;
        others.iter_mut().for_each(|field| field.fill(0));
        if self.normalization.is_empty() {
            return Ok(());
        }
        let num_channels = self.normalization.len();
        for (channel, (mean, std)) in x.chunks_mut(x.len() / num_channels).zip(&self.normalization)
        {
            let (values, _) = channel.as_chunks_mut();
            for value in values {
                *value = ((f32::from_ne_bytes(*value) - mean) / std).to_ne_bytes();
            }
        }
        Ok(())
    }

    fn check(&self, tell: &(dyn Fn(&str) + Sync)) -> Result<(), Error> {
        self.inputs.check(tell)
    }

    fn is_costly(&self) -> bool {
        self.inputs.is_costly()
    }
}
