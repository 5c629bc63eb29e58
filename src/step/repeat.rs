//! Several steps in one program.

use hlo::{Graph, trace};

use super::{BATCH, LEARNING_RATE, StepError, finish};

/// Where an iteration of the loop takes an input of the step from.
#[derive(Clone, Copy)]
enum Source {
    /// A result of the previous iteration, by its index among the carried values.
    Carried(usize),
    /// The iteration's slice of a stack, by the stack's index.
    Slice(usize),
    /// The same value in every iteration, by its index among the constants.
    Const(usize),
}

/// Repeats a step's graph `num_steps` times in one launch: state, seed, batches, rates -> state,
/// metrics, replica_loss.
///
/// The fields of the batch, the learning rate, `metrics` and `replica_loss` have a leading dim of
/// `num_steps`; the state is the one after the last step. Each iteration runs the given graph as it
/// is, including its grouped all_reduces.
///
/// # Errors
/// Never for a graph from [`super::trace_step`].
pub fn repeat_step(step: &Graph, num_steps: usize) -> Result<Graph, StepError> {
    let (state, others): (Vec<_>, Vec<_>) =
        step.outputs().iter().partition(|output| output.donated_input.is_some());
    finish(trace(*step.mesh(), |t| {
        let (mut consts, mut slices) = (vec![], vec![]);
        let mut carried = vec![None; state.len()];
        let sources: Vec<_> = step
            .inputs()
            .iter()
            .enumerate()
            .map(|(index, input)| {
                let (name, ty) = (&input.name, step.ty(input.value));
                if let Some(place) = state.iter().position(|x| x.donated_input == Some(index)) {
                    carried[place] = Some(t.input(name, ty.clone()));
                    Source::Carried(place)
                } else if name == LEARNING_RATE || name.starts_with(BATCH) {
                    let dims = [&[num_steps], &ty.dims[..]].concat();
                    slices.push(t.input(name, ty.with_dims(&dims)));
                    Source::Slice(slices.len() - 1)
                } else {
                    consts.push(t.input(name, ty.clone()));
                    Source::Const(consts.len() - 1)
                }
            })
            .collect();
        let carried: Vec<_> = carried.into_iter().flatten().collect();
        let (state_values, stacks) =
            t.scan(num_steps, &consts, &carried, &slices, |consts, carried, slices| {
                let inputs = sources.iter().map(|source| match *source {
                    Source::Carried(place) => carried[place],
                    Source::Slice(place) => slices[place],
                    Source::Const(place) => consts[place],
                });
                let inputs: Vec<_> = inputs.collect();
                let Some(first) = inputs.first() else { return (vec![], vec![]) };
                let results = first.tracer().inline(step, &inputs);
                let results = step.outputs().iter().zip(results);
                let (next, ys): (Vec<_>, Vec<_>) =
                    results.partition(|(output, _)| output.donated_input.is_some());
                let values = |results: Vec<(_, _)>| results.into_iter().map(|r| r.1).collect();
                (values(next), values(ys))
            });
        for (output, value) in state.iter().zip(state_values) {
            t.next_state(&output.name, value);
        }
        for (output, stack) in others.iter().zip(stacks) {
            t.output_varying(output.name.clone(), stack, output.varying);
        }
    })?)
}
