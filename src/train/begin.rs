//! Where a run begins, and the directories that it writes into.

use std::path::Path;

use hlo::{LeafSpec, Tree, counted};
use serde::{Deserialize, Serialize};

use super::checkpoint_writer::CheckpointWriter;
use super::checkpoints::{self, Saver, run_record};
use super::processes::Processes;
use super::recorder::Recorder;
use super::resume::{self, Differences, Now};
use super::run_dir::{self, Existing, RunDir, RunDirError};
use super::snapshot_source::{MEMORY, MemoryState, newest_in_memory};
use super::snapshots::Snapshots;
use super::{Error, Job, Options, Resume, Run, Trainer};
use crate::checkpoint::{self, Checkpoint, CheckpointDir, DataRecord, Location};
use crate::cluster::SnapshotId;
use crate::config::{CheckpointConfig, Config};

/// Where a run begins. The directories that it writes into are locked, but not changed.
pub(super) struct Beginning {
    /// The checkpoint that it continues from, on disk or in the memory of supervisors.
    pub checkpoint: Option<Checkpoint>,
    /// That of a state in memory.
    memory: Option<SnapshotId>,
    /// How it differs from the run in the checkpoint.
    differences: Differences,
    /// Its data.
    data: DataRecord,
    /// Where its checkpoints go, and the claim to that place, unless it may be moved aside with a
    /// run that is replaced: then it is claimed after that. Only the first process has them.
    place: Option<(Location, Option<CheckpointDir>)>,
    decision: Decision,
}

/// The decision of the first process about the beginning.
#[derive(Clone, Serialize, Deserialize)]
struct Decision {
    /// The checkpoint on disk that the run continues from.
    checkpoint: Option<String>,
    /// It continues from the state in memory instead.
    is_from_memory: bool,
    /// Steps after which its newest checkpoint on disk was saved.
    saved_step: Option<u64>,
    /// `true` if the run continues the one in its directories. Otherwise it is a new one, or a
    /// branch of another.
    continues: bool,
    /// `true` if it saves checkpoints.
    saves: bool,
}

impl Beginning {
    /// [`Self::find`] for one of several processes: the first one decides, and has the directories.
    ///
    /// # Errors
    /// As [`Self::find`], or if the first process is lost.
    pub fn find_among(
        processes: Processes<'_>,
        config: &Config,
        options: &Options,
        now: Now<'_>,
    ) -> Result<(Self, Option<RunDir>), Error> {
        const WHAT: &str = "beginning";
        let access = options.snapshots.as_ref().filter(|_| options.resume == Resume::Newest);
        let memory = newest_in_memory(access, processes)?;
        if processes.is_first() {
            let found = Self::find(config, options, now, memory);
            let (beginning, dir) = found.map_err(|error| after_failures(error, processes))?;
            if let Some(access) = access.filter(|access| access.generation > 1) {
                let step = beginning.checkpoint.as_ref().map_or(0, |from| from.run().step);
                access.forget_after(step);
            }
            processes.decided_by_first(WHAT, || Ok(beginning.decision.clone()))?;
            return Ok((beginning, dir));
        }
        let unreachable = || unreachable!("the first process decides");
        let decision: Decision = processes.decided_by_first(WHAT, unreachable)?;
        let memory = memory.filter(|_| decision.is_from_memory);
        let (checkpoint, memory) = match (memory, &decision.checkpoint) {
            (Some(MemoryState { id, checkpoint }), _) => (Some(checkpoint), Some(id)),
            (None, Some(path)) => (Some(Checkpoint::open(Path::new(path))?), None),
            (None, None) => (None, None),
        };
        let differences = Differences::of(checkpoint.as_ref(), now)?;
        let data = now.data.clone();
        Ok((Self { checkpoint, memory, differences, data, place: None, decision }, None))
    }

    /// Finds the checkpoint to continue from, and claims the output directory and the directory of
    /// the checkpoints.
    ///
    /// # Errors
    /// A checkpoint that cannot be read, another configuration, other data, or a directory that
    /// cannot be used.
    fn find(
        config: &Config,
        options: &Options,
        now: Now<'_>,
        memory: Option<MemoryState>,
    ) -> Result<(Self, Option<RunDir>), Error> {
        let out = options.out.as_deref();
        let place = checkpoints::place(&config.checkpoint, out);
        if options.overwrite || options.resume != Resume::Never {
            let kept = place.as_ref().and_then(|place| match place {
                Location::Path(path) => Some(path.as_path()),
                Location::Url(_) => None,
            });
            let dirs: Vec<&Path> = out.into_iter().chain(kept).collect();
            run_dir::wait_until_free(&dirs, options.patience, &options.stop)?;
        }
        let newest = match &memory {
            None => None,
            Some(_) => place.as_ref().map(CheckpointDir::list).transpose()?,
        };
        let newest = newest.and_then(|all| all.last().map(|newest| newest.step));
        // A checkpoint on disk is used only if it is newer.
        let memory = memory.filter(|state| newest <= Some(state.id.step));
        let (checkpoint, memory) = match memory {
            Some(MemoryState { id, checkpoint }) => (Some(checkpoint), Some(id)),
            None => (options.resume.find(place.as_ref(), config.checkpoint.on_damaged)?, None),
        };
        let is_outside = checkpoints::is_outside(&config.checkpoint);
        let is_its_own = |out| !is_outside || run_dir::may_be_run_of(out, config);
        let continues = checkpoint.as_ref().zip(place.as_ref());
        let continues = memory.is_some()
            || continues.is_some_and(|(checkpoint, place)| checkpoint.is_in(place))
                && out.is_none_or(is_its_own);
        if let (Resume::Newest, false, Some(dir)) = (&options.resume, continues, out) {
            let (dir, differences) = (dir.to_owned(), run_dir::differences(dir, config));
            if !differences.is_empty() {
                return Err(RunDirError::Elsewhere { dir, differences }.into());
            }
        }
        let differences = Differences::of(checkpoint.as_ref(), now)?;
        if let (Some(place), false) = (&place, continues) {
            check_is_free(place, config)?;
        }
        let existing = match (&checkpoint, &options.resume) {
            _ if continues => Existing::Continue,
            (None, Resume::Newest)
                if out.is_none_or(|out| run_dir::has_nothing_saved(out, config)) =>
            {
                Existing::Replace
            }
            _ if options.overwrite => Existing::Replace,
            _ => Existing::Refuse,
        };
        let dir = out.map(|out| match RunDir::claim(out, existing) {
            // `--resume` was given, so it is not what helps.
            Err(RunDirError::Occupied { dir, .. }) if options.resume == Resume::Newest => {
                Err(RunDirError::NoCheckpoint { dir })
            }
            claimed => claimed,
        });
        let dir = dir.transpose()?;
        let claimed = place.as_ref().filter(|_| continues || is_outside);
        let claimed = claimed.map(CheckpointDir::claim).transpose()?;
        let absolute = |checkpoint: &Checkpoint| match checkpoint.location() {
            Location::Path(path) if path.is_relative() => {
                std::path::absolute(path).unwrap_or(path.clone()).to_string_lossy().into_owned()
            }
            location => location.to_string(),
        };
        let on_disk = checkpoint.as_ref().filter(|_| memory.is_none());
        let saved_step = match memory {
            Some(_) => newest,
            None => on_disk.filter(|_| continues).map(|checkpoint| checkpoint.run().step),
        };
        let decision = Decision {
            checkpoint: on_disk.map(absolute),
            is_from_memory: memory.is_some(),
            saved_step,
            continues,
            saves: place.is_some(),
        };
        let place = place.map(|place| (place, claimed));
        let data = now.data.clone();
        Ok((Self { checkpoint, memory, differences, data, place, decision }, dir))
    }

    /// Says how the run differs from the one that it continues. Before it is compiled, which takes
    /// long.
    pub fn say_differences(&self, processes: Processes<'_>) {
        for difference in &self.differences.shown {
            processes.say(&format!("configuration: {difference}"));
        }
        self.differences.notes.iter().for_each(|note| processes.say(note));
    }

    /// Checks that the run, with these leaves of its state, can continue from the checkpoint, if
    /// there is one.
    ///
    /// # Errors
    /// A state that does not fit, or another position in the data.
    pub fn check(&self, run: &Run, leaves: &Tree<LeafSpec>) -> Result<(), Error> {
        let check = |checkpoint| resume::check(checkpoint, &self.differences, run, leaves);
        self.checkpoint.as_ref().map_or(Ok(()), check)
    }

    /// Restores the state of the checkpoint, if there is one, and says so.
    ///
    /// # Errors
    /// A damaged checkpoint.
    pub fn restore(&self, processes: Processes<'_>, trainer: &mut Trainer) -> Result<(), Error> {
        if let Some(checkpoint) = &self.checkpoint {
            let restored = resume::restore(checkpoint, &self.differences, trainer);
            let restored = restored.map_err(|error| match self.memory {
                // The next attempt takes another state.
                Some(_) => Error::OtherProcess { reason: format!("the state in memory: {error}") },
                None => error,
            })?;
            processes.say(&restored);
        }
        Ok(())
    }

    /// `memory` or `checkpoint`, where the state comes from, or `start`.
    pub fn state_from(&self) -> &'static str {
        match (self.memory, &self.checkpoint) {
            (Some(_), _) => MEMORY,
            (None, Some(_)) => "checkpoint",
            (None, None) => "start",
        }
    }

    /// Takes snapshots of the run from its first step on, if it goes on by itself after a failure.
    pub fn snapshots(
        &self,
        (job, options): (&Job<'_>, &Options),
        run: &Run,
        trainer: &Trainer,
        resolved: &str,
    ) -> Option<Snapshots> {
        let access = options.snapshots.as_ref().filter(|_| options.resume == Resume::Newest);
        let record = run_record(job, run, trainer, (resolved, self.data.clone()));
        Snapshots::new(
            access,
            job.config.checkpoint.snapshot_every_steps,
            (record, run.length.steps_per_epoch()),
            self.memory,
            trainer.steps_taken(),
        )
    }

    /// Saves the checkpoints of the run from its first step on. Those of later steps are removed.
    /// `None` if the run has no place for them.
    ///
    /// # Errors
    /// A directory that cannot be used.
    pub fn saver(
        self,
        (job, processes): (&Job<'_>, Processes<'_>),
        run: &Run,
        trainer: &Trainer,
        resolved: &str,
        recorder: &mut Recorder,
    ) -> Result<Option<Saver>, Error> {
        if !self.decision.saves {
            return Ok(None);
        }
        let shards = match (self.place, processes.member()) {
            (Some((place, claimed)), _) => {
                let dir = claimed.map_or_else(|| CheckpointDir::claim(&place), Ok)?;
                match dir.remove_after(trainer.steps_taken())? {
                    0 => {}
                    later => recorder.say(&format!(
                        "removed {}: those steps are taken again",
                        counted(later, "later checkpoint")
                    )),
                }
                CheckpointWriter::of_first(dir, processes)
            }
            (None, Some(member)) => CheckpointWriter::Other {
                session: member.session().clone(),
                process_index: processes.this().index,
            },
            (None, None) => return Ok(None),
        };
        let record = run_record(job, run, trainer, (resolved, self.data));
        let mut saver = Saver::new(shards, job, run, (record, self.decision.saved_step));
        // A branch of another run has no checkpoint of its own yet.
        saver.saves_first = trainer.steps_taken() > 0 && !self.decision.continues;
        Ok(Some(saver))
    }
}

/// If this is another attempt at a job, the run in the directory is that of an attempt before, and
/// what ended that comes first.
fn after_failures(error: Error, processes: Processes<'_>) -> Error {
    match (error, processes.failed_generations().into_iter().next()) {
        (Error::RunDir(RunDirError::Occupied { dir, .. }), Some(first)) => {
            Error::NotResumed { generation: first.generation, reason: first.reason, dir }
        }
        (error, _) => error,
    }
}

/// Checks that no other run saves its checkpoints in `place`. Those under the usual name belong to
/// the run in the output directory.
fn check_is_free(place: &Location, config: &Config) -> Result<(), Error> {
    if config.checkpoint.dir.as_os_str() != CheckpointConfig::DIR
        && let Some(newest) = CheckpointDir::list(place)?.pop()
    {
        let newest = newest.location.name().to_owned();
        return Err(checkpoint::Error::Occupied { path: place.clone(), newest }.into());
    }
    Ok(())
}
