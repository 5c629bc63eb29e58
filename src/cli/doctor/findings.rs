//! Rules that find what is wrong with a machine, from what is already known about it.

use hlo::counted;
use serde::Serialize;

use super::nvidia::{Driver, Nvidia, NvidiaGpu};
use crate::cli::host::Host;

/// A cause of slow or failing runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// The problem.
    pub what: String,
    /// The remedy.
    pub change: String,
}

fn finding(what: impl Into<String>, change: impl Into<String>) -> Diagnosis {
    Diagnosis { what: what.into(), change: change.into() }
}

/// All findings, except the problems of plugins, which are reported with them.
pub fn findings(host: &Host, nvidia: Option<&Nvidia>) -> Vec<Diagnosis> {
    let mut found: Vec<_> = [pages(host), reserved(host), open_files(host), locked_memory(host)]
        .into_iter()
        .flatten()
        .collect();
    found.extend(driver_problem(host, nvidia));
    if let Some(nvidia) = nvidia {
        found.extend(nvidia.nccl_problem.as_ref().map(|problem| {
            finding(problem, "install the plugin again: lockstep plugin install cuda")
        }));
        if let Some(driver) = &nvidia.driver {
            found.extend(cuda_version(driver));
            found.extend(mixed_gpus(driver));
            let gpus = driver.gpus.iter().enumerate();
            found.extend(gpus.flat_map(|(index, gpu)| gpu_findings(index, gpu)));
        }
    }
    found
}

/// TPU runtimes map host buffers for their devices; JAX warns about the same setting.
fn pages(host: &Host) -> Option<Diagnosis> {
    let what = match host.transparent_hugepage.as_deref()? {
        "never" => "transparent huge pages are off: every 4 KiB of a large array is a page fault",
        "madvise" if host.tpu_pci_devices > 0 => {
            "transparent huge pages are for programs that ask: a TPU's runtime starts and ends \
             slowly"
        }
        _ => return None,
    };
    Some(finding(what, "sudo sh -c 'echo always > /sys/kernel/mm/transparent_hugepage/enabled'"))
}

/// Lockstep does not use reserved pages; a tenth of the memory is too much to lose.
fn reserved(host: &Host) -> Option<Diagnosis> {
    let (reserved, memory) = (host.reserved_hugepage_bytes?, host.memory_bytes?);
    (reserved > memory / 10).then(|| {
        let what = format!(
            "{:.1} of {:.1} GB of memory are reserved as huge pages, which neither this program \
             nor its plugins use",
            reserved as f64 / 1e9,
            memory as f64 / 1e9
        );
        finding(what, "sudo sysctl vm.nr_hugepages=0")
    })
}

/// The default of most systems; NCCL opens hundreds of sockets on several hosts.
const OPEN_FILES: u64 = 1024;
const OPEN_FILES_WITH_GPUS: u64 = 65536;

fn open_files(host: &Host) -> Option<Diagnosis> {
    let needed = match host.nvidia_pci_devices {
        0 => OPEN_FILES,
        _ => OPEN_FILES_WITH_GPUS,
    };
    let limit = host.open_files?;
    let soft = limit.soft.filter(|soft| *soft < needed)?;
    let change = match limit.hard {
        Some(hard) if hard < needed => {
            format!("raise nofile to {needed} in /etc/security/limits.conf, and log in again")
        }
        _ => format!("ulimit -n {needed}"),
    };
    Some(finding(format!("a process may have {soft} files and sockets open"), change))
}

/// Buffers that InfiniBand or RoCE cards write into must be locked in memory.
fn locked_memory(host: &Host) -> Option<Diagnosis> {
    if host.infiniband_devices == 0 || host.nvidia_pci_devices == 0 {
        return None;
    }
    let soft = host.locked_memory_bytes?.soft?;
    Some(finding(
        format!(
            "a process may lock {soft} bytes: NCCL cannot register its buffers with InfiniBand"
        ),
        "ulimit -l unlimited, or --ulimit memlock=-1 for a container",
    ))
}

fn driver_problem(host: &Host, nvidia: Option<&Nvidia>) -> Option<Diagnosis> {
    if let Some(problem) = nvidia.and_then(|nvidia| nvidia.driver_problem.as_ref()) {
        let change = "load the driver again, or restart the machine, if it was updated just now";
        return Some(finding(problem, change));
    }
    let has_driver = nvidia.is_some_and(|nvidia| nvidia.driver.is_some());
    (host.nvidia_pci_devices > 0 && !has_driver).then(|| {
        finding(
            format!("no driver here for {}", counted(host.nvidia_pci_devices, "NVIDIA GPU")),
            "install the driver, 580 or newer; start a container with its GPUs (--gpus all)",
        )
    })
}

/// The major version of CUDA that the plugin is built for.
const CUDA_MAJOR: i32 = 13;

fn cuda_version(driver: &Driver) -> Option<Diagnosis> {
    let (major, minor) = driver.cuda_version;
    (major < CUDA_MAJOR).then(|| {
        let version = &driver.version;
        finding(
            format!("driver {version} knows CUDA {major}.{minor}, the plugin needs {CUDA_MAJOR}"),
            "install driver 580 or newer",
        )
    })
}

fn mixed_gpus(driver: &Driver) -> Option<Diagnosis> {
    let mut names: Vec<&str> = driver.gpus.iter().map(|gpu| gpu.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    (names.len() > 1).then(|| {
        finding(
            format!("different GPUs in one machine: {}", names.join(", ")),
            "every step waits for the slowest: choose equal ones with CUDA_VISIBLE_DEVICES",
        )
    })
}

/// Throttle reasons that cost speed, what they mean, and what to change. Idleness is none.
const THROTTLE_REASONS: [(&str, &str, &str); 7] = [
    (
        "sw_power_cap",
        "is held down by its power limit",
        "raise the limit: sudo nvidia-smi -pl WATTS",
    ),
    ("hw_slowdown", "is slowed down by its hardware", "look at its cooling and power supply"),
    ("sw_thermal_slowdown", "is slowed down for its temperature", "cool it better"),
    ("hw_thermal_slowdown", "is slowed down to half or less for its temperature", "cool it better"),
    (
        "hw_power_brake_slowdown",
        "is slowed down to half or less by its power supply",
        "look at the machine's power supply",
    ),
    ("sync_boost", "waits for a slower GPU of its boost group", "look at the other GPUs"),
    (
        "applications_clocks_setting",
        "runs at clocks that someone has set",
        "sudo nvidia-smi --reset-applications-clocks",
    ),
];

/// The share of the memory that may be in use before a run.
const FREE_ENOUGH: f64 = 0.05;
/// This close to throttling, a long run will reach it.
const CLOSE_CELSIUS: u32 = 3;

fn gpu_findings(index: usize, gpu: &NvidiaGpu) -> Vec<Diagnosis> {
    let about = |what: &str, change: &str| finding(format!("GPU {index} {what}"), change);
    let is_on = |reason: &str| gpu.throttle_reasons.iter().any(|name| name == reason);
    let mut found: Vec<_> = THROTTLE_REASONS
        .iter()
        .filter(|(reason, ..)| is_on(reason))
        .map(|(reason, what, change)| about(&format!("{what} ({reason})"), change))
        .collect();
    if let (Some(now), Some(slowdown)) = (gpu.temperature_celsius, gpu.slowdown_celsius)
        && now.saturating_add(CLOSE_CELSIUS) >= slowdown
    {
        let what = format!("is at {now} C and slows down at {slowdown} C");
        found.push(about(&what, "cool it better"));
    }
    if let (Some(used), Some(all)) = (gpu.memory_used_bytes, gpu.memory_bytes)
        && used as f64 > FREE_ENOUGH * all as f64
    {
        let what = format!("has {:.1} of {:.1} GB taken", used as f64 / 1e9, all as f64 / 1e9);
        found.push(about(&what, "end the processes that nvidia-smi lists, or leave this GPU out"));
    }
    if let Some(errors) = gpu.uncorrected_ecc_errors.filter(|errors| *errors > 0) {
        let what = format!("had {errors} memory errors that could not be corrected");
        found.push(about(
            &what,
            "do not train on it; restart the machine, and replace it if they return",
        ));
    }
    if gpu.persistence_mode == Some(false) {
        found.push(about(
            "is shut down between runs, and every start waits for it",
            "sudo nvidia-smi -pm 1",
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::host::Limit;

    fn host() -> Host {
        Host {
            memory_bytes: Some(100 << 30),
            transparent_hugepage: Some("madvise".into()),
            reserved_hugepage_bytes: Some(0),
            open_files: Some(Limit { soft: Some(1 << 20), hard: Some(1 << 20) }),
            locked_memory_bytes: Some(Limit { soft: Some(8 << 20), hard: Some(8 << 20) }),
            ..Host::default()
        }
    }

    fn gpu() -> NvidiaGpu {
        NvidiaGpu {
            name: "NVIDIA H100".into(),
            memory_bytes: Some(80 << 30),
            memory_used_bytes: Some(600 << 20),
            temperature_celsius: Some(40),
            slowdown_celsius: Some(87),
            throttle_reasons: vec!["gpu_idle".into()],
            persistence_mode: Some(true),
            uncorrected_ecc_errors: Some(0),
            ..NvidiaGpu::default()
        }
    }

    fn with_gpus(gpus: Vec<NvidiaGpu>) -> Nvidia {
        let driver = Driver { version: "580.82".into(), cuda_version: (13, 0), gpus };
        Nvidia { driver: Some(driver), ..Nvidia::default() }
    }

    /// Exactly one finding, which holds `what` and says to do `change`.
    #[track_caller]
    fn check(host: &Host, nvidia: Option<&Nvidia>, what: &str, change: &str) {
        let found = findings(host, nvidia);
        let [one] = &found[..] else { panic!("{what}: {found:?}") };
        assert!(one.what.contains(what) && one.change.contains(change), "{one:?}");
    }

    #[test]
    fn a_machine_without_fault_has_no_findings() {
        assert_eq!(findings(&host(), None), []);
        let with_gpu = Host { nvidia_pci_devices: 2, ..host() };
        assert_eq!(findings(&with_gpu, Some(&with_gpus(vec![gpu(), gpu()]))), []);
        // Unknown values are not reported.
        assert_eq!(findings(&Host::default(), Some(&with_gpus(vec![NvidiaGpu::default()]))), []);
    }

    #[test]
    fn what_the_system_withholds_is_found() {
        let never = Host { transparent_hugepage: Some("never".into()), ..host() };
        check(&never, None, "page fault", "echo always");
        check(&Host { tpu_pci_devices: 4, ..host() }, None, "TPU's runtime", "echo always");
        let reserved = Host { reserved_hugepage_bytes: Some(20 << 30), ..host() };
        check(&reserved, None, "21.5 of 107.4 GB", "vm.nr_hugepages=0");
        let few = |hard| Some(Limit { soft: Some(256), hard });
        check(&Host { open_files: few(None), ..host() }, None, "256 files", "ulimit -n 1024");
        check(&Host { open_files: few(Some(512)), ..host() }, None, "256 files", "limits.conf");
    }

    #[test]
    fn gpus_ask_more_of_the_system() {
        let nvidia = with_gpus(vec![gpu()]);
        let with_gpu = Host { nvidia_pci_devices: 1, ..host() };
        let usual = Some(Limit { soft: Some(1024), hard: Some(1 << 20) });
        let files = Host { open_files: usual, ..with_gpu.clone() };
        check(&files, Some(&nvidia), "1024 files", "ulimit -n 65536");
        let infiniband = Host { infiniband_devices: 8, ..with_gpu.clone() };
        check(&infiniband, Some(&nvidia), "lock 8388608 bytes", "memlock=-1");
        let unlimited = Some(Limit { soft: None, hard: None });
        let free = Host { locked_memory_bytes: unlimited, ..infiniband };
        assert_eq!(findings(&free, Some(&nvidia)), []);
        check(&with_gpu, None, "no driver here for 1 NVIDIA GPU", "--gpus all");
        let problem = Some("NVIDIA's driver says: mismatch".to_owned());
        let broken = Nvidia { driver_problem: problem, ..Nvidia::default() };
        check(&with_gpu, Some(&broken), "mismatch", "restart");
        let nccl = Nvidia { nccl_problem: Some("no NCCL".into()), ..nvidia };
        check(&with_gpu, Some(&nccl), "no NCCL", "plugin install cuda");
    }

    #[test]
    fn what_slows_a_gpu_down_is_found() {
        let rows = [
            (NvidiaGpu { persistence_mode: Some(false), ..gpu() }, "shut down between", "-pm 1"),
            (NvidiaGpu { uncorrected_ecc_errors: Some(3), ..gpu() }, "3 memory errors", "replace"),
            (
                NvidiaGpu { memory_used_bytes: Some(40 << 30), ..gpu() },
                "42.9 of 85.9",
                "nvidia-smi",
            ),
            (NvidiaGpu { temperature_celsius: Some(85), ..gpu() }, "at 85 C", "cool"),
        ];
        let with_gpu = Host { nvidia_pci_devices: 1, ..host() };
        for (gpu, what, change) in rows {
            check(&with_gpu, Some(&with_gpus(vec![gpu])), what, change);
        }
        for (reason, what, change) in THROTTLE_REASONS {
            let gpu = NvidiaGpu { throttle_reasons: vec![reason.into()], ..gpu() };
            check(&with_gpu, Some(&with_gpus(vec![gpu])), what, change);
        }
        let other = NvidiaGpu { name: "NVIDIA A100".into(), ..gpu() };
        let mixed = with_gpus(vec![gpu(), other]);
        check(&with_gpu, Some(&mixed), "NVIDIA A100, NVIDIA H100", "the slowest");
        let mut old = with_gpus(vec![gpu()]);
        old.driver.as_mut().unwrap().cuda_version = (12, 2);
        check(&with_gpu, Some(&old), "knows CUDA 12.2", "580 or newer");
    }
}
