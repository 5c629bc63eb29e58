//! Checkpoints in object stores. All asynchronous code of checkpoints is in this module; its
//! functions wait.
//!
//! ```text
//! PREFIX/owner.json                                    the process that saves here
//! PREFIX/step_00000500/shard_00000.<attempt>.safetensors
//! PREFIX/step_00000500/manifest.json                   put last, by one request: the commit
//! PREFIX/step_00000500/upload.<attempt>.json           as long as a shard is uploaded in parts
//! ```

mod client;
mod owner;
mod prefix;
mod upload;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use client::ObjectClient;
use prefix::ObjectPrefix;

use super::claim::Claim;
use super::names::step_of;
use super::{
    CheckpointSource, Error, HostLeaf, Location, Manifest, ObjectUrl, SavedShard, SourceFile,
};

/// Claims the prefix at a URL, and removes what earlier processes have left unfinished there.
pub fn claim(url: &ObjectUrl) -> Result<Box<dyn Claim>, Error> {
    Ok(Box::new(ObjectPrefix::claim(url)?))
}

/// Uploads the shard of process `process_index` into the folder at a URL, as part of an attempt to
/// save that another process has begun.
pub fn save_shard(
    url: &ObjectUrl,
    attempt: &str,
    leaves: &[HostLeaf],
    process_index: usize,
) -> Result<SavedShard, Error> {
    let failed = Error::io("write", Location::Url(url.clone()));
    let client = ObjectClient::connect(url).map_err(&failed)?;
    let names = prefix::ShardNames::new("", attempt, process_index);
    prefix::upload_shard(&client, &names, url.options().part_bytes, leaves).map_err(failed)
}

/// The complete checkpoints below a URL: their steps and names.
pub fn list(url: &ObjectUrl) -> Result<Vec<(u64, String)>, Error> {
    folders(url, |files| files.contains_key(Manifest::FILE))
}

/// The folders below a URL with shards of checkpoints that were not committed: their steps and
/// names.
pub fn unfinished(url: &ObjectUrl) -> Result<Vec<(u64, String)>, Error> {
    folders(url, |files| {
        let is_ours = |name: &String| prefix::is_of_save(name);
        !files.contains_key(Manifest::FILE) && files.keys().any(is_ours)
    })
}

fn folders(
    url: &ObjectUrl,
    is_wanted: impl Fn(&BTreeMap<String, u64>) -> bool,
) -> Result<Vec<(u64, String)>, Error> {
    let failed = Error::io("list", Location::Url(url.clone()));
    let client = ObjectClient::connect(url).map_err(&failed)?;
    let steps = client.steps().map_err(failed)?.into_iter();
    let wanted = steps.filter(|found| is_wanted(&found.files));
    Ok(wanted.map(|found| (found.step, found.name)).collect())
}

/// The files of the checkpoint at a URL.
pub fn source(url: &ObjectUrl) -> io::Result<Box<dyn CheckpointSource>> {
    let client = Arc::new(ObjectClient::connect(url)?);
    let sizes = client.list("")?.files;
    Ok(Box::new(ObjectSource { client, sizes }))
}

#[derive(Debug)]
struct ObjectSource {
    client: Arc<ObjectClient>,
    /// The size of each file.
    sizes: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct ObjectFile {
    client: Arc<ObjectClient>,
    name: String,
    num_bytes: u64,
}

impl CheckpointSource for ObjectSource {
    fn open(&self, name: &str) -> io::Result<Box<dyn SourceFile>> {
        match self.sizes.get(name) {
            Some(&num_bytes) => {
                let (client, name) = (self.client.clone(), name.to_owned());
                Ok(Box::new(ObjectFile { client, name, num_bytes }))
            }
            None => Err(io::Error::new(io::ErrorKind::NotFound, "there is no such object")),
        }
    }
}

impl SourceFile for ObjectFile {
    fn num_bytes(&self) -> u64 {
        self.num_bytes
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        // An empty range is not a request.
        if bytes.is_empty() {
            return Ok(());
        }
        let read = self.client.read_range(&self.name, offset..offset + bytes.len() as u64)?;
        if read.len() != bytes.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.copy_from_slice(&read);
        Ok(())
    }
}
