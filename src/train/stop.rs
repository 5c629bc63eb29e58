//! Ending a run from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Error;

/// A request to end a run: after the launches in flight, or before the first step if there are none
/// yet. A run that goes on can be asked to save a checkpoint. Clones share the requests.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    requested: Arc<AtomicBool>,
    has_begun: Arc<AtomicBool>,
    save_requested: Arc<AtomicBool>,
    is_regrouping: Arc<AtomicBool>,
}

impl Stop {
    /// Requests the end of the run.
    pub fn request(&self) {
        self.requested.store(true, Ordering::Relaxed);
    }

    /// The flag itself, for signal handlers, which can only set it.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.requested.clone()
    }

    /// `true` if the end has been requested.
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    /// The flag that requests a checkpoint after the launches in flight, for signal handlers.
    pub fn save_flag(&self) -> Arc<AtomicBool> {
        self.save_requested.clone()
    }

    /// `true` if a checkpoint has been requested since the last call.
    pub(super) fn take_save_request(&self) -> bool {
        self.save_requested.swap(false, Ordering::Relaxed)
    }

    /// `true` if the run has ended here because it goes on in processes of other hosts.
    pub fn is_regrouping(&self) -> bool {
        self.is_regrouping.load(Ordering::Relaxed)
    }

    /// The run ends here, and goes on in processes of other hosts.
    pub(super) fn regroup(&self) {
        self.is_regrouping.store(true, Ordering::Relaxed);
    }

    /// `true` if the run has reached its first step.
    pub fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    /// Marks that the run has reached its first step.
    pub(super) fn begin(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
    }

    /// Returns an error if the end has been requested. For the time before the first step.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.is_requested() { Err(Error::StoppedBeforeStart) } else { Ok(()) }
    }
}
