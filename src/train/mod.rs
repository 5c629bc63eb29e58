//! Training: from a configuration to compiled programs and a state on devices, through the loop ([`train`]), to the
//! files that a run leaves. Belongs to the run phase.

mod bench;
mod checkpoints;
mod error;
mod evaluate;
mod events;
mod launches;
mod r#loop;
mod nonfinite;
pub mod params_file;
pub mod profile;
mod programs;
mod proof;
mod recorder;
mod report;
mod resume;
mod run;
mod run_dir;
mod setup;
mod stop;
mod trainer;

use std::path::PathBuf;
use std::time::Instant;

use models::Model;

use crate::checkpoint::{self, CheckpointDir};
use crate::config::{CheckpointConfig, Config};
use crate::data::Splits;
use crate::observe::{StartupSpans, Summary, say};
use crate::pjrt::Client;
use checkpoints::Saver;
use r#loop::{End, Loop};
use recorder::Recorder;
use resume::Differences;
use run_dir::{Existing, RunDir};

pub use crate::observe::EvalResult;
pub use bench::{BenchOptions, BenchResult, StepParts, bench};
pub use error::Error;
pub use launches::launches;
pub use programs::{Callable, CompileSettings, NamedLaunch, Programs};
pub use report::{describe_batch, describe_synchronisation, list_collectives, list_sharding};
pub use resume::Resume;
pub use run::Run;
pub use run_dir::RunDirError;
pub use setup::{mesh_on_host, open_devices, platform_on_host};
pub use stop::Stop;
pub use trainer::{BatchSender, DeviceBatch, PendingSteps, StepResult, Trainer};

/// What to train, and on which data.
pub struct Job<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The model.
    pub model: &'a dyn Model,
    /// The data.
    pub splits: &'a Splits,
}

/// How a run starts and ends, and where its files go.
pub struct Options {
    /// The start of the process, or the earliest time known.
    pub started: Instant,
    /// Directory for metrics, summary and parameters; `None` writes no files.
    pub out: Option<PathBuf>,
    /// `true` if the run may replace another one in that directory. The other one's files are removed when this run is done.
    pub overwrite: bool,
    /// File with the parameters to start from; `None` draws them from the seed.
    pub init: Option<PathBuf>,
    /// Whether the run continues another one, or itself.
    pub resume: Resume,
    /// Ends the run from outside.
    pub stop: Stop,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            out: None,
            overwrite: false,
            init: None,
            resume: Resume::Never,
            stop: Stop::default(),
        }
    }
}

/// How a run ended, after everything has been written.
#[derive(Debug)]
pub struct Outcome {
    /// The contents of `summary.json`.
    pub summary: Summary,
    /// Why it failed: what ended it before its last step, what is not finite at its end, or which file could not be written.
    pub failure: Option<Error>,
}

impl Outcome {
    /// Returns the outcome of a run that was done or interrupted.
    ///
    /// # Errors
    /// The failure of a run that failed.
    pub fn success(self) -> Result<Self, Error> {
        match self.failure {
            Some(failure) => Err(failure),
            None => Ok(self),
        }
    }
}

/// Trains from the first step to the last: opens the devices, compiles, runs the loop, evaluates, and writes
/// `metrics.jsonl`, `params.safetensors` and `summary.json` if there is a directory for them.
///
/// A run that reaches its first step has an outcome, whatever ends it: the metrics up to there, the summary and, if they are
/// sound, the parameters have been written.
///
/// # Errors
/// What keeps a run from starting. The directory is then unchanged, unless the first write to it failed.
pub fn train(job: &Job<'_>, options: &Options) -> Result<Outcome, Error> {
    let Options { started, out, overwrite, init, resume, stop } = options;
    // Before anything that takes time: a run whose files cannot be written does not start.
    let resolved = job.config.to_toml().map_err(Error::Unwritable)?;
    let place = checkpoints::place(&job.config.checkpoint, out.as_deref());
    let checkpoint = resume.find(place.as_ref())?;
    let differences = match &checkpoint {
        Some(checkpoint) => resume::compare(&checkpoint.run().config, &resolved)?,
        None => Differences::default(),
    };
    // Otherwise this is a branch of the run, which needs a place of its own.
    let continues = checkpoint.as_ref().zip(place.as_ref());
    let is_outside = checkpoints::is_outside(&job.config.checkpoint);
    let is_its_own = |out| !is_outside || run_dir::may_be_run_of(out, job.config);
    let continues = continues.is_some_and(|(checkpoint, place)| checkpoint.is_in(place))
        && out.as_deref().is_none_or(is_its_own);
    let existing = match (&checkpoint, resume) {
        _ if continues => Existing::Continue,
        (None, Resume::Newest)
            if out.as_deref().is_none_or(|out| run_dir::has_nothing_saved(out, job.config)) =>
        {
            Existing::Replace
        }
        _ if *overwrite => Existing::Replace,
        _ => Existing::Refuse,
    };
    // Those under the usual name belong to the run in the output directory.
    let is_own = job.config.checkpoint.dir.as_os_str() == CheckpointConfig::DIR;
    if let (Some(place), false, false) = (&place, continues, is_own)
        && let Some(newest) = CheckpointDir::list(place)?.pop()
    {
        let newest = newest.location.name().to_owned();
        return Err(checkpoint::Error::Occupied { path: place.clone(), newest }.into());
    }
    let dir = out.as_deref().map(|out| RunDir::claim(out, existing)).transpose()?;
    // One that may be moved aside with a run that is replaced is claimed after that.
    let is_settled = continues || is_outside;
    let settled = place.as_ref().filter(|_| is_settled);
    let settled = settled.map(CheckpointDir::claim).transpose()?;
    let check = || stop.check();
    let (client, run, mut trainer) = setup::start(job, &StartupSpans::new(*started), check)?;
    trainer.check_metric_names()?;
    if let Some(path) = init {
        trainer.set_model(&params_file::load(path, &trainer.model_specs())?)?;
    }
    say(&describe_devices(&client, job.config));
    say(&describe_batch(&run));
    say(&describe_synchronisation(&trainer, &job.config.parallel));
    for difference in &differences.shown {
        say(&format!("configuration: {difference}"));
    }
    if let Some(checkpoint) = &checkpoint {
        say(&resume::restore(checkpoint, differences.is_other_run, &run, &mut trainer)?);
    }
    stop.check()?;

    let mut recorder =
        Recorder::begin(dir, &resolved, job, &run, &trainer, checkpoint.as_ref(), *started)?;
    stop.begin();
    let claimed = settled.map(Ok).or_else(|| place.map(CheckpointDir::claim));
    let saver = claimed.transpose().and_then(|dir| {
        let Some(dir) = dir else { return Ok(None) };
        match dir.remove_after(trainer.steps_taken())? {
            0 => {}
            later => recorder
                .say(&format!("removed {later} later checkpoints: those steps are taken again")),
        }
        let saved = continues.then_some(trainer.steps_taken());
        Ok(Some(Saver::new(dir, job, &run, &trainer, &resolved, saved)))
    });
    let steps = saver
        .map_err(Error::from)
        .and_then(|saver| Loop::new(job, &run, stop, &mut trainer, &mut recorder, saver));
    let ended = steps.and_then(Loop::run);
    if let Some(report) = job.splits.skipped_report() {
        recorder.say(&report);
    }
    let (is_interrupted, mut failure) = match ended {
        Ok(End::Interrupted) => (true, None),
        Ok(End::Done) => (false, None),
        Err(error) => (false, Some(error)),
    };
    // Parameters are saved if they are sound, whatever ended the steps. After a failed proof or launch they are not.
    let is_sound = match &failure {
        Some(Error::LockstepLost { .. } | Error::Pjrt(_)) => false,
        // Without a failure the steps have ended with a proof.
        Some(_) if job.config.train.check_lockstep_every > 0 => {
            let proved = trainer.prove_lockstep();
            proved.inspect_err(|error| recorder.say(&format!("error: {error}"))).is_ok()
        }
        _ => true,
    };
    let params = match is_sound {
        false => None,
        true => match trainer.model() {
            Ok(params) => Some(params),
            Err(error) => {
                failure.get_or_insert(error);
                None
            }
        },
    };
    Ok(recorder.end(is_interrupted, failure, params.as_ref()))
}

fn describe_devices(client: &Client, config: &Config) -> String {
    let (platform, version) = (client.platform_name(), client.platform_version());
    let backend = &config.device.backend;
    // The version of most plugins begins with the platform.
    let platform = if version.starts_with(platform) { "" } else { &format!("{platform} ") };
    format!("backend {backend}: {platform}{version}, {} devices", client.devices().len())
}
