//! The loss contract: sums and weights, never means.
//!
//! A model returns the sum of its examples' losses and the sum of their weights. The step
//! accumulates sums over microbatches, all_reduces sums, and divides once: no mean of means
//! anywhere, so that uneven weights (padding, masked tokens) count the same however the batch is
//! divided.

mod vocabulary;

use hlo::{DType, Tensor, Tree};

pub use vocabulary::{tied_cross_entropy, vocabulary_cross_entropy};

/// The examples a replica computes on.
#[derive(Clone, Debug)]
pub struct Batch<'g> {
    /// Fields under their names, each `[b, ..]`.
    pub fields: Tree<Tensor<'g>>,
    /// Weight of each example, `[b]`: 1, or 0 for the padding of an evaluation batch.
    pub weight: Tensor<'g>,
}

impl<'g> Batch<'g> {
    /// The weight of each position of `y_bt`, `[b * t]`: that of its example.
    #[track_caller]
    pub fn weight_of_positions(&self, y_bt: Tensor<'g>) -> Tensor<'g> {
        self.weight.broadcast_in_dim(&y_bt.shape(), &[0]).reshape(&[y_bt.num_elements()])
    }

    /// The field of this name; an error of the trace if there is none.
    #[track_caller]
    pub fn field(&self, name: &str) -> Tensor<'g> {
        // Not in a closure, which would be the caller that is named.
        let Some(field) = self.fields.get(name) else {
            let names: Vec<_> = self.fields.paths().collect();
            let message = format!("the data has no field `{name}`; it has {}", names.join(", "));
            self.weight.reject("batch", message);
            return self.weight;
        };
        *field
    }
}

/// The result of a model for a batch.
#[derive(Clone, Debug)]
pub struct Loss<'g> {
    /// Weighted sum of the losses: a scalar.
    pub sum: Tensor<'g>,
    /// Sum of the weights: a scalar.
    pub weight: Tensor<'g>,
    /// Other weighted sums under their names (scalars, like `accuracy`), reported divided by
    /// `weight`.
    pub metrics: Vec<(&'static str, Tensor<'g>)>,
    /// What an evaluation counts beside these; `None` if there is no more to say.
    pub tally: Option<Tally<'g>>,
    /// `true` if F1 and Matthews' correlation, which follow from the tally, are metrics.
    pub reports_f1: bool,
}

/// Weighted sums over examples from which figures follow that are no means over examples.
#[derive(Clone, Copy, Debug)]
pub enum Tally<'g> {
    /// [`confusion`], `[c, c]`.
    Classes(Tensor<'g>),
    /// [`label_counts`], `[3, k]`.
    Labels(Tensor<'g>),
    /// [`moments`], `[4, k]`.
    Values(Tensor<'g>),
}

impl<'g> Tally<'g> {
    /// The sums.
    pub fn sums(self) -> Tensor<'g> {
        match self {
            Self::Classes(sums) | Self::Labels(sums) | Self::Values(sums) => sums,
        }
    }
}

/// Softmax cross-entropy, with `accuracy` and, from six classes on, `top5_accuracy` as metrics.
///
/// `sum_i w_i * -log softmax(logits_i)[label_i]`, and `sum_i w_i`.
///
/// An example is correct if no other class scores as high, and among the top five if at most four
/// do: ties count against the model.
///
/// - `logits_bc`: float `[b, c]`; computed in f32 or wider
/// - `labels_b`: integer `[b]`, each below c
/// - `weight_b`: float `[b]`
///
/// ```
/// use hlo::{DType, Literal, Mesh, TensorType, interpret, trace};
/// use models::loss::cross_entropy;
///
/// let graph = trace(Mesh::SINGLE, |t| {
///     let logits = t.input("logits", TensorType::new(DType::F64, &[1, 2]));
///     let labels = t.constant(Literal::from_slice(&[1], &[1i32]));
///     let loss = cross_entropy(logits, labels, t.full(DType::F64, &[1], 1.0));
///     t.output("loss", loss.sum);
/// })?;
/// let logits = Literal::from_slice(&[1, 2], &[0.0, 3f64.ln()]);
/// let loss = interpret(&graph, &[vec![logits]]).unwrap()[0][0].to_f64()[0];
/// assert!((loss - (4.0 / 3.0f64).ln()).abs() < 1e-12);
/// # Ok::<(), hlo::Error>(())
/// ```
#[track_caller]
pub fn cross_entropy<'g>(
    logits_bc: Tensor<'g>,
    labels_b: Tensor<'g>,
    weight_b: Tensor<'g>,
) -> Loss<'g> {
    smoothed_cross_entropy(logits_bc, labels_b, weight_b, 0.0)
}

/// [`cross_entropy`] against labels with a share spread evenly over all classes:
///
/// `sum_i w_i * -((1 - smoothing) log p_i[label_i] + smoothing / c sum_c log p_i[c])` with
/// `p_i = softmax(logits_i)`, as in PyTorch. Szegedy et al., "Rethinking the Inception architecture
/// for computer vision" (2016), section 7.
///
/// ```
/// use hlo::{DType, Literal, Mesh, interpret, trace};
/// use models::loss::smoothed_cross_entropy;
///
/// let graph = trace(Mesh::SINGLE, |t| {
///     let logits = t.constant(Literal::from_slice(&[1, 2], &[0.0, 3f64.ln()]));
///     let labels = t.constant(Literal::from_slice(&[1], &[1i32]));
///     let loss = smoothed_cross_entropy(logits, labels, t.full(DType::F64, &[1], 1.0), 0.5);
///     t.output("loss", loss.sum);
/// })?;
/// let loss = interpret(&graph, &[]).unwrap()[0][0].to_f64()[0];
/// // Three quarters on the second class, one on the first.
/// assert!((loss - (0.75 * (4.0 / 3.0f64).ln() + 0.25 * 4f64.ln())).abs() < 1e-12);
/// # Ok::<(), hlo::Error>(())
/// ```
#[track_caller]
pub fn smoothed_cross_entropy<'g>(
    logits_bc: Tensor<'g>,
    labels_b: Tensor<'g>,
    weight_b: Tensor<'g>,
    smoothing: f64,
) -> Loss<'g> {
    let logits_bc = logits_bc.convert(logits_bc.dtype().accumulation());
    let weight_b = weight_b.convert(logits_bc.dtype());
    let log_softmax_bc = logits_bc.log_softmax();
    let mut log_likelihood_b = log_softmax_bc.take_along_last_dim(labels_b);
    let num_classes = logits_bc.dim(1);
    if smoothing > 0.0 {
        let mean_b = log_softmax_bc.reduce_sum(&[1]) / num_classes.max(1) as f64;
        log_likelihood_b = log_likelihood_b * (1.0 - smoothing) + mean_b * smoothing;
    }
    let label_logit_b = logits_bc.take_along_last_dim(labels_b);
    let as_high_bc = logits_bc.greater_equal(label_logit_b.broadcast_like(logits_bc, &[0]));
    // The label's own class is one of them, unless its score is no number.
    let num_as_high_b = as_high_bc.convert(weight_b.dtype()).reduce_sum(&[1]);
    let metrics = ranks(num_as_high_b, weight_b, num_classes);
    let sum = -(log_likelihood_b * weight_b).sum();
    Loss { sum, weight: weight_b.sum(), metrics, tally: None, reports_f1: false }
}

/// The metrics of how many logits are as high as the label's.
#[track_caller]
fn ranks<'g>(
    num_as_high_b: Tensor<'g>,
    weight_b: Tensor<'g>,
    num_classes: usize,
) -> Vec<(&'static str, Tensor<'g>)> {
    let among = |most: f64| {
        let is_among_b = num_as_high_b.greater_equal(1.0).and(num_as_high_b.less_equal(most));
        (is_among_b.convert(weight_b.dtype()) * weight_b).sum().stop_gradient()
    };
    rank_metrics(num_classes).iter().map(|(name, most)| (*name, among(*most))).collect()
}

/// The metrics of [`ranks`]: names, and the most logits that are as high as the label's.
fn rank_metrics(num_classes: usize) -> &'static [(&'static str, f64)] {
    const METRICS: [(&str, f64); 2] = [("accuracy", 1.0), ("top5_accuracy", 5.0)];
    // Among five classes every label is one of the first five.
    if num_classes > 5 { &METRICS } else { &METRICS[..1] }
}

/// How often examples of each class (row) are predicted as each class (column): weighted sums,
/// `[c, c]`. Of classes with the same score the first is predicted.
///
/// - `logits_bc`: float `[b, c]`
/// - `labels_b`: integer `[b]`, each below c
/// - `weight_b`: float `[b]`
#[track_caller]
pub fn confusion<'g>(
    logits_bc: Tensor<'g>,
    labels_b: Tensor<'g>,
    weight_b: Tensor<'g>,
) -> Tensor<'g> {
    let logits_bc = logits_bc.convert(logits_bc.dtype().accumulation());
    let num_classes = logits_bc.dim(1);
    let highest_b = logits_bc.reduce_max(&[1]);
    let is_highest_bc = logits_bc.equal(highest_b.broadcast_like(logits_bc, &[0]));
    let class_bc = logits_bc.tracer().iota(DType::I32, &logits_bc.shape(), 1);
    let none_bc = class_bc.full_like(num_classes as f64);
    let varying = is_highest_bc.varying();
    let first_b =
        is_highest_bc.select(class_bc.vary(varying), none_bc.vary(varying)).reduce_min(&[1]);
    let weight_b = weight_b.convert(logits_bc.dtype());
    let label_bc = labels_b.one_hot(num_classes, logits_bc.dtype());
    let predicted_bc = first_b.one_hot(num_classes, logits_bc.dtype());
    let weighted_bc = label_bc * weight_b.broadcast_like(label_bc, &[0]);
    weighted_bc.transpose(&[1, 0]).dot(predicted_bc).stop_gradient()
}

/// [`cross_entropy`] in which each class counts as often as its weight says:
///
/// `sum_i w_i c[label_i] * -log softmax(logits_i)[label_i]`, and `sum_i w_i c[label_i]`, as in
/// PyTorch. Labels may be smoothed as in [`smoothed_cross_entropy`]: then the whole loss of an
/// example has the weight of its label.
///
/// `class_weights_c`: float `[c]`; the rest as for [`cross_entropy`].
#[track_caller]
pub fn weighted_cross_entropy<'g>(
    logits_bc: Tensor<'g>,
    labels_b: Tensor<'g>,
    weight_b: Tensor<'g>,
    class_weights_c: Tensor<'g>,
    smoothing: f64,
) -> Loss<'g> {
    let weights_bc = class_weights_c.broadcast_in_dim(&logits_bc.shape(), &[1]);
    let weights_bc = weights_bc.vary(logits_bc.varying());
    let of_label_b = weights_bc.take_along_last_dim(labels_b).convert(weight_b.dtype());
    smoothed_cross_entropy(logits_bc, labels_b, weight_b * of_label_b, smoothing)
}

/// Mean squared error: `sum_i w_i / k sum_k (y_ik - z_ik)^2`, and `sum_i w_i`.
///
/// - `outputs_bk`: the model's values z, float `[b, k]`; computed in f32 or wider
/// - `values_bk`: the values to predict y, float `[b, k]`
/// - `weight_b`: float `[b]`
#[track_caller]
pub fn squared_error<'g>(
    outputs_bk: Tensor<'g>,
    values_bk: Tensor<'g>,
    weight_b: Tensor<'g>,
) -> Loss<'g> {
    mean_over_outputs(errors(outputs_bk, values_bk), weight_b, |error_bk| error_bk * error_bk)
}

/// Mean absolute error: `sum_i w_i / k sum_k |y_ik - z_ik|`, and `sum_i w_i`. Operands as for
/// [`squared_error`].
#[track_caller]
pub fn absolute_error<'g>(
    outputs_bk: Tensor<'g>,
    values_bk: Tensor<'g>,
    weight_b: Tensor<'g>,
) -> Loss<'g> {
    mean_over_outputs(errors(outputs_bk, values_bk), weight_b, Tensor::abs)
}

/// Huber's loss: `sum_i w_i / k sum_k h(y_ik - z_ik)`, and `sum_i w_i`, with `h(e) = e^2 / 2` where
/// `|e| <= delta`, and `delta (|e| - delta / 2)` beyond. Operands as for [`squared_error`].
///
/// Huber, "Robust estimation of a location parameter" (1964).
///
/// ```
/// use hlo::{DType, Literal, Mesh, interpret, trace};
/// use models::loss::huber;
///
/// let graph = trace(Mesh::SINGLE, |t| {
///     let outputs = t.constant(Literal::from_slice(&[2, 1], &[0.0, 0.0]));
///     let values = t.constant(Literal::from_slice(&[2, 1], &[1.0, 4.0]));
///     let loss = huber(outputs, values, t.full(DType::F64, &[2], 1.0), 2.0);
///     t.output("loss", loss.sum);
/// })?;
/// // 1 / 2, and 2 (4 - 1).
/// assert_eq!(interpret(&graph, &[]).unwrap()[0][0].to_f64(), [6.5]);
/// # Ok::<(), hlo::Error>(())
/// ```
#[track_caller]
pub fn huber<'g>(
    outputs_bk: Tensor<'g>,
    values_bk: Tensor<'g>,
    weight_b: Tensor<'g>,
    delta: f64,
) -> Loss<'g> {
    // With q = min(|e|, delta), h = q |e| - q^2 / 2.
    mean_over_outputs(errors(outputs_bk, values_bk), weight_b, |error_bk| {
        let size_bk = error_bk.abs();
        let below_bk = size_bk.minimum(delta);
        below_bk * size_bk - below_bk * below_bk * 0.5
    })
}

/// Binary cross-entropy of each label by itself, for examples that have any number of them:
/// `sum_i w_i / k sum_k -(y_ik log s(z_ik) + (1 - y_ik) log(1 - s(z_ik)))` with the logistic
/// function s, and `sum_i w_i`. Metrics: `label_accuracy`, the share of labels that are right, and
/// `exact_match`, the share of examples with all labels right; a label is predicted if its logit is
/// above 0.
///
/// - `logits_bk`: float `[b, k]`; computed in f32 or wider
/// - `labels_bk`: float `[b, k]`, 0 or 1
/// - `weight_b`: float `[b]`
#[track_caller]
pub fn binary_cross_entropy<'g>(
    logits_bk: Tensor<'g>,
    labels_bk: Tensor<'g>,
    weight_b: Tensor<'g>,
) -> Loss<'g> {
    let logits_bk = logits_bk.convert(logits_bk.dtype().accumulation());
    let labels_bk = labels_bk.convert(logits_bk.dtype());
    // max(z, 0) - z y + log(1 + exp(-|z|)): no exponential overflows.
    let loss_bk = logits_bk.maximum(0.0) - logits_bk * labels_bk
        + (-logits_bk.abs()).exponential().log_plus_one();
    let loss = mean_over_outputs(loss_bk, weight_b, |loss_bk| loss_bk);
    let weight_b = weight_b.convert(logits_bk.dtype());
    let is_right_bk = predicted(logits_bk).equal(labels_bk).convert(logits_bk.dtype());
    let num_labels = logits_bk.dim(1).max(1) as f64;
    let share_b = is_right_bk.reduce_sum(&[1]) / num_labels;
    let all_b = is_right_bk.reduce_min(&[1]);
    let metric = |value_b: Tensor<'g>| (value_b * weight_b).sum().stop_gradient();
    let metrics = vec![("label_accuracy", metric(share_b)), ("exact_match", metric(all_b))];
    Loss { metrics, ..loss }
}

/// How often each label is predicted correctly, is predicted, and is there: weighted sums,
/// `[3, k]`. Operands as for [`binary_cross_entropy`].
#[track_caller]
pub fn label_counts<'g>(
    logits_bk: Tensor<'g>,
    labels_bk: Tensor<'g>,
    weight_b: Tensor<'g>,
) -> Tensor<'g> {
    let logits_bk = logits_bk.convert(logits_bk.dtype().accumulation());
    let labels_bk = labels_bk.convert(logits_bk.dtype());
    let predicted_bk = predicted(logits_bk);
    column_sums([labels_bk * predicted_bk, predicted_bk, labels_bk], weight_b)
}

/// Weighted sums of the squared errors, of the absolute errors, of the values and of their squares:
/// `[4, k]`, from which RMSE, MAE and R2 follow. Operands as for [`squared_error`].
#[track_caller]
pub fn moments<'g>(
    outputs_bk: Tensor<'g>,
    values_bk: Tensor<'g>,
    weight_b: Tensor<'g>,
) -> Tensor<'g> {
    let error_bk = errors(outputs_bk, values_bk);
    let values_bk = values_bk.convert(error_bk.dtype());
    column_sums([error_bk * error_bk, error_bk.abs(), values_bk, values_bk * values_bk], weight_b)
}

/// The errors, in f32 or wider.
#[track_caller]
fn errors<'g>(outputs_bk: Tensor<'g>, values_bk: Tensor<'g>) -> Tensor<'g> {
    let outputs_bk = outputs_bk.convert(outputs_bk.dtype().accumulation());
    outputs_bk - values_bk.convert(outputs_bk.dtype())
}

/// The loss of an example is the mean of `of` over its outputs.
#[track_caller]
fn mean_over_outputs<'g>(
    x_bk: Tensor<'g>,
    weight_b: Tensor<'g>,
    of: impl FnOnce(Tensor<'g>) -> Tensor<'g>,
) -> Loss<'g> {
    let weight_b = weight_b.convert(x_bk.dtype());
    let mean_b = of(x_bk).reduce_sum(&[1]) / x_bk.dim(1).max(1) as f64;
    Loss {
        sum: (mean_b * weight_b).sum(),
        weight: weight_b.sum(),
        metrics: vec![],
        tally: None,
        reports_f1: false,
    }
}

/// 1 for each label that is predicted, 0 for the others.
#[track_caller]
fn predicted(logits_bk: Tensor<'_>) -> Tensor<'_> {
    logits_bk.greater(0.0).convert(logits_bk.dtype())
}

/// The weighted sum over examples of each column, a row for each of the tensors.
#[track_caller]
fn column_sums<'g, const N: usize>(of: [Tensor<'g>; N], weight_b: Tensor<'g>) -> Tensor<'g> {
    let rows = of.map(|x_bk| {
        let weight_b = weight_b.convert(x_bk.dtype());
        let sum_k = (x_bk * weight_b.broadcast_like(x_bk, &[0])).reduce_sum(&[0]);
        sum_k.reshape(&[1, x_bk.dim(1)])
    });
    rows[0].concatenate(&rows[1..], 0).stop_gradient()
}
