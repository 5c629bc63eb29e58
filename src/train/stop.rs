//! How a run is ended from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Error;

/// A wish from outside that a run end: after the step that is under way or, where none has been taken yet,
/// before the first. Clones share the wish.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    is_wished: Arc<AtomicBool>,
    has_begun: Arc<AtomicBool>,
}

impl Stop {
    /// Asks the run to end.
    pub fn request(&self) {
        self.is_wished.store(true, Ordering::Relaxed);
    }

    /// The wish itself, for signal handlers, which can do no more than set it.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.is_wished.clone()
    }

    /// Has it been asked to end?
    pub fn is_requested(&self) -> bool {
        self.is_wished.load(Ordering::Relaxed)
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
