//! Saving checkpoints during a run, in the background.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use hlo::counted;

use super::checkpoint_writer::CheckpointWriter;
use super::processes::Processes;
use super::progress_record::progress_to_json;
use super::recorder::Recorder;
use super::{Error, Job, Run, Trainer};
use crate::checkpoint::{self, DataPosition, DataRecord, HostLeaf, HostPiece, Location, RunRecord};
use crate::config::{CheckpointConfig, MeshConfig};
use crate::observe::SavedCheckpoint;
use crate::state::State;

/// The place of a run's checkpoints: a relative directory is in the output directory. `None`
/// without one, and if none are to be kept.
pub(super) fn place(config: &CheckpointConfig, out: Option<&Path>) -> Option<Location> {
    match (config.keep, is_outside(config), out) {
        (0, ..) => None,
        (_, true, _) => Some(Location::from(&config.dir)),
        (_, false, out) => out.map(|out| Location::Path(out.join(&config.dir))),
    }
}

/// `true` if the checkpoints of a run are not in its output directory.
pub(super) fn is_outside(config: &CheckpointConfig) -> bool {
    config.dir.is_absolute() || matches!(Location::from(&config.dir), Location::Url(_))
}

/// Saves the state of a run. One save is in flight at most; the loop waits only for the copy of the
/// state.
pub(super) struct Saver {
    shards: CheckpointWriter,
    every: Option<Duration>,
    keep: usize,
    keep_every: u64,
    keep_best: bool,
    /// One is saved before the first step.
    pub saves_first: bool,
    /// The record of the run in all of its checkpoints.
    run: RunRecord,
    steps_per_epoch: Option<u64>,
    in_flight: Option<JoinHandle<Result<SavedCheckpoint, checkpoint::Error>>>,
    /// When the last save began, or the run.
    last: Instant,
    /// The steps after which the last checkpoint was saved, if the run has one.
    last_step: Option<u64>,
}

impl Saver {
    /// A saver for a run with this record. The run's newest checkpoint is after `last_step` steps.
    pub fn new(
        shards: CheckpointWriter,
        job: &Job<'_>,
        run: &Run,
        (record, last_step): (RunRecord, Option<u64>),
    ) -> Self {
        let config = &job.config.checkpoint;
        Self {
            shards,
            every: (config.every_secs > 0).then(|| Duration::from_secs(config.every_secs)),
            keep: config.keep,
            keep_every: config.keep_every,
            keep_best: config.keep_best,
            saves_first: false,
            run: record,
            steps_per_epoch: run.length.steps_per_epoch(),
            in_flight: None,
            last: Instant::now(),
            last_step,
        }
    }

    /// `true` if the time for another checkpoint has come after `step` steps. Where several
    /// processes save, it is skipped while the one before is still being written: they agree on a
    /// later step for it, and must all save there.
    pub fn is_due(&mut self, step: u64, recorder: &mut Recorder) -> bool {
        let is_due = self.every.is_some_and(|every| self.last.elapsed() >= every);
        let skips = is_due && self.shards.has_others() && self.is_busy();
        if skips {
            self.skip(step, recorder);
        }
        is_due && !skips
    }

    fn is_busy(&self) -> bool {
        self.in_flight.as_ref().is_some_and(|save| !save.is_finished())
    }

    fn skip(&mut self, step: u64, recorder: &mut Recorder) {
        self.last = Instant::now();
        recorder.say(&format!(
            "the checkpoint after {} is skipped: the one before is still being written",
            counted(step, "step")
        ));
    }

    /// Copies the state and starts to save it, unless it is saved already. A save that is still in
    /// flight is waited for if `must_save`, or if this one is kept for good; otherwise this one is
    /// skipped.
    ///
    /// # Errors
    /// If the state cannot be copied, or another process is lost.
    pub fn save(
        &mut self,
        processes: Processes<'_>,
        trainer: &Trainer,
        recorder: &mut Recorder,
        must_save: bool,
    ) -> Result<(), Error> {
        let step = trainer.steps_taken();
        if self.last_step == Some(step) {
            return Ok(());
        }
        // All processes save, or none: the first one decides, whose save ends after all others.
        if !must_save
            && !is_multiple(step, self.keep_every)
            && processes.gather("checkpoint/skips", self.is_busy())?.first() == Some(&true)
        {
            self.skip(step, recorder);
            return Ok(());
        }
        let begun = Instant::now();
        if let Err(error) = self.finish(recorder) {
            recorder.say(&format!("error: {error}"));
        }
        let leaves = copy_to_host(trainer.state())?;
        let waited = begun.elapsed();
        let progress = recorder.progress().run();
        let saved_at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let run = RunRecord {
            step,
            position: position(step, self.steps_per_epoch),
            progress: progress_to_json(progress),
            saved_at: saved_at.map_or(0.0, |time| time.as_secs_f64()),
            ..self.run.clone()
        };
        let best = progress.best_eval.as_ref().filter(|_| self.keep_best);
        let best = best.map(|best| best.step + 1);
        let (shards, keep, keep_every) = (self.shards.clone(), self.keep, self.keep_every);
        let is_kept = move |step| is_multiple(step, keep_every) || Some(step) == best;
        let flush = recorder.flush_later();
        let write = move || {
            let copied = Instant::now();
            // A run that continues from here has the metrics of all steps before.
            for flush in flush {
                // The sink reports it itself.
                let _ = flush();
            }
            shards.save(&leaves, run)?;
            shards.retain(keep, is_kept)?;
            Ok(SavedCheckpoint { num_steps: step, begun, waited, written: copied.elapsed() })
        };
        let thread = thread::Builder::new().name("checkpoint".to_owned()).spawn(write);
        self.in_flight =
            Some(thread.map_err(|source| Error::Thread { what: "saves checkpoints", source })?);
        (self.last, self.last_step) = (Instant::now(), Some(step));
        Ok(())
    }

    /// Waits for the save in flight.
    ///
    /// # Errors
    /// If it failed.
    pub fn finish(&mut self, recorder: &mut Recorder) -> Result<(), Error> {
        let Some(save) = self.in_flight.take() else { return Ok(()) };
        let saved = save.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        recorder.checkpoint_saved(saved?);
        Ok(())
    }
}

/// What all checkpoints and snapshots of a run say about it.
pub(super) fn run_record(
    job: &Job<'_>,
    run: &Run,
    trainer: &Trainer,
    (resolved, data): (&str, DataRecord),
) -> RunRecord {
    let mesh = MeshConfig::AXES.map(|axis| (axis.name().to_owned(), run.plan.mesh.size(axis)));
    let device = trainer.client().devices().first().map(|device| device.kind.clone());
    RunRecord {
        global_batch: run.batch.global_batch(),
        seed: job.config.train.seed,
        mesh: BTreeMap::from(mesh),
        num_replicas: run.plan.mesh.num_replicas(),
        num_processes: trainer.num_processes(),
        config: resolved.to_owned(),
        data: Some(data),
        program: trainer.program_key().to_owned(),
        backend: job.config.device.backend.to_string(),
        device: device.unwrap_or_default(),
        lockstep: env!("CARGO_PKG_VERSION").to_owned(),
        ..RunRecord::default()
    }
}

/// `true` if a checkpoint after `step` steps is kept for good; `every` is 0 if none are.
fn is_multiple(step: u64, every: u64) -> bool {
    every > 0 && step.is_multiple_of(every)
}

/// Where the step after `step` steps reads the data.
pub(super) fn position(step: u64, steps_per_epoch: Option<u64>) -> DataPosition {
    let per_epoch = steps_per_epoch.unwrap_or(u64::MAX).max(1);
    DataPosition { epoch: step / per_epoch, batch: step % per_epoch }
}

/// Copies what this process holds of the state.
pub(super) fn copy_to_host(state: &State) -> Result<Vec<HostLeaf>, Error> {
    let start = |path: &str| Ok((path.to_owned(), state.pieces(path)?));
    let pending: Vec<_> = state.specs().paths().map(start).collect::<Result<_, Error>>()?;
    let wait = |(path, pieces): (String, crate::state::PendingPieces)| {
        let pieces = pieces.wait()?.into_iter();
        let pieces = pieces.map(|(start, values)| HostPiece { start, values }).collect();
        Ok(HostLeaf { spec: state.specs()[&path].clone(), path, pieces })
    };
    pending.into_iter().map(wait).collect()
}
