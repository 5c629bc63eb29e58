//! The loss contract: sums and weights, never means.
//!
//! A model returns the sum of its examples' losses and the sum of their weights. The step accumulates
//! sums over microbatches, all_reduces sums, and divides once: no mean of means anywhere, so that
//! uneven weights (padding, masked tokens) count the same however the batch is cut.

use hlo::{Tensor, Tree};

/// The examples a replica computes on.
#[derive(Clone, Debug)]
pub struct Batch<'g> {
    /// Fields under their names, each `[b, ..]`.
    pub fields: Tree<Tensor<'g>>,
    /// Weight of each example, `[b]`: 1, or 0 for the padding of an evaluation batch.
    pub weight: Tensor<'g>,
}

impl<'g> Batch<'g> {
    /// The field of this name; an error of the trace if the data has none.
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

/// What a model returns.
#[derive(Clone, Debug)]
pub struct Loss<'g> {
    /// Weighted sum of the losses: a scalar.
    pub sum: Tensor<'g>,
    /// Sum of the weights: a scalar.
    pub weight: Tensor<'g>,
    /// Other weighted sums under their names (scalars, like `accuracy`), reported divided by `weight`.
    pub metrics: Vec<(&'static str, Tensor<'g>)>,
}

/// Softmax cross-entropy, with the accuracy as a metric.
///
/// `sum_i w_i * -log softmax(logits_i)[label_i]`, and `sum_i w_i`.
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
    let logits_bc = logits_bc.convert(logits_bc.dtype().accumulation());
    let weight_b = weight_b.convert(logits_bc.dtype());
    let log_likelihood_b = logits_bc.log_softmax().take_along_last_dim(labels_b);
    // Correct where no other class scores as high: a tie is no answer.
    let label_logit_b = logits_bc.take_along_last_dim(labels_b);
    let as_high_bc = logits_bc.greater_equal(label_logit_b.broadcast_like(logits_bc, &[0]));
    let correct_b = as_high_bc.convert(weight_b.dtype()).reduce_sum(&[1]).equal(1.0);
    let correct = (correct_b.convert(weight_b.dtype()) * weight_b).sum();
    Loss {
        sum: -(log_likelihood_b * weight_b).sum(),
        weight: weight_b.sum(),
        metrics: vec![("accuracy", correct.stop_gradient())],
    }
}
