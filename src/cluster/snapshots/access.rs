//! What a process gets from its supervisor: its slots, and where snapshots are held.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde::{Deserialize, Serialize};

use super::link::HolderLink;
use super::slot::{SnapshotId, SnapshotRecord, SnapshotSlot};
use crate::cluster::Secret;

/// The slots of a process, and the supervisors that hold snapshots of its job.
#[derive(Clone)]
pub struct SnapshotAccess {
    /// Process id of the supervisor.
    pub supervisor: u32,
    /// Numbers of the slots there; none if it has none.
    pub slots: Vec<i32>,
    /// Where the supervisor serves snapshots; empty if it does not.
    pub own_holder: String,
    /// Where those of all hosts do.
    pub holders: Vec<String>,
    /// The generation of the process.
    pub generation: u64,
    /// The name of the job.
    pub job: String,
    /// What all processes share.
    pub secret: Secret,
}

/// The snapshots of all processes after the same step of a generation: the whole state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotSet {
    /// The state.
    pub id: SnapshotId,
    /// By process index.
    pub parts: Vec<SnapshotPart>,
}

/// The snapshot of a process, and who holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotPart {
    /// What it is.
    pub record: SnapshotRecord,
    /// Addresses of supervisors, each with the number of the file there.
    pub holders: Vec<(String, i32)>,
}

/// What is left of the newest state, if none is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostParts {
    /// Steps taken.
    pub step: u64,
    /// A process whose part nobody holds.
    pub process: Option<usize>,
}

impl SnapshotAccess {
    /// The slots of this process; `None` if its supervisor has none for it.
    ///
    /// # Errors
    /// If the supervisor has ended, or the system hides its files.
    pub fn open_slots(&self) -> io::Result<Option<[SnapshotSlot; 2]>> {
        let &[first, second] = &self.slots[..] else { return Ok(None) };
        let open = |number| SnapshotSlot::open(self.supervisor, number);
        Ok(Some([open(first)?, open(second)?]))
    }

    /// The whole states that supervisors hold, the newest first, and otherwise the processes whose
    /// part of the newest one is lost. A supervisor that does not answer holds nothing.
    pub fn find(&self) -> Result<Vec<SnapshotSet>, LostParts> {
        let list = |address: &String| {
            let listed = self.connect(address).and_then(|mut link| link.list());
            listed.inspect_err(|error| tracing::debug!(%address, %error, "no snapshots")).ok()
        };
        let held: Vec<_> = thread::scope(|scope| {
            let asked: Vec<_> = self
                .holders
                .iter()
                .map(|address| (address, scope.spawn(move || list(address))))
                .collect();
            let heard = asked.into_iter().map(|(address, listed)| (address, listed.join()));
            heard.filter_map(|(address, listed)| Some((address.clone(), listed.ok()??))).collect()
        });
        whole_sets(held)
    }

    /// The run goes on after `step` steps: all supervisors forget what was taken after that. One
    /// that does not answer is gone with what it holds.
    pub fn forget_after(&self, step: u64) {
        let forget = |address: &String| {
            let forgotten = self.connect(address).and_then(|mut link| link.forget_after(step));
            if let Err(error) = forgotten {
                tracing::debug!(%address, %error, "snapshots are not forgotten");
            }
        };
        thread::scope(|scope| {
            for address in &self.holders {
                scope.spawn(move || forget(address));
            }
        });
    }

    /// Opens the snapshots of a state, those of the own supervisor where it has them. There is one
    /// connection to each other one.
    ///
    /// # Errors
    /// If nobody who holds a part answers.
    pub fn open(&self, set: &SnapshotSet) -> io::Result<Vec<SnapshotFile>> {
        let mut links = BTreeMap::new();
        set.parts.iter().map(|part| self.open_part(part, &mut links)).collect()
    }

    fn open_part(
        &self,
        part: &SnapshotPart,
        links: &mut BTreeMap<String, Arc<RemoteHolder>>,
    ) -> io::Result<SnapshotFile> {
        let record = part.record;
        let is_own = |(address, _): &&(String, i32)| *address == self.own_holder;
        if let Some((_, number)) = part.holders.iter().find(is_own)
            && let Ok(slot) = SnapshotSlot::open(self.supervisor, *number)
            && slot.record() == Some(record)
        {
            return Ok(SnapshotFile { record, place: SnapshotPlace::Here(slot) });
        }
        let mut failed = io::Error::from(io::ErrorKind::NotFound);
        for (address, _) in &part.holders {
            let link = match links.get(address) {
                Some(link) => Ok(link.clone()),
                None => RemoteHolder::connect(self, address).map(Arc::new),
            };
            match link {
                Ok(link) => {
                    links.insert(address.clone(), link.clone());
                    return Ok(SnapshotFile { record, place: SnapshotPlace::Elsewhere(link) });
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn connect(&self, address: &str) -> io::Result<HolderLink> {
        HolderLink::connect(address, &self.secret, &self.job)
    }
}

/// The states of which all parts are there, the newest first; without one, what the newest lacks.
fn whole_sets(
    held: Vec<(String, Vec<(SnapshotRecord, i32)>)>,
) -> Result<Vec<SnapshotSet>, LostParts> {
    let mut sets = BTreeMap::<(SnapshotId, usize), BTreeMap<usize, SnapshotPart>>::new();
    for (address, rows) in held {
        for (record, number) in rows {
            let parts = sets.entry((record.id, record.num_parts)).or_default();
            let part = parts
                .entry(record.process_index)
                .or_insert_with(|| SnapshotPart { record, holders: vec![] });
            // Copies are equal, or one of them is not what it says.
            if (part.record.data_bytes, part.record.meta_bytes)
                == (record.data_bytes, record.meta_bytes)
            {
                part.holders.push((address.clone(), number));
            }
        }
    }
    let newest = sets.last_key_value();
    let lost = newest.map(|(&(SnapshotId { step, .. }, num_parts), parts)| {
        let mut processes = (0..num_parts).filter(|process| !parts.contains_key(process));
        LostParts { step, process: processes.next() }
    });
    let whole = sets.into_iter().rev().filter(|((_, num_parts), parts)| {
        // Those without values may be there too.
        *num_parts > 0 && parts.keys().copied().take(*num_parts).eq(0..*num_parts)
    });
    let set = |((id, _), parts): ((SnapshotId, usize), BTreeMap<_, _>)| SnapshotSet {
        id,
        parts: parts.into_values().collect(),
    };
    let whole: Vec<_> = whole.map(set).collect();
    match (lost, whole.is_empty()) {
        (Some(lost), true) => Err(lost),
        _ => Ok(whole),
    }
}

/// A snapshot that is read.
#[derive(Debug)]
pub struct SnapshotFile {
    record: SnapshotRecord,
    place: SnapshotPlace,
}

#[derive(Debug)]
enum SnapshotPlace {
    /// In the memory of the own supervisor.
    Here(SnapshotSlot),
    Elsewhere(Arc<RemoteHolder>),
}

/// A supervisor on another host. It closes connections over which nothing is asked for a while, as
/// between the start of a process and its state.
#[derive(Debug)]
struct RemoteHolder {
    address: String,
    secret: Secret,
    job: String,
    link: Mutex<Option<HolderLink>>,
}

impl RemoteHolder {
    fn connect(access: &SnapshotAccess, address: &str) -> io::Result<Self> {
        let link = Mutex::new(Some(access.connect(address)?));
        let (secret, job) = (access.secret.clone(), access.job.clone());
        Ok(Self { address: address.to_owned(), secret, job, link })
    }

    fn read_exact_at(
        &self,
        record: &SnapshotRecord,
        bytes: &mut [u8],
        offset: u64,
    ) -> io::Result<()> {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut open) = link.take()
            && open.read_exact_at(record, bytes, offset).is_ok()
        {
            *link = Some(open);
            return Ok(());
        }
        let mut open = HolderLink::connect(&self.address, &self.secret, &self.job)?;
        open.read_exact_at(record, bytes, offset)?;
        *link = Some(open);
        Ok(())
    }
}

impl SnapshotFile {
    /// What it is.
    pub fn record(&self) -> &SnapshotRecord {
        &self.record
    }

    /// Fills `bytes` from `offset` on: the values, and then what describes them.
    ///
    /// # Errors
    /// If it is shorter, is not there any more, or its holder does not answer.
    pub fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        match &self.place {
            SnapshotPlace::Here(slot) => slot.read_exact_at(bytes, offset),
            SnapshotPlace::Elsewhere(holder) => holder.read_exact_at(&self.record, bytes, offset),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(generation: u64, step: u64, process: usize, of: usize) -> (SnapshotRecord, i32) {
        let id = SnapshotId { step, generation };
        let record = SnapshotRecord {
            id,
            base: SnapshotId::default(),
            process_index: process,
            num_processes: of,
            num_parts: of,
            data_bytes: 8,
            meta_bytes: 2,
        };
        (record, process as i32)
    }

    /// Three hosts, each with copies of the host before; the second is lost, then also the third.
    #[test]
    fn a_state_is_whole_if_each_process_has_a_part_somewhere() {
        let host = |name: &str, steps: [u64; 2], own: usize, copied: usize| {
            let rows = [own, copied]
                .into_iter()
                .flat_map(|process| steps.map(|step| record(3, step, process, 3)).into_iter());
            (name.to_owned(), rows.collect::<Vec<_>>())
        };
        let first = host("a", [20, 10], 0, 2);
        let second = host("b", [20, 10], 1, 0);
        let third = host("c", [20, 10], 2, 1);
        let found = |held: &[&(String, Vec<_>)]| {
            let held = held.iter().map(|held| (*held).clone()).collect();
            let sets = whole_sets(held).unwrap_or_default();
            sets.iter().map(|set| (set.id.generation, set.id.step)).collect::<Vec<_>>()
        };
        assert_eq!(found(&[&first, &second, &third]), [(3, 20), (3, 10)]);
        assert_eq!(found(&[&first, &third]), [(3, 20), (3, 10)]);
        assert_eq!(found(&[&first]), []);
        let lost = LostParts { step: 20, process: Some(1) };
        assert_eq!(whole_sets(vec![first.clone()]), Err(lost));
        assert_eq!(whole_sets(vec![]), Ok(vec![]));
        let sets = whole_sets(vec![first.clone(), third.clone()]).unwrap();
        let holders: Vec<_> = sets[0].parts.iter().map(|part| part.holders.clone()).collect();
        let at = |name: &str, number| (name.to_owned(), number);
        assert_eq!(holders, [vec![at("a", 0)], vec![at("c", 1)], vec![at("a", 2), at("c", 2)]]);
        // One host is a step behind; parts of other generations and other numbers make no whole.
        let late = host("c", [10, 5], 2, 1);
        assert_eq!(found(&[&host("a", [20, 10], 0, 0), &second, &late]), [(3, 10)]);
        // Only the first process has values.
        let of_first = |held: &(String, Vec<(SnapshotRecord, i32)>)| {
            let rows = held
                .1
                .iter()
                .map(|(record, number)| (SnapshotRecord { num_parts: 1, ..*record }, *number));
            (held.0.clone(), rows.collect::<Vec<_>>())
        };
        assert_eq!(found(&[&of_first(&first)]), [(3, 20), (3, 10)]);
        assert_eq!(found(&[&of_first(&second)]), [(3, 20), (3, 10)]);
        assert_eq!(found(&[&of_first(&third)]), []);
        let others = vec![record(2, 20, 0, 2), record(3, 20, 1, 2), record(3, 20, 0, 3)];
        assert_eq!(found(&[&("d".to_owned(), others)]), []);
    }
}
