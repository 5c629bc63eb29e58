//! The training loop. Belongs to the run phase.
//!
//! ```text
//! data thread: batch k+1 -> devices      loop: batch k, rate k -> launch -> state, numbers of step k
//! ```
//! With `steps_per_launch`, a launch is several steps on as many batches and rates. Launches are
//! asynchronous: the loop runs up to `MAX_IN_FLIGHT` of them ahead of the numbers that it
//! writes down, and waits only where it needs a value.

mod bench;
mod error;
mod evaluate;
mod formulation;
mod launches;
pub mod params_file;
pub mod profile;
mod programs;
mod proof;
mod recorder;
mod report;
mod run_dir;
mod setup;
mod steps;
mod stop;
mod trainer;

use std::path::PathBuf;
use std::time::Instant;

use models::Model;

use crate::config::Config;
use crate::data::Splits;
use crate::observe::{StartupSpans, Summary, say};
use crate::pjrt::Client;
use recorder::Recorder;
use run_dir::RunDir;
use steps::{End, Steps};

pub use crate::observe::EvalResult;
pub use bench::{BenchOptions, BenchResult, StepParts, bench};
pub use error::Error;
pub use formulation::Formulation;
pub use launches::launches;
pub use programs::{CompileSettings, Programs, step_graph};
pub use report::{describe_batch, describe_synchronisation};
pub use run_dir::RunDirError;
pub use setup::{Run, num_replicas_on_host, open_devices, platform_on_host};
pub use stop::Stop;
pub use trainer::{
    BatchSender, DeviceBatch, PendingSteps, StepResult, Trainer, params_fingerprint,
};

/// What to train, on what.
pub struct Job<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The model.
    pub model: &'a dyn Model,
    /// The data.
    pub splits: &'a Splits,
}

/// Where a run begins and what it leaves behind.
pub struct Options {
    /// When the process started, as well as it is known.
    pub started: Instant,
    /// Directory for metrics, summary and parameters; without one nothing is written.
    pub out: Option<PathBuf>,
    /// May the run take the place of another in that directory? That one's files are removed when this run
    /// is done.
    pub overwrite: bool,
    /// Parameters to start from, instead of those that follow from the seed.
    pub init: Option<PathBuf>,
    /// To end the run from outside.
    pub stop: Stop,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            out: None,
            overwrite: false,
            init: None,
            stop: Stop::default(),
        }
    }
}

/// What a run came to: everything that there is to be written has been.
#[derive(Debug)]
pub struct Outcome {
    /// What `summary.json` holds.
    pub summary: Summary,
    /// Why it is no success: what ended it before its last step, what is not finite at its end, or what could
    /// not be written.
    pub failure: Option<Error>,
}

impl Outcome {
    /// The outcome of a run that succeeded or was interrupted.
    ///
    /// # Errors
    /// The failure of one that did not.
    pub fn success(self) -> Result<Self, Error> {
        match self.failure {
            Some(failure) => Err(failure),
            None => Ok(self),
        }
    }
}

/// Trains from the first step to the last: opens the devices, compiles, runs the loop, evaluates, and
/// writes `metrics.jsonl`, `params.safetensors` and `summary.json` if there is a directory for them.
///
/// A run that came to its first step has an outcome, whatever ended it: metrics up to that step, the summary and,
/// where they are sound, the parameters have been written.
///
/// # Errors
/// See [`Error`]: what keeps a run from starting. Nothing has been changed in the directory then, unless it
/// is the first writing to it that failed.
pub fn train(job: &Job<'_>, options: &Options) -> Result<Outcome, Error> {
    let Options { started, out, overwrite, init, stop } = options;
    // Before anything that takes time: a run that could not be written down does not start.
    let dir = out.as_deref().map(|out| RunDir::claim(out, *overwrite)).transpose()?;
    let resolved = job.config.to_toml().map_err(Error::Unwritable)?;
    let check = || stop.check();
    let (client, run, mut trainer) = setup::start(job, &StartupSpans::new(*started), check)?;
    trainer.check_metric_names()?;
    if let Some(path) = init {
        trainer.set_model(params_file::load(path, &trainer.model_types())?)?;
    }
    say(&describe_devices(&client, job.config));
    say(&describe_batch(&run));
    say(&describe_synchronisation(&trainer));
    stop.check()?;

    let mut recorder = Recorder::begin(dir, &resolved, job, &run, &client, &trainer, *started)?;
    stop.begin();
    let ended = Steps::new(job, &run, stop, &mut recorder).run(&mut trainer);
    if let Some(report) = job.splits.skipped_report() {
        recorder.say(&report);
    }
    let (is_interrupted, mut failure) = match ended {
        Ok(End::Interrupted) => (true, None),
        Ok(End::Done(failure)) => (false, failure),
        Err(error) => (false, Some(error)),
    };
    // Whatever ended the steps: what is sound is kept. What a failed proof or launch leaves is not.
    let is_sound = match &failure {
        Some(Error::LockstepLost { .. } | Error::Pjrt(_)) => false,
        // Else the steps have ended with a proof.
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
    // Most plugins begin the version with the platform.
    let platform = if version.starts_with(platform) { "" } else { &format!("{platform} ") };
    format!("backend {backend}: {platform}{version}, {} devices", client.devices().len())
}
