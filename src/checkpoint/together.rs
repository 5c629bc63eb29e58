//! A checkpoint that several processes save together: each writes a shard, and the first one also
//! the manifest.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::write::{shard_name, write_shard_file};
use super::{Error, FileRecord, HostLeaf, LeafRecord, LocalDisk, Location, objects};

/// Where the processes of a run write their shards of one checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardPlace {
    /// The directory or URL.
    pub(super) location: String,
    /// Distinguishes this attempt from others in an object store.
    pub(super) attempt: Option<String>,
}

/// The shard that a process has written, as the manifest describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedShard {
    pub(super) file: FileRecord,
    /// The leaves, each with its pieces in this file.
    pub(super) leaves: Vec<LeafRecord>,
}

/// The processes of a run other than the first, as the first one sees them when it saves a
/// checkpoint.
pub trait OtherProcesses {
    /// Has each of them write its shard, with [`ShardPlace::save`]. Does not wait.
    ///
    /// # Errors
    /// If they cannot be reached.
    fn begin(&self, place: &ShardPlace) -> Result<(), Error>;

    /// Waits until they have, and returns their shards in the order of the processes.
    ///
    /// # Errors
    /// If one of them could not.
    fn wait(&self) -> Result<Vec<SavedShard>, Error>;
}

/// A run of one process.
pub(super) struct NoOthers;

impl OtherProcesses for NoOthers {
    fn begin(&self, _: &ShardPlace) -> Result<(), Error> {
        Ok(())
    }

    fn wait(&self) -> Result<Vec<SavedShard>, Error> {
        Ok(vec![])
    }
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
                        io::ErrorKind::NotFound => not_shared(&dir),
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
pub(super) fn check_files(dir: &Path, files: &[FileRecord]) -> Result<(), Error> {
    for file in files {
        let found = fs::metadata(dir.join(&file.name)).map(|metadata| metadata.len());
        if found.ok() != Some(file.num_bytes) {
            return Err(not_shared(dir));
        }
    }
    Ok(())
}

fn not_shared(dir: &Path) -> Error {
    let reason = "the processes of the run do not see each other's files there; set \
                  checkpoint.dir, or --out, to a directory that all hosts share, or checkpoint.dir \
                  to a URL of an object store";
    Error::OtherProcess { path: dir.into(), reason: reason.to_owned() }
}

/// The records of a manifest: one file per process, and the leaves with all their pieces.
///
/// # Errors
/// If the processes have different leaves.
pub(super) fn combine(
    place: &Location,
    shards: Vec<SavedShard>,
) -> Result<(Vec<FileRecord>, Vec<LeafRecord>), Error> {
    let (mut files, mut leaves): (Vec<FileRecord>, Vec<LeafRecord>) = (vec![], vec![]);
    for (index, shard) in shards.into_iter().enumerate() {
        files.push(shard.file);
        if index == 0 {
            leaves = shard.leaves;
            continue;
        }
        let is_same = |(a, b): (&LeafRecord, &LeafRecord)| {
            (&a.path, &a.dtype, &a.dims) == (&b.path, &b.dtype, &b.dims)
        };
        if shard.leaves.len() != leaves.len() || !leaves.iter().zip(&shard.leaves).all(is_same) {
            let reason = format!("process {index} has another state");
            return Err(Error::OtherProcess { path: place.clone(), reason });
        }
        for (leaf, more) in leaves.iter_mut().zip(shard.leaves) {
            leaf.pieces.extend(more.pieces.into_iter().map(|mut piece| {
                piece.file = index;
                piece
            }));
        }
    }
    Ok((files, leaves))
}
