//! How a run is ended from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Error;

/// A request from outside that a run end: after the launches that are under way or, where there is none yet,
/// before the first step. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    requested: Arc<AtomicBool>,
    has_begun: Arc<AtomicBool>,
}

impl Stop {
    /// Asks the run to end.
    pub fn request(&self) {
        self.requested.store(true, Ordering::Relaxed);
    }

    /// The flag itself, for signal handlers, which can do no more than set it.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.requested.clone()
    }

    /// Has it been asked to end?
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }

    /// Has the run come to its first step?
    pub fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Relaxed)
    }

    /// The first step is next.
    pub(super) fn begin(&self) {
        self.has_begun.store(true, Ordering::Relaxed);
    }

    /// To be asked on the way to the first step.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.is_requested() { Err(Error::StoppedBeforeStart) } else { Ok(()) }
    }
}
