//! `mlp`: a stack of fully connected layers.

use hlo::{DType, Tensor, TensorType};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use crate::layers::{MlpBlock, linear, mlp_block};
use crate::model_keys::{Architecture, InvalidValue, MAX_LAYERS};
use crate::{Batch, Initializer, Loss, Misfit, Model, Objective, Scope};

/// Configuration of an MLP. The sizes of the input and of the output come from
/// the data.
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
    fn build(&self, objective: Objective) -> Box<dyn Model> {
        Box::new(Mlp { config: self.clone(), objective })
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

/// An MLP with a last layer for its objective. Parameters are `blocks.I.linear.{weight, bias}`,
/// `blocks.I.norm.{weight, bias}` and `head.{weight, bias}`.
#[derive(Clone, Debug)]
pub struct Mlp {
    /// Its layers.
    pub config: MlpConfig,
    /// What its outputs are trained on.
    pub objective: Objective,
}

impl Model for Mlp {
    /// The objective's loss of `y` under the outputs for `x` (float `[b, ..]`, flattened).
    fn loss<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Loss<'g> {
        let outputs = self.outputs(scope, batch.field("x"));
        self.objective.loss(scope, outputs, batch, self.config.label_smoothing)
    }

    fn scores<'g>(&self, scope: &Scope<'g>, batch: &Batch<'g>) -> Option<Tensor<'g>> {
        Some(self.objective.scores(self.outputs(scope, batch.field("x"))))
    }

    fn check_example(&self, dtype: DType, _dims: &[usize], _classes: usize) -> Result<(), Misfit> {
        match dtype.is_float() {
            true => Ok(()),
            false => Err(Misfit::Kind { takes: "f32 of any dims".to_owned() }),
        }
    }
}

impl Mlp {
    /// `[b, ..] -> [b, num_outputs]`.
    #[track_caller]
    fn outputs<'g>(&self, scope: &Scope<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let MlpConfig { hidden, dropout, layer_norm, .. } = &self.config;
        let num_examples = x.dim(0);
        let mut x = x.reshape(&[num_examples, x.num_elements() / num_examples.max(1)]);
        for (index, num_out) in hidden.iter().enumerate() {
            let block = MlpBlock { num_out: *num_out, layer_norm: *layer_norm, dropout: *dropout };
            x = mlp_block(&scope.at("blocks").at(index), x.block_boundary(), block);
        }
        let initializer = Initializer::lecun_normal(x.dim(1));
        linear(&scope.at("head"), x.block_boundary(), self.objective.num_outputs, initializer)
    }
}
