//! Timing a step as `train` runs it.

use std::io;
use std::process::Command;
use std::time::{Duration, Instant};

use hlo::{HostCalls, Mesh, lower_isolated};

use super::processes::Processes;
use super::profile::{OpTimes, ProfileError, time_ops};
use super::{Error, Job, Trainer, read_fabric, setup};
use crate::cluster::{Member, Phase};
use crate::data::TrainBatches;
use crate::observe::{StartupSpan, StartupSpans, median, say};
use crate::targets::cost::Timeline;

/// Options of [`bench`].
pub struct BenchOptions<'a> {
    /// Number of steps to time.
    pub num_steps: usize,
    /// When the process started.
    pub started: Instant,
    /// This process as one of several that train together.
    pub member: Option<&'a Member>,
    /// For profiling: makes a command that calls [`super::profile::serve_ops`] with the given mesh.
    /// `None` omits startup spans, parts and ops.
    pub worker: Option<&'a dyn Fn(Mesh) -> io::Result<Command>>,
}

/// The result that `bench` prints as one line of JSON.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct BenchResult {
    /// Median time of a step, including the transfer of its batch. Each step is waited for.
    pub median_step_ms: f64,
    /// Median of the host's work for a step: transfer and launch, without waiting.
    pub host_ms_per_step: f64,
    /// From the start of the process to the end of the first step.
    pub first_step_secs: f64,
    /// Median time of the same step without collectives. Of several processes, while all of them
    /// take it.
    pub compute_only_ms: f64,
    /// The time of a step that the measured links of `parallel.fabric` predict, from
    /// [`Self::compute_only_ms`]; `None` without the key, or if it was measured with another number
    /// of devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_ms: Option<f64>,
    /// Number of replicas.
    pub num_replicas: usize,
    /// The phases up to the end of the first step; empty unless profiling.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub start: Vec<StartupSpan>,
    /// The parts of a step; `None` unless profiling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parts: Option<StepParts>,
    /// The ops of a step; `None` unless profiling on a backend that reports them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ops: Option<OpTimes>,
}

/// The parts of a step: medians in milliseconds. Each part is waited for, unlike in a run.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct StepParts {
    /// Transfer of the batch to the devices.
    pub transfer_ms: f64,
    /// The host's work to launch the step.
    pub launch_ms: f64,
    /// From the launch to the end of the step, without the collectives.
    pub compute_ms: f64,
    /// The additional time of the step compared to one without collectives.
    pub collectives_ms: f64,
    /// Reading the loss and the other metrics.
    pub read_ms: f64,
    /// Assembling the batch in host memory, which a separate thread does in a run.
    pub batch_ms: f64,
}

/// Steps before the timed ones.
const WARMUP: usize = 3;
/// Of several processes, steps in a row, before as many without collectives. One more comes first
/// and is not timed: in it processes wait for those that come late from the others.
const IN_A_ROW: usize = 5;

/// Durations of the parts of one step.
#[derive(Clone, Copy)]
struct Timed {
    batch: Duration,
    transfer: Duration,
    launch: Duration,
    device: Duration,
    read: Duration,
}

impl Timed {
    /// The step without assembling its batch.
    fn step(&self) -> Duration {
        self.transfer + self.launch + self.device + self.read
    }
}

/// Times steps, alternating with equally many steps without collectives. Of several processes each
/// has times of its own.
///
/// # Errors
/// See [`super::train`], and [`Error::Profile`] if profiling fails.
pub fn bench(job: &Job<'_>, options: &BenchOptions<'_>) -> Result<BenchResult, Error> {
    let spans = StartupSpans::new(options.started);
    spans.record("read configuration and data", options.started, Instant::now());
    let processes = Processes::of(options.member);
    let (client, run, mut trainer) =
        setup::start(job, processes, &spans, || Ok(()), |_, _, _| Ok(None))?;
    let (num_replicas, seed) = (run.plan.mesh.num_replicas(), job.config.train.seed);
    let batches = TrainBatches::split(job.splits.train.clone(), seed, run.batch)?.of_full_size();
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
    let calls = HostCalls {
        // A program for the replicas of each process.
        collectives: processes.with_others().map(|_| processes.this().num_processes),
        kernels: run.lowering.host_kernels,
    };
    let isolated = lower_isolated(trainer.step_graph(), "step", num_replicas, calls);
    let settings = run.compile.clone().for_devices(&client, &run.plan.mesh);
    let waiting = processes.waiting("compiling the step without collectives, and the evaluation");
    let mut alone = Trainer::new(&client, &run, job.model, seed)?;
    (alone.programs.step.executable, _) = settings.compile(&client, &isolated)?;
    trainer.finish_compiling()?;
    alone.finish_compiling()?;
    drop(waiting);

    let waiting = processes.waiting("measuring steps");
    let (in_a_row, num_first) =
        if processes.with_others().is_some() { (IN_A_ROW, 1) } else { (1, 0) };
    let (mut steps, mut alones) = (vec![], vec![]);
    let num_steps = options.num_steps + WARMUP;
    while steps.len() < num_steps {
        processes.phase(Phase::Compute, trainer.steps_taken());
        let index = steps.len();
        for _ in 0..num_first {
            timed(&mut trainer, index, false)?;
        }
        for index in index..index + in_a_row {
            steps.push(timed(&mut trainer, index, false)?);
        }
        for index in index..index + in_a_row {
            alones.push(timed(&mut alone, index, false)?);
        }
        if let Some(waiting) = &waiting {
            waiting.set_done(steps.len().min(num_steps) as u64, num_steps as u64);
        }
    }
    drop(waiting);
    let [steps, alones] = [steps, alones].map(|all| all[WARMUP..num_steps].to_vec());
    let median_step_ms = median_ms(&steps, Timed::step);
    let compute_only_ms = median_ms(&alones, Timed::step);
    let fabric = job.config.parallel.fabric.as_deref().map(read_fabric).transpose()?;
    let predicted_ms = fabric.and_then(|fabric| {
        let time = Timeline::of(trainer.step_graph()).measured(compute_only_ms / 1e3, &fabric)?;
        Some(1e3 * time.total_secs())
    });
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
        // The devices' threads would disturb the measurement.
        drop((trainer, alone));
        let command = worker(run.plan.mesh).map_err(|source| ProfileError::Start { source });
        match command.and_then(time_ops) {
            Ok(times) => ops = Some(times),
            // The parts are still reported.
            Err(error @ ProfileError::NoOps) => say(&error.to_string()),
            Err(error) => return Err(Box::new(error).into()),
        }
    }
    Ok(BenchResult {
        median_step_ms,
        host_ms_per_step: median_ms(&steps, |step| step.transfer + step.launch),
        first_step_secs,
        compute_only_ms,
        predicted_ms,
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
