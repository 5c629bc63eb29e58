//! The supported chips, with a source for each figure.
//!
//! Figures are vendors' peaks per PJRT *device*, which on TPU7x is half a chip. `f32` is the peak
//! of a binary32 matmul at XLA's default precision: one bfloat16 pass on a TPU, TF32 on an NVIDIA
//! GPU. Where a vendor gives peaks with sparsity only, half of them are taken. Memory of GPUs is
//! what the driver reports, which is less than their names say.

use std::fmt;

/// A kind of accelerator.
#[derive(Clone, Debug, PartialEq)]
pub struct Chip {
    /// The name in a target: `v5e`, `h100`.
    pub name: &'static str,
    /// Other names for it in a target, in lower case: those of accelerator types (`v5litepod`) and
    /// of makers (`h100-sxm`), and those that Google Kubernetes Engine gives its node pools
    /// (`tpu-v5-lite-podslice`, `nvidia-h100-80gb`).
    pub aliases: &'static [&'static str],
    /// The vendor's name.
    pub title: &'static str,
    /// How the device kinds that PJRT reports begin; a GPU's first is the name that its driver
    /// reports.
    pub kinds: &'static [&'static str],
    /// TPU or GPU, and the figures that only one of them has.
    pub family: Family,
    /// Peak of dense bfloat16 matmuls, in FLOP/s.
    pub bf16_flops_per_sec: f64,
    /// Peak of dense binary32 matmuls at default precision, in FLOP/s.
    pub f32_flops_per_sec: f64,
    /// How fast published steps were.
    pub calibration: Calibration,
    /// Device memory, in bytes.
    pub memory_bytes: u64,
    /// Bandwidth of the device memory, in bytes/s.
    pub memory_bytes_per_sec: f64,
    /// Where the figures come from.
    pub source: &'static str,
}

/// The fit to published steps of a chip. `cargo test --test cost_model` fits the share again;
/// `docs/cost-model.md` lists the steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// The chip of the steps to which the share is fitted.
    pub chip: &'static str,
    /// The part of its peak that large matmuls reach in a step.
    pub matmul_share: f64,
    /// Published steps to which the share is fitted; 0 if it is that of a similar chip.
    pub num_steps: usize,
    /// Mean absolute relative error of the throughput of each of these steps, as predicted with a
    /// share that is fitted to the others.
    pub error: f64,
}

/// The figures that only TPUs or only GPUs have.
#[derive(Clone, Debug, PartialEq)]
pub enum Family {
    /// A Google TPU; chips are connected as a torus.
    Tpu(TpuSpec),
    /// An NVIDIA GPU; connected by NVLink or PCI Express within a host, and by a network between
    /// hosts.
    Gpu(GpuSpec),
}

/// A TPU generation.
#[derive(Clone, Debug, PartialEq)]
pub struct TpuSpec {
    /// The largest torus in chips, largest dim first; its length is the number of torus dimensions.
    pub max_bounds: &'static [usize],
    /// `true` if Cloud has slices of a single chip.
    pub has_single_chips: bool,
    /// PJRT devices per chip.
    pub devices_per_chip: usize,
    /// The number of units per chip in the names of Cloud's accelerator types: TensorCores (`v5p-8`
    /// is 4 chips), or 1 if the names count chips.
    pub type_units_per_chip: usize,
    /// libtpu's name for a configuration of the chip that is not its default.
    pub chip_config: Option<&'static str>,
    /// Chips of one host along x and y in slices of several hosts.
    pub host_bounds: [usize; 2],
    /// Slices of at most so many chips are on one host.
    pub max_chips_per_host: usize,
    /// Device memory that a program may use, in bytes: what libtpu 0.0.51 says, from a little less
    /// to a little more than the documented memory.
    pub usable_bytes: u64,
    /// The shortest side that has wrap-around links.
    pub ring_from: usize,
    /// Bandwidth of one ICI link in one direction, in bytes/s; there are two links per dimension.
    pub link_bytes_per_sec: f64,
    /// Bandwidth between the two devices of a chip in one direction, in bytes/s, if it has two.
    pub die_bytes_per_sec: Option<f64>,
    /// Bandwidth of the data center network between slices, per chip and direction, in bytes/s.
    pub network_bytes_per_sec: f64,
}

/// An NVIDIA GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuSpec {
    /// Maximum number of GPUs per host. For a GB200 it is the number per rack: the GPUs of a rack
    /// are connected as those of a host are.
    pub max_per_host: usize,
    /// The properties that its architecture determines.
    pub architecture: GpuArchitecture,
    /// Streaming multiprocessors.
    pub num_cores: u32,
    /// L2 cache size in bytes.
    pub l2_bytes: u64,
    /// Clock rate in GHz.
    pub clock_ghz: f64,
    /// Bandwidth between the GPUs of a host, per GPU and direction, in bytes/s: NVLink's, or PCI
    /// Express's where there is no NVLink.
    pub host_link_bytes_per_sec: f64,
    /// Bandwidth of the network between hosts, per GPU and direction, in bytes/s.
    pub network_bytes_per_sec: f64,
}

/// Limits of a streaming multiprocessor: CUDA C++ Programming Guide, "Compute Capabilities", table
/// of technical specifications per compute capability.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuArchitecture {
    /// Compute capability.
    pub compute_capability: (u32, u32),
    /// `true` if code may use the instructions that only this compute capability has, such as those
    /// of `sm_90a`.
    pub has_accelerated_features: bool,
    /// Resident threads.
    pub max_threads: u32,
    /// Shared memory in bytes.
    pub shared_memory_bytes: u32,
    /// Shared memory of one thread block, in bytes, if the kernel asks for it.
    pub block_shared_memory_bytes: u32,
    /// Binary32 units.
    pub num_f32_units: u32,
}

const GIB: u64 = 1 << 30;

const AMPERE: GpuArchitecture = GpuArchitecture {
    compute_capability: (8, 0),
    has_accelerated_features: false,
    max_threads: 2048,
    shared_memory_bytes: 164 << 10,
    block_shared_memory_bytes: 163 << 10,
    num_f32_units: 64,
};

const ADA: GpuArchitecture = GpuArchitecture {
    compute_capability: (8, 9),
    has_accelerated_features: false,
    max_threads: 1536,
    shared_memory_bytes: 100 << 10,
    block_shared_memory_bytes: 99 << 10,
    num_f32_units: 128,
};

const HOPPER: GpuArchitecture = GpuArchitecture {
    compute_capability: (9, 0),
    has_accelerated_features: true,
    max_threads: 2048,
    shared_memory_bytes: 228 << 10,
    block_shared_memory_bytes: 227 << 10,
    num_f32_units: 128,
};

const BLACKWELL: GpuArchitecture = GpuArchitecture { compute_capability: (10, 0), ..HOPPER };

/// The A100s have this in common.
const A100: GpuSpec = GpuSpec {
    max_per_host: 8,
    architecture: AMPERE,
    num_cores: 108,
    l2_bytes: 40 << 20,
    clock_ghz: 1.41,
    host_link_bytes_per_sec: 300e9,
    network_bytes_per_sec: 25e9,
};

/// The H100 SXM and the H200 have this in common.
const H100: GpuSpec = GpuSpec {
    max_per_host: 8,
    architecture: HOPPER,
    num_cores: 132,
    l2_bytes: 50 << 20,
    clock_ghz: 1.98,
    host_link_bytes_per_sec: 450e9,
    network_bytes_per_sec: 50e9,
};

/// A share fitted to published steps, with the error that was found by leaving one out.
const fn fitted(
    chip: &'static str,
    matmul_share: f64,
    num_steps: usize,
    error: f64,
) -> Calibration {
    Calibration { chip, matmul_share, num_steps, error }
}

/// The share of a similar chip, with which no published step was compared.
const fn as_of(other: Calibration) -> Calibration {
    Calibration { num_steps: 0, error: 0.0, ..other }
}

const V4_STEPS: Calibration = fitted("v4", 0.71, 3, 0.02);
const V5E_STEPS: Calibration = fitted("v5e", 0.81, 9, 0.06);
const V5P_STEPS: Calibration = fitted("v5p", 0.74, 3, 0.06);
const V6E_STEPS: Calibration = fitted("v6e", 0.62, 5, 0.11);
const TPU7X_STEPS: Calibration = fitted("tpu7x", 0.74, 3, 0.01);
const A100_STEPS: Calibration = fitted("a100", 0.73, 28, 0.08);
const H100_STEPS: Calibration = fitted("h100", 0.57, 23, 0.10);

/// Every chip.
pub const CHIPS: &[Chip] = &[
    Chip {
        name: "v4",
        aliases: &["tpu-v4-podslice"],
        title: "TPU v4",
        kinds: &["TPU v4"],
        family: Family::Tpu(TpuSpec {
            max_bounds: &[16, 16, 16],
            has_single_chips: false,
            devices_per_chip: 1,
            type_units_per_chip: 2,
            // Both TensorCores as one device, which is what Cloud runs; libtpu's default is a
            // device each.
            chip_config: Some("megacore"),
            host_bounds: [2, 2],
            max_chips_per_host: 4,
            usable_bytes: 33_014_413_312,
            ring_from: 4,
            link_bytes_per_sec: 50e9,
            die_bytes_per_sec: None,
            network_bytes_per_sec: 6.25e9,
        }),
        bf16_flops_per_sec: 275e12,
        f32_flops_per_sec: 275e12,
        calibration: V4_STEPS,
        memory_bytes: 32 * GIB,
        memory_bytes_per_sec: 1228e9,
        source: "Jouppi et al., TPU v4, ISCA 2023, table 4; Cloud TPU documentation, TPU v4: 275 \
                 TFLOP/s, 32 GiB and 1228 GB/s a chip, 2 TensorCores, 2400 Gb/s over 6 links; the \
                 network's is not published, and taken as the v5p's",
    },
    Chip {
        name: "v5e",
        aliases: &["v5litepod", "tpu-v5-lite-podslice", "tpu-v5-lite-device"],
        title: "TPU v5e",
        kinds: &["TPU v5 lite", "TPU v5e"],
        family: Family::Tpu(TpuSpec {
            max_bounds: &[16, 16],
            has_single_chips: true,
            devices_per_chip: 1,
            type_units_per_chip: 1,
            chip_config: None,
            host_bounds: [2, 2],
            max_chips_per_host: 8,
            usable_bytes: 16_909_334_528,
            ring_from: 16,
            link_bytes_per_sec: 50e9,
            die_bytes_per_sec: None,
            network_bytes_per_sec: 3.125e9,
        }),
        bf16_flops_per_sec: 197e12,
        f32_flops_per_sec: 197e12,
        calibration: V5E_STEPS,
        memory_bytes: 16 * GIB,
        memory_bytes_per_sec: 819e9,
        source: "Cloud TPU documentation, TPU v5e: 197 TFLOP/s, 16 GB, 819 GB/s, 1600 Gb/s over 4 \
                 links; wrap-around in the full 16x16 only; TPU v6e, comparison: 6.4 Tb/s of \
                 network for the 256 chips",
    },
    Chip {
        name: "v5p",
        aliases: &["tpu-v5p-slice"],
        title: "TPU v5p",
        kinds: &["TPU v5", "TPU v5p"],
        family: Family::Tpu(TpuSpec {
            max_bounds: &[24, 16, 16],
            has_single_chips: false,
            devices_per_chip: 1,
            type_units_per_chip: 2,
            chip_config: None,
            host_bounds: [2, 2],
            max_chips_per_host: 4,
            usable_bytes: 102_786_660_352,
            ring_from: 4,
            link_bytes_per_sec: 100e9,
            die_bytes_per_sec: None,
            network_bytes_per_sec: 6.25e9,
        }),
        bf16_flops_per_sec: 459e12,
        f32_flops_per_sec: 459e12,
        calibration: V5P_STEPS,
        memory_bytes: 95 * GIB,
        memory_bytes_per_sec: 2765e9,
        source: "Cloud TPU documentation, TPU7x, table of generations: 459 TFLOP/s, 95 GiB, 2765 \
                 GB/s, 1200 GB/s of ICI both ways over 6 links, 50 Gb/s of network a chip; TPU \
                 v5p: of a pod's 8960 chips one slice has at most 6144, 16x16x24",
    },
    Chip {
        name: "v6e",
        aliases: &["tpu-v6e-slice"],
        title: "TPU v6e (Trillium)",
        kinds: &["TPU v6 lite", "TPU v6e"],
        family: Family::Tpu(TpuSpec {
            max_bounds: &[16, 16],
            has_single_chips: true,
            devices_per_chip: 1,
            type_units_per_chip: 1,
            chip_config: None,
            host_bounds: [2, 2],
            max_chips_per_host: 8,
            usable_bytes: 33_546_041_344,
            ring_from: 16,
            link_bytes_per_sec: 100e9,
            die_bytes_per_sec: None,
            network_bytes_per_sec: 12.5e9,
        }),
        bf16_flops_per_sec: 918e12,
        f32_flops_per_sec: 918e12,
        calibration: V6E_STEPS,
        memory_bytes: 32 * GIB,
        memory_bytes_per_sec: 1638e9,
        source: "Cloud TPU documentation, TPU7x, table of generations: 918 TFLOP/s, 32 GiB, 1638 \
                 GB/s, 800 GB/s of ICI both ways over 4 links, 100 Gb/s of network a chip, 256 \
                 chips",
    },
    Chip {
        name: "tpu7x",
        aliases: &["v7x", "ironwood"],
        title: "TPU7x (Ironwood)",
        kinds: &["TPU7x"],
        family: Family::Tpu(TpuSpec {
            max_bounds: &[36, 16, 16],
            has_single_chips: true,
            devices_per_chip: 2,
            type_units_per_chip: 2,
            chip_config: None,
            host_bounds: [2, 2],
            max_chips_per_host: 4,
            usable_bytes: 101_724_450_816,
            ring_from: 4,
            link_bytes_per_sec: 100e9,
            die_bytes_per_sec: Some(600e9),
            network_bytes_per_sec: 12.5e9,
        }),
        bf16_flops_per_sec: 1153.5e12,
        f32_flops_per_sec: 1153.5e12,
        calibration: TPU7X_STEPS,
        memory_bytes: 96 * GIB,
        memory_bytes_per_sec: 3690e9,
        source: "Cloud TPU documentation, TPU7x: 2307 TFLOP/s, 192 GiB and 7380 GB/s a chip of 2 \
                 TensorCores, 1200 GB/s of ICI both ways over 6 links, between the chiplets six \
                 times a link, 100 Gb/s of network a chip, 9216 chips",
    },
    Chip {
        name: "a100",
        aliases: &["a100-80gb", "nvidia-a100-80gb"],
        title: "NVIDIA A100 SXM 80 GB",
        kinds: &["NVIDIA A100-SXM4-80GB", "NVIDIA A100"],
        family: Family::Gpu(A100),
        bf16_flops_per_sec: 312e12,
        f32_flops_per_sec: 156e12,
        calibration: A100_STEPS,
        memory_bytes: 85_100_068_864,
        memory_bytes_per_sec: 2039e9,
        source: "NVIDIA A100 datasheet: 312 TFLOP/s bfloat16 and 156 TF32 without sparsity, 80 GB, \
                 2039 GB/s, 600 GB/s of NVLink both ways; DGX A100 datasheet: 8 ports of 200 Gb/s \
                 for 8 GPUs; cores, clock, L2 and usable memory: XLA's target description \
                 a100_sxm_80",
    },
    Chip {
        name: "a100-40gb",
        aliases: &["nvidia-tesla-a100"],
        title: "NVIDIA A100 SXM 40 GB",
        kinds: &["NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"],
        family: Family::Gpu(A100),
        bf16_flops_per_sec: 312e12,
        f32_flops_per_sec: 156e12,
        calibration: A100_STEPS,
        memory_bytes: 42_331_013_120,
        memory_bytes_per_sec: 1555e9,
        source: "NVIDIA A100 datasheet, as the 80 GB but for 40 GB and 1555 GB/s; DGX A100 \
                 datasheet: 8 ports of 200 Gb/s for 8 GPUs; cores, clock, L2 and usable memory: \
                 XLA's target description a100_sxm_40",
    },
    Chip {
        name: "l4",
        aliases: &["nvidia-l4"],
        title: "NVIDIA L4",
        kinds: &["NVIDIA L4"],
        family: Family::Gpu(GpuSpec {
            max_per_host: 8,
            architecture: ADA,
            num_cores: 58,
            l2_bytes: 48 << 20,
            clock_ghz: 2.04,
            host_link_bytes_per_sec: 32e9,
            network_bytes_per_sec: 1.5625e9,
        }),
        bf16_flops_per_sec: 121e12,
        f32_flops_per_sec: 60e12,
        calibration: as_of(A100_STEPS),
        memory_bytes: 23_034 << 20,
        memory_bytes_per_sec: 300e9,
        source: "NVIDIA L4 datasheet: 242 TFLOP/s bfloat16 and 120 TF32 with sparsity, 24 GB, 300 \
                 GB/s, PCIe 4.0 x16 with 64 GB/s both ways, no NVLink; NVIDIA Ada whitepaper, \
                 AD104: 48 MB of L2; Compute Engine documentation, network bandwidth of G2: 100 \
                 Gb/s for 8 GPUs; usable memory: nvidia-smi, 23034 MiB",
    },
    Chip {
        name: "l40s",
        aliases: &[],
        title: "NVIDIA L40S",
        kinds: &["NVIDIA L40S"],
        family: Family::Gpu(GpuSpec {
            max_per_host: 8,
            architecture: ADA,
            num_cores: 142,
            l2_bytes: 96 << 20,
            clock_ghz: 2.52,
            host_link_bytes_per_sec: 32e9,
            network_bytes_per_sec: 6.25e9,
        }),
        bf16_flops_per_sec: 362e12,
        f32_flops_per_sec: 183e12,
        calibration: as_of(A100_STEPS),
        memory_bytes: 46_068 << 20,
        memory_bytes_per_sec: 864e9,
        source: "NVIDIA L40S datasheet: 362 TFLOP/s bfloat16 and 183 TF32 without sparsity, 48 GB, \
                 864 GB/s, PCIe 4.0 x16 with 64 GB/s both ways, no NVLink; NVIDIA Ada whitepaper, \
                 AD102: 96 MB of L2; Amazon EC2 G6e: 400 Gb/s of network for 8 GPUs; usable \
                 memory: nvidia-smi, 46068 MiB",
    },
    Chip {
        name: "h100",
        aliases: &["h100-sxm", "nvidia-h100-80gb", "nvidia-h100-mega-80gb"],
        title: "NVIDIA H100 SXM",
        kinds: &["NVIDIA H100 80GB HBM3", "NVIDIA H100"],
        family: Family::Gpu(H100),
        bf16_flops_per_sec: 989.4e12,
        f32_flops_per_sec: 494.7e12,
        calibration: H100_STEPS,
        memory_bytes: 84_942_979_072,
        memory_bytes_per_sec: 3350e9,
        source: "NVIDIA H100 datasheet: 989.4 TFLOP/s bfloat16 and 494.7 TF32 without sparsity, 80 \
                 GB, 3.35 TB/s, 900 GB/s of NVLink both ways; DGX H100 datasheet: 8 ports of 400 \
                 Gb/s for 8 GPUs; cores, clock, L2 and usable memory: XLA's target description \
                 h100_sxm",
    },
    Chip {
        name: "h100-pcie",
        aliases: &[],
        title: "NVIDIA H100 PCIe",
        kinds: &["NVIDIA H100 PCIe"],
        family: Family::Gpu(GpuSpec {
            num_cores: 114,
            clock_ghz: 1.755,
            host_link_bytes_per_sec: 64e9,
            network_bytes_per_sec: 25e9,
            ..H100
        }),
        bf16_flops_per_sec: 756e12,
        f32_flops_per_sec: 378e12,
        calibration: as_of(H100_STEPS),
        memory_bytes: 84_942_979_072,
        memory_bytes_per_sec: 2039e9,
        source: "NVIDIA H100 datasheet, PCIe: 1513 TFLOP/s bfloat16 and 756 TF32 with sparsity, 80 \
                 GB, 2 TB/s, PCIe 5.0 x16 with 128 GB/s both ways (bridges of NVLink connect pairs \
                 only, and are not counted); NVIDIA Enterprise Reference Architectures, PCIe \
                 Optimized 2-8-5: 4 ports of 400 Gb/s for 8 GPUs; cores, clock, L2 and usable \
                 memory: XLA's target description h100_pcie",
    },
    Chip {
        name: "h200",
        aliases: &["h200-sxm", "nvidia-h200-141gb"],
        title: "NVIDIA H200 SXM",
        kinds: &["NVIDIA H200"],
        family: Family::Gpu(H100),
        bf16_flops_per_sec: 989.4e12,
        f32_flops_per_sec: 494.7e12,
        calibration: as_of(H100_STEPS),
        memory_bytes: 150_110_011_392,
        memory_bytes_per_sec: 4800e9,
        source: "NVIDIA H200 datasheet: the H100's arithmetic, 141 GB, 4.8 TB/s; DGX H200 \
                 datasheet: 8 ports of 400 Gb/s for 8 GPUs",
    },
    Chip {
        name: "b200",
        aliases: &["nvidia-b200"],
        title: "NVIDIA B200",
        kinds: &["NVIDIA B200"],
        family: Family::Gpu(GpuSpec {
            max_per_host: 8,
            architecture: BLACKWELL,
            num_cores: 148,
            l2_bytes: 132_644_864,
            clock_ghz: 1.965,
            host_link_bytes_per_sec: 900e9,
            network_bytes_per_sec: 50e9,
        }),
        bf16_flops_per_sec: 2250e12,
        f32_flops_per_sec: 1125e12,
        calibration: as_of(H100_STEPS),
        memory_bytes: 191_514_411_008,
        memory_bytes_per_sec: 7672e9,
        source: "NVIDIA HGX B200 datasheet: 36 PFLOP/s bfloat16 and 18 TF32 with sparsity for 8 \
                 GPUs, 180 GB, 1.8 TB/s of NVLink both ways; DGX B200 datasheet: 8 ports of 400 \
                 Gb/s for 8 GPUs; cores, clock, L2, usable memory and its bandwidth: XLA's target \
                 description b200",
    },
    Chip {
        name: "gb200",
        aliases: &["gb200-nvl72", "nvidia-gb200"],
        title: "NVIDIA GB200 NVL72",
        kinds: &["NVIDIA GB200"],
        family: Family::Gpu(GpuSpec {
            max_per_host: 72,
            architecture: BLACKWELL,
            num_cores: 152,
            l2_bytes: 135_528_448,
            clock_ghz: 2.062,
            host_link_bytes_per_sec: 900e9,
            network_bytes_per_sec: 50e9,
        }),
        bf16_flops_per_sec: 2500e12,
        f32_flops_per_sec: 1250e12,
        calibration: as_of(H100_STEPS),
        memory_bytes: 197_897_748_480,
        memory_bytes_per_sec: 7928e9,
        source: "NVIDIA GB200 NVL72 datasheet: 360 PFLOP/s bfloat16 and 180 TF32 with sparsity, \
                 13.4 TB and 130 TB/s of NVLink both ways for 72 GPUs; Compute Engine \
                 documentation, A4X: 4 ports of 400 Gb/s for 4 GPUs; cores, clock, L2, usable \
                 memory and its bandwidth: XLA's target description gb200",
    },
];

impl Chip {
    /// The chip that a target calls `name`.
    pub fn named(name: &str) -> Option<&'static Chip> {
        CHIPS.iter().find(|chip| chip.name == name || chip.aliases.contains(&name))
    }

    /// The chip with this device kind: `TPU v5 lite` is a v5e, `TPU v5` a v5p. Words are compared
    /// whole: an `NVIDIA L40` is not an L4.
    pub fn of_kind(kind: &str) -> Option<&'static Chip> {
        let begins = |words: &str| {
            let rest = kind.strip_prefix(words);
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
        };
        let matching =
            CHIPS.iter().flat_map(|chip| chip.kinds.iter().map(move |words| (chip, words)));
        let longest =
            matching.filter(|(_, words)| begins(words)).max_by_key(|(_, words)| words.len());
        longest.map(|(chip, _)| chip)
    }

    /// `tpu` or `gpu`, the first part of a target's name.
    pub fn family_name(&self) -> &'static str {
        match self.family {
            Family::Tpu(_) => "tpu",
            Family::Gpu(_) => "gpu",
        }
    }

    /// How far predicted steps on this chip were off, in words.
    pub fn accuracy(&self) -> String {
        let Calibration { chip, matmul_share, num_steps, error } = self.calibration;
        if num_steps == 0 {
            return format!(
                "no published step on {} was compared: matmuls are assumed to reach \
                 {matmul_share:.2} of the peak, as on {chip}",
                self.name
            );
        }
        let fused = match self.family {
            Family::Tpu(_) => ", whose attention is fused; here it is not on TPUs",
            Family::Gpu(_) => "",
        };
        format!(
            "{:.0} % is the mean error of the predictions of {num_steps} published steps on \
             {chip}{fused}",
            100.0 * error
        )
    }

    /// Peak FLOP/s of matmuls with operands of `bytes` bytes per element.
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
            ("TPU v4", Some("v4")),
            ("TPU v5 lite", Some("v5e")),
            ("TPU v5", Some("v5p")),
            ("TPU v5p", Some("v5p")),
            ("TPU v6 lite", Some("v6e")),
            ("TPU7x", Some("tpu7x")),
            ("NVIDIA A100-SXM4-80GB", Some("a100")),
            ("NVIDIA A100 80GB PCIe", Some("a100")),
            ("NVIDIA A100-SXM4-40GB", Some("a100-40gb")),
            ("NVIDIA L4", Some("l4")),
            ("NVIDIA L40S", Some("l40s")),
            ("NVIDIA L40", None),
            ("NVIDIA H100 80GB HBM3", Some("h100")),
            ("NVIDIA H100 PCIe", Some("h100-pcie")),
            ("NVIDIA H200", Some("h200")),
            ("NVIDIA B200", Some("b200")),
            ("NVIDIA GB200", Some("gb200")),
            ("NVIDIA GH200 480GB", None),
            ("cpu", None),
        ];
        for (kind, name) in rows {
            assert_eq!(Chip::of_kind(kind).map(|chip| chip.name), name, "{kind}");
        }
        for chip in CHIPS {
            for kind in chip.kinds {
                assert_eq!(Chip::of_kind(kind), Some(chip), "{kind}");
            }
        }
    }

    #[test]
    fn names_and_aliases_are_distinct_and_name_their_chip() {
        let mut names: Vec<_> =
            CHIPS.iter().flat_map(|chip| [&[chip.name], chip.aliases].concat()).collect();
        for chip in CHIPS {
            for name in chip.aliases.iter().chain([&chip.name]) {
                assert_eq!(Chip::named(name), Some(chip), "{name}");
            }
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert_eq!(Chip::named("h100-sxm"), Chip::named("h100"));
        assert_ne!(Chip::named("h100-pcie"), Chip::named("h100"));
    }

    /// Peak FLOP/s are cores x tensor cores x FLOPs a cycle x clock: multiply-adds of bfloat16 a
    /// core and cycle are 512 on Ada, 1024 on Ampere, 2048 on Hopper and 4096 on Blackwell. Tensor
    /// cores may have a lower clock than the highest.
    #[test]
    fn peaks_of_gpus_agree_with_their_cores_and_clock() {
        for chip in CHIPS {
            let Family::Gpu(gpu) = &chip.family else { continue };
            let multiply_adds = match gpu.architecture.compute_capability {
                (8, 0) => 1024.0,
                (8, 9) => 512.0,
                (9, 0) => 2048.0,
                _ => 4096.0,
            };
            let most = f64::from(gpu.num_cores) * 2.0 * multiply_adds * gpu.clock_ghz * 1e9;
            let share = chip.bf16_flops_per_sec / most;
            assert!((0.88..=1.01).contains(&share), "{chip}: {share}");
            assert!(
                (chip.f32_flops_per_sec / chip.bf16_flops_per_sec - 0.5).abs() < 0.02,
                "{chip}"
            );
        }
    }

    #[test]
    fn a_v4_chip_is_one_device_with_all_of_its_memory() {
        let chip = Chip::named("v4").unwrap();
        let Family::Tpu(tpu) = &chip.family else { panic!("{chip} is a TPU") };
        assert_eq!((tpu.devices_per_chip, chip.memory_bytes), (1, 32 * GIB));
    }
}
