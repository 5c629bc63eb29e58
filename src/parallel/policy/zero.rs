//! Data parallelism with sharded state: ZeRO.

use std::fmt;

use hlo::{Axis, AxisSet, Mesh, Sharding, Tensor};

use super::{Policy, UseDTypes};

/// Which tensors a step holds whole. Rajbhandari, Rasley, Ruwase and He, "ZeRO: Memory
/// optimizations toward training trillion parameter models" (2020), section 5. M is the number of
/// microbatches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroStage {
    /// Parameters and gradients are whole during a step: one gather and one scatter per step.
    #[default]
    One,
    /// Parameters are whole, gradients are scattered in each microbatch and accumulated as shards:
    /// one gather and M scatters per step.
    Two,
    /// A parameter is gathered where a layer uses it, in the forward and again in the backward
    /// pass, and its gradient is scattered there: 2 M gathers and M scatters per step.
    Three,
}

/// ZeRO over `fsdp`, hybrid with `data`. Parameters and their optimizer state are kept sharded over
/// `fsdp` in every stage. The batch is split over both axes. Gradients are summed in the
/// parameters' dtype: a reduce_scatter over `fsdp`, and once per step an all_reduce of the shard
/// over `data`. Gathers are in the dtype to which layers round the parameter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Zero {
    /// Which tensors a step holds whole.
    pub stage: ZeroStage,
}

impl Zero {
    /// Parameters with fewer elements are not sharded: the memory saved is not worth two more
    /// collectives per step.
    pub const MIN_ELEMENTS: usize = 1024;
    /// The same limit for vectors. A model has many, of few elements each: the biases and norms of
    /// GPT-2 1558M are a thousandth of its parameters and two thirds of its leaves.
    pub const MIN_VECTOR_ELEMENTS: usize = 1 << 16;

    /// ZeRO at this stage.
    pub fn new(stage: ZeroStage) -> Self {
        Self { stage }
    }

    /// The dim that is cut: the largest that the number of shards divides; of equal ones the first.
    /// Dims with shards of whole tiles in a TPU's layout come before others. On TPUs, XLA overlaps
    /// only the scatters of such shards with matmuls; it may sum a gradient with other shards whole
    /// before it cuts it.
    fn dim(dims: &[usize], num_shards: usize) -> Result<usize, WhyWhole> {
        let num_elements = dims.iter().fold(1usize, |n, dim| n.saturating_mul(*dim));
        let is_vector = dims.len() < 2;
        let min_elements = if is_vector { Self::MIN_VECTOR_ELEMENTS } else { Self::MIN_ELEMENTS };
        if num_elements < min_elements {
            return Err(WhyWhole::Small { is_vector, min_elements });
        }
        let divides = |dim: &usize| dims[*dim].is_multiple_of(num_shards);
        let is_tiled = |dim: usize| {
            let [rows, columns] = TPU_TILE;
            let tile = if dim + 1 == dims.len() { columns } else { rows };
            (dims[dim] / num_shards).is_multiple_of(tile)
        };
        let candidates = (0..dims.len()).rev().filter(divides);
        let best = candidates.max_by_key(|dim| (is_tiled(*dim), dims[*dim]));
        best.ok_or(WhyWhole::Indivisible { num_shards })
    }

    /// Why a parameter with these dims is not sharded; `None` if it is.
    pub fn why_whole(dims: &[usize], num_shards: usize) -> Option<WhyWhole> {
        Self::dim(dims, num_shards).err()
    }
}

/// Elements of a tile in f32: along the second to last dim, required here of all dims but the last,
/// and along the last.
const TPU_TILE: [usize; 2] = [8, 128];

/// Why every replica holds a parameter whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyWhole {
    /// The parameter has too few elements to be worth a collective.
    Small {
        /// `true` if it has at most one dim.
        is_vector: bool,
        /// The number of elements from which on it would be sharded.
        min_elements: usize,
    },
    /// The number of shards divides none of its dims.
    Indivisible {
        /// The number of shards.
        num_shards: usize,
    },
}

/// Completes "whole: ".
impl fmt::Display for WhyWhole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Small { is_vector: true, min_elements } => {
                write!(f, "a vector of fewer than {min_elements} elements")
            }
            Self::Small { min_elements, .. } => write!(f, "fewer than {min_elements} elements"),
            Self::Indivisible { num_shards } => write!(f, "no dim that {num_shards} divides"),
        }
    }
}

impl Policy for Zero {
    fn batch_axes(&self) -> AxisSet {
        AxisSet::of(&[Axis::Data, Axis::Fsdp])
    }

    /// Shards one dim, unless [`Zero::why_whole`] has a reason not to.
    fn place(&self, _path: &str, dims: &[usize], mesh: &Mesh) -> Sharding {
        let mut axes = vec![AxisSet::EMPTY; dims.len()];
        if let Ok(dim) = Self::dim(dims, mesh.size(Axis::Fsdp)) {
            axes[dim] = Axis::Fsdp.into();
        }
        Sharding::new(&axes)
    }

    /// `vary` comes before the gather, so that their VJPs run in the reverse order: reduce_scatter
    /// over `fsdp`, then all_reduce of only a shard over `data`.
    #[track_caller]
    fn for_step<'g>(&self, in_state: Tensor<'g>, sharding: &Sharding) -> Tensor<'g> {
        let shard = in_state.vary(self.batch_axes());
        match self.stage {
            ZeroStage::One => gather(shard, sharding),
            ZeroStage::Two | ZeroStage::Three => shard,
        }
    }

    /// Stage 1 needs it only where the dtypes differ: the step's tensor is whole.
    #[track_caller]
    fn once_per_step<'g>(
        &self,
        in_state: Tensor<'g>,
        sharding: &Sharding,
        dtypes: UseDTypes,
    ) -> Option<Tensor<'g>> {
        let is_wanted = match self.stage {
            ZeroStage::One => dtypes.rounded_to != in_state.dtype(),
            ZeroStage::Two => true,
            ZeroStage::Three => false,
        };
        let is_cut = !sharding.varying().is_empty();
        let shard = || in_state.stop_gradient().vary(self.batch_axes()).convert(dtypes.rounded_to);
        (is_wanted && is_cut).then(|| gather(shard(), sharding))
    }

    #[track_caller]
    fn for_microbatch<'g>(
        &self,
        in_step: Tensor<'g>,
        once_per_step: Option<Tensor<'g>>,
        sharding: &Sharding,
        dtypes: UseDTypes,
    ) -> Tensor<'g> {
        let Some(whole) = once_per_step else { return in_step };
        let is_step_whole = self.stage == ZeroStage::One;
        in_step.tracer().custom_vjp(
            &[in_step, whole],
            |x| vec![x[1].convert(dtypes.used_in)],
            |x, _, gradient| {
                let wide = gradient[0].convert(x[0].dtype());
                let to_step = if is_step_whole { wide } else { scatter(wide, sharding) };
                vec![to_step, x[1].full_like(0.0)]
            },
        )[0]
    }

    #[track_caller]
    fn for_use<'g>(
        &self,
        in_microbatch: Tensor<'g>,
        sharding: &Sharding,
        dtypes: UseDTypes,
    ) -> Tensor<'g> {
        if !self.gathers_at_use() || sharding.varying().is_empty() {
            return in_microbatch;
        }
        in_microbatch.tracer().custom_vjp_recomputed(
            &[in_microbatch],
            |shard| {
                let whole = gather(shard[0].convert(dtypes.rounded_to), sharding);
                vec![whole.convert(dtypes.used_in)]
            },
            |shard, _, gradient| vec![scatter(gradient[0].convert(shard[0].dtype()), sharding)],
        )[0]
    }

    fn gathers_at_use(&self) -> bool {
        self.stage == ZeroStage::Three
    }
}

/// The whole tensor, from shards.
#[track_caller]
fn gather<'g>(shard: Tensor<'g>, sharding: &Sharding) -> Tensor<'g> {
    let cut = sharding.dims().iter().enumerate();
    cut.fold(shard, |x, (dim, axes)| axes.iter().fold(x, |x, axis| x.all_gather(dim, axis)))
}

/// The sum over the replicas that hold the shards; each replica keeps its shard of it. The VJP of
/// [`gather`].
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
    fn the_largest_dim_that_divides_into_whole_tiles_is_sharded() {
        let mesh = Mesh::new(&[(Axis::Fsdp, 4)]);
        let cut = |dims: &[usize]| {
            let sharding = Zero::default().place("w", dims, &mesh);
            sharding.dims().iter().position(|axes| !axes.is_empty())
        };
        assert_eq!(cut(&[30, 128]), Some(1));
        assert_eq!(cut(&[512, 512]), Some(0));
        assert_eq!(cut(&[65, 102, 32]), Some(2));
        assert_eq!(cut(&[64, 1024]), Some(1));
        assert_eq!(cut(&[64, 1000]), Some(0), "250 columns are no whole tiles, 16 rows are");
        assert_eq!(cut(&[65, 102]), None, "no dim divides");
        assert_eq!(cut(&[30, 32]), None, "too small to be worth it");
        assert_eq!((cut(&[8192]), cut(&[1 << 16])), (None, Some(0)), "vectors");
        assert_eq!(cut(&[]), None);
    }
}
