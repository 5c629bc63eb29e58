//! Training: from a configuration to compiled programs and a state on devices, through the loop
//! ([`train`]), to the files that a run leaves. Belongs to the run phase.

mod accept;
mod begin;
mod bench;
mod bench_collectives;
mod checkpoint_place;
mod checkpoint_writer;
mod checkpoints;
mod data_record;
mod error;
mod evaluate;
mod evaluator;
mod events;
mod fabric_file;
mod gather;
mod host_metrics;
mod late;
mod launches;
mod r#loop;
mod memory;
mod model_values;
mod nonfinite;
mod objective;
mod observed;
mod own_times;
pub mod params_file;
mod probe;
mod processes;
pub mod profile;
mod programs;
mod progress;
mod progress_record;
mod proof;
mod recorder;
mod report;
mod resume;
mod run;
mod run_dir;
mod setup;
mod shared_dir;
mod snapshot_source;
mod snapshots;
mod step_program;
mod stop;
mod traced_ops;
mod trainer;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use hlo::{LeafSpec, Tree, counted};
use models::Model;

use crate::cluster::{Member, Phase, SnapshotAccess};
use crate::config::Config;
use crate::data::Splits;
use crate::observe::{StartupSpans, Summary};
use crate::pjrt::Client;
use begin::Beginning;
use fabric_file::describe_fabric;
use r#loop::{End, Loop};
use processes::Processes;
use recorder::{Recorder, RunOutputs};
use resume::Now;

pub use crate::observe::EvalResult;
pub use accept::{check_config, check_example};
pub use bench::{BenchOptions, BenchResult, StepParts, bench};
pub use bench_collectives::{CollectivesOptions, bench_collectives};
pub use checkpoint_place::{checkpoint_place, newest_checkpoint};
pub use error::Error;
pub use evaluator::{EvalSpec, Evaluator};
pub use fabric_file::{FabricFileError, read_fabric};
pub use launches::launches;
pub use model_values::ModelValues;
pub use objective::build_model;
pub use observed::ObservedSteps;
pub use programs::{Callable, CompileSettings, NamedLaunch, Programs};
pub use report::{
    describe_batch, describe_classes, describe_synchronisation, list_collectives, list_sharding,
    warn_of_distant_layers, warn_of_zero_stage,
};
pub use resume::Resume;
pub use run::Run;
pub use run_dir::{CONFIG_FILE, RunDirError};
pub use setup::{
    compile_beforehand, compiles_beforehand, mesh_on_host, open_devices, platform_on_host,
};
pub use stop::Stop;
pub use trainer::{BatchSender, DeviceBatch, PendingSteps, StepResult, Trainer};

/// The model to train, and the data to train it on.
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
    /// `true` if the run may replace another one in that directory. The other one's files are
    /// removed when this run is done.
    pub overwrite: bool,
    /// File with the parameters to start from; `None` draws them from the seed.
    pub init: Option<PathBuf>,
    /// Whether the run continues another one, or itself.
    pub resume: Resume,
    /// How long a run that continues or replaces another waits for a process that has its
    /// directories: one that was killed keeps them for a moment.
    pub patience: Duration,
    /// Ends the run from outside.
    pub stop: Stop,
    /// This process as one of those that run the job together; `None` if it is the only one.
    pub member: Option<Member>,
    /// The snapshots of the supervisors, under one.
    pub snapshots: Option<SnapshotAccess>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            out: None,
            overwrite: false,
            init: None,
            resume: Resume::Never,
            patience: Duration::ZERO,
            stop: Stop::default(),
            member: None,
            snapshots: None,
        }
    }
}

/// How a run ended, after everything has been written.
#[derive(Debug)]
pub struct Outcome {
    /// The contents of `summary.json`.
    pub summary: Summary,
    /// Why it failed: what ended it before its last step, what is not finite at its end, or which
    /// file could not be written.
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

/// Trains from the first step to the last: opens the devices, compiles, runs the loop, evaluates,
/// and writes `metrics.jsonl`, `params.safetensors` and `summary.json` if there is a directory for
/// them.
///
/// A run that reaches its first step has an outcome, whatever ends it: the metrics up to there, the
/// summary and, if they are sound, the parameters have been written.
///
/// # Errors
/// Reasons why a run does not start. The directory is then unchanged, unless the first write to it
/// failed.
pub fn train(job: &Job<'_>, options: &Options) -> Result<Outcome, Error> {
    let Options { started, init, stop, member, .. } = options;
    let processes = Processes::of(member.as_ref());
    // Before anything that takes time: a run that cannot write its files does not start.
    let resolved = job.config.to_toml().map_err(Error::Unwritable)?;
    let prometheus = recorder::listen(&job.config.observe, processes)?;
    for warning in &job.splits.warnings {
        processes.say(&format!("warning: {warning}"));
    }
    let waiting = processes.waiting("checking the data");
    job.splits.check(&|text: &str| processes.say(text))?;
    let data = data_record::record(job.splits, processes)?;
    drop(waiting);
    let now = Now { resolved: &resolved, data: &data };
    let (beginning, dir) = Beginning::find_among(processes, job.config, options, now)?;
    beginning.say_differences(processes);
    let check = || stop.check();
    let load = |run: &Run, leaves: &Tree<LeafSpec>, specs: &Tree<LeafSpec>| {
        beginning.check(run, leaves)?;
        // A checkpoint, restored below, has its own parameters.
        if beginning.checkpoint.is_some() {
            return Ok(None);
        }
        match (init, job.config.model.folder()) {
            (Some(path), _) => params_file::open(path, specs).map(Some),
            (None, Some(folder)) => {
                params_file::check_counterpart(folder, &job.config.model)?;
                params_file::open_below_head(folder, specs).map(Some)
            }
            (None, None) => Ok(None),
        }
    };
    let spans = StartupSpans::new(*started);
    let (client, run, mut trainer) = setup::start(job, processes, &spans, check, load)?;
    trainer.check_metrics(job.config.train.best_metric.as_deref())?;
    processes.say(&describe_devices(&client, job.config));
    processes.say(&describe_batch(&run));
    if let Some(classes) = describe_classes(&*job.splits.train, &*job.splits.eval) {
        processes.say(&classes);
    }
    let pipeline = run.pipeline(job.model);
    let described = describe_synchronisation(
        &trainer,
        &run.plan,
        pipeline,
        run.local_steps,
        run.lowering.all_reduce,
    );
    processes.say(&described);
    for approximation in run.approximations() {
        processes.say(&format!("approximation: {approximation}"));
    }
    if let Some(fabric) = describe_fabric(&job.config.parallel, &run.lowering) {
        processes.say(&fabric);
    }
    let warnings = [
        warn_of_distant_layers(&trainer, &run.plan),
        warn_of_zero_stage(job.config.parallel.zero, &run.plan),
    ];
    for warning in warnings.into_iter().flatten() {
        processes.say(&format!("warning: {warning}"));
    }
    if run.observed.noise_every > 0 && run.batch_parts(job.model).is_none() {
        processes.say(
            "warning: the gradient noise scale cannot be measured here: that needs two batch shards \
             or microbatches, and none that is surplus",
        );
    }
    if options.out.is_none() {
        processes.say("the model will not be saved; --out DIR saves it");
    }
    let waiting = processes.waiting("reading the checkpoint");
    let restoring = Instant::now();
    beginning.restore(processes, &mut trainer)?;
    let restored = restoring.elapsed();
    drop(waiting);
    stop.check()?;

    let resumed = beginning.checkpoint.as_ref();
    let out = dir.as_ref().map(|dir| dir.path());
    let generation_starts =
        processes.generation_starts(out, &trainer, &spans, (beginning.state_from(), restored));
    let trace = recorder::trace(options.out.as_deref(), &job.config.observe, processes, &trainer);
    let outputs = RunOutputs { dir, trace, prometheus, processes, generation_starts };
    let mut recorder = Recorder::begin(outputs, &resolved, job, &run, &trainer, resumed, *started)?;
    stop.begin();
    let snapshots = beginning.snapshots((job, options), &run, &trainer, &resolved);
    let saver = beginning.saver((job, processes), &run, &trainer, &resolved, &mut recorder);
    let steps = saver.and_then(|saver| {
        shared_dir::check_shared(processes, job, options.out.as_deref())?;
        let stop = (stop, processes);
        Loop::new(job, &run, stop, &mut trainer, &mut recorder, (saver, snapshots))
    });
    let ended = steps.and_then(Loop::run);
    processes.phase(Phase::End, trainer.steps_taken());
    if let Some(report) = job.splits.skipped_report() {
        recorder.say(&report);
    }
    let (is_interrupted, mut failure) = match ended {
        Ok(End::Interrupted) if stop.is_regrouping() => (true, None),
        Ok(End::Interrupted) => {
            recorder.say(&how_to_go_on(job.config, options, trainer.steps_taken()));
            (true, None)
        }
        Ok(End::Done) => (false, None),
        Err(error) => (false, Some(error)),
    };
    let is_proved = job.config.train.check_lockstep_every > 0;
    // An error of this process alone: the others do not go on with it.
    let is_lost = failure.as_ref().is_some_and(|failure| !failure.is_common());
    let is_sound = !(is_lost && processes.with_others().is_some())
        && is_sound(failure.as_ref(), is_proved, &trainer, processes, &mut recorder);
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
    let peak_memory = memory::peak(trainer.client());
    Ok(recorder.end(is_interrupted, failure, params.as_ref(), peak_memory))
}

/// Where a run that was stopped after `num_steps` steps has been saved, and how to go on.
fn how_to_go_on(config: &Config, options: &Options, num_steps: u64) -> String {
    let Some(place) = checkpoints::place(&config.checkpoint, options.out.as_deref()) else {
        return "nothing is saved from which the run could go on: there is no --out, or \
                checkpoint.keep is 0"
            .to_owned();
    };
    let how = match options.resume {
        Resume::Never if options.overwrite => {
            "the same command with --resume in place of --overwrite"
        }
        Resume::Never => "the same command with --resume",
        Resume::Newest => "the same command",
        Resume::From(_) => "the same command with --resume and no path after it",
    };
    format!("saved after {} in {place}; {how} goes on from there", counted(num_steps, "step"))
}

/// `true` if the parameters can be saved, whatever ended the steps. After a failed proof or launch
/// they are not sound.
fn is_sound(
    failure: Option<&Error>,
    is_proved: bool,
    trainer: &Trainer,
    processes: Processes<'_>,
    recorder: &mut Recorder,
) -> bool {
    match failure {
        Some(Error::LockstepLost { .. } | Error::Pjrt(_)) => false,
        // Without a failure the steps have ended with a proof.
        Some(_) if is_proved => {
            let proved = trainer.prove_among(processes, ());
            proved.inspect_err(|error| recorder.say(&format!("error: {error}"))).is_ok()
        }
        _ => true,
    }
}

fn describe_devices(client: &Client, config: &Config) -> String {
    let (platform, version) = (client.platform_name(), client.platform_version());
    let backend = &config.device.backend;
    // The version of most plugins begins with the platform.
    let platform = if version.starts_with(platform) { "" } else { &format!("{platform} ") };
    let devices = counted(client.devices().len(), "device");
    format!("backend {backend}: {platform}{version}, {devices}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_stopped_run_says_where_it_is_saved_and_how_to_go_on() {
        let text = "model = { name = \"mlp\" }\ndata = { source = \"synthetic\" }\n\
                    train = { global_batch = 8, steps = 9 }\noptimizer = { name = \"sgd\" }\n\
                    schedule = { name = \"constant\", peak = 0.1 }";
        let say = |set: &str, options: &Options| {
            let config = Config::parse(text, Path::new("/a.toml"), &[set.to_owned()]).unwrap();
            how_to_go_on(&config, options, 1)
        };
        let kept = "checkpoint.keep=1";
        let out = || Options { out: Some("run".into()), ..Options::default() };
        for (set, options, expected) in [
            (kept, Options::default(), "nothing is saved from which the run could go on"),
            ("checkpoint.keep=0", out(), "nothing is saved from which the run could go on"),
            (
                kept,
                out(),
                "saved after 1 step in run/checkpoints; the same command with --resume goes on",
            ),
            (
                kept,
                Options { overwrite: true, ..out() },
                "with --resume in place of --overwrite goes on",
            ),
            (
                kept,
                Options { resume: Resume::Newest, ..out() },
                "; the same command goes on from there",
            ),
            (
                kept,
                Options { resume: Resume::From("a".into()), ..out() },
                "and no path after it goes on",
            ),
            ("checkpoint.dir=s3://bucket/a", Options::default(), "in s3://bucket/a; the same"),
        ] {
            let said = say(set, &options);
            assert!(said.contains(expected), "{expected}: {said}");
        }
    }
}
