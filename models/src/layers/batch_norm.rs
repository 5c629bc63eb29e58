//! `y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias`, over a group of examples

use hlo::Tensor;

use crate::{Initializer, Scope, Training};

/// Added to the variance.
const EPSILON: f64 = 1e-5;
/// How much of the running statistics a step replaces.
const MOMENTUM: f64 = 0.1;

/// What a [`batch_norm`] is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNorm {
    /// Examples that are normalised together.
    pub group: usize,
    /// How `weight` starts.
    pub weight: Initializer,
}

/// Batch norm of images `[n, c, h, w]` over the examples of a group, h and w, with parameters `weight` and
/// `bias` (zeros), both `[c]`, and running means `mean` and `variance` `[c]`, by which evaluation
/// normalises. Computed in f32 or wider, whatever the dtype of x.
///
/// Examples are normalised in groups of neighbours in the global batch, whatever the number of replicas: a
/// replica with more examples has several groups ("ghost batches"; Hoffer, Hubara and Soudry, "Train
/// longer, generalize better", 2017), one with fewer adds up with its neighbours. So the number of replicas
/// changes nothing; neither do microbatches, while each holds whole groups. Variances are biased, but
/// unbiased in the running mean. Ioffe and Szegedy, "Batch normalization" (2015).
///
/// ```
/// use hlo::{AxisSet, DType, Mesh, TensorType, trace};
/// use models::{Initializer, Precision, Scope, layers::{BatchNorm, batch_norm}};
///
/// trace(Mesh::SINGLE, |t| {
///     let x = t.input("x", TensorType::new(DType::F32, &[64, 16, 8, 8]));
///     let scope = Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY);
///     let norm = BatchNorm { group: 32, weight: Initializer::Ones };
///     assert_eq!(batch_norm(&scope, x, norm).dims(), [64, 16, 8, 8]);
///     assert!(scope.running_means().get("variance").is_some());
/// })?;
/// # Ok::<(), hlo::Error>(())
/// ```
#[track_caller]
pub fn batch_norm<'g>(scope: &Scope<'g>, x_nchw: Tensor<'g>, norm: BatchNorm) -> Tensor<'g> {
    let [n, c, h, w] = x_nchw.dims();
    let weight_c = scope.param_in_full("weight", &[c], norm.weight);
    let bias_c = scope.param_in_full("bias", &[c], Initializer::Zeros);
    let wide_nchw = x_nchw.convert(weight_c.dtype());
    let normalized_nchw = match scope.training() {
        Some(training) => {
            let group = group_of(wide_nchw, norm.group, &training);
            // g groups of e examples each, p places of an image.
            let x_gecp = wide_nchw.reshape(&[n / group.on_replica, group.on_replica, c, h * w]);
            let normalized_gecp = in_groups(scope, x_gecp, group, &training);
            normalized_gecp.reshape(&[n, c, h, w])
        }
        None => {
            let mean_c = scope.running_mean("mean", &[c], 0.0, MOMENTUM);
            let variance_c = scope.running_mean("variance", &[c], 1.0, MOMENTUM);
            let like_x = |x_c: Tensor<'g>| x_c.broadcast_like(wide_nchw, &[1]);
            (wide_nchw - like_x(mean_c)) * like_x((variance_c + EPSILON).rsqrt())
        }
    };
    let y_nchw = normalized_nchw * weight_c.broadcast_like(wide_nchw, &[1])
        + bias_c.broadcast_like(wide_nchw, &[1]);
    y_nchw.convert(x_nchw.dtype())
}

/// How a group lies over replicas.
#[derive(Clone, Copy)]
struct Group {
    /// Examples of the group on one replica.
    on_replica: usize,
    /// Replicas that hold it.
    num_replicas: usize,
}

fn group_of(x_nchw: Tensor<'_>, size: usize, training: &Training<'_>) -> Group {
    let n = x_nchw.dim(0).max(1);
    let along = x_nchw.tracer().mesh().group_size(training.batch_axes);
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
    x_nchw.reject("batch_norm", message);
    Group { on_replica: n, num_replicas: 1 }
}

/// `(x - mean) / sqrt(variance + eps)` within each group.
fn in_groups<'g>(
    scope: &Scope<'g>,
    x_gecp: Tensor<'g>,
    group: Group,
    training: &Training<'g>,
) -> Tensor<'g> {
    let [num_groups, examples, c, places] = x_gecp.dims();
    let count = (examples * group.num_replicas * places) as f64;
    let mean = |x_gecp: Tensor<'g>| {
        let sum_gc = x_gecp.reduce_sum(&[1, 3]);
        let sum_gc = match group.num_replicas {
            1 => sum_gc,
            num_replicas => sum_gc.all_reduce_within(training.batch_axes, num_replicas),
        };
        sum_gc / count
    };
    let like_x = |x_gc: Tensor<'g>| x_gc.broadcast_like(x_gecp, &[0, 2]);
    let mean_gc = mean(x_gecp);
    let centered_gecp = x_gecp - like_x(mean_gc);
    // From centred values: a mean of squares less a squared mean loses all digits where the mean is large.
    let variance_gc = mean(centered_gecp * centered_gecp);
    let unbiased_gc = variance_gc * (count / (count - 1.0).max(1.0));
    for (name, observed_gc) in [("mean", mean_gc), ("variance", unbiased_gc)] {
        let observed_c = observed_gc.stop_gradient().reduce_sum(&[0]) / num_groups as f64;
        scope.observe(name, observed_c.reshape(&[c]));
    }
    centered_gecp * like_x((variance_gc + EPSILON).rsqrt())
}
