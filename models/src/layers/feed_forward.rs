//! `y = gelu(x W_up^T) W_down^T`, and gated: `y = (silu(x W_gate^T) * x W_up^T) W_down^T`

use hlo::{DType, DotDims, Tensor, vjp};

use crate::layers::{column_linear, row_linear};
use crate::{Initializer, Scope};

/// GELU in its tanh form: `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`, as in GPT-2.
/// Hendrycks and Gimpel, "Gaussian error linear units" (2016), section 2.
///
/// ```
/// use hlo::{Literal, Mesh, interpret, trace};
///
/// let graph = trace(Mesh::SINGLE, |t| {
///     t.output("y", models::layers::gelu(t.constant(Literal::from_slice(&[2], &[1.0, -1.0]))));
/// })?;
/// let y = interpret(&graph, &[]).unwrap()[0][0].to_f64();
/// assert!((y[0] - 0.841192).abs() < 1e-6 && (y[1] + 0.158808).abs() < 1e-6);
/// # Ok::<(), hlo::Error>(())
/// ```
#[must_use]
#[track_caller]
pub fn gelu(x: Tensor<'_>) -> Tensor<'_> {
    recomputed(x, |x| {
        let inner = (x + x * x * x * 0.044715) * (2.0 / std::f64::consts::PI).sqrt();
        x * 0.5 * (inner.tanh() + 1.0)
    })
}

/// Exact GELU, `x / 2 * (1 + erf(x / sqrt(2)))`: x times the standard normal distribution function
/// at x. Hendrycks and Gimpel, "Gaussian error linear units" (2016), equation 1.
///
/// ```
/// use hlo::{Literal, Mesh, interpret, trace};
///
/// let graph = trace(Mesh::SINGLE, |t| {
///     t.output("y", models::layers::gelu_exact(t.constant(Literal::from_slice(&[2], &[1.0, -1.0]))));
/// })?;
/// let y = interpret(&graph, &[]).unwrap()[0][0].to_f64();
/// assert!((y[0] - 0.841345).abs() < 1e-6 && (y[1] + 0.158655).abs() < 1e-6);
/// # Ok::<(), hlo::Error>(())
/// ```
#[must_use]
#[track_caller]
pub fn gelu_exact(x: Tensor<'_>) -> Tensor<'_> {
    recomputed(x, |x| x * 0.5 * ((x * std::f64::consts::FRAC_1_SQRT_2).erf() + 1.0))
}

/// `f(x)` of an elementwise `f`. Only `x` is kept for the backward pass. The result, as large as
/// the greatest activations of a transformer, and all values in between are computed again, in ops
/// that read and write little more than those they replace.
///
/// Narrower floats than f32 are kept: XLA rounds what is between to their precision or not, as it
/// fuses the ops, so values that are computed again could differ from those of the forward pass,
/// and from mesh to mesh.
#[track_caller]
fn recomputed<'g>(x: Tensor<'g>, f: impl for<'b> Fn(Tensor<'b>) -> Tensor<'b>) -> Tensor<'g> {
    if !matches!(x.dtype(), DType::F32 | DType::F64) {
        return f(x);
    }
    let results = x.tracer().custom_vjp_recomputed(
        &[x],
        |x| vec![f(x[0])],
        |x, _, ct| {
            // Without the barrier XLA would keep what both passes have in common.
            let x = x[0].fusion_barrier();
            vjp(&[(f(x), ct[0])], &[x])
        },
    );
    results[0]
}

/// SiLU, also called swish: `x / (1 + e^-x)`.
#[must_use]
#[track_caller]
pub fn silu(x: Tensor<'_>) -> Tensor<'_> {
    x * x.logistic()
}

/// Two linear layers with GELU in between, one region: `[b, d] -> [b, d]`, with parameters `up.*`
/// `[num_hidden, d]` and `down.*` `[d, num_hidden]`. Vaswani et al., "Attention is all you need"
/// (2017), section 3.3.
///
/// ```
/// use hlo::{AxisSet, DType, Mesh, TensorType, trace};
/// use models::{Initializer, Precision, Scope, layers::feed_forward};
///
/// trace(Mesh::SINGLE, |t| {
///     let x = t.input("x", TensorType::new(DType::F32, &[8, 64]));
///     let scope = Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY);
///     let normal = Initializer::Normal { std: 0.02 };
///     assert_eq!(feed_forward(&scope, x, 256, normal, normal).dims(), [8, 64]);
/// })?;
/// # Ok::<(), hlo::Error>(())
/// ```
#[track_caller]
pub fn feed_forward<'g>(
    scope: &Scope<'g>,
    x_bd: Tensor<'g>,
    num_hidden: usize,
    up: Initializer,
    down: Initializer,
) -> Tensor<'g> {
    let hidden_bh = gelu(column_linear(&scope.at("up"), scope.enter(x_bd), num_hidden, up));
    row_linear(&scope.at("down"), hidden_bh, x_bd.dim(1), down)
}

/// SwiGLU: a gated pair of linear layers without biases: `[b, d] -> [b, d]`, with parameters
/// `gate.weight` and `up.weight` `[num_hidden, d]`, and `down.weight` `[d, num_hidden]`. Shazeer,
/// "GLU variants improve transformer" (2020).
///
/// ```
/// use hlo::{AxisSet, DType, Mesh, TensorType, trace};
/// use models::{Initializer, Precision, Scope, layers::swiglu};
///
/// trace(Mesh::SINGLE, |t| {
///     let x = t.input("x", TensorType::new(DType::F32, &[8, 64]));
///     let scope = Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY);
///     let normal = Initializer::Normal { std: 0.02 };
///     assert_eq!(swiglu(&scope, x, 176, normal, normal).dims(), [8, 64]);
/// })?;
/// # Ok::<(), hlo::Error>(())
/// ```
#[track_caller]
pub fn swiglu<'g>(
    scope: &Scope<'g>,
    x_bd: Tensor<'g>,
    num_hidden: usize,
    up: Initializer,
    down: Initializer,
) -> Tensor<'g> {
    let [_, d] = x_bd.dims();
    let entered_bd = scope.enter(x_bd);
    let times = |scope: Scope<'g>, x: Tensor<'g>, dims: [usize; 2], initializer: Initializer| {
        let weight_oi = scope.param("weight", &dims, initializer);
        x.dot_general(weight_oi, DotDims::contract(&[1], &[1]))
    };
    let gate_bh = times(scope.at("gate").cut(0), entered_bd, [num_hidden, d], up);
    let up_bh = times(scope.at("up").cut(0), entered_bd, [num_hidden, d], up);
    let hidden_bh = silu(gate_bh) * up_bh;
    scope.leave(times(scope.at("down").cut(1), hidden_bh, [d, num_hidden], down))
}

#[cfg(test)]
mod tests {
    use hlo::passes::simplify;
    use hlo::{Mesh, TensorType, count, grad, trace};

    use super::*;

    #[test]
    fn the_backward_pass_computes_gelu_again() {
        let graph = trace(Mesh::SINGLE, |t| {
            let [x, w] = ["x", "w"].map(|name| t.input(name, TensorType::new(DType::F32, &[8, 8])));
            let y = gelu(x).dot(w);
            for (name, gradient) in ["dx", "dw"].into_iter().zip(grad(y.sum(), &[x, w])) {
                t.output(name, gradient);
            }
            t.output("loss", y.sum());
        });
        // In the forward pass, for the gradient of x, and for that of the weight.
        assert_eq!(count(&simplify(&graph.unwrap())).transcendentals, 3 * 64);
    }
}
