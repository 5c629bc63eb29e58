//! Writing a checkpoint.

use std::fs;
use std::io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, InvalidInput, Unsupported};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::names::{shard_name, step_name, unfinished_name};
use super::objects;
use super::shard::write_shard_file;
use super::together::{NoOthers, combine};
use super::{
    Disk, Error, FileRecord, HostLeaf, LocalDisk, Location, Manifest, OtherProcesses, RunRecord,
    SavedShard, ShardPlace,
};

/// Writes `DIR/step_00000500` and returns its path. The directory appears when everything is on the
/// disk; a save that fails or is killed leaves at most a directory with a dot in front of its name,
/// which the next run removes. An earlier checkpoint of the same step is replaced.
///
/// # Errors
/// A file that cannot be written.
pub fn save<D: Disk>(
    disk: &D,
    dir: &Path,
    leaves: &[HostLeaf],
    run: RunRecord,
) -> Result<PathBuf, Error> {
    save_together(disk, dir, leaves, run, &NoOthers)
}

/// [`save`] with the other processes of the run.
///
/// # Errors
/// A file that one of them cannot write.
pub(super) fn save_together<D: Disk>(
    disk: &D,
    dir: &Path,
    leaves: &[HostLeaf],
    run: RunRecord,
    others: &dyn OtherProcesses,
) -> Result<PathBuf, Error> {
    let name = step_name(run.step);
    let unfinished = dir.join(unfinished_name(&name));
    let written = write_all(disk, dir, &unfinished, leaves, run, others);
    let path = dir.join(name);
    let placed = written.and_then(|()| put_in_place(disk, dir, &unfinished, &path));
    if placed.is_err() {
        // The error above says what is wrong; the next run removes what is left.
        let _ = disk.remove_dir_all(&unfinished);
    }
    placed.map(|()| path)
}

fn write_all<D: Disk>(
    disk: &D,
    dir: &Path,
    unfinished: &Path,
    leaves: &[HostLeaf],
    run: RunRecord,
    others: &dyn OtherProcesses,
) -> Result<(), Error> {
    disk.create_dir(dir).map_err(Error::io("create", dir))?;
    match disk.remove_dir_all(unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::io("remove", unfinished)(error));
        }
        _ => {}
    }
    disk.create_dir(unfinished).map_err(Error::io("create", unfinished))?;
    let location = unfinished.to_string_lossy().into_owned();
    others.begin(&ShardPlace { location, attempt: None })?;
    let name = shard_name(0);
    let path = unfinished.join(&name);
    let written = write_shard_file(disk, &path, &name, leaves);
    let mut shards = vec![written.map_err(Error::io("write", &path))?];
    shards.extend(others.wait()?);
    let (files, records) = combine(&Location::from(unfinished), shards)?;
    check_files(unfinished, &files[1..])?;
    let path = unfinished.join(Manifest::FILE);
    let write = || {
        let text = Manifest::new(run, files, records).to_text()?;
        let mut file = disk.create(&path)?;
        file.write_all(text.as_bytes())?;
        disk.sync(&file)
    };
    write().map_err(Error::io("write", &path))?;
    disk.sync_dir(unfinished).map_err(Error::io("write", unfinished))
}

fn put_in_place<D: Disk>(
    disk: &D,
    dir: &Path,
    unfinished: &Path,
    path: &Path,
) -> Result<(), Error> {
    let failed = Error::io("write", path);
    let place = || match disk.rename(unfinished, path) {
        // The same step was saved before, by a run that has been continued from an earlier one.
        Err(error) if matches!(error.kind(), DirectoryNotEmpty | AlreadyExists) => {
            match disk.exchange(unfinished, path) {
                // On a file system that cannot swap names, the step has no checkpoint for a moment.
                Err(error) if matches!(error.kind(), InvalidInput | Unsupported) => {
                    disk.remove_dir_all(path)?;
                    disk.rename(unfinished, path)
                }
                exchanged => exchanged.and_then(|()| disk.remove_dir_all(unfinished)),
            }
        }
        renamed => renamed,
    };
    place().map_err(&failed)?;
    disk.sync_dir(dir).map_err(failed)
}

impl ShardPlace {
    /// Writes the shard of process `process_index`, not the first one.
    ///
    /// # Errors
    /// A file that cannot be written; also if the directory is not the one that the first process
    /// has made.
    pub fn save(&self, leaves: &[HostLeaf], process_index: usize) -> Result<SavedShard, Error> {
        match Location::from(Path::new(&self.location)) {
            Location::Path(dir) => {
                let name = shard_name(process_index);
                let path = dir.join(&name);
                write_shard_file(&LocalDisk, &path, &name, leaves).map_err(|error| {
                    match error.kind() {
                        io::ErrorKind::NotFound => Error::NotShared { path: dir.as_path().into() },
                        _ => Error::io("write", &path)(error),
                    }
                })
            }
            Location::Url(url) => {
                let attempt = self.attempt.as_deref().unwrap_or_default();
                objects::save_shard(&url, attempt, leaves, process_index)
            }
        }
    }
}

/// Checks that the files of all shards are in a directory of this machine.
fn check_files(dir: &Path, files: &[FileRecord]) -> Result<(), Error> {
    for file in files {
        let found = fs::metadata(dir.join(&file.name)).map(|metadata| metadata.len());
        if found.ok() != Some(file.num_bytes) {
            return Err(Error::NotShared { path: dir.into() });
        }
    }
    Ok(())
}
