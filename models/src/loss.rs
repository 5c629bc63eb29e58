//! The loss contract: sums and weights, never means.
//!
//! A model returns the sum of its examples' losses and the sum of their weights. The step
//! accumulates sums over microbatches, all_reduces sums, and divides once: no mean of means
//! anywhere, so that uneven weights (padding, masked tokens) count the same however the batch is
//! divided.

use hlo::{DType, Tensor, Tree};

/// The examples a replica computes on.
#[derive(Clone, Debug)]
pub struct Batch<'g> {
    /// Fields under their names, each `[b, ..]`.
    pub fields: Tree<Tensor<'g>>,
    /// Weight of each example, `[b]`: 1, or 0 for the padding of an evaluation batch.
    pub weight: Tensor<'g>,
}

impl<'g> Batch<'g> {
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
    /// [`class_counts`], if F1 and Matthews' correlation are to be reported.
    pub class_counts: Option<Tensor<'g>>,
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
    let correct = |correct_b: Tensor<'g>| {
        (correct_b.convert(weight_b.dtype()) * weight_b).sum().stop_gradient()
    };
    let mut metrics = vec![("accuracy", correct(num_as_high_b.equal(1.0)))];
    if num_classes > 5 {
        let among_five_b = num_as_high_b.greater_equal(1.0).and(num_as_high_b.less_equal(5.0));
        metrics.push(("top5_accuracy", correct(among_five_b)));
    }
    let sum = -(log_likelihood_b * weight_b).sum();
    Loss { sum, weight: weight_b.sum(), metrics, class_counts: None }
}

/// How often each class is predicted correctly, is predicted, and is the label: weighted sums,
/// `[3, c]`, from which F1 and Matthews' correlation follow. Of classes with the same score the
/// first is predicted.
///
/// - `logits_bc`: float `[b, c]`
/// - `labels_b`: integer `[b]`, each below c
/// - `weight_b`: float `[b]`
#[track_caller]
pub fn class_counts<'g>(
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
    let count = |of_bc: Tensor<'g>| {
        let sum_c = (of_bc * weight_b.broadcast_like(of_bc, &[0])).reduce_sum(&[0]);
        sum_c.reshape(&[1, num_classes])
    };
    let counts = [label_bc * predicted_bc, predicted_bc, label_bc].map(count);
    counts[0].concatenate(&counts[1..], 0).stop_gradient()
}
