//! `lockstep compile` and `lockstep plan`: the step of a configuration, compiled for hardware that is not
//! here, and what it takes there by the cost model.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::args::ConfigArgs;
use super::{Loaded, print_line};
use crate::config::{Config, Model};
use crate::targets::cost::{Timeline, Work};
use crate::targets::{self, Family, Knobs, Measured, ScalingPlan, Step, Target, worker};
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

/// How a plan is printed.
#[derive(Clone, Copy)]
pub enum Form {
    Table,
    Csv,
    Json,
}

pub fn plan(config: &ConfigArgs, target: &str, form: Form) -> Result<ExitCode> {
    let target: Target = target.parse()?;
    let mut steps = vec![];
    let mut refused = None;
    for num_devices in targets::sizes(&target) {
        match Lowered::new(config, &target, num_devices).and_then(|lowered| lowered.measure()) {
            Ok(step) => steps.push(step),
            // A batch that does not divide over this size may divide over others.
            Err(error) => refused = Some(error),
        }
    }
    let largest = steps.last().map_or(0, |step| step.num_devices);
    if let Some(error) = refused.filter(|_| largest < target.num_devices()) {
        return Err(error.context(format!("there is no step for all of {target}")));
    }
    let plan = ScalingPlan::new(&target, &steps);
    match form {
        Form::Table => print_line(&plan.table())?,
        Form::Csv => print_line(plan.csv().trim_end())?,
        Form::Json => print_line(&serde_json::to_string(&plan)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The hidden command's part of it: see [`worker`].
pub fn serve(dir: &Path) -> Result<ExitCode> {
    worker::serve(dir)?;
    Ok(ExitCode::SUCCESS)
}

/// The step that `train` would run on a target, traced.
struct Lowered {
    loaded: Loaded,
    plan: train::Plan,
}

impl Lowered {
    /// Reads the configuration with the target's backend, for so many of its devices.
    fn new(args: &ConfigArgs, target: &Target, num_devices: usize) -> Result<Self> {
        let backend = match target.chip.family {
            Family::Tpu(_) => "tpu",
            Family::Gpu(_) => "cuda",
        };
        let mut sets = args.sets();
        sets.push(format!("device.backend={backend}"));
        sets.push(format!("mesh.data={num_devices}"));
        let loaded = Loaded::with_sets(&args.config, &sets)?;
        let plan = train::Plan::new(&loaded.config, &loaded.splits, num_devices)?;
        Ok(Self { loaded, plan })
    }

    fn measure(&self) -> Result<Measured> {
        let graph = step::trace_step(&self.plan.spec(&*self.loaded.model))?;
        Ok(Measured {
            num_devices: self.plan.batch.data_parallel_size(),
            global_batch: self.plan.batch.global_batch(),
            work: Work::of(&graph, self.plan.precision.compute.size_bytes()),
            timeline: Timeline::of(&graph),
        })
    }

    fn with_step<T, E>(&self, run: impl FnOnce(&Step<'_>) -> Result<T, E>) -> Result<T>
    where
        anyhow::Error: From<E>,
    {
        let plan = &self.plan;
        let spec = plan.spec(&*self.loaded.model);
        let graph = step::trace_step(&spec)?;
        let program = ::hlo::lower(&plan.compile.formulation.apply(graph.clone()), "step");
        let overrides = plan.compile.options.overrides.clone();
        let knobs = Knobs {
            microbatch: plan.batch.microbatch(),
            num_microbatches: plan.batch.num_microbatches(),
            remat: remat(&self.loaded.config),
        };
        let state = spec.state_types()?;
        let step = Step {
            graph: &graph,
            program: &program,
            state: &state,
            element_bytes: plan.precision.compute.size_bytes(),
            knobs,
            overrides: &overrides,
        };
        Ok(run(&step)?)
    }
}

fn remat(config: &Config) -> Option<bool> {
    match &config.model {
        Model::Gpt(gpt) => Some(gpt.remat),
        Model::Mlp(_) | Model::ResNet(_) => None,
    }
}
