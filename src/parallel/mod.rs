//! How a step is spread over the mesh. Belongs to the trace phase.

mod buckets;
mod stacks;

use hlo::{Axis, AxisSet, Sharding, Tensor};

pub use buckets::group_all_reduces;
pub use stacks::reduce_whole_stacks;

/// Which axes cut the batch, how a parameter is kept, and how it is handed to the computation.
///
/// Data parallelism: the batch is cut over `data`, and every replica keeps every parameter whole.
#[derive(Clone, Copy, Debug, Default)]
pub struct Policy;

impl Policy {
    /// The axes over which the batch is cut.
    pub fn batch_axes(self) -> AxisSet {
        Axis::Data.into()
    }

    /// How a parameter of this rank is kept.
    pub fn param_sharding(self, rank: usize) -> Sharding {
        Sharding::replicated(rank)
    }

    /// The tensor to compute with, from the one that is kept. The VJP of this is the gradient
    /// all_reduce.
    #[track_caller]
    pub fn hand_out(self, kept: Tensor<'_>) -> Tensor<'_> {
        kept.vary(self.batch_axes())
    }
}
