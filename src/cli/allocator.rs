//! Settings of the program's allocator, mimalloc, with which steps are fast on the CPU backend.

use std::env;
use std::ffi::OsStr;

/// The variable that the allocator reads when a process starts, and at no other time.
const PURGE_DELAY: &str = "MIMALLOC_PURGE_DELAY";

/// Keep freed memory. XLA's CPU backend allocates all temporaries of a step at its start and frees them at its end. By default those that
/// no step has taken for a second go back to the system, which clears them again: up to 8 % of the time of a ResNet-20's steps.
const NEVER: &str = "-1";

/// Restarts this program once with the allocator settings. Does nothing if the variable is already set or the
/// restart fails. Must be called first.
pub fn tune() {
    if env::var_os(PURGE_DELAY).is_none() {
        start_over(OsStr::new(NEVER));
    }
}

#[cfg(unix)]
fn start_over(delay: &OsStr) {
    use std::os::unix::process::CommandExt;
    let Ok(program) = env::current_exe() else { return };
    let mut args = env::args_os();
    let name = args.next().unwrap_or_else(|| program.clone().into());
    // Returns only if it failed: then the program continues without the settings, and is slower.
    let _ =
        std::process::Command::new(program).arg0(name).args(args).env(PURGE_DELAY, delay).exec();
}

#[cfg(not(unix))]
fn start_over(_delay: &OsStr) {}
