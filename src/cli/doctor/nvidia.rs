//! NVIDIA's GPUs as their driver describes them through NVML, which comes with it and is loaded at
//! run time, and the NCCL that the plugin would use.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, TemperatureSensor, TemperatureThreshold,
};
use nvml_wrapper::{Device, Nvml, error::NvmlError};
use serde::{Deserialize, Serialize};

use super::child;
use crate::cli::{in_words, print_line};
use crate::pjrt;

/// By its full name: the one without a number belongs to development packages.
const NVML: &str = "libnvidia-ml.so.1";

/// The answer of the child.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Nvidia {
    /// `None` without a driver.
    pub driver: Option<Driver>,
    /// Why the driver could not be queried.
    pub driver_problem: Option<String>,
    pub nccl_version: Option<String>,
    /// Why NCCL cannot be loaded.
    pub nccl_problem: Option<String>,
}

/// A driver and its GPUs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Driver {
    pub version: String,
    /// The newest CUDA that it can run: major, minor.
    pub cuda_version: (i32, i32),
    pub gpus: Vec<NvidiaGpu>,
}

/// A GPU. Values that its driver does not report are `None`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NvidiaGpu {
    pub name: String,
    pub memory_bytes: Option<u64>,
    pub memory_used_bytes: Option<u64>,
    pub sm_clock_mhz: Option<u32>,
    pub max_sm_clock_mhz: Option<u32>,
    pub memory_clock_mhz: Option<u32>,
    pub max_memory_clock_mhz: Option<u32>,
    pub temperature_celsius: Option<u32>,
    /// The temperature at which the hardware throttles.
    pub slowdown_celsius: Option<u32>,
    pub power_watts: Option<f64>,
    pub power_limit_watts: Option<f64>,
    /// NVML's names in lower case: `sw_power_cap`, `hw_thermal_slowdown`.
    pub throttle_reasons: Vec<String>,
    pub persistence_mode: Option<bool>,
    /// Since the driver was loaded.
    pub uncorrected_ecc_errors: Option<u64>,
}

impl Nvidia {
    /// Queries in a child process, with the NCCL of the CUDA plugin if it is installed. `None`
    /// without a device and without a plugin.
    pub fn here(has_device: bool, plugin: Option<&Path>) -> Option<Self> {
        let nccl = plugin.map(pjrt::nccl_library).filter(|library| library.is_file());
        if !has_device && nccl.is_none() {
            return None;
        }
        let asked = child::command().and_then(|mut command| {
            command.arg("probe-nvidia");
            command.args(nccl);
            child::ask(command)
        });
        Some(asked.unwrap_or_else(|error| Self {
            driver_problem: Some(format!("NVIDIA's driver {}", in_words(&error))),
            ..Self::default()
        }))
    }

    /// For people.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![];
        if let Some(driver) = &self.driver {
            let (major, minor) = driver.cuda_version;
            lines.push(format!("driver   NVIDIA {}, CUDA {major}.{minor}", driver.version));
            lines.extend(driver.gpus.iter().enumerate().map(|(index, gpu)| gpu.line(index)));
        }
        lines.extend(self.nccl_version.as_ref().map(|version| format!("nccl     {version}")));
        lines
    }
}

/// Reasons of a lower clock that say nothing about a GPU that works.
const HARMLESS: [&str; 2] = ["gpu_idle", "applications_clocks_setting"];

impl NvidiaGpu {
    /// Why it may be slow; `None` if it reports no reason.
    fn note(&self, index: u32) -> Option<String> {
        let reasons = self.throttle_reasons.iter().map(String::as_str);
        let reasons: Vec<_> = reasons.filter(|reason| !HARMLESS.contains(reason)).collect();
        let errors = self.uncorrected_ecc_errors.filter(|number| *number > 0);
        if reasons.is_empty() && errors.is_none() {
            return None;
        }
        let mut facts: Vec<String> = reasons.into_iter().map(str::to_owned).collect();
        if let (Some(now), Some(most)) = (self.sm_clock_mhz, self.max_sm_clock_mhz) {
            facts.push(format!("SM {now} of {most} MHz"));
        }
        facts.extend(self.temperature_celsius.map(|celsius| format!("{celsius} C")));
        facts.extend(errors.map(|number| format!("{number} uncorrected ECC errors")));
        Some(format!("GPU {index}: {}", facts.join(" ")))
    }

    fn line(&self, index: usize) -> String {
        let gigabytes = |bytes: u64| bytes as f64 / 1e9;
        let mut facts = vec![self.name.clone()];
        if let (Some(used), Some(all)) = (self.memory_used_bytes, self.memory_bytes) {
            facts.push(format!("{:.1} of {:.1} GB used", gigabytes(used), gigabytes(all)));
        }
        let clocks = [
            ("SM", self.sm_clock_mhz, self.max_sm_clock_mhz),
            ("memory", self.memory_clock_mhz, self.max_memory_clock_mhz),
        ];
        for (what, now, most) in clocks {
            if let (Some(now), Some(most)) = (now, most) {
                facts.push(format!("{what} {now} of {most} MHz"));
            }
        }
        facts.extend(self.temperature_celsius.map(|celsius| format!("{celsius} C")));
        if let (Some(now), Some(most)) = (self.power_watts, self.power_limit_watts) {
            facts.push(format!("{now:.0} of {most:.0} W"));
        }
        if !self.throttle_reasons.is_empty() {
            facts.push(self.throttle_reasons.join(" "));
        }
        format!("gpu {index:<4} {}", facts.join(", "))
    }
}

/// Runs in the child: prints one line of JSON.
pub fn probe_here(nccl: Option<PathBuf>) -> Result<()> {
    let mut found = Nvidia::default();
    match driver() {
        Ok(driver) => found.driver = Some(driver),
        Err(NvmlError::LibloadingError(_)) => {}
        Err(error) => found.driver_problem = Some(format!("NVIDIA's driver says: {error}")),
    }
    match nccl.as_deref().map(pjrt::nccl_version) {
        Some(Ok(version)) => found.nccl_version = Some(version.to_string()),
        Some(Err(error)) => found.nccl_problem = Some(error.to_string()),
        None => {}
    }
    print_line(&serde_json::to_string(&found)?)
}

fn driver() -> Result<Driver, NvmlError> {
    let nvml = Nvml::builder().lib_path(OsStr::new(NVML)).init()?;
    let cuda = nvml.sys_cuda_driver_version()?;
    let gpus = (0..nvml.device_count()?).map(|index| Ok(gpu(&nvml.device_by_index(index)?)));
    Ok(Driver {
        version: nvml.sys_driver_version()?,
        cuda_version: (cuda / 1000, cuda % 1000 / 10),
        gpus: gpus.collect::<Result<_, NvmlError>>()?,
    })
}

/// What GPUs tell of why they may be slow.
pub struct GpuNotes(Nvml);

impl GpuNotes {
    /// `None` without a driver.
    pub fn new() -> Option<Self> {
        Nvml::builder().lib_path(OsStr::new(NVML)).init().ok().map(Self)
    }

    /// A note for each GPU of this machine that is notable.
    pub fn now(&self) -> Vec<String> {
        let gpus = (0..self.0.device_count().unwrap_or(0))
            .filter_map(|index| Some((index, gpu(&self.0.device_by_index(index).ok()?))));
        gpus.filter_map(|(index, gpu)| gpu.note(index)).collect()
    }
}

/// Not every GPU and driver reports everything.
fn gpu(device: &Device<'_>) -> NvidiaGpu {
    let memory = device.memory_info().ok();
    let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
    let reasons = device.current_throttle_reasons().ok();
    let reasons = reasons.iter().flat_map(|reasons| reasons.iter_names());
    let errors = device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
    NvidiaGpu {
        name: device.name().unwrap_or_default(),
        memory_bytes: memory.as_ref().map(|memory| memory.total),
        memory_used_bytes: memory.as_ref().map(|memory| memory.used),
        sm_clock_mhz: device.clock_info(Clock::SM).ok(),
        max_sm_clock_mhz: device.max_clock_info(Clock::SM).ok(),
        memory_clock_mhz: device.clock_info(Clock::Memory).ok(),
        max_memory_clock_mhz: device.max_clock_info(Clock::Memory).ok(),
        temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        slowdown_celsius: device.temperature_threshold(TemperatureThreshold::Slowdown).ok(),
        power_watts: device.power_usage().ok().map(watts),
        power_limit_watts: device.enforced_power_limit().ok().map(watts),
        throttle_reasons: reasons.map(|(name, _)| name.to_ascii_lowercase()).collect(),
        persistence_mode: device.is_in_persistent_mode().ok(),
        uncorrected_ecc_errors: errors.ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_is_held_back_says_why() {
        let note = |reasons: &[&str], uncorrected_ecc_errors| {
            let gpu = NvidiaGpu {
                sm_clock_mhz: Some(1200),
                max_sm_clock_mhz: Some(1980),
                temperature_celsius: Some(87),
                throttle_reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect(),
                uncorrected_ecc_errors,
                ..NvidiaGpu::default()
            };
            gpu.note(3)
        };
        assert_eq!(note(&["gpu_idle"], Some(0)), None);
        let slow = note(&["hw_thermal_slowdown", "gpu_idle"], None);
        assert_eq!(slow.as_deref(), Some("GPU 3: hw_thermal_slowdown SM 1200 of 1980 MHz 87 C"));
        let broken = note(&[], Some(2)).unwrap();
        assert!(broken.ends_with("87 C 2 uncorrected ECC errors"), "{broken}");
    }
}
