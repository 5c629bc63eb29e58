//! What supervisors say, and what they are told.

use std::time::Duration;

use super::{Failure, FailureKind, JobChange, JobState, Role, Stage};
use crate::cluster::coordinator::supervision::{Supervision, Supervisor};
use crate::cluster::members::Directive;
use crate::cluster::messages::{self as wire, Reply, Why};
use crate::cluster::roster::JobSize;
use crate::cluster::wish::ends_well;

/// More are a mistake, or a stranger.
const MAX_PROCESSES: usize = 1 << 17;

impl JobState {
    /// A supervisor registers, or asks again.
    pub fn register(&mut self, now: Duration, session: u64, ask: &wire::Register) -> Reply {
        let size = ask.size.as_ref().map_or(JobSize::fixed(0, 0), JobSize::from);
        if self.stage == Stage::Idle {
            let most = size.max_hosts.saturating_add(size.num_spares);
            if size.full_processes > MAX_PROCESSES || most > MAX_PROCESSES || size.max_hosts == 0 {
                return Reply::refused(Why::Invalid, "no job has so many processes or hosts");
            }
            self.options.size = Some(size);
            self.stage = Stage::Registering { since: now };
            self.supervision = Some(Supervision::new(size));
        }
        let Some(supervision) = &self.supervision else {
            let text = "this job has no supervisors: process 0 started its coordinator";
            return Reply::refused(Why::Invalid, text);
        };
        if !size.is_same_job(&supervision.size) {
            let text = format!(
                "the supervisor on {} was started for {}, but the job has {}; start all with the \
                 same",
                ask.host,
                size.describe(),
                supervision.size.describe()
            );
            let is_starting = self.generation == 0 && self.stage != Stage::Ended;
            if is_starting {
                self.end(false, text.clone());
            }
            return Reply::refused(Why::Invalid, text);
        }
        let held = ask.held.clone().unwrap_or_default();
        if held.num_processes as usize > MAX_PROCESSES {
            return Reply::refused(Why::Invalid, "no job has so many processes");
        }
        let first_directive = self.first_directive(&held);
        let (who, host) = ((ask.supervisor, session), (ask.host.clone(), ask.host_index));
        let num_local = ask.num_local as usize;
        if !(1..=MAX_PROCESSES).contains(&num_local) {
            return Reply::refused(Why::Invalid, "no host has so many processes");
        }
        let mut supervisor = Supervisor::new(who, host, num_local, first_directive, now);
        supervisor.snapshot_address.clone_from(&ask.snapshot_address);
        let newest = self.generation;
        let known = self
            .supervision
            .as_mut()
            .and_then(|hosts| hosts.register_again(&supervisor, &held, newest));
        match known {
            Some(vanished) if !vanished.is_empty() => {
                let reason = format!(
                    "the supervisor on {} lost its session with the coordinator, and has ended its \
                     processes",
                    ask.host
                );
                let kind = FailureKind::FirstHand;
                self.fail(now, Failure { processes: vanished, reason, kind });
            }
            Some(_) => {}
            None => {
                let is_busy = matches!(self.stage, Stage::Forming | Stage::Running);
                if newest == 0 {
                    supervisor.hold(held);
                } else if !is_busy && self.stage != Stage::Ended {
                    supervisor.first_directive = self.directives.len();
                }
                let registered = self.supervision.as_mut().map(|hosts| hosts.register(supervisor));
                if let Some(Err((why, text))) = registered {
                    return Reply::refused(why, text);
                }
                if newest > 0 && is_busy {
                    let text = format!("host {} has come, and waits", ask.host);
                    self.changes.push(JobChange::Note(text));
                }
            }
        }
        self.roles.insert(session, Role::Supervisor);
        self.after_children(now);
        Reply::Registered(wire::Registered { dead_after_ms: wire::millis(self.options.dead_after) })
    }

    /// The first directive that concerns a supervisor which holds this: the start of the newest
    /// generation, unless it has started that one already.
    fn first_directive(&self, held: &wire::HeldGeneration) -> usize {
        let is_start = |directive: &Directive| matches!(directive, Directive::Start { .. });
        match self.directives.iter().rposition(is_start) {
            Some(newest) if held.generation == self.generation => newest + 1,
            newest => newest.unwrap_or(0),
        }
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
        if self.generation == 0 {
            // Of a generation that this coordinator may take over.
            supervision.held_child_ended(session, ended);
            return;
        }
        if ended.generation != self.generation || !supervision.child_ended(session, process_index) {
            return;
        }
        self.note_signal(ended.exit_code.unwrap_or(1));
        if let Some(code) = ended.exit_code.filter(|code| ends_well(*code))
            && self.resumption.is_open()
        {
            self.ended_well(now, process_index, code);
        }
        if matches!(self.stage, Stage::Forming | Stage::Running) {
            let has_joined = self.membership.member(process_index).is_some();
            let has_left = self.membership.has_left(process_index);
            let is_alone = !has_joined && self.membership.is_empty();
            let is_victim = self.victims.contains(&process_index);
            let is_expected = has_left || is_victim || (ended.exit_code == Some(0) && is_alone);
            if !is_expected {
                let name = self.membership.describe(process_index);
                let status = &ended.status;
                let is_own_error = ended.exit_code.is_some_and(|code| code != 0);
                let reason = match !has_joined && is_own_error {
                    true => format!("{name} ended before it joined: {status}; see its message"),
                    false => format!("{name} ended: {status}"),
                };
                // A process that fails by itself before it has joined would do so again.
                if !has_joined && is_own_error {
                    self.refuse(process_index, &reason);
                }
                let kind = match ended.exit_code {
                    None => FailureKind::Killed,
                    Some(_) if !has_joined && is_own_error && !self.has_trained() => {
                        FailureKind::Final
                    }
                    Some(_) => FailureKind::FirstHand,
                };
                let mut failure = Failure { processes: vec![process_index], reason, kind };
                if is_own_error && has_joined && self.stage == Stage::Forming {
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

    /// A call of a supervisor begins to wait for directives, or has ended.
    pub fn listens(&mut self, now: Duration, session: u64, begins: bool) {
        if let Some(supervision) = &mut self.supervision {
            supervision.listens(session, now, begins);
        }
    }

    /// A supervisor cannot go on, because of a signal if it is not 0.
    pub fn give_up(&mut self, now: Duration, reason: &str, signal: u32) {
        self.is_final = true;
        if signal > 0 {
            self.signal = signal;
        }
        let reason = reason.to_owned();
        match self.stage {
            Stage::Forming | Stage::Running => {
                self.fail(now, Failure { processes: vec![], reason, kind: FailureKind::Final });
            }
            Stage::Failed { .. } | Stage::Finished { .. } => {}
            _ => self.end(false, reason),
        }
    }

    /// A host leaves the job. If it has processes, they stop after a step that all agree on.
    pub fn host_leaves(&mut self, now: Duration, session: u64) {
        if let Some(supervision) = &mut self.supervision {
            supervision.leaves(session);
            self.tick(now);
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
    pub fn directives(&self, session: u64, num_known: usize) -> Vec<Directive> {
        let supervision = self.supervision.as_ref();
        let Some((first, own)) = supervision.and_then(|hosts| hosts.directed(session)) else {
            return vec![];
        };
        let new = self.directives.get(first.saturating_add(num_known)..).unwrap_or_default();
        if let Some(reason) = supervision.and_then(|hosts| hosts.refusal(session)) {
            let text = format!("the job goes on without this host: {reason}");
            return vec![Directive::End { is_success: false, text, signal: 0 }];
        }
        let mut new = new.to_vec();
        for directive in &mut new {
            // A generation that is over needs no processes.
            if let Directive::Start { generation, place, holders, .. } = directive
                && *generation == self.generation
            {
                *place = own;
                *holders = supervision.map(|hosts| hosts.holders(session)).unwrap_or_default();
            }
        }
        new
    }
}
