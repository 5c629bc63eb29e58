//! Data parallelism with sharded state: ZeRO.

use hlo::{Axis, AxisSet, DType, Mesh, Sharding, Tensor};

use super::Policy;

/// What a step holds whole. Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory optimizations toward training trillion
/// parameter models" (2020), section 5. M is the number of microbatches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Parameters and gradients are whole during a step: one gather and one scatter per step.
    #[default]
    One,
    /// Parameters are whole, gradients are scattered in each microbatch and accumulated as shards: one gather and M
    /// scatters per step.
    Two,
    /// A parameter is gathered where a layer uses it, in the forward and again in the backward pass, and its gradient is
    /// scattered there: 2 M gathers and M scatters per step.
    Three,
}

/// ZeRO over `fsdp`, hybrid with `data`. Parameters and their optimizer state are kept sharded over `fsdp` in every
/// stage. The batch is split over both axes. Gradients are summed in the parameters' dtype: a reduce_scatter over
/// `fsdp`, and once per step an all_reduce of the shard over `data`. Gathers are in the dtype in which layers use the
/// parameter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Zero {
    /// What a step holds whole.
    pub stage: Stage,
}

impl Zero {
    /// Parameters with fewer elements are not sharded: the memory saved is not worth two more collectives per step.
    pub const MIN_ELEMENTS: usize = 1024;

    /// ZeRO at this stage.
    pub fn new(stage: Stage) -> Self {
        Self { stage }
    }
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

    /// `vary` comes before the gather, so that their VJPs run in the reverse order: reduce_scatter over `fsdp`, then
    /// all_reduce of only a shard over `data`.
    #[track_caller]
    fn for_step<'g>(&self, kept: Tensor<'g>, sharding: &Sharding) -> Tensor<'g> {
        let kept = kept.vary(self.batch_axes());
        match self.stage {
            Stage::One => gather(kept, sharding),
            Stage::Two | Stage::Three => kept,
        }
    }

    /// Stage 1 needs it only where the dtypes differ: its held tensor is whole.
    #[track_caller]
    fn once_per_step<'g>(
        &self,
        kept: Tensor<'g>,
        sharding: &Sharding,
        dtype: DType,
    ) -> Option<Tensor<'g>> {
        let is_wanted = match self.stage {
            Stage::One => dtype != kept.dtype(),
            Stage::Two => true,
            Stage::Three => false,
        };
        let is_cut = !sharding.varying().is_empty();
        (is_wanted && is_cut)
            .then(|| gather(kept.stop_gradient().vary(self.batch_axes()).convert(dtype), sharding))
    }

    #[track_caller]
    fn for_microbatch<'g>(
        &self,
        held: Tensor<'g>,
        once_per_step: Option<Tensor<'g>>,
        sharding: &Sharding,
    ) -> Tensor<'g> {
        let Some(whole) = once_per_step else { return held };
        let is_held_whole = self.stage == Stage::One;
        held.tracer().custom_vjp(
            &[held, whole],
            |x| vec![x[1]],
            |x, _, gradient| {
                let wide = gradient[0].convert(x[0].dtype());
                let to_held = if is_held_whole { wide } else { scatter(wide, sharding) };
                vec![to_held, x[1].full_like(0.0)]
            },
        )[0]
    }

    #[track_caller]
    fn for_use<'g>(&self, bound: Tensor<'g>, sharding: &Sharding, dtype: DType) -> Tensor<'g> {
        if !self.gathers_at_use() || sharding.varying().is_empty() {
            return bound;
        }
        bound.tracer().custom_vjp_recomputed(
            &[bound],
            |shard| vec![gather(shard[0].convert(dtype), sharding)],
            |shard, _, gradient| vec![scatter(gradient[0].convert(shard[0].dtype()), sharding)],
        )[0]
    }

    fn gathers_at_use(&self) -> bool {
        self.stage == Stage::Three
    }
}

/// The whole tensor, from shards.
#[track_caller]
fn gather<'g>(shard: Tensor<'g>, sharding: &Sharding) -> Tensor<'g> {
    let cut = sharding.dims().iter().enumerate();
    cut.fold(shard, |x, (dim, axes)| axes.iter().fold(x, |x, axis| x.all_gather(dim, axis)))
}

/// The sum over the replicas that hold the shards, of which each keeps its shard. The VJP of [`gather`].
#[track_caller]
fn scatter<'g>(whole: Tensor<'g>, sharding: &Sharding) -> Tensor<'g> {
    let cut: Vec<_> = sharding.dims().iter().enumerate().collect();
    cut.into_iter().rev().fold(whole, |x, (dim, axes)| {
        let axes: Vec<_> = axes.iter().collect();
        axes.into_iter().rev().fold(x, |x, axis| x.reduce_scatter(dim, axis))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_dim_that_divides_is_sharded() {
        let mesh = Mesh::new(&[(Axis::Fsdp, 4)]);
        let cut = |dims: &[usize]| {
            let sharding = Zero::default().place("w", dims, &mesh);
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
