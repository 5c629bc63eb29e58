//! The greatest elements and their indices.

use crate::{DType, Op, Tensor, TensorType};

impl<'g> Tensor<'g> {
    /// The `k` greatest elements along the last dim, in decreasing order, and their i32 indices:
    /// `[.., n]` gives two tensors `[.., k]`. Equal elements keep their order.
    ///
    /// Floats are compared in IEEE 754's total order: -0 is below 0, NaN is above infinity, and NaN
    /// with its sign bit set is below -infinity. So the bits determine the indices. The VJP adds
    /// the cotangents of the values at their indices.
    ///
    /// ```
    /// use hlo::{Literal, Mesh, interpret, trace};
    ///
    /// let graph = trace(Mesh::SINGLE, |t| {
    ///     let x = t.constant(Literal::from_slice(&[4], &[2f32, 7.0, 1.0, 7.0]));
    ///     let (values, indices) = x.top_k(3);
    ///     t.output("values", values);
    ///     t.output("indices", indices);
    /// })?;
    /// let outputs = interpret(&graph, &[]).unwrap();
    /// assert_eq!(outputs[0][0], Literal::from_slice(&[3], &[7f32, 7.0, 2.0]));
    /// assert_eq!(outputs[1][0], Literal::from_slice(&[3], &[1i32, 3, 0]));
    /// # Ok::<(), hlo::Error>(())
    /// ```
    #[must_use]
    #[track_caller]
    pub fn top_k(self, k: usize) -> (Tensor<'g>, Tensor<'g>) {
        let t = self.tracer();
        match t.apply_variadic(Op::TopK { k }, &[self])[..] {
            [values, indices] => (values, indices),
            _ => (t.poison(), t.poison()),
        }
    }
}

/// The types of the values and of their indices.
pub(crate) fn infer(x: &TensorType, k: usize) -> Result<Vec<TensorType>, String> {
    let Some((n, batch)) = x.dims.split_last() else {
        return Err("needs at least one dim".into());
    };
    if x.dtype == DType::Pred {
        return Err("pred has no order".into());
    }
    if k == 0 || k > *n {
        return Err(format!("k must be 1 to {n}, the size of the last dim, not {k}"));
    }
    if i32::try_from(*n).is_err() {
        return Err(format!("the {n} elements of the last dim exceed i32 indices"));
    }
    let values = x.with_dims(&[batch, &[k]].concat());
    let indices = values.with_dtype(DType::I32);
    Ok(vec![values, indices])
}

/// The cotangent of the operand: that of the values at their indices, which are distinct; zeros
/// elsewhere.
pub(crate) fn vjp<'g>(x: Tensor<'g>, indices: Tensor<'g>, ct: Tensor<'g>) -> Tensor<'g> {
    x.full_like(0.0).scatter_add(indices, ct, x.rank().saturating_sub(1))
}
