//! The compiled programs of a run.

use std::thread;

use hlo::{Graph, lower};

use super::Error;
use crate::parallel::group_all_reduces;
use crate::pjrt::{Client, CompileOptions, Executable};
use crate::step::{self, StepSpec};

/// Everything that is compiled before the first step.
pub struct Programs {
    /// seed -> state.
    pub init: Executable,
    /// state, seed, batch, learning rate -> state, metrics, replica_loss.
    pub step: Executable,
    /// params, batch, weight -> sums.
    pub eval: Executable,
    /// state -> fingerprints, min, max.
    pub proof: Executable,
    /// Names of the metrics behind loss and weight in the sums of `eval`.
    pub eval_metrics: Vec<&'static str>,
}

/// How programs are compiled.
#[derive(Clone, Debug, Default)]
pub struct CompileSettings {
    /// What is passed to the compiler.
    pub options: CompileOptions,
    /// All_reduces are grouped up to this many bytes; 0 groups none.
    pub bucket_bytes: u64,
    /// Where compiled programs are kept.
    pub cache_dir: Option<std::path::PathBuf>,
}

/// The step as it is compiled: traced, and its all_reduces grouped.
///
/// # Errors
/// As [`step::trace_step`].
pub fn step_graph(spec: &StepSpec<'_>, bucket_bytes: u64) -> Result<Graph, Error> {
    Ok(group(step::trace_step(spec)?, bucket_bytes))
}

/// A graph with its all_reduces grouped; 0 groups none.
pub fn group(graph: Graph, bucket_bytes: u64) -> Graph {
    if bucket_bytes == 0 { graph } else { group_all_reduces(&graph, bucket_bytes) }
}

impl Programs {
    /// Traces and compiles, several at a time: they do not depend on each other, and a compiler does not
    /// fill the cores.
    ///
    /// # Errors
    /// A model that does not trace, or what the compiler reports.
    pub fn compile(
        client: &Client,
        spec: &StepSpec<'_>,
        step_graph: &Graph,
        settings: &CompileSettings,
    ) -> Result<Self, Error> {
        let init = step::trace_init(spec)?;
        let (eval, eval_metrics) = step::trace_eval(spec)?;
        let proof = step::trace_proof(spec.mesh, &spec.state_types()?)?;
        let named = [("step", step_graph), ("init", &init), ("eval", &eval), ("proof", &proof)];
        let compiled = thread::scope(|scope| {
            let threads = named.map(|(name, graph)| {
                scope.spawn(move || client.compile(&lower(graph, name), &settings.options))
            });
            threads.map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        });
        let [step, init, eval, proof] = compiled;
        Ok(Self { init: init?, step: step?, eval: eval?, proof: proof?, eval_metrics })
    }
}
