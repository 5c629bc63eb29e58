//! What is recorded of the program of a step.

use hlo::count;

use super::memory::compiled_memory;
use super::report::step_collectives;
use super::{Error, Job, Run, Trainer};
use crate::observe::StepProgram;
use crate::targets::Chip;

/// What is known of the program of a step before it runs.
///
/// # Errors
/// Errors of the plugin.
pub(super) fn step_program(
    job: &Job<'_>,
    run: &Run,
    trainer: &Trainer,
) -> Result<StepProgram, Error> {
    let graph = trainer.step_graph();
    let chip = trainer.client().devices().first().and_then(|device| Chip::of_kind(&device.kind));
    // No chip here has matrix units for f64.
    let element_bytes = job.config.train.precision.dtypes().compute.size_bytes();
    let peak = chip.filter(|_| element_bytes <= 4).map(|chip| chip.flops_per_sec(element_bytes));
    let memory = compiled_memory(&trainer.step_program().executable)?;
    let ticks = run.pipeline(job.model).map(|pipeline| pipeline.picture());
    Ok(StepProgram {
        flops: count(graph).matmul_flops(),
        peak_flops_per_sec: peak,
        // Some plugins have the field, and leave it empty.
        peak_bytes: memory.map(|memory| memory.peak_bytes).filter(|bytes| *bytes > 0),
        temporary_bytes: memory.map(|memory| memory.temporary_bytes),
        collectives: step_collectives(graph),
        ticks: ticks.unwrap_or_default(),
    })
}
