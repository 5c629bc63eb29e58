//! What the outputs of a model are trained on: how many there are, and the loss.

use hlo::{Literal, Tensor};

use crate::loss::{
    Tally, absolute_error, binary_cross_entropy, confusion, huber, label_counts, moments,
    smoothed_cross_entropy, squared_error, weighted_cross_entropy,
};
use crate::{Batch, Loss, Scope};

/// The largest number of classes that are counted by pairs: a confusion matrix has its square.
const MAX_CONFUSED: usize = 1024;

/// What the outputs of a model are trained on. A number of classes is cross-entropy over them.
///
/// ```
/// use models::{LossFunction, Objective};
///
/// let objective = Objective::from(10);
/// assert_eq!((objective.num_outputs, objective.loss), (10, LossFunction::CrossEntropy));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    /// Size of the last layer: classes, values, or labels.
    pub num_outputs: usize,
    /// The loss.
    pub loss: LossFunction,
    /// In training, how often an example of each class counts; empty if all count once.
    pub class_weights: Vec<f64>,
    /// How each value that the model predicts is scaled; empty if it is not.
    pub scales: Vec<ValueScale>,
}

/// The loss of an example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LossFunction {
    /// [`smoothed_cross_entropy`]: one class, the label `y` an integer.
    CrossEntropy,
    /// [`squared_error`]: values, the label `y` floats `[k]`.
    SquaredError,
    /// [`absolute_error`]: values.
    AbsoluteError,
    /// [`huber`]: values.
    Huber {
        /// Where the loss becomes linear, in units of the scaled values.
        delta: f64,
    },
    /// [`binary_cross_entropy`]: any number of labels, the label `y` floats `[k]`, 0 or 1.
    BinaryCrossEntropy,
}

impl LossFunction {
    /// `true` if outputs are values, not scores of classes or labels.
    pub fn is_regression(self) -> bool {
        matches!(self, Self::SquaredError | Self::AbsoluteError | Self::Huber { .. })
    }
}

/// How a value is scaled: the model learns `(value - mean) / deviation`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValueScale {
    /// What is subtracted.
    pub mean: f64,
    /// What divides the rest; not 0.
    pub deviation: f64,
}

impl From<usize> for Objective {
    fn from(num_classes: usize) -> Self {
        Self {
            num_outputs: num_classes,
            loss: LossFunction::CrossEntropy,
            class_weights: vec![],
            scales: vec![],
        }
    }
}

impl Objective {
    /// The loss of a batch with the label `y`, under the model's outputs, float
    /// `[b, num_outputs]`. Class weights and `smoothing`, the share of a label that is spread over
    /// all classes, count in training only; what an evaluation counts beside the loss is there in
    /// evaluation only, and values are then in the units of the data.
    #[track_caller]
    pub fn loss<'g>(
        &self,
        scope: &Scope<'g>,
        outputs_bk: Tensor<'g>,
        batch: &Batch<'g>,
        smoothing: f64,
    ) -> Loss<'g> {
        let (y, weight_b) = (batch.field("y"), batch.weight);
        let is_training = scope.training().is_some();
        let loss = match self.loss {
            LossFunction::CrossEntropy if is_training && !self.class_weights.is_empty() => {
                let weights_c = constant(outputs_bk, self.class_weights.iter().copied());
                weighted_cross_entropy(outputs_bk, y, weight_b, weights_c, smoothing)
            }
            LossFunction::CrossEntropy => {
                let smoothing = if is_training { smoothing } else { 0.0 };
                smoothed_cross_entropy(outputs_bk, y, weight_b, smoothing)
            }
            LossFunction::SquaredError => squared_error(outputs_bk, y, weight_b),
            LossFunction::AbsoluteError => absolute_error(outputs_bk, y, weight_b),
            LossFunction::Huber { delta } => huber(outputs_bk, y, weight_b, delta),
            LossFunction::BinaryCrossEntropy => binary_cross_entropy(outputs_bk, y, weight_b),
        };
        let tally = (!is_training).then(|| self.tally(outputs_bk, y, weight_b)).flatten();
        Loss { tally, ..loss }
    }

    #[track_caller]
    fn tally<'g>(
        &self,
        outputs_bk: Tensor<'g>,
        y: Tensor<'g>,
        weight_b: Tensor<'g>,
    ) -> Option<Tally<'g>> {
        match self.loss {
            LossFunction::CrossEntropy if self.num_outputs > MAX_CONFUSED => None,
            LossFunction::CrossEntropy => Some(Tally::Classes(confusion(outputs_bk, y, weight_b))),
            LossFunction::BinaryCrossEntropy => {
                Some(Tally::Labels(label_counts(outputs_bk, y, weight_b)))
            }
            _ => {
                let [outputs_bk, y] = [outputs_bk, y].map(|x_bk| self.stretched(x_bk));
                Some(Tally::Values(moments(outputs_bk, y, weight_b)))
            }
        }
    }

    /// The scores of classes or labels as the model computes them, and values in the units of the
    /// data: float `[b, num_outputs]`.
    #[track_caller]
    pub fn scores<'g>(&self, outputs_bk: Tensor<'g>) -> Tensor<'g> {
        let scaled_bk = self.stretched(outputs_bk);
        if self.scales.is_empty() {
            return scaled_bk;
        }
        let means_k = constant(scaled_bk, self.scales.iter().map(|scale| scale.mean));
        scaled_bk + means_k.broadcast_like(scaled_bk, &[1])
    }

    /// Scaled values times their deviations.
    #[track_caller]
    fn stretched<'g>(&self, x_bk: Tensor<'g>) -> Tensor<'g> {
        if self.scales.is_empty() {
            return x_bk;
        }
        let x_bk = x_bk.convert(x_bk.dtype().accumulation());
        let deviations_k = constant(x_bk, self.scales.iter().map(|scale| scale.deviation));
        x_bk * deviations_k.broadcast_like(x_bk, &[1])
    }
}

/// A vector in the trace and the dtype of `like`, which varies as that does.
#[track_caller]
fn constant<'g>(like: Tensor<'g>, values: impl Iterator<Item = f64>) -> Tensor<'g> {
    let values: Vec<_> = values.collect();
    let literal = Literal::from_f64(like.dtype(), &[values.len()], &values);
    like.tracer().constant(literal).vary(like.varying())
}

#[cfg(test)]
mod tests {
    use hlo::{DType, Mesh, Tree, interpret, trace};

    use super::*;
    use crate::Precision;

    /// Outputs and labels of three examples, the last of weight 0, in evaluation.
    fn evaluated(objective: &Objective, outputs: Literal, labels: Literal) -> Vec<Vec<f64>> {
        let graph = trace(Mesh::SINGLE, |t| {
            let weight = t.constant(Literal::from_slice(&[3], &[1.0, 1.0, 0.0]));
            let fields = [("y".to_owned(), t.constant(labels.clone()))].into_iter().collect();
            let scope = Scope::bind(t, Precision::uniform(DType::F64), Tree::default(), None);
            let batch = Batch { fields, weight };
            let outputs = t.constant(outputs.clone());
            let loss = objective.loss(&scope, outputs, &batch, 0.0);
            t.output("loss", loss.sum);
            t.output("tally", loss.tally.unwrap().sums());
            t.output("scores", objective.scores(outputs));
        });
        let results = interpret(&graph.unwrap(), &[]).unwrap();
        results.iter().map(|replicas| replicas[0].to_f64()).collect()
    }

    #[test]
    fn values_are_judged_and_predicted_in_the_units_of_the_data() {
        let objective = Objective {
            loss: LossFunction::SquaredError,
            scales: vec![ValueScale { mean: 100.0, deviation: 10.0 }],
            ..Objective::from(1)
        };
        let outputs = Literal::from_slice(&[3, 1], &[0.5, -1.0, 9.0]);
        let labels = Literal::from_slice(&[3, 1], &[1.0, -1.0, 0.0]);
        let found = evaluated(&objective, outputs, labels);
        assert_eq!(found[0], [0.25]);
        assert_eq!(found[1], [25.0, 5.0, 0.0, 200.0]);
        assert_eq!(found[2], [105.0, 90.0, 190.0]);
    }

    #[test]
    fn labels_and_classes_are_counted() {
        let labels = Objective { loss: LossFunction::BinaryCrossEntropy, ..Objective::from(2) };
        let logits = Literal::from_slice(&[3, 2], &[2.0, -1.0, -3.0, 1.0, 0.0, 0.0]);
        let y = Literal::from_slice(&[3, 2], &[1.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
        let found = evaluated(&labels, logits.clone(), y);
        let loss = |logit: f64, label: f64| (1.0 + ((1.0 - 2.0 * label) * logit).exp()).ln();
        let all = [loss(2.0, 1.0), loss(-1.0, 0.0), loss(-3.0, 1.0), loss(1.0, 1.0)];
        assert!((found[0][0] - all.iter().sum::<f64>() / 2.0).abs() < 1e-12);
        assert_eq!(found[1], [1.0, 1.0, 1.0, 1.0, 2.0, 1.0]);
        let classes = Objective::from(2);
        let found = evaluated(&classes, logits, Literal::from_slice(&[3], &[0i32, 0, 1]));
        assert_eq!(found[1], [1.0, 1.0, 0.0, 0.0]);
    }
}
