//! Timing a step as `train` runs it.

use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

use hlo::lower_isolated;

use super::profile::{OpTimes, ProfileError, time_ops};
use super::{Error, Job, Trainer, setup};
use crate::data::TrainBatches;
use crate::observe::{StartupSpan, StartupSpans, median, say};

/// What to time.
pub struct BenchOptions<'a> {
    /// Steps that are counted.
    pub num_steps: usize,
    /// When the process started, as well as it is known.
    pub started: Instant,
    /// To say where the time goes: a command that ends in [`super::profile::serve_ops`], for a number of
    /// replicas.
    pub worker: Option<&'a dyn Fn(usize) -> io::Result<Command>>,
}

/// What `bench` prints, one line of JSON.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct BenchResult {
    /// Median of the steps, each waited for, the transfer of its batch included.
    pub median_step_ms: f64,
    /// Median of the host's work for a step: transfer and launch, without waiting.
    pub host_ms_per_step: f64,
    /// From the start of the process to the end of the first step.
    pub first_step_secs: f64,
    /// Median of the same step without collectives: every replica by itself.
    pub compute_only_ms: f64,
    /// Replicas.
    pub num_replicas: usize,
    /// The way to the end of the first step, where it was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub start: Vec<StartupSpan>,
    /// The parts of a step, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parts: Option<StepParts>,
    /// Its ops, where they were asked for and the backend is one that tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<OpTimes>,
}

/// The parts of a step, each waited for, which a run would not do: medians in milliseconds.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct StepParts {
    /// The batch's way to the devices.
    pub transfer_ms: f64,
    /// The host's work to start the step.
    pub launch_ms: f64,
    /// From there to the end of the step, less the collectives.
    pub compute_ms: f64,
    /// What the step takes longer than one whose replicas do not meet.
    pub collectives_ms: f64,
    /// Reading the loss and the other numbers.
    pub read_ms: f64,
    /// Making the batch in the host's memory, which a thread of its own does in a run.
    pub batch_ms: f64,
}

/// Steps before the counted ones.
const WARMUP: usize = 3;

/// When the parts of one step ended.
struct Timed {
    batch: Duration,
    transfer: Duration,
    launch: Duration,
    device: Duration,
    read: Duration,
}

impl Timed {
    /// The step without the making of its batch.
    fn step(&self) -> Duration {
        self.transfer + self.launch + self.device + self.read
    }
}

/// Times steps, and as many without collectives, in turn.
///
/// # Errors
/// As [`super::train`], and [`Error::Profile`] where ops are asked for.
pub fn bench(job: &Job<'_>, options: &BenchOptions<'_>) -> Result<BenchResult, Error> {
    let spans = StartupSpans::new(options.started);
    spans.record("read configuration and data", options.started, Instant::now());
    let (client, run, mut trainer) = setup::start(job, &spans, || Ok(()))?;
    let (num_replicas, seed) = (run.mesh.num_replicas(), job.config.train.seed);
    let batches =
        TrainBatches::new(job.splits.train.clone(), seed, run.batch.global_batch(), num_replicas)?;
    let sender = trainer.batch_sender();
    let rate = run.schedule.lr(0);
    let timed = |trainer: &mut Trainer, index: usize, part_by_part: bool| -> Result<_, Error> {
        let mut last = Instant::now();
        let mut lap = || {
            let now = Instant::now();
            now - std::mem::replace(&mut last, now)
        };
        let host_batch = batches.get(index as u64)?;
        let batch_time = lap();
        let batch = sender.send(host_batch)?;
        if part_by_part {
            batch.wait()?;
        }
        let transfer = lap();
        let pending = trainer.step(batch, rate)?;
        let launch = lap();
        pending.wait()?;
        let device = lap();
        trainer.finish(pending)?;
        Ok(Timed { batch: batch_time, transfer, launch, device, read: lap() })
    };

    spans.time("first step, its batch and the state", || timed(&mut trainer, 0, false))?;
    let (first_step_secs, start) = (options.started.elapsed().as_secs_f64(), spans.list());
    let graph = trainer.step_graph().clone();
    let (isolated, _) = run.compile.compile(&client, &lower_isolated(&graph, "step"))?;
    let mut alone = Trainer::new(&client, &run, job.model, seed)?;
    alone.replace_step(isolated);
    trainer.finish_compiling()?;
    alone.finish_compiling()?;

    let (mut steps, mut alones) = (vec![], vec![]);
    for index in 0..options.num_steps + WARMUP {
        let step = timed(&mut trainer, index, false)?;
        let step_alone = timed(&mut alone, index, false)?;
        if index >= WARMUP {
            steps.push(step);
            alones.push(step_alone);
        }
    }
    let median_step_ms = median_ms(&steps, Timed::step);
    let compute_only_ms = median_ms(&alones, Timed::step);
    let (mut parts, mut ops) = (None, None);
    if let Some(worker) = options.worker {
        let timed = (0..options.num_steps).map(|index| timed(&mut trainer, index, true));
        let timed: Vec<_> = timed.collect::<Result<_, _>>()?;
        let collectives_ms = (median_step_ms - compute_only_ms).max(0.0);
        parts = Some(StepParts {
            transfer_ms: median_ms(&timed, |step| step.transfer),
            launch_ms: median_ms(&timed, |step| step.launch),
            compute_ms: (median_ms(&timed, |step| step.device) - collectives_ms).max(0.0),
            collectives_ms,
            read_ms: median_ms(&timed, |step| step.read),
            batch_ms: median_ms(&timed, |step| step.batch),
        });
        // The devices' threads would be in the way.
        drop((trainer, alone));
        let command = worker(num_replicas).map_err(|source| ProfileError::Start { source });
        match command.and_then(time_ops) {
            Ok(times) => ops = Some(times),
            // The parts are known all the same.
            Err(error @ ProfileError::NoOps) => say(&error.to_string()),
            Err(error) => return Err(Box::new(error).into()),
        }
    }
    Ok(BenchResult {
        median_step_ms,
        host_ms_per_step: median_ms(&steps, |step| step.transfer + step.launch),
        first_step_secs,
        compute_only_ms,
        num_replicas,
        start: if options.worker.is_some() { start } else { vec![] },
        parts,
        ops,
    })
}

fn median_ms(steps: &[Timed], part: impl Fn(&Timed) -> Duration) -> f64 {
    let ms: Vec<_> = steps.iter().map(|step| part(step).as_secs_f64() * 1e3).collect();
    median(&ms).unwrap_or(f64::NAN)
}
