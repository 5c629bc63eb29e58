//! The ops of traced steps that this process computes itself.

use std::fmt::Write;
use std::ops::Range;
use std::time::Instant;

use super::Trainer;
use crate::observe::OpSpan;
use crate::pjrt::{self, HostOp};

/// Keeps the ops of the steps that are traced, and of no others: that takes time. Dropping ends it.
pub(super) struct TracedOps {
    /// None without a trace.
    steps: Option<Range<u64>>,
}

impl TracedOps {
    /// The ops of these steps.
    pub fn of(steps: Option<Range<u64>>) -> Self {
        Self { steps }
    }

    fn has(&self, steps: &Range<u64>) -> bool {
        self.steps.as_ref().is_some_and(|of| of.start < steps.end && steps.start < of.end)
    }

    /// Steps are about to be launched.
    pub fn launch(&self, steps: &Range<u64>) {
        if self.has(steps) {
            pjrt::keep_ops(true);
        }
    }

    /// The ops of a launch of these steps that has ended. It began when the one before had ended.
    pub fn take(
        &self,
        steps: &Range<u64>,
        span: &Range<Instant>,
        trainer: &Trainer,
    ) -> Vec<OpSpan> {
        if !self.has(steps) {
            return vec![];
        }
        // What began earlier was no part of these steps.
        let ops = pjrt::take_ops(span.end).into_iter().filter(|op| op.span.start >= span.start);
        let replica_of = trainer.replica_of_device();
        let traced = ops.filter_map(|op| {
            let replica = replica_of.iter().find(|(device, _)| *device == op.device_ordinal)?.1;
            Some(op_span(replica, &op))
        });
        let traced = traced.collect();
        if self.steps.as_ref().is_some_and(|of| of.end <= steps.end) {
            pjrt::keep_ops(false);
        }
        traced
    }
}

impl Drop for TracedOps {
    fn drop(&mut self) {
        if self.steps.is_some() {
            pjrt::keep_ops(false);
        }
    }
}

fn op_span(replica: usize, op: &HostOp) -> OpSpan {
    let mut operands = String::new();
    for (number, of) in op.operands.iter().enumerate() {
        let comma = if number > 0 { ", " } else { "" };
        // Writing to a String cannot fail.
        let _ = write!(operands, "{comma}{}{:?}", of.dtype, of.dims);
    }
    let bytes = op.operands.iter().map(|of| of.num_bytes() as u64).sum();
    OpSpan { name: op.name, replica, span: op.span.clone(), operands, bytes }
}
