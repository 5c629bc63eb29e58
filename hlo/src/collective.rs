//! Collectives. Their [`Groups`] are given by mesh axes and listed when the graph is lowered.

use std::fmt;

use crate::{AxisSet, Groups, Op, Reduction, Tensor, Tracer};

/// An algorithm for all_reduce. A rewrite may write one as ops; else the backend chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// A ring through all devices, or as many parallel rings as a group has links to the network.
    Ring,
    /// Two pipelined trees.
    Tree,
    /// reduce_scatter in the group, all_reduce over the network, all_gather in the group.
    Hierarchical,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 3] = [Self::Ring, Self::Tree, Self::Hierarchical];

    /// The name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Tree => "tree",
            Self::Hierarchical => "hierarchical",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Tracer {
    /// This replica's index along `axes`, row-major over them: a u32 scalar.
    #[track_caller]
    pub fn replica_id(&self, axes: impl Into<AxisSet>) -> Tensor<'_> {
        self.apply(Op::ReplicaId { axes: axes.into() }, &[])
    }

    /// One all_reduce of several tensors of the same dtype; their dims may differ.
    #[track_caller]
    pub fn all_reduce<'g>(
        &'g self,
        tensors: &[Tensor<'g>],
        reduction: Reduction,
        groups: impl Into<Groups>,
    ) -> Vec<Tensor<'g>> {
        self.apply_variadic(Op::AllReduce { reduction, groups: groups.into() }, tensors)
    }
}

impl<'g> Tensor<'g> {
    /// The same value, typed as varying over `axes` too; its gradient is summed over them. Axes
    /// over which the tensor already varies are ignored.
    #[must_use]
    #[track_caller]
    pub fn vary(self, axes: impl Into<AxisSet>) -> Tensor<'g> {
        let axes = axes.into().minus(self.varying());
        if axes.is_empty() { self } else { self.tracer().apply(Op::Vary { axes }, &[self]) }
    }

    /// The same value, typed as not varying over `axes`. All replicas of a group along them must
    /// have it, bit for bit; see [`Op::Replicated`]. Axes over which the tensor does not vary are
    /// ignored.
    #[must_use]
    #[track_caller]
    pub fn replicated(self, axes: impl Into<AxisSet>) -> Tensor<'g> {
        let axes = axes.into().intersection(self.varying());
        if axes.is_empty() { self } else { self.tracer().apply(Op::Replicated { axes }, &[self]) }
    }

    /// [`Self::all_gather`] over all replicas along `axes`, typed as what it is: the same on all of
    /// them. In its VJP each replica gets its piece of the cotangent.
    #[must_use]
    #[track_caller]
    pub fn all_gather_replicated(self, dim: usize, axes: impl Into<AxisSet>) -> Tensor<'g> {
        let axes = axes.into();
        self.all_gather(dim, axes).replicated(axes)
    }

    /// Reduction over each replica group. All replicas of a group get the same result: over whole
    /// groups it no longer varies over their axes, over subgroups it still does. Where a maximum or
    /// minimum meets a NaN, the backend decides which of them remains.
    #[must_use]
    #[track_caller]
    pub fn all_reduce(self, reduction: Reduction, groups: impl Into<Groups>) -> Tensor<'g> {
        self.tracer().apply(Op::AllReduce { reduction, groups: groups.into() }, &[self])
    }

    /// The shards of each replica group, joined along `dim` in the order of the group. The result
    /// is still typed as varying over the axes, so that its gradient is summed where it is cut
    /// again.
    #[must_use]
    #[track_caller]
    pub fn all_gather(self, dim: usize, groups: impl Into<Groups>) -> Tensor<'g> {
        self.tracer().apply(Op::AllGather { dim, groups: groups.into() }, &[self])
    }

    /// Sums over each replica group; each replica keeps its shard along `dim`: the first replica of
    /// the group the first shard, and so on.
    #[must_use]
    #[track_caller]
    pub fn reduce_scatter(self, dim: usize, groups: impl Into<Groups>) -> Tensor<'g> {
        self.tracer().apply(Op::ReduceScatter { dim, groups: groups.into() }, &[self])
    }

    /// Cuts `split_dim` into one piece per replica of the group, sends piece `i` to replica `i`,
    /// and joins the received pieces along `concat_dim`.
    #[must_use]
    #[track_caller]
    pub fn all_to_all(
        self,
        split_dim: usize,
        concat_dim: usize,
        groups: impl Into<Groups>,
    ) -> Tensor<'g> {
        let groups = groups.into();
        self.tracer().apply(Op::AllToAll { split_dim, concat_dim, groups }, &[self])
    }

    /// Sends the value of replica `source` of each group to replica `target` of the group, for each
    /// pair `(source, target)`. A replica that is no target gets zeros.
    #[must_use]
    #[track_caller]
    pub fn collective_permute(
        self,
        pairs: &[(usize, usize)],
        groups: impl Into<Groups>,
    ) -> Tensor<'g> {
        let groups = groups.into();
        self.tracer().apply(Op::CollectivePermute { pairs: pairs.to_vec(), groups }, &[self])
    }
}
