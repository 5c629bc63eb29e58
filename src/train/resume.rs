//! Continuing a run from a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use hlo::counted;
use toml::{Table, Value};

use super::checkpoints::position;
use super::{Error, Run, Trainer};
use crate::checkpoint::{Checkpoint, CheckpointDir, Location};

/// Where a run begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Resume {
    /// At its first step.
    #[default]
    Never,
    /// At its newest checkpoint, if it has one.
    Newest,
    /// At this checkpoint, or at the newest one in this directory; a path or a URL.
    From(PathBuf),
}

impl Resume {
    /// The checkpoint to continue from. `dir` is where the run saves its own.
    ///
    /// # Errors
    /// A checkpoint that cannot be read; the newest one is never passed over.
    pub(super) fn find(&self, dir: Option<&Location>) -> Result<Option<Checkpoint>, Error> {
        match (self, dir) {
            (Self::Never, _) => Ok(None),
            (Self::Newest, None) => Err(Error::NothingToResume),
            (Self::Newest, Some(dir)) => {
                let newest = CheckpointDir::list(dir)?.pop();
                Ok(newest.map(|newest| newest.open()).transpose()?)
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
    /// A longer or shorter run, whose rates may differ.
    Length,
    /// Another run from here on.
    Warn,
    /// The state has no meaning in it.
    Refuse,
}

/// Keys, or sections, and what another value means. The first that matches counts; others are warned of.
const MEANINGS: [(&str, Meaning); 21] = [
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
    ("train.steps", Meaning::Length),
    ("train.epochs", Meaning::Length),
    ("train.examples", Meaning::Length),
    ("train.batch_per_replica", Meaning::Same),
    ("mesh", Meaning::Same),
    ("parallel", Meaning::Same),
    ("device", Meaning::Same),
    ("compile", Meaning::Same),
    ("checkpoint", Meaning::Same),
    ("cluster", Meaning::Same),
];

/// How a configuration differs from the one that was saved.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Differences {
    /// What to tell the user, key by key.
    pub shown: Vec<String>,
    /// `true` if steps are computed differently from here on.
    pub is_other_run: bool,
}

impl Differences {
    /// How a resolved configuration differs from that of a checkpoint, if there is one.
    ///
    /// # Errors
    /// Keys that must not differ.
    pub fn of(checkpoint: Option<&Checkpoint>, resolved: &str) -> Result<Self, Error> {
        checkpoint.map_or(Ok(Self::default()), |of| compare(&of.run().config, resolved))
    }
}

/// Compares two resolved configurations.
///
/// # Errors
/// Keys that must not differ.
fn compare(saved: &str, resolved: &str) -> Result<Differences, Error> {
    let keys = |text: &str| flat(&text.parse::<Table>().unwrap_or_default());
    let (saved, now) = (keys(saved), keys(resolved));
    let follows_length = !now.contains_key("schedule.total_steps")
        && now.get("schedule.name").and_then(Value::as_str) != Some("constant");
    let names: BTreeSet<_> = saved.keys().chain(now.keys()).collect();
    let (mut found, mut refused) = (Differences::default(), vec![]);
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
        let row = MEANINGS.iter().find(|(key, _)| is_of(key));
        let note = match row.map_or(Meaning::Warn, |row| row.1) {
            Meaning::Same => "",
            Meaning::Length if !follows_length => "",
            Meaning::Length => {
                " (the learning rates follow it, as schedule.total_steps is not set)"
            }
            Meaning::Warn => " (the run is another one from here on)",
            Meaning::Refuse => {
                refused.push(difference);
                continue;
            }
        };
        found.is_other_run |= !note.is_empty();
        found.shown.push(difference + note);
    }
    match refused.is_empty() {
        true => Ok(found),
        false => Err(Error::OtherRun { differences: refused.join("; ") }),
    }
}

/// The keys of a table and the tables inside, as `section.key`.
fn flat(table: &Table) -> BTreeMap<String, Value> {
    let mut keys = BTreeMap::new();
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
    is_other_run: bool,
    run: &Run,
    trainer: &mut Trainer,
) -> Result<String, Error> {
    let saved = checkpoint.run();
    let here = position(saved.step, run.length.steps_per_epoch());
    if (saved.position, saved.global_batch) != (here, run.batch.global_batch()) {
        return Err(Error::OtherRun {
            differences: format!(
                "the checkpoint was made after {} of {}, at batch {} of epoch {}; here that is batch {} of \
                 epoch {} with {} a step. Use the same data and the same global batch",
                counted(saved.step, "step"),
                counted(saved.global_batch, "example"),
                saved.position.batch,
                saved.position.epoch,
                here.batch,
                here.epoch,
                counted(run.batch.global_batch(), "example")
            ),
        });
    }
    if saved.step > run.length.total_steps() {
        return Err(Error::OtherRun {
            differences: format!(
                "the checkpoint was made after {}, but the configuration asks for {}",
                counted(saved.step, "step"),
                run.length.total_steps()
            ),
        });
    }
    trainer.restore(checkpoint)?;
    let is_same_program = saved.program == trainer.program_key();
    let how = match (is_other_run, is_same_program) {
        (true, _) => "another configuration holds from here on",
        (false, true) => "the same program: what follows is bit for bit the run that was saved",
        (false, false) => {
            "another program (mesh, options, device or version): what follows is the run that was saved, up to rounding"
        }
    };
    let steps = counted(saved.step, "step");
    Ok(format!("resumed after {steps} from {}; {how}", checkpoint.location()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_has_its_meaning() {
        let saved = "[model]\nwidth = 8\nremat = false\n[train]\nsteps = 10\n[schedule]\nname = \"cosine\"\n";
        let of = |from: &str, to: &str| compare(saved, &saved.replace(from, to));
        assert_eq!(of("", "").unwrap(), Differences::default());
        for (from, to, shown, is_other_run) in [
            ("remat = false", "remat = true", "model.remat: false -> true", false),
            (
                "steps = 10",
                "steps = 20",
                "train.steps: 10 -> 20 (the learning rates follow it, as schedule.total_steps is not set)",
                true,
            ),
            (
                "steps = 10\n",
                "steps = 10\nseed = 3\n",
                "train.seed: not set -> 3 (the run is another one from here on)",
                true,
            ),
        ] {
            let expected = Differences { shown: vec![shown.to_owned()], is_other_run };
            assert_eq!(of(from, to).unwrap(), expected);
        }
        let constant = saved.replace("cosine", "constant");
        let longer = compare(&constant, &constant.replace("10", "20")).unwrap();
        assert_eq!((&*longer.shown[0], longer.is_other_run), ("train.steps: 10 -> 20", false));
        let error = of("width = 8", "width = 9").unwrap_err().to_string();
        assert!(error.ends_with("model.width: 8 -> 9"), "{error}");
    }
}
