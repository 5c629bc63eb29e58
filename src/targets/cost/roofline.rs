//! The roofline model: an op takes the longer of its compute time and its memory time.
//!
//! Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
//! architectures" (2009).
//!
//! Each kernel also takes a constant time to start, to fill the chip and to drain it, and each step a constant time to be
//! sent to the device. With the constant, a matmul's speed grows with its size as in Hockney, "Parallel Computers" (1981): one
//! whose FLOPs take as long as the constant reaches half of the asymptotic speed.

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
    /// Matmuls and convolutions.
    pub num_matmuls: f64,
    /// Kernels of everything else, with elementwise ops fused.
    pub num_other_kernels: f64,
    /// Bytes per element of the matmuls' operands.
    pub element_bytes: usize,
}

/// The fraction of peak that large matmuls reach: cuBLAS about 0.7 on an H100, whose clock drops under load;
/// the systolic arrays of TPUs more.
const GPU_SHARE: f64 = 0.7;
const TPU_SHARE: f64 = 0.8;
/// The fraction of memory bandwidth that streaming kernels reach.
const MEMORY_SHARE: f64 = 0.85;

/// Constant times, in seconds.
struct Constants {
    /// Of a step: the host sends the program to the device.
    step: f64,
    /// Of a matmul.
    matmul: f64,
    /// Of any other kernel.
    kernel: f64,
}

/// A kernel of a CUDA graph starts 1 to 2 microseconds after the one before; launched one by one, 2 to 5. A matmul fills and
/// drains the multiprocessors too: with 4 microseconds, one of 1100 x 1100 x 1100 reaches half of an H100's asymptotic
/// speed. Assumptions, not measurements.
const GPU_CONSTANTS: Constants = Constants { step: 30e-6, matmul: 4e-6, kernel: 2e-6 };
/// A TPU runs the ops of a program without the host, which sends the program once. Assumptions, not measurements.
const TPU_CONSTANTS: Constants = Constants { step: 20e-6, matmul: 0.8e-6, kernel: 0.4e-6 };

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
            num_matmuls: cost.num_matmuls as f64,
            num_other_kernels: cost.num_fused_kernels as f64,
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
        self.matmul_seconds(chip) + self.other_bytes / bandwidth(chip) + self.launch_seconds(chip)
    }

    /// Seconds that do not depend on the sizes of tensors: to send the step to the device, and to start its kernels.
    pub fn launch_seconds(&self, chip: &Chip) -> f64 {
        let constants = match chip.family {
            Family::Tpu(_) => TPU_CONSTANTS,
            Family::Gpu(_) => GPU_CONSTANTS,
        };
        constants.step
            + self.num_matmuls * constants.matmul
            + self.num_other_kernels * constants.kernel
    }

    /// Seconds of the matmuls alone.
    fn matmul_seconds(&self, chip: &Chip) -> f64 {
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
