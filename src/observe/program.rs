//! What is known of the program of a step before it runs.

use serde::{Deserialize, Serialize};

/// The program of a step, on one replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepProgram {
    /// FLOPs of its matrix products and convolutions, with what it computes again in the backward
    /// pass; a fused multiply-add counts 2.
    pub flops: u64,
    /// The most that a device of this kind computes, in FLOPs per second in the dtype of products;
    /// `None` for kinds that are not known.
    pub peak_flops_per_sec: Option<f64>,
    /// Bytes of temporaries beside the state; `None` if the plugin does not say.
    pub temporary_bytes: Option<u64>,
    /// The most bytes that the program has at once, state and batch included; `None` if the plugin
    /// does not say.
    pub peak_bytes: Option<u64>,
    /// What replicas send.
    pub collectives: Vec<StepCollective>,
    /// The passes of the stages of a pipeline, a line for each stage after one that says what is
    /// what; empty without a pipeline.
    pub ticks: Vec<String>,
}

/// The collectives of a kind in a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepCollective {
    /// Kind, dtype and axes.
    pub name: String,
    /// How often a step has one.
    pub count: u64,
    /// Bytes of the tensors that a group of replicas gathers, scatters or reduces, in a step.
    pub bytes: u64,
    /// Bytes that a replica sends in a step.
    pub sent_bytes: u64,
}
