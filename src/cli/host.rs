//! The operating system: memory, pages, limits, and devices. Read from the files of Linux;
//! elsewhere little is known.

use std::fs;
use std::path::Path;
use std::thread;

use hlo::counted;
use serde::Serialize;

/// The machine. Unknown values are `None`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Host {
    pub os: &'static str,
    pub arch: &'static str,
    pub cores: usize,
    pub memory_bytes: Option<u64>,
    /// `always`, `madvise` or `never`.
    pub transparent_hugepage: Option<String>,
    /// Bytes that are set aside as huge pages, which a program must ask for by name.
    pub reserved_hugepage_bytes: Option<u64>,
    /// Files and sockets that a process may have open.
    pub open_files: Option<Limit>,
    /// Bytes that a process may keep from being moved or swapped out.
    pub locked_memory_bytes: Option<Limit>,
    /// Devices on the PCI bus, whether or not a driver has them.
    pub nvidia_pci_devices: usize,
    pub tpu_pci_devices: usize,
    /// Network cards that write into the memory of other hosts.
    pub infiniband_devices: usize,
    /// `true` for a machine of Google's cloud, which has a metadata server.
    #[serde(skip)]
    pub is_google_cloud: bool,
}

/// The limit of a process, and how far it may raise it; `None` is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limit {
    pub soft: Option<u64>,
    pub hard: Option<u64>,
}

/// Display and 3D controllers, and processing accelerators.
const ACCELERATOR_CLASSES: [&str; 3] = ["0x0300", "0x0302", "0x1200"];
const NVIDIA: &str = "0x10de";
const GOOGLE: &str = "0x1ae0";

impl Host {
    /// The machine that this runs on.
    pub fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).ok();
        let meminfo = read("/proc/meminfo").unwrap_or_default();
        let limits = read("/proc/self/limits").unwrap_or_default();
        let thp = read("/sys/kernel/mm/transparent_hugepage/enabled");
        let pci = pci_devices(Path::new("/sys/bus/pci/devices"));
        let from = |vendor: &str| pci.iter().filter(|found| *found == vendor).count();
        Self {
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
            cores: thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kib(&meminfo, "MemTotal"),
            transparent_hugepage: thp.as_deref().and_then(chosen),
            reserved_hugepage_bytes: reserved(&meminfo),
            open_files: limit(&limits, "Max open files"),
            locked_memory_bytes: limit(&limits, "Max locked memory"),
            nvidia_pci_devices: from(NVIDIA),
            tpu_pci_devices: from(GOOGLE),
            infiniband_devices: entries(Path::new("/sys/class/infiniband")).len(),
            is_google_cloud: read("/sys/class/dmi/id/product_name")
                .is_some_and(|name| name.starts_with("Google")),
        }
    }

    /// For people.
    pub fn lines(&self) -> Vec<String> {
        let gigabytes = |bytes: u64| format!("{:.1} GB", bytes as f64 / 1e9);
        let memory = self.memory_bytes.map(|bytes| format!(", {}", gigabytes(bytes)));
        let mut pages = vec![];
        pages.extend(self.transparent_hugepage.as_ref().map(|mode| format!("transparent {mode}")));
        pages.extend(self.reserved_hugepage_bytes.map(|b| format!("{} reserved", gigabytes(b))));
        let mut limits = vec![];
        limits.extend(self.open_files.map(|limit| format!("open files {}", limit.text())));
        limits.extend(self.locked_memory_bytes.map(|l| format!("locked bytes {}", l.text())));
        let line = |name: &str, facts: Vec<String>| {
            (!facts.is_empty()).then(|| format!("{name:8} {}", facts.join(", ")))
        };
        let (os, arch, cores) = (self.os, self.arch, self.cores);
        let cores = counted(cores, "core");
        let machine = format!("{os} {arch}, {cores}{}", memory.unwrap_or_default());
        [line("machine", vec![machine]), line("pages", pages), line("limits", limits)]
            .into_iter()
            .flatten()
            .collect()
    }
}

impl Limit {
    fn text(self) -> String {
        let number = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |l| l.to_string());
        format!("{} (may be raised to {})", number(self.soft), number(self.hard))
    }
}

/// The value of a line `Name:   123 kB` of /proc/meminfo, in bytes.
fn kib(meminfo: &str, name: &str) -> Option<u64> {
    number(meminfo, name)?.checked_mul(1024)
}

fn number(meminfo: &str, name: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.split_whitespace().next()?.parse().ok()
}

fn reserved(meminfo: &str) -> Option<u64> {
    number(meminfo, "HugePages_Total")?.checked_mul(kib(meminfo, "Hugepagesize")?)
}

/// `always [madvise] never` -> `madvise`.
fn chosen(setting: &str) -> Option<String> {
    let (_, rest) = setting.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

/// A line `Max open files   1024   1048576   files` of /proc/self/limits.
fn limit(limits: &str, name: &str) -> Option<Limit> {
    let mut words = limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace();
    let mut next = || match words.next()? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    };
    Some(Limit { soft: next()?, hard: next()? })
}

/// The vendors of the accelerators on the bus.
fn pci_devices(bus: &Path) -> Vec<String> {
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let is_accelerator = |class: &str| ACCELERATOR_CLASSES.iter().any(|c| class.starts_with(c));
    entries(bus)
        .into_iter()
        .map(|device| (read(&device.join("vendor")), read(&device.join("class"))))
        // A TPU's class is none of these.
        .filter(|(vendor, class)| vendor == GOOGLE || is_accelerator(class))
        .map(|(vendor, _)| vendor)
        .collect()
}

fn entries(dir: &Path) -> Vec<std::path::PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return vec![] };
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Files of devices, as the beginnings of their names: NVIDIA's driver, also under WSL and on
/// Jetson; TPUs, with numbered files for later generations, which are passed through.
const CUDA_FILES: [&str; 4] = ["/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/nvhost-gpu"];
const TPU_DIRS: [(&str, &str); 2] = [("/dev", "accel"), ("/dev/vfio", "")];

/// `true` if there are files of the devices that the plugin drives.
pub fn has_device_files(name: &str) -> bool {
    match name {
        "tpu" => TPU_DIRS.iter().any(|(dir, prefix)| {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            let mut numbers =
                names.filter_map(|name| name.strip_prefix(prefix)?.parse::<u32>().ok());
            numbers.next().is_some()
        }),
        "cuda" => CUDA_FILES.iter().any(|path| Path::new(path).exists()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_linux_says_is_read() {
        let meminfo =
            "MemTotal:       16384 kB\nHugePages_Total:     100\nHugepagesize:       2048 kB\n";
        assert_eq!(kib(meminfo, "MemTotal"), Some(16 << 20));
        assert_eq!(reserved(meminfo), Some(100 * (2 << 20)));
        assert_eq!(reserved("MemTotal: 1 kB"), None);
        assert_eq!(chosen("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(chosen("never"), None);
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max open files            1024                 1048576              files\n\
                      Max locked memory         8388608              unlimited            bytes\n";
        let files = Limit { soft: Some(1024), hard: Some(1 << 20) };
        assert_eq!(limit(limits, "Max open files"), Some(files));
        let locked = Limit { soft: Some(8 << 20), hard: None };
        assert_eq!(limit(limits, "Max locked memory"), Some(locked));
        assert_eq!(limit(limits, "Max cows"), None);
    }

    #[test]
    fn accelerators_are_told_from_other_devices_on_the_bus() {
        let bus = tempfile::tempdir().unwrap();
        // An H100, its audio, a network card of NVIDIA's, a TPU, a virtual disk.
        let devices = [
            (NVIDIA, "0x030200"),
            (NVIDIA, "0x040300"),
            (NVIDIA, "0x020000"),
            (GOOGLE, "0xff0000"),
            ("0x1af4", "0x010000"),
        ];
        for (index, (vendor, class)) in devices.iter().enumerate() {
            let device = bus.path().join(index.to_string());
            fs::create_dir(&device).unwrap();
            fs::write(device.join("vendor"), format!("{vendor}\n")).unwrap();
            fs::write(device.join("class"), format!("{class}\n")).unwrap();
        }
        let mut found = pci_devices(bus.path());
        found.sort();
        assert_eq!(found, [NVIDIA, GOOGLE]);
    }
}
