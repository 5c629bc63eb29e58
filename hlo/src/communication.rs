//! The collectives of a graph, with their bytes.

use crate::{DType, Graph, Groups, Node, Op, Reduction, TensorType, count};

/// One collective of a graph.
///
/// Sizes are given in two ways. `bytes` is what the op reads on one replica. `whole_bytes` is the
/// tensor that the replicas of a group share, whichever side of the op it is on:
///
/// | kind | `bytes` (operands) | `whole_bytes` |
/// |---|---|---|
/// | all_gather | a shard | the result: `group_size` shards |
/// | reduce_scatter | the whole tensor | the operand |
/// | all_reduce | the whole tensor | the operands |
/// | all_to_all, collective_permute | the operand | the operand |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Communication {
    /// StableHLO's name: `all_reduce`, `all_gather`, ...
    pub kind: &'static str,
    /// That of the operands.
    pub dtype: DType,
    /// The replica groups.
    pub groups: Groups,
    /// Replicas in a group; 1 if the mesh has size 1 along the axes.
    pub group_size: usize,
    /// Number of groups.
    pub num_groups: usize,
    /// Bytes of all operands, on one replica, in one execution.
    pub bytes: u64,
    /// Bytes of the tensor that a group shares, in one execution.
    pub whole_bytes: u64,
    /// Number of executions, with loops multiplied by their trip counts.
    pub count: u64,
    /// `true` if it belongs to a backward pass.
    pub is_backward: bool,
    /// Replicas of a group that send something: all of them, except in a collective_permute.
    pub num_senders: usize,
    /// Elements of a sum over whole groups, which [`rewrites::write_all_reduces`] may write as
    /// messages; 0 for anything else.
    ///
    /// [`rewrites::write_all_reduces`]: crate::rewrites::write_all_reduces
    pub summed_elements: u64,
}

impl Communication {
    /// Bytes that one replica sends in one execution of a bandwidth-optimal algorithm, on average
    /// over the group. With `p` replicas in a group and `n` = [`Self::whole_bytes`]:
    ///
    /// ```text
    /// all_gather, reduce_scatter, all_to_all    n (p-1)/p
    /// all_reduce                              2 n (p-1)/p
    /// collective_permute                        n num_senders/p
    /// ```
    /// Rounded up. Every replica receives as much as it sends.
    pub fn bytes_on_wire(&self) -> u64 {
        let p = self.group_size as u128;
        let (factor, of) = match self.kind {
            "all_reduce" => (2 * (p - 1), p),
            "collective_permute" => (self.num_senders as u128, p),
            _ => (p - 1, p),
        };
        let bytes = (u128::from(self.whole_bytes) * factor).div_ceil(of);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// [`Self::bytes_on_wire`] of all executions.
    pub fn total_bytes_on_wire(&self) -> u64 {
        self.bytes_on_wire().saturating_mul(self.count)
    }

    /// The collective that `node` is, if it is one; it runs `times` times.
    pub(crate) fn of(graph: &Graph, node: &Node, times: u64) -> Option<Self> {
        let groups = node.op.groups()?;
        let mesh = graph.mesh();
        let group_size = groups.size(mesh);
        let group_size =
            group_size.unwrap_or_else(|_| unreachable!("`infer` has checked that groups divide"));
        let bytes = |ty: &TensorType| ty.num_bytes() as u64;
        let operands = node.operands.iter().map(|value| bytes(graph.ty(*value))).sum();
        let whole_bytes = match node.op {
            Op::AllGather { .. } => bytes(graph.ty(node.result())),
            _ => operands,
        };
        let num_senders = match &node.op {
            Op::CollectivePermute { pairs, .. } => {
                pairs.iter().filter(|(source, target)| source != target).count()
            }
            _ => group_size,
        };
        let elements = || node.operands.iter().map(|x| graph.ty(*x).num_elements() as u64).sum();
        let summed_elements = match node.op {
            Op::AllReduce { reduction: Reduction::Sum, .. } if groups.is_whole() => elements(),
            _ => 0,
        };
        Some(Self {
            kind: node.op.name(),
            dtype: graph.ty(node.operands[0]).dtype,
            groups,
            group_size,
            num_groups: mesh.num_replicas() / group_size,
            bytes: operands,
            whole_bytes,
            count: times,
            is_backward: node.location.is_backward,
            num_senders,
            summed_elements,
        })
    }
}

/// The collectives of `graph` in program order, in loops too. Of a case, those of the branch that
/// runs, as far as [`count`] knows it.
///
/// ```
/// use hlo::{Axis, DType, Mesh, TensorType, communication, trace};
///
/// let mesh = Mesh::new(&[(Axis::Fsdp, 4)]);
/// let graph = trace(mesh, |t| {
///     let shard = t.input("x", TensorType::new(DType::F32, &[2, 8]).varying(Axis::Fsdp.into()));
///     t.output_varying("whole", shard.all_gather(0, Axis::Fsdp), Axis::Fsdp.into());
/// })?;
/// let gather = &communication(&graph)[0];
/// assert_eq!((gather.kind, gather.bytes, gather.whole_bytes), ("all_gather", 64, 256));
/// // Each replica sends 3 of 4 shards.
/// assert_eq!(gather.bytes_on_wire(), 192);
/// # Ok::<(), hlo::Error>(())
/// ```
pub fn communication(graph: &Graph) -> Vec<Communication> {
    count(graph).collectives
}
