//! Settings of the program's allocator, mimalloc, with which starts and steps are fast on the CPU
//! backend.

use std::env;

/// Variables that the allocator reads when a process starts, and at no other time.
const SETTINGS: [(&str, &str); 2] = [
    // Keep freed memory. XLA's CPU backend allocates all temporaries of a step at its start and
    // frees them at its end. By default those that no step has taken for a second go back to the
    // system, which clears them again: 8 % of the processor time of a ResNet-20's steps on an AMD
    // EPYC (Zen 4).
    ("MIMALLOC_PURGE_DELAY", "-1"),
    // No transparent huge pages. A start writes only parts of many, and the system clears them
    // whole: a seventh of a GPT's cold start on the same processor.
    ("MIMALLOC_ALLOW_THP", "0"),
];

/// Restarts this program once with those settings that the environment lacks. Does nothing if it
/// has all of them, or the restart fails. Must be called first.
pub fn tune() {
    let is_missing = |(name, _): &(&str, &str)| env::var_os(name).is_none();
    let missing: Vec<_> = SETTINGS.into_iter().filter(is_missing).collect();
    if !missing.is_empty() {
        start_over(&missing);
    }
}

#[cfg(unix)]
fn start_over(settings: &[(&str, &str)]) {
    use std::os::unix::process::CommandExt;
    let Ok(program) = env::current_exe() else { return };
    let mut args = env::args_os();
    let name = args.next().unwrap_or_else(|| program.clone().into());
    // Returns only if it failed: then the program continues without the settings, and is slower.
    let _ = std::process::Command::new(program)
        .arg0(name)
        .args(args)
        .envs(settings.iter().copied())
        .exec();
}

#[cfg(not(unix))]
fn start_over(_settings: &[(&str, &str)]) {}
