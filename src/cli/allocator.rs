//! The C library's allocator, set so that steps are fast on the CPU backend.

use std::env;
use std::ffi::OsStr;

/// The variable that the C library reads when a process starts, and at no other time.
const TUNABLES: &str = "GLIBC_TUNABLES";

/// Large pages, and memory that was freed is kept. XLA's CPU backend asks for all temporaries of a step at
/// its start and frees them at its end. By default each time goes to the system, which clears all of it,
/// in pages of 4 KiB: for a GPT with 300 MB of them 67000 page faults and 126 ms of system time a step.
const SETTINGS: &str = "glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:\
                        glibc.malloc.trim_threshold=8589934592:glibc.malloc.top_pad=67108864";

/// Starts this program over with the allocator set, once; where the variable is set already, or this
/// cannot be done, nothing. To be called before anything else has happened.
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
    // It comes back only if it failed: then the program goes on as it is, and is slower.
    let _ =
        std::process::Command::new(program).arg0(name).args(args).env(TUNABLES, settings).exec();
}

#[cfg(not(unix))]
fn start_over(_settings: &OsStr) {}
