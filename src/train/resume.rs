//! Continuing a run from a checkpoint.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::checkpoints::position;
use super::{Error, Run, Trainer};
use crate::checkpoint::{Checkpoint, CheckpointDir};

/// Where a run begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Resume {
    /// At its first step.
    #[default]
    Never,
    /// At its newest checkpoint, if it has one.
    Newest,
    /// At this checkpoint, or at the newest one in this directory.
    From(PathBuf),
}

impl Resume {
    /// The checkpoint to continue from. `dir` is where the run saves its own.
    ///
    /// # Errors
    /// A checkpoint that cannot be read; the newest one is never passed over.
    pub(super) fn find(&self, dir: Option<&Path>) -> Result<Option<Checkpoint>, Error> {
        match (self, dir) {
            (Self::Never, _) => Ok(None),
            (Self::Newest, None) => Err(Error::NothingToResume),
            (Self::Newest, Some(dir)) => {
                let newest = CheckpointDir::list(dir)?.pop();
                Ok(newest.map(|newest| Checkpoint::open(&newest.path)).transpose()?)
            }
            (Self::From(path), _) => Ok(Some(CheckpointDir::open(path)?)),
        }
    }
}

/// What a difference between two configurations means for a run that is continued.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// The same run, run in another way.
    Same,
    /// Another run from here on.
    Warn,
    /// The state has no meaning in it.
    Refuse,
}

/// Keys, or sections, and what another value means. The first that matches counts; others are warned of.
const MEANINGS: [(&str, Meaning); 20] = [
    ("model.remat", Meaning::Same),
    ("model.scan_layers", Meaning::Same),
    ("model.dropout", Meaning::Warn),
    ("model", Meaning::Refuse),
    ("optimizer.name", Meaning::Refuse),
    ("train.global_batch", Meaning::Refuse),
    ("train.steps_per_launch", Meaning::Same),
    ("train.num_microbatches", Meaning::Same),
    ("train.eval_every", Meaning::Same),
    ("train.check_lockstep_every", Meaning::Same),
    ("train.on_nonfinite", Meaning::Same),
    ("train.steps", Meaning::Same),
    ("train.epochs", Meaning::Same),
    ("train.examples", Meaning::Same),
    ("train.batch_per_replica", Meaning::Same),
    ("mesh", Meaning::Same),
    ("parallel", Meaning::Same),
    ("device", Meaning::Same),
    ("compile", Meaning::Same),
    ("checkpoint", Meaning::Same),
];

/// The keys in which two resolved configurations differ, as `key: OLD -> NEW`, apart from those that are refused.
///
/// # Errors
/// Keys that must not differ.
pub(super) fn compare(saved: &str, resolved: &str) -> Result<Vec<String>, Error> {
    let keys = |text: &str| flat(&text.parse::<Table>().unwrap_or_default());
    let (saved, now) = (keys(saved), keys(resolved));
    let names: std::collections::BTreeSet<_> = saved.keys().chain(now.keys()).collect();
    let (mut shown, mut refused) = (vec![], vec![]);
    for name in names {
        let [old, new] = [&saved, &now].map(|keys| keys.get(name.as_str()));
        if old == new {
            continue;
        }
        let text = |value: Option<&Value>| value.map_or("not set".to_owned(), Value::to_string);
        let difference = format!("{name}: {} -> {}", text(old), text(new));
        let is_of = |key: &str| {
            name == key || name.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'))
        };
        let meaning =
            MEANINGS.iter().find(|(key, _)| is_of(key)).map_or(Meaning::Warn, |row| row.1);
        match meaning {
            Meaning::Same => shown.push(difference),
            Meaning::Warn => {
                shown.push(format!("{difference} (the run is another one from here on)"))
            }
            Meaning::Refuse => refused.push(difference),
        }
    }
    match refused.is_empty() {
        true => Ok(shown),
        false => Err(Error::OtherRun { differences: refused.join("; ") }),
    }
}

/// The keys of a table and the tables inside, as `section.key`.
fn flat(table: &Table) -> std::collections::BTreeMap<String, Value> {
    let mut keys = std::collections::BTreeMap::new();
    for (name, value) in table {
        match value {
            Value::Table(inner) if !inner.is_empty() => {
                keys.extend(
                    flat(inner).into_iter().map(|(key, value)| (format!("{name}.{key}"), value)),
                );
            }
            value => drop(keys.insert(name.clone(), value.clone())),
        }
    }
    keys
}

/// Replaces the state by that of a checkpoint. Returns what to tell the user.
///
/// # Errors
/// A state that does not fit, another position in the data, or a damaged checkpoint.
pub(super) fn restore(
    checkpoint: &Checkpoint,
    run: &Run,
    trainer: &mut Trainer,
) -> Result<String, Error> {
    let saved = checkpoint.run();
    let here = position(saved.step, run.length.steps_per_epoch());
    if (saved.position, saved.global_batch) != (here, run.batch.global_batch()) {
        return Err(Error::OtherRun {
            differences: format!(
                "the checkpoint was made after {} steps of {} examples, at batch {} of epoch {}; here that is batch {} of \
                 epoch {} with {} examples a step. Use the same data and the same global batch",
                saved.step,
                saved.global_batch,
                saved.position.batch,
                saved.position.epoch,
                here.batch,
                here.epoch,
                run.batch.global_batch()
            ),
        });
    }
    trainer.restore(checkpoint)?;
    let how = match saved.program == trainer.program_key() {
        true => "the step is the same program: what follows is bit for bit the run that was saved",
        false => {
            "the step is another program (mesh, options, device or version): what follows is the run that was \
                  saved, up to rounding"
        }
    };
    Ok(format!("resumed after {} steps from {}; {how}", saved.step, checkpoint.path().display()))
}
