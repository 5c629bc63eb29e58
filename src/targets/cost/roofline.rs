//! The roofline model: an op takes the longer of its compute time and its memory time.
//!
//! Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
//! multicore architectures" (2009).
//!
//! Each kernel also takes a constant time to start, to fill the chip and to drain it, and each step
//! a constant time to be sent to the device. With the constant, a matmul's speed grows with its
//! size as in Hockney, "Parallel Computers" (1981): a matmul reaches half of the asymptotic speed
//! if its FLOPs take as long as the constant.

use hlo::{Cost, Graph, MatmulCost};

use crate::targets::{Chip, Family};

/// The work of a step on one device, without its collectives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// FLOPs, counting every loop iteration.
    pub flops: f64,
    /// Matmuls, convolutions and calls of libraries.
    pub matmuls: Vec<MatmulCost>,
    /// Bytes that everything else reads and writes, with elementwise ops fused.
    pub other_bytes: f64,
    /// Kernels of everything else, with elementwise ops fused.
    pub num_other_kernels: f64,
    /// Bytes per element of the matmuls' operands.
    pub element_bytes: usize,
}

/// The speed of fused attention as a share of the speed of matmuls. It computes exponentials
/// between its two products: FlashAttention reaches 25 to 40 % of an A100's peak and
/// FlashAttention-2 50 to 73 %, where matmuls reach 80 to 90 % (Dao, "FlashAttention-2", 2023).
const ATTENTION_SHARE: f64 = 0.45;
/// The fraction of memory bandwidth that streaming kernels reach: an assumption for all chips.
const MEMORY_SHARE: f64 = 0.85;

/// Constant times, in seconds.
struct Constants {
    /// Start of a step: the host sends the program to the device.
    step: f64,
    /// Start of a matmul.
    matmul: f64,
    /// Start of any other kernel.
    kernel: f64,
}

/// A kernel of a CUDA graph starts 1 to 2 microseconds after the one before; launched one by one, 2
/// to 5. A matmul fills and drains the multiprocessors too: with 4 microseconds, one of 1100 x 1100
/// x 1100 reaches half of an H100's asymptotic speed. Assumptions, not measurements.
const GPU_CONSTANTS: Constants = Constants { step: 30e-6, matmul: 4e-6, kernel: 2e-6 };
/// A TPU runs the ops of a program without the host, which sends the program once. Assumptions, not
/// measurements.
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
            matmuls: cost.matmuls.clone(),
            other_bytes: cost.fused_bytes as f64,
            num_other_kernels: cost.num_fused_kernels as f64,
            element_bytes,
        }
    }

    /// FLOPs of the matmuls.
    pub fn matmul_flops(&self) -> f64 {
        self.of_matmuls(|matmul| matmul.flops as f64)
    }

    /// Bytes that the matmuls read and write.
    pub fn matmul_bytes(&self) -> f64 {
        self.of_matmuls(|matmul| matmul.bytes as f64)
    }

    /// The sum over all runs of all matmuls.
    fn of_matmuls(&self, each: impl Fn(&MatmulCost) -> f64) -> f64 {
        self.matmuls.iter().map(|matmul| matmul.count as f64 * each(matmul)).sum()
    }

    /// FLOPs per byte of memory traffic.
    pub fn arithmetic_intensity(&self) -> f64 {
        let bytes = self.matmul_bytes() + self.other_bytes;
        if bytes > 0.0 { self.flops / bytes } else { 0.0 }
    }

    /// Seconds on a chip.
    pub fn seconds(&self, chip: &Chip) -> f64 {
        let mut other_bytes = self.other_bytes;
        if has_epilogues(chip) {
            other_bytes -= self.of_matmuls(|matmul| matmul.epilogue_bytes as f64);
        }
        self.matmul_seconds(chip) + other_bytes / bandwidth(chip) + self.launch_seconds(chip)
    }

    /// Seconds that do not depend on the sizes of tensors: to send the step to the device, and to
    /// start its kernels.
    pub fn launch_seconds(&self, chip: &Chip) -> f64 {
        let constants = match chip.family {
            Family::Tpu(_) => TPU_CONSTANTS,
            Family::Gpu(_) => GPU_CONSTANTS,
        };
        constants.step
            + self.of_matmuls(|_| constants.matmul)
            + self.num_other_kernels * constants.kernel
    }

    /// Seconds of the matmuls alone: each takes the longer of the times for its FLOPs and for its
    /// bytes.
    pub fn matmul_seconds(&self, chip: &Chip) -> f64 {
        let has_epilogues = has_epilogues(chip);
        self.of_matmuls(|matmul| {
            let of_matmuls = if matmul.is_call { ATTENTION_SHARE } else { 1.0 };
            let share = of_matmuls * chip.calibration.matmul_share;
            let epilogue = matmul.epilogue_bytes.saturating_sub(matmul.result_bytes);
            let bytes = matmul.bytes + if has_epilogues { epilogue } else { 0 };
            let arithmetic =
                matmul.flops as f64 / (share * chip.flops_per_sec(matmul.element_bytes));
            arithmetic.max(bytes as f64 / bandwidth(chip))
        })
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

/// `true` if the chip's compiler makes the kernels that follow a matmul part of it. XLA does on
/// TPUs: in a GPT of 4 blocks for v5e, fusions with a matmul move nearly twice the bytes of the
/// matmuls alone; for an H100 they move exactly these.
fn has_epilogues(chip: &Chip) -> bool {
    matches!(chip.family, Family::Tpu(_))
}

fn bandwidth(chip: &Chip) -> f64 {
    chip.memory_bytes_per_sec * MEMORY_SHARE
}
