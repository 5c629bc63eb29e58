//! The supported chips, with a source for each figure.
//!
//! Figures are vendors' peaks per PJRT *device*, which on v4 and TPU7x is half a chip. `f32` is the peak of a
//! binary32 matmul at XLA's default precision: one bfloat16 pass on a TPU, TF32 on an NVIDIA GPU.

use std::fmt;

/// A kind of accelerator.
#[derive(Clone, Debug, PartialEq)]
pub struct Chip {
    /// The name in a target: `v5e`, `h100`.
    pub name: &'static str,
    /// The vendor's name.
    pub title: &'static str,
    /// Prefix of the device kind that PJRT reports.
    pub kind: &'static str,
    /// TPU or GPU, and the figures that only one of them has.
    pub family: Family,
    /// Peak of dense bfloat16 matmuls, in FLOP/s.
    pub bf16_flops_per_sec: f64,
    /// Peak of dense binary32 matmuls at default precision, in FLOP/s.
    pub f32_flops_per_sec: f64,
    /// Device memory, in bytes.
    pub memory_bytes: u64,
    /// Bandwidth of the device memory, in bytes/s.
    pub memory_bytes_per_sec: f64,
    /// Where the figures come from.
    pub source: &'static str,
}

/// The figures that only TPUs or only GPUs have.
#[derive(Clone, Debug, PartialEq)]
pub enum Family {
    /// A Google TPU; chips are connected as a torus.
    Tpu(TpuSpec),
    /// An NVIDIA GPU; connected by NVLink within a host and by a network between hosts.
    Gpu(GpuSpec),
}

/// A TPU generation.
#[derive(Clone, Debug, PartialEq)]
pub struct TpuSpec {
    /// The largest torus in chips, largest dim first; its length is the number of torus dimensions.
    pub max_bounds: &'static [usize],
    /// PJRT devices per chip.
    pub devices_per_chip: usize,
    /// Chips of one host along x and y.
    pub host_bounds: [usize; 2],
    /// The shortest side that has wrap-around links.
    pub ring_from: usize,
    /// Bandwidth of one ICI link in one direction, in bytes/s; there are two links per dimension.
    pub link_bytes_per_sec: f64,
    /// Bandwidth of the data center network between slices, per chip and direction, in bytes/s.
    pub network_bytes_per_sec: f64,
}

/// An NVIDIA GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuSpec {
    /// Maximum number of GPUs per host.
    pub max_per_host: usize,
    /// Compute capability.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub num_cores: u32,
    /// L2 cache size in bytes.
    pub l2_bytes: u64,
    /// Clock rate in GHz.
    pub clock_ghz: f64,
    /// NVLink bandwidth per GPU and direction, in bytes/s.
    pub nvlink_bytes_per_sec: f64,
    /// Bandwidth of the network between hosts, per GPU and direction, in bytes/s.
    pub network_bytes_per_sec: f64,
}

const GIB: u64 = 1 << 30;

/// What the H100 and the H200 share: everything but memory.
const HOPPER: Chip = Chip {
    name: "",
    title: "",
    kind: "",
    family: Family::Gpu(GpuSpec {
        max_per_host: 8,
        compute_capability: (9, 0),
        num_cores: 132,
        l2_bytes: 52_428_800,
        clock_ghz: 1.98,
        nvlink_bytes_per_sec: 450e9,
        network_bytes_per_sec: 50e9,
    }),
    bf16_flops_per_sec: 989.4e12,
    f32_flops_per_sec: 494.7e12,
    memory_bytes: 0,
    memory_bytes_per_sec: 0.0,
    source: "",
};

/// Every chip.
pub const CHIPS: &[Chip] = &[
    Chip {
        name: "v4",
        title: "TPU v4",
        kind: "TPU v4",
        family: Family::Tpu(TpuSpec {
            max_bounds: &[16, 16, 16],
            devices_per_chip: 2,
            host_bounds: [2, 2],
            ring_from: 4,
            link_bytes_per_sec: 50e9,
            network_bytes_per_sec: 6.25e9,
        }),
        bf16_flops_per_sec: 137.5e12,
        f32_flops_per_sec: 137.5e12,
        memory_bytes: 16 * GIB,
        memory_bytes_per_sec: 614e9,
        source: "Jouppi et al., TPU v4, ISCA 2023, table 4; Cloud TPU documentation, TPU v4: 275 TFLOP/s, \
                 32 GiB and 1228 GB/s a chip, 2 TensorCores, 2400 Gb/s over 6 links; the network's is not published, \
                 and taken as the v5p's",
    },
    Chip {
        name: "v5e",
        title: "TPU v5e",
        kind: "TPU v5 lite",
        family: Family::Tpu(TpuSpec {
            max_bounds: &[16, 16],
            devices_per_chip: 1,
            host_bounds: [2, 2],
            ring_from: 16,
            link_bytes_per_sec: 50e9,
            network_bytes_per_sec: 3.125e9,
        }),
        bf16_flops_per_sec: 197e12,
        f32_flops_per_sec: 197e12,
        memory_bytes: 16 * GIB,
        memory_bytes_per_sec: 819e9,
        source: "Cloud TPU documentation, TPU v5e: 197 TFLOP/s, 16 GB, 819 GB/s, 1600 Gb/s over 4 links; \
                 wrap-around in the full 16x16 only; TPU v6e, comparison: 6.4 Tb/s of network for the 256 chips",
    },
    Chip {
        name: "v5p",
        title: "TPU v5p",
        kind: "TPU v5",
        family: Family::Tpu(TpuSpec {
            max_bounds: &[24, 16, 16],
            devices_per_chip: 1,
            host_bounds: [2, 2],
            ring_from: 4,
            link_bytes_per_sec: 100e9,
            network_bytes_per_sec: 6.25e9,
        }),
        bf16_flops_per_sec: 459e12,
        f32_flops_per_sec: 459e12,
        memory_bytes: 95 * GIB,
        memory_bytes_per_sec: 2765e9,
        source: "Cloud TPU documentation, TPU7x, table of generations: 459 TFLOP/s, 95 GiB, 2765 GB/s, 1200 GB/s of \
                 ICI both ways over 6 links, 50 Gb/s of network a chip; TPU v5p: of a pod's 8960 chips one slice has at \
                 most 6144, 16x16x24",
    },
    Chip {
        name: "v6e",
        title: "TPU v6e (Trillium)",
        kind: "TPU v6 lite",
        family: Family::Tpu(TpuSpec {
            max_bounds: &[16, 16],
            devices_per_chip: 1,
            host_bounds: [2, 2],
            ring_from: 16,
            link_bytes_per_sec: 100e9,
            network_bytes_per_sec: 12.5e9,
        }),
        bf16_flops_per_sec: 918e12,
        f32_flops_per_sec: 918e12,
        memory_bytes: 32 * GIB,
        memory_bytes_per_sec: 1638e9,
        source: "Cloud TPU documentation, TPU7x, table of generations: 918 TFLOP/s, 32 GiB, 1638 GB/s, 800 GB/s of \
                 ICI both ways over 4 links, 100 Gb/s of network a chip, 256 chips",
    },
    Chip {
        name: "tpu7x",
        title: "TPU7x (Ironwood)",
        kind: "TPU7x",
        family: Family::Tpu(TpuSpec {
            max_bounds: &[36, 16, 16],
            devices_per_chip: 2,
            host_bounds: [2, 2],
            ring_from: 4,
            link_bytes_per_sec: 100e9,
            network_bytes_per_sec: 12.5e9,
        }),
        bf16_flops_per_sec: 1153.5e12,
        f32_flops_per_sec: 1153.5e12,
        memory_bytes: 96 * GIB,
        memory_bytes_per_sec: 3690e9,
        source: "Cloud TPU documentation, TPU7x: 2307 TFLOP/s, 192 GiB and 7380 GB/s a chip of 2 TensorCores, \
                 1200 GB/s of ICI both ways over 6 links, 100 Gb/s of network a chip, 9216 chips",
    },
    Chip {
        name: "h100",
        title: "NVIDIA H100 SXM",
        kind: "NVIDIA H100",
        memory_bytes: 80 * GIB,
        memory_bytes_per_sec: 3350e9,
        source: "NVIDIA H100 datasheet: 989.4 TFLOP/s bfloat16 and 494.7 TF32 without sparsity, 80 GB, 3.35 TB/s, \
                 900 GB/s of NVLink both ways; DGX H100 datasheet: 8 ports of 400 Gb/s for 8 GPUs",
        ..HOPPER
    },
    Chip {
        name: "h200",
        title: "NVIDIA H200 SXM",
        kind: "NVIDIA H200",
        memory_bytes: 150_110_011_392,
        memory_bytes_per_sec: 4800e9,
        source: "NVIDIA H200 datasheet: the H100's arithmetic, 141 GB, 4.8 TB/s; DGX H200 datasheet: 8 ports of \
                 400 Gb/s for 8 GPUs",
        ..HOPPER
    },
];

impl Chip {
    /// The chip called `name`.
    pub fn named(name: &str) -> Option<&'static Chip> {
        CHIPS.iter().find(|chip| chip.name == name)
    }

    /// The chip with this device kind: `TPU v5 lite` is a v5e, `TPU v5` a v5p.
    pub fn of_kind(kind: &str) -> Option<&'static Chip> {
        let matching = CHIPS.iter().filter(|chip| kind.starts_with(chip.kind));
        matching.max_by_key(|chip| chip.kind.len())
    }

    /// `tpu` or `gpu`, the first part of a target's name.
    pub fn family_name(&self) -> &'static str {
        match self.family {
            Family::Tpu(_) => "tpu",
            Family::Gpu(_) => "gpu",
        }
    }

    /// Peak FLOP/s of matmuls whose operands have `bytes` bytes per element.
    pub fn flops_per_sec(&self, bytes: usize) -> f64 {
        if bytes <= 2 { self.bf16_flops_per_sec } else { self.f32_flops_per_sec }
    }
}

impl fmt::Display for Chip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.title)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chip_is_known_by_the_kind_of_its_devices() {
        let rows = [
            ("TPU v5 lite", Some("v5e")),
            ("TPU v5", Some("v5p")),
            ("TPU v6 lite", Some("v6e")),
            ("NVIDIA H100 80GB HBM3", Some("h100")),
            ("cpu", None),
        ];
        for (kind, name) in rows {
            assert_eq!(Chip::of_kind(kind).map(|chip| chip.name), name, "{kind}");
        }
    }
}
