//! A checkpoint that several processes save together: each writes a shard, and the first one also
//! the manifest.

use serde::{Deserialize, Serialize};

use super::{Error, FileRecord, LeafRecord, Location, SavedShard};

/// Where the processes of a run write their shards of one checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardPlace {
    /// The directory or URL.
    pub(super) location: String,
    /// Distinguishes this attempt from others in an object store.
    pub(super) attempt: Option<String>,
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
