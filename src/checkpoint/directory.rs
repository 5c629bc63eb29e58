//! The place that holds a run's checkpoints.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use hlo::counted;

use super::claim::Claim;
use super::names::{UNFINISHED, step_of, unfinished_name};
use super::objects;
use super::together::NoOthers;
use super::write::save_together;
use super::{
    Checkpoint, Disk, Error, HostLeaf, LocalDisk, Location, Manifest, OtherProcesses, RunRecord,
};

/// A complete checkpoint in a directory: it has a manifest, which has not been read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredCheckpoint {
    /// Steps that had been taken.
    pub step: u64,
    /// Where it is.
    pub location: Location,
}

impl StoredCheckpoint {
    /// Opens it.
    ///
    /// # Errors
    /// As [`Checkpoint::open`], and if its directory has the name of another step.
    pub fn open(&self) -> Result<Checkpoint, Error> {
        let checkpoint = Checkpoint::open(&self.location)?;
        match checkpoint.run().step {
            step if step == self.step => Ok(checkpoint),
            step => Err(Error::Damaged {
                path: self.location.clone(),
                reason: format!("it was renamed: it was saved after {}", counted(step, "step")),
            }),
        }
    }
}

/// A place for checkpoints that only this process saves into, as long as this value lives.
#[derive(Debug)]
pub struct CheckpointDir {
    location: Location,
    claim: Box<dyn Claim>,
}

impl CheckpointDir {
    /// Creates the directory if needed, locks it, and removes what a killed process has left
    /// unfinished. In an object store, the directory is taken from a process that has claimed it
    /// before; the next save of that process then fails.
    ///
    /// # Errors
    /// A place that cannot be written, or a directory that another process writes into.
    pub fn claim(location: impl Into<Location>) -> Result<Self, Error> {
        let location = location.into();
        let claim = match &location {
            Location::Path(path) => Box::new(LocalClaim::new(path)?),
            Location::Url(url) => objects::claim(url)?,
        };
        Ok(Self { location, claim })
    }

    /// Where it is.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Saves a checkpoint and returns its place. It exists when all of it is stored; an earlier one
    /// of the same step is replaced.
    ///
    /// # Errors
    /// A file that cannot be written, or in an object store, another process that has claimed the
    /// place.
    pub fn save(&self, leaves: &[HostLeaf], run: RunRecord) -> Result<Location, Error> {
        self.save_together(leaves, run, &NoOthers)
    }

    /// [`Self::save`] with the other processes of the run; each process writes a shard.
    ///
    /// # Errors
    /// As [`Self::save`], for any of them.
    pub fn save_together(
        &self,
        leaves: &[HostLeaf],
        run: RunRecord,
        others: &dyn OtherProcesses,
    ) -> Result<Location, Error> {
        self.claim.save(leaves, run, others)
    }

    /// The complete checkpoints in a place, oldest first. None if there is no such directory.
    ///
    /// # Errors
    /// A place that cannot be read.
    pub fn list(location: impl Into<Location>) -> Result<Vec<StoredCheckpoint>, Error> {
        let location = location.into();
        let mut found = vec![];
        match &location {
            Location::Path(path) => {
                found = named_local(path, |dir| dir.join(Manifest::FILE).exists())?;
            }
            Location::Url(url) => {
                for (step, name) in objects::list(url)? {
                    found.push(StoredCheckpoint { step, location: location.join(&name) });
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// Entries with the name of a checkpoint but without a manifest, oldest first. In a directory,
    /// such an entry has lost its manifest: a save that has not ended, and a checkpoint that is
    /// being removed, have other names. In an object store it may also be a save that was cut off,
    /// or one that is in progress.
    ///
    /// # Errors
    /// A place that cannot be read.
    pub fn incomplete(location: impl Into<Location>) -> Result<Vec<StoredCheckpoint>, Error> {
        let location = location.into();
        let mut found = match &location {
            Location::Path(path) => named_local(path, |dir| !dir.join(Manifest::FILE).exists())?,
            Location::Url(url) => {
                let names = objects::unfinished(url)?.into_iter();
                let stored = |(step, name): (u64, String)| StoredCheckpoint {
                    step,
                    location: location.join(&name),
                };
                names.map(stored).collect()
            }
        };
        found.sort();
        Ok(found)
    }

    /// Opens the checkpoint at a place, or the newest one if it is a directory of checkpoints.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn open(location: impl Into<Location>) -> Result<Checkpoint, Error> {
        let location = location.into();
        match Self::list(&location)?.last() {
            Some(newest) => newest.open(),
            None => Checkpoint::open(location),
        }
    }

    /// Removes the checkpoints after more than `step` steps: a run that continues from there takes
    /// those steps again. Returns how many there were.
    ///
    /// # Errors
    /// A file that cannot be removed.
    pub fn remove_after(&self, step: u64) -> Result<usize, Error> {
        let mut later = Self::list(&self.location)?;
        later.retain(|checkpoint| checkpoint.step > step);
        // The newest first: what is left of a removal that is cut off has no gap.
        later
            .iter()
            .rev()
            .try_for_each(|checkpoint| self.claim.remove(checkpoint.location.name()))?;
        Ok(later.len())
    }

    /// Removes all checkpoints but the `keep` newest and those after a number of steps for which
    /// `is_kept` is `true`.
    ///
    /// # Errors
    /// A file that cannot be removed.
    pub fn retain(&self, keep: usize, is_kept: impl Fn(u64) -> bool) -> Result<(), Error> {
        let all = Self::list(&self.location)?;
        let old = all.len().saturating_sub(keep);
        let mut old = all[..old].iter().filter(|checkpoint| !is_kept(checkpoint.step));
        old.try_for_each(|checkpoint| self.claim.remove(checkpoint.location.name()))
    }
}

/// A directory on a local file system.
#[derive(Debug)]
struct LocalClaim {
    path: PathBuf,
    /// Locked, if the file system supports it.
    _lock: File,
}

impl LocalClaim {
    fn new(path: &Path) -> Result<Self, Error> {
        let failed = Error::io("write into", path);
        fs::create_dir_all(path).map_err(&failed)?;
        tempfile::tempfile_in(path).map_err(&failed)?;
        let lock = File::open(path).map_err(&failed)?;
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            return Err(Error::InUse { path: path.into(), by: "another process".to_owned() });
        }
        for entry in fs::read_dir(path).map_err(&failed)? {
            let entry = entry.map_err(&failed)?;
            let is_unfinished =
                entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes());
            if is_unfinished && entry.file_type().map_err(&failed)?.is_dir() {
                fs::remove_dir_all(entry.path()).map_err(Error::io("remove", entry.path()))?;
            }
        }
        // The directory itself may be new.
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            LocalDisk.sync_dir(parent).map_err(&failed)?;
        }
        Ok(Self { path: path.to_owned(), _lock: lock })
    }
}

impl Claim for LocalClaim {
    fn save(
        &self,
        leaves: &[HostLeaf],
        run: RunRecord,
        others: &dyn OtherProcesses,
    ) -> Result<Location, Error> {
        save_together(&LocalDisk, &self.path, leaves, run, others).map(Location::Path)
    }

    fn remove(&self, name: &str) -> Result<(), Error> {
        let (path, unfinished) = (self.path.join(name), self.path.join(unfinished_name(name)));
        let remove = || {
            LocalDisk.rename(&path, &unfinished)?;
            LocalDisk.remove_dir_all(&unfinished)
        };
        remove().map_err(Error::io("remove", &path))
    }
}

/// The directories in another one that have the name of a checkpoint, and for which `is_wanted`.
fn named_local(
    path: &Path,
    is_wanted: impl Fn(&Path) -> bool,
) -> Result<Vec<StoredCheckpoint>, Error> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.map_err(Error::io("read", path))?,
    };
    let mut found = vec![];
    for entry in entries {
        let entry = entry.map_err(Error::io("read", path))?;
        let name = entry.file_name();
        if let Some(step) = name.to_str().and_then(step_of)
            && entry.path().is_dir()
            && is_wanted(&entry.path())
        {
            found.push(StoredCheckpoint { step, location: Location::Path(entry.path()) });
        }
    }
    Ok(found)
}
