//! Which pass a stage runs at a tick, and what belongs to it in a stack.

use hlo::{Axis, DType, Tensor, Tracer};

use crate::parallel::PipelineSchedule;

/// A pass of this stage: u32 scalars, and a `pred` that is false where the stage is idle.
#[derive(Clone, Copy)]
pub(super) struct Turn<'g> {
    pub(super) microbatch: Tensor<'g>,
    pub(super) chunk: Tensor<'g>,
    pub(super) exists: Tensor<'g>,
    /// Its index in the order in which a stage runs its passes.
    pub(super) pass: Tensor<'g>,
}

impl<'g> Turn<'g> {
    /// The same with chunks counted from the last one, as the backward passes take them; and with
    /// the index of the forward pass.
    #[track_caller]
    pub(super) fn reversed(self, schedule: PipelineSchedule) -> Self {
        let chunk = (schedule.num_chunks() - 1) as f64 - self.chunk;
        let pass = self.pass - self.chunk * schedule.num_stages() as f64;
        Self { chunk, pass: pass + chunk * schedule.num_stages() as f64, ..self }
    }
}

/// This replica's stage, an i32 scalar.
#[track_caller]
pub(super) fn stage(t: &Tracer) -> Tensor<'_> {
    t.replica_id(Axis::Pipeline).convert(DType::I32)
}

/// The pass with this index, an i32 scalar, in the order in which a stage runs its passes; see
/// [`PipelineSchedule`].
#[track_caller]
pub(super) fn turn<'b>(schedule: PipelineSchedule, index: Tensor<'b>) -> Turn<'b> {
    let (stages, chunks) = (schedule.num_stages(), schedule.num_chunks());
    let num_passes = (chunks * schedule.num_microbatches()) as f64;
    let exists = index.greater_equal(0.0).and(index.less(num_passes));
    // After the last pass a stage goes on to microbatches that do not exist, so that it does not
    // write where it keeps the values of others.
    let index = index.maximum(0.0).convert(DType::U32);
    let group = index / (chunks * stages) as f64;
    let in_group = index.remainder((chunks * stages) as f64);
    let chunk = in_group / stages as f64;
    let microbatch = group * stages as f64 + in_group.remainder(stages as f64);
    Turn { microbatch, chunk, exists, pass: index }
}

/// The value at an index of a stack.
#[track_caller]
pub(super) fn at<'b>(stack: Tensor<'b>, index: Tensor<'b>) -> Tensor<'b> {
    match stack.dim(0) {
        1 => stack.reshape(&stack.shape()[1..]),
        _ => stack.index_leading(index),
    }
}

/// A stack with another value at an index.
#[track_caller]
pub(super) fn written<'b>(stack: Tensor<'b>, value: Tensor<'b>, index: Tensor<'b>) -> Tensor<'b> {
    let value = value.reshape(&[&[1], &value.shape()[..]].concat());
    if stack.dim(0) == 1 {
        return value;
    }
    let mut start = vec![index.full_like(0.0); value.rank()];
    start[0] = index;
    stack.dynamic_update_slice(value, &start)
}
