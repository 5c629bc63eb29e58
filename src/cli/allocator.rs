//! Settings of the C library's allocator with which steps are fast on the CPU backend.

use std::env;
use std::ffi::OsStr;

/// The variable that the C library reads when a process starts, and at no other time.
const TUNABLES: &str = "GLIBC_TUNABLES";

/// Use huge pages and keep freed memory. XLA's CPU backend allocates all temporaries of a step at its start
/// and frees them at its end. By default each step gets them from the system, which clears them in pages of
/// 4 KiB: for a GPT with 300 MB of them 67000 page faults and 126 ms of system time a step.
const SETTINGS: &str = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:\
                        glibc.malloc.trim_threshold=8589934592:glibc.malloc.top_pad=67108864";

/// Restarts this program once with the allocator settings. Does nothing if the variable is already set or the
/// restart fails. Must be called first.
pub fn tune() {
    if !cfg!(all(target_os = "linux", target_env = "gnu")) || env::var_os(TUNABLES).is_some() {
        return;
    }
    start_over(OsStr::new(SETTINGS));
}

#[cfg(unix)]
fn start_over(settings: &OsStr) {
    use std::os::unix::process::CommandExt;
    let Ok(program) = env::current_exe() else { return };
    let mut args = env::args_os();
    let name = args.next().unwrap_or_else(|| program.clone().into());
    // Returns only if it failed: then the program continues without the settings, and is slower.
    let _ =
        std::process::Command::new(program).arg0(name).args(args).env(TUNABLES, settings).exec();
}

#[cfg(not(unix))]
fn start_over(_settings: &OsStr) {}
