//! One size of a scaling prediction.

use hlo::{Axis, Communication, Groups, counted};
use serde::Serialize;

/// The prediction for one number of devices.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Number of devices, with one replica each.
    pub num_devices: usize,
    /// Examples per step.
    pub global_batch: usize,
    /// Tokens per step, padding included; `None` for models of other data than texts.
    pub num_tokens: Option<usize>,
    /// Compute time in milliseconds.
    pub compute_ms: f64,
    /// Time of all collectives in milliseconds, including overlapped ones.
    pub communication_ms: f64,
    /// The part of it that does not overlap with compute.
    pub exposed_ms: f64,
    /// Expected time that a device waits for the slowest in milliseconds.
    pub jitter_ms: f64,
    /// Step time in milliseconds: compute, the exposed part of collectives, and waiting for the
    /// slowest.
    pub step_ms: f64,
    /// Examples per second and device, relative to the smallest size.
    pub efficiency: f64,
    /// Examples per second.
    pub examples_per_sec: f64,
    /// Bytes of parameters, running means and optimizer state on each device.
    pub state_bytes: u64,
    /// Bytes of the tensors that a device all_reduces in a step, over the groups of the largest
    /// all_reduce: gradients or shards of gradients, and scalars. With sharded state and
    /// `mesh.data = 1`, only the gradients of what is kept whole.
    pub all_reduced_bytes: u64,
    /// The algorithm of these sums: the one that `parallel.all_reduce` writes into the program,
    /// `all_to_all` with `parallel.reduce_dtype`, otherwise the fastest for an all_reduce of all
    /// these bytes at once; `none` if nothing is all_reduced.
    pub algorithm: &'static str,
    /// The collectives of the program, before its compiler combines any.
    pub collectives: Vec<PlannedCollectives>,
    /// With failures: the best interval between checkpoints in seconds.
    pub checkpoint_secs: Option<f64>,
    /// With failures: the fraction of the time that is left for steps that are not lost.
    pub goodput: Option<f64>,
}

impl Row {
    /// The collectives of the program, in words.
    pub(super) fn program_lines(&self) -> Vec<String> {
        let line = |sum: &PlannedCollectives| {
            format!(
                "program of {}: {} {} over {} of {}, {:.1} MB, {:.1} MB sent by a device",
                counted(self.num_devices, "device"),
                sum.count,
                sum.kind,
                sum.axes.join(" and "),
                sum.group_size,
                sum.bytes as f64 / 1e6,
                sum.sent_bytes as f64 / 1e6
            )
        };
        self.collectives.iter().map(line).collect()
    }
}

/// The collectives of a kind over the same groups, in the program of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedCollectives {
    /// StableHLO's name: `all_reduce`, `all_gather`, ...
    pub kind: &'static str,
    /// The axes along which the replicas of a group differ.
    pub axes: Vec<&'static str>,
    /// Replicas in a group.
    pub group_size: usize,
    /// Executions in a step.
    pub count: u64,
    /// Bytes of their operands on a device, of all executions.
    pub bytes: u64,
    /// Bytes that a device sends on average, of all executions.
    pub sent_bytes: u64,
}

impl PlannedCollectives {
    /// Sums by kind and groups, in program order. What moves nothing, among one replica, is left
    /// out.
    pub(super) fn sums(collectives: &[Communication]) -> Vec<Self> {
        let mut found: Vec<(Groups, Self)> = vec![];
        for one in collectives.iter().filter(|one| one.group_size > 1) {
            let at = found
                .iter()
                .position(|(groups, sum)| (*groups, sum.kind) == (one.groups, one.kind));
            let at = at.unwrap_or_else(|| {
                let axes = one.groups.axes().iter().map(Axis::name).collect();
                let (kind, group_size) = (one.kind, one.group_size);
                let empty = Self { kind, axes, group_size, count: 0, bytes: 0, sent_bytes: 0 };
                found.push((one.groups, empty));
                found.len() - 1
            });
            let sum = &mut found[at].1;
            sum.count = sum.count.saturating_add(one.count);
            sum.bytes = sum.bytes.saturating_add(one.bytes.saturating_mul(one.count));
            sum.sent_bytes = sum.sent_bytes.saturating_add(one.total_bytes_on_wire());
        }
        found.into_iter().map(|(_, sum)| sum).collect()
    }
}
