//! The collectives of a compiled step, and their sums by kind, phase and group.

use hlo::{Axis, Origin};
use serde::{Deserialize, Serialize};

use super::hlo_proto::OpMetadata;

/// One collective of an optimized program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collective {
    /// StableHLO's name: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`,
    /// `collective_permute`, `send`.
    pub kind: String,
    /// Its purpose.
    pub phase: CollectivePhase,
    /// Bytes of its operands on one replica, in one execution. For an all_reduce, bytes of its
    /// result if that is larger: TPU compilers take operands rounded to bf16 and sum them in f32.
    pub bytes: u64,
    /// Executions in a step: the product of the trip counts of the loops around it.
    pub count: u64,
    /// Replicas per group.
    pub group_size: usize,
    /// Number of groups.
    pub num_groups: usize,
    /// The mesh axes along which the replicas of a group differ.
    pub axes: Vec<String>,
    /// `true` if it runs asynchronously.
    pub asynchronous: bool,
    /// Matmuls and convolutions scheduled while it runs, in one execution.
    pub overlapped_matmuls: usize,
    /// The replicas of the first group.
    #[serde(skip)]
    pub group: Vec<usize>,
    /// The outermost loop around it, numbered from 1 in the order of the schedule; 0 without one.
    #[serde(skip)]
    pub in_loop: usize,
    /// `true` if it is in a branch, which may not run each time.
    #[serde(skip)]
    pub in_branch: bool,
}

/// The purpose of a collective, as far as the compiler has kept the origin of the op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectivePhase {
    /// An all_gather outside the backward pass.
    ForwardGather,
    /// An all_gather of the backward pass.
    BackwardGather,
    /// A reduce_scatter.
    Scatter,
    /// An all_reduce of the backward pass: of gradients, or of what a compiler makes of a
    /// reduce_scatter.
    Reduction,
    /// Anything else: losses, norms, batch statistics.
    Other,
    /// The compiler dropped the origin.
    Unknown,
}

impl CollectivePhase {
    /// The phase of a collective with this name and metadata.
    pub(super) fn of(kind: &str, metadata: Option<&OpMetadata>) -> Self {
        let known = metadata.filter(|m| !(m.op_name.is_empty() && m.source_file.is_empty()));
        let is_backward = known.map(|metadata| metadata.op_name.contains(Origin::BACKWARD));
        match (kind, is_backward) {
            ("reduce_scatter", _) => Self::Scatter,
            (_, None) => Self::Unknown,
            ("all_gather", Some(false)) => Self::ForwardGather,
            ("all_gather", Some(true)) => Self::BackwardGather,
            ("all_reduce", Some(true)) => Self::Reduction,
            _ => Self::Other,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::ForwardGather => "forward gather",
            Self::BackwardGather => "backward gather",
            Self::Scatter => "scatter",
            Self::Reduction => "reduction",
            Self::Other => "other",
            Self::Unknown => "unknown phase",
        }
    }
}

impl std::fmt::Display for CollectivePhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl Collective {
    /// `true` if it overlaps with a matmul.
    pub fn is_overlapped(&self) -> bool {
        self.asynchronous && self.overlapped_matmuls > 0
    }

    /// `true` if it is of activations, between the replicas that compute a layer together.
    pub fn is_of_layers(&self) -> bool {
        self.axes == [Axis::Tensor.name()]
    }

    /// `true` if it is of activations, from stage to stage of a pipeline.
    pub fn is_of_stages(&self) -> bool {
        self.kind == "collective_permute" && self.axes == [Axis::Pipeline.name()]
    }

    /// Bytes of its operands in a step.
    pub fn total_bytes(&self) -> u64 {
        self.bytes.saturating_mul(self.count)
    }

    /// Bytes that the group shares, in one execution: of an all_gather the result, otherwise the
    /// operands.
    pub fn whole_bytes(&self) -> u64 {
        match self.kind.as_str() {
            "all_gather" => self.bytes.saturating_mul(self.group_size as u64),
            _ => self.bytes,
        }
    }
}

/// Collectives of one kind and phase over groups of one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CollectiveSum {
    /// StableHLO's name.
    pub kind: String,
    /// Their purpose.
    pub phase: CollectivePhase,
    /// Replicas per group.
    pub group_size: usize,
    /// Number of groups.
    pub num_groups: usize,
    /// The mesh axes along which the replicas of a group differ.
    pub axes: Vec<String>,
    /// Executions in a step.
    pub count: u64,
    /// Bytes of their operands on one replica, in all executions.
    pub bytes: u64,
    /// Executions that overlap with matmuls.
    pub overlapped_count: u64,
    /// Bytes of these.
    pub overlapped_bytes: u64,
    /// Predicted time of all executions on the links of the groups, in milliseconds.
    pub predicted_ms: f64,
}

/// The sums of collectives, in the order in which each first appears. `secs` is the predicted time
/// of one in all its executions.
pub(super) fn sums(
    collectives: &[Collective],
    mut secs: impl FnMut(&Collective) -> f64,
) -> Vec<CollectiveSum> {
    let mut sums: Vec<CollectiveSum> = vec![];
    for c in collectives {
        let key = (&c.kind, c.phase, c.group_size, c.num_groups, &c.axes);
        let found = sums.iter().position(|sum| {
            (&sum.kind, sum.phase, sum.group_size, sum.num_groups, &sum.axes) == key
        });
        let at = found.unwrap_or_else(|| {
            sums.push(CollectiveSum {
                kind: c.kind.clone(),
                phase: c.phase,
                group_size: c.group_size,
                num_groups: c.num_groups,
                axes: c.axes.clone(),
                count: 0,
                bytes: 0,
                overlapped_count: 0,
                overlapped_bytes: 0,
                predicted_ms: 0.0,
            });
            sums.len() - 1
        });
        let sum = &mut sums[at];
        sum.count = sum.count.saturating_add(c.count);
        sum.bytes = sum.bytes.saturating_add(c.total_bytes());
        sum.predicted_ms += 1e3 * secs(c);
        if c.is_overlapped() {
            sum.overlapped_count = sum.overlapped_count.saturating_add(c.count);
            sum.overlapped_bytes = sum.overlapped_bytes.saturating_add(c.total_bytes());
        }
    }
    sums
}

/// The fraction of the bytes of these collectives that overlap with a matmul; `None` if there are
/// none.
pub(super) fn overlapped_fraction(
    collectives: &[Collective],
    is_counted: impl Fn(&Collective) -> bool,
) -> Option<f64> {
    let (mut all, mut overlapped) = (0u64, 0u64);
    for collective in collectives.iter().filter(|collective| is_counted(collective)) {
        all = all.saturating_add(collective.total_bytes());
        if collective.is_overlapped() {
            overlapped = overlapped.saturating_add(collective.total_bytes());
        }
    }
    (all > 0).then(|| overlapped as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_follow_from_the_names_that_compilers_keep() {
        let metadata = |op_name: &str, source_file: &str| OpMetadata {
            op_name: op_name.to_owned(),
            source_file: source_file.to_owned(),
            source_line: 1,
        };
        let [forward, backward] = [metadata("", "zero.rs"), metadata("backward", "zero.rs")];
        let lost = metadata("", "");
        let rows = [
            ("all_gather", Some(&forward), CollectivePhase::ForwardGather),
            ("all_gather", Some(&backward), CollectivePhase::BackwardGather),
            ("all_gather", Some(&lost), CollectivePhase::Unknown),
            ("reduce_scatter", None, CollectivePhase::Scatter),
            ("all_reduce", Some(&backward), CollectivePhase::Reduction),
            ("all_reduce", Some(&forward), CollectivePhase::Other),
            ("all_reduce", None, CollectivePhase::Unknown),
        ];
        for (kind, metadata, phase) in rows {
            assert_eq!(CollectivePhase::of(kind, metadata), phase, "{kind} {metadata:?}");
        }
    }

    #[test]
    fn loops_count_in_sums_and_fractions() {
        let gather = |bytes: u64, count: u64, overlapped_matmuls: usize| Collective {
            kind: "all_gather".into(),
            phase: CollectivePhase::ForwardGather,
            bytes,
            count,
            group_size: 4,
            num_groups: 2,
            axes: vec!["fsdp".to_owned()],
            asynchronous: overlapped_matmuls > 0,
            overlapped_matmuls,
            group: vec![0, 1, 2, 3],
            in_loop: 0,
            in_branch: false,
        };
        let collectives = [gather(100, 3, 1), gather(50, 2, 0)];
        let [sum] = &sums(&collectives, |c| c.count as f64)[..] else { panic!("one kind") };
        assert_eq!((sum.count, sum.bytes), (5, 400));
        assert_eq!((sum.overlapped_count, sum.overlapped_bytes), (3, 300));
        assert_eq!(sum.predicted_ms, 5e3);
        assert_eq!(overlapped_fraction(&collectives, |c| c.kind == "all_gather"), Some(0.75));
        assert_eq!(overlapped_fraction(&collectives, Collective::is_of_layers), None);
        assert_eq!(collectives[0].whole_bytes(), 400);
    }
}
