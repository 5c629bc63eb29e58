//! Continuing a run from a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use hlo::{LeafSpec, Tree, counted};
use toml::{Table, Value};

use super::checkpoint_place::{newest_checkpoint, newest_own};
use super::checkpoints::position;
use super::data_record::DataChange;
use super::snapshot_source::MEMORY;
use super::{Error, Run, Trainer};
use crate::checkpoint::{self, Checkpoint, DataRecord, Location, RunRecord, SplitRecord};
use crate::config::{Length, OnDamaged, OnResume, RunLength, on_resume};

/// Where a run begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Resume {
    /// At its first step.
    #[default]
    Never,
    /// At its newest checkpoint, if it has one.
    Newest,
    /// At this checkpoint, or at the newest one in this directory or of the run in it; a path or a
    /// URL.
    From(PathBuf),
}

impl Resume {
    /// The checkpoint to continue from. `dir` is where the run saves its own.
    ///
    /// # Errors
    /// A checkpoint that cannot be read; the newest one is never passed over without a word.
    pub(super) fn find(
        &self,
        dir: Option<&Location>,
        on_damaged: OnDamaged,
    ) -> Result<Option<Checkpoint>, Error> {
        match (self, dir) {
            (Self::Never, _) => Ok(None),
            (Self::Newest, None) => Err(Error::NothingToResume),
            (Self::Newest, Some(dir)) => Ok(newest_own(dir, on_damaged)?),
            (Self::From(path), _) => newest_checkpoint(path).map(Some),
        }
    }
}

/// The number of training examples, which the data must have.
const NUM_EXAMPLES: &str = "data.num_examples";

/// A run as it is now: its resolved configuration, and its data.
#[derive(Clone, Copy)]
pub(super) struct Now<'a> {
    pub resolved: &'a str,
    pub data: &'a DataRecord,
}

/// How a run differs from the one that was saved.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Differences {
    /// Messages for the user, key by key.
    pub shown: Vec<String>,
    /// Lines about the data for the user; some begin with `warning: `.
    pub notes: Vec<String>,
    /// `true` if steps are computed differently from here on.
    pub is_other_run: bool,
    /// `true` if the training data are others, on purpose.
    has_other_data: bool,
    /// `true` if nothing says whether the training data are the same.
    has_unknown_data: bool,
    /// `true` if evaluations are of other data.
    has_other_eval: bool,
    /// Keys that determine which leaves the state has, and in which dtype.
    of_state: Vec<String>,
}

impl Differences {
    /// How a run differs from that of a checkpoint, if there is one.
    ///
    /// # Errors
    /// Keys that must not differ; other data, if no key of the data differs.
    pub fn of(checkpoint: Option<&Checkpoint>, now: Now<'_>) -> Result<Self, Error> {
        checkpoint.map_or(Ok(Self::default()), |of| compare(of.run(), now))
    }
}

/// Compares what was saved with what is now.
///
/// # Errors
/// As [`Differences::of`].
fn compare(saved: &RunRecord, now: Now<'_>) -> Result<Differences, Error> {
    let Now { resolved, data } = now;
    let record = saved.data.as_ref();
    let train = DataChange::of(record.map(|data| &data.train), &data.train);
    let eval = DataChange::of(record.map(|data| &data.eval), &data.eval);
    let has_same_data = (train, eval) == (DataChange::None, DataChange::None);
    let keys = |text: &str| flat(&text.parse::<Table>().unwrap_or_default());
    let (old_keys, new_keys) = (keys(&saved.config), keys(resolved));
    let has_same_length = has_same_length(saved, now);
    let follows_length = !new_keys.contains_key("schedule.total_steps")
        && new_keys.get("schedule.name").and_then(Value::as_str) != Some("constant");
    let names: BTreeSet<_> = old_keys.keys().chain(new_keys.keys()).collect();
    let (mut found, mut refused, mut names_data) = (Differences::default(), vec![], false);
    for name in names {
        let [old, new] = [&old_keys, &new_keys].map(|keys| keys.get(name.as_str()));
        if old == new {
            continue;
        }
        let text = |value: Option<&Value>| value.map_or("not set".to_owned(), Value::to_string);
        let difference = format!("{name}: {} -> {}", text(old), text(new));
        let is_of = |key: &str| {
            name == key || name.strip_prefix(key).is_some_and(|rest| rest.starts_with('.'))
        };
        // The seed determines synthetic data. Labels may have been taken from the data.
        names_data |= is_of("data") && !is_of("data.labels") || is_of("train.seed");
        if alters_leaves(name, old, new) {
            found.of_state.push(difference.clone());
        }
        let note = match on_resume(name) {
            OnResume::Same => "",
            OnResume::Place if has_same_data => "",
            // In the other way the number of replicas decides, see `check`.
            OnResume::Batch if old.is_none() || new.is_none() => "",
            OnResume::Batch if name.ends_with("per_replica") => "",
            OnResume::Length if has_same_length || !follows_length => "",
            OnResume::Length => {
                " (the learning rates follow it, as schedule.total_steps is not set)"
            }
            OnResume::Place | OnResume::Warn => " (the run is another one from here on)",
            OnResume::Batch | OnResume::Refuse => {
                refused.push(difference);
                continue;
            }
        };
        found.is_other_run |= !note.is_empty();
        found.shown.push(difference + note);
    }
    if !refused.is_empty() {
        return Err(Error::OtherRun { differences: refused.join("; ") });
    }
    let train = match (train, record) {
        (DataChange::Other, Some(record)) if !names_data => {
            return Err(other_data(&record.train, &data.train, &new_keys));
        }
        (train, _) => train,
    };
    found.has_other_data = train == DataChange::Other;
    found.has_unknown_data = train == DataChange::Unknown;
    found.has_other_eval = eval == DataChange::Other;
    found.is_other_run |= found.has_other_data;
    found.notes = notes_of_data(train, eval, record, data);
    Ok(found)
}

/// Training data that are not those of the run, although no key says so.
fn other_data(before: &SplitRecord, now: &SplitRecord, keys: &BTreeMap<String, Value>) -> Error {
    let path = keys.get("data.path").and_then(Value::as_str);
    Error::OtherData {
        source_name: path.unwrap_or("the data source").to_owned(),
        now: now.num_examples,
        before: before.num_examples,
        key: match keys.contains_key(NUM_EXAMPLES) {
            true => format!("leave {NUM_EXAMPLES} out"),
            false => format!("set {NUM_EXAMPLES} = {}", now.num_examples),
        },
    }
}

/// Messages about the data for the user.
fn notes_of_data(
    train: DataChange,
    eval: DataChange,
    saved: Option<&DataRecord>,
    now: &DataRecord,
) -> Vec<String> {
    let Some(saved) = saved else {
        let note = "the version that saved the checkpoint did not record its data, so they are not \
                    compared";
        return vec![note.to_owned()];
    };
    let mut notes = vec![];
    match train {
        DataChange::None => {}
        DataChange::Unknown => notes.push(format!(
            "the data have no fingerprint: only the number of examples, {}, was compared",
            now.train.num_examples
        )),
        DataChange::Other => notes.push(format!(
            "warning: the training data are not those of the checkpoint ({}); the run is another \
             one from here on",
            counts(&saved.train, &now.train)
        )),
    }
    if eval == DataChange::Other {
        notes.push(format!(
            "warning: the evaluation data are not those of the checkpoint ({}): evaluations before \
             and after it cannot be compared",
            counts(&saved.eval, &now.eval)
        ));
    }
    notes
}

/// The numbers of examples.
fn counts(before: &SplitRecord, now: &SplitRecord) -> String {
    match (before.num_examples, now.num_examples) {
        (before, now) if before == now => format!("{now} examples then and now, but others"),
        (before, now) => format!("{before} examples then, {now} now"),
    }
}

/// `true` if both configurations make the same number of steps of the same batch, however they say
/// it.
fn has_same_length(saved: &RunRecord, now: Now<'_>) -> bool {
    let num_examples = usize::try_from(now.data.train.num_examples).ok();
    let total = |text: &str| {
        let keys: Table = text.parse().ok()?;
        let number = |key: &str| keys.get("train")?.get(key)?.as_integer()?.try_into().ok();
        let length = number("steps").map(Length::Steps);
        let length = length.or_else(|| number("epochs").map(Length::Epochs));
        let length = length.or_else(|| number("examples").map(Length::Examples))?;
        Some(RunLength::new(length, num_examples, saved.global_batch).ok()?.total_steps())
    };
    total(&saved.config).is_some_and(|steps| total(now.resolved) == Some(steps))
}

/// `true` if another value of a key may change which leaves the state has, or their dtypes.
fn alters_leaves(name: &str, old: Option<&Value>, new: Option<&Value>) -> bool {
    let is_zero = |value: Option<&Value>| value.and_then(Value::as_float) == Some(0.0);
    match name {
        "optimizer.ema_decay" => old.is_none() != new.is_none(),
        "optimizer.momentum" => is_zero(old) != is_zero(new),
        "optimizer.freeze" | "train.precision" => true,
        _ => false,
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

/// Checks that a checkpoint can be continued, before anything is compiled. `leaves` are those of
/// the run.
///
/// # Errors
/// Another batch, another position in the data, more steps than the run has, or a state that does
/// not fit.
pub(super) fn check(
    checkpoint: &Checkpoint,
    differences: &Differences,
    run: &Run,
    leaves: &Tree<LeafSpec>,
) -> Result<(), Error> {
    let saved = checkpoint.run();
    let other_run = |differences| Err(Error::OtherRun { differences });
    let here = position(saved.step, run.length.steps_per_epoch());
    let is_other_batch = saved.global_batch != run.batch.global_batch();
    if is_other_batch || saved.position != here && !differences.has_other_data {
        return other_run(format!(
            "the checkpoint was made after {} of {}, at batch {} of epoch {}; here that is batch \
             {} of epoch {} with {} a step. Use the same data and the same global batch",
            counted(saved.step, "step"),
            counted(saved.global_batch, "example"),
            saved.position.batch,
            saved.position.epoch,
            here.batch,
            here.epoch,
            counted(run.batch.global_batch(), "example")
        ));
    }
    if saved.step > run.length.total_steps() {
        return other_run(format!(
            "the checkpoint was made after {}, but the configuration asks for {}",
            counted(saved.step, "step"),
            run.length.total_steps()
        ));
    }
    match checkpoint.check_fits(leaves) {
        Err(misfit @ checkpoint::Error::Misfit { .. }) if !differences.of_state.is_empty() => {
            other_run(format!("{} ({misfit})", differences.of_state.join("; ")))
        }
        fits => Ok(fits?),
    }
}

/// Replaces the state by that of a checkpoint. Returns what to tell the user.
///
/// # Errors
/// A state that does not fit, or a damaged checkpoint.
pub(super) fn restore(
    checkpoint: &Checkpoint,
    differences: &Differences,
    trainer: &mut Trainer,
) -> Result<String, Error> {
    let saved = checkpoint.run();
    trainer.restore(checkpoint)?;
    let is_same_program = saved.program == trainer.program_key();
    let how = match (differences.is_other_run, is_same_program) {
        (true, _) => "another configuration holds from here on",
        (false, _) if differences.has_unknown_data => {
            "what follows is the run that was saved only if the training data are those that it \
             had, which nothing here shows"
        }
        (false, true) if !trainer.repeats_bits() => {
            "the same program: what follows is the run that was saved, up to rounding, which on \
             this backend differs from run to run; with compile.deterministic = true from the \
             start it does not"
        }
        (false, true) if differences.has_other_eval => {
            "the same program: what follows is bit for bit the run that was saved, but for \
             evaluations"
        }
        (false, true) => "the same program: what follows is bit for bit the run that was saved",
        (false, false) => {
            "another program (mesh, options, device or version): what follows is the run that was \
             saved, up to rounding"
        }
    };
    let steps = counted(saved.step, "step");
    if *checkpoint.location() == Location::from(Path::new(MEMORY)) {
        return Ok(format!("continues from memory after {steps}; {how}"));
    }
    Ok(format!("resumed after {steps} from {}; {how}", checkpoint.location()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = "[model]\nwidth = 8\nremat = false\n[data]\npath = \"/a\"\n[train]\n\
                         steps = 10\nglobal_batch = 4\n[schedule]\nname = \"cosine\"\n";

    fn data(num_examples: u64, fingerprint: &str) -> DataRecord {
        let fingerprint = Some(fingerprint.to_owned());
        let split = SplitRecord { num_examples, fingerprint };
        DataRecord { train: split.clone(), eval: split }
    }

    /// Compares a configuration, after changes to it, and data with what was saved.
    fn of(changes: &[(&str, &str)], now: &DataRecord) -> Result<Differences, String> {
        let record = RunRecord {
            config: SAVED.to_owned(),
            global_batch: 4,
            data: Some(data(40, "a")),
            ..RunRecord::default()
        };
        let change = |text: String, (from, to): &(&str, &str)| text.replace(from, to);
        let resolved = changes.iter().fold(SAVED.to_owned(), change);
        let now = Now { resolved: &resolved, data: now };
        compare(&record, now).map_err(|error| error.to_string())
    }

    #[test]
    fn every_difference_has_its_meaning() {
        let same = data(40, "a");
        assert_eq!(of(&[], &same).unwrap(), Differences::default());
        for (from, to, shown, is_other_run) in [
            ("remat = false", "remat = true", "model.remat: false -> true", false),
            (
                "steps = 10",
                "steps = 20",
                "train.steps: 10 -> 20 (the learning rates follow it, as schedule.total_steps is \
                 not set)",
                true,
            ),
            (
                "steps = 10\n",
                "steps = 10\nseed = 3\n",
                "train.seed: not set -> 3 (the run is another one from here on)",
                true,
            ),
            ("\"/a\"", "\"/b\"", "data.path: \"/a\" -> \"/b\"", false),
        ] {
            let found = of(&[(from, to)], &same).unwrap();
            assert_eq!(
                (&found.shown[..], found.is_other_run),
                (&[shown.to_owned()][..], is_other_run)
            );
        }
        let constant = ("cosine", "constant");
        let longer = of(&[constant, ("= 10", "= 20")], &same).unwrap();
        assert!(longer.shown.contains(&"train.steps: 10 -> 20".to_owned()), "{longer:?}");
        let error = of(&[("width = 8", "width = 9")], &same).unwrap_err();
        assert!(error.ends_with("model.width: 8 -> 9"), "{error}");
    }

    /// The batch is compared when the number of replicas is known.
    #[test]
    fn other_keys_for_the_same_batch_and_length_are_no_difference() {
        let same = data(40, "a");
        for changes in [("global_batch = 4", "batch_per_replica = 2"), ("steps = 10", "epochs = 1")]
        {
            let found = of(&[changes], &same).unwrap();
            assert!(!found.is_other_run && found.shown.len() == 2, "{found:?}");
        }
        let error = of(&[("global_batch = 4", "global_batch = 8")], &same).unwrap_err();
        assert!(error.contains("train.global_batch: 4 -> 8"), "{error}");
        assert!(of(&[("steps = 10", "epochs = 2")], &same).unwrap().is_other_run);
    }

    #[test]
    fn other_data_are_refused_unless_a_key_of_the_data_says_so() {
        for (now, expected) in [
            (data(41, "b"), "/a has 41 training examples, but 40 when the checkpoint was saved"),
            (
                data(40, "b"),
                "/a has 40 training examples, as many as when the checkpoint was saved, but others",
            ),
        ] {
            let error = of(&[], &now).unwrap_err();
            assert!(error.contains(expected), "{error}");
            let advice = format!("set data.num_examples = {}", now.train.num_examples);
            assert!(error.contains(&advice), "{error}");
            let key = format!("[data]\nnum_examples = {}", now.train.num_examples);
            // Labels that follow from the data are not said by anybody.
            of(&[("[data]", "[data]\nlabels = [\"a\"]")], &now).unwrap_err();
            let found = of(&[("[data]", &key)], &now).unwrap();
            assert!(found.has_other_data && found.is_other_run);
            assert!(found.notes[0].starts_with("warning: the training data"), "{found:?}");
        }
        // Other evaluation data change no step.
        let now = DataRecord { eval: data(7, "c").eval, ..data(40, "a") };
        let found = of(&[], &now).unwrap();
        assert!(found.has_other_eval && !found.is_other_run, "{found:?}");
        assert!(found.notes[0].starts_with("warning: the evaluation data"), "{found:?}");
    }

    #[test]
    fn checkpoints_without_a_record_of_the_data_are_continued_with_a_note() {
        let saved = RunRecord { config: SAVED.to_owned(), ..RunRecord::default() };
        let found = compare(&saved, Now { resolved: SAVED, data: &data(40, "a") }).unwrap();
        assert!(!found.is_other_run);
        assert!(found.notes[0].contains("did not record its data"), "{found:?}");
    }
}
