//! A place for checkpoints that one process saves into.

use std::fmt;

use super::{Error, HostLeaf, Location, OtherProcesses, RunRecord};

/// A place that this process has claimed.
pub(super) trait Claim: fmt::Debug + Send + Sync {
    /// Saves a checkpoint and returns its place.
    fn save(
        &self,
        leaves: &[HostLeaf],
        run: RunRecord,
        others: &dyn OtherProcesses,
    ) -> Result<Location, Error>;

    /// Removes the checkpoint of this name. It stops being one before its files are removed.
    fn remove(&self, name: &str) -> Result<(), Error>;
}
