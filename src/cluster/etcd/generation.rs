//! The key-value store and the gathers of one generation, in etcd.

use super::kept_key::{KeptKey, Say};
use super::{Etcd, EtcdError, TTL, escaped, prefix};

/// One process's view of the keys of its generation. Keeps a key that says that the process is
/// alive.
pub struct GenerationStore {
    etcd: Etcd,
    prefix: String,
    /// The lease of the job.
    lease: i64,
    process_index: usize,
    _alive: KeptKey,
}

impl GenerationStore {
    /// The store of `generation`, whose keys end with the job's lease.
    ///
    /// # Errors
    /// If etcd does not answer, or refuses. Likewise for all other calls.
    pub fn new(
        etcd: Etcd,
        job: &str,
        generation: u64,
        lease: i64,
        process_index: usize,
        say: Say,
    ) -> Result<Self, EtcdError> {
        let prefix = format!("{}{generation}/", prefix(job));
        let key = format!("{prefix}alive/{process_index}");
        let alive = KeptKey::set(etcd.clone(), key.into_bytes(), |_| vec![], TTL, say)?;
        Ok(Self { etcd, prefix, lease, process_index, _alive: alive })
    }

    /// Sets a value. `false` if it is set, to another, unless `overwrite`.
    pub fn put(&self, key: &[u8], value: &[u8], overwrite: bool) -> Result<bool, EtcdError> {
        match overwrite {
            true => self.etcd.put(&self.key(key), value, self.lease).map(|()| true),
            false => self.etcd.create(&self.key(key), value, self.lease),
        }
    }

    /// A value, if it is set.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, EtcdError> {
        self.etcd.get(&self.key(key))
    }

    /// Removes a value. `false` if it was not set.
    pub fn delete(&self, key: &[u8]) -> Result<bool, EtcdError> {
        self.etcd.delete(&self.key(key))
    }

    /// Contributes the value of this process to a round of a gather. All have the result of the
    /// round before the last: this process's part of that is removed.
    pub fn contribute(&self, name: &str, round: u64, value: &[u8]) -> Result<(), EtcdError> {
        if let Some(old) = round.checked_sub(2) {
            self.etcd.delete(self.part(name, old).as_bytes())?;
        }
        self.etcd.put(self.part(name, round).as_bytes(), value, self.lease)
    }

    /// The values of a round so far: process index and value.
    pub fn gathered(&self, name: &str, round: u64) -> Result<Vec<(usize, Vec<u8>)>, EtcdError> {
        let found = self.etcd.list(self.round(name, round).as_bytes())?;
        let index = |key: Vec<u8>| String::from_utf8(key).ok()?.parse().ok();
        let mut values: Vec<_> =
            found.into_iter().filter_map(|(key, value)| Some((index(key)?, value))).collect();
        values.sort_unstable();
        Ok(values)
    }

    fn key(&self, key: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), b"values/", key].concat()
    }

    fn round(&self, name: &str, round: u64) -> String {
        format!("{}gathers/{}/{round}/", self.prefix, escaped(name))
    }

    fn part(&self, name: &str, round: u64) -> String {
        format!("{}{}", self.round(name, round), self.process_index)
    }
}
