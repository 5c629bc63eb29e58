//! `mlp`: a stack of fully connected layers that ends in a classifier.

use serde::{Deserialize, Serialize};

/// What a configuration says about an MLP. The size of the input and the number of classes come from
/// the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Features of each hidden layer, in order; an empty list is a linear classifier.
    pub hidden: Vec<usize>,
    /// Probability, 0 to below 1, with which a hidden feature is dropped in training.
    pub dropout: f64,
    /// Is each hidden layer normalised before its activation?
    pub layer_norm: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { hidden: vec![256, 256], dropout: 0.0, layer_norm: true }
    }
}
