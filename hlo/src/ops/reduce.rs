//! Reductions within a replica.

use crate::{Op, Reduction, Tensor};

impl<'g> Tensor<'g> {
    /// Reduction over `dims`, which must be increasing and are removed.
    #[must_use]
    #[track_caller]
    pub fn reduce(self, reduction: Reduction, dims: &[usize]) -> Tensor<'g> {
        self.tracer().apply(Op::Reduce { reduction, dims: dims.to_vec() }, &[self])
    }

    /// Sum over `dims`, accumulated in f32 for narrower floats.
    #[must_use]
    #[track_caller]
    pub fn reduce_sum(self, dims: &[usize]) -> Tensor<'g> {
        let dtype = self.dtype();
        self.convert(dtype.accumulation()).reduce(Reduction::Sum, dims).convert(dtype)
    }

    /// Maximum over `dims`.
    #[must_use]
    #[track_caller]
    pub fn reduce_max(self, dims: &[usize]) -> Tensor<'g> {
        self.reduce(Reduction::Max, dims)
    }

    /// Minimum over `dims`.
    #[must_use]
    #[track_caller]
    pub fn reduce_min(self, dims: &[usize]) -> Tensor<'g> {
        self.reduce(Reduction::Min, dims)
    }

    /// Sum of all elements.
    #[must_use]
    #[track_caller]
    pub fn sum(self) -> Tensor<'g> {
        self.reduce_sum(&(0..self.rank()).collect::<Vec<_>>())
    }

    /// log(softmax(x)) over the last dim, shifted by the row's maximum:
    /// `x - max - log(sum(exp(x - max)))`.
    #[must_use]
    #[track_caller]
    pub fn log_softmax(self) -> Tensor<'g> {
        let last = self.rank().saturating_sub(1);
        let rows: Vec<_> = (0..last).collect();
        // The shift cancels, so its gradient is zero and need not be computed.
        let max = self.reduce_max(&[last]).stop_gradient();
        let shifted = self - max.broadcast_like(self, &rows);
        let log_sum = shifted.exponential().reduce_sum(&[last]).log();
        shifted - log_sum.broadcast_like(self, &rows)
    }
}
