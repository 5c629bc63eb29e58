//! `y = keep * x / (1 - rate)`, with `keep` true with probability `1 - rate`

use hlo::random::{GlobalSlice, Key};
use hlo::{Axis, Tensor};

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
    let Some(key) = scope.random_key("dropout") else { return x };
    // Of rows that are cut along `tensor`, each replica has as many.
    let is_cut = x.varying().contains(Axis::Tensor);
    let num_pieces = if is_cut { scope.num_tensor_replicas() } else { 1 };
    let rows_per_example = x.dim(0) * num_pieces / training.num_examples.max(1);
    let mut first_row = training.first_example * rows_per_example as f64;
    if is_cut {
        first_row = first_row + scope.tensor_index() * x.dim(0) as f64;
    }
    dropped(scope, x, rate, key, GlobalSlice::rows(first_row, &x.shape()))
}

/// Dropout of x with the mask that `key` draws for the elements of `slice`, which are as many.
#[track_caller]
pub(super) fn dropped<'g>(
    scope: &Scope<'g>,
    x: Tensor<'g>,
    rate: f64,
    key: Key<'g>,
    slice: GlobalSlice<'g>,
) -> Tensor<'g> {
    let mut keep = key.bernoulli(1.0 - rate, &slice.as_rows());
    if keep.shape() != x.shape() {
        keep = keep.reshape(&x.shape());
    }
    let keep = match scope.options().attention {
        // The kernel writes random bits to memory, 4 bytes an element. The backward pass needs the
        // mask alone, 1 byte.
        AttentionKernels::Host => keep.fusion_barrier(),
        AttentionKernels::None | AttentionKernels::Cudnn => keep,
    };
    keep.select(x / (1.0 - rate), x.full_like(0.0))
}
