//! The compiled programs of a run.

use std::path::PathBuf;
use std::sync::{Mutex, Once, OnceLock};
use std::thread::{self, JoinHandle, ScopedJoinHandle};

use hlo::{Graph, Program, lower};

use super::{Error, Formulation};
use crate::metrics::say;
use crate::pjrt::{self, CacheOutcome, Client, CompileOptions, Executable, compile_cached};
use crate::step::{self, StepSpec};

/// Everything that is compiled for a run. What the first step does not need is compiled on a thread
/// while the first steps run.
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
    /// Compiles a program, or finds it compiled. A cache that cannot be written to is no reason to stop,
    /// but said.
    pub(super) fn compile(
        &self,
        client: &Client,
        program: &Program,
    ) -> Result<Executable, pjrt::Error> {
        let dir = self.cache_dir.as_deref();
        let (executable, outcome) = compile_cached(client, program, &self.options, dir)?;
        if let CacheOutcome::NotStored { reason } = outcome {
            static SAID: Once = Once::new();
            SAID.call_once(|| say(&format!("compiled programs are not kept: {reason}")));
        }
        Ok(executable)
    }
}

/// The step as it is compiled.
///
/// # Errors
/// As [`step::trace_step`].
pub fn step_graph(spec: &StepSpec<'_>, formulation: Formulation) -> Result<Graph, Error> {
    Ok(formulation.apply(step::trace_step(spec)?))
}

impl Programs {
    /// Traces all programs, and compiles those that the first step needs.
    ///
    /// # Errors
    /// A model that does not trace, or what the compiler reports.
    pub fn compile(
        client: &Client,
        spec: &StepSpec<'_>,
        step_graph: &Graph,
        settings: &CompileSettings,
    ) -> Result<Self, Error> {
        let init = lower(&step::trace_init(spec)?, "init");
        let step = lower(step_graph, "step");
        let (eval, eval_metrics) = step::trace_eval(spec)?;
        let eval = lower(&settings.formulation.apply(eval), "eval");
        let proof = lower(&step::trace_proof(spec.mesh, &spec.state_types()?)?, "proof");
        let steps = match settings.steps_per_launch {
            0 | 1 => None,
            many => Some(lower(&step::repeat_step(step_graph, many)?, "steps")),
        };
        let (init, step, steps) = thread::scope(|scope| {
            let start = |program| scope.spawn(move || settings.compile(client, program));
            let (init, steps) = (start(&init), steps.as_ref().map(start));
            let step = settings.compile(client, &step);
            (joined(init), step, steps.map(joined))
        });
        Ok(Self {
            init: init?,
            step: step?,
            steps: steps.transpose()?,
            eval: Background::start(client, eval, settings),
            proof: Background::start(client, proof, settings),
            eval_metrics,
        })
    }
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A program that is being compiled on a thread.
pub struct Background {
    thread: Mutex<Option<JoinHandle<Result<Executable, pjrt::Error>>>>,
    done: OnceLock<Result<Executable, String>>,
}

impl Background {
    fn start(client: &Client, program: Program, settings: &CompileSettings) -> Self {
        let (client, settings) = (client.clone(), settings.clone());
        let compile = move || settings.compile(&client, &program);
        Self { thread: Mutex::new(Some(thread::spawn(compile))), done: OnceLock::new() }
    }

    /// The program; waits for it if need be.
    ///
    /// # Errors
    /// What the compiler reports.
    pub fn get(&self) -> Result<&Executable, Error> {
        let done = self.done.get_or_init(|| {
            let thread = self.thread.lock().ok().and_then(|mut thread| thread.take());
            match thread.map(JoinHandle::join) {
                Some(Ok(result)) => result.map_err(|error| error.to_string()),
                Some(Err(_)) | None => Err("the compiling thread panicked".into()),
            }
        });
        done.as_ref().map_err(|reason| Error::Compile { reason: reason.clone() })
    }
}

/// A process must not end while a compiler runs on one of its threads.
impl Drop for Background {
    fn drop(&mut self) {
        // Nobody is left to be told of an error.
        let _ = self.get();
    }
}
