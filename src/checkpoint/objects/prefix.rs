//! Saving below a prefix of an object store.

use std::collections::BTreeSet;
use std::io;

use super::client::{ObjectClient, StepFolder};
use super::owner::{Owner, random_id};
use super::upload::{Upload, UploadRecord, abort};
use super::{Error, Location, Manifest, ObjectUrl};
use crate::checkpoint::claim::Claim;
use crate::checkpoint::names::step_name;
use crate::checkpoint::shard::write_shard;
use crate::checkpoint::together::combine;
use crate::checkpoint::{HostLeaf, OtherProcesses, RunRecord, SavedShard, ShardPlace};

/// A prefix that this process saves below.
#[derive(Debug)]
pub struct ObjectPrefix {
    location: Location,
    client: ObjectClient,
    owner: Owner,
    part_bytes: usize,
}

impl ObjectPrefix {
    /// Claims the prefix, and removes what earlier processes have left unfinished.
    pub fn claim(url: &ObjectUrl) -> Result<Self, Error> {
        let location = Location::Url(url.clone());
        let failed = Error::io("write into", location.clone());
        let client = ObjectClient::connect(url).map_err(&failed)?;
        let owner = Owner::claim(&client).map_err(&failed)?;
        let part_bytes = url.options().part_bytes;
        let claimed = Self { location, client, owner, part_bytes };
        claimed.clean().map_err(failed)?;
        Ok(claimed)
    }

    /// Removes the files of all saves that were not committed.
    fn clean(&self) -> io::Result<()> {
        for StepFolder { name: folder, files, .. } in self.client.steps()? {
            let is_ours = |name: &&String| is_of_save(name);
            if !files.keys().any(|name| is_ours(&name)) {
                continue;
            }
            let named = match files.contains_key(Manifest::FILE) {
                // Nothing is removed from a checkpoint that cannot be read.
                true => match self.files_of(&folder)? {
                    Some(named) => named,
                    None => continue,
                },
                false => BTreeSet::new(),
            };
            let left = files.keys().filter(is_ours).filter(|name| !named.contains(*name));
            let left: Vec<_> = left.map(|name| format!("{folder}/{name}")).collect();
            for record in left.iter().filter(|name| is_upload_record(name)) {
                if let Ok(record) = serde_json::from_slice(&self.client.read(record)?) {
                    let record: UploadRecord = record;
                    abort(&self.client, &record)?;
                }
            }
            self.client.delete(left)?;
        }
        Ok(())
    }

    /// The files that the manifest in a folder names. `None` if it cannot be understood.
    fn files_of(&self, folder: &str) -> io::Result<Option<BTreeSet<String>>> {
        let text = self.client.read(&format!("{folder}/{}", Manifest::FILE))?;
        let manifest = Manifest::from_text(&text, &self.location.join(folder)).ok();
        let names = |manifest: Manifest| manifest.files.into_iter().map(|file| file.name).collect();
        Ok(manifest.map(names))
    }
}

impl Claim for ObjectPrefix {
    /// The checkpoint exists when its manifest does, which replaces an earlier one of the same
    /// step.
    fn save(
        &self,
        leaves: &[HostLeaf],
        run: RunRecord,
        others: &dyn OtherProcesses,
    ) -> Result<Location, Error> {
        let folder = step_name(run.step);
        let place = self.location.join(&folder);
        let failed = Error::io("write", place.clone());
        self.owner.check(&self.client, &self.location)?;
        let before = self.client.list(&folder);
        let before = before.map_err(&failed)?.files;
        let attempt = random_id();
        let names = ShardNames::new(&format!("{folder}/"), &attempt, 0);
        others.begin(&ShardPlace { location: place.to_string(), attempt: Some(attempt) })?;
        let written = upload_shard(&self.client, &names, self.part_bytes, leaves);
        let shards = written.map_err(&failed).and_then(|own| {
            let mut shards = vec![own];
            shards.extend(others.wait()?);
            combine(&place, shards)
        });
        let manifest = shards.and_then(|(files, records)| {
            let text = Manifest::new(run, files, records).to_text();
            Ok(text.map_err(io::Error::from).map_err(&failed)?.into_bytes())
        });
        let owned = manifest.and_then(|manifest| {
            self.owner.check(&self.client, &self.location)?;
            Ok(manifest)
        });
        let manifest = owned.inspect_err(|_| {
            // The error says what is wrong; what is left now is removed by the next process.
            let _ = self.client.delete([names.object.clone()]);
        })?;
        let manifest_name = format!("{folder}/{}", Manifest::FILE);
        // If this fails, it may have happened all the same, so the shard must stay.
        self.client.put(&manifest_name, manifest.clone()).map_err(&failed)?;
        if let Err(error) = self.owner.check(&self.client, &self.location) {
            // The other process may have removed the shard as one of a save that was cut off.
            if let Error::InUse { .. } = error
                && self.client.read(&manifest_name).is_ok_and(|found| found == manifest)
            {
                let _ = self.client.delete([manifest_name]);
                let _ = self.client.delete([names.object]);
            }
            return Err(error);
        }
        let replaced = before.into_keys().filter(|name| is_shard(name) || is_upload_record(name));
        // The save is committed: if an old shard is left, the next process removes it.
        let _ = self.client.delete(replaced.map(|name| format!("{folder}/{name}")));
        Ok(place)
    }

    fn remove(&self, folder: &str) -> Result<(), Error> {
        let remove = || {
            let named = self.files_of(folder)?.unwrap_or_default();
            let files = self.client.list(folder)?.files;
            self.client.delete([format!("{folder}/{}", Manifest::FILE)])?;
            let is_of_checkpoint =
                |name: &String| named.contains(name) || is_shard(name) || is_upload_record(name);
            let files = files.into_keys().filter(is_of_checkpoint);
            self.client.delete(files.map(|name| format!("{folder}/{name}")))
        };
        remove().map_err(Error::io("remove", self.location.join(folder)))
    }
}

/// The objects that the upload of a shard makes.
pub struct ShardNames {
    /// The file's name in the manifest.
    file: String,
    /// The shard.
    object: String,
    /// The record of its upload in parts.
    record: String,
}

impl ShardNames {
    /// `folder` is empty, or ends with a slash.
    pub fn new(folder: &str, attempt: &str, process_index: usize) -> Self {
        let file = format!("shard_{process_index:05}.{attempt}.safetensors");
        let object = format!("{folder}{file}");
        let record = match process_index {
            0 => format!("{folder}upload.{attempt}.json"),
            _ => format!("{folder}upload.{attempt}.{process_index:05}.json"),
        };
        Self { file, object, record }
    }
}

/// Uploads a shard.
pub fn upload_shard(
    client: &ObjectClient,
    names: &ShardNames,
    part_bytes: usize,
    leaves: &[HostLeaf],
) -> io::Result<SavedShard> {
    let pieces = leaves.iter().flat_map(|leaf| &leaf.pieces);
    let num_bytes = pieces.map(|piece| piece.values.num_bytes() as u64).sum();
    let (object, record) = (names.object.clone(), names.record.clone());
    let mut upload = Upload::new(client, object, record, part_bytes, num_bytes);
    let written = write_shard(&mut upload, &names.file, leaves);
    if written.is_err() {
        upload.abort();
    }
    written.and_then(|shard| upload.finish().map(|()| shard))
}

/// `true` for the names of what saves leave besides the manifest.
pub fn is_of_save(name: &str) -> bool {
    is_shard(name) || is_upload_record(name)
}

/// `true` for the names of shards that [`ObjectPrefix::save`] writes.
fn is_shard(name: &str) -> bool {
    let parts: Vec<_> = name.split('.').collect();
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    match parts[..] {
        [shard, attempt, "safetensors"] => {
            shard.strip_prefix("shard_").is_some_and(is_number) && is_attempt(attempt)
        }
        _ => false,
    }
}

/// `true` for the names of records of uploads, with or without folders.
fn is_upload_record(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or_default();
    let inside = name.strip_prefix("upload.").and_then(|rest| rest.strip_suffix(".json"));
    // Attempts of processes other than the first end with the index of the process.
    inside.is_some_and(|inside| is_attempt(inside.split('.').next().unwrap_or_default()))
}

fn is_attempt(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
