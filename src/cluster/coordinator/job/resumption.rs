//! What a coordinator that was started again learns from those who hold it.
//!
//! Supervisors register again and say which processes run. If all of the generation do, it goes on
//! as soon as each has told what it knows: the horizon that it was granted, events, values,
//! contributions to gathers. Before that no call of a process reads or changes any of it, also not
//! of one that has told: it waits for the others ([`JobState::settled`]). In particular nothing is
//! granted, so that no process has left the boundary of an event that is still to come. If a
//! process is missing, the generation fails.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Failure, FailureKind, JobChange, JobState, Stage};
use crate::cluster::coordinator::membership::{Membership, list};
use crate::cluster::coordinator::store::{HeldStore, Store, StoreError};
use crate::cluster::coordinator::supervision::Supervision;
use crate::cluster::members::GenerationEnd;
use crate::cluster::messages::{self as wire, EndedRow, Reply, Why};
use crate::cluster::wish::{AgreedWish, INTERRUPTED, REGROUP, REGROUP_CODE, Wish};

/// What the processes of a generation have told, until all have.
#[derive(Debug, Default)]
pub struct Resumption {
    held: HeldStore,
    wishes: Vec<Wish>,
    /// The parts that have come: the process, of how many parts, and which. One that asks again may
    /// have more or less to tell than before.
    parts: BTreeSet<(u32, u32, u32)>,
    /// All must have told it by then. `None`: nobody is to tell anything.
    until: Option<Duration>,
}

impl Resumption {
    /// `true` while processes of a generation that was taken over are to tell what they know.
    pub fn is_open(&self) -> bool {
        self.until.is_some()
    }
}

impl JobState {
    /// Takes over a generation that this coordinator did not start, if supervisors hold one, and
    /// all of them are there or were waited for. `false` if not.
    pub(super) fn take_over(&mut self, now: Duration) -> bool {
        let is_late = match self.stage {
            Stage::Registering { since } => since + self.options.dead_after <= now,
            _ => true,
        };
        let supervision = self.supervision.as_mut().filter(|_| self.generation == 0);
        let Some(supervision) = supervision else { return false };
        let Some((generation, num_processes, ended)) = supervision.take_over(is_late) else {
            return false;
        };
        self.generation = generation;
        self.membership = Membership::new(num_processes);
        self.store = Store::new(num_processes, self.options.max_store_bytes);
        self.stage = Stage::Forming;
        self.was_taken_over = true;
        self.resumption.until = Some(now + self.options.dead_after);
        for EndedRow { process_index, exit_code } in ended {
            self.ended_well(now, process_index as usize, exit_code);
        }
        let running = self.supervision.as_ref().map(Supervision::running).unwrap_or_default();
        let is_there = |process: &usize| {
            running.iter().any(|(running, _)| running == process)
                || self.membership.member(*process).is_some()
        };
        let missing: Vec<_> = (0..num_processes).filter(|process| !is_there(process)).collect();
        let what = "the coordinator was started again";
        if missing.is_empty() {
            self.changes.push(JobChange::Note(format!("{what}; generation {generation} goes on")));
            self.after_children(now);
        } else {
            let reason = format!("{what}, and {} ended meanwhile", list(&missing));
            let kind = FailureKind::FirstHand;
            self.fail(now, Failure { processes: missing, reason, kind });
        }
        true
    }

    /// A process of a generation that was taken over has ended before it could tell that it has
    /// left.
    pub(super) fn ended_well(&mut self, now: Duration, process_index: usize, exit_code: i32) {
        let outcome = match exit_code {
            0 => "done",
            code if code == i32::from(REGROUP_CODE) => REGROUP,
            _ => INTERRUPTED,
        };
        self.note_signal(exit_code);
        self.membership.left_before(process_index, outcome);
        self.changes.push(JobChange::Left { process_index });
        if self.membership.all_left() {
            self.stage = Stage::Finished { until: now + self.options.kill_within };
        }
    }

    /// A process tells what it knows, and joins the generation again.
    pub fn resume(&mut self, now: Duration, caller: u64, resume: &wire::TellHeld) -> Reply {
        let Some(join) = &resume.join else {
            return Reply::refused(Why::Invalid, "it does not say who it is");
        };
        if self.supervision.is_none() && self.stage != Stage::Idle {
            // Process 0, with the state of the run, is gone.
            let reason = "the coordinator was started again, with process 0".to_owned();
            return Reply::Ended(wire::Ended { reason });
        }
        if join.generation == self.generation && !self.was_taken_over {
            let reason = "the job was started anew, without this process".to_owned();
            return Reply::Ended(wire::Ended { reason });
        }
        let is_forming = self.stage == Stage::Forming
            && join.generation == self.generation
            && self.resumption.is_open();
        if is_forming {
            let process_index = join.process_index as usize;
            let resumption = &mut self.resumption;
            resumption.parts.insert((join.process_index, resume.num_parts, resume.part));
            resume.values.iter().for_each(|value| resumption.held.value(value));
            for contribution in &resume.gathers {
                resumption.held.contribution(process_index, contribution);
            }
            resumption
                .wishes
                .extend(resume.wishes.iter().filter_map(|code| Wish::from_code(*code)));
            let event = |row: &wire::EventRow| {
                Some(AgreedWish { step: row.step, wish: Wish::from_code(row.wish)? })
            };
            self.horizon.hold(resume.horizon, resume.events.iter().filter_map(event).collect());
            if resume.history.len() > self.history.len() {
                self.history = resume.history.iter().map(GenerationEnd::from).collect();
            }
        }
        let (process, num_parts) = (join.process_index, resume.num_parts);
        let is_missing = |part| !self.resumption.parts.contains(&(process, num_parts, part));
        match is_forming && (0..num_parts).any(is_missing) {
            true => Reply::Done(wire::Done::default()),
            false => self.join(now, caller, join),
        }
    }

    /// All processes of the generation are there: nothing that they held is missing.
    pub(super) fn settle(&mut self) -> Result<(), StoreError> {
        let Resumption { held, wishes, .. } = std::mem::take(&mut self.resumption);
        self.store.take_over(held, |process| self.membership.has_left(process))?;
        for wish in wishes {
            self.horizon.wish(wish);
        }
        Ok(())
    }

    /// Processes that were to tell what they know, and did not.
    pub(super) fn find_lost(&mut self, now: Duration) {
        if self.stage != Stage::Forming || self.resumption.until.is_none_or(|until| now < until) {
            return;
        }
        let processes = self.membership.not_joined();
        let reason = format!(
            "the coordinator was started again, and {} not come back within {} s",
            list(&processes),
            self.options.dead_after.as_secs_f64()
        );
        self.fail(now, Failure { processes, reason, kind: FailureKind::FirstHand });
    }
}
