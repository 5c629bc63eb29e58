//! The module `objects` of a program that was built without object stores: every use is an error.

use std::io;

use super::claim::Claim;
use super::{CheckpointSource, Error, HostLeaf, Location, ObjectUrl, SavedShard};

fn absent(url: &ObjectUrl) -> Error {
    Error::NoObjectStores { path: Location::Url(url.clone()) }
}

pub fn claim(url: &ObjectUrl) -> Result<Box<dyn Claim>, Error> {
    Err(absent(url))
}

pub fn save_shard(url: &ObjectUrl, _: &str, _: &[HostLeaf], _: usize) -> Result<SavedShard, Error> {
    Err(absent(url))
}

pub fn list(url: &ObjectUrl) -> Result<Vec<(u64, String)>, Error> {
    Err(absent(url))
}

pub fn unfinished(url: &ObjectUrl) -> Result<Vec<(u64, String)>, Error> {
    Err(absent(url))
}

pub fn source(url: &ObjectUrl) -> io::Result<Box<dyn CheckpointSource>> {
    Err(io::Error::new(io::ErrorKind::Unsupported, absent(url)))
}
