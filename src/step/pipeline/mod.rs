//! Accumulation by a pipeline: the microbatches pass the stages along the axis `pipeline`, several
//! at a time.
//!
//! A tick has three parts. What a part sends travels during the next, so no stage waits for it:
//!
//! ```text
//! 1  the gradient of the last tick to the previous stage,   forward pass of a chunk
//!    rows of the last result to all stages
//! 2                                                         head on these rows
//! 3  the result to the next stage,                          backward pass of a chunk
//!    the gradients of the rows to the last stage
//! ```
//! Which pass a stage runs at a tick is computed from the tick and the stage, as
//! [`PipelineSchedule`] says. A stage that is idle runs a pass all the same, like all replicas; its
//! values are selected away.

mod carry;
mod head;
mod tick;
mod turn;

use hlo::{DType, Tree};
use models::Pipelined;

use super::DeclaredStep;
use super::accumulate::{Accumulate, Sequential, Sums};
use super::declare::StepParam;
use super::inputs::StepInputs;
use crate::parallel::{PipelineSchedule, TickPhase};
use carry::TickInputs;
use tick::Tick;

/// Microbatches in the order of a schedule.
pub(super) struct Pipeline<'m> {
    pub model: &'m dyn Pipelined,
    pub schedule: PipelineSchedule,
}

impl Accumulate for Pipeline<'_> {
    fn sums<'g>(
        &self,
        step: &DeclaredStep<'_>,
        inputs: &StepInputs<'g>,
        params: &Tree<StepParam<'g>>,
        is_training: bool,
    ) -> Sums<'g> {
        if !is_training {
            return Sequential.sums(step, inputs, params, false);
        }
        let t = inputs.step.tracer();
        let given = TickInputs::new(step, inputs, params);
        let Some(tick) = Tick::new(self, step, &given) else {
            // The trace has an error.
            return Sequential.sums(step, inputs, params, true);
        };
        let mut carry = tick.start(given);
        for TickPhase { start, num_ticks, forward, backward } in self.schedule.phases() {
            if num_ticks == 0 {
                continue;
            }
            let values = t.fori_loop(num_ticks as u32, &carry.values(), |index, values| {
                let number = index.convert(DType::I32) + start as f64;
                let carry = carry.with(values);
                tick.run(number, carry, forward, backward).values()
            });
            carry = carry.with(&values);
        }
        tick.finish(params, &carry)
    }
}
