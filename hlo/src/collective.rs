//! Collectives, by mesh axis. Replica groups follow from the mesh when the graph is lowered.

use crate::{Axis, AxisSet, Op, Reduction, Tensor, Tracer};

impl Tracer {
    /// This replica's index along `axes`, row-major over them: a u32 scalar.
    #[track_caller]
    pub fn replica_id(&self, axes: impl Into<AxisSet>) -> Tensor<'_> {
        self.apply(Op::ReplicaId { axes: axes.into() }, &[])
    }

    /// One all_reduce of several tensors of one dtype, which may differ in dims.
    #[track_caller]
    pub fn all_reduce<'g>(
        &'g self,
        tensors: &[Tensor<'g>],
        reduction: Reduction,
        axes: impl Into<AxisSet>,
    ) -> Vec<Tensor<'g>> {
        self.apply_variadic(Op::AllReduce { reduction, axes: axes.into() }, tensors)
    }
}

impl<'g> Tensor<'g> {
    /// The same value, typed as varying over `axes` too: hands a replicated value to the replicas.
    /// Its gradient is summed over them. The tensor itself if it varies over them already.
    #[must_use]
    #[track_caller]
    pub fn vary(self, axes: impl Into<AxisSet>) -> Tensor<'g> {
        let axes = axes.into().minus(self.varying());
        if axes.is_empty() { self } else { self.tracer().apply(Op::Vary { axes }, &[self]) }
    }

    /// Reduction over the replicas along `axes`; the result is the same on all of them.
    /// Where a maximum or minimum meets a NaN, which of them remains is the backend's.
    #[must_use]
    #[track_caller]
    pub fn all_reduce(self, reduction: Reduction, axes: impl Into<AxisSet>) -> Tensor<'g> {
        self.tracer().apply(Op::AllReduce { reduction, axes: axes.into() }, &[self])
    }

    /// Sum over this replica's group of `size` neighbours along `axes`. Typed as varying over the axes
    /// still, since another group has another sum.
    #[must_use]
    #[track_caller]
    pub fn all_reduce_within(self, axes: impl Into<AxisSet>, size: usize) -> Tensor<'g> {
        self.tracer().apply(Op::AllReduceWithin { axes: axes.into(), size }, &[self])
    }

    /// The shards of the replicas along `axis`, joined along `dim`. Typed as varying over `axis`
    /// still, so that the gradient is summed where it is cut again.
    #[must_use]
    #[track_caller]
    pub fn all_gather(self, dim: usize, axis: Axis) -> Tensor<'g> {
        self.tracer().apply(Op::AllGather { dim, axis }, &[self])
    }

    /// Sum over the replicas along `axis`, of which each keeps its shard of `dim`.
    #[must_use]
    #[track_caller]
    pub fn reduce_scatter(self, dim: usize, axis: Axis) -> Tensor<'g> {
        self.tracer().apply(Op::ReduceScatter { dim, axis }, &[self])
    }

    /// Cuts `split_dim`, sends piece `i` to index `i` along `axis`, joins what comes along
    /// `concat_dim`.
    #[must_use]
    #[track_caller]
    pub fn all_to_all(self, split_dim: usize, concat_dim: usize, axis: Axis) -> Tensor<'g> {
        self.tracer().apply(Op::AllToAll { split_dim, concat_dim, axis }, &[self])
    }

    /// Sends the value from index `source` to index `target` along `axis` for each pair; zeros where
    /// nothing comes.
    #[must_use]
    #[track_caller]
    pub fn collective_permute(self, pairs: &[(usize, usize)], axis: Axis) -> Tensor<'g> {
        self.tracer().apply(Op::CollectivePermute { pairs: pairs.to_vec(), axis }, &[self])
    }
}
