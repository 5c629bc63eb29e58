//! How much memory is left for snapshots.

use std::fs;
use std::io;
use std::path::Path;

/// Of the memory that is left, snapshots take no more than three quarters.
const SHARE: (u64, u64) = (3, 4);

/// Checks that there is memory for so many bytes more.
///
/// # Errors
/// Says how much there is.
pub fn check_memory(num_bytes: u64) -> io::Result<()> {
    let Some(available) = available() else { return Ok(()) };
    match num_bytes <= available / SHARE.1 * SHARE.0 {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::OutOfMemory,
            format!("snapshots need {num_bytes} bytes more, and {available} are left on the host"),
        )),
    }
}

/// Bytes of memory that this process may still use: what the machine has, or the control group of
/// this process if that is less. `None` if the system does not say.
fn available() -> Option<u64> {
    let of_machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| of_meminfo(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let of_group = groups.lines().find_map(|line| line.strip_prefix("0::/")).and_then(|group| {
        let root = Path::new("/sys/fs/cgroup");
        let folders = root.join(group);
        let folders = folders.ancestors().take_while(|folder| folder.starts_with(root));
        folders.filter_map(left_in_group).min()
    });
    of_machine.into_iter().chain(of_group).min()
}

fn of_meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn left_in_group(folder: &Path) -> Option<u64> {
    let number = |file| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused() {
        check_memory(1 << 20).unwrap();
        let error = check_memory(u64::MAX / 8).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
    }

    #[test]
    fn what_the_system_says_is_read() {
        let text = "MemTotal:       24 kB\nMemFree:  3 kB\nMemAvailable:   12 kB\nBuffers: 1 kB\n";
        assert_eq!(of_meminfo(text), Some(12 * 1024));
        assert_eq!(of_meminfo("MemTotal: 24 kB\n"), None);
        assert!(available().is_some_and(|bytes| bytes > 1 << 20));
        let group = tempfile::tempdir().unwrap();
        let write = |file, text| fs::write(group.path().join(file), text).unwrap();
        write("memory.current", "300\n");
        write("memory.max", "max\n");
        assert_eq!(left_in_group(group.path()), None);
        write("memory.max", "1000\n");
        assert_eq!(left_in_group(group.path()), Some(700));
    }
}
