//! The part of a checkpoint that a process writes: all of it, or its shard.

use std::sync::{Arc, Mutex, PoisonError};

use super::processes::Processes;
use crate::checkpoint::{
    self, CheckpointDir, HostLeaf, Location, OtherProcesses, RunRecord, SavedShard, ShardPlace,
};
use crate::cluster::{self, Session};

/// The part of each checkpoint that this process writes.
#[derive(Clone)]
pub(super) enum CheckpointWriter {
    /// The manifest and its shard, in its own directory.
    First {
        dir: Arc<CheckpointDir>,
        others: Option<(Session, usize)>,
        /// Steps with messages that are still there: of checkpoints that failed, before or after
        /// others read them.
        failed: Arc<Mutex<Vec<u64>>>,
    },
    /// Its shard.
    Other { session: Session, process_index: usize },
}

impl CheckpointWriter {
    /// For the first process, which has claimed the directory.
    pub fn of_first(dir: CheckpointDir, processes: Processes<'_>) -> Self {
        let others = processes.member().map(|member| {
            let session = member.session().clone();
            (session, processes.this().num_processes)
        });
        Self::First { dir: Arc::new(dir), others, failed: Arc::default() }
    }

    /// `true` if other processes save too.
    pub fn has_others(&self) -> bool {
        !matches!(self, Self::First { others: None, .. })
    }

    /// Saves the state after `run.step` steps.
    ///
    /// # Errors
    /// A file that cannot be written, or another process that could not write its shard.
    pub fn save(&self, leaves: &[HostLeaf], run: RunRecord) -> Result<(), checkpoint::Error> {
        let step = run.step;
        match self {
            Self::First { dir, others: None, .. } => dir.save(leaves, run).map(drop),
            Self::First { dir, others: Some((session, num_processes)), failed } => {
                let place = dir.location().clone();
                let others = Others { session, num_processes: *num_processes, step, place };
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                if let Err(error) = dir.save_together(leaves, run, &others) {
                    // The other processes may not have begun, and wait for the place.
                    others.give_up(&error.to_string());
                    failed.push(step);
                    return Err(error);
                }
                // All are past the checkpoints before this one.
                failed.drain(..).chain([step]).for_each(|step| others.forget(step));
                // Counts as progress of the job.
                session.saved(step);
                Ok(())
            }
            Self::Other { session, process_index } => {
                save_shard(session, *process_index, step, leaves)
            }
        }
    }

    /// Removes old checkpoints, see [`CheckpointDir::retain`].
    ///
    /// # Errors
    /// A file that cannot be removed.
    pub fn retain(
        &self,
        keep: usize,
        is_kept: impl Fn(u64) -> bool,
    ) -> Result<(), checkpoint::Error> {
        match self {
            Self::First { dir, .. } => dir.retain(keep, is_kept),
            Self::Other { .. } => Ok(()),
        }
    }
}

/// The key under which the first process says where shards are written.
fn place_key(step: u64) -> String {
    format!("checkpoint/{step}/place")
}

/// The key under which a process describes its shard.
fn shard_key(step: u64, process_index: usize) -> String {
    format!("checkpoint/{step}/{process_index}")
}

/// Writes the shard of a process that is not the first, where the first one says.
fn save_shard(
    session: &Session,
    process_index: usize,
    step: u64,
    leaves: &[HostLeaf],
) -> Result<(), checkpoint::Error> {
    let nowhere = Location::from(std::path::Path::new("the checkpoint"));
    let place =
        session.get(place_key(step).as_bytes(), session.patience()).map_err(lost(&nowhere))?;
    let saved = match read_place(&place) {
        Ok(place) => place.save(leaves, process_index).map_err(|error| {
            // If the first process has failed meanwhile, it has removed the directory.
            let place = session.try_get(place_key(step).as_bytes());
            match place.map(|place| read_place(&place)) {
                Ok(Err(reason)) => other_process(&nowhere, reason),
                _ => error,
            }
        }),
        Err(reason) => Err(other_process(&nowhere, reason)),
    };
    let answer = saved.as_ref().map_err(ToString::to_string);
    let answer = serde_json::to_vec(&answer).unwrap_or_default();
    session
        .put(shard_key(step, process_index).as_bytes(), &answer, true)
        .map_err(lost(&nowhere))?;
    saved.map(drop)
}

/// Where shards are written, or why the first process saves no checkpoint.
fn read_place(place: &[u8]) -> Result<ShardPlace, String> {
    let place: Result<Result<ShardPlace, String>, _> = serde_json::from_slice(place);
    place.map_err(|error| error.to_string())?.map_err(|reason| format!("process 0: {reason}"))
}

/// The other processes, while a checkpoint is saved.
struct Others<'a> {
    session: &'a Session,
    num_processes: usize,
    step: u64,
    place: Location,
}

impl Others<'_> {
    /// Removes the messages about a checkpoint. If one stays, it only takes memory.
    fn forget(&self, step: u64) {
        let shards = (1..self.num_processes).map(|index| shard_key(step, index));
        for key in shards.chain([place_key(step)]) {
            let _ = self.session.delete(key.as_bytes());
        }
    }

    /// Tells the others that this checkpoint is not saved. If that does not reach them, the job has
    /// failed anyway.
    fn give_up(&self, reason: &str) {
        let place: Result<ShardPlace, &str> = Err(reason);
        let text = serde_json::to_vec(&place).unwrap_or_default();
        let _ = self.session.put(place_key(self.step).as_bytes(), &text, true);
    }
}

impl OtherProcesses for Others<'_> {
    fn begin(&self, place: &ShardPlace) -> Result<(), checkpoint::Error> {
        let place: Result<&ShardPlace, String> = Ok(place);
        let text = serde_json::to_vec(&place).unwrap_or_default();
        self.session.put(place_key(self.step).as_bytes(), &text, true).map_err(lost(&self.place))
    }

    fn wait(&self) -> Result<Vec<SavedShard>, checkpoint::Error> {
        let mut shards = vec![];
        for index in 1..self.num_processes {
            let found =
                self.session.get(shard_key(self.step, index).as_bytes(), self.session.patience());
            let found = found.map_err(lost(&self.place))?;
            let answer: Result<Result<SavedShard, String>, _> = serde_json::from_slice(&found);
            let reason = match answer {
                Ok(Ok(shard)) => {
                    shards.push(shard);
                    continue;
                }
                Ok(Err(reason)) => reason,
                Err(error) => error.to_string(),
            };
            return Err(other_process(&self.place, format!("process {index}: {reason}")));
        }
        Ok(shards)
    }
}

fn other_process(path: &Location, reason: String) -> checkpoint::Error {
    checkpoint::Error::OtherProcess { path: path.clone(), reason }
}

fn lost(path: &Location) -> impl Fn(cluster::Error) -> checkpoint::Error + '_ {
    |error| other_process(path, error.to_string())
}
