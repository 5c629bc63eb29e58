//! When this process computed the ops that programs leave to it, while that is asked for.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::call::HostTensor;

/// Ops that are kept until they are taken; of more the first.
const MAX_OPS: usize = 1 << 16;

/// `false` costs a call no more than reading it.
static IS_KEPT: AtomicBool = AtomicBool::new(false);
static OPS: Mutex<Vec<HostOp>> = Mutex::new(vec![]);

/// An op that this process has computed for a program.
#[derive(Clone, Debug, PartialEq)]
pub struct HostOp {
    /// StableHLO's name for it, or that of the kernel.
    pub name: &'static str,
    /// XLA's ordinal of the device.
    pub device_ordinal: i32,
    /// The types of its operands.
    pub operands: Vec<HostTensor>,
    /// From the call until the results were there. A collective waits for other replicas meanwhile.
    pub span: Range<Instant>,
}

/// From now on ops of all programs of the process are kept; or none, and those that were not taken
/// are forgotten.
pub fn keep_ops(is_kept: bool) {
    IS_KEPT.store(is_kept, Ordering::Relaxed);
    if !is_kept {
        lock().clear();
    }
}

/// The ops that began before `end`, by their beginning. The others are kept.
pub fn take_ops(end: Instant) -> Vec<HostOp> {
    let mut ops = lock();
    let (mut taken, left): (Vec<_>, Vec<_>) =
        std::mem::take(&mut *ops).into_iter().partition(|op| op.span.start < end);
    *ops = left;
    drop(ops);
    taken.sort_by_key(|op| op.span.start);
    taken
}

/// The beginning of an op, if ops are kept.
pub(super) fn begin_op() -> Option<Instant> {
    IS_KEPT.load(Ordering::Relaxed).then(Instant::now)
}

/// Keeps an op that ends now.
pub(super) fn end_op<'t>(
    begun: Instant,
    name: &'static str,
    device_ordinal: i32,
    operands: impl Iterator<Item = &'t HostTensor>,
) {
    let (span, operands) = (begun..Instant::now(), operands.cloned().collect());
    let mut ops = lock();
    if ops.len() < MAX_OPS {
        ops.push(HostOp { name, device_ordinal, operands, span });
    }
}

fn lock() -> MutexGuard<'static, Vec<HostOp>> {
    OPS.lock().unwrap_or_else(PoisonError::into_inner)
}
