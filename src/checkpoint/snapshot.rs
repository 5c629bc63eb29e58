//! The files of a checkpoint that is in no directory: each process writes its shard anywhere, with
//! a description of it, and the manifest follows from all descriptions.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::names::shard_name;
use super::shard::write_shard;
use super::together::combine;
use super::{Error, HostLeaf, Location, Manifest, RunRecord, SavedShard};

/// The description of a shard: its part of the manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardDescription {
    run: RunRecord,
    shard: SavedShard,
}

impl ShardDescription {
    /// Writes the shard of a process.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(
        file: &mut impl Write,
        process_index: usize,
        leaves: &[HostLeaf],
        run: RunRecord,
    ) -> io::Result<Self> {
        let shard = write_shard(file, &shard_name(process_index), leaves)?;
        Ok(Self { run, shard })
    }

    /// As bytes, behind a checksum.
    ///
    /// # Errors
    /// A value that JSON cannot express.
    pub fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let text = serde_json::to_vec(self)?;
        Ok([&xxh3_128(&text).to_le_bytes()[..], &text].concat())
    }

    /// The inverse of [`Self::to_bytes`].
    ///
    /// # Errors
    /// Other bytes.
    pub fn from_bytes(bytes: &[u8]) -> io::Result<Self> {
        match bytes.split_first_chunk() {
            Some((checksum, text)) if xxh3_128(text) == u128::from_le_bytes(*checksum) => {
                Ok(serde_json::from_slice(text)?)
            }
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the description of its files has other bytes than were written",
            )),
        }
    }

    /// The name of its file.
    pub fn file_name(&self) -> &str {
        &self.shard.file.name
    }

    /// The manifest that belongs to the shards of all processes, in their order. The first one
    /// describes the run. Messages name `place`.
    ///
    /// # Errors
    /// If the processes have different states.
    pub fn manifest(all: Vec<Self>, place: &Location) -> Result<String, Error> {
        let run = all.first().map(|first| first.run.clone()).unwrap_or_default();
        if all.iter().any(|other| other.run.step != run.step) {
            let reason = "the processes were after different steps".to_owned();
            return Err(Error::OtherProcess { path: place.clone(), reason });
        }
        let shards = all.into_iter().map(|of| of.shard).collect();
        let (files, leaves) = combine(place, shards)?;
        let text = Manifest::new(run, files, leaves).to_text();
        text.map_err(|error| Error::io("write", place)(error.into()))
    }
}
