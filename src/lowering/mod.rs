//! Rewrites a finished graph into the form that a backend compiles to a fast program, with the same
//! maths, and lowers it.
//!
//! [`Lowering`] has the choices, and [`Pass`] the rewrites that follow from them.

mod buckets;

use std::fmt;

use hlo::rewrites::{self, ReplicaSums};
use hlo::{Graph, HostCalls, Program};

use crate::pjrt::Platform;

pub use buckets::group_sums;

/// Backend-specific choices that a traced graph leaves open. `benches/README.md` has the
/// measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lowering {
    /// Independent sums are combined up to this many bytes; 0 combines none.
    pub bucket_bytes: u64,
    /// `true` keeps the layers' fusion barriers, which keep XLA from fusing a value into several
    /// users and so computing it several times.
    pub fusion_barriers: bool,
    /// `true` writes the next value of a leaf first, and everything computed from it reads the
    /// written value.
    pub in_place_updates: bool,
    /// `true` makes collectives wait for the loops with collectives before them, on a backend that
    /// would start them sooner.
    pub order_collectives: bool,
    /// Reductions of whole large tensors start with groups of at most this many elements; 0 leaves
    /// them as one op.
    pub reduction_group: usize,
    /// Which sums over replicas are written as the messages of an algorithm.
    pub all_reduce: ReplicaSums,
    /// Number of neighbors on one host, for [`hlo::Algorithm::Hierarchical`].
    pub replicas_per_host: usize,
    /// reduce_scatters over more replicas than this are written as two, along one dim of a torus
    /// each: see [`rewrites::scatter_by_line`]. 0 leaves them as one op.
    pub scatter_line: usize,
    /// A number of processes writes collectives as calls to the host, for so many: see
    /// [`hlo::HostCalls::collectives`]. They are matched by site, not by order, so
    /// `order_collectives` does nothing then.
    pub host_collectives: Option<usize>,
    /// `true` leaves ops to kernels of the process: see [`hlo::HostCalls::kernels`]. For clients
    /// with kernels ([`crate::pjrt::Client::use_host_kernels`]).
    pub host_kernels: bool,
}

/// XLA's CPU backend vectorises reductions of up to this many elements. It turns longer ones into
/// windows, which it does not vectorise.
const CPU_REDUCTION_GROUP: usize = 32;

impl Lowering {
    /// The choices for a platform.
    ///
    /// | | CPU | others |
    /// |---|---|---|
    /// | sums of gradients | combined into one: each is a rendezvous of threads | one per parameter: XLA's combiner overlaps them |
    /// | fusion barriers | kept: XLA fuses long chains into each of their users | dropped |
    /// | optimizer state | written first, then read: otherwise XLA copies it | unchanged: XLA fuses both |
    /// | collectives beside a loop that has some | wait for its end: their rendezvous are told apart by order alone | as written |
    /// | reductions to a scalar | in stages, the first over at most 32 elements: longer ones are not vectorised | one op |
    /// | sums over replicas | one op; `parallel.all_reduce` writes the messages of an algorithm | the same |
    /// | reduce_scatters | one op | one op; `parallel.scatter_line` writes one per dim of a torus |
    /// | collectives | ops; `parallel.host_collectives` writes calls to the host | ops |
    /// | large products, convolutions of images, maxima over windows, sums over leading dims, random bits | ops; `compile.kernels` writes calls to the host | ops |
    pub fn for_platform(platform: Platform) -> Self {
        match platform {
            Platform::Cpu => Self {
                bucket_bytes: u64::MAX,
                fusion_barriers: true,
                in_place_updates: true,
                order_collectives: true,
                reduction_group: CPU_REDUCTION_GROUP,
                all_reduce: ReplicaSums::Direct,
                replicas_per_host: 0,
                scatter_line: 0,
                host_collectives: None,
                host_kernels: false,
            },
            Platform::Cuda | Platform::Tpu | Platform::Other => Self::default(),
        }
    }

    /// Sets the number of neighbors on one host, unless algorithms were measured: those are for the
    /// number that was measured with them, for any division over processes.
    pub fn set_replicas_per_host(&mut self, replicas_per_host: usize) {
        if !matches!(self.all_reduce, ReplicaSums::BySize(_)) {
            self.replicas_per_host = replicas_per_host;
        }
    }

    /// Lowers a traced graph.
    pub fn lower(self, graph: Graph, name: &str) -> Lowered {
        let graph = self.passes().into_iter().fold(graph, |graph, pass| pass.run(&graph));
        self.emit(graph, name)
    }

    /// Writes the program of a graph that is in the backend's form already, such as several lowered
    /// steps in one graph.
    pub fn emit(self, graph: Graph, name: &str) -> Lowered {
        let calls = HostCalls { collectives: self.host_collectives, kernels: self.host_kernels };
        let program = hlo::lower_with_host_calls(&graph, name, calls);
        Lowered { program, graph }
    }

    /// The collectives of a graph's lowered form, for those who only count them. Sums are as they
    /// are before [`Self::all_reduce`] writes messages: those follow from each sum
    /// ([`rewrites::written_all_reduce`]), and a program of thousands of replicas has millions.
    pub fn group_collectives(self, graph: &Graph) -> Graph {
        let is_of_collectives =
            |pass: &Pass| matches!(pass, Pass::GroupSums { .. } | Pass::ScatterByLine { .. });
        let passes = self.passes().into_iter().filter(is_of_collectives);
        passes.fold(graph.clone(), |graph, pass| pass.run(&graph))
    }

    /// The passes over a graph, in order.
    pub fn passes(&self) -> Vec<Pass> {
        let Self { bucket_bytes, scatter_line, replicas_per_host, .. } = *self;
        let write = Pass::WriteAllReduces { sums: self.all_reduce, replicas_per_host };
        let passes = [
            (!self.fusion_barriers).then_some(Pass::DropFusionBarriers),
            self.in_place_updates.then_some(Pass::UpdateInPlace),
            (self.reduction_group > 0).then_some(Pass::StageReductions(self.reduction_group)),
            (bucket_bytes > 0).then_some(Pass::GroupSums { bucket_bytes }),
            (self.all_reduce != ReplicaSums::Direct).then_some(write),
            (scatter_line > 0).then_some(Pass::ScatterByLine { replicas: scatter_line }),
            // Collectives of the host are matched by site, not by order.
            (self.order_collectives && self.host_collectives.is_none())
                .then_some(Pass::OrderCollectives),
        ];
        passes.into_iter().flatten().collect()
    }
}

/// A rewrite of a whole graph with the same results. `lockstep hlo` lists those of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// [`rewrites::without_fusion_barriers`].
    DropFusionBarriers,
    /// [`rewrites::update_in_place`].
    UpdateInPlace,
    /// [`rewrites::stage_reductions`], with groups of at most this many elements.
    StageReductions(usize),
    /// [`group_sums`].
    GroupSums {
        /// Most bytes of a bucket.
        bucket_bytes: u64,
    },
    /// [`rewrites::write_all_reduces_by`].
    WriteAllReduces {
        /// The messages of which algorithm are written.
        sums: ReplicaSums,
        /// Number of neighbors on one host.
        replicas_per_host: usize,
    },
    /// [`rewrites::scatter_by_line`].
    ScatterByLine {
        /// Replicas of a line.
        replicas: usize,
    },
    /// [`rewrites::order_collectives`].
    OrderCollectives,
}

impl Pass {
    /// The graph in its new form.
    pub fn run(self, graph: &Graph) -> Graph {
        match self {
            Self::DropFusionBarriers => rewrites::without_fusion_barriers(graph),
            Self::UpdateInPlace => rewrites::update_in_place(graph),
            Self::StageReductions(group) => rewrites::stage_reductions(graph, group),
            Self::GroupSums { bucket_bytes } => group_sums(graph, bucket_bytes),
            Self::WriteAllReduces { sums, replicas_per_host } => {
                let choose = |sum| sums.algorithm(sum);
                rewrites::write_all_reduces_by(graph, &choose, replicas_per_host)
            }
            Self::ScatterByLine { replicas } => rewrites::scatter_by_line(graph, replicas),
            Self::OrderCollectives => rewrites::order_collectives(graph),
        }
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DropFusionBarriers => f.write_str("drop fusion barriers"),
            Self::UpdateInPlace => f.write_str("update in place"),
            Self::StageReductions(group) => write!(f, "stage reductions in groups of {group}"),
            Self::GroupSums { bucket_bytes: u64::MAX } => f.write_str("group sums"),
            Self::GroupSums { bucket_bytes } => {
                write!(f, "group sums up to {bucket_bytes} bytes")
            }
            Self::WriteAllReduces { sums, replicas_per_host } if sums.is_hierarchical() => {
                write!(f, "write all_reduces as {sums}, {replicas_per_host} replicas a host")
            }
            Self::WriteAllReduces { sums, .. } => write!(f, "write all_reduces as {sums}"),
            Self::ScatterByLine { replicas } => {
                write!(f, "scatter along lines of {replicas} replicas")
            }
            Self::OrderCollectives => f.write_str("order collectives"),
        }
    }
}

/// A program and the graph it was lowered from.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The graph in the backend's form.
    pub graph: Graph,
    /// The program's text and signature.
    pub program: Program,
}
