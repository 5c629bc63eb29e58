//! Data parallelism with replicated state.

use hlo::{Axis, AxisSet, Mesh, Sharding, Tensor};

use super::Policy;

/// The batch is split over `data`; every replica keeps every parameter whole. The VJP of `vary` is
/// the gradient's all_reduce.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replicated;

impl Policy for Replicated {
    fn batch_axes(&self) -> AxisSet {
        Axis::Data.into()
    }

    fn place(&self, _path: &str, dims: &[usize], _mesh: &Mesh) -> Sharding {
        Sharding::replicated(dims.len())
    }

    #[track_caller]
    fn for_step<'g>(&self, in_state: Tensor<'g>, _sharding: &Sharding) -> Tensor<'g> {
        in_state.vary(self.batch_axes())
    }
}
