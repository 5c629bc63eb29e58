//! Matrix products.

use crate::{DotDims, Op, Tensor};

impl<'g> Tensor<'g> {
    /// Generalised matrix product; result dims are batch, this tensor's free, `rhs`'s free.
    #[must_use]
    #[track_caller]
    pub fn dot_general(self, rhs: Tensor<'g>, dims: DotDims) -> Tensor<'g> {
        self.tracer().apply(Op::DotGeneral(dims), &[self, rhs])
    }

    /// Contracts the last dim of `self` with the first of `rhs`: `[.., k] x [k, ..] -> [.., ..]`.
    #[must_use]
    #[track_caller]
    pub fn dot(self, rhs: Tensor<'g>) -> Tensor<'g> {
        self.dot_general(rhs, DotDims::contract(&[self.rank().saturating_sub(1)], &[0]))
    }
}
