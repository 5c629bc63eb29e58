//! The state of a job: its generations, why they ended, and what the supervisors are to do. Without
//! IO and without a clock: the time in which the coordinator could run is passed in.
//!
//! A generation starts when enough supervisors are there and, after a failure, all processes of the
//! one before have ended.

mod failure;
mod hosts;
mod resumption;
mod supervisors;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use hlo::counted;
use prost::Message;

use self::failure::TOGETHER;
pub use self::failure::{Failure, FailureKind};
use self::hosts::FormationTimes;
use self::resumption::Resumption;
use super::horizon::Horizon;
use super::membership::{Admission, JoinedProcess, Membership};
use super::store::Store;
use super::supervision::Supervision;
use crate::cluster::members::{Directive, GenerationEnd, Holders, Peer};
use crate::cluster::messages::{self as wire, Cause, GenerationRow, Reply, Why};
use crate::cluster::roster::JobSize;
use crate::cluster::wish::{INTERRUPTED, REGROUP, Wish};

/// The wait before the second restart in a row without progress. It doubles with each.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);
const SIGTERM: u32 = 15;
/// Supervisors take note of a failure within this time, or are unresponsive.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Longer reasons are cut.
const MAX_REASON_CHARS: usize = 4000;

/// Numbers of processes and times.
#[derive(Clone, Debug)]
pub struct JobOptions {
    /// Without supervisors.
    pub num_processes: usize,
    /// `None`: without supervisors.
    pub size: Option<JobSize>,
    pub heartbeat: Duration,
    pub dead_after: Duration,
    /// A lost connection waits so long for a better explanation.
    pub grace: Duration,
    /// Enough supervisors must register within this time.
    pub start_within: Duration,
    /// Processes that were told to end must have ended within this time.
    pub kill_within: Duration,
    /// In a row, without progress.
    pub max_restarts: usize,
    pub max_store_bytes: usize,
    /// The first supervisor that registers says how large the job is. After the end of a job comes
    /// another one.
    pub is_standalone: bool,
    /// A random number, by which the members know that they still talk to the same coordinator.
    pub coordinator: u64,
}

/// The job.
#[derive(Debug)]
pub struct JobState {
    pub options: JobOptions,
    stage: Stage,
    generation: u64,
    pub membership: Membership,
    /// The members of the complete generation, encoded.
    peers: Vec<u8>,
    pub horizon: Horizon,
    pub store: Store,
    resumption: Resumption,
    /// A generation before this one has taken a step.
    has_trained_before: bool,
    /// A coordinator before this one started a generation.
    was_taken_over: bool,
    roles: HashMap<u64, Role>,
    supervision: Option<Supervision>,
    directives: Vec<Directive>,
    history: Vec<GenerationEnd>,
    /// A lost connection, and until when a better explanation may come.
    tentative: Option<(Failure, Duration)>,
    /// Processes that lost a connection: that they end explains nothing.
    victims: HashSet<usize>,
    is_final: bool,
    /// By which a process was asked to stop; 0 for none.
    signal: u32,
    num_restarts: usize,
    saved_step: Option<u64>,
    has_progressed: bool,
    /// When the coordinator went on after it had been stopped, and for how long it was.
    stopped: Option<(Duration, Duration)>,
    /// When a standalone coordinator is free for another job.
    reopen_at: Option<Duration>,
    /// The place of a host that is named slow is given to a spare.
    pub replaces_slow: bool,
    /// What the processes were asked to do because of hosts that have come or leave.
    last_change: Option<Wish>,
    /// The processes have stopped for others: it is no failure.
    is_regrouping: bool,
    formation: FormationTimes,
    changes: Vec<JobChange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A standalone coordinator has no job.
    Idle,
    /// Supervisors register, or come back.
    Registering {
        since: Duration,
    },
    /// The next generation starts later.
    Waiting {
        until: Duration,
    },
    /// Processes join.
    Forming,
    Running,
    /// The generation has failed, its processes are ended.
    Failed {
        since: Duration,
    },
    /// All processes have left, and now end by themselves.
    Finished {
        until: Duration,
    },
    Ended,
}

#[derive(Clone, Copy, Debug)]
enum Role {
    Worker { generation: u64, process_index: usize },
    Supervisor,
}

/// What the owner of the coordinator is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobChange {
    /// All processes of a generation have joined.
    Formed {
        /// The generation, from 1.
        generation: u64,
        /// By process index.
        peers: Vec<Peer>,
    },
    /// A process has left in good order.
    Left {
        /// Which.
        process_index: usize,
    },
    /// A generation has failed.
    Failed(GenerationEnd),
    /// The job has ended.
    Ended {
        /// All processes have left it in good order.
        is_success: bool,
        /// How, or why.
        text: String,
    },
    /// Something worth a line in the log.
    Note(String),
}

impl JobState {
    /// A job that starts when its supervisors have registered, or at once if there are none.
    pub fn new(options: JobOptions) -> Self {
        let stage = match options.size {
            _ if options.is_standalone => Stage::Idle,
            Some(_) => Stage::Registering { since: Duration::ZERO },
            None => Stage::Forming,
        };
        Self {
            stage,
            generation: u64::from(stage == Stage::Forming),
            membership: Membership::new(options.num_processes),
            peers: Vec::new(),
            horizon: Horizon::default(),
            store: Store::new(options.num_processes, options.max_store_bytes),
            resumption: Resumption::default(),
            has_trained_before: false,
            was_taken_over: false,
            roles: HashMap::new(),
            supervision: options.size.map(Supervision::new),
            directives: Vec::new(),
            history: Vec::new(),
            tentative: None,
            victims: HashSet::new(),
            is_final: false,
            signal: 0,
            num_restarts: 0,
            saved_step: None,
            has_progressed: false,
            stopped: None,
            reopen_at: None,
            replaces_slow: false,
            last_change: None,
            is_regrouping: false,
            formation: FormationTimes::default(),
            changes: Vec::new(),
            options,
        }
    }

    /// What happened since the last call. Waiting calls must look again if it is not empty.
    pub fn take_changes(&mut self) -> Vec<JobChange> {
        std::mem::take(&mut self.changes)
    }

    pub fn has_ended(&self) -> bool {
        self.stage == Stage::Ended
    }

    /// The process of a session, if it is a member of the running generation. Its call is a sign of
    /// life.
    ///
    /// # Errors
    /// As [`Self::member`].
    pub fn worker(&mut self, now: Duration, session: u64) -> Result<usize, Reply> {
        let process_index = self.member(session)?;
        if let Some(member) = self.membership.member_mut(process_index) {
            member.last_seen = now;
        }
        Ok(process_index)
    }

    /// The process of a session, if it is a member of the running generation. For calls that have
    /// waited: that they have is no sign of life.
    ///
    /// # Errors
    /// The answer to give: its generation has ended, or it has not joined.
    pub fn member(&self, session: u64) -> Result<usize, Reply> {
        let Some(&Role::Worker { generation, process_index }) = self.roles.get(&session) else {
            return Err(Reply::refused(Why::Unknown, "this process has not joined the job"));
        };
        if let Some(reason) = self.why_ended(generation) {
            return Err(Reply::Ended(wire::Ended { reason }));
        }
        match self.membership.member(process_index) {
            Some(member) if member.session == session => Ok(process_index),
            _ => Err(Reply::refused(Why::Invalid, "another session has this process's place")),
        }
    }

    /// As [`Self::member`], when the generation is complete. For calls about what its processes
    /// share: a coordinator that was started again does not know that before all have told it.
    ///
    /// # Errors
    /// As [`Self::member`]; as to a process that has told nothing, so that it waits for the others.
    pub fn settled(&self, session: u64) -> Result<usize, Reply> {
        let process_index = self.member(session)?;
        match self.stage {
            Stage::Forming => Err(Reply::refused(Why::Unknown, self.membership.missing())),
            _ => Ok(process_index),
        }
    }

    /// A process joins, or asks again.
    pub fn join(&mut self, now: Duration, session: u64, join: &wire::Join) -> Reply {
        if matches!(self.stage, Stage::Idle | Stage::Registering { .. })
            && join.generation > self.generation
        {
            let missing = "the supervisors have not registered again".to_owned();
            return Reply::NotYet(wire::NotYet { missing });
        }
        if join.generation != 0 && join.generation != self.generation {
            let reason = self.why_ended(join.generation).unwrap_or_else(|| {
                let current = self.generation;
                format!(
                    "this process belongs to generation {}, the job is in {current}",
                    join.generation
                )
            });
            return Reply::Ended(wire::Ended { reason });
        }
        match self.stage {
            Stage::Idle | Stage::Registering { .. } | Stage::Waiting { .. } => {
                let missing = "the supervisors have not started this generation".to_owned();
                return Reply::NotYet(wire::NotYet { missing });
            }
            Stage::Forming | Stage::Running => {}
            Stage::Failed { .. } | Stage::Finished { .. } | Stage::Ended => {
                let reason = self.why_ended(self.generation);
                let reason = reason.unwrap_or_else(|| "the job has ended".to_owned());
                return Reply::Ended(wire::Ended { reason });
            }
        }
        let process_index = join.process_index as usize;
        let member = JoinedProcess {
            session,
            host: join.host.clone(),
            pid: join.pid,
            data_address: join.data_address.clone(),
            program: join.program.clone(),
            last_seen: now,
            replicas: 0..0,
            step: 0,
            outcome: None,
        };
        let was_complete = self.membership.is_complete();
        match self.membership.join(process_index, join.num_processes as usize, member) {
            Admission::Refused(text) => {
                self.changes.push(JobChange::Note(text.clone()));
                return Reply::refused(Why::Invalid, text);
            }
            Admission::Contradiction(text, other) => {
                let (mut process, mut kind) = (process_index, FailureKind::Final);
                // Others go on without a host that is new to them.
                let both = std::iter::once(process_index).chain(other);
                if let Some(new) = both.into_iter().find(|process| self.refuse(*process, &text)) {
                    (process, kind) = (new, FailureKind::FirstHand);
                }
                let failure = Failure { processes: vec![process], reason: text.clone(), kind };
                // Once it is complete, no stranger can end it.
                if !was_complete {
                    self.fail(now, failure);
                }
                return Reply::refused(Why::Invalid, text);
            }
            Admission::JoinedProcess => {}
        }
        let role = Role::Worker { generation: self.generation, process_index };
        self.roles.insert(session, role);
        if !self.membership.is_complete() {
            return Reply::NotYet(wire::NotYet { missing: self.membership.missing() });
        }
        if self.stage == Stage::Forming {
            if let Err(error) = self.settle() {
                let (processes, reason, kind) = (vec![], error.to_string(), FailureKind::FirstHand);
                self.fail(now, Failure { processes, reason, kind });
                return self.join(now, session, join);
            }
            self.stage = Stage::Running;
            self.formation.joined = now;
            let peers = self.membership.peers();
            self.peers = peers.encode_to_vec();
            let peers = peers.rows.iter().map(Peer::from).collect();
            self.changes.push(JobChange::Formed { generation: self.generation, peers });
        }
        let row = |end: &GenerationEnd| GenerationRow {
            generation: end.generation,
            processes: end.processes.iter().map(|&process| process as u32).collect(),
            reason: end.reason.clone(),
            step: end.step,
        };
        Reply::Joined(wire::Joined {
            generation: self.generation,
            peers: self.peers.clone(),
            history: self.history.iter().map(row).collect(),
            heartbeat_ms: wire::millis(self.options.heartbeat),
            dead_after_ms: wire::millis(self.options.dead_after),
            coordinator: self.options.coordinator,
            formation: Some(self.formation.to_row()),
        })
    }

    /// A heartbeat of a process: its step, its replicas, and the newest checkpoint that it knows
    /// of.
    pub fn heartbeat(&mut self, process_index: usize, heartbeat: &wire::Heartbeat) {
        if let Some(member) = self.membership.member_mut(process_index) {
            member.step = member.step.max(heartbeat.step);
            member.replicas = heartbeat.replicas();
        }
        if heartbeat.saved_step > self.saved_step {
            self.saved_step = heartbeat.saved_step;
            self.has_progressed = true;
        }
    }

    /// A process has done everything.
    pub fn leave(&mut self, now: Duration, process_index: usize, outcome: &str) {
        if let Some(member) = self.membership.member_mut(process_index) {
            member.outcome = Some(outcome.to_owned());
            self.changes.push(JobChange::Left { process_index });
        }
        if self.stage == Stage::Running && self.membership.all_left() {
            match self.supervision {
                None => self.end(true, self.outcome()),
                Some(_) => {
                    self.stage = Stage::Finished { until: now + self.options.kill_within };
                    self.after_children(now);
                }
            }
        }
    }

    /// The generation has failed. The first explanation counts, except that a lost connection waits
    /// for a better one, and a killed process for others.
    pub fn fail(&mut self, now: Duration, failure: Failure) {
        if !matches!(self.stage, Stage::Forming | Stage::Running) {
            self.is_final |= failure.kind == FailureKind::Final;
            return;
        }
        let killed = self.tentative.as_mut().map(|(before, _)| before);
        let killed = killed.filter(|before| before.kind == FailureKind::Killed);
        match (failure.kind, killed) {
            (FailureKind::Killed, Some(killed)) => killed.add(failure),
            (FailureKind::Killed, None) => self.tentative = Some((failure, now + TOGETHER)),
            (FailureKind::PeerLost, _) => {
                self.victims.extend(&failure.processes);
                let until = now + self.options.grace;
                self.tentative.get_or_insert((failure, until));
            }
            // It follows from the death of the other.
            (kind, Some(_)) => self.is_final |= kind == FailureKind::Final,
            (_, None) => self.decide(now, failure),
        }
    }

    fn decide(&mut self, now: Duration, mut failure: Failure) {
        self.is_final |= failure.kind == FailureKind::Final;
        self.tentative = None;
        if failure.reason.chars().count() > MAX_REASON_CHARS {
            failure.reason = failure.reason.chars().take(MAX_REASON_CHARS).collect();
        }
        let end = GenerationEnd {
            generation: self.generation,
            processes: failure.processes,
            reason: failure.reason,
            step: self.membership.step(),
        };
        self.history.push(end.clone());
        self.changes.push(JobChange::Failed(end.clone()));
        if self.supervision.is_none() {
            return self.end(false, end.reason);
        }
        let generation = self.generation;
        self.directives.push(Directive::Kill { generation, reason: end.reason });
        self.stage = Stage::Failed { since: now };
        (self.formation.cause, self.formation.since) = (Cause::Failure, now);
        self.after_children(now);
    }

    fn end(&mut self, is_success: bool, text: String) {
        if self.stage != Stage::Ended {
            self.stage = Stage::Ended;
            let signal = self.signal;
            self.directives.push(Directive::End { is_success, text: text.clone(), signal });
            self.changes.push(JobChange::Ended { is_success, text });
        }
    }

    /// How the run ended, in the words of process 0.
    fn outcome(&self) -> String {
        let outcome = self.membership.member(0).and_then(|member| member.outcome.clone());
        outcome.unwrap_or_else(|| "done".to_owned())
    }

    /// Why a generation that this job is not in any more, or whose end is decided, has ended.
    fn why_ended(&self, generation: u64) -> Option<String> {
        let end = self.history.iter().find(|end| end.generation == generation);
        let is_over = matches!(self.stage, Stage::Ended) || generation < self.generation;
        match end {
            Some(end) => Some(end.reason.clone()),
            None => is_over.then(|| "the job has ended".to_owned()),
        }
    }

    /// Time passes.
    pub fn tick(&mut self, now: Duration) {
        if let Some((failure, _)) = self.tentative.take_if(|(_, until)| *until <= now) {
            self.decide(now, self.blame_host(now, failure));
        }
        // First, because a silent host explains its silent processes.
        self.find_silent_hosts(now);
        if matches!(self.stage, Stage::Forming | Stage::Running) {
            self.find_silent(now);
        }
        self.find_lost(now);
        match self.stage {
            Stage::Ended if self.options.is_standalone => self.reopen(now),
            Stage::Registering { since } if since + self.options.start_within <= now => {
                let missing = self.supervision.as_ref().map(Supervision::missing);
                let secs = self.options.start_within.as_secs();
                let missing = missing.unwrap_or_default();
                let text = match self.history.last() {
                    Some(end) => {
                        format!(
                            "{}; too few hosts came back within {secs} s ({missing})",
                            end.reason
                        )
                    }
                    None => format!("too few hosts have come within {secs} s ({missing})"),
                };
                self.end(false, text);
            }
            Stage::Waiting { until } if until <= now => self.start(now),
            Stage::Failed { since } if since + self.options.kill_within <= now => {
                let reason = self.history.last().map_or("", |end| end.reason.as_str());
                let text = format!("{reason}; {}", self.still_running());
                self.end(false, text);
            }
            Stage::Finished { until } if until <= now => {
                let generation = self.generation;
                let reason = format!("the run has ended, but {}", self.still_running());
                self.changes.push(JobChange::Note(reason.clone()));
                self.directives.push(Directive::Kill { generation, reason });
                self.end(true, self.outcome());
            }
            Stage::Failed { since } if since + ANSWER_WITHIN <= now => {
                self.leave_out_unresponsive(now)
            }
            Stage::Registering { since } => {
                self.say_missing(now, since);
                self.after_children(now);
            }
            Stage::Running => self.follow_hosts(now),
            _ => {}
        }
    }

    fn find_silent(&mut self, now: Duration) {
        let dead_after = self.options.dead_after;
        let silent = self.membership.silent(now, dead_after);
        if silent.is_empty() {
            return;
        }
        let names = self.membership.describe_all(&silent);
        let text = format!("{names}: no heartbeat for {} s", dead_after.as_secs_f64());
        if self.stage == Stage::Forming && self.supervision.is_none() {
            self.changes
                .push(JobChange::Note(format!("{text}; another process may take the place")));
            for process in silent {
                self.membership.forget(process);
            }
        } else {
            self.fail(
                now,
                Failure { processes: silent, reason: text, kind: FailureKind::FirstHand },
            );
        }
    }

    fn find_silent_hosts(&mut self, now: Duration) {
        let dead_after = self.options.dead_after;
        let Some(supervision) = &mut self.supervision else { return };
        if self.stage == Stage::Ended {
            return;
        }
        let silent = self.membership.silent(now, dead_after);
        for (host, processes) in supervision.take_silent(now, dead_after, &silent) {
            let reason = format!(
                "the supervisor on {host} has not been heard of for {} s; the host or its network \
                 is down, or the supervisor was killed",
                dead_after.as_secs_f64()
            );
            if matches!(self.stage, Stage::Forming | Stage::Running) {
                let kind = FailureKind::FirstHand;
                self.fail(now, Failure { processes, reason, kind });
            } else {
                self.changes.push(JobChange::Note(reason));
                if matches!(self.stage, Stage::Waiting { .. }) {
                    self.stage = Stage::Registering { since: now };
                }
                self.after_children(now);
            }
        }
    }

    fn still_running(&self) -> String {
        let running = self.supervision.as_ref().map(Supervision::running).unwrap_or_default();
        let names: Vec<_> = running
            .iter()
            .take(8)
            .map(|(process, host)| format!("process {process} on {host}"))
            .collect();
        let have = if running.len() == 1 { "has" } else { "have" };
        format!(
            "{} {have} not ended {} s after that ({})",
            counted(running.len(), "process"),
            self.options.kill_within.as_secs(),
            names.join(", ")
        )
    }

    /// When all have heard of the end of a job, or could have, there may be another one.
    fn reopen(&mut self, now: Duration) {
        let at = *self.reopen_at.get_or_insert(now + self.options.dead_after);
        if now >= at || self.all_were_told() {
            let options = JobOptions { num_processes: 0, size: None, ..self.options.clone() };
            let changes = std::mem::take(&mut self.changes);
            *self = Self { changes, ..Self::new(options) };
        }
    }

    /// Starts the next generation.
    fn start(&mut self, now: Duration) {
        self.generation += 1;
        let generation = self.generation;
        if self.membership.step() > 0 {
            self.has_trained_before = true;
            self.supervision.as_mut().map(Supervision::have_trained).unwrap_or_default();
        }
        let num_processes = self.supervision.as_mut().map_or(0, Supervision::start);
        self.membership = Membership::new(num_processes);
        self.horizon = Horizon::default();
        self.store = Store::new(num_processes, self.options.max_store_bytes);
        self.last_change = None;
        self.formation.started = now;
        self.formation.num_hosts = self.supervision.as_ref().map_or(0, Supervision::num_hosts);
        self.resumption = Resumption::default();
        self.victims.clear();
        self.has_progressed = false;
        self.roles.retain(|_, role| match role {
            Role::Worker { generation: of, .. } => *of + 1 >= generation,
            Role::Supervisor => true,
        });
        self.stage = Stage::Forming;
        let full_processes = self.options.size.map_or(0, |size| size.full_processes);
        // The place of each host, and what it should know of others, is added when it asks.
        let (place, holders) = (None, Holders::default());
        self.directives.push(Directive::Start { generation, place, full_processes, holders });
        let mut note = format!("generation {generation} starts");
        let hosts = self.supervision.as_ref().filter(|hosts| hosts.size.is_flexible());
        if let Some(hosts) = hosts {
            note = format!("{note}: {} on {}", counted(num_processes, "process"), hosts.describe());
        }
        self.changes.push(JobChange::Note(note));
    }

    /// Continues if all processes have ended and that was waited for.
    fn after_children(&mut self, now: Duration) {
        if matches!(self.stage, Stage::Registering { .. }) && self.take_over(now) {
            return;
        }
        let supervision = self.supervision.as_ref();
        if self.generation == 0 && supervision.is_some_and(Supervision::holds_generation) {
            // It will be taken over.
            return;
        }
        if !self.supervision.as_ref().is_some_and(Supervision::all_ended) {
            return;
        }
        match self.stage {
            Stage::Finished { .. } if self.outcome() == REGROUP && !self.are_leaving() => {
                self.num_restarts = 0;
                self.is_regrouping = true;
                (self.formation.cause, self.formation.since) = (Cause::Hosts, now);
                self.stage = Stage::Registering { since: now };
                self.start_when_possible(now);
            }
            Stage::Finished { .. } if self.outcome() == REGROUP => {
                self.signal = SIGTERM;
                self.end(true, INTERRUPTED.to_owned());
            }
            Stage::Finished { .. } => self.end(true, self.outcome()),
            Stage::Forming if self.membership.is_empty() && !self.resumption.is_open() => {
                self.end(true, "all processes ended without joining".to_owned());
            }
            Stage::Failed { .. } => {
                let reason = self.history.last().map_or_else(String::new, |end| end.reason.clone());
                if std::mem::take(&mut self.has_progressed) {
                    self.num_restarts = 0;
                }
                if self.is_final || self.num_restarts >= self.options.max_restarts {
                    return self.end(false, reason);
                }
                self.stage = Stage::Registering { since: now };
                self.start_when_possible(now);
            }
            Stage::Registering { .. } => self.start_when_possible(now),
            _ => {}
        }
    }

    /// Starts a generation, the first one or another, if enough supervisors are there.
    fn start_when_possible(&mut self, now: Duration) {
        if !self.supervision.as_ref().is_some_and(|hosts| hosts.can_start(now)) {
            return;
        }
        if self.generation > 0 && !std::mem::take(&mut self.is_regrouping) {
            let until = now + backoff(self.num_restarts);
            self.num_restarts += 1;
            self.stage = Stage::Waiting { until };
            if until > now {
                return;
            }
        }
        self.start(now);
    }
}

/// The wait before a restart after `num_restarts` others in a row without progress.
fn backoff(num_restarts: usize) -> Duration {
    match num_restarts {
        0 => Duration::ZERO,
        more => (FIRST_BACKOFF * 2u32.saturating_pow((more - 1).min(10) as u32)).min(MAX_BACKOFF),
    }
}

#[cfg(test)]
mod tests;
