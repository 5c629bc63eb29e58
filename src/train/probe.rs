//! The probe: what the devices of this process take without waiting for others.
//!
//! It is the step's work for one microbatch, forward and backward, on the parameters as they are
//! and a batch of zeros. The results are not used, and the state is not changed.

use std::time::{Duration, Instant};

use hlo::{HostCalls, Literal, lower_isolated};
use models::Model;

use super::programs::{Callable, UncompiledProgram};
use super::trainer::replicated;
use super::{Error, Run, Trainer};
use crate::pjrt::{Arg, Buffers};
use crate::state::State;
use crate::step::{StepSpec, trace_probe};

/// Launches of a probe, enqueued together, so that the host does not count. The same number in all
/// processes, as of all launches.
const NUM_LAUNCHES: u32 = 4;

/// The program, and its arguments beside leaves of the state.
pub(super) struct Probe {
    program: Callable,
    /// Names of the leaves that it takes.
    leaves: Vec<String>,
    others: Vec<(String, Buffers)>,
}

impl Probe {
    /// Compiles the program and launches it once.
    ///
    /// # Errors
    /// If the model does not trace, the compiler fails, or a launch fails.
    pub fn new(trainer: &Trainer, run: &Run, model: &dyn Model) -> Result<Self, Error> {
        let whole = run.spec(model);
        let spec = match run.pipeline(model) {
            // Stages have work for several microbatches only.
            Some(_) => whole,
            None => StepSpec {
                num_microbatches: 1,
                num_global_microbatches: run.batch.num_batch_shards(),
                ..whole
            },
        };
        let graph = run.lowering.lower(trace_probe(&spec.declare()?)?, "probe").graph;
        let calls = HostCalls {
            collectives: run.lowering.host_collectives,
            kernels: run.lowering.host_kernels,
        };
        let program = lower_isolated(&graph, "probe", run.plan.mesh.num_replicas(), calls);
        let is_leaf = |name: &&str| trainer.state().specs().get(name).is_some();
        let names = || program.inputs.iter().map(|input| input.name.as_str());
        let leaves: Vec<_> = names().filter(is_leaf).map(str::to_owned).collect();
        let uncompiled =
            UncompiledProgram::new(program, leaves.iter(), std::iter::empty::<&str>())?;
        let executable = trainer.settings.compile(&trainer.client, &uncompiled.program)?.0;
        let program = uncompiled.compiled(executable);
        let placement = program.executable.placement();
        let inputs = uncompiled.program.inputs.iter();
        let others = inputs.filter(|input| !leaves.contains(&input.name)).map(|input| {
            let zeros = Literal::zeros(input.ty.dtype, &input.ty.dims);
            let zeros = trainer.client.upload_on(placement, &replicated(zeros, placement))?;
            Ok((input.name.clone(), zeros))
        });
        let others = others.collect::<Result<_, Error>>()?;
        let probe = Self { program, leaves, others };
        // The first launch allocates memory.
        probe.time(trainer.state())?;
        Ok(probe)
    }

    /// The time of a launch.
    ///
    /// # Errors
    /// If a launch fails.
    pub fn time(&self, state: &State) -> Result<Duration, Error> {
        let begun = Instant::now();
        let launch = |_| {
            let leaves = self.leaves.iter().filter_map(|path| state.get(path)).map(Arg::Borrow);
            let other = |name: &str| {
                let found = self.others.iter().find(|(other, _)| other == name);
                found.map(|(_, value)| Arg::Borrow(value))
            };
            self.program.call(leaves, other)
        };
        let launches = (0..NUM_LAUNCHES).map(launch).collect::<Result<Vec<_>, _>>()?;
        launches.iter().try_for_each(|launch| launch.done.wait())?;
        Ok(begun.elapsed() / NUM_LAUNCHES)
    }
}
