//! The programs of a run: lowered without a plugin, compiled, and called with arguments by name.

use std::path::PathBuf;
use std::sync::{Mutex, Once, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, ScopedJoinHandle};
use std::time::Instant;

use hlo::{Graph, HostCalls, LeafSpec, Mesh, Program, Tree, lower_isolated, row_specs};
use models::Model;

use super::{Error, Run};
use crate::cluster::device_order;
use crate::lowering::Lowered;
use crate::observe::{StartupSpans, say};
use crate::pjrt::{
    self, Arg, Buffers, CacheOutcome, Client, CompileOptions, Completion, DeviceDescription,
    Executable, Launch, OverrideValue, Platform, compile_cached, program_key,
};
use crate::step::{self, DeclaredStep, EvalSums, Results, Signature};
use crate::targets::{Chip, flags};

/// The XLA option by which the processes of a run divide the measuring of kernels among them while
/// they compile.
const SHARD_AUTOTUNING: &str = "xla_gpu_shard_autotuning";
/// Either one keeps XLA on GPUs from ops that round differently from run to run.
const ONLY_DETERMINISTIC: [&str; 2] =
    ["xla_gpu_exclude_nondeterministic_ops", "xla_gpu_deterministic_ops"];

/// How programs are compiled.
#[derive(Clone, Debug, Default)]
pub struct CompileSettings {
    /// XLA options, and the device of each replica.
    pub options: CompileOptions,
    /// The directory of the compile cache; `None` disables it.
    pub cache_dir: Option<PathBuf>,
    /// No op may round differently from run to run.
    pub is_deterministic: bool,
}

impl CompileSettings {
    /// Adds the options that make a platform's ops deterministic, if they must be.
    #[must_use]
    pub(super) fn on_platform(mut self, platform: Platform) -> Self {
        if self.is_deterministic && platform == Platform::Cuda {
            let overrides = &mut self.options.overrides;
            overrides.entry(ONLY_DETERMINISTIC[0].to_owned()).or_insert(OverrideValue::Bool(true));
        }
        self
    }

    /// `true` if a program with these options computes the same bits in each run. On an H100,
    /// matmuls, convolutions and attention did not unless XLA was told so.
    pub(super) fn repeats_bits(&self, platform: Platform) -> bool {
        let is_set = |name| self.options.overrides.get(name) == Some(&OverrideValue::Bool(true));
        platform != Platform::Cuda || ONLY_DETERMINISTIC.into_iter().any(is_set)
    }

    /// Completes the settings for a client's devices: assigns a device to each replica of the mesh,
    /// and adds the XLA options for the devices' chip if it is known, so that a run compiles what
    /// `lockstep compile` showed. Options set before take precedence.
    #[must_use]
    pub fn for_devices(mut self, client: &Client, mesh: &Mesh) -> Self {
        let devices = device_order(client.global_devices(), mesh);
        let ids = devices.iter().take(mesh.num_replicas()).map(|device| device.id);
        self.options.device_assignment = Some(ids.collect());
        let chip = client.devices().first().and_then(|device| Chip::of_kind(&device.kind));
        if let Some(chip) = chip {
            self.options.overrides = flags::with_overrides(chip, mesh, &self.options.overrides);
        }
        let is_elsewhere =
            |device: &DeviceDescription| device.process_index != client.process_index();
        if client.platform() == Platform::Cuda && client.global_devices().iter().any(is_elsewhere) {
            // Otherwise compiling waits for all processes to compile too, but most of them wait for
            // the cache.
            let overrides = &mut self.options.overrides;
            overrides.entry(SHARD_AUTOTUNING.to_owned()).or_insert(OverrideValue::Bool(false));
        }
        self
    }

    /// Compiles a program or loads it from the cache, in which case the flag is `true`. A cache
    /// that cannot be written is reported once and is no error.
    pub(super) fn compile(
        &self,
        client: &Client,
        program: &Program,
    ) -> Result<(Executable, bool), pjrt::Error> {
        let dir = self.cache_dir.as_deref();
        let (executable, outcome) = compile_cached(client, program, &self.options, dir)?;
        if let CacheOutcome::NotStored { reason } = &outcome {
            static SAID: Once = Once::new();
            SAID.call_once(|| say(&format!("compiled programs are not cached: {reason}")));
        }
        Ok((executable, matches!(outcome, CacheOutcome::Hit)))
    }
}

/// A compiled program with the names of its inputs and outputs.
pub struct Callable {
    /// The program.
    pub executable: Executable,
    signature: Signature,
}

/// A call that has been launched.
pub struct NamedLaunch<'c> {
    /// Its results by name.
    pub results: Results<'c, Buffers>,
    /// Completes when the launch has ended on all devices.
    pub done: Completion,
    /// The donated buffers; see [`Launch::spent`].
    pub spent: Vec<Buffers>,
}

impl Callable {
    /// Launches the program with leaves of the state, in order, and `other` arguments by name.
    ///
    /// # Errors
    /// If the arguments do not fit the program, or the launch fails.
    pub fn call<'a>(
        &self,
        leaves: impl IntoIterator<Item = Arg<'a>>,
        other: impl FnMut(&str) -> Option<Arg<'a>>,
    ) -> Result<NamedLaunch<'_>, Error> {
        let arguments = self.signature.arguments(leaves, other)?;
        let Launch { outputs, done, spent } = self.executable.execute(arguments)?;
        Ok(NamedLaunch { results: self.signature.results(outputs), done, spent })
    }
}

/// A program that has not been compiled yet.
pub(super) struct UncompiledProgram {
    pub program: Program,
    signature: Signature,
}

impl UncompiledProgram {
    pub fn new(
        program: Program,
        taken: impl Iterator<Item = impl AsRef<str>>,
        given: impl Iterator<Item = impl AsRef<str>>,
    ) -> Result<Self, Error> {
        let signature = Signature::new(&program, taken, given)?;
        Ok(Self { program, signature })
    }

    pub fn compiled(&self, executable: Executable) -> Callable {
        Callable { executable, signature: self.signature.clone() }
    }
}

/// The compiled programs of a run. Those that the first step does not need are compiled later, on
/// other threads.
pub struct Programs {
    /// seed -> state.
    pub init: Callable,
    /// state, seed, batch, learning rate -> state, metrics, replica_loss.
    pub step: Callable,
    /// The same for `steps_per_launch` steps at once, if that is more than one.
    pub steps: Option<Callable>,
    /// The programs of smaller batches; see [`Run::smaller_fields`].
    pub smaller: Vec<SmallerPrograms>,
    /// The step that is observed, for each size class of batches and then the full size; none if
    /// no step is.
    observed: Vec<Background>,
    /// params, model_state, batch, weight -> sums.
    pub eval: Background,
    /// state -> fingerprints, min, max.
    pub proof: Background,
    /// The layout of the sums of `eval`.
    pub eval_sums: EvalSums,
    /// Paths in the state of the leaves that evaluation reads and that files hold row by row, under
    /// their paths in the model.
    pub model_leaves: Tree<String>,
    /// The graph of the step that was compiled, for reports.
    pub step_graph: Graph,
    /// Hexadecimal hashes of everything that the compiled step depends on, and the programs of
    /// several steps and of smaller batches.
    pub step_key: String,
}

/// The programs of batches of a smaller size.
pub struct SmallerPrograms {
    /// As [`Programs::step`].
    step: Background,
    /// As [`Programs::eval`].
    eval: Background,
}

impl Programs {
    /// The step on a batch of a size class; see
    /// [`HostBatch::size_class`](crate::data::HostBatch::size_class).
    ///
    /// # Errors
    /// If the compiler fails.
    pub fn step_of_size_class(&self, size_class: usize) -> Result<&Callable, Error> {
        self.smaller.get(size_class).map_or(Ok(&self.step), |smaller| smaller.step.get())
    }

    /// As [`Self::step_of_size_class`], of a step that is observed.
    pub(super) fn observed_of_size_class(&self, size_class: usize) -> Result<&Callable, Error> {
        let programs = self.observed.get(size_class).or(self.observed.last());
        programs.map_or_else(|| self.step_of_size_class(size_class), Background::get)
    }

    /// The evaluation of a batch of a size class.
    ///
    /// # Errors
    /// If the compiler fails.
    pub fn eval_of_size_class(&self, size_class: usize) -> Result<&Callable, Error> {
        self.smaller.get(size_class).map_or(&self.eval, |smaller| &smaller.eval).get()
    }

    /// The programs that are compiled first.
    pub(super) fn first(&self) -> impl Iterator<Item = &Executable> {
        [&self.init, &self.step].into_iter().chain(&self.steps).map(|program| &program.executable)
    }

    /// The programs that evaluations and smaller batches need, and the first step does not.
    pub fn background(&self) -> impl Iterator<Item = &Background> {
        let smaller = self.smaller.iter().flat_map(|smaller| [&smaller.step, &smaller.eval]);
        self.observed.iter().chain(smaller).chain([&self.eval])
    }
}

/// The graphs of a run's programs.
pub(super) struct Traced<'r> {
    declared: DeclaredStep<'r>,
    init: Graph,
    step: Graph,
    eval: Graph,
    eval_sums: EvalSums,
    proof: Graph,
}

impl<'r> Traced<'r> {
    /// Traces all programs of a run.
    ///
    /// # Errors
    /// If the model does not trace, or the optimizer or the mesh does not fit it.
    pub fn new(run: &'r Run, model: &'r dyn Model, spans: &StartupSpans) -> Result<Self, Error> {
        let declared = spans.time("trace the model", || run.spec(model).declare())?;
        let step = spans.time("trace the step", || step::trace_step(&declared))?;
        let init = spans.time("trace init", || step::trace_init(&declared))?;
        let (eval, eval_sums) = spans.time("trace eval", || step::trace_eval(&declared))?;
        let proof =
            spans.time("trace proof", || step::trace_proof(run.plan.mesh, declared.leaves()))?;
        Ok(Self { declared, init, step, eval, eval_sums, proof })
    }
}

/// The programs of a run as text. They need no plugin.
pub struct LoweredPrograms {
    /// The leaves of the state.
    pub(super) leaves: Tree<LeafSpec>,
    model_leaves: Tree<String>,
    step_graph: Graph,
    init: UncompiledProgram,
    step: UncompiledProgram,
    steps: Option<UncompiledProgram>,
    /// Step and evaluation of smaller batches.
    smaller: Vec<[UncompiledProgram; 2]>,
    /// See [`Programs::observed`].
    observed: Vec<UncompiledProgram>,
    eval: UncompiledProgram,
    proof: UncompiledProgram,
    eval_sums: EvalSums,
}

impl LoweredPrograms {
    /// Traces all programs of a run and lowers them.
    ///
    /// # Errors
    /// If the model does not trace.
    pub fn new(run: &Run, model: &dyn Model, spans: &StartupSpans) -> Result<Self, Error> {
        Self::written(run, model, spans, |lowered, _| lowered)
    }

    /// The programs of the first replica of the mesh without communication, to measure its work.
    ///
    /// # Errors
    /// If the model does not trace.
    pub(super) fn of_one_replica(
        run: &Run,
        model: &dyn Model,
        spans: &StartupSpans,
    ) -> Result<Self, Error> {
        Self::written(run, model, spans, |lowered, name| {
            let calls = HostCalls { collectives: None, kernels: run.lowering.host_kernels };
            let program = lower_isolated(&lowered.graph, name, 1, calls);
            Lowered { program, ..lowered }
        })
    }

    /// The programs as `write` writes them.
    fn written(
        run: &Run,
        model: &dyn Model,
        spans: &StartupSpans,
        write: impl Fn(Lowered, &str) -> Lowered,
    ) -> Result<Self, Error> {
        let lower = |graph: Graph, name: &str| {
            spans.time("write programs", || write(run.lowering.lower(graph, name), name))
        };
        let Traced { declared, init, step, eval, eval_sums, proof } =
            Traced::new(run, model, spans)?;
        let leaves = declared.leaves();
        let model_leaves = declared.model_leaves();
        let none = || std::iter::empty::<&str>();

        let Lowered { graph: step_graph, program: step } = lower(step, "step");
        let steps = match run.steps_per_launch {
            0 | 1 => None,
            many => {
                let steps = step::repeat_step(&step_graph, many)?;
                // Its body is the step in the backend's form already.
                let written = || write(run.lowering.emit(steps, "steps"), "steps");
                let steps = spans.time("write programs", written);
                Some(UncompiledProgram::new(steps.program, leaves.paths(), leaves.paths())?)
            }
        };
        let eval_program = |declared: &DeclaredStep<'_>, eval| {
            UncompiledProgram::new(lower(eval, "eval").program, declared.eval_inputs(), none())
        };
        let mut observed = vec![];
        let mut observe = |declared: &DeclaredStep<'_>| {
            if let Some(diagnostics) = run.observed.diagnostics() {
                let traced = || step::trace_observed_step(declared, diagnostics);
                let step = lower(spans.time("trace the step", traced)?, "step").program;
                observed.push(UncompiledProgram::new(step, leaves.paths(), leaves.paths())?);
            }
            Ok::<_, Error>(())
        };
        let smaller = run.smaller_specs(model).map(|spec| {
            let declared = spans.time("trace the model", || spec.declare())?;
            observe(&declared)?;
            let step = spans.time("trace the step", || step::trace_step(&declared))?;
            let (eval, _) = spans.time("trace eval", || step::trace_eval(&declared))?;
            let step = lower(step, "step").program;
            let step = UncompiledProgram::new(step, leaves.paths(), leaves.paths())?;
            Ok([step, eval_program(&declared, eval)?])
        });
        let smaller = smaller.collect::<Result<_, Error>>()?;
        observe(&declared)?;
        Ok(Self {
            init: UncompiledProgram::new(lower(init, "init").program, none(), leaves.paths())?,
            step: UncompiledProgram::new(step, leaves.paths(), leaves.paths())?,
            steps,
            smaller,
            observed,
            eval: eval_program(&declared, eval)?,
            proof: UncompiledProgram::new(lower(proof, "proof").program, leaves.paths(), none())?,
            eval_sums,
            leaves: leaves.clone(),
            model_leaves,
            step_graph,
        })
    }

    /// As [`Trainer::model_specs`](super::Trainer::model_specs).
    pub(super) fn model_specs(&self) -> Tree<LeafSpec> {
        row_specs(&self.model_leaves.map(|_, path| self.leaves[path].clone()))
    }

    /// Compiles the programs that the first step needs.
    ///
    /// # Errors
    /// If the compiler fails.
    pub fn compile(
        self,
        client: &Client,
        settings: &CompileSettings,
        spans: &StartupSpans,
    ) -> Result<Programs, Error> {
        let compile = |program: &UncompiledProgram, name: &'static str| {
            let from = Instant::now();
            let (executable, hit) = settings.compile(client, &program.program)?;
            let how = if hit { "load" } else { "compile" };
            spans.record(format!("{how} {name}"), from, Instant::now());
            Ok::<_, pjrt::Error>(program.compiled(executable))
        };
        let (init, step, steps) = thread::scope(|scope| {
            let init = scope.spawn(|| compile(&self.init, "init"));
            let steps =
                self.steps.as_ref().map(|steps| scope.spawn(|| compile(steps, "many steps")));
            let step = compile(&self.step, "the step");
            (joined(init), step, steps.map(joined))
        });
        let smaller = self.smaller.iter().map(|[step, _]| step);
        let compiled = std::iter::once(&self.step).chain(&self.steps).chain(smaller);
        let compiled = compiled.chain(&self.observed);
        let keys = compiled.map(|step| program_key(client, &step.program, &settings.options));
        let smaller_programs = |[step, eval]: [UncompiledProgram; 2]| SmallerPrograms {
            step: Background::new(client, step, settings),
            eval: Background::new(client, eval, settings),
        };
        let step_key = keys.collect::<Result<Vec<_>, _>>()?.join(" ");
        Ok(Programs {
            step_key,
            init: init?,
            step: step?,
            steps: steps.transpose()?,
            smaller: self.smaller.into_iter().map(smaller_programs).collect(),
            observed: self
                .observed
                .into_iter()
                .map(|program| Background::new(client, program, settings))
                .collect(),
            eval: Background::new(client, self.eval, settings),
            proof: Background::new(client, self.proof, settings),
            eval_sums: self.eval_sums,
            model_leaves: self.model_leaves,
            step_graph: self.step_graph,
        })
    }

    /// Compiles all programs for others to load.
    ///
    /// # Errors
    /// If the compiler fails.
    pub(super) fn compile_into_cache(
        self,
        client: &Client,
        settings: &CompileSettings,
    ) -> Result<(), Error> {
        let first = [self.step, self.init].into_iter().chain(self.steps);
        let later = [self.eval, self.proof].into_iter().chain(self.smaller.into_iter().flatten());
        for UncompiledProgram { program, .. } in first.chain(later).chain(self.observed) {
            settings.compile(client, &program)?;
        }
        Ok(())
    }
}

/// Compiles a program that few runs need, when it is needed. It takes one leaf of the state.
///
/// # Errors
/// If the compiler fails.
pub(super) fn compile_late(
    client: &Client,
    settings: &CompileSettings,
    lowered: Lowered,
) -> Result<Callable, Error> {
    let program = lowered.program;
    let leaves: Vec<_> = program.inputs.iter().map(|input| input.name.clone()).collect();
    let uncompiled = UncompiledProgram::new(program, leaves.iter(), std::iter::empty::<&str>())?;
    let executable = settings.compile(client, &uncompiled.program)?.0;
    Ok(uncompiled.compiled(executable))
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A program that is compiled in the background after [`Self::start`], or when it is first needed.
pub struct Background {
    state: Mutex<CompileState>,
    done: OnceLock<Result<Callable, String>>,
}

enum CompileState {
    Waiting(Box<dyn FnOnce() -> Result<Callable, pjrt::Error> + Send>),
    Compiling(JoinHandle<Result<Callable, pjrt::Error>>),
    Done,
}

impl Background {
    fn new(client: &Client, program: UncompiledProgram, settings: &CompileSettings) -> Self {
        let (client, settings) = (client.clone(), settings.clone());
        let compile = move || Ok(program.compiled(settings.compile(&client, &program.program)?.0));
        Self { state: Mutex::new(CompileState::Waiting(Box::new(compile))), done: OnceLock::new() }
    }

    /// Starts compiling, unless it was started before.
    pub fn start(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = match std::mem::replace(&mut *state, CompileState::Done) {
            CompileState::Waiting(compile) => CompileState::Compiling(thread::spawn(compile)),
            later => later,
        };
    }

    /// The program. Blocks until it is compiled.
    ///
    /// # Errors
    /// If the compiler fails.
    pub fn get(&self) -> Result<&Callable, Error> {
        let done = self.done.get_or_init(|| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let result = match std::mem::replace(&mut *state, CompileState::Done) {
                CompileState::Waiting(compile) => compile(),
                CompileState::Compiling(thread) => match thread.join() {
                    Ok(result) => result,
                    Err(_) => return Err("the compiling thread panicked".into()),
                },
                CompileState::Done => unreachable!("taken only here, once"),
            };
            result.map_err(|error| error.to_string())
        });
        done.as_ref().map_err(|reason| Error::Compile { reason: reason.clone() })
    }
}

/// Waits for the compiler, because a process must not exit while it runs on one of the threads.
impl Drop for Background {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let CompileState::Compiling(thread) = std::mem::replace(state, CompileState::Done) {
            // An error no longer matters, since the program is not needed.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_on_gpus_do_programs_need_options_to_repeat_their_bits() {
        for is_deterministic in [false, true] {
            let settings = CompileSettings { is_deterministic, ..CompileSettings::default() };
            let on_gpus = settings.clone().on_platform(Platform::Cuda);
            assert_eq!(on_gpus.repeats_bits(Platform::Cuda), is_deterministic);
            let on_cpus = settings.on_platform(Platform::Cpu);
            assert!(on_cpus.repeats_bits(Platform::Cpu));
            assert!(on_cpus.options.overrides.is_empty());
        }
    }

    #[test]
    fn an_option_of_the_user_stays() {
        let mut settings = CompileSettings { is_deterministic: true, ..CompileSettings::default() };
        let overrides = &mut settings.options.overrides;
        overrides.insert(ONLY_DETERMINISTIC[0].to_owned(), OverrideValue::Bool(false));
        assert!(!settings.on_platform(Platform::Cuda).repeats_bits(Platform::Cuda));
    }
}
