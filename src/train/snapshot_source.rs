//! The newest state in the memory of supervisors, read like a checkpoint: by ranges, onto any mesh,
//! with its checksums.

use std::io;
use std::path::Path;
use std::sync::Arc;

use hlo::counted;

use super::Error;
use super::processes::Processes;
use crate::checkpoint::{
    self, Checkpoint, CheckpointSource, Location, Manifest, ShardDescription, SourceFile,
};
use crate::cluster::{LostParts, SnapshotAccess, SnapshotFile, SnapshotId, SnapshotSet};
use crate::observe::say;

/// As messages and the summary name it.
pub(super) const MEMORY: &str = "memory";
/// More is no description of files.
const MAX_META: u64 = 1 << 30;

/// A whole state in the memory of supervisors, which has been read and checked.
pub(super) struct MemoryState {
    pub id: SnapshotId,
    pub checkpoint: Checkpoint,
}

/// Finds the newest state that is whole and not damaged. Each process checks a part of it; all get
/// the same one, or none. A warning names those that are damaged.
///
/// # Errors
/// If another process is lost.
pub(super) fn newest_in_memory(
    access: Option<&SnapshotAccess>,
    processes: Processes<'_>,
) -> Result<Option<MemoryState>, Error> {
    // The first generation has none before it.
    let Some(access) = access.filter(|access| access.generation > 1) else { return Ok(None) };
    let mut sets = None;
    for attempt in 0.. {
        let mut next = || {
            let sets = sets.get_or_insert_with(|| find(access).into_iter());
            Ok(sets.next())
        };
        let set: Option<SnapshotSet> =
            processes.decided_by_first(&format!("snapshot/{attempt}"), &mut next)?;
        let Some(set) = set else { break };
        let holders = processes.gather("snapshot/holders", access.own_holder.clone())?;
        let is_mine = |part: usize| checker(&set, part, &holders) == Some(processes.this().index);
        let checked = open(access, &set).and_then(|checkpoint| {
            checkpoint.verify_files(is_mine)?;
            Ok(checkpoint)
        });
        let reason = checked.as_ref().err().map(reason_of);
        let reasons = processes.gather("snapshot/checked", reason)?;
        match (checked, reasons.into_iter().flatten().next()) {
            (Ok(checkpoint), None) => return Ok(Some(MemoryState { id: set.id, checkpoint })),
            (_, reason) => processes.say(&format!(
                "warning: the state in memory after {} is not used: {}",
                counted(set.id.step as usize, "step"),
                reason.unwrap_or_default()
            )),
        }
    }
    Ok(None)
}

/// The whole states, the newest first. Says so if one was lost with its supervisors.
fn find(access: &SnapshotAccess) -> Vec<SnapshotSet> {
    access.find().unwrap_or_else(|LostParts { step, process }| {
        let steps = counted(step as usize, "step");
        let process = process.unwrap_or_default();
        say(&format!(
            "warning: the state in memory after {steps} is lost: no supervisor that is left holds \
             the part of process {process}"
        ));
        vec![]
    })
}

/// The process that checks a part: one on a host that has it, if there is one. `holders` are those
/// of the hosts of all processes.
fn checker(set: &SnapshotSet, part: usize, holders: &[String]) -> Option<usize> {
    let at = &set.parts.get(part)?.holders;
    let has_it = |process: &usize| at.iter().any(|(address, _)| *address == holders[*process]);
    let near: Vec<_> = (0..holders.len()).filter(has_it).collect();
    match near.len() {
        0 => part.checked_rem(holders.len()),
        number => Some(near[part % number]),
    }
}

/// What is wrong, without the advice for checkpoints on disk.
fn reason_of(error: &checkpoint::Error) -> String {
    match error {
        checkpoint::Error::Damaged { reason, .. } => reason.clone(),
        checkpoint::Error::Io { source, .. } => source.to_string(),
        error => error.to_string(),
    }
}

fn open(access: &SnapshotAccess, set: &SnapshotSet) -> Result<Checkpoint, checkpoint::Error> {
    let place = Location::from(Path::new(MEMORY));
    let failed = |source| checkpoint::Error::Io { verb: "read", path: place.clone(), source };
    let files = access.open(set).map_err(failed)?;
    let files: Vec<_> = files.into_iter().map(Arc::new).collect();
    let described = files.iter().map(|file| describe(file));
    let described: Vec<_> = described.collect::<io::Result<_>>().map_err(failed)?;
    let names = described.iter().map(|shard| shard.file_name().to_owned()).collect();
    let manifest = ShardDescription::manifest(described, &place)?.into_bytes().into();
    Checkpoint::from_source(place, &MemorySource { manifest, names, files })
}

fn describe(file: &SnapshotFile) -> io::Result<ShardDescription> {
    let record = file.record();
    if record.meta_bytes > MAX_META {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; record.meta_bytes as usize];
    file.read_exact_at(&mut bytes, record.data_bytes)?;
    ShardDescription::from_bytes(&bytes)
}

/// The files of a checkpoint, of which only the manifest is here.
#[derive(Debug)]
struct MemorySource {
    manifest: Arc<[u8]>,
    names: Vec<String>,
    files: Vec<Arc<SnapshotFile>>,
}

impl CheckpointSource for MemorySource {
    fn open(&self, name: &str) -> io::Result<Box<dyn SourceFile>> {
        if name == Manifest::FILE {
            return Ok(Box::new(ManifestText(self.manifest.clone())));
        }
        let found = self.names.iter().position(|own| own == name);
        let index = found.ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(ShardInMemory(self.files[index].clone())))
    }
}

#[derive(Debug)]
struct ManifestText(Arc<[u8]>);

impl SourceFile for ManifestText {
    fn num_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(bytes.len());
        bytes.copy_from_slice(self.0.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

#[derive(Debug)]
struct ShardInMemory(Arc<SnapshotFile>);

impl SourceFile for ShardInMemory {
    fn num_bytes(&self) -> u64 {
        self.0.record().data_bytes
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(bytes.len() as u64);
        match end.is_some_and(|end| end <= self.num_bytes()) {
            true => self.0.read_exact_at(bytes, offset),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{SnapshotPart, SnapshotRecord};

    #[test]
    fn parts_are_checked_where_they_are() {
        let part = |process_index, holders: &[&str]| SnapshotPart {
            record: SnapshotRecord {
                id: SnapshotId::default(),
                base: SnapshotId::default(),
                process_index,
                num_processes: 4,
                num_parts: 4,
                data_bytes: 1,
                meta_bytes: 1,
            },
            holders: holders.iter().map(|address| ((*address).to_owned(), 3)).collect(),
        };
        let parts =
            vec![part(0, &["a", "b"]), part(1, &["a", "b"]), part(2, &["b"]), part(3, &["gone"])];
        let set = SnapshotSet { id: SnapshotId::default(), parts };
        let holders = ["b", "b", "c"].map(str::to_owned);
        let checkers: Vec<_> = (0..4).map(|part| checker(&set, part, &holders)).collect();
        assert_eq!(checkers, [Some(0), Some(1), Some(0), Some(0)]);
        // Without a supervisor that holds anything.
        assert_eq!(checker(&set, 3, &[String::new(), String::new()]), Some(1));
    }
}
