//! The interface of the configurations of all kinds of models: the model that one builds, and the
//! values that its keys may have.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use hlo::TensorType;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Counterpart, Model, Objective};

/// The largest number of layers: more would take hours to trace.
pub const MAX_LAYERS: usize = 1024;

/// The largest width, context or vocabulary: a typing error should not ask for terabytes.
pub const MAX_SIZE: usize = 1 << 20;

/// The configuration of one kind of model: plain data with the keys of `[model]` as fields. Their
/// schema has everything that a reader must know about a key: the documentation of the field, its
/// range and default, and the extensions of [`ModelConfig::schema`].
///
/// [`ModelConfig::schema`]: crate::ModelConfig::schema
pub trait Architecture: Serialize + DeserializeOwned + JsonSchema {
    /// The model with a last layer for an objective. Models of tokens, where classes are the
    /// vocabulary, have their own.
    fn build(&self, objective: Objective) -> Box<dyn Model>;

    /// The name and type, without the batch dim, of each field of an example that the model takes.
    /// Parameters have the same names and ranks for every other example that it takes.
    fn example(&self) -> Vec<(&'static str, TensorType)>;

    /// Values that are not allowed although their types, and the ranges that the fields declare,
    /// are right.
    fn check(&self) -> Vec<InvalidValue> {
        vec![]
    }

    /// Writes out the values that are left to a preset.
    fn resolve(&mut self) {}

    /// Whether the backward pass computes blocks again instead of keeping their values; `None` if
    /// the configuration has no such choice.
    fn remat(&self) -> Option<bool> {
        None
    }

    /// Checks that this many replicas, more than one, can compute each layer together: the axis
    /// `tensor`.
    ///
    /// # Errors
    /// Why not, and which numbers can.
    fn check_tensor_replicas(&self, _num_replicas: usize) -> Result<(), String> {
        Ok(())
    }

    /// Number of equal blocks, one after the other; `None` if the model is not made of them. Stages
    /// of a pipeline divide it.
    fn num_blocks(&self) -> Option<usize> {
        None
    }

    /// Examples that batch norm normalizes together; `None` without batch norm.
    fn batch_norm_group(&self) -> Option<usize> {
        None
    }

    /// The model of another library that computes the same from the same parameters, if there is
    /// one.
    fn counterpart(&self) -> Option<Counterpart> {
        None
    }

    /// Maximum number of positions, if examples are tokens and labels are not.
    fn context(&self) -> Option<usize> {
        None
    }

    /// Number of different tokens, if labels are not tokens: the data may have fewer.
    fn vocabulary(&self) -> Option<usize> {
        None
    }

    /// The Hugging Face folder with the parameters to start from, if the configuration names one.
    fn folder(&self) -> Option<&Path> {
        None
    }

    /// The same, to make it absolute.
    fn folder_mut(&mut self) -> Option<&mut PathBuf> {
        None
    }

    /// The share of a label that is spread over all classes; `None` if the configuration has no
    /// such choice.
    fn label_smoothing(&self) -> Option<f64> {
        None
    }
}

/// Checks that replicas along `tensor` divide the heads and the hidden layer of a transformer.
///
/// # Errors
/// Which numbers do.
pub(crate) fn check_transformer(
    num_replicas: usize,
    num_heads: usize,
    num_hidden: usize,
) -> Result<(), String> {
    let divides = |n: usize| num_heads.is_multiple_of(n) && num_hidden.is_multiple_of(n);
    if divides(num_replicas) {
        return Ok(());
    }
    let allowed: Vec<_> = (1..=num_heads).filter(|n| divides(*n)).map(|n| n.to_string()).collect();
    Err(format!(
        "it must divide the {num_heads} heads and the hidden width of {num_hidden}, as {} do",
        allowed.join(", ")
    ))
}

/// A value that a configuration of a model may not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidValue {
    /// Its key.
    pub key: &'static str,
    /// The value.
    pub found: String,
    /// The allowed values.
    pub allowed: String,
    /// Keys that decide what is allowed. If one of them is wrong itself, this value may be right.
    pub depends_on: &'static [&'static str],
}

impl InvalidValue {
    /// A value that is not allowed, whatever the other keys are.
    pub(crate) fn new(key: &'static str, found: impl Display, allowed: impl Into<String>) -> Self {
        Self { key, found: found.to_string(), allowed: allowed.into(), depends_on: &[] }
    }
}
