//! `[checkpoint]`: when the state of a run is saved, and where.

use std::path::{Component, Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::error::require;
use super::key::{KeyInfo, OnResume};
use super::keys::{Reader, Section};
use super::sections::AutoOr;

/// `[checkpoint]`. A run with a place for checkpoints saves one when it ends or is stopped, and as
/// often as this says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct CheckpointConfig {
    /// The directory of the checkpoints. A relative path is in the output directory; without
    /// `--out` nothing is saved there. Or a URL in an object store: `s3://BUCKET/PREFIX`,
    /// `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`.
    #[schemars(extend("values" = "path"))]
    #[default(Self::DIR.into())]
    pub dir: PathBuf,
    /// Steps between checkpoints; 0 for none on the way.
    #[schemars(extend("unit" = "steps"))]
    pub every_steps: u64,
    /// Seconds between checkpoints; 0 for none on the way.
    #[schemars(extend("unit" = "seconds"))]
    pub every_secs: u64,
    /// How many of the newest checkpoints are kept; 0 saves none at all.
    #[schemars(extend("unit" = "checkpoints"))]
    #[default(3)]
    pub keep: usize,
    /// Checkpoints after a multiple of this many steps are kept as well; 0 for none.
    #[schemars(extend("unit" = "steps"))]
    pub keep_every: u64,
    /// Save a checkpoint after each evaluation that is better than all before, and keep it until a
    /// better one. `train.best_metric` says which is better.
    pub keep_best: bool,
    /// What `--resume` does if the newest checkpoint is damaged: `stop` ends with an error,
    /// `previous` says so and continues from the newest one that is whole, taking the steps since
    /// then again. To know, it reads the checkpoint once more.
    pub on_damaged: OnDamaged,
    /// Under `lockstep launch`, steps between snapshots of the state in the memory of supervisors,
    /// from which the processes go on after a failure; 0 for none. `auto` follows from what a
    /// snapshot costs: less than 1 % of the time.
    #[schemars(extend("unit" = "steps"))]
    pub snapshot_every_steps: AutoOr<usize>,
}

/// What becomes of a run whose newest checkpoint is damaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnDamaged {
    /// It ends with an error.
    #[default]
    Stop,
    /// It continues from the newest one that is whole.
    Previous,
}

impl CheckpointConfig {
    /// The default of `dir`.
    pub const DIR: &'static str = "checkpoints";
}

/// The schemes of URLs in object stores.
pub const OBJECT_SCHEMES: [&str; 3] = ["s3", "gs", "az"];

/// `true` for a URL in an object store with a bucket and a prefix without empty, `.` and `..`
/// parts.
fn is_object_url(path: &Path) -> bool {
    let url = path.to_str().and_then(|text| text.split_once("://"));
    url.is_some_and(|(scheme, rest)| {
        let mut parts = rest.trim_end_matches('/').split('/');
        OBJECT_SCHEMES.contains(&scheme)
            && parts.all(|part| !["", ".", ".."].contains(&part))
            && !rest.contains(['?', '#', '@'])
    })
}

impl Section for CheckpointConfig {
    const NAME: &'static str = "checkpoint";
    const ABOUT: &str = "\
        When the state of a run is saved. A run with `--out` always saves a checkpoint when \
        it ends or is stopped. See [Checkpoints](checkpoints.md).";

    fn keys(_choice: &str) -> Vec<KeyInfo> {
        KeyInfo::shared::<Self>(OnResume::Same)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut keys: Self = reader.keys()?;
        let is_url = keys.dir.to_str().is_some_and(|text| text.contains("://"));
        if is_url {
            let is_place = is_object_url(&keys.dir);
            let allowed = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX";
            if let Err(error) = require(is_place, "dir", keys.dir.display(), allowed) {
                reader.errors.push(error);
            }
            return Some(keys);
        }
        let is_below = |part: Component<'_>| part != Component::ParentDir;
        let named = keys.dir.components().filter(|part| *part != Component::CurDir);
        let named: PathBuf = named.collect();
        let is_place = !named.as_os_str().is_empty() && named.components().all(is_below);
        let allowed = "the path of a directory, without `..`, or a URL in an object store";
        if let Err(error) = require(is_place, "dir", keys.dir.display(), allowed) {
            reader.errors.push(error);
        }
        keys.dir = named;
        Some(keys)
    }
}
