//! The key-value store and the gathers of one generation.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::cluster::messages::{HeldGather, HeldValue};

/// Bookkeeping of a key or value, so that many empty ones are bounded too.
const OVERHEAD_BYTES: usize = 128;

/// Values set by the processes of a generation, and gathers among them, bounded in total.
#[derive(Debug)]
pub struct Store {
    values: HashMap<Vec<u8>, Arc<Vec<u8>>>,
    /// Grows with every change of a value.
    revision: u64,
    gathers: HashMap<String, Gather>,
    num_processes: usize,
    num_bytes: usize,
    max_bytes: usize,
}

/// What processes hold of a store that is gone.
#[derive(Debug, Default)]
pub struct HeldStore {
    /// Values that were set or removed, after their revision.
    values: HashMap<Vec<u8>, (u64, Option<Vec<u8>>)>,
    /// By name, round and process.
    gathers: HashMap<String, BTreeMap<u64, BTreeMap<usize, Vec<u8>>>>,
}

impl HeldStore {
    pub fn value(&mut self, held: &HeldValue) {
        let newest = self.values.entry(held.key.clone()).or_default();
        if held.revision >= newest.0 {
            *newest = (held.revision, held.value.clone());
        }
    }

    pub fn contribution(&mut self, process_index: usize, held: &HeldGather) {
        let rounds = self.gathers.entry(held.name.clone()).or_default();
        rounds.entry(held.round).or_default().insert(process_index, held.value.clone());
    }
}

/// Why a value was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("the key is set already")]
    AlreadyExists,
    #[error("the key-value store is full: it holds at most {max_bytes} bytes")]
    Full { max_bytes: usize },
    #[error(
        "process {process_index} is in round {round} of the gather {name:?}, which is in round \
         {current}"
    )]
    OutOfStep { process_index: usize, name: String, round: u64, current: u64 },
}

/// The rounds of the gathers of one name: a process enters a round when it has the result of the
/// one before, so that only two are needed at a time.
#[derive(Debug, Default)]
struct Gather {
    round: u64,
    values: Vec<Option<Vec<u8>>>,
    /// The result of the round before this one.
    finished: Option<Arc<Vec<Vec<u8>>>>,
}

impl Store {
    /// An empty store.
    pub fn new(num_processes: usize, max_bytes: usize) -> Self {
        Self {
            values: HashMap::new(),
            revision: 0,
            gathers: HashMap::new(),
            num_processes,
            num_bytes: 0,
            max_bytes,
        }
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Option<Arc<Vec<u8>>> {
        self.values.get(key).cloned()
    }

    /// Sets the value of a key, and returns the revision. Setting it to the value that it has is no
    /// error: the answer to an earlier attempt may have been lost.
    pub fn put(&mut self, key: &[u8], value: Vec<u8>, overwrite: bool) -> Result<u64, StoreError> {
        let old = self.values.get(key);
        if old.is_some_and(|old| **old != value) && !overwrite {
            return Err(StoreError::AlreadyExists);
        }
        let freed = old.map_or(0, |old| size(key, old));
        self.reserve(size(key, &value), freed)?;
        self.values.insert(key.to_vec(), Arc::new(value));
        self.revision += 1;
        Ok(self.revision)
    }

    /// Removes a key, and returns the revision. `None` if it was not set.
    pub fn delete(&mut self, key: &[u8]) -> Option<u64> {
        let old = self.values.remove(key)?;
        self.num_bytes -= size(key, &old);
        self.revision += 1;
        Some(self.revision)
    }

    /// Takes over values and contributions that processes hold of a store that is gone: of each key
    /// its newest value. Of a gather, each process holds what it has contributed last, and before
    /// that; but those that have left need no round any more, and may have told nothing.
    pub fn take_over(
        &mut self,
        held: HeldStore,
        has_left: impl Fn(usize) -> bool,
    ) -> Result<(), StoreError> {
        for (key, (revision, value)) in held.values {
            if let Some(value) = value {
                self.put(&key, value, true)?;
            }
            self.revision = self.revision.max(revision);
        }
        for (name, rounds) in held.gathers {
            // Nobody needs an older one: a process enters a round with the result of the one
            // before.
            let last = |process| rounds.iter().rev().find(|(_, by)| by.contains_key(&process));
            let newest = |process| match last(process) {
                Some((round, _)) => Some(*round),
                // It has told all that it has: it is in the first round.
                None => (!has_left(process)).then_some(0),
            };
            let oldest = (0..self.num_processes).filter_map(newest).min().unwrap_or(0);
            self.gathers.entry(name.clone()).or_default().round = oldest;
            for (round, contributions) in rounds.into_iter().filter(|(round, _)| *round >= oldest) {
                for (process, value) in contributions {
                    self.contribute(&name, round, process, value)?;
                }
            }
        }
        Ok(())
    }

    /// Contributes the value of a process to a round of a gather. `true` if that completes the
    /// round. A repeated contribution is ignored.
    pub fn contribute(
        &mut self,
        name: &str,
        round: u64,
        process_index: usize,
        value: Vec<u8>,
    ) -> Result<bool, StoreError> {
        let current = self.gathers.get(name).map_or(0, |gather| gather.round);
        if current > 0 && round == current - 1 {
            return Ok(false);
        }
        if round != current {
            let name = name.to_owned();
            return Err(StoreError::OutOfStep { process_index, name, round, current });
        }
        let is_new_name = !self.gathers.contains_key(name);
        let overhead = if is_new_name { size(name.as_bytes(), &[]) } else { 0 };
        // A result is freed when the next round replaces it.
        let freed = self.gathers.get(name).map_or(0, Gather::num_finished_bytes);
        let is_last = self.missing(name, round) == [process_index];
        let added = OVERHEAD_BYTES + value.len() + overhead;
        self.reserve(added, if is_last { freed } else { 0 })?;
        let num_processes = self.num_processes;
        let gather = self.gathers.entry(name.to_owned()).or_default();
        gather.values.resize(num_processes, None);
        if gather.values[process_index].is_some() {
            self.num_bytes -= added;
            return Ok(false);
        }
        gather.values[process_index] = Some(value);
        if is_last {
            let values = std::mem::take(&mut gather.values);
            gather.finished = Some(Arc::new(values.into_iter().flatten().collect()));
            gather.round += 1;
        }
        Ok(is_last)
    }

    /// The result of a round, if it is complete.
    pub fn gathered(&self, name: &str, round: u64) -> Option<Arc<Vec<Vec<u8>>>> {
        let gather = self.gathers.get(name)?;
        gather.finished.clone().filter(|_| round + 1 == gather.round)
    }

    /// The processes that have not contributed to the round.
    pub fn missing(&self, name: &str, round: u64) -> Vec<usize> {
        let arrived = |process: usize| match self.gathers.get(name) {
            Some(gather) if gather.round == round => {
                gather.values.get(process).is_some_and(Option::is_some)
            }
            Some(gather) => gather.round > round,
            None => false,
        };
        (0..self.num_processes).filter(|&process| !arrived(process)).collect()
    }

    fn reserve(&mut self, added: usize, freed: usize) -> Result<(), StoreError> {
        let num_bytes = self.num_bytes.saturating_sub(freed) + added;
        if num_bytes > self.max_bytes {
            return Err(StoreError::Full { max_bytes: self.max_bytes });
        }
        self.num_bytes = num_bytes;
        Ok(())
    }
}

impl Gather {
    fn num_finished_bytes(&self) -> usize {
        let finished = self.finished.as_deref().map_or(&[][..], Vec::as_slice);
        finished.iter().map(|value| OVERHEAD_BYTES + value.len()).sum()
    }
}

fn size(key: &[u8], value: &[u8]) -> usize {
    OVERHEAD_BYTES + key.len() + value.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_set_once_unless_overwriting_is_asked_for() {
        let mut store = Store::new(1, 1 << 20);
        assert_eq!(store.get(b"a"), None);
        store.put(b"a", b"1".into(), false).unwrap();
        assert_eq!(store.put(b"a", b"2".into(), false), Err(StoreError::AlreadyExists));
        assert_eq!(**store.get(b"a").unwrap(), *b"1");
        store.put(b"a", b"2".into(), true).unwrap();
        assert_eq!(**store.get(b"a").unwrap(), *b"2");
        store.put(b"a", b"2".into(), false).unwrap();
        assert_eq!(store.delete(b"a"), Some(4));
        assert_eq!(store.delete(b"a"), None);
        assert_eq!(store.num_bytes, 0);
    }

    #[test]
    fn what_processes_hold_makes_a_store_again() {
        let mut held = HeldStore::default();
        let value = |key: &[u8], value: Option<&[u8]>, revision| HeldValue {
            key: key.to_vec(),
            value: value.map(<[u8]>::to_vec),
            revision,
        };
        // Set by one process, removed by another; set again after it was removed.
        held.value(&value(b"a", Some(b"1"), 1));
        held.value(&value(b"a", None, 3));
        held.value(&value(b"b", None, 4));
        held.value(&value(b"b", Some(b"2"), 7));
        held.value(&value(b"b", Some(b"1"), 2));
        let mut contribute = |process: usize, name: &str, round: u64| {
            let value = vec![process as u8, round as u8];
            held.contribution(process, &HeldGather { name: name.to_owned(), round, value });
        };
        // Process 0 has the result of round 5; the others still wait for it.
        for (process, round) in [(0, 5), (0, 6), (1, 4), (1, 5), (2, 5)] {
            contribute(process, "ahead", round);
        }
        // Process 1 is missing in a round, and in the first one of another gather.
        for (process, round) in [(0, 2), (0, 3), (1, 2), (2, 2), (2, 3)] {
            contribute(process, "late", round);
        }
        contribute(0, "new", 0);
        let mut store = Store::new(3, 1 << 20);
        store.take_over(held, |_| false).unwrap();
        assert_eq!((store.get(b"a"), &**store.get(b"b").unwrap()), (None, &b"2"[..]));
        assert_eq!(store.put(b"c", vec![], false), Ok(8));
        assert_eq!(*store.gathered("ahead", 5).unwrap(), [vec![0, 5], vec![1, 5], vec![2, 5]]);
        assert_eq!(store.missing("ahead", 6), [1, 2]);
        assert_eq!((store.missing("late", 3), store.missing("new", 0)), (vec![1], vec![1, 2]));
    }

    /// Process 1 has the result of the last round, and has left: it tells nothing any more.
    #[test]
    fn those_that_have_left_hold_nobody_in_the_first_round() {
        let mut held = HeldStore::default();
        for (process, round) in [(0, 14), (0, 15), (2, 14), (2, 15)] {
            let value = vec![process as u8, round as u8];
            held.contribution(process, &HeldGather { name: "g".to_owned(), round, value });
        }
        let mut store = Store::new(3, 1 << 20);
        store.take_over(held, |process| process == 1).unwrap();
        assert_eq!(store.missing("g", 15), [1]);
        assert_eq!(store.contribute("g", 15, 0, vec![0, 15]), Ok(false), "repeated");
    }

    #[test]
    fn memory_is_bounded() {
        let mut store = Store::new(1, 1000);
        store.put(b"a", vec![0; 500], false).unwrap();
        let full = Err(StoreError::Full { max_bytes: 1000 });
        assert_eq!(store.put(b"b", vec![0; 500], false), full);
        store.put(b"a", vec![0; 700], true).unwrap();
        assert_eq!(store.contribute("g", 0, 0, vec![0; 100]), full.map(|_| false));
        store.delete(b"a");
        for round in 0..100 {
            assert_eq!(store.contribute("g", round, 0, vec![0; 300]), Ok(true));
        }
        let mut store = Store::new(1, 1000);
        let num_empty = (0..100u8).filter(|key| store.put(&[*key], vec![], false).is_ok()).count();
        assert!(num_empty < 10);
    }

    #[test]
    fn rounds_follow_each_other() {
        let mut store = Store::new(3, 1 << 20);
        assert_eq!(store.missing("g", 0), [0, 1, 2]);
        assert_eq!(store.contribute("g", 0, 2, b"c".into()), Ok(false));
        assert_eq!(store.contribute("g", 0, 0, b"a".into()), Ok(false));
        assert_eq!(store.contribute("g", 0, 0, b"x".into()), Ok(false), "repeated");
        assert_eq!((store.missing("g", 0), store.gathered("g", 0)), (vec![1], None));
        assert_eq!(store.contribute("g", 0, 1, b"b".into()), Ok(true));
        let expected = vec![b"a".to_vec(), b"b".to_vec(), b"c".to_vec()];
        assert_eq!(*store.gathered("g", 0).unwrap(), expected);
        // One process is ahead: the others can still fetch the result.
        assert_eq!(store.contribute("g", 1, 1, b"B".into()), Ok(false));
        assert_eq!(store.contribute("g", 0, 0, b"a".into()), Ok(false), "repeated after the end");
        assert_eq!(*store.gathered("g", 0).unwrap(), expected);
        assert_eq!(store.missing("g", 1), [0, 2]);
        let error = store.contribute("g", 3, 1, b"B".into()).unwrap_err();
        assert!(error.to_string().contains("process 1 is in round 3"), "{error}");
    }
}
