//! Snapshots of the state in the memory of supervisors, from which the next generation goes on.
//!
//! All processes take a snapshot after the same step, once all supervisors have the one before, and
//! a copy of it from the host before them. What all must know for that they tell each other in one
//! gather. Afterwards the loop waits only while the state is copied; checksums and writing go on in
//! the background.
//!
//! How often, if it is not configured: a snapshot costs C, and a failure comes after M on average.
//! The least is lost with sqrt(2 C M) between two snapshots (Young, "A first order approximation to
//! the optimum checkpoint interval", 1974), and M is not known: see [`MEAN_SECS_TO_FAILURE`]. At
//! the beginning of a generation a failure would lose all of its steps: the interval begins with
//! [`FIRST_SECS`], and doubles up to that value.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use super::checkpoints::{copy_to_host, position};
use super::processes::Processes;
use super::progress_record::progress_to_json;
use super::recorder::Recorder;
use super::{Error, Trainer};
use crate::checkpoint::{HostLeaf, RunRecord, ShardDescription};
use crate::cluster::{SnapshotAccess, SnapshotId, SnapshotRecord, SnapshotSlot, check_memory};
use crate::config::AutoOr;
use crate::observe::FlushLater;

/// What is assumed of a job: an hour to its next failure. If that comes ten times as often, three
/// times as much is lost as could be.
const MEAN_SECS_TO_FAILURE: f64 = 3600.0;
/// A snapshot costs no more than this part of the time.
const MAX_COST: f64 = 0.01;
/// The second snapshot of a generation comes so long after the first.
const FIRST_SECS: f64 = 1.0;
/// While the snapshot before is on its way, all ask each other again after this time.
const AGAIN_SECS: f64 = 0.25;
/// How long the last one of a generation may be on its way.
const LAST_WITHIN: Duration = Duration::from_secs(20);
/// The wait before all ask each other again then.
const PAUSE: Duration = Duration::from_millis(5);

/// Takes the snapshots of a generation.
pub(super) struct Snapshots {
    access: SnapshotAccess,
    slots: Option<Arc<[SnapshotSlot; 2]>>,
    every: AutoOr<u64>,
    /// The record of the run in all of its snapshots.
    run: RunRecord,
    steps_per_epoch: Option<u64>,
    /// The newest one that all have.
    base: SnapshotId,
    /// Steps after which the first one of this generation was taken.
    first: Option<u64>,
    /// The one that was taken last, and when.
    last: Option<(SnapshotId, Instant)>,
    /// Parts that make up a whole one, once one was taken.
    num_parts: usize,
    in_flight: Option<JoinHandle<io::Result<Duration>>>,
    /// Seconds that the one before has cost.
    cost: f64,
    /// Why no more are taken.
    failure: Option<String>,
    /// After so many steps all ask each other whether one is taken.
    due: u64,
    /// Since when, and after how many steps, the time of a step is measured.
    measured: (Instant, u64),
}

/// What the processes tell each other before a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SnapshotVote {
    /// The one before is there, and its copy.
    is_ready: bool,
    /// Why this process takes no more.
    failure: Option<String>,
    /// Seconds that a snapshot costs.
    cost: f64,
    /// Seconds of a step.
    step: f64,
}

impl Snapshots {
    /// Snapshots for a run that begins after `num_steps` steps, with the state `base` if that comes
    /// from memory. `None` if none are wanted, or none are possible.
    pub fn new(
        access: Option<&SnapshotAccess>,
        every: AutoOr<usize>,
        (run, steps_per_epoch): (RunRecord, Option<u64>),
        base: Option<SnapshotId>,
        num_steps: u64,
    ) -> Option<Self> {
        let access = access?.clone();
        let every = match every {
            AutoOr::Value(0) => return None,
            AutoOr::Value(steps) => AutoOr::Value(steps as u64),
            AutoOr::Auto => AutoOr::Auto,
        };
        let (slots, failure) = match access.open_slots() {
            Ok(Some(slots)) => (Some(Arc::new(slots)), None),
            Ok(None) => (None, Some("its supervisor holds none".to_owned())),
            Err(error) => (None, Some(format!("its supervisor's memory: {error}"))),
        };
        Some(Self {
            access,
            slots,
            every,
            run,
            steps_per_epoch,
            base: base.unwrap_or_default(),
            first: None,
            last: None,
            num_parts: 0,
            in_flight: None,
            cost: 0.0,
            failure,
            // The first one comes soon: until then the state is where the generation before had it.
            due: num_steps + 1,
            measured: (Instant::now(), num_steps),
        })
    }

    /// `true` if all should ask each other after `num_steps` steps. All processes get the same
    /// answer.
    pub fn is_due(&self, num_steps: u64) -> bool {
        num_steps >= self.due
    }

    /// Takes a snapshot if all are ready for it, and it is time for it.
    ///
    /// # Errors
    /// If the state cannot be copied, or another process is lost.
    pub fn take(
        &mut self,
        processes: Processes<'_>,
        trainer: &Trainer,
        recorder: &mut Recorder,
    ) -> Result<(), Error> {
        let num_steps = trainer.steps_taken();
        let begun = Instant::now();
        let Some(votes) = self.ask(processes, num_steps, recorder)? else { return Ok(()) };
        let largest = |of: fn(&SnapshotVote) -> f64| votes.iter().map(of).fold(0.0, f64::max);
        let (cost, step) = (largest(|vote| vote.cost), largest(|vote| vote.step));
        let are_ready = votes.iter().all(|vote| vote.is_ready);
        let taken = self.first.zip(self.last.map(|(id, _)| id.step));
        let next = next_step(self.every, taken, num_steps, (cost, step), are_ready);
        self.due = next.max(num_steps + 1);
        if next > num_steps {
            return Ok(());
        }
        self.begin(begun, processes, trainer, recorder)?;
        // With a number of steps that is the next multiple; otherwise when this one may be there.
        let is_number = matches!(self.every, AutoOr::Value(_));
        let taken = self.first.map(|first| (first, num_steps));
        self.due = next_step(self.every, taken, num_steps, (cost, step), is_number);
        Ok(())
    }

    /// Takes the last snapshot of this generation, and waits until all have it. `false` if they do
    /// not.
    ///
    /// # Errors
    /// If the state cannot be copied, or another process is lost.
    pub fn take_last(
        &mut self,
        processes: Processes<'_>,
        trainer: &Trainer,
        recorder: &mut Recorder,
    ) -> Result<bool, Error> {
        let num_steps = trainer.steps_taken();
        let until = Instant::now() + LAST_WITHIN;
        loop {
            let Some(votes) = self.ask(processes, num_steps, recorder)? else { return Ok(false) };
            let are_ready = votes.iter().all(|vote| vote.is_ready);
            if are_ready && self.last.is_some_and(|(id, _)| id.step == num_steps) {
                return Ok(true);
            }
            // The clock of the first process is that of all.
            let is_late = Instant::now() >= until;
            if processes.gather("snapshot/late", is_late)?.first() == Some(&true) {
                return Ok(false);
            }
            match are_ready {
                true => self.begin(Instant::now(), processes, trainer, recorder)?,
                false => thread::sleep(PAUSE),
            }
        }
    }

    /// What all processes say; `None` if one of them takes no more, so that nobody does.
    fn ask(
        &mut self,
        processes: Processes<'_>,
        num_steps: u64,
        recorder: &mut Recorder,
    ) -> Result<Option<Vec<SnapshotVote>>, Error> {
        let is_written = self.in_flight.as_ref().is_none_or(JoinHandle::is_finished);
        if is_written && let Some(written) = self.in_flight.take() {
            match written.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
                Ok(took) => self.cost += took.as_secs_f64(),
                Err(error) => self.failure = Some(error.to_string()),
            }
        }
        let (since, step) = self.measured;
        let steps = num_steps.saturating_sub(step).max(1);
        let is_there = |slots: &Arc<[SnapshotSlot; 2]>| {
            self.last.is_none_or(|(id, _)| slots.iter().any(|slot| slot.has_copy(id)))
        };
        let own = SnapshotVote {
            is_ready: is_written && self.slots.as_ref().is_some_and(is_there),
            failure: self.failure.clone(),
            cost: self.cost,
            step: since.elapsed().as_secs_f64() / steps as f64,
        };
        let votes = processes.gather("snapshot", own)?;
        let failed = votes.iter().enumerate().find_map(|(index, vote)| {
            vote.failure.as_ref().map(|reason| format!("process {index}: {reason}"))
        });
        if let Some(reason) = failed {
            self.due = u64::MAX;
            recorder.say(&format!(
                "warning: no more snapshots are held in memory ({reason}); after a failure the run \
                 goes on from its newest checkpoint"
            ));
            return Ok(None);
        }
        if let Some((id, _)) = self.last.filter(|_| votes.iter().all(|vote| vote.is_ready)) {
            if processes.is_first() && self.base != id {
                processes.saved(id.step);
            }
            self.base = id;
        }
        Ok(Some(votes))
    }

    /// Finds out whether the memory of this host is enough. If not, no snapshots are taken.
    fn check_memory(
        &mut self,
        processes: Processes<'_>,
        slots: &[SnapshotSlot; 2],
        leaves: &[HostLeaf],
    ) -> Result<(), Error> {
        let pieces = leaves.iter().flat_map(|leaf| &leaf.pieces);
        let wanted: usize = pieces.map(|piece| piece.values.num_bytes()).sum();
        let held = slots.iter().map(SnapshotSlot::held_bytes).sum();
        let holder = self.access.own_holder.clone();
        let own = SlotBytes { holder, wanted: wanted as u64, held };
        let all = processes.gather("snapshot/bytes", own)?;
        self.num_parts = num_parts(&all);
        if let Err(error) = check_memory(bytes_needed(&all, &self.access.own_holder)) {
            self.failure = Some(error.to_string());
        }
        Ok(())
    }

    fn begin(
        &mut self,
        begun: Instant,
        processes: Processes<'_>,
        trainer: &Trainer,
        recorder: &mut Recorder,
    ) -> Result<(), Error> {
        let Some(slots) = self.slots.clone() else { return Ok(()) };
        let step = trainer.steps_taken();
        let leaves = copy_to_host(trainer.state())?;
        if self.last.is_none() {
            self.check_memory(processes, &slots, &leaves)?;
        }
        let saved_at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let run = RunRecord {
            step,
            position: position(step, self.steps_per_epoch),
            progress: progress_to_json(recorder.progress().run()),
            saved_at: saved_at.map_or(0.0, |time| time.as_secs_f64()),
            ..self.run.clone()
        };
        let id = SnapshotId { step, generation: self.access.generation };
        let process = processes.this();
        let record = SnapshotRecord {
            id,
            base: self.base,
            process_index: process.index,
            num_processes: process.num_processes,
            num_parts: self.num_parts,
            data_bytes: 0,
            meta_bytes: 0,
        };
        let (flush, fits) = (recorder.flush_later(), self.failure.is_none());
        let write = move || match fits {
            true => write(&slots, record, &leaves, run, flush),
            // All hear of it before the next one.
            false => Ok(Duration::ZERO),
        };
        let thread = thread::Builder::new().name("snapshot".to_owned()).spawn(write);
        let thread = thread.map_err(|source| Error::Thread { what: "takes snapshots", source })?;
        self.in_flight = Some(thread);
        let now = Instant::now();
        self.first.get_or_insert(step);
        (self.last, self.measured) = (Some((id, now)), (now, step));
        self.cost = begun.elapsed().as_secs_f64();
        tracing::debug!(step, waited = self.cost, "snapshot");
        Ok(())
    }
}

/// What the slots of a process take, and what they would.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SlotBytes {
    /// Where its supervisor serves them: that of its host.
    holder: String,
    /// A snapshot.
    wanted: u64,
    /// Both slots, now.
    held: u64,
}

/// The parts that make up a whole: processes after them have no values, because others have theirs.
fn num_parts(all: &[SlotBytes]) -> usize {
    all.iter().rposition(|process| process.wanted > 0).map_or(1, |last| last + 1)
}

/// Bytes that the supervisor `own` needs beside what it has: two snapshots of each own process, and
/// two of those of the host before, which may be any other.
fn bytes_needed(all: &[SlotBytes], own: &str) -> u64 {
    let mut hosts = BTreeMap::<&str, u64>::new();
    for process in all {
        let wanted = hosts.entry(&process.holder).or_default();
        *wanted = wanted.saturating_add(process.wanted.saturating_mul(2));
    }
    let of_own = hosts.get(own).copied().unwrap_or_default();
    let others = hosts.iter().filter(|(holder, _)| **holder != own).map(|(_, wanted)| *wanted);
    let of_other = others.max().unwrap_or_default();
    let held = all.iter().filter(|process| process.holder == own).map(|process| process.held);
    // What was held for a generation before is there for the other host too.
    let held = held.sum::<u64>().saturating_mul(if hosts.len() > 1 { 2 } else { 1 });
    of_own.saturating_add(of_other).saturating_sub(held)
}

/// Writes a snapshot into the slot that does not hold its base. Returns the time that it took.
fn write(
    slots: &[SnapshotSlot; 2],
    record: SnapshotRecord,
    leaves: &[HostLeaf],
    run: RunRecord,
    flush: Vec<FlushLater>,
) -> io::Result<Duration> {
    let begun = Instant::now();
    // A run that continues from here has the metrics of all steps before.
    for flush in flush {
        // The sink reports it itself.
        let _ = flush();
    }
    let holds_base = |slot: &SnapshotSlot| slot.record().is_some_and(|it| it.id == record.base);
    let slot = if holds_base(&slots[0]) { &slots[1] } else { &slots[0] };
    let mut writer = slot.begin()?;
    let described = ShardDescription::write(&mut writer, record.process_index, leaves, run)?;
    let data_bytes = writer.num_bytes();
    writer.write_all(&described.to_bytes()?)?;
    let meta_bytes = writer.num_bytes() - data_bytes;
    writer.end(&SnapshotRecord { data_bytes, meta_bytes, ..record })?;
    Ok(begun.elapsed())
}

/// The steps after which the next snapshot is taken, or all ask each other again. They are after
/// `num_steps` steps now, and the first and the last one of the generation were `taken` after
/// these. `cost` and `step` are the seconds of a snapshot and of a step.
fn next_step(
    every: AutoOr<u64>,
    taken: Option<(u64, u64)>,
    num_steps: u64,
    (cost, step): (f64, f64),
    are_ready: bool,
) -> u64 {
    let steps_in = |secs: f64| ((secs / step.max(1e-9)).ceil() as u64).max(1);
    let due = match (every, taken) {
        (_, None) => num_steps,
        (AutoOr::Value(every), Some((_, last))) => (last / every + 1) * every,
        (AutoOr::Auto, Some(_)) if !are_ready => num_steps,
        (AutoOr::Auto, Some((first, last))) => {
            let passed = last.saturating_sub(first) as f64 * step;
            let least_lost = (2.0 * cost * MEAN_SECS_TO_FAILURE).sqrt();
            let secs = least_lost.min(passed.max(FIRST_SECS)).max(cost / MAX_COST);
            last.saturating_add(steps_in(secs))
        }
    };
    match are_ready {
        true => due,
        false => due.max(num_steps.saturating_add(steps_in(AGAIN_SECS))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_follow_from_what_they_cost() {
        let auto = |taken, num_steps, times, are_ready| {
            next_step(AutoOr::Auto, taken, num_steps, times, are_ready)
        };
        // The first one at once.
        assert_eq!(auto(None, 1, (0.0, 0.1), true), 1);
        // The second after a second, then after as long as the run has lasted.
        assert_eq!(auto(Some((1, 1)), 4, (0.01, 0.1), true), 11);
        assert_eq!(auto(Some((1, 31)), 31, (0.01, 0.1), true), 61);
        // But no more than 1 % of the time: 2 s.
        assert_eq!(auto(Some((1, 1)), 4, (0.02, 0.1), true), 21);
        // sqrt(2 * 0.02 * 3600) = 12 s.
        assert_eq!(auto(Some((1, 201)), 204, (0.02, 0.1), true), 321);
        assert_eq!(auto(Some((1, 321)), 321, (0.02, 0.1), true), 441);
        // 2 s: 1 % of that is more than Young's 120 s.
        assert_eq!(auto(Some((1, 1000)), 1050, (2.0, 1.0), true), 1200);
        // Not all have the one before.
        assert_eq!(auto(Some((1, 100)), 150, (2.0, 0.1), false), 153);
        assert_eq!(auto(None, 150, (0.0, 1.0), false), 151);
    }

    #[test]
    fn a_host_needs_memory_for_its_own_and_for_those_of_another() {
        let process =
            |holder: &str, wanted, held| SlotBytes { holder: holder.to_owned(), wanted, held };
        assert_eq!(bytes_needed(&[process("a", 10, 0), process("a", 1, 0)], "a"), 22);
        assert_eq!(bytes_needed(&[process("a", 10, 20), process("a", 1, 0)], "a"), 2);
        let hosts =
            [process("a", 10, 0), process("a", 1, 0), process("b", 3, 0), process("c", 4, 0)];
        assert_eq!(bytes_needed(&hosts, "a"), 22 + 8);
        assert_eq!(bytes_needed(&hosts, "b"), 6 + 22);
        let again = [process("a", 10, 20), process("b", 10, 20)];
        assert_eq!(bytes_needed(&again, "a"), 0);
    }

    #[test]
    fn processes_without_values_are_no_part_of_the_whole() {
        let process = |wanted| SlotBytes { holder: "a".to_owned(), wanted, held: 0 };
        let parts =
            |wanted: &[u64]| num_parts(&wanted.iter().map(|it| process(*it)).collect::<Vec<_>>());
        assert_eq!(parts(&[9, 0, 0, 0]), 1);
        assert_eq!(parts(&[9, 9, 0, 0]), 2);
        assert_eq!(parts(&[9, 0, 9, 9]), 4);
        assert_eq!(parts(&[0, 0]), 1);
    }

    #[test]
    fn a_number_of_steps_is_kept_to() {
        let every = |last: Option<u64>, num_steps, are_ready| {
            let taken = last.map(|last| (1, last));
            next_step(AutoOr::Value(10), taken, num_steps, (1.0, 0.1), are_ready)
        };
        assert_eq!(every(None, 1, true), 1);
        assert_eq!((every(Some(1), 2, true), every(Some(10), 20, true)), (10, 20));
        // A launch of several steps ended later, and the one before is still on its way.
        assert_eq!((every(Some(10), 24, true), every(Some(10), 24, false)), (20, 27));
    }
}
