//! `mlp`: a stack of fully connected layers that ends in a classifier.

use hlo::{DType, TensorType};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::layers::{MlpBlock, linear, mlp_block};
use crate::loss::smoothed_cross_entropy;
use crate::model_keys::{Architecture, InvalidValue, MAX_LAYERS};
use crate::{Batch, Initializer, Loss, Misfit, Model, Scope};

/// Configuration of an MLP. The size of the input and the number of classes come from the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default, deny_unknown_fields)]
pub struct MlpConfig {
    /// Features of each hidden layer, in order. An empty list is a linear classifier.
    #[schemars(
        inner(range(min = 1)),
        extend("values" = "list of up to 1024 whole numbers, each 1 or more", "unit" = "features"),
    )]
    #[default(vec![256, 256])]
    pub hidden: Vec<usize>,
    /// Probability with which a hidden feature is dropped in training.
    #[schemars(extend("minimum" = 0, "exclusiveMaximum" = 1, "resume" = "warn"))]
    pub dropout: f64,
    /// Normalize each hidden layer before its activation.
    #[default(true)]
    pub layer_norm: bool,
    /// Label smoothing: the share that is spread evenly over all classes in training. Evaluation
    /// uses the labels unchanged.
    #[schemars(extend("minimum" = 0, "exclusiveMaximum" = 1, "unit" = "share of a label"))]
    pub label_smoothing: f64,
}

impl Architecture for MlpConfig {
    fn build(&self, num_classes: usize) -> Box<dyn Model> {
        Box::new(Mlp { config: self.clone(), num_classes })
    }

    fn example(&self) -> Vec<(&'static str, TensorType)> {
        let x = TensorType::new(DType::F32, &[8]);
        vec![("x", x), ("y", TensorType::new(DType::I32, &[]))]
    }

    fn check(&self) -> Vec<InvalidValue> {
        let num_layers = self.hidden.len();
        let found = format!("{num_layers} of them");
        let allowed = format!("at most {MAX_LAYERS} layers");
        let depth = InvalidValue::new("hidden", found, allowed);
        (num_layers > MAX_LAYERS).then_some(depth).into_iter().collect()
    }

    fn label_smoothing(&self) -> Option<f64> {
        Some(self.label_smoothing)
    }
}

/// An MLP for a known number of classes. Parameters are `blocks.I.linear.{weight, bias}`,
/// `blocks.I.norm.{weight, bias}` and `head.{weight, bias}`.
#[derive(Clone, Debug)]
pub struct Mlp {
    /// Its layers.
    pub config: MlpConfig,
    /// Number of classes.
    pub num_classes: usize,
}

impl Model for Mlp {
    /// Cross-entropy of `y` (integer `[b]`) under the logits for `x` (float `[b, ..]`, flattened).
    fn loss<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
        let MlpConfig { hidden, dropout, layer_norm, label_smoothing } = &self.config;
        let x = batch.field("x");
        let num_examples = x.dim(0);
        let mut x = x.reshape(&[num_examples, x.num_elements() / num_examples.max(1)]);
        for (index, num_out) in hidden.iter().enumerate() {
            let block = MlpBlock { num_out: *num_out, layer_norm: *layer_norm, dropout: *dropout };
            x = mlp_block(&scope.at("blocks").at(index), x.block_boundary(), block);
        }
        let initializer = Initializer::lecun_normal(x.dim(1));
        let logits = linear(&scope.at("head"), x.block_boundary(), self.num_classes, initializer);
        let smoothing = scope.training().map_or(0.0, |_| *label_smoothing);
        smoothed_cross_entropy(logits, batch.field("y"), batch.weight, smoothing)
    }

    fn check_example(&self, dtype: DType, _dims: &[usize], _classes: usize) -> Result<(), Misfit> {
        match dtype.is_float() {
            true => Ok(()),
            false => Err(Misfit::Kind { takes: "f32 of any dims".to_owned() }),
        }
    }
}
