//! `y = keep * x / (1 - rate)`, with `keep` true with probability `1 - rate`

use hlo::Tensor;
use hlo::random::GlobalSlice;

use crate::{AttentionKernels, Scope};

/// Dropout of `[rows, ..]`, with equally many rows for each example of the batch, in order. The
/// mask depends on (seed, step, the scope's path, the example's index in the global batch), not on
/// the replica. The identity in evaluation. Srivastava et al., "Dropout" (2014), but the result is
/// scaled by `1 / (1 - rate)` in training, so that evaluation needs no scaling.
///
/// ```
/// use hlo::{AxisSet, DType, Mesh, TensorType, trace};
/// use models::{Precision, Scope, layers::dropout};
///
/// let evaluation = trace(Mesh::SINGLE, |t| {
///     let x = t.input("x", TensorType::new(DType::F32, &[8, 64]));
///     t.output("y", dropout(&Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY), x, 0.5));
/// })?;
/// assert_eq!(evaluation.outputs()[0].value, evaluation.inputs()[0].value);
/// # Ok::<(), hlo::Error>(())
/// ```
#[track_caller]
pub fn dropout<'g>(scope: &Scope<'g>, x: Tensor<'g>, rate: f64) -> Tensor<'g> {
    let Some(training) = scope.training().filter(|_| rate > 0.0) else { return x };
    let rows_per_example = x.dim(0) / training.num_examples.max(1);
    let first_row = training.first_example * rows_per_example as f64;
    let Some(key) = scope.random_key("dropout") else { return x };
    let keep = key.bernoulli(1.0 - rate, &GlobalSlice::rows(first_row, &x.shape()));
    let keep = match scope.attention() {
        // The kernel writes random bits to memory, 4 bytes an element. The backward pass needs the
        // mask alone, 1 byte.
        AttentionKernels::Host => keep.fusion_barrier(),
        AttentionKernels::None | AttentionKernels::Cudnn => keep,
    };
    keep.select(x / (1.0 - rate), x.full_like(0.0))
}
