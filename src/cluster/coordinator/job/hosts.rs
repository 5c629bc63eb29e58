//! Hosts that come, leave and are lost while a job runs.

use std::time::Duration;

use hlo::counted;

use super::{JobChange, JobState, SIGTERM, Stage};
use crate::cluster::coordinator::supervision::{HostChange, Supervision};
use crate::cluster::members::SlowPeer;
use crate::cluster::messages::{self as wire, Cause};
use crate::cluster::roster::index;
use crate::cluster::wish::Wish;

/// How the generation came about.
#[derive(Debug, Default)]
pub struct FormationTimes {
    pub cause: Cause,
    pub num_hosts: usize,
    /// When the one before had failed, or its processes had ended.
    pub since: Duration,
    /// When supervisors were told to start.
    pub started: Duration,
    /// When all processes had joined.
    pub joined: Duration,
    /// When it was last said that hosts are missing.
    said_missing: Option<Duration>,
}

impl FormationTimes {
    pub fn to_row(&self) -> wire::FormationRow {
        let Self { cause, num_hosts, since, started, joined, .. } = *self;
        wire::FormationRow {
            num_hosts: index(num_hosts),
            cause: cause.into(),
            agree_ms: wire::millis(started.saturating_sub(since)),
            join_ms: wire::millis(joined.saturating_sub(started)),
        }
    }
}

/// It is said that hosts are missing after so long, and then again and again.
const MISSING_AFTER: Duration = Duration::from_secs(10);
const MISSING_AGAIN: Duration = Duration::from_secs(60);

impl JobState {
    /// Says now and then who is there, and how many hosts are missing, where these are waited for
    /// since then.
    pub(super) fn say_missing(&mut self, now: Duration, since: Duration) {
        let Some(supervision) = &self.supervision else { return };
        let said = self.formation.said_missing.filter(|said| *said >= since);
        let due = said.map_or(since + MISSING_AFTER, |said| said + MISSING_AGAIN);
        if due <= now {
            self.formation.said_missing = Some(now);
            let secs = self.options.start_within.as_secs();
            let text = format!("waits up to {secs} s for hosts: {}", supervision.missing());
            self.changes.push(JobChange::Note(text));
        }
    }

    /// Removes the new host of a process that cannot take part, if the others are enough. `false`
    /// otherwise.
    pub(super) fn refuse(&mut self, process_index: usize, reason: &str) -> bool {
        let Some(supervision) = &mut self.supervision else { return false };
        let is_refused = supervision.size.is_flexible()
            && self.generation > 1
            && supervision.refuse(process_index, reason);
        if is_refused {
            let text = format!("the job goes on without the host of process {process_index}");
            self.changes.push(JobChange::Note(text));
        }
        is_refused
    }

    /// The next generation starts without hosts that have not taken note of the failure, if the
    /// others are enough.
    pub(super) fn leave_out_unresponsive(&mut self, now: Duration) {
        let Some(supervision) = &mut self.supervision else { return };
        let unresponsive = supervision.take_unresponsive(self.directives.len());
        if unresponsive.is_empty() {
            return;
        }
        let (names, processes): (Vec<_>, Vec<_>) = unresponsive.into_iter().unzip();
        let names = names.join(", ");
        let text = format!("no answer from the supervisor on {names}: the job goes on without it");
        self.changes.push(JobChange::Note(text));
        let processes: Vec<_> = processes.concat();
        if let Some(end) = self.history.last_mut().filter(|_| !processes.is_empty()) {
            // Those that were blamed had only lost the connection to these.
            end.reason = format!("the supervisor on {names} does not answer; {}", end.reason);
            end.processes = processes;
        }
        self.after_children(now);
    }

    /// A process of the generation is slow. Its host gives its place to a spare, if that is wished
    /// for and one waits.
    pub fn name_slow(&mut self, now: Duration, peer: &SlowPeer) {
        self.membership.slow.push(peer.to_row());
        if !self.replaces_slow || self.stage != Stage::Running {
            return;
        }
        let Some(supervision) = &mut self.supervision else { return };
        if !supervision.replace(peer.process_index) {
            let text = format!("no spare can take the place of {}", peer.host);
            self.changes.push(JobChange::Note(text));
        }
        self.follow_hosts(now);
    }

    /// All stop after the same step because hosts have come or leave, and start again with those
    /// that are there then, if these are enough.
    pub(super) fn follow_hosts(&mut self, now: Duration) {
        let change = self.supervision.as_ref().and_then(|hosts| hosts.change(now));
        let (wish, why, then) = match change {
            Some(HostChange::More(why)) => (Wish::Grow, why, "all start again then"),
            Some(HostChange::Other(why)) => (Wish::Regroup, why, "all start again then"),
            Some(HostChange::TooFew(names)) => {
                (Wish::Stop, format!("leaving: {names}"), "the others are too few to go on")
            }
            None => return,
        };
        if self.last_change.replace(wish) == Some(wish) {
            return;
        }
        if wish == Wish::Stop && self.signal == 0 {
            self.signal = SIGTERM;
        }
        let event = self.horizon.wish(wish);
        let steps = counted(event.step as usize, "step");
        let text = format!("{why}; all save and stop after {steps}; {then}");
        self.changes.push(JobChange::Note(text));
    }

    /// `true` if hosts that leave are the reason why no generation can start.
    pub(super) fn are_leaving(&self) -> bool {
        self.supervision.as_ref().is_some_and(Supervision::are_leaving)
    }
}
