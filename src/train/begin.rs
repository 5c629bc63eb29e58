//! Where a run begins, and the directories that it writes into.

use super::checkpoints::{self, Saver};
use super::recorder::Recorder;
use super::resume::{self, Differences};
use super::run_dir::{self, Existing, RunDir};
use super::{Error, Job, Options, Resume, Run, Trainer};
use crate::checkpoint::{self, Checkpoint, CheckpointDir, Location};
use crate::config::{CheckpointConfig, Config};
use crate::observe::say;

/// Where a run begins. The directories that it writes into are locked, but not changed.
pub(super) struct Beginning {
    /// The checkpoint that it continues from.
    pub checkpoint: Option<Checkpoint>,
    /// How its configuration differs from the one in the checkpoint.
    differences: Differences,
    /// Where its checkpoints go.
    place: Option<Location>,
    /// `place`, unless it may be moved aside with a run that is replaced: then it is claimed after that.
    claimed: Option<CheckpointDir>,
    /// `true` if the run continues the one in its directories. Otherwise it is a new one, or a branch of another.
    continues: bool,
}

impl Beginning {
    /// Finds the checkpoint to continue from, and claims the output directory and the directory of the checkpoints.
    /// `resolved` is the configuration.
    ///
    /// # Errors
    /// A checkpoint that cannot be read, another configuration, or a directory that cannot be used.
    pub fn find(
        config: &Config,
        options: &Options,
        resolved: &str,
    ) -> Result<(Self, Option<RunDir>), Error> {
        let out = options.out.as_deref();
        let place = checkpoints::place(&config.checkpoint, out);
        let checkpoint = options.resume.find(place.as_ref())?;
        let differences = match &checkpoint {
            Some(checkpoint) => resume::compare(&checkpoint.run().config, resolved)?,
            None => Differences::default(),
        };
        let is_outside = checkpoints::is_outside(&config.checkpoint);
        let is_its_own = |out| !is_outside || run_dir::may_be_run_of(out, config);
        let continues = checkpoint.as_ref().zip(place.as_ref());
        let continues = continues.is_some_and(|(checkpoint, place)| checkpoint.is_in(place))
            && out.is_none_or(is_its_own);
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
        let dir = out.map(|out| RunDir::claim(out, existing)).transpose()?;
        let claimed = place.as_ref().filter(|_| continues || is_outside);
        let claimed = claimed.map(CheckpointDir::claim).transpose()?;
        Ok((Self { checkpoint, differences, place, claimed, continues }, dir))
    }

    /// Restores the state of the checkpoint, if there is one, and says so.
    ///
    /// # Errors
    /// A state that does not fit, another position in the data, or a damaged checkpoint.
    pub fn restore(&self, run: &Run, trainer: &mut Trainer) -> Result<(), Error> {
        for difference in &self.differences.shown {
            say(&format!("configuration: {difference}"));
        }
        if let Some(checkpoint) = &self.checkpoint {
            say(&resume::restore(checkpoint, self.differences.is_other_run, run, trainer)?);
        }
        Ok(())
    }

    /// Saves the checkpoints of the run from its first step on. Those of later steps are removed. `None` if the run has no
    /// place for them.
    ///
    /// # Errors
    /// A directory that cannot be used.
    pub fn saver(
        self,
        job: &Job<'_>,
        run: &Run,
        trainer: &Trainer,
        resolved: &str,
        recorder: &mut Recorder,
    ) -> Result<Option<Saver>, Error> {
        let Some(place) = self.place else { return Ok(None) };
        let dir = self.claimed.map_or_else(|| CheckpointDir::claim(&place), Ok)?;
        match dir.remove_after(trainer.steps_taken())? {
            0 => {}
            later => recorder
                .say(&format!("removed {later} later checkpoints: those steps are taken again")),
        }
        let saved = self.continues.then_some(trainer.steps_taken());
        Ok(Some(Saver::new(dir, job, run, trainer, resolved, saved)))
    }
}

/// Checks that no other run saves its checkpoints in `place`. Those under the usual name belong to the run in the output
/// directory.
fn check_is_free(place: &Location, config: &Config) -> Result<(), Error> {
    if config.checkpoint.dir.as_os_str() != CheckpointConfig::DIR
        && let Some(newest) = CheckpointDir::list(place)?.pop()
    {
        let newest = newest.location.name().to_owned();
        return Err(checkpoint::Error::Occupied { path: place.clone(), newest }.into());
    }
    Ok(())
}
