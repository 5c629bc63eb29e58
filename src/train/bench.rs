//! Timing a step as `train` runs it.

use std::time::Instant;

use hlo::lower_isolated;

use super::{DeviceBatch, Error, Job, Plan, Trainer, open_devices};
use crate::data::TrainBatches;
use crate::metrics::{StepTimer, median, say};

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
}

/// Steps before the counted ones.
const WARMUP: usize = 3;

/// Times `num_steps` steps, and as many without collectives, in turn.
///
/// # Errors
/// As [`super::train`].
pub fn bench(job: &Job<'_>, num_steps: usize, started: Instant) -> Result<BenchResult, Error> {
    let (client, num_replicas) = open_devices(job.config, say)?;
    let mut plan = Plan::new(job.config, job.splits, num_replicas)?;
    plan.tune(&client);
    let seed = job.config.train.seed;
    let mut trainer = Trainer::new(&client, &plan, job.model, seed)?;
    let batches =
        TrainBatches::new(job.splits.train.clone(), seed, plan.batch.global_batch(), num_replicas)?;
    let sender = trainer.batch_sender();
    let mut timer = StepTimer::new(started);
    let mut timed = |trainer: &mut Trainer, index: u64| -> Result<(f64, f64), Error> {
        let host_batch = batches.get(index)?;
        let start = Instant::now();
        let batch: DeviceBatch = sender.send(host_batch)?;
        let pending = trainer.step(batch, plan.schedule.lr(0))?;
        let host = start.elapsed();
        trainer.finish(pending)?;
        trainer.wait()?;
        timer.record(start.elapsed());
        Ok((start.elapsed().as_secs_f64() * 1e3, host.as_secs_f64() * 1e3))
    };

    timed(&mut trainer, 0)?;
    let graph = trainer.step_graph().clone();
    let isolated = plan.compile.compile(&client, &lower_isolated(&graph, "step"))?;
    let mut alone = Trainer::new(&client, &plan, job.model, seed)?;
    alone.replace_step(isolated);
    trainer.finish_compiling()?;
    alone.finish_compiling()?;

    let (mut steps, mut hosts, mut alones) = (vec![], vec![], vec![]);
    for index in 0..num_steps + WARMUP {
        let (step, host) = timed(&mut trainer, index as u64)?;
        let (step_alone, _) = timed(&mut alone, index as u64)?;
        if index >= WARMUP {
            steps.push(step);
            hosts.push(host);
            alones.push(step_alone);
        }
    }
    Ok(BenchResult {
        median_step_ms: median(&steps).unwrap_or(f64::NAN),
        host_ms_per_step: median(&hosts).unwrap_or(f64::NAN),
        first_step_secs: timer.first_step_secs().unwrap_or(f64::NAN),
        compute_only_ms: median(&alones).unwrap_or(f64::NAN),
        num_replicas,
    })
}
