//! `y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias`, over a group of examples

use hlo::{AxisSet, Groups, Reduction, Tensor};

use crate::{Initializer, Scope, Training};

/// Added to the variance.
const EPSILON: f64 = 1e-5;
/// Weight of the batch's statistics in the running ones, as in PyTorch.
const MOMENTUM: f64 = 0.1;

/// Parameters of [`batch_norm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNorm {
    /// Number of examples that are normalized together.
    pub group: usize,
    /// Initializer of `weight`.
    pub weight: Initializer,
}

/// Batch norm of images `[n, h, w, c]` over the examples of a group, h and w, with parameters
/// `weight` and `bias` (zeros), both `[c]`, and running means `mean` and `variance` `[c]`, with
/// which evaluation normalizes. Computed in f32 or wider for any dtype of x.
///
/// A group is a fixed number of consecutive examples of the global batch. A replica with more
/// examples has several groups ("ghost batches"; Hoffer, Hubara and Soudry, "Train longer,
/// generalize better", 2017); one with fewer shares a group with its neighbors. So the result does
/// not depend on the number of replicas, nor on microbatches if each has whole groups. Variances
/// are biased, but unbiased in the running mean, as in PyTorch. Ioffe and Szegedy, "Batch
/// normalization" (2015).
///
/// ```
/// use hlo::{AxisSet, DType, Mesh, TensorType, trace};
/// use models::{Initializer, Precision, Scope, layers::{BatchNorm, batch_norm}};
///
/// trace(Mesh::SINGLE, |t| {
///     let x = t.input("x", TensorType::new(DType::F32, &[64, 8, 8, 16]));
///     let scope = Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY);
///     let norm = BatchNorm { group: 32, weight: Initializer::Ones };
///     assert_eq!(batch_norm(&scope, x, norm).dims(), [64, 8, 8, 16]);
///     assert!(scope.running_means().get("variance").is_some());
/// })?;
/// # Ok::<(), hlo::Error>(())
/// ```
#[track_caller]
pub fn batch_norm<'g>(scope: &Scope<'g>, x_nhwc: Tensor<'g>, norm: BatchNorm) -> Tensor<'g> {
    let [n, h, w, c] = x_nhwc.dims();
    let weight_c = scope.param_full_precision("weight", &[c], norm.weight);
    let bias_c = scope.param_full_precision("bias", &[c], Initializer::Zeros);
    let wide_nhwc = x_nhwc.convert(weight_c.dtype());
    let y_nhwc = match scope.training() {
        Some(training) => {
            let group = group_of(wide_nhwc, norm.group, &training);
            // g groups, p pixels of a group's images on this replica.
            let num_places = group.on_replica * h * w;
            let x_gpc = wide_nhwc.reshape(&[n / group.on_replica, num_places, c]);
            let y_gpc = in_groups(scope, [x_gpc, weight_c, bias_c], group.num_replicas, &training);
            y_gpc.reshape(&[n, h, w, c])
        }
        None => {
            let mean_c = scope.running_mean("mean", &[c], 0.0, MOMENTUM);
            let variance_c = scope.running_mean("variance", &[c], 1.0, MOMENTUM);
            let like_x = |x_c: Tensor<'g>| x_c.broadcast_like(wide_nhwc, &[3]);
            (wide_nhwc - like_x(mean_c)) * like_x((variance_c + EPSILON).rsqrt() * weight_c)
                + like_x(bias_c)
        }
    };
    y_nhwc.convert(x_nhwc.dtype())
}

/// How a group is distributed over replicas.
#[derive(Clone, Copy)]
struct Group {
    /// Examples of the group on one replica.
    on_replica: usize,
    /// Replicas that share the group.
    num_replicas: usize,
}

fn group_of(x_nhwc: Tensor<'_>, size: usize, training: &Training<'_>) -> Group {
    let n = x_nhwc.dim(0).max(1);
    let along = x_nhwc.tracer().mesh().group_size(training.batch_axes);
    if size > 0 && n.is_multiple_of(size) {
        return Group { on_replica: size, num_replicas: 1 };
    }
    if size.is_multiple_of(n) && size > 0 && along.is_multiple_of(size / n) {
        return Group { on_replica: n, num_replicas: size / n };
    }
    let message = format!(
        "groups of {size} examples cannot be made of {n} on each of {along} replicas: set \
         model.batch_norm_group to a divisor or multiple of {n} that divides {}",
        n * along
    );
    x_nhwc.reject("batch_norm", message);
    Group { on_replica: n, num_replicas: 1 }
}

/// `(x - mean) / sqrt(variance + eps) * weight + bias` within each group.
///
/// With `r = 1 / sqrt(variance + eps)` and means over the group, the cotangent of x is
/// `weight * r * (dy - mean(dy) - (x - mean(x)) * r^2 * mean(dy * (x - mean(x))))` (Ioffe and
/// Szegedy, section 3): two sums and one loop over the image, fewer of both than in the gradient
/// from automatic differentiation.
fn in_groups<'g>(
    scope: &Scope<'g>,
    x_weight_bias: [Tensor<'g>; 3],
    num_replicas: usize,
    training: &Training<'g>,
) -> Tensor<'g> {
    let [num_groups, num_places, c] = x_weight_bias[0].dims();
    let count = (num_places * num_replicas) as f64;
    let axes = training.batch_axes;
    let results = x_weight_bias[0].tracer().custom_vjp(
        &x_weight_bias,
        |x| {
            let (x_gpc, weight_c, bias_c) = (x[0], x[1], x[2]);
            let mean_gc = over_group(sum(x_gpc), axes, num_replicas) / count;
            let mean_gc = mean_gc.fusion_barrier();
            let centered_gpc = x_gpc - mean_gc.broadcast_like(x_gpc, &[0, 2]);
            // Computed from centered values: the mean of squares minus the squared mean would
            // cancel if the mean is large.
            let squares_gc = over_group(sum(centered_gpc * centered_gpc), axes, num_replicas);
            let variance_gc = (squares_gc / count).fusion_barrier();
            let root_gc = (variance_gc + EPSILON).rsqrt();
            let scale_gc = root_gc * weight_c.broadcast_like(root_gc, &[1]);
            let y_gpc = centered_gpc * scale_gc.broadcast_like(x_gpc, &[0, 2])
                + bias_c.broadcast_like(x_gpc, &[2]);
            vec![y_gpc, mean_gc, variance_gc]
        },
        // Mean and variance are only observed, so their cotangents are zero.
        |x, y, ct| {
            let (x_gpc, weight_c, mean_gc, dy_gpc) = (x[0], x[1], y[1], ct[0]);
            let root_gc = (y[2] + EPSILON).rsqrt();
            let centered_gpc = x_gpc - mean_gc.broadcast_like(x_gpc, &[0, 2]);
            let bias_gc = sum(dy_gpc).fusion_barrier();
            let dot_gc = sum(dy_gpc * centered_gpc).fusion_barrier();
            let mean_dy_gc = over_group(bias_gc, axes, num_replicas) / count;
            let mean_dot_gc = over_group(dot_gc, axes, num_replicas) / count;
            let scale_gc = root_gc * weight_c.broadcast_like(root_gc, &[1]);
            let [mean_gpc, along_gpc, scale_gpc] =
                [mean_dy_gc, root_gc * root_gc * mean_dot_gc, scale_gc]
                    .map(|x_gc| x_gc.broadcast_like(x_gpc, &[0, 2]));
            let dx_gpc = (dy_gpc - mean_gpc - centered_gpc * along_gpc) * scale_gpc;
            vec![dx_gpc, (dot_gc * root_gc).reduce_sum(&[0]), bias_gc.reduce_sum(&[0])]
        },
    );
    let [y_gpc, mean_gc, variance_gc] = results[..] else { return x_weight_bias[0] };
    let unbiased_gc = variance_gc * (count / (count - 1.0).max(1.0));
    for (name, observed_gc) in [("mean", mean_gc), ("variance", unbiased_gc)] {
        let observed_c = observed_gc.stop_gradient().reduce_sum(&[0]) / num_groups as f64;
        scope.observe(name, observed_c.reshape(&[c]));
    }
    y_gpc
}

/// The sum over the pixels of each group on this replica: `[g, p, c] -> [g, c]`.
fn sum(x_gpc: Tensor<'_>) -> Tensor<'_> {
    x_gpc.reduce_sum(&[1])
}

/// The sum over the replicas that share a group.
fn over_group(sum_gc: Tensor<'_>, axes: AxisSet, num_replicas: usize) -> Tensor<'_> {
    if num_replicas == 1 {
        return sum_gc;
    }
    sum_gc.all_reduce(Reduction::Sum, Groups::contiguous(axes, num_replicas))
}
