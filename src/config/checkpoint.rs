//! `[checkpoint]`: when the state of a run is saved, and where.

use std::path::{Component, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::require;
use super::keys::{Reader, Section, field_names};

/// `[checkpoint]`. A run with a place for checkpoints saves one when it ends or is stopped, and as often as this says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointConfig {
    /// The directory of the checkpoints; a relative one is in the output directory. Default `checkpoints`.
    pub dir: PathBuf,
    /// Steps between checkpoints; 0, the default, for none.
    pub every_steps: u64,
    /// Seconds between checkpoints; 0, the default, for none.
    pub every_secs: u64,
    /// How many of the newest are kept; 0 saves none at all. Default 3.
    pub keep: usize,
    /// Checkpoints after a multiple of this many steps are kept too; 0, the default, for none.
    pub keep_every: u64,
    /// `true` if a checkpoint is saved after each evaluation that is better than all before, and kept until a better one.
    pub keep_best: bool,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        Self {
            dir: Self::DIR.into(),
            every_steps: 0,
            every_secs: 0,
            keep: 3,
            keep_every: 0,
            keep_best: false,
        }
    }
}

impl CheckpointConfig {
    /// The default of `dir`.
    pub const DIR: &'static str = "checkpoints";
}

impl Section for CheckpointConfig {
    const NAME: &'static str = "checkpoint";

    fn keys(_choice: &str) -> Vec<&'static str> {
        field_names::<Self>().to_vec()
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut keys: Self = reader.keys()?;
        let is_below = |part: Component<'_>| part != Component::ParentDir;
        let named = keys.dir.components().filter(|part| *part != Component::CurDir);
        let named: PathBuf = named.collect();
        let is_place = !named.as_os_str().is_empty() && named.components().all(is_below);
        let allowed = "the path of a directory, without `..`";
        if let Err(error) = require(is_place, "dir", keys.dir.display(), allowed) {
            reader.errors.push(error);
        }
        keys.dir = named;
        Some(keys)
    }
}
