//! Which dims of a parameter are cut over which axes of the mesh.

use std::fmt;

use hlo::{ActivationRows, Axis, AxisSet, DType, Mesh, Sharding};

use crate::config::GatherDType;

use super::{GatherAt, PipelinePlan, PipelineSchedule};

/// How a step is distributed over the mesh: data parallelism over `data` and `fsdp`, with
/// parameters and their optimizer state sharded over `fsdp` if it has more than one replica, and
/// layers cut over `tensor` if that has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParallelPlan {
    /// The replicas.
    pub mesh: Mesh,
    /// When the shards of a parameter over `fsdp` are gathered.
    pub gather_at: GatherAt,
    /// What replicas along `tensor` have of the rows of activations.
    pub rows: ActivationRows,
    /// How microbatches pass the stages, if `pipeline` has several replicas.
    pub pipeline: PipelinePlan,
    /// The dtype in which gradients are sent where they are scattered over `fsdp`; `None` is their
    /// own.
    pub reduce_dtype: Option<DType>,
    /// The dtype in which parameters are sent where training gathers them over `fsdp`, if not that
    /// to which layers round them.
    pub gather_dtype: Option<GatherDType>,
}

/// Which dims of a parameter are cut, and over which axes. The dims are those of one block's
/// parameter where several are stacked in one leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParamLayout {
    /// The dim that is cut over `tensor`. Layers get a piece of this dim.
    pub tensor: Option<usize>,
    /// The dim that is cut over `fsdp`, which is another. Layers get this dim whole.
    pub fsdp: Option<usize>,
    /// Why no dim is cut over `fsdp`, if that has several replicas.
    pub why_whole: Option<WhyWhole>,
}

impl ParamLayout {
    /// The sharding of a parameter of this rank.
    pub fn sharding(&self, rank: usize) -> Sharding {
        let mut dims = vec![AxisSet::EMPTY; rank];
        for (dim, axis) in [(self.tensor, Axis::Tensor), (self.fsdp, Axis::Fsdp)] {
            if let Some(dim) = dim {
                dims[dim] = axis.into();
            }
        }
        Sharding::new(&dims)
    }
}

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

impl ParallelPlan {
    /// Parameters with fewer elements are not sharded: the memory saved is not worth two more
    /// collectives per step.
    pub const MIN_ELEMENTS: usize = 1024;
    /// The same limit for vectors. A model has many, of few elements each: the biases and norms of
    /// GPT-2 1558M are a thousandth of its parameters and two thirds of its leaves.
    pub const MIN_VECTOR_ELEMENTS: usize = 1 << 16;

    /// Every replica of the mesh holds what it needs of a parameter from `gather_at` on.
    pub fn new(mesh: Mesh, gather_at: GatherAt) -> Self {
        Self {
            mesh,
            gather_at,
            rows: ActivationRows::Whole,
            pipeline: PipelinePlan::default(),
            reduce_dtype: None,
            gather_dtype: None,
        }
    }

    /// The same plan with sequence or context parallelism, or without both.
    #[must_use]
    pub fn with_rows(self, rows: ActivationRows) -> Self {
        Self { rows, ..self }
    }

    /// The number of pieces that rows of activations are cut into.
    pub fn num_row_pieces(&self) -> usize {
        if self.rows.are_cut() { self.mesh.size(Axis::Tensor) } else { 1 }
    }

    /// The same plan with stages that run microbatches in another way.
    #[must_use]
    pub fn with_pipeline(self, pipeline: PipelinePlan) -> Self {
        Self { pipeline, ..self }
    }

    /// The same plan with gradients that are rounded to a dtype before they are sent.
    #[must_use]
    pub fn with_reduce_dtype(self, reduce_dtype: Option<DType>) -> Self {
        Self { reduce_dtype, ..self }
    }

    /// The same plan with parameters that are rounded to a dtype before training gathers them.
    #[must_use]
    pub fn with_gather_dtype(self, gather_dtype: Option<GatherDType>) -> Self {
        Self { gather_dtype, ..self }
    }

    /// The schedule of this many microbatches; `None` without stages.
    pub fn schedule(&self, num_microbatches: usize) -> Option<PipelineSchedule> {
        let PipelinePlan { order, num_chunks } = self.pipeline;
        let num_stages = self.mesh.size(Axis::Pipeline);
        (num_stages > 1)
            .then(|| PipelineSchedule::new(order, num_stages, num_chunks, num_microbatches))
    }

    /// The axes over which the batch is split: those of [`Mesh::batch_axes`] that a program must
    /// name.
    pub fn batch_axes(&self) -> AxisSet {
        match self.is_sharded() {
            true => Mesh::BATCH_AXES,
            // Programs of a mesh without `fsdp` do not mention it.
            false => Axis::Data.into(),
        }
    }

    /// `true` if parameters may be sharded.
    pub(super) fn is_sharded(&self) -> bool {
        self.mesh.size(Axis::Fsdp) > 1
    }

    /// The layout of a parameter with these global dims, and with the dim that its layer lets be
    /// cut over `tensor`. No other code decides what is cut.
    ///
    /// The dim that is cut over `fsdp` is the largest of the others that the number of shards
    /// divides; of equal ones the first. Dims with shards of whole tiles in a TPU's layout come
    /// before others. On TPUs, XLA overlaps only the scatters of such shards with matmuls; it may
    /// sum a gradient with other shards whole before it cuts it.
    pub fn layout(&self, dims: &[usize], tensor: Option<usize>) -> ParamLayout {
        let tensor = tensor.filter(|_| self.mesh.size(Axis::Tensor) > 1);
        let layout = ParamLayout { tensor, ..ParamLayout::default() };
        if !self.is_sharded() {
            return layout;
        }
        match fsdp_dim(dims, tensor, self.mesh.size(Axis::Fsdp)) {
            Ok(dim) => ParamLayout { fsdp: Some(dim), ..layout },
            Err(why) => ParamLayout { why_whole: Some(why), ..layout },
        }
    }
}

fn fsdp_dim(dims: &[usize], tensor: Option<usize>, num_shards: usize) -> Result<usize, WhyWhole> {
    let num_elements = dims.iter().fold(1usize, |n, dim| n.saturating_mul(*dim));
    let is_vector = dims.len() < 2;
    let min_elements = match is_vector {
        true => ParallelPlan::MIN_VECTOR_ELEMENTS,
        false => ParallelPlan::MIN_ELEMENTS,
    };
    if num_elements < min_elements {
        return Err(WhyWhole::Small { is_vector, min_elements });
    }
    let divides = |dim: &usize| Some(*dim) != tensor && dims[*dim].is_multiple_of(num_shards);
    let is_tiled = |dim: usize| {
        let [rows, columns] = TPU_TILE;
        let tile = if dim + 1 == dims.len() { columns } else { rows };
        (dims[dim] / num_shards).is_multiple_of(tile)
    };
    let candidates = (0..dims.len()).rev().filter(divides);
    let best = candidates.max_by_key(|dim| (is_tiled(*dim), dims[*dim]));
    best.ok_or(WhyWhole::Indivisible { num_shards })
}

/// Elements of a tile in f32: along the second to last dim, required here of all dims but the last,
/// and along the last.
const TPU_TILE: [usize; 2] = [8, 128];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_dim_that_divides_into_whole_tiles_is_sharded() {
        let plan = ParallelPlan::new(Mesh::new(&[(Axis::Fsdp, 4)]), GatherAt::Step);
        let cut = |dims: &[usize]| {
            let layout = plan.layout(dims, None);
            assert_eq!(layout.fsdp.is_none(), layout.why_whole.is_some(), "{dims:?}");
            let sharding = layout.sharding(dims.len());
            assert_eq!(sharding.dims().iter().position(|axes| !axes.is_empty()), layout.fsdp);
            layout.fsdp
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

    #[test]
    fn nothing_is_cut_over_an_axis_of_one_replica() {
        let plan = ParallelPlan::new(Mesh::data(4), GatherAt::Use);
        assert_eq!(plan.layout(&[512, 512], Some(0)), ParamLayout::default());
        assert_eq!(plan.batch_axes(), Axis::Data.into());
    }

    #[test]
    fn two_dims_are_cut_over_two_axes() {
        let mesh = Mesh::new(&[(Axis::Fsdp, 2), (Axis::Tensor, 2)]);
        let plan = ParallelPlan::new(mesh, GatherAt::Step);
        let layout = plan.layout(&[512, 64], Some(0));
        assert_eq!((layout.tensor, layout.fsdp), (Some(0), Some(1)), "though 512 is larger");
        assert_eq!(layout.sharding(2), Sharding::new(&[Axis::Tensor.into(), Axis::Fsdp.into()]));
        let layout = plan.layout(&[1 << 16], Some(0));
        assert_eq!((layout.tensor, layout.fsdp), (Some(0), None));
        assert_eq!(layout.why_whole, Some(WhyWhole::Indivisible { num_shards: 2 }));
    }
}
