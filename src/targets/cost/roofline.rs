//! The roofline model: an op takes the longer of its compute time and its memory time.
//!
//! Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
//! architectures" (2009).

use hlo::{Cost, Graph};

use crate::targets::{Chip, Family};

/// The work of a step on one device, without its collectives.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// FLOPs, counting every loop iteration.
    pub flops: f64,
    /// FLOPs of matmuls and convolutions only.
    pub matmul_flops: f64,
    /// Bytes that matmuls and convolutions read and write.
    pub matmul_bytes: f64,
    /// Bytes that everything else reads and writes, with elementwise ops fused.
    pub other_bytes: f64,
    /// Bytes per element of the matmuls' operands.
    pub element_bytes: usize,
}

/// The fraction of peak that large matmuls reach: cuBLAS about 0.7 on an H100, whose clock drops under load;
/// the systolic arrays of TPUs more.
const GPU_SHARE: f64 = 0.7;
const TPU_SHARE: f64 = 0.8;
/// The fraction of memory bandwidth that streaming kernels reach.
const MEMORY_SHARE: f64 = 0.85;

impl Work {
    /// The work of a graph; `element_bytes` is the size of the compute dtype.
    pub fn of(graph: &Graph, element_bytes: usize) -> Self {
        Self::from_cost(&hlo::count(graph), element_bytes)
    }

    /// The work that [`hlo::count`] found.
    pub fn from_cost(cost: &Cost, element_bytes: usize) -> Self {
        Self {
            flops: cost.flops as f64,
            matmul_flops: cost.matmul_flops as f64,
            matmul_bytes: cost.matmul_bytes as f64,
            other_bytes: cost.fused_bytes as f64,
            element_bytes,
        }
    }

    /// FLOPs per byte of memory traffic.
    pub fn arithmetic_intensity(&self) -> f64 {
        let bytes = self.matmul_bytes + self.other_bytes;
        if bytes > 0.0 { self.flops / bytes } else { 0.0 }
    }

    /// Seconds on a chip.
    pub fn seconds(&self, chip: &Chip) -> f64 {
        self.matmul_seconds(chip) + self.other_bytes / bandwidth(chip)
    }

    /// Seconds of the matmuls alone.
    pub fn matmul_seconds(&self, chip: &Chip) -> f64 {
        let share = match chip.family {
            Family::Tpu(_) => TPU_SHARE,
            Family::Gpu(_) => GPU_SHARE,
        };
        let arithmetic = self.matmul_flops / (chip.flops_per_sec(self.element_bytes) * share);
        arithmetic.max(self.matmul_bytes / bandwidth(chip))
    }

    /// The fraction of the chip's peak that a step of `seconds` reaches.
    pub fn utilization(&self, chip: &Chip, seconds: f64) -> f64 {
        if seconds > 0.0 {
            self.flops / (seconds * chip.flops_per_sec(self.element_bytes))
        } else {
            0.0
        }
    }
}

fn bandwidth(chip: &Chip) -> f64 {
    chip.memory_bytes_per_sec * MEMORY_SHARE
}
