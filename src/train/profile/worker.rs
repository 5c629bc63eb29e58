//! The process in which the ops of a step are timed.

use std::io::Write;
use std::sync::Arc;

use hlo::{Literal, Mesh, lower};

use super::ProfileError;
use super::launch_log;
use crate::config::AutoOr;
use crate::data::TrainBatches;
use crate::observe::say;
use crate::pjrt::{Arg, Client};
use crate::train::programs::init_graph;
use crate::train::trainer::BatchSender;
use crate::train::{Job, Run, open_devices, step_graph};

/// Steps whose times do not count.
const WARMUP: usize = 1;

/// Runs steps of one of `num_replicas` replicas on one processor, marks them in the log on stderr, and
/// writes the optimised program to `out`. The program is compiled as it would be for all processors.
///
/// # Errors
/// As [`train`](crate::train::train).
pub fn serve_ops(
    job: &Job<'_>,
    num_replicas: usize,
    num_steps: usize,
    out: &mut impl Write,
) -> Result<(), ProfileError> {
    let mut config = job.config.clone();
    config.mesh.data = AutoOr::Value(1);
    let (compiling, _) = open_devices(&config, say)?;
    let run = Run::new(&config, job.splits, num_replicas, compiling.platform());
    let mut run = run.map_err(ProfileError::Train)?;
    run.mesh = Mesh::data(1);
    run.tune(&compiling);
    let spec = run.spec(job.model);
    let init = lower(&init_graph(&spec, run.compile.formulation)?, "init");
    let step = lower(&step_graph(&spec, run.compile.formulation)?, "step");
    // A program that comes from the cache cannot be serialized again: so through a cache, if only of this
    // run, to the client that runs it.
    let own_cache = tempfile::tempdir().map_err(|source| ProfileError::Start { source })?;
    run.compile.cache_dir.get_or_insert_with(|| own_cache.path().to_owned());
    run.compile.compile(&compiling, &init)?;
    run.compile.compile(&compiling, &step)?;

    // A client has as many threads as there are processors when it is made.
    stay_on_one_processor();
    let client = Client::cpu(compiling.plugin(), 1)?;
    let (init, _) = run.compile.compile(&client, &init)?;
    let (step, _) = run.compile.compile(&client, &step)?;
    let (_, optimized) = step.optimized_program()?;
    let upload = |literal: Literal| client.upload_replicated(Arc::new(literal));
    let seed = job.config.train.seed;
    let seed_words = upload(Literal::from_slice(&[2], &[(seed >> 32) as u32, seed as u32]))?;
    let mut state = init.execute(vec![Arg::Borrow(&seed_words)])?.outputs;
    let rate = upload(Literal::scalar(run.schedule.lr(0) as f32))?;
    let sender = BatchSender::new(&step);
    let global_batch = run.batch.global_batch() / num_replicas;
    let batches = TrainBatches::new(job.splits.train.clone(), seed, global_batch, 1)
        .map_err(|error| ProfileError::Train(error.into()))?;
    for index in 0..WARMUP + num_steps {
        let batch = batches.get(index as u64).map_err(|error| ProfileError::Train(error.into()))?;
        let num_leaves = state.len();
        let mut args: Vec<_> = state.into_iter().map(Arg::Donate).collect();
        args.push(Arg::Borrow(&seed_words));
        let batch = sender.send(batch)?;
        args.extend(batch.args());
        args.push(Arg::Borrow(&rate));
        let marked = index >= WARMUP;
        if marked {
            say(&launch_log::mark(true));
        }
        let launch = step.execute(args)?;
        launch.done.wait()?;
        if marked {
            say(&launch_log::mark(false));
        }
        state = launch.outputs;
        state.truncate(num_leaves);
    }
    // Who has closed it does not want it.
    let _ = out.write_all(&optimized);
    Ok(())
}

/// Where this cannot be done several ops run at once, and their times are too long.
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
