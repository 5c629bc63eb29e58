//! The directory that holds a run's checkpoints.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::{Checkpoint, Disk, Error, LocalDisk, Manifest};

/// What the names of checkpoints begin with.
const PREFIX: &str = "step_";
/// What the names of directories begin with that are not checkpoints yet, or no longer.
const UNFINISHED: &str = ".unfinished.";

pub(super) fn step_name(step: u64) -> String {
    format!("{PREFIX}{step:08}")
}

pub(super) fn unfinished_name(name: &str) -> String {
    format!("{UNFINISHED}{name}")
}

/// A complete checkpoint in a directory: it has a manifest, which has not been read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredCheckpoint {
    /// Steps that had been taken.
    pub step: u64,
    /// Its directory.
    pub path: PathBuf,
}

impl StoredCheckpoint {
    /// Opens it.
    ///
    /// # Errors
    /// As [`Checkpoint::open`], and if its directory has the name of another step.
    pub fn open(&self) -> Result<Checkpoint, Error> {
        let checkpoint = Checkpoint::open(&self.path)?;
        match checkpoint.run().step {
            step if step == self.step => Ok(checkpoint),
            step => Err(Error::Damaged {
                path: self.path.clone(),
                reason: format!("it was renamed: it was saved after {step} steps"),
            }),
        }
    }
}

/// A directory of checkpoints that only this process writes into, as long as this value lives.
#[derive(Debug)]
pub struct CheckpointDir {
    path: PathBuf,
    /// Locked, if the file system supports it.
    _lock: File,
}

impl CheckpointDir {
    /// Creates the directory if needed, locks it, and removes what a killed process has left unfinished.
    ///
    /// # Errors
    /// A directory that cannot be written, or that another process writes into.
    pub fn claim(path: &Path) -> Result<Self, Error> {
        let failed = Error::io("write into", path);
        fs::create_dir_all(path).map_err(&failed)?;
        tempfile::tempfile_in(path).map_err(&failed)?;
        let lock = File::open(path).map_err(&failed)?;
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            return Err(Error::InUse { path: path.to_owned() });
        }
        for entry in fs::read_dir(path).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            let is_unfinished =
                entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes());
            if is_unfinished && entry.file_type().map_err(&failed)?.is_dir() {
                fs::remove_dir_all(entry.path()).map_err(Error::io("remove", &entry.path()))?;
            }
        }
        // The directory itself may be new.
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            LocalDisk.sync_dir(parent).map_err(&failed)?;
        }
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The complete checkpoints in a directory, oldest first. None if there is no such directory.
    ///
    /// # Errors
    /// A directory that cannot be read.
    pub fn list(path: &Path) -> Result<Vec<StoredCheckpoint>, Error> {
        let entries = match fs::read_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            entries => entries.map_err(Error::io("read", path))?,
        };
        let mut found = vec![];
        for entry in entries {
            let entry = entry.map_err(Error::io("read", path))?;
            let name = entry.file_name();
            let step = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse().ok());
            let path = entry.path();
            if let Some(step) = step
                && path.join(Manifest::FILE).exists()
            {
                found.push(StoredCheckpoint { step, path });
            }
        }
        found.sort();
        Ok(found)
    }

    /// Opens the checkpoint at `path`, or the newest one if `path` is a directory of checkpoints.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn open(path: &Path) -> Result<Checkpoint, Error> {
        match Self::list(path)?.last() {
            Some(newest) => newest.open(),
            None => Checkpoint::open(path),
        }
    }

    /// Removes the checkpoints after more than `step` steps: a run that continues from there takes those steps again.
    /// Returns how many there were.
    ///
    /// # Errors
    /// What could not be removed.
    pub fn remove_after(&self, step: u64) -> Result<usize, Error> {
        let mut later = Self::list(&self.path)?;
        later.retain(|checkpoint| checkpoint.step > step);
        // The newest first: what is left of a removal that is cut off has no gap.
        later.iter().rev().try_for_each(|checkpoint| self.remove(checkpoint))?;
        Ok(later.len())
    }

    /// Removes a checkpoint. It stops being one before its files are removed.
    fn remove(&self, checkpoint: &StoredCheckpoint) -> Result<(), Error> {
        let unfinished = self.path.join(unfinished_name(&step_name(checkpoint.step)));
        let remove = || {
            LocalDisk.rename(&checkpoint.path, &unfinished)?;
            LocalDisk.remove_dir_all(&unfinished)
        };
        remove().map_err(Error::io("remove", &checkpoint.path))
    }

    /// Removes all checkpoints but the `keep` newest and those after a number of steps for which `is_kept` is true.
    ///
    /// # Errors
    /// What could not be removed.
    pub fn retain(&self, keep: usize, is_kept: impl Fn(u64) -> bool) -> Result<(), Error> {
        let all = Self::list(&self.path)?;
        let old = all.len().saturating_sub(keep);
        let mut old = all[..old].iter().filter(|checkpoint| !is_kept(checkpoint.step));
        old.try_for_each(|checkpoint| self.remove(checkpoint))
    }
}
