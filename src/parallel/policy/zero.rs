//! Data parallelism with sharded state: ZeRO.

use hlo::{Axis, AxisSet, Mesh, Sharding, Tensor};

use super::Policy;

/// ZeRO stage 1 over `fsdp`, hybrid with `data`. Parameters and their optimizer state are kept sharded over
/// `fsdp`. A step gathers each parameter once, before its microbatches. After them it reduce_scatters each
/// gradient over `fsdp` once and all_reduces the shard over `data`. Rajbhandari, Rasley, Ruwase and He,
/// "ZeRO: Memory optimizations toward training trillion parameter models" (2020).
#[derive(Clone, Copy, Debug, Default)]
pub struct Zero;

impl Zero {
    /// Parameters with fewer elements are not sharded: the memory saved is not worth two more collectives per step.
    pub const MIN_ELEMENTS: usize = 1024;
}

impl Policy for Zero {
    fn batch_axes(&self) -> AxisSet {
        AxisSet::of(&[Axis::Data, Axis::Fsdp])
    }

    /// Shards the largest dim that the size of the axis divides; of equal ones the first. A parameter that is small
    /// or has no such dim is not sharded.
    fn place(&self, _path: &str, dims: &[usize], mesh: &Mesh) -> Sharding {
        let num_shards = mesh.size(Axis::Fsdp);
        let mut axes = vec![AxisSet::EMPTY; dims.len()];
        let num_elements = dims.iter().fold(1usize, |n, dim| n.saturating_mul(*dim));
        let is_small = num_elements < Self::MIN_ELEMENTS;
        let divides = |dim: &usize| dims[*dim].is_multiple_of(num_shards);
        let candidates = (0..dims.len()).rev().filter(divides);
        if let Some(dim) = candidates.max_by_key(|dim| dims[*dim]).filter(|_| !is_small) {
            axes[dim] = Axis::Fsdp.into();
        }
        Sharding::new(&axes)
    }

    /// `vary` comes before `all_gather`, so that their VJPs run in the reverse order: reduce_scatter over `fsdp`,
    /// then all_reduce of only a shard over `data`.
    #[track_caller]
    fn for_step<'g>(&self, kept: Tensor<'g>, sharding: &Sharding) -> Tensor<'g> {
        let kept = kept.vary(self.batch_axes());
        let cut = sharding.dims().iter().enumerate();
        cut.fold(kept, |x, (dim, axes)| axes.iter().fold(x, |x, axis| x.all_gather(dim, axis)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_dim_that_divides_is_sharded() {
        let mesh = Mesh::new(&[(Axis::Fsdp, 4)]);
        let cut = |dims: &[usize]| {
            let sharding = Zero.place("w", dims, &mesh);
            sharding.dims().iter().position(|axes| !axes.is_empty())
        };
        assert_eq!(cut(&[64, 128]), Some(1));
        assert_eq!(cut(&[128, 128]), Some(0));
        assert_eq!(cut(&[65, 102, 32]), Some(2));
        assert_eq!(cut(&[65, 102]), None, "no dim divides");
        assert_eq!(cut(&[1020]), None, "too small to be worth it");
        assert_eq!(cut(&[]), None);
    }
}
