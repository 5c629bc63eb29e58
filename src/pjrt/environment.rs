//! Checks and completes the environment variables that plugins read, before a plugin is loaded.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use memchr::memmem;

use super::{Error, Result};

const XLA_FLAGS: &str = "XLA_FLAGS";

/// A flag name that is in every library that stores XLA's flags as plain text.
const FLAG_OF_EVERY_XLA: &str = "xla_force_host_platform_device_count";

/// Timeouts of the CPU backend's collectives in seconds: until it warns, and until it ends the
/// process. XLA's defaults of 20 and 40 are reached on a machine that is merely busy, or was
/// asleep.
const CPU_COLLECTIVE_TIMEOUTS: [(&str, u32); 2] = [
    ("xla_cpu_collective_call_warn_stuck_timeout_seconds", 60),
    ("xla_cpu_collective_call_terminate_timeout_seconds", 1800),
];

/// Prepares the environment for the library at `path`. Variables are set for the first library
/// only: later its threads may be reading them.
///
/// # Errors
/// [`Error::UnknownXlaFlag`] for a flag on which XLA would abort, [`Error::UnreadableXlaFlags`].
pub(super) fn prepare(path: &Path, is_first: bool) -> Result<()> {
    let given = xla_flags()?;
    let given_names = names(&given);
    let mut wanted: Vec<&str> = vec![FLAG_OF_EVERY_XLA];
    wanted.extend(CPU_COLLECTIVE_TIMEOUTS.map(|(name, _)| name));
    wanted.extend(&given_names);
    let held = literals_in(path, &wanted)
        .map_err(|source| Error::UnreadablePlugin { path: path.to_path_buf(), source })?;
    let holds =
        |name: &str| wanted.iter().zip(&held).any(|(wanted, held)| *wanted == name && *held);
    // A library without this one stores its flags in another form, and they cannot be checked.
    if holds(FLAG_OF_EVERY_XLA)
        && let Some(name) = given_names.iter().find(|name| !holds(name))
    {
        return Err(Error::UnknownXlaFlag { flag: format!("--{name}"), path: path.to_path_buf() });
    }
    if is_first {
        let ours = CPU_COLLECTIVE_TIMEOUTS
            .iter()
            .filter(|(name, _)| holds(name) && !given_names.contains(name))
            .map(|(name, secs)| format!("--{name}={secs} "));
        // Ours come first: XLA takes a text that does not begin with a dash as the name of a file.
        let flags = ours.collect::<String>() + given.trim();
        set(XLA_FLAGS, flags.trim_end());
        // Suppresses plugins' informational lines on stderr, which we use for our own output.
        const LOG_LEVEL: &str = "TF_CPP_MIN_LOG_LEVEL";
        if env::var_os(LOG_LEVEL).is_none() {
            set(LOG_LEVEL, "1");
        }
    }
    Ok(())
}

fn set(name: &str, value: &str) {
    // SAFETY: Rust's own reads of the environment are synchronised with this. Code that reads it
    // without synchronisation is C code on another thread, and no plugin is loaded yet.
    unsafe { env::set_var(name, value) };
}

/// The flags in `XLA_FLAGS`, or in the file that it names. Like XLA, takes a value without a
/// leading dash as a file name.
fn xla_flags() -> Result<String> {
    let Some(value) = env::var_os(XLA_FLAGS) else { return Ok(String::new()) };
    match value.to_str() {
        Some(text) if text.trim().is_empty() => Ok(String::new()),
        Some(text) if text.trim_start().starts_with('-') => Ok(text.to_owned()),
        _ => fs::read_to_string(&value)
            .map_err(|source| Error::UnreadableXlaFlags { path: value.into(), source }),
    }
}

/// The names in a list of `--name=value`.
fn names(flags: &str) -> Vec<&str> {
    let tokens = flags.split_whitespace().filter_map(|token| token.strip_prefix("--"));
    tokens.map(|token| token.split('=').next().unwrap_or(token)).collect()
}

/// Which of the names occur in a library as C strings; XLA registers its flags from string
/// literals. Stops reading once all are found.
fn literals_in(path: &Path, names: &[&str]) -> io::Result<Vec<bool>> {
    const CHUNK: usize = 4 << 20;
    let needles: Vec<Vec<u8>> =
        names.iter().map(|name| [name.as_bytes(), b"\0"].concat()).collect();
    let overlap = needles.iter().map(Vec::len).max().unwrap_or(1) - 1;
    let mut held = vec![false; names.len()];
    let mut file = File::open(path)?;
    let mut window = Vec::with_capacity(CHUNK + overlap);
    while held.contains(&false) {
        window.drain(..window.len().saturating_sub(overlap));
        if file.by_ref().take(CHUNK as u64).read_to_end(&mut window)? == 0 {
            break;
        }
        for (held, needle) in held.iter_mut().zip(&needles) {
            *held = *held || memmem::find(&window, needle).is_some();
        }
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_literal_is_found_wherever_it_stands() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("library");
        for at in [0, (4 << 20) - 3, 5 << 20] {
            let mut bytes = vec![b'x'; 6 << 20];
            bytes[at..at + 6].copy_from_slice(b"flag_\0");
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(
                literals_in(&path, &["flag_", "flag", "lag_"]).unwrap(),
                [true, false, true]
            );
        }
    }

    #[test]
    fn names_are_what_stands_between_dashes_and_an_equals_sign() {
        assert_eq!(names("--xla_a=1\n  --xla_b --xla_c=--d"), ["xla_a", "xla_b", "xla_c"]);
        assert!(names("").is_empty());
    }
}
