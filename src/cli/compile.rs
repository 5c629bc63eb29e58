//! `lockstep compile`: the step of a configuration, compiled for hardware that need not be attached.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::args::ConfigArgs;
use super::{Loaded, print_line};
use crate::pjrt::Platform;
use crate::targets::cost::{Timeline, Work};
use crate::targets::{self, Family, Knobs, Measured, Step, Target, worker};
use crate::{step, train};

pub fn run(
    config: &ConfigArgs,
    target: &str,
    dump: Option<PathBuf>,
    json: bool,
) -> Result<ExitCode> {
    let target: Target = target.parse()?;
    let lowered = Lowered::new(config, &target, target.num_devices())?;
    let binary = std::env::current_exe().context("cannot find this program's own file")?;
    let report =
        lowered.with_step(|step| targets::compile(step, &target, &binary, dump.as_deref()))?;
    if json {
        print_line(&serde_json::to_string(&report)?)?;
    } else {
        print_line(&report.to_string())?;
    }
    Ok(if report.fits { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The hidden command that compiles in a child process: see [`worker`].
pub fn serve(dir: &Path) -> Result<ExitCode> {
    worker::serve(dir)?;
    Ok(ExitCode::SUCCESS)
}

/// The step that `train` would run on a target.
pub(super) struct Lowered {
    loaded: Loaded,
    run: train::Run,
}

impl Lowered {
    /// Reads the configuration with the backend of the target, for `num_devices` of its devices.
    pub fn new(args: &ConfigArgs, target: &Target, num_devices: usize) -> Result<Self> {
        let (backend, platform) = match target.chip.family {
            Family::Tpu(_) => ("tpu", Platform::Tpu),
            Family::Gpu(_) => ("cuda", Platform::Cuda),
        };
        let mut sets = args.sets();
        sets.push(format!("device.backend={backend}"));
        sets.push(format!("mesh.data={num_devices}"));
        let loaded = Loaded::with_sets(&args.config, &sets)?;
        let run = train::Run::new(&loaded.config, &loaded.splits, num_devices, platform)?;
        Ok(Self { loaded, run })
    }

    /// The inputs of the cost model.
    pub fn measure(&self) -> Result<Measured> {
        let graph = step::trace_step(&self.run.spec(&*self.loaded.model))?;
        Ok(Measured {
            num_devices: self.run.batch.num_batch_shards(),
            global_batch: self.run.batch.global_batch(),
            work: Work::of(&graph, self.run.precision.compute.size_bytes()),
            timeline: Timeline::of(&graph),
        })
    }

    fn with_step<T, E>(&self, compile: impl FnOnce(&Step<'_>) -> Result<T, E>) -> Result<T>
    where
        anyhow::Error: From<E>,
    {
        let run = &self.run;
        let spec = run.spec(&*self.loaded.model);
        let graph = step::trace_step(&spec)?;
        let program = ::hlo::lower(&run.compile.formulation.apply(graph.clone()), "step");
        let overrides = run.compile.options.overrides.clone();
        let knobs = Knobs {
            microbatch: run.batch.microbatch(),
            num_microbatches: run.batch.num_microbatches(),
            remat: self.loaded.config.model.remat(),
        };
        let state = spec.state_types()?;
        let step = Step {
            graph: &graph,
            program: &program,
            state: &state,
            element_bytes: run.precision.compute.size_bytes(),
            knobs,
            memory_fraction: self.loaded.config.device.memory_fraction(),
            overrides: &overrides,
        };
        Ok(compile(&step)?)
    }
}
