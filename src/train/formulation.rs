//! How a step is written for a backend: the same maths in the form that compiles to a fast program.

use hlo::{Graph, formulate};

use crate::parallel::group_all_reduces;
use crate::pjrt::Platform;

/// Choices that a traced graph leaves open. What was measured of them is in `benches/README.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Formulation {
    /// All_reduces are grouped up to this many bytes; 0 groups none.
    pub bucket_bytes: u64,
    /// Are the layers' hints kept, where fusing would compute the same several times?
    pub fusion_barriers: bool,
    /// Does what follows from a leaf's next value read the one that is kept?
    pub in_place_updates: bool,
    /// Reductions of whole large tensors begin with groups of at most this many elements; 0 leaves them whole.
    pub reduction_group: usize,
}

/// XLA's CPU backend vectorises reductions of up to so many elements, and makes windows of longer ones, which
/// it does not.
const CPU_REDUCTION_GROUP: usize = 32;

impl Formulation {
    /// What a platform gets.
    ///
    /// | | CPU | others |
    /// |---|---|---|
    /// | all_reduces | all in one: each is a meeting of threads | as they are: XLA's combiner overlaps them |
    /// | fusion barriers | kept: XLA fuses long chains into each of their users | dropped |
    /// | optimizer state | written at once, and read by what follows: otherwise copied first | as it is: XLA fuses both |
    /// | reductions to one number | in stages, the first over 32 elements at most: longer ones are not vectorised | whole |
    pub fn of(platform: Platform) -> Self {
        match platform {
            Platform::Cpu => Self {
                bucket_bytes: u64::MAX,
                fusion_barriers: true,
                in_place_updates: true,
                reduction_group: CPU_REDUCTION_GROUP,
            },
            Platform::Cuda | Platform::Tpu | Platform::Other => Self::default(),
        }
    }

    /// A graph of a step, or of a part of it, written so.
    pub fn apply(self, mut graph: Graph) -> Graph {
        if !self.fusion_barriers {
            graph = formulate::without_fusion_barriers(&graph);
        }
        if self.in_place_updates {
            graph = formulate::update_in_place(&graph);
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
