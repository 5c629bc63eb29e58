//! The child process in which the ops of a step are timed.

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use hlo::Mesh;
use models::AttentionKernels;

use super::ProfileError;
use super::launch_log;
use crate::config::AutoOr;
use crate::data::TrainBatches;
use crate::kernels::CpuKernels;
use crate::observe::{StartupSpans, say};
use crate::pjrt::{Client, CpuWaits};
use crate::train::programs::LoweredPrograms;
use crate::train::{Error, Job, Run, Trainer, open_devices};

/// Steps before the timed ones.
const WARMUP: usize = 1;

/// Runs steps of the first replica of a mesh on one processor, marks them in the log on stderr, and
/// writes the optimized program to `out`. The replica has its shards of the state and of the batch,
/// and does not communicate: see [`hlo::lower_isolated`]. The program is compiled as for all
/// processors.
///
/// # Errors
/// See [`train`](crate::train::train).
pub fn serve_ops(
    job: &Job<'_>,
    mesh: Mesh,
    num_steps: usize,
    out: &mut impl Write,
) -> Result<(), ProfileError> {
    let mut config = job.config.clone();
    (config.mesh.data, config.mesh.fsdp) = (AutoOr::Value(1), AutoOr::Value(1));
    let (compiling, _) = open_devices(&config, say)?;
    let mut run = Run::new(&config, job.splits, mesh, compiling.platform())?;
    run.steps_per_launch = 1;
    // The program is passed to the second client through a compile cache, because a program loaded
    // from a cache cannot be serialized again. It is one of its own: programs in the user's may be
    // of other source lines, which its keys ignore.
    let own_cache = tempfile::tempdir().map_err(|source| ProfileError::Start { source })?;
    run.compile.cache_dir = Some(own_cache.path().to_owned());
    let spans = StartupSpans::new(Instant::now());
    let lower = || LoweredPrograms::of_one_replica(&run, job.model, &spans);
    let settings = run.compile.clone().for_devices(&compiling, &mesh);
    lower()?.compile(&compiling, &settings, &spans)?;

    // A client has as many threads as there are processors when it is created.
    stay_on_one_processor();
    let waits = CpuWaits::of(&run.compile.options.overrides);
    let client = Client::cpu_with(compiling.plugin(), 1, waits)?;
    if run.attention == AttentionKernels::Host {
        client.use_host_kernels(|| Arc::new(CpuKernels::default()))?;
    }
    let seed = job.config.train.seed;
    let mut trainer = Trainer::with_programs(&client, &run, lower()?, seed, &spans)?;
    let (_, optimized) = trainer.programs.step.executable.optimized_program()?;
    let sender = trainer.batch_sender();
    let batches = TrainBatches::split(job.splits.train.clone(), seed, run.batch);
    let batches = batches.map_err(Error::from)?.of_full_size();
    for index in 0..WARMUP + num_steps {
        let batch = sender.send(batches.get(index as u64).map_err(Error::from)?)?;
        let marked = index >= WARMUP;
        if marked {
            say(&launch_log::mark(true));
        }
        trainer.step(batch, run.schedule.lr(0))?.wait()?;
        if marked {
            say(&launch_log::mark(false));
        }
    }
    // A reader that has closed the pipe does not need the program.
    let _ = out.write_all(&optimized);
    Ok(())
}

/// Pins the thread to one processor. Where that is not possible, several ops run at once and their
/// times are too long.
#[cfg(target_os = "linux")]
fn stay_on_one_processor() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else { return };
    if let Some(last) = (0..CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu)) {
        let mut one = CpuSet::new();
        one.set(last);
        let _ = sched_setaffinity(None, &one);
    }
}

#[cfg(not(target_os = "linux"))]
fn stay_on_one_processor() {}
