//! Names of checkpoints, and of the files in them.

/// Prefix of the names of checkpoints.
const PREFIX: &str = "step_";
/// Prefix of the names of directories that are not checkpoints yet, or no longer.
pub(super) const UNFINISHED: &str = ".unfinished.";

pub(super) fn step_name(step: u64) -> String {
    format!("{PREFIX}{step:08}")
}

/// The number of steps in the name of a checkpoint.
pub(super) fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

pub(super) fn unfinished_name(name: &str) -> String {
    format!("{UNFINISHED}{name}")
}

/// The file of a process.
pub(super) fn shard_name(process_index: usize) -> String {
    format!("shard_{process_index:05}.safetensors")
}
