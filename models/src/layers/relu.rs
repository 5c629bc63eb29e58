//! `y = max(x, 0)`

use hlo::Tensor;

/// Rectified linear unit, with gradient 0 at 0. Nair and Hinton (2010); Glorot, Bordes and Bengio
/// (2011).
///
/// Its gradient is computed from the result, which is usually kept for the next op anyway, so x is
/// not kept.
///
/// ```
/// use hlo::{Literal, Mesh, grad, interpret, trace};
///
/// let graph = trace(Mesh::SINGLE, |t| {
///     let x = t.constant(Literal::from_slice(&[3], &[-1.0, 0.0, 2.0]));
///     t.output("y", models::layers::relu(x));
///     let x = t.input("x", x.ty());
///     t.output("gradient", grad(models::layers::relu(x).sum(), &[x])[0]);
/// })?;
/// let outputs = interpret(&graph, &[vec![Literal::from_slice(&[3], &[-1.0, 0.0, 2.0])]]).unwrap();
/// assert_eq!(outputs[0][0].to_f64(), [0.0, 0.0, 2.0]);
/// assert_eq!(outputs[1][0].to_f64(), [0.0, 0.0, 1.0]);
/// # Ok::<(), hlo::Error>(())
/// ```
#[must_use]
#[track_caller]
pub fn relu(x: Tensor<'_>) -> Tensor<'_> {
    let results = x.tracer().custom_vjp(
        &[x],
        |x| vec![x[0].maximum(0.0).fusion_barrier()],
        |_, y, ct| vec![y[0].greater(0.0).select(ct[0], ct[0].full_like(0.0))],
    );
    results[0]
}
