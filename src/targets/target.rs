//! A target: the hardware that a program is compiled for, given by name.
//!
//! `tpu:v5e:16x16` is a slice of 256 chips, `tpu:v5e:16x16x2` two such slices, `tpu:v4:4x4x4x2` two
//! slices of a generation with a three-dimensional torus, `tpu:v5litepod-16` the slice that Cloud
//! makes for this accelerator type, `gpu:h100:4x8` four hosts with eight GPUs each, `gpu:h100` one
//! GPU. Capitals mean the same as small letters, and a chip may have the name of its node pools in
//! Google Kubernetes Engine: `tpu-v5-lite-podslice:4x4`.

use std::fmt;
use std::str::FromStr;

use super::chips::{CHIPS, Chip, Family, GpuArchitecture, GpuSpec, TpuSpec};
use super::slices::{existing, exists, joined, of_type};
use crate::pjrt::Value;

/// Maximum number of GPU hosts, far more than any published run has used.
const MAX_HOSTS: usize = 16_384;
/// Maximum number of slices.
const MAX_SLICES: usize = 256;

/// A chip, and how many of them are connected how.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The chip.
    pub chip: &'static Chip,
    /// The arrangement.
    pub arrangement: Arrangement,
}

/// How the chips are connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// Slices of a TPU pod.
    Slices {
        /// Chips along each dimension of one slice's torus.
        bounds: Vec<usize>,
        /// Slices, connected by the data center network.
        num_slices: usize,
    },
    /// Hosts of GPUs.
    Hosts {
        /// Hosts, connected by a network.
        num_hosts: usize,
        /// GPUs in each, connected by NVLink.
        gpus_per_host: usize,
    },
}

/// A name that is not a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{target:?} is not a target: {reason}")]
pub struct TargetError {
    target: String,
    reason: String,
}

impl Target {
    /// Number of PJRT devices, which is the number of replicas of a program for the whole target.
    pub fn num_devices(&self) -> usize {
        match (&self.arrangement, &self.chip.family) {
            (Arrangement::Slices { bounds, num_slices }, Family::Tpu(tpu)) => {
                bounds.iter().product::<usize>() * num_slices * tpu.devices_per_chip
            }
            (Arrangement::Slices { bounds, num_slices }, Family::Gpu(_)) => {
                bounds.iter().product::<usize>() * num_slices
            }
            (Arrangement::Hosts { num_hosts, gpus_per_host }, _) => num_hosts * gpus_per_host,
        }
    }

    /// Most replicas along the axis `tensor` that are worth a try, as they communicate in each
    /// layer: the GPUs of a host, and on a torus a line of 4 in each of two dims.
    pub fn most_along_tensor(&self) -> usize {
        match self.arrangement {
            Arrangement::Slices { .. } => 16,
            Arrangement::Hosts { gpus_per_host, .. } => gpus_per_host,
        }
    }

    /// Number of hosts.
    pub fn num_hosts(&self) -> usize {
        match (&self.arrangement, &self.chip.family) {
            (Arrangement::Slices { bounds, num_slices }, Family::Tpu(tpu)) => {
                if bounds.iter().product::<usize>() <= tpu.max_chips_per_host {
                    return *num_slices;
                }
                let along = |dim: usize| tpu.host_bounds.get(dim).copied().unwrap_or(1).max(1);
                let hosts = bounds.iter().enumerate().map(|(dim, size)| size.div_ceil(along(dim)));
                hosts.product::<usize>() * num_slices
            }
            (Arrangement::Slices { num_slices, .. }, Family::Gpu(_)) => *num_slices,
            (Arrangement::Hosts { num_hosts, .. }, _) => *num_hosts,
        }
    }

    /// `true` if a job on all of it can have so many hosts: [`Self::num_hosts`], or machines with
    /// four chips each, in which Google Kubernetes Engine also offers slices that would fit into
    /// one host.
    pub fn may_have_hosts(&self, num_hosts: usize) -> bool {
        const CHIPS_OF_SMALL_HOST: usize = 4;
        let is_in_small_hosts = match &self.arrangement {
            Arrangement::Slices { bounds, num_slices } => {
                let num_chips = bounds.iter().product::<usize>() * num_slices;
                Some(num_chips) == num_hosts.checked_mul(CHIPS_OF_SMALL_HOST)
            }
            Arrangement::Hosts { .. } => false,
        };
        num_hosts == self.num_hosts() || is_in_small_hosts
    }

    /// Names of the plugins that can compile for it, in order of preference.
    pub fn plugins(&self) -> &'static [&'static str] {
        match self.chip.family {
            Family::Tpu(_) => &["tpu"],
            Family::Gpu(_) => &["cuda", "cuda-compiler"],
        }
    }

    /// The topology's name and options in the plugin's format.
    pub fn topology(&self) -> (String, Vec<(String, Value)>) {
        match (&self.arrangement, &self.chip.family) {
            (Arrangement::Slices { bounds, num_slices }, family) => {
                let mut options = vec![];
                if *num_slices > 1 {
                    options.push(("num_slices".to_owned(), Value::Int64(*num_slices as i64)));
                }
                if let Family::Tpu(TpuSpec { chip_config: Some(config), .. }) = family {
                    let config = Value::String((*config).to_owned());
                    options.push(("chip_config_name".to_owned(), config));
                }
                (format!("{}:{}", self.chip.name, joined(bounds)), options)
            }
            (Arrangement::Hosts { num_hosts, gpus_per_host }, family) => {
                let config = match family {
                    Family::Gpu(gpu) => gpu_config(self.chip, gpu),
                    Family::Tpu(_) => String::new(),
                };
                let options = vec![
                    ("topology".into(), Value::String(format!("1x{num_hosts}x{gpus_per_host}"))),
                    ("target_config".into(), Value::String(config)),
                ];
                (self.chip.name.to_owned(), options)
            }
        }
    }
}

/// CUDA and cuDNN as `lockstep plugin install cuda` installs them: major and minor version.
const CUDA_VERSION: (u32, u32) = (13, 5);
const CUDNN_VERSION: (u32, u32) = (9, 28);

/// XLA's `GpuTargetConfigProto` as text, in place of what the compiler would ask the driver for.
fn gpu_config(chip: &Chip, gpu: &GpuSpec) -> String {
    let GpuSpec { architecture, num_cores, l2_bytes, clock_ghz, .. } = gpu;
    let GpuArchitecture {
        compute_capability: (major, minor),
        has_accelerated_features,
        max_threads,
        shared_memory_bytes,
        block_shared_memory_bytes,
        num_f32_units,
    } = architecture;
    let features = if *has_accelerated_features { "ACCELERATED_FEATURES" } else { "NONE" };
    let (memory, bandwidth) = (chip.memory_bytes, chip.memory_bytes_per_sec);
    let name = chip.kinds.first().unwrap_or(&chip.title);
    let ((cuda, cuda_minor), (cudnn, cudnn_minor)) = (CUDA_VERSION, CUDNN_VERSION);
    // The other limits are the same from compute capability 8.0 to 10.0.
    format!(
        "gpu_device_info {{ threads_per_block_limit: 1024 threads_per_warp: 32 \
         shared_memory_per_block: 49152 shared_memory_per_core: {shared_memory_bytes} \
         shared_memory_per_block_optin: {block_shared_memory_bytes} threads_per_core_limit: \
         {max_threads} registers_per_core_limit: 65536 registers_per_block_limit: 65536 \
         block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535 \
         core_count: {num_cores} fpus_per_core: {num_f32_units} clock_rate_ghz: {clock_ghz} \
         l2_cache_size: {l2_bytes} device_memory_size: {memory} memory_bandwidth: {bandwidth:.0} \
         cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {features} }} \
         }} platform_name: \"CUDA\" dnn_version_info {{ major: {cudnn} minor: {cudnn_minor} patch: \
         0 }} runtime_version {{ major: {cuda} minor: {cuda_minor} }} device_description_str: \
         \"{name}\""
    )
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let lower = text.trim().to_ascii_lowercase();
        let mut parts: Vec<&str> = lower.split(':').collect();
        // The names of node pools say what they are of.
        let says_family = |name: &str| name.starts_with("tpu") || name.starts_with("nvidia-");
        if let Some(chip) = Chip::named(parts[0]).filter(|_| says_family(parts[0])) {
            parts.insert(0, chip.family_name());
        }
        let read = || match parts[..] {
            [family, chip, sizes] => read(family, chip, sizes),
            ["tpu", name] if name.contains('-') => match Chip::named(name) {
                Some(chip) => Err(without_topology(name, chip)),
                None => read_type(name),
            },
            ["gpu", chip] => read("gpu", chip, "1x1"),
            _ => Err("write tpu:CHIP:TOPOLOGY, tpu:ACCELERATOR-TYPE, gpu:CHIP:HOSTSxGPUS or \
                      gpu:CHIP for one GPU, such as tpu:v5e:4x4, tpu:v5e:16x16x2 for two slices, \
                      tpu:v5litepod-16, or gpu:h100:4x8"
                .to_owned()),
        };
        read().map_err(|reason| TargetError { target: text.to_owned(), reason })
    }
}

fn chip_of(family: &str, name: &str) -> Result<&'static Chip, String> {
    let of_family = |chip: &&Chip| chip.family_name() == family;
    let names: Vec<_> = CHIPS.iter().filter(of_family).map(|chip| chip.name).collect();
    if names.is_empty() {
        return Err(format!("{family:?} is neither tpu nor gpu"));
    }
    let chip = Chip::named(name).filter(of_family);
    chip.ok_or_else(|| {
        format!("there is no {family} called {name:?}; known are {}", names.join(", "))
    })
}

/// The name of a node pool says nothing of the slice's size.
fn without_topology(name: &str, chip: &Chip) -> String {
    let example = match &chip.family {
        Family::Tpu(tpu) if tpu.max_bounds.len() == 3 => "2x2x4",
        _ => "4x4",
    };
    format!("{name} has slices of several sizes; give the topology as well: tpu:{name}:{example}")
}

/// Reads an accelerator type of Cloud, `v5litepod-16`.
fn read_type(text: &str) -> Result<Target, String> {
    let (name, size) = text.rsplit_once('-').unwrap_or((text, ""));
    let chip = chip_of("tpu", name)?;
    let Family::Tpu(tpu) = &chip.family else {
        return Err(format!("{chip} is no TPU"));
    };
    let size: usize = size.parse().map_err(|_| {
        format!(
            "{size:?} is no size of an accelerator type, which is a whole number as in {name}-8"
        )
    })?;
    let bounds = of_type(chip, tpu, name, size)?;
    Ok(Target { chip, arrangement: Arrangement::Slices { bounds, num_slices: 1 } })
}

fn read(family: &str, name: &str, sizes: &str) -> Result<Target, String> {
    let chip = chip_of(family, name)?;
    let sizes: Option<Vec<usize>> =
        sizes.split('x').map(|size| size.parse().ok().filter(|size| *size > 0)).collect();
    let form = || match &chip.family {
        Family::Tpu(tpu) => {
            let bounds = ["A", "B", "C"][..tpu.max_bounds.len()].join("x");
            format!(
                "the topology of {chip} is {bounds}, or {bounds}xSLICES, in whole numbers from 1"
            )
        }
        Family::Gpu(_) => {
            "the arrangement of GPUs is HOSTSxGPUS, in whole numbers from 1".to_owned()
        }
    };
    let sizes = sizes.ok_or_else(form)?;
    let arrangement = match &chip.family {
        Family::Tpu(tpu) => slices(chip, tpu, &sizes).unwrap_or_else(|| Err(form()))?,
        Family::Gpu(gpu) => hosts(chip, gpu, &sizes).unwrap_or_else(|| Err(form()))?,
    };
    Ok(Target { chip, arrangement })
}

/// `None` if there are too many numbers or too few.
fn slices(chip: &Chip, tpu: &TpuSpec, sizes: &[usize]) -> Option<Result<Arrangement, String>> {
    let num_dims = tpu.max_bounds.len();
    let (bounds, rest) = sizes.split_at_checked(num_dims)?;
    let num_slices = match rest {
        [] => 1,
        [num_slices] => *num_slices,
        _ => return None,
    };
    let mut sorted = bounds.to_vec();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    if sorted.iter().zip(tpu.max_bounds).any(|(size, max)| size > max) {
        return Some(Err(format!(
            "{} is more than the largest slice of {chip}, {}; for more, give a number of slices: \
             {}xSLICES",
            joined(bounds),
            joined(tpu.max_bounds),
            joined(tpu.max_bounds)
        )));
    }
    if !exists(tpu, &sorted) {
        return Some(Err(format!(
            "there is no slice {} of {chip}; {}",
            joined(bounds),
            existing(tpu)
        )));
    }
    if num_slices > MAX_SLICES {
        return Some(Err(format!("{num_slices} slices are more than {MAX_SLICES}")));
    }
    Some(Ok(Arrangement::Slices { bounds: bounds.to_vec(), num_slices }))
}

fn hosts(chip: &Chip, gpu: &GpuSpec, sizes: &[usize]) -> Option<Result<Arrangement, String>> {
    let [num_hosts, gpus_per_host] = *sizes else { return None };
    if gpus_per_host > gpu.max_per_host {
        let max = gpu.max_per_host;
        return Some(Err(format!(
            "a host, or rack with one NVLink switch, has at most {max} of {chip}; write HOSTSx{max}"
        )));
    }
    if num_hosts > MAX_HOSTS {
        return Some(Err(format!("{num_hosts} hosts are more than {MAX_HOSTS}")));
    }
    Some(Ok(Arrangement::Hosts { num_hosts, gpus_per_host }))
}

/// The name that parses to this target.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:", self.chip.family_name(), self.chip.name)?;
        match &self.arrangement {
            Arrangement::Slices { bounds, num_slices } => {
                f.write_str(&joined(bounds))?;
                if *num_slices > 1 { write!(f, "x{num_slices}") } else { Ok(()) }
            }
            Arrangement::Hosts { num_hosts, gpus_per_host } => {
                write!(f, "{num_hosts}x{gpus_per_host}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_as_they_are_written() {
        let rows = [
            ("tpu:v5e:4x4", 16),
            ("tpu:v5e:16x16x2", 512),
            ("tpu:v4:4x4x4", 64),
            ("tpu:v5p:4x4x4x2", 128),
            ("tpu:tpu7x:16x16x36", 18432),
            ("gpu:h100:4x8", 32),
            ("tpu:tpu7x:1x1x1", 2),
            ("gpu:h200:1x1", 1),
            ("gpu:a100-40gb:2x8", 16),
            ("gpu:h100-pcie:1x8", 8),
            ("gpu:gb200:2x72", 144),
        ];
        for (text, num_devices) in rows {
            let target: Target = text.parse().unwrap();
            assert_eq!((target.to_string(), target.num_devices()), (text.to_owned(), num_devices));
        }
    }

    #[test]
    fn other_names_give_the_same_target() {
        let rows = [
            ("tpu:v5litepod-8", "tpu:v5e:2x4"),
            ("tpu:v5litepod-16", "tpu:v5e:4x4"),
            ("tpu:v5litepod:4x4x2", "tpu:v5e:4x4x2"),
            ("tpu:v6e-8", "tpu:v6e:2x4"),
            ("tpu:v4-8", "tpu:v4:2x2x1"),
            ("tpu:v5p-8", "tpu:v5p:2x2x1"),
            ("tpu:v5p-16", "tpu:v5p:2x2x2"),
            ("tpu:tpu7x-8", "tpu:tpu7x:2x2x1"),
            ("tpu:v7x-16", "tpu:tpu7x:2x2x2"),
            ("tpu:v7x:4x4x4", "tpu:tpu7x:4x4x4"),
            ("gpu:h100-sxm:4x8", "gpu:h100:4x8"),
            ("gpu:a100-80gb:1x8", "gpu:a100:1x8"),
            ("gpu:gb200-nvl72:1x72", "gpu:gb200:1x72"),
            ("gpu:H100:4x8", "gpu:h100:4x8"),
            ("GPU:A100-40GB:1X8", "gpu:a100-40gb:1x8"),
            ("tpu:V5LitePod-16", "tpu:v5e:4x4"),
            ("gpu:H100", "gpu:h100:1x1"),
            ("gpu:nvidia-h100-80gb:2x8", "gpu:h100:2x8"),
            ("gpu:nvidia-l4:1x8", "gpu:l4:1x8"),
            ("tpu:tpu-v5-lite-podslice:4x4", "tpu:v5e:4x4"),
            ("tpu-v5-lite-podslice:4x4", "tpu:v5e:4x4"),
            ("tpu:tpu-v6e-slice:2x4", "tpu:v6e:2x4"),
            ("tpu:tpu-v5p-slice:2x2x2", "tpu:v5p:2x2x2"),
            ("tpu:tpu-v4-podslice:2x2x2", "tpu:v4:2x2x2"),
            ("tpu7x:2x2x1", "tpu:tpu7x:2x2x1"),
        ];
        for (name, expected) in rows {
            let target: Target = name.parse().unwrap();
            assert_eq!(target.to_string(), expected, "{name}");
            assert_eq!(expected.parse(), Ok(target), "{name}");
        }
    }

    /// The largest types of one host in docs/tpu.md, and the next larger slices.
    #[test]
    fn eight_chips_of_v5e_and_v6e_are_one_host() {
        for (target, num_hosts) in [
            ("tpu:v5litepod-8", 1),
            ("tpu:v5e:4x2", 1),
            ("tpu:v5e:2x4x3", 3),
            ("tpu:v5litepod-16", 4),
            ("tpu:v6e-8", 1),
            ("tpu:v6e-16", 4),
            ("tpu:v4-8", 1),
            ("tpu:v5p-8", 1),
            ("tpu:v5p-16", 2),
            ("tpu:tpu7x-8", 1),
            ("tpu:tpu7x-16", 2),
            ("gpu:h100:4x8", 4),
        ] {
            let target = target.parse::<Target>().unwrap();
            assert_eq!(target.num_hosts(), num_hosts, "{target}");
            assert!(target.may_have_hosts(num_hosts) && !target.may_have_hosts(num_hosts + 4));
        }
    }

    #[test]
    fn small_hosts_may_share_a_slice_that_fits_into_one() {
        let may_have = |target: &str, num_hosts| {
            let target: Target = target.parse().unwrap();
            target.may_have_hosts(num_hosts)
        };
        assert!(may_have("tpu:v5litepod-8", 2) && may_have("tpu:v6e-8", 2));
        assert!(!may_have("tpu:v5litepod-16", 2) && !may_have("tpu:v5p-16", 4));
    }

    #[test]
    fn libtpu_makes_one_device_of_a_v4_chip() {
        let (name, options) = "tpu:v4:2x2x1".parse::<Target>().unwrap().topology();
        let megacore = ("chip_config_name".to_owned(), Value::String("megacore".to_owned()));
        assert_eq!((name.as_str(), options), ("v4:2x2x1", vec![megacore]));
        let (_, options) = "tpu:v5p:2x2x1".parse::<Target>().unwrap().topology();
        assert_eq!(options, []);
    }

    #[test]
    fn a_gpu_is_described_with_the_limits_of_its_own_architecture() {
        let rows = [
            (
                "a100",
                "threads_per_core_limit: 2048",
                "shared_memory_per_core: 167936",
                "major: 8 minor: 0 feature_extension: NONE",
            ),
            (
                "l4",
                "threads_per_core_limit: 1536",
                "shared_memory_per_core: 102400",
                "major: 8 minor: 9 feature_extension: NONE",
            ),
            (
                "h100-pcie",
                "core_count: 114",
                "shared_memory_per_core: 233472",
                "major: 9 minor: 0 feature_extension: ACCELERATED",
            ),
            (
                "b200",
                "core_count: 148",
                "shared_memory_per_block_optin: 232448",
                "major: 10 minor: 0 feature_extension: ACCELERATED",
            ),
        ];
        for (chip, cores, memory, capability) in rows {
            let target: Target = format!("gpu:{chip}:1x8").parse().unwrap();
            let (_, options) = target.topology();
            let config = format!("{options:?}");
            for expected in [cores, memory, capability, "runtime_version { major: 13"] {
                assert!(config.contains(expected), "{chip}: {expected}: {config}");
            }
        }
    }

    #[test]
    fn gpus_are_described_with_the_libraries_that_are_installed() {
        let catalog = include_str!("../pjrt/install/catalog.rs");
        for (name, (major, minor)) in
            [("nvidia-cuda-runtime", CUDA_VERSION), ("nvidia-cudnn-cu13", CUDNN_VERSION)]
        {
            let (_, package) = catalog.split_once(&format!("distribution: \"{name}\"")).unwrap();
            let (_, version) = package.split_once("version: \"").unwrap();
            assert!(version.starts_with(&format!("{major}.{minor}.")), "{name}");
        }
    }

    #[test]
    fn what_is_no_target_is_refused_with_what_would_be_one() {
        let rows = [
            ("v5e:4x4", "tpu:CHIP:TOPOLOGY"),
            ("tpu:v5e", "tpu:CHIP:TOPOLOGY"),
            ("tpu:v5e:4x4:2", "tpu:CHIP:TOPOLOGY"),
            ("npu:v5e:4x4", "neither tpu nor gpu"),
            ("tpu:v3:4x4", "known are v4, v5e, v5p, v6e, tpu7x"),
            ("tpu:v3-8", "known are v4, v5e, v5p, v6e, tpu7x"),
            ("tpu:h100:4x8", "known are v4"),
            ("tpu:h100-8", "known are v4"),
            (
                "gpu:v100:1x8",
                "known are a100, a100-40gb, l4, l40s, h100, h100-pcie, h200, b200, gb200",
            ),
            ("tpu:v5litepod-12", "there are v5litepod-1, v5litepod-4, v5litepod-8"),
            ("tpu:v5litepod-", "whole number as in v5litepod-8"),
            ("tpu:v5p-8x2", "whole number as in v5p-8"),
            ("tpu:v5p-99999999999999999999", "whole number"),
            ("tpu:v5p-18446744073709551615", "the nearest are"),
            ("tpu:v5p:1x1x1", "there are 2x2x1, 2x2x2, 2x2x4, 2x4x4, and"),
            ("tpu:v4:1x1x1", "no slice 1x1x1 of TPU v4"),
            ("tpu:v5e:4", "AxB, or AxBxSLICES"),
            ("tpu:v5e:4x", "AxB, or AxBxSLICES"),
            ("tpu:v5e:0x4", "from 1"),
            ("tpu:v5e:-1x4", "from 1"),
            ("tpu:v5p:4x4", "AxBxC, or AxBxCxSLICES"),
            ("tpu:v5e:4x4x2x2", "AxB, or AxBxSLICES"),
            ("tpu:v5e:32x16", "the largest slice of TPU v5e, 16x16"),
            ("tpu:v5e:3x5", "no slice 3x5 of TPU v5e; there are 1x1, 2x2, 2x4, 4x4"),
            ("tpu:v6e:16x1", "no slice 16x1"),
            ("tpu:v5p:5x3x1", "2x4x4, and those whose sides are multiples of 4"),
            ("tpu:v4:8x4x2", "no slice 8x4x2"),
            ("tpu:v5e:4x4x99999", "more than 256"),
            ("tpu:v5e:99999999999999999999x1", "in whole numbers"),
            ("gpu:h100:4x9", "at most 8"),
            ("gpu:gb200:1x73", "at most 72"),
            ("gpu:h100:20000x8", "more than 16384"),
            ("gpu:h100:8", "HOSTSxGPUS"),
            ("", "tpu:CHIP:TOPOLOGY"),
            ("tpu:tpu-v5-lite-podslice", "tpu:tpu-v5-lite-podslice:4x4"),
            ("tpu-v5-lite-podslice", "tpu:tpu-v5-lite-podslice:4x4"),
            ("tpu:tpu-v5p-slice", "tpu:tpu-v5p-slice:2x2x4"),
            ("gpu:V100", "known are a100"),
        ];
        for (text, expected) in rows {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
