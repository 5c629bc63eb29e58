//! Checkpoints: the whole state of a run on disk, from which it continues. Written and read through
//! [`LeafSpec`]s; knows nothing of devices.
//!
//! A checkpoint is a directory `step_00000500` with one safetensors file per process and
//! `manifest.json`, which is written last. The directory is renamed into place when everything in
//! it is on the disk, so one under another name is not a checkpoint, and one without a manifest was
//! damaged later. In an object store, putting the manifest makes it one. `docs/checkpoints.md`
//! describes the files.
//!
//! It has the leaves that `StepSpec::declare` declares, and a [`RunRecord`] of everything else that
//! a run continues with. `regions.rs` finds which parts of saved leaves make up a piece of a leaf
//! on another mesh, and `blocks.rs` reads them.

mod blocks;
mod claim;
mod directory;
mod disk;
mod error;
mod location;
mod manifest;
mod names;
#[cfg_attr(not(feature = "object-stores"), path = "objects_absent.rs")]
mod objects;
mod read;
mod regions;
mod shard;
mod snapshot;
mod source;
mod together;
mod write;

use hlo::{LeafSpec, Literal};

pub use directory::{CheckpointDir, StoredCheckpoint};
pub use disk::{Disk, LocalDisk};
pub use error::Error;
pub use location::{Location, ObjectOptions, ObjectUrl};
pub use manifest::{
    DataPosition, DataRecord, FileRecord, LeafRecord, Manifest, PieceRecord, RunRecord, SplitRecord,
};
pub use read::Checkpoint;
pub use shard::{SavedShard, safetensors_dtype};
pub use snapshot::ShardDescription;
pub use source::{CheckpointSource, LocalSource, SourceFile};
pub use together::{OtherProcesses, ShardPlace};
pub use write::save;

/// A leaf of the state, copied to the host: the pieces that this process holds.
#[derive(Clone, Debug)]
pub struct HostLeaf {
    /// Its path in the state.
    pub path: String,
    /// The specification of the whole leaf.
    pub spec: LeafSpec,
    /// Pieces that cover what this process holds, each once.
    pub pieces: Vec<HostPiece>,
}

/// A rectangular piece of a leaf.
#[derive(Clone, Debug)]
pub struct HostPiece {
    /// Index of its first element in the whole leaf, for each dim.
    pub start: Vec<usize>,
    /// Its values.
    pub values: Literal,
}
