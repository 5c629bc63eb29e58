//! How a step is written for a backend: the same maths in the form that compiles to a fast program.

use hlo::{Graph, passes};

use crate::config::Backend;
use crate::parallel::group_all_reduces;

/// Choices that a traced graph leaves open. What was measured of them is in `benches/README.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Formulation {
    /// All_reduces are grouped up to this many bytes; 0 groups none.
    pub bucket_bytes: u64,
    /// Are the layers' hints kept, where fusing would compute the same several times?
    pub fusion_barriers: bool,
}

impl Formulation {
    /// What a backend gets.
    ///
    /// | | CPU | others |
    /// |---|---|---|
    /// | all_reduces | all in one: each is a meeting of threads | as they are: XLA's combiner overlaps them |
    /// | fusion barriers | kept: XLA fuses long chains into each of their users | dropped |
    pub fn of(backend: &Backend) -> Self {
        match backend {
            Backend::Cpu => Self { bucket_bytes: u64::MAX, fusion_barriers: true },
            _ => Self { bucket_bytes: 0, fusion_barriers: false },
        }
    }

    /// A graph of a step, or of a part of it, written so.
    pub fn apply(self, mut graph: Graph) -> Graph {
        if !self.fusion_barriers {
            graph = passes::without_fusion_barriers(&graph);
        }
        if self.bucket_bytes > 0 {
            graph = group_all_reduces(&graph, self.bucket_bytes);
        }
        graph
    }
}
