//! The compiled programs of a run.

use std::path::PathBuf;
use std::sync::{Mutex, Once, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, ScopedJoinHandle};
use std::time::Instant;

use hlo::{Graph, Program, TensorType, Tree, lower};

use super::{Error, Formulation};
use crate::observe::{StartupSpans, say};
use crate::pjrt::{self, CacheOutcome, Client, CompileOptions, Executable, compile_cached};
use crate::step::{self, StepSpec};

/// Everything that is compiled for a run. What the first step does not need is compiled on threads
/// behind it.
pub struct Programs {
    /// seed -> state.
    pub init: Executable,
    /// state, seed, batch, learning rate -> state, metrics, replica_loss.
    pub step: Executable,
    /// The same for `steps_per_launch` steps at once, if that is more than one.
    pub steps: Option<Executable>,
    /// params, batch, weight -> sums.
    pub eval: Background,
    /// state -> fingerprints, min, max.
    pub proof: Background,
    /// Names of the metrics behind loss and weight in the sums of `eval`.
    pub eval_metrics: Vec<&'static str>,
}

/// How programs are compiled.
#[derive(Clone, Debug, Default)]
pub struct CompileSettings {
    /// What is passed to the compiler.
    pub options: CompileOptions,
    /// How the step is written.
    pub formulation: Formulation,
    /// Steps of one launch.
    pub steps_per_launch: usize,
    /// Where compiled programs are kept.
    pub cache_dir: Option<PathBuf>,
}

impl CompileSettings {
    /// Compiles a program, or finds it compiled, which is told with it. A cache that cannot be written to is
    /// no reason to stop, but said.
    pub(super) fn compile(
        &self,
        client: &Client,
        program: &Program,
    ) -> Result<(Executable, bool), pjrt::Error> {
        let dir = self.cache_dir.as_deref();
        let (executable, outcome) = compile_cached(client, program, &self.options, dir)?;
        if let CacheOutcome::NotStored { reason } = &outcome {
            static SAID: Once = Once::new();
            SAID.call_once(|| say(&format!("compiled programs are not kept: {reason}")));
        }
        Ok((executable, matches!(outcome, CacheOutcome::Hit)))
    }
}

/// The step as it is compiled.
///
/// # Errors
/// As [`step::trace_step`].
pub fn step_graph(spec: &StepSpec<'_>, formulation: Formulation) -> Result<Graph, Error> {
    Ok(formulation.apply(step::trace_step(spec)?))
}

/// The program that makes the state, as it is compiled.
///
/// # Errors
/// As [`step::trace_init`].
pub(super) fn init_graph(spec: &StepSpec<'_>, formulation: Formulation) -> Result<Graph, Error> {
    Ok(formulation.apply(step::trace_init(spec)?))
}

/// The programs of a run as text: what is known before a plugin is loaded.
pub struct Traced {
    /// Types of the state's leaves, on one replica.
    pub types: Tree<TensorType>,
    /// The step's graph, for reports.
    pub step_graph: Graph,
    init: Program,
    step: Program,
    steps: Option<Program>,
    eval: Program,
    proof: Program,
    eval_metrics: Vec<&'static str>,
}

impl Traced {
    /// Traces all programs and writes them down.
    ///
    /// # Errors
    /// A model that does not trace.
    pub fn new(
        spec: &StepSpec<'_>,
        settings: &CompileSettings,
        spans: &StartupSpans,
    ) -> Result<Self, Error> {
        let lower = |graph: &Graph, name: &str| spans.time("write programs", || lower(graph, name));
        let types = spans.time("trace the model", || spec.state_types())?;
        let step_graph = spans.time("trace the step", || step_graph(spec, settings.formulation))?;
        let step = lower(&step_graph, "step");
        let steps = match settings.steps_per_launch {
            0 | 1 => None,
            many => Some(lower(&step::repeat_step(&step_graph, many)?, "steps")),
        };
        let init = spans.time("trace init", || init_graph(spec, settings.formulation))?;
        let (eval, eval_metrics) = spans.time("trace eval", || step::trace_eval(spec))?;
        let eval = settings.formulation.apply(eval);
        let proof = spans.time("trace proof", || step::trace_proof(spec.mesh, &types))?;
        Ok(Self {
            init: lower(&init, "init"),
            eval: lower(&eval, "eval"),
            proof: lower(&proof, "proof"),
            types,
            step_graph,
            step,
            steps,
            eval_metrics,
        })
    }

    /// Compiles those that the first step needs.
    ///
    /// # Errors
    /// What the compiler reports.
    pub fn compile(
        self,
        client: &Client,
        settings: &CompileSettings,
        spans: &StartupSpans,
    ) -> Result<(Programs, Tree<TensorType>, Graph), Error> {
        let compile = |program: &Program, name: &'static str| {
            let from = Instant::now();
            let (executable, hit) = settings.compile(client, program)?;
            let how = if hit { "load" } else { "compile" };
            spans.record(format!("{how} {name}"), from, Instant::now());
            Ok::<_, pjrt::Error>(executable)
        };
        let (init, step, steps) = thread::scope(|scope| {
            let init = scope.spawn(|| compile(&self.init, "init"));
            let steps =
                self.steps.as_ref().map(|steps| scope.spawn(|| compile(steps, "many steps")));
            let step = compile(&self.step, "the step");
            (joined(init), step, steps.map(joined))
        });
        let programs = Programs {
            init: init?,
            step: step?,
            steps: steps.transpose()?,
            eval: Background::new(client, self.eval, settings),
            proof: Background::new(client, self.proof, settings),
            eval_metrics: self.eval_metrics,
        };
        Ok((programs, self.types, self.step_graph))
    }
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A program that is compiled on a thread, from [`Self::start`] on or when it is needed.
pub struct Background {
    state: Mutex<State>,
    done: OnceLock<Result<Executable, String>>,
}

enum State {
    Waiting(Box<dyn FnOnce() -> Result<Executable, pjrt::Error> + Send>),
    Compiling(JoinHandle<Result<Executable, pjrt::Error>>),
    Done,
}

impl Background {
    fn new(client: &Client, program: Program, settings: &CompileSettings) -> Self {
        let (client, settings) = (client.clone(), settings.clone());
        let compile = move || Ok(settings.compile(&client, &program)?.0);
        Self { state: Mutex::new(State::Waiting(Box::new(compile))), done: OnceLock::new() }
    }

    /// Begins to compile, if that has not been done.
    pub fn start(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = match std::mem::replace(&mut *state, State::Done) {
            State::Waiting(compile) => State::Compiling(thread::spawn(compile)),
            later => later,
        };
    }

    /// The program; waits for it if need be.
    ///
    /// # Errors
    /// What the compiler reports.
    pub fn get(&self) -> Result<&Executable, Error> {
        let done = self.done.get_or_init(|| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let result = match std::mem::replace(&mut *state, State::Done) {
                State::Waiting(compile) => compile(),
                State::Compiling(thread) => match thread.join() {
                    Ok(result) => result,
                    Err(_) => return Err("the compiling thread panicked".into()),
                },
                State::Done => unreachable!("taken only here, once"),
            };
            result.map_err(|error| error.to_string())
        });
        done.as_ref().map_err(|reason| Error::Compile { reason: reason.clone() })
    }
}

/// A process must not end while a compiler runs on one of its threads.
impl Drop for Background {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let State::Compiling(thread) = std::mem::replace(state, State::Done) {
            // Nobody is left to be told of an error.
            let _ = thread.join();
        }
    }
}
