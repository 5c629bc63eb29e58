//! The probe: what the devices of this process take without waiting for others.
//!
//! It is the step's work for one microbatch, forward and backward, on the parameters as they are
//! and a batch of zeros. The results are not used, and the state is not changed.

use std::time::{Duration, Instant};

use hlo::{HostCalls, Literal, lower_isolated};
use models::Model;

use super::programs::{Callable, NamedLaunch, UncompiledProgram};
use super::trainer::replicated;
use super::{Error, Run, Trainer};
use crate::cluster::ProbeTime;
use crate::pjrt::{Arg, Buffers};
use crate::state::State;
use crate::step::{StepSpec, trace_probe};

/// Launches of a probe, enqueued together, so that the host does not count. The first is not timed.
/// The same number in all processes, as of all launches, and not more than may be in flight.
const NUM_LAUNCHES: usize = 8;

/// The program, and its arguments beside leaves of the state.
pub(super) struct DeviceProbe {
    program: Callable,
    /// Names of the leaves that it takes.
    leaves: Vec<String>,
    others: Vec<(String, Buffers)>,
}

impl DeviceProbe {
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
                skips_late: false,
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
        probe.launch(trainer.state())?.done.wait()?;
        Ok(probe)
    }

    /// The time of a launch.
    ///
    /// # Errors
    /// If a launch fails.
    pub fn time(&self, state: &State) -> Result<ProbeTime, Error> {
        let launch = |_| {
            let launched = self.launch(state)?;
            let end = launched.done.note_end()?;
            Ok((launched, end))
        };
        let launches = (0..NUM_LAUNCHES).map(launch).collect::<Result<Vec<_>, Error>>()?;
        launches.iter().try_for_each(|(launch, _)| launch.done.wait())?;
        // The end may be noted a moment after the wait for it.
        let ends = launches.iter().map(|(_, end)| end.get().unwrap_or_else(Instant::now));
        let ends: Vec<_> = ends.collect();
        Ok(mean(ends.windows(2).map(|pair| pair[1].saturating_duration_since(pair[0])).collect()))
    }

    fn launch(&self, state: &State) -> Result<NamedLaunch<'_>, Error> {
        let leaves = self.leaves.iter().filter_map(|path| state.get(path)).map(Arg::Borrow);
        self.program.call(leaves, |name| {
            let found = self.others.iter().find(|(other, _)| other == name);
            found.map(|(_, value)| Arg::Borrow(value))
        })
    }
}

fn mean(times: Vec<Duration>) -> ProbeTime {
    let num = times.len() as f64;
    let mean = times.iter().map(Duration::as_secs_f64).sum::<f64>() / num;
    let squares = times.iter().map(|time| (time.as_secs_f64() - mean).powi(2)).sum::<f64>();
    let [mean, error] = [mean, (squares / (num - 1.0) / num).sqrt()].map(Duration::from_secs_f64);
    ProbeTime { mean, error }
}
