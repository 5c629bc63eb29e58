//! The file of a snapshot: a page with its record, the values, and what describes them.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use prost::Message;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::cluster::messages::SnapshotRow;

/// The values begin here.
const DATA_START: u64 = 4096;
/// Where a supervisor notes that the next host has a copy.
const COPIED_START: u64 = 2048;
/// Records are shorter.
const MAX_RECORD: usize = 1024;

/// Which state a snapshot is a part of. The largest is the newest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SnapshotId {
    /// Steps taken.
    pub step: u64,
    /// The generation that took them.
    pub generation: u64,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRecord {
    /// The state.
    pub id: SnapshotId,
    /// The whole snapshot before it, from which its generation would go on. It is kept until this
    /// one is whole.
    pub base: SnapshotId,
    /// The process.
    pub process_index: usize,
    /// Number of processes of the generation.
    pub num_processes: usize,
    /// Parts that make up a whole: processes from this one on have no values.
    pub num_parts: usize,
    /// Size of the values.
    pub data_bytes: u64,
    /// Size of what describes them, which follows.
    pub meta_bytes: u64,
}

impl SnapshotRecord {
    /// Bytes of both.
    pub fn num_bytes(&self) -> u64 {
        self.data_bytes.saturating_add(self.meta_bytes)
    }

    pub(super) fn to_row(self) -> SnapshotRow {
        let index = |number| u32::try_from(number).unwrap_or(u32::MAX);
        SnapshotRow {
            generation: self.id.generation,
            step: self.id.step,
            process_index: index(self.process_index),
            num_processes: index(self.num_processes),
            num_parts: index(self.num_parts),
            data_bytes: self.data_bytes,
            meta_bytes: self.meta_bytes,
            base_generation: self.base.generation,
            base_step: self.base.step,
        }
    }
}

impl From<&SnapshotRow> for SnapshotRecord {
    fn from(row: &SnapshotRow) -> Self {
        Self {
            id: SnapshotId { step: row.step, generation: row.generation },
            base: SnapshotId { step: row.base_step, generation: row.base_generation },
            process_index: row.process_index as usize,
            num_processes: row.num_processes as usize,
            num_parts: row.num_parts as usize,
            data_bytes: row.data_bytes,
            meta_bytes: row.meta_bytes,
        }
    }
}

/// A place for a snapshot: memory with the name of no file, which is gone when all that have it
/// open have ended.
#[derive(Debug)]
pub struct SnapshotSlot {
    file: File,
}

impl SnapshotSlot {
    /// A new, empty one.
    ///
    /// # Errors
    /// A system without such files, or with too many open ones.
    pub fn create() -> io::Result<Self> {
        let file = memfd_create("lockstep-snapshot", MemfdFlags::CLOEXEC)?;
        Ok(Self { file: file.into() })
    }

    /// The one that another process of this user has made, by its number there.
    ///
    /// # Errors
    /// If that process has ended, or the system hides it.
    pub fn open(process_id: u32, number: i32) -> io::Result<Self> {
        let path = format!("/proc/{process_id}/fd/{number}");
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Self { file })
    }

    /// Its number in the process that has made it.
    pub fn number(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// What it holds; `None` if it is empty, or being written.
    pub fn record(&self) -> Option<SnapshotRecord> {
        let mut page = [0; MAX_RECORD];
        self.file.read_exact_at(&mut page, 0).ok()?;
        let row = SnapshotRow::decode(unsealed(&page)?).ok()?;
        Some(SnapshotRecord::from(&row))
    }

    /// Forgets what it holds, and frees the memory.
    ///
    /// # Errors
    /// None that is known.
    pub fn clear(&self) -> io::Result<()> {
        self.file.set_len(0)
    }

    /// Begins to write another snapshot: what it held is void.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn begin(&self) -> io::Result<SlotWriter<'_>> {
        self.file.set_len(self.file.metadata()?.len().max(DATA_START))?;
        self.file.write_all_at(&[0; DATA_START as usize], 0)?;
        Ok(SlotWriter { slot: self, end: DATA_START })
    }

    /// Bytes of memory that it takes.
    pub fn held_bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.len())
    }

    /// `true` if the next host has a copy of this snapshot, or there is no other host.
    pub fn has_copy(&self, id: SnapshotId) -> bool {
        let mut page = [0; MAX_RECORD];
        self.file.read_exact_at(&mut page, COPIED_START).is_ok()
            && unsealed(&page) == Some(&id_bytes(id)[..])
    }

    /// Notes that the next host has a copy of this snapshot, or that there is no other host.
    ///
    /// # Errors
    /// None that is known.
    pub fn set_copied(&self, id: SnapshotId) -> io::Result<()> {
        self.file.write_all_at(&sealed(&id_bytes(id)), COPIED_START)
    }

    /// Fills `bytes` from `offset` on, which counts from the start of the values.
    ///
    /// # Errors
    /// If it is shorter.
    pub fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let offset = DATA_START.checked_add(offset).ok_or(ErrorKind::InvalidInput)?;
        self.file.read_exact_at(bytes, offset)
    }
}

/// Writes the values of a snapshot, and then what describes them.
#[derive(Debug)]
pub struct SlotWriter<'a> {
    slot: &'a SnapshotSlot,
    end: u64,
}

impl SlotWriter<'_> {
    /// Bytes written.
    pub fn num_bytes(&self) -> u64 {
        self.end - DATA_START
    }

    /// Everything is written: from now on the slot holds this.
    ///
    /// # Errors
    /// Other sizes than were written, or if it cannot be written.
    pub fn end(self, record: &SnapshotRecord) -> io::Result<()> {
        if record.num_bytes() != self.num_bytes() {
            return Err(io::Error::other("a snapshot has another size than its record"));
        }
        self.slot.file.set_len(self.end)?;
        let record = sealed(&record.to_row().encode_to_vec());
        self.slot.file.write_all_at(&record, 0)
    }
}

impl Write for SlotWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let num_bytes = self.slot.file.write_at(bytes, self.end)?;
        self.end += num_bytes as u64;
        Ok(num_bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn id_bytes(id: SnapshotId) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&id.step.to_le_bytes());
    bytes[8..].copy_from_slice(&id.generation.to_le_bytes());
    bytes
}

/// Bytes behind a checksum and their number: a page that is half written holds none.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let num_bytes = (bytes.len() as u64).to_le_bytes();
    [&xxh3_64(bytes).to_le_bytes(), &num_bytes[..], bytes].concat()
}

fn unsealed(page: &[u8]) -> Option<&[u8]> {
    let (checksum, rest) = page.split_first_chunk()?;
    let (num_bytes, rest) = rest.split_first_chunk()?;
    let bytes = rest.get(..usize::try_from(u64::from_le_bytes(*num_bytes)).ok()?)?;
    (!bytes.is_empty() && xxh3_64(bytes) == u64::from_le_bytes(*checksum)).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(step: u64) -> SnapshotRecord {
        SnapshotRecord {
            id: SnapshotId { step, generation: 2 },
            base: SnapshotId { step: step - 1, generation: 1 },
            process_index: 3,
            num_processes: 4,
            num_parts: 4,
            data_bytes: 6,
            meta_bytes: 2,
        }
    }

    #[test]
    fn a_slot_holds_a_snapshot_from_its_last_byte_on() {
        let slot = SnapshotSlot::create().unwrap();
        assert_eq!(slot.record(), None);
        let mut writer = slot.begin().unwrap();
        writer.write_all(b"values").unwrap();
        assert_eq!((slot.record(), writer.num_bytes()), (None, 6));
        writer.write_all(b"{}").unwrap();
        writer.end(&record(7)).unwrap();
        assert_eq!(slot.record(), Some(record(7)));
        // As a process of the same user sees it.
        let other = SnapshotSlot::open(std::process::id(), slot.number()).unwrap();
        let mut bytes = [0; 8];
        other.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!((&bytes, other.record()), (b"values{}", Some(record(7))));
        assert!(other.read_exact_at(&mut bytes, 1).is_err());

        assert!(!slot.has_copy(record(7).id));
        other.set_copied(record(7).id).unwrap();
        assert!(slot.has_copy(record(7).id) && !slot.has_copy(record(8).id));
        // Another one voids both.
        let mut writer = slot.begin().unwrap();
        assert_eq!((other.record(), other.has_copy(record(7).id)), (None, false));
        writer.write_all(b"short").unwrap();
        assert!(writer.end(&record(8)).is_err());
        assert_eq!(other.record(), None);
        slot.clear().unwrap();
        assert_eq!(other.record(), None);
    }

    #[test]
    fn a_changed_record_is_none() {
        let slot = SnapshotSlot::create().unwrap();
        let mut writer = slot.begin().unwrap();
        writer.write_all(b"values{}").unwrap();
        writer.end(&record(7)).unwrap();
        for offset in 0..32 {
            let mut byte = [0];
            slot.file.read_exact_at(&mut byte, offset).unwrap();
            slot.file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
            assert_eq!(slot.record(), None, "{offset}");
            slot.file.write_all_at(&byte, offset).unwrap();
        }
        assert_eq!(slot.record(), Some(record(7)));
    }
}
