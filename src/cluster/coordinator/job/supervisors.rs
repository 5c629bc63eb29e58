//! What supervisors say, and what they are told.

use std::time::Duration;

use hlo::counted;

use super::{Failure, FailureKind, JobChange, JobState, Role, Stage};
use crate::cluster::coordinator::membership::Membership;
use crate::cluster::coordinator::store::Store;
use crate::cluster::coordinator::supervision::{Supervision, Supervisor};
use crate::cluster::members::Directive;
use crate::cluster::messages::{self as wire, Reply, Why};

/// More are a mistake, or a stranger.
const MAX_PROCESSES: usize = 1 << 17;

impl JobState {
    /// A supervisor registers, or asks again.
    pub fn register(&mut self, now: Duration, session: u64, ask: &wire::Register) -> Reply {
        let (num_hosts, num_processes) = (ask.num_hosts as usize, ask.num_processes as usize);
        if self.stage == Stage::Idle {
            if num_processes > MAX_PROCESSES || num_hosts > num_processes {
                return Reply::refused(Why::Invalid, "no job has so many processes or hosts");
            }
            (self.options.num_processes, self.options.num_hosts) = (num_processes, Some(num_hosts));
            self.stage = Stage::Registering { until: now + self.options.start_within };
            self.membership = Membership::new(num_processes);
            self.store = Store::new(num_processes, self.options.max_store_bytes);
            self.supervision = Some(Supervision::new(num_hosts));
        }
        if num_processes != self.options.num_processes {
            let text = format!(
                "the supervisor on {} was started for {}, but the job has {}; start all with the \
                 same --num-processes",
                ask.host,
                counted(num_processes, "process"),
                self.options.num_processes
            );
            return Reply::refused(Why::Invalid, text);
        }
        let Some(supervision) = &mut self.supervision else {
            let text = "this job has no supervisors: process 0 started its coordinator";
            return Reply::refused(Why::Invalid, text);
        };
        let (first, num_local) = (ask.first_process as usize, ask.num_local as usize);
        if num_local > self.options.num_processes || first > self.options.num_processes {
            return Reply::refused(Why::Invalid, "no such processes");
        }
        let first_directive = self.directives.len();
        let (who, processes) = ((session, ask.attempt), (first, num_local));
        let mut supervisor =
            Supervisor::new(who, ask.host.clone(), processes, first_directive, now);
        supervisor.hold(ask.generation, &ask.running, &ask.ended);
        let host_index = ask.host_index as usize;
        let registered = supervision.register(host_index, num_hosts, num_processes, supervisor);
        if let Err((why, text)) = registered {
            let is_starting = self.generation == 0 && self.stage != Stage::Ended;
            if is_starting && why != Why::Occupied {
                self.end(false, text.clone());
            }
            return Reply::refused(why, text);
        }
        self.roles.insert(session, Role::Supervisor);
        self.after_children(now);
        Reply::Registered(wire::Registered { dead_after_ms: wire::millis(self.options.dead_after) })
    }

    /// `true` if the session is a supervisor: any call is a sign of life.
    pub fn supervisor(&mut self, now: Duration, session: u64) -> bool {
        if let Some(host) = self.supervision.as_mut().and_then(|hosts| hosts.seen(session, now)) {
            self.changes.push(JobChange::Note(format!("the supervisor on {host} is back")));
            self.after_children(now);
        }
        matches!(self.roles.get(&session), Some(Role::Supervisor))
    }

    /// A supervisor reports the end of a process.
    pub fn child_ended(&mut self, now: Duration, session: u64, ended: &wire::ChildEnded) {
        let process_index = ended.process_index as usize;
        let Some(supervision) = &mut self.supervision else { return };
        if ended.generation != self.generation || !supervision.child_ended(session, process_index) {
            return;
        }
        self.note_signal(ended.exit_code.unwrap_or(1));
        if let (false, Some(code @ (0 | 129 | 130 | 143))) =
            (!self.resumption.is_open(), ended.exit_code)
        {
            self.ended_well(now, process_index, code);
        }
        if matches!(self.stage, Stage::Forming | Stage::Running) {
            let member = self.membership.member(process_index);
            let has_left = self.membership.has_left(process_index);
            let is_alone = member.is_none() && self.membership.is_empty();
            let is_victim = self.victims.contains(&process_index);
            let is_expected = has_left || is_victim || (ended.exit_code == Some(0) && is_alone);
            if !is_expected {
                let name = self.membership.describe(process_index);
                let status = &ended.status;
                let is_own_error = ended.exit_code.is_some_and(|code| code != 0);
                let reason = match member.is_none() && is_own_error {
                    true => format!("{name} ended before it joined: {status}; see its message"),
                    false => format!("{name} ended: {status}"),
                };
                // A process that fails by itself before it has joined would do so again.
                let kind = match member.is_none() && is_own_error && !self.has_trained() {
                    true => FailureKind::Final,
                    false => FailureKind::FirstHand,
                };
                let mut failure = Failure { processes: vec![process_index], reason, kind };
                if is_own_error && member.is_some() && self.stage == Stage::Forming {
                    // It has waited in vain, perhaps for one that was stopped.
                    failure = self.blame_missing(failure);
                } else if is_own_error {
                    failure = self.explain(now, failure);
                }
                self.fail(now, failure);
                return;
            }
        }
        self.after_children(now);
    }

    /// Those that got no signal themselves end as after SIGTERM.
    pub(super) fn note_signal(&mut self, exit_code: i32) {
        match exit_code {
            129 | 130 => self.signal = exit_code as u32 - 128,
            143 if self.signal == 0 => self.signal = 15,
            _ => {}
        }
    }

    /// A supervisor cannot go on.
    pub fn give_up(&mut self, now: Duration, reason: &str) {
        self.is_final = true;
        let reason = reason.to_owned();
        match self.stage {
            Stage::Forming | Stage::Running => {
                self.fail(now, Failure { processes: vec![], reason, kind: FailureKind::Final });
            }
            Stage::Failed { .. } | Stage::Finished { .. } => {}
            _ => self.end(false, reason),
        }
    }

    /// A supervisor has received the first `num_known` directives.
    pub fn knows_directives(&mut self, session: u64, num_known: usize) {
        if let Some(supervision) = &mut self.supervision {
            supervision.knows(session, num_known);
        }
    }

    /// `true` when all supervisors have received all directives, in particular the last: that the
    /// job has ended.
    pub fn all_were_told(&self) -> bool {
        let supervision = self.supervision.as_ref();
        supervision.is_none_or(|supervision| supervision.all_know(self.directives.len()))
    }

    /// What the supervisor of a session is to do, without the first `num_known`.
    pub fn directives(&self, session: u64, num_known: usize) -> &[Directive] {
        let supervision = self.supervision.as_ref();
        let first = supervision.and_then(|supervision| supervision.first_directive(session));
        let known = first.map(|first| first.saturating_add(num_known));
        known.and_then(|known| self.directives.get(known..)).unwrap_or_default()
    }
}
