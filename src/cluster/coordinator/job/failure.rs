//! Why a generation failed, and what explains it.

use std::time::Duration;

use super::{JobChange, JobState};
use crate::cluster::messages as wire;
use crate::cluster::session::NO_ANSWER;

/// Shorter stops are those of a busy machine.
const SHORTEST: Duration = Duration::from_secs(1);
/// Processes that are killed within this time are killed together.
pub(super) const TOGETHER: Duration = Duration::from_millis(100);
/// Stops of the coordinator's process that are closer together are one.
const STUTTER: Duration = Duration::from_secs(2);

/// Why a generation failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub processes: Vec<usize>,
    pub reason: String,
    pub kind: FailureKind,
}

/// How much a failure explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// A connection was lost: its other end may know more.
    PeerLost,
    /// A process was killed: others may have been at the same moment.
    Killed,
    FirstHand,
    /// Starting again does not help.
    Final,
}

impl Failure {
    /// Another process was killed too.
    pub fn add(&mut self, other: Self) {
        self.processes.extend(other.processes);
        self.processes.sort_unstable();
        self.reason = format!("{}; {}", self.reason, other.reason);
    }
}

impl JobState {
    /// `true` once a step has been taken, in this generation or one before: what fails then may
    /// work the next time.
    pub fn has_trained(&self) -> bool {
        self.membership.step() > 0 || self.was_taken_over || self.has_trained_before
    }

    /// A process says why it ends.
    pub fn process_failed(&mut self, now: Duration, process_index: usize, failed: &wire::Failed) {
        let name = self.membership.describe(process_index);
        let reason = match failed.is_peer_lost {
            true => format!("{} ({name} says so)", failed.reason),
            false => format!("{name}: {}", failed.reason),
        };
        let is_deaf = failed.is_peer_lost || reason.contains(NO_ANSWER);
        // Others go on without a host that is new to them and cannot take part.
        let is_refused = failed.is_of_host && self.refuse(process_index, &reason);
        let kind = match failed.is_peer_lost {
            true => FailureKind::PeerLost,
            false if is_refused => FailureKind::FirstHand,
            false if failed.is_final => FailureKind::Final,
            // What is wrong before the first step of a job is wrong the next time too.
            false if !self.has_trained() => FailureKind::Final,
            false => FailureKind::FirstHand,
        };
        let mut failure = Failure { processes: vec![process_index], reason, kind };
        if is_deaf {
            failure = self.explain(now, failure);
        }
        self.fail(now, failure);
    }

    /// The process of the coordinator was stopped for `gap`, which `now` does not count. What the
    /// others do about that is not their fault.
    pub fn was_stopped(&mut self, now: Duration, gap: Duration) {
        if gap < SHORTEST {
            return;
        }
        let before = self.stopped.filter(|(then, _)| now.saturating_sub(*then) < STUTTER);
        let gap = gap + before.map_or(Duration::ZERO, |(_, gap)| gap);
        self.stopped = Some((now, gap));
        if before.is_none() && gap >= self.options.heartbeat {
            self.changes.push(JobChange::Note(format!(
                "the coordinator did not run for {:.0} s: its process was stopped, or its host was \
                 paused or too busy",
                gap.as_secs_f64()
            )));
        }
    }

    /// The failure of a process that has waited for others to join, if there are such.
    pub fn blame_missing(&self, failure: Failure) -> Failure {
        match self.membership.not_joined() {
            missing if missing.is_empty() => failure,
            processes => {
                let reason = format!("{}; {}", self.membership.missing(), failure.reason);
                Failure { processes, reason, ..failure }
            }
        }
    }

    /// Explains a lost connection by a host that has hung up, if one has: with its supervisor its
    /// processes were killed.
    pub fn blame_host(&self, now: Duration, failure: Failure) -> Failure {
        let supervision =
            self.supervision.as_ref().filter(|_| failure.kind == FailureKind::PeerLost);
        let hung_up = supervision.and_then(|hosts| hosts.hung_up(now, self.options.grace / 2));
        let Some((host, processes)) = hung_up else { return failure };
        let reason = format!(
            "the supervisor on {host} has closed its connection: it was killed, or its host is \
             down ({})",
            failure.reason
        );
        Failure { processes, reason, kind: FailureKind::FirstHand }
    }

    /// Explains a failure by a stop of the coordinator a moment ago, if there was one: processes
    /// that hear nothing of it end.
    pub fn explain(&self, now: Duration, failure: Failure) -> Failure {
        let dead_after = self.options.dead_after;
        let was_long = |(then, gap): &(Duration, Duration)| {
            now.saturating_sub(*then) <= dead_after
                && *gap + 2 * self.options.heartbeat >= dead_after
        };
        let Some((_, gap)) = self.stopped.filter(was_long) else { return failure };
        let reason = format!(
            "the coordinator did not run for {:.0} s, so that processes missed its answers ({})",
            gap.as_secs_f64(),
            failure.reason
        );
        Failure { processes: vec![], reason, kind: FailureKind::FirstHand }
    }
}
