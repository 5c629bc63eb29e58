//! The meaning of a path that names checkpoints: one of them, a directory of them, or a run.

use std::path::Path;

use hlo::counted;

use super::Error;
use super::run_dir::{CONFIG_FILE, MAX_CONFIG};
use crate::checkpoint::{self, Checkpoint, CheckpointDir, Location, Manifest, StoredCheckpoint};
use crate::config::{CheckpointConfig, OnDamaged, read_regular};
use crate::observe::say;

/// Where the checkpoints are that a path or URL leads to: the `--out` of a run leads to those of
/// the run, wherever its `checkpoint.dir` has them. Anything else leads to itself.
pub fn checkpoint_place(path: &Path) -> Location {
    let place = Location::from(path);
    let Location::Path(dir) = &place else { return place };
    let is_run = dir.join(CONFIG_FILE).is_file() || dir.join(CheckpointConfig::DIR).is_dir();
    match is_run && !dir.join(Manifest::FILE).exists() {
        true => checkpoints_of_run(dir),
        false => place,
    }
}

/// Where the run in an output directory keeps its checkpoints.
pub(super) fn checkpoints_of_run(dir: &Path) -> Location {
    let text = read_regular(&dir.join(CONFIG_FILE), MAX_CONFIG).unwrap_or_default();
    let keys: toml::Table = String::from_utf8_lossy(&text).parse().unwrap_or_default();
    let place = keys.get("checkpoint").and_then(|section| section.get("dir")?.as_str());
    match Location::from(place.unwrap_or(CheckpointConfig::DIR)) {
        Location::Path(place) => Location::Path(dir.join(place)),
        url => url,
    }
}

/// The newest of the checkpoints that a path or URL leads to, see [`checkpoint_place`]. A message
/// names those that are passed over.
///
/// # Errors
/// No checkpoint, or one that cannot be read or is damaged.
pub fn newest_checkpoint(path: &Path) -> Result<Checkpoint, Error> {
    let place = checkpoint_place(path);
    warn_of_incomplete(&place)?;
    Ok(CheckpointDir::open(place)?)
}

/// The newest of a run's own checkpoints, or, if that may be passed over, the newest that is whole.
///
/// # Errors
/// One that cannot be read, or is damaged. If all are, that of the newest.
pub(super) fn newest_own(
    place: &Location,
    on_damaged: OnDamaged,
) -> Result<Option<Checkpoint>, checkpoint::Error> {
    warn_of_incomplete(place)?;
    let all = CheckpointDir::list(place)?;
    let Some((newest, _)) = all.split_last().filter(|_| on_damaged == OnDamaged::Previous) else {
        return all.last().map(StoredCheckpoint::open).transpose();
    };
    let mut first = None;
    for stored in all.iter().rev() {
        let checked = stored.open().and_then(|found| found.verify().map(|()| found));
        let error = match checked {
            Ok(found) => {
                if let Some(error) = first {
                    say(&format!(
                        "warning: {error}; checkpoint.on_damaged is \"previous\": the run continues \
                         from {}, and takes {} again",
                        stored.location.name(),
                        counted(newest.step - stored.step, "step")
                    ));
                }
                return Ok(Some(found));
            }
            Err(error @ checkpoint::Error::Damaged { .. }) => error,
            Err(error) => return Err(error),
        };
        first.get_or_insert(error);
    }
    first.map_or(Ok(None), Err)
}

/// Warns of checkpoints without a manifest that are newer than the newest one that can be used: it
/// is not the run's last.
///
/// # Errors
/// A place that cannot be read; no other checkpoint, so that the run would begin again without a
/// word.
pub(super) fn warn_of_incomplete(place: &Location) -> Result<(), checkpoint::Error> {
    let newest = CheckpointDir::list(place)?.pop();
    let incomplete = CheckpointDir::incomplete(place)?;
    let is_newer = |step| newest.as_ref().is_none_or(|newest| newest.step < step);
    let newer: Vec<_> = incomplete.into_iter().filter(|found| is_newer(found.step)).collect();
    for found in &newer {
        let location = found.location.clone();
        match (&newest, place) {
            // In a store it is what a save leaves that was cut off.
            (_, Location::Url(_)) => {
                say(&format!(
                    "{location} is passed over: it has no manifest.json, so its save did not finish"
                ));
            }
            (Some(newest), _) => say(&format!(
                "warning: {location} is passed over: it has no manifest.json, which a save writes \
                 last; {} is used",
                newest.location.name()
            )),
            (None, _) => return Err(checkpoint::Error::Incomplete { path: location }),
        }
    }
    Ok(())
}
