//! How a step is written for a backend: the same maths in the form that compiles to a fast program.

use hlo::{Graph, formulate};

use crate::config::Backend;
use crate::parallel::group_all_reduces;

/// Choices that a traced graph leaves open. What was measured of them is in `benches/README.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Formulation {
    /// All_reduces are grouped up to this many bytes; 0 groups none.
    pub bucket_bytes: u64,
    /// Are the layers' hints kept, where fusing would compute the same several times?
    pub fusion_barriers: bool,
    /// Reductions of whole large tensors begin with groups of at most this many elements; 0 leaves them whole.
    pub reduction_group: usize,
    /// Parts of the batch over which a convolution kernel's gradient is summed on one replica.
    pub kernel_gradient_chunks: usize,
}

/// Convolutions side by side, over all replicas, that keep the CPU backend's threads busy and their
/// operands in the cache: more replicas, fewer parts each.
const CPU_KERNEL_GRADIENTS: usize = 8;

/// XLA's CPU backend vectorises reductions of up to so many elements, and makes windows of longer ones, which
/// it does not.
const CPU_REDUCTION_GROUP: usize = 32;

impl Formulation {
    /// What a backend gets.
    ///
    /// | | CPU | others |
    /// |---|---|---|
    /// | all_reduces | all in one: each is a meeting of threads | as they are: XLA's combiner overlaps them |
    /// | fusion barriers | kept: XLA fuses long chains into each of their users | dropped |
    /// | reductions to one number | in two stages, the first over 32 elements at most: longer ones are not vectorised | whole |
    /// | kernel gradients | in parts: one convolution runs on about one thread | whole |
    pub fn of(backend: &Backend, num_replicas: usize) -> Self {
        match backend {
            Backend::Cpu => Self {
                bucket_bytes: u64::MAX,
                fusion_barriers: true,
                reduction_group: CPU_REDUCTION_GROUP,
                kernel_gradient_chunks: (CPU_KERNEL_GRADIENTS / num_replicas.max(1)).max(1),
            },
            _ => Self {
                bucket_bytes: 0,
                fusion_barriers: false,
                reduction_group: 0,
                kernel_gradient_chunks: 1,
            },
        }
    }

    /// A graph of a step, or of a part of it, written so.
    pub fn apply(self, graph: Graph) -> Graph {
        let mut graph = formulate::split_kernel_gradients(&graph, self.kernel_gradient_chunks);
        if !self.fusion_barriers {
            graph = formulate::without_fusion_barriers(&graph);
        }
        if self.reduction_group > 0 {
            graph = formulate::stage_reductions(&graph, self.reduction_group);
        }
        if self.bucket_bytes > 0 {
            graph = group_all_reduces(&graph, self.bucket_bytes);
        }
        graph
    }
}
