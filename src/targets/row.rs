//! One size of a scaling prediction.

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
    /// The fastest algorithm for an all_reduce of all these bytes at once; `none` if nothing is
    /// all_reduced.
    pub algorithm: &'static str,
    /// With failures: the best interval between checkpoints in seconds.
    pub checkpoint_secs: Option<f64>,
    /// With failures: the fraction of the time that is left for steps that are not lost.
    pub goodput: Option<f64>,
}
