//! One call of a collective by one replica.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use hlo::DType;

use super::abi::{self, Api};
use super::frame;
use super::launch::HostLaunch;
use super::op_log::{begin_op, end_op};
use super::site::CollectiveSite;
use crate::pjrt::Placement;

/// An operand or result of a [`HostCall`] or [`super::KernelCall`]: row-major, one byte per `pred`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTensor {
    /// The element type.
    pub dtype: DType,
    /// The dims on one replica.
    pub dims: Vec<usize>,
}

impl HostTensor {
    /// Size in bytes.
    pub fn num_bytes(&self) -> usize {
        self.dims.iter().product::<usize>() * self.dtype.size_bytes()
    }
}

/// The memory of a tensor of a call.
pub(super) struct TensorMemory {
    pub tensor: HostTensor,
    pub data: *mut u8,
}

/// The operands and results of a [`HostCall`] or [`super::KernelCall`], in order.
pub struct CallBuffers<'c> {
    /// The values of the operands.
    pub operands: Vec<&'c [u8]>,
    /// Memory for the results, with arbitrary contents.
    pub results: Vec<&'c mut [u8]>,
}

/// The memory of operands and results.
///
/// # Safety
/// It must be valid as long as the references to it, and be written by nobody else. That of results
/// must overlap no other.
pub(super) unsafe fn buffers<'c>(
    operands: &'c [TensorMemory],
    results: &'c mut [TensorMemory],
) -> CallBuffers<'c> {
    let operand = |memory: &'c TensorMemory| match memory.tensor.num_bytes() {
        0 => &[][..],
        // SAFETY: by this function's contract.
        len => unsafe { std::slice::from_raw_parts(memory.data, len) },
    };
    let result = |memory: &'c mut TensorMemory| match memory.tensor.num_bytes() {
        0 => &mut [][..],
        // SAFETY: as above.
        len => unsafe { std::slice::from_raw_parts_mut(memory.data, len) },
    };
    CallBuffers {
        operands: operands.iter().map(operand).collect(),
        results: results.iter_mut().map(result).collect(),
    }
}

/// A replica has arrived at a collective and its program waits for the results. Dropping the call
/// completes it with an error.
pub struct HostCall {
    launch: Arc<HostLaunch>,
    replica: usize,
    site: CollectiveSite,
    operands: Vec<TensorMemory>,
    results: Vec<TensorMemory>,
    /// When it began, if that is kept.
    begun: Option<Instant>,
    /// `None` once it has been completed.
    pending: Option<PendingCall>,
}

/// Tells XLA that a call is complete.
pub(super) struct PendingCall {
    pub api: *const Api,
    pub future: *mut abi::Future,
}

// SAFETY: XLA keeps the memory of operands and results, and the future, until the call is
// completed, on whatever thread. The API is static. All other fields can be sent.
unsafe impl Send for HostCall {}

impl HostCall {
    /// # Safety
    /// Each memory must be valid until `pending` is completed, written by nobody else, and that of
    /// results overlap no other.
    pub(super) unsafe fn new(
        launch: Arc<HostLaunch>,
        replica: usize,
        site: CollectiveSite,
        operands: Vec<TensorMemory>,
        results: Vec<TensorMemory>,
        pending: PendingCall,
    ) -> Self {
        let begun = begin_op();
        Self { launch, replica, site, operands, results, begun, pending: Some(pending) }
    }

    /// The launch's id, unique among the launches in flight of this process.
    pub fn launch_id(&self) -> i64 {
        self.launch.info().id
    }

    /// The launch's number among those of the client with host collectives, from 0. It is the same
    /// in all processes.
    pub fn launch_number(&self) -> u64 {
        self.launch.info().number
    }

    /// Identifies the program: the same in all processes that launch the same one.
    pub fn program_digest(&self) -> u64 {
        self.launch.info().program_digest
    }

    /// The replicas of the program, and those of this process.
    pub fn placement(&self) -> &Placement {
        self.launch.placement()
    }

    /// The replica that has arrived.
    pub fn replica(&self) -> usize {
        self.replica
    }

    /// The collective.
    pub fn site(&self) -> &CollectiveSite {
        &self.site
    }

    /// The types of the operands.
    pub fn operand_types(&self) -> impl ExactSizeIterator<Item = &HostTensor> {
        self.operands.iter().map(|memory| &memory.tensor)
    }

    /// The types of the results.
    pub fn result_types(&self) -> impl ExactSizeIterator<Item = &HostTensor> {
        self.results.iter().map(|memory| &memory.tensor)
    }

    /// The memory of operands and results.
    pub fn buffers(&mut self) -> CallBuffers<'_> {
        // SAFETY: by the contract of `new`, valid and not written until the call is completed,
        // which takes `self`, which is borrowed mutably.
        unsafe { buffers(&self.operands, &mut self.results) }
    }

    /// Completes the call: the results are written, or the program of this replica fails with
    /// `reason`. An error also fails the launch: see [`super::HostCollectives::fail`].
    pub fn complete(mut self, result: Result<(), &str>) {
        self.finish(result);
    }

    pub(super) fn launch(&self) -> &Arc<HostLaunch> {
        &self.launch
    }

    fn finish(&mut self, result: Result<(), &str>) {
        let Some(PendingCall { api, future }) = self.pending.take() else { return };
        if let Err(reason) = result {
            self.launch.fail(reason);
        }
        if let (Some(begun), Some(device)) = (self.begun, self.launch.device_of(self.replica)) {
            end_op(begun, self.site.kind.name(), device, self.operand_types());
        }
        // The program may continue on this thread.
        let _flushed = super::flush_denormals();
        // SAFETY: the API is static, and the future is live until it is completed, here and only
        // once.
        unsafe { frame::finish(api, future, result) };
    }
}

impl Drop for HostCall {
    fn drop(&mut self) {
        let (site, name) = (self.site.index, self.site.kind.name());
        if self.pending.is_some() {
            let replica = self.replica;
            self.finish(Err(&format!(
                "collective {site} ({name}) of replica {replica} was abandoned"
            )));
        }
    }
}

impl fmt::Debug for HostCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostCall")
            .field("launch", &self.launch)
            .field("replica", &self.replica)
            .field("site", &self.site)
            .finish_non_exhaustive()
    }
}
