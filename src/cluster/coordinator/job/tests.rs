//! Tests of the state of a job, in simulated time.

mod resumption;
mod rosters;

use super::*;
use crate::cluster::members::{Directive, Holders};
use crate::cluster::messages::{AskDirectives, ChildEnded, EndedRow, Join, Named, Register};
use crate::cluster::wish::{AgreedWish, Wish};

const SECOND: Duration = Duration::from_secs(1);

fn options(num_processes: usize, num_hosts: Option<usize>) -> JobOptions {
    JobOptions {
        num_processes,
        size: num_hosts.map(|num_hosts| JobSize::fixed(num_hosts, num_processes)),
        heartbeat: 2 * SECOND,
        dead_after: 10 * SECOND,
        grace: Duration::from_millis(300),
        start_within: 60 * SECOND,
        kill_within: 30 * SECOND,
        max_restarts: 3,
        max_store_bytes: 1 << 20,
        is_standalone: false,
        coordinator: 1,
    }
}

/// A job of `num_hosts` supervisors, sessions 100 and up, and its processes, in generation g
/// sessions 1000 g and up.
struct World {
    job: JobState,
    now: Duration,
    num_processes: usize,
    num_hosts: usize,
    num_known: usize,
}

/// A heartbeat in the step after a checkpoint.
fn saved(step: u64) -> wire::Heartbeat {
    wire::Heartbeat { step, saved_step: Some(step), ..Default::default() }
}

/// The answer to a supervisor that belongs to the job.
fn registered() -> Reply {
    Reply::Registered(wire::Registered { dead_after_ms: 10_000 })
}

impl World {
    fn new(num_processes: usize, num_hosts: Option<usize>) -> Self {
        let job = JobState::new(options(num_processes, num_hosts));
        let num_hosts = num_hosts.unwrap_or(0);
        Self { job, now: SECOND, num_processes, num_hosts, num_known: 0 }
    }

    fn supervised(num_processes: usize, num_hosts: usize) -> Self {
        let mut world = Self::new(num_processes, Some(num_hosts));
        for host in 0..num_hosts {
            assert_eq!(world.register(host), registered());
        }
        world
    }

    fn register(&mut self, host: usize) -> Reply {
        self.register_as(host, 100 + host as u64)
    }

    fn register_as(&mut self, host: usize, session: u64) -> Reply {
        let num_local = self.num_processes / self.num_hosts;
        let ask = Register {
            supervisor: session,
            size: Some(JobSize::fixed(self.num_hosts, self.num_processes).to_row()),
            host: format!("host{host}"),
            num_local: num_local as u32,
            ..Register::default()
        };
        self.job.register(self.now, session, &ask)
    }

    fn session(&self, process: usize) -> u64 {
        1000 * self.job.generation + process as u64
    }

    fn join(&mut self, process: usize) -> Reply {
        let ask = Join {
            generation: self.job.generation,
            process_index: process as u32,
            num_processes: self.num_processes as u32,
            host: format!("host{process}"),
            pid: 7,
            program: vec![Named { name: "binary".into(), value: "b".into() }],
            ..Join::default()
        };
        self.job.join(self.now, self.session(process), &ask)
    }

    fn join_all(&mut self) {
        for process in 0..self.num_processes {
            self.join(process);
        }
        assert!(matches!(self.join(0), Reply::Joined(_)));
    }

    fn child_ended(&mut self, process: usize, is_success: bool) {
        let host = process / (self.num_processes / self.num_hosts);
        let ended = ChildEnded {
            generation: self.job.generation,
            process_index: process as u32,
            status: if is_success { "exit status: 0" } else { "killed by signal 9" }.into(),
            exit_code: is_success.then_some(0),
        };
        self.job.child_ended(self.now, 100 + host as u64, &ended);
    }

    /// No other process is killed with the one before.
    fn settle(&mut self) {
        self.now += TOGETHER;
        self.job.tick(self.now);
    }

    fn all_ended(&mut self, is_success: bool) {
        (0..self.num_processes).for_each(|process| self.child_ended(process, is_success));
        self.settle();
    }

    /// Time passes, all that are not in `silent` give signs of life.
    fn pass(&mut self, time: Duration, silent: &[usize]) {
        let until = self.now + time;
        while self.now < until {
            self.now += SECOND / 4;
            for process in (0..self.num_processes).filter(|process| !silent.contains(process)) {
                let _ = self.job.worker(self.now, self.session(process));
            }
            for host in 0..self.num_hosts {
                self.job.supervisor(self.now, 100 + host as u64);
            }
            self.job.tick(self.now);
        }
    }

    fn directives(&mut self) -> Vec<Directive> {
        let new = self.job.directives(100, self.num_known);
        self.num_known += new.len();
        new.into_iter().map(without_place).collect()
    }

    fn ended(&self) -> Option<String> {
        match self.job.worker_reply(self.session(0)) {
            Some(Reply::Ended(ended)) => Some(ended.reason),
            _ => None,
        }
    }
}

impl JobState {
    fn worker_reply(&self, session: u64) -> Option<Reply> {
        let Some(&Role::Worker { generation, .. }) = self.roles.get(&session) else { return None };
        self.why_ended(generation).map(|reason| Reply::Ended(wire::Ended { reason }))
    }
}

fn failure(process: usize, kind: FailureKind, reason: &str) -> Failure {
    Failure { processes: vec![process], reason: reason.to_owned(), kind }
}

fn start(generation: u64) -> Directive {
    let holders = Holders::default();
    Directive::Start { generation, place: None, full_processes: 0, holders }
}

/// Tests of places compare them themselves.
fn without_place(directive: Directive) -> Directive {
    match directive {
        Directive::Start { generation, .. } => start(generation),
        other => other,
    }
}

fn kill(generation: u64, reason: &str) -> Directive {
    Directive::Kill { generation, reason: reason.to_owned() }
}

#[test]
fn the_first_explanation_counts() {
    let mut world = World::new(3, None);
    world.join_all();
    world.job.fail(world.now, failure(0, FailureKind::FirstHand, "first"));
    world.job.fail(world.now, failure(1, FailureKind::FirstHand, "second"));
    assert_eq!(world.ended().unwrap(), "first");
    let changes = world.job.take_changes();
    assert!(matches!(&changes[0], JobChange::Formed { generation: 1, peers } if peers.len() == 3));
    assert!(matches!(&changes[1], JobChange::Failed(end) if end.processes == [0]));
    let end = JobChange::Ended { is_success: false, text: "first".into() };
    assert_eq!(changes[2..], [end]);
}

#[test]
fn a_lost_connection_waits_for_a_better_explanation() {
    let mut world = World::new(3, None);
    world.join_all();
    let lost = |process| failure(process, FailureKind::PeerLost, "process 2 closed the connection");
    world.job.fail(world.now, lost(0));
    world.job.fail(world.now, lost(1));
    assert_eq!(world.ended(), None);
    world.job.fail(world.now, failure(2, FailureKind::FirstHand, "out of memory"));
    assert_eq!(world.ended().unwrap(), "out of memory");

    let mut world = World::new(3, None);
    world.join_all();
    world.job.fail(world.now, lost(0));
    world.pass(SECOND, &[]);
    assert_eq!(world.ended().unwrap(), "process 2 closed the connection");
}

#[test]
fn the_end_of_a_victim_is_no_explanation() {
    let mut world = World::supervised(3, 3);
    world.join_all();
    world.job.fail(world.now, failure(0, FailureKind::PeerLost, "process 2 is gone"));
    world.child_ended(0, false);
    assert_eq!(world.ended(), None);
    world.child_ended(2, false);
    world.settle();
    assert_eq!(world.ended().unwrap(), "process 2 (host host2, pid 7) ended: killed by signal 9");
}

#[test]
fn all_that_are_killed_together_are_named_and_nobody_who_ends_because_of_it() {
    let mut world = World::supervised(4, 4);
    world.join_all();
    world.child_ended(2, false);
    world.job.fail(world.now, failure(0, FailureKind::FirstHand, "no answer from process 2"));
    world.child_ended(1, false);
    assert_eq!(world.ended(), None);
    world.settle();
    let Some(JobChange::Failed(end)) = world.job.take_changes().pop() else { panic!() };
    let ended =
        "(host host2, pid 7) ended: killed by signal 9; process 1 (host host1, pid 7) ended";
    assert!(end.reason.contains(ended), "{}", end.reason);
    assert_eq!(end.processes, [1, 2]);
}

#[test]
fn a_host_that_hangs_up_explains_a_lost_connection() {
    let lost = failure(0, FailureKind::PeerLost, "process 2 closed the connection");
    for hangs_up in [false, true] {
        let mut world = World::supervised(4, 2);
        world.join_all();
        (0..2).for_each(|host| world.job.listens(world.now, 100 + host, true));
        world.pass(SECOND, &[]);
        if hangs_up {
            world.job.listens(world.now, 101, false);
        }
        world.job.fail(world.now, lost.clone());
        world.pass(SECOND, &[]);
        let expected = "the supervisor on host1 (processes 2 to 3) has closed its connection: it \
                        was killed, or its host is down (process 2 closed the connection)";
        let expected = if hangs_up { expected } else { "process 2 closed the connection" };
        assert_eq!(world.ended().unwrap(), expected);
    }
}

#[test]
fn who_is_silent_is_dead_but_not_if_nobody_could_listen() {
    let mut world = World::new(2, None);
    world.join_all();
    world.pass(60 * SECOND, &[]);
    // The coordinator's process was stopped for an hour, then the others go on.
    world.job.was_stopped(world.now, 3600 * SECOND);
    world.job.tick(world.now);
    assert_eq!(world.ended(), None);
    world.pass(11 * SECOND, &[]);
    world.pass(9 * SECOND, &[1]);
    assert_eq!(world.ended(), None);
    world.pass(3 * SECOND, &[1]);
    assert_eq!(world.ended().unwrap(), "process 1 (host host1, pid 7): no heartbeat for 10 s");
}

#[test]
fn a_process_that_vanishes_before_all_have_joined_leaves_its_place() {
    let mut world = World::new(2, None);
    world.join(1);
    world.now += 5 * SECOND;
    world.job.tick(world.now);
    for _ in 0..30 {
        world.now += SECOND;
        world.job.tick(world.now);
    }
    assert!(world.job.membership.is_empty());
    world.join_all();
    assert_eq!(world.ended(), None);
}

#[test]
fn the_job_ends_when_all_have_left() {
    let mut world = World::new(2, None);
    world.join_all();
    world.job.leave(world.now, 1, "done");
    world.pass(60 * SECOND, &[1]);
    assert!(!world.job.has_ended());
    world.job.leave(world.now, 0, "interrupted");
    assert!(world.job.has_ended());
    let end = JobChange::Ended { is_success: true, text: "interrupted".into() };
    assert_eq!(world.job.take_changes().last(), Some(&end));
}

#[test]
fn a_failed_generation_is_killed_and_the_next_one_starts() {
    let mut world = World::supervised(4, 2);
    assert_eq!(world.directives(), [start(1)]);
    world.join_all();
    world.child_ended(3, false);
    world.settle();
    let reason = "process 3 (host host3, pid 7) ended: killed by signal 9";
    assert_eq!(world.directives(), [kill(1, reason)]);
    world.child_ended(0, false);
    world.child_ended(1, false);
    assert_eq!(world.directives(), []);
    world.child_ended(2, false);
    assert_eq!(world.directives(), [start(2)]);
    world.join_all();
    let Reply::Joined(joined) = world.join(0) else { panic!() };
    assert_eq!((joined.generation, joined.history.len()), (2, 1));
    assert_eq!(
        (joined.history[0].processes.as_slice(), &*joined.history[0].reason),
        (&[3][..], reason)
    );
    // A process of the first generation that still runs must end.
    assert!(
        matches!(world.job.worker(world.now, 1000), Err(Reply::Ended(ended)) if ended.reason == reason)
    );
    for process in 0..4 {
        world.job.leave(world.now, process, "done");
    }
    assert!(!world.job.has_ended());
    world.all_ended(true);
    let end = Directive::End { is_success: true, text: "done".into(), signal: 0 };
    assert_eq!(world.directives(), [end]);
    assert!(!world.job.all_were_told());
    for host in 0..2 {
        world.job.knows_directives(100 + host, world.num_known);
    }
    assert!(world.job.all_were_told());
}

#[test]
fn restarts_without_progress_wait_longer_and_end() {
    let mut world = World::supervised(1, 1);
    let mut waits = vec![];
    loop {
        let before = world.now;
        while !world.directives().contains(&start(world.job.generation)) {
            world.pass(SECOND / 4, &[]);
            if world.job.has_ended() {
                break;
            }
        }
        if world.job.has_ended() {
            break;
        }
        waits.push((world.now - before).as_secs());
        world.join_all();
        world.all_ended(false);
    }
    assert_eq!(waits, [0, 0, 1, 2], "the first start, then three restarts");

    let mut world = World::supervised(1, 1);
    for step in 1..20 {
        world.join_all();
        world.job.heartbeat(0, &saved(step));
        world.all_ended(false);
        assert_eq!(world.job.generation, step + 1, "progress: at once, and as often as needed");
    }
    // The same checkpoint again is no progress.
    for _ in 0..3 {
        world.pass(5 * SECOND, &[]);
        world.join_all();
        world.job.heartbeat(0, &saved(19));
        world.all_ended(false);
    }
    assert!(world.job.has_ended());
}

/// The first generation fails for good: its command would fail again. A run that has trained does
/// not.
#[test]
fn an_error_at_the_start_ends_the_job_unless_it_has_trained() {
    for has_trained in [false, true] {
        let mut world = World::supervised(1, 1);
        if has_trained {
            world.join_all();
            world.job.heartbeat(0, &wire::Heartbeat { step: 7, ..Default::default() });
            world.all_ended(false);
        }
        let generation = world.job.generation;
        let exit = |status: &str, exit_code| ChildEnded {
            generation,
            process_index: 0,
            status: status.into(),
            exit_code,
        };
        world.job.child_ended(world.now, 100, &exit("exit code 1", Some(1)));
        assert_eq!(world.job.has_ended(), !has_trained);
    }
}

/// Processes that hear nothing of a coordinator that was stopped are not to blame.
#[test]
fn a_stop_of_the_coordinator_explains_what_comes_of_it() {
    let mut world = World::supervised(2, 1);
    world.join_all();
    world.pass(20 * SECOND, &[]);
    world.job.was_stopped(world.now, 12 * SECOND);
    let exit = |exit_code| ChildEnded {
        generation: 1,
        process_index: 1,
        status: "exit code 1".into(),
        exit_code,
    };
    world.job.child_ended(world.now, 100, &exit(Some(1)));
    let Some(Directive::Kill { reason, .. }) = world.directives().pop() else { panic!() };
    assert_eq!(
        reason,
        "the coordinator did not run for 12 s, so that processes missed its answers (process 1 \
         (host host1, pid 7) ended: exit code 1)"
    );
    assert!(
        world
            .job
            .take_changes()
            .iter()
            .any(|change| matches!(change, JobChange::Failed(end) if end.processes.is_empty()))
    );
}

#[test]
fn those_who_wait_in_vain_for_a_process_to_join_are_not_to_blame() {
    let mut world = World::supervised(2, 1);
    world.join(0);
    let exit = ChildEnded {
        generation: 1,
        process_index: 0,
        status: "exit code 1".into(),
        exit_code: Some(1),
    };
    world.job.child_ended(world.now, 100, &exit);
    let Some(Directive::Kill { reason, .. }) = world.directives().pop() else { panic!() };
    assert!(reason.starts_with("process 1 has not joined; joined: 0 (host host0, "), "{reason}");
    let blamed = world.job.take_changes().into_iter().find_map(|change| match change {
        JobChange::Failed(end) => Some(end.processes),
        _ => None,
    });
    assert_eq!(blamed.unwrap(), [1]);
}

/// Those that got no signal themselves end as after SIGTERM, before or after the one that did.
#[test]
fn the_signal_of_one_process_is_that_of_the_job() {
    for codes in [[130, 143], [143, 130], [143, 143]] {
        let mut world = World::supervised(2, 1);
        world.join_all();
        for process in 0..2 {
            world.job.leave(world.now, process, "interrupted");
        }
        for (process_index, code) in codes.into_iter().enumerate() {
            let ended = ChildEnded {
                generation: 1,
                process_index: process_index as u32,
                status: format!("exit code {code}"),
                exit_code: Some(code),
            };
            world.job.child_ended(world.now, 100, &ended);
        }
        let Some(Directive::End { signal, .. }) = world.directives().pop() else { panic!() };
        assert_eq!(signal as i32, codes.into_iter().min().unwrap() - 128, "{codes:?}");
    }
}

#[test]
fn contradictions_are_not_started_again() {
    let mut world = World::supervised(2, 2);
    world.join(0);
    let ask = Join {
        generation: 1,
        process_index: 1,
        num_processes: 2,
        program: vec![Named { name: "binary".into(), value: "c".into() }],
        ..Join::default()
    };
    assert!(matches!(world.job.join(world.now, 1001, &ask), Reply::Refused(_)));
    world.all_ended(false);
    assert!(world.job.has_ended());
    assert!(world.ended().unwrap().contains("binary is `c`, there it is `b`"));
}

#[test]
fn processes_that_do_not_end_do_not_hold_up_the_job() {
    let mut world = World::supervised(2, 2);
    world.join_all();
    world.child_ended(0, false);
    world.pass(31 * SECOND, &[]);
    let Some(Directive::End { is_success: false, text, .. }) = world.directives().pop() else {
        panic!()
    };
    assert!(
        text.ends_with("1 process has not ended 30 s after that (process 1 on host1)"),
        "{text}"
    );

    let mut world = World::supervised(2, 2);
    world.join_all();
    world.job.leave(world.now, 0, "done");
    world.job.leave(world.now, 1, "done");
    world.pass(31 * SECOND, &[]);
    let directives = world.directives();
    assert!(matches!(&directives[1], Directive::Kill { generation: 1, .. }));
    assert!(matches!(&directives[2], Directive::End { is_success: true, .. }));
}

#[test]
fn supervisors_that_never_come_are_named() {
    let mut world = World::new(2, Some(2));
    world.register(0);
    let missing = "waits up to 60 s for hosts: 1 of 2 hosts is there: host0";
    world.pass(8 * SECOND, &[]);
    assert_eq!(world.job.take_changes(), []);
    world.pass(3 * SECOND, &[]);
    assert_eq!(world.job.take_changes(), [JobChange::Note(missing.to_owned())]);
    world.pass(50 * SECOND, &[]);
    let Some(Directive::End { is_success: false, text, .. }) = world.directives().pop() else {
        panic!()
    };
    assert_eq!(text, "too few hosts have come within 60 s (1 of 2 hosts is there: host0)");
}

impl World {
    /// Time passes, in which only the first supervisor and all processes are heard of.
    fn pass_without_the_second_host(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now += SECOND / 4;
            self.job.supervisor(self.now, 100);
            let _ = self.job.worker(self.now, self.session(0));
            let _ = self.job.worker(self.now, self.session(1));
            self.job.tick(self.now);
        }
    }
}

#[test]
fn a_supervisor_that_vanishes_for_good_is_named_and_ends_the_job() {
    let mut world = World::supervised(2, 2);
    world.join_all();
    world.pass_without_the_second_host(12 * SECOND);
    let reason = world.ended().unwrap();
    assert!(
        reason.starts_with("the supervisor on host1 (process 1) has not been heard of for 10 s"),
        "{reason}"
    );
    assert_eq!(world.directives(), [start(1), kill(1, &reason)]);
    world.child_ended(0, false);
    assert_eq!(world.directives(), []);
    world.pass_without_the_second_host(61 * SECOND);
    let text = format!(
        "{reason}; too few hosts came back within 60 s (1 of 2 hosts is there: host0; not heard \
         of: host1)"
    );
    assert_eq!(world.directives(), [Directive::End { is_success: false, text, signal: 0 }]);
}

#[test]
fn a_supervisor_that_comes_back_ends_its_processes_before_the_next_generation() {
    let mut world = World::supervised(2, 2);
    world.join_all();
    world.pass_without_the_second_host(12 * SECOND);
    assert_eq!(world.directives().len(), 2);
    world.child_ended(0, false);
    world.pass_without_the_second_host(20 * SECOND);
    assert!(world.job.supervisor(world.now, 101), "it knows its session");
    assert_eq!(world.directives(), [], "its process may still run");
    world.child_ended(1, false);
    assert_eq!(world.directives(), [start(2)]);
}

#[test]
fn another_supervisor_takes_the_place_of_one_that_vanished() {
    let mut world = World::supervised(2, 2);
    world.join_all();
    assert!(matches!(world.register_as(1, 201), Reply::Refused(_)), "it is there");
    world.pass_without_the_second_host(12 * SECOND);
    world.child_ended(0, false);
    assert_eq!(world.directives().len(), 2);
    assert_eq!(world.register_as(1, 201), registered());
    assert_eq!(world.directives(), [start(2)]);
    let directives: Vec<_> = world.job.directives(201, 0);
    let directives: Vec<_> = directives.into_iter().map(without_place).collect();
    assert_eq!(directives, [start(2)], "what was before does not concern it");
    assert!(world.job.directives(101, 0).is_empty());
    world.job.child_ended(
        world.now,
        101,
        &ChildEnded { generation: 2, process_index: 1, status: "late".into(), exit_code: None },
    );
    assert_eq!(world.directives(), [], "the one before has no processes any more");
}

#[test]
fn commands_that_never_join_may_end_well() {
    let mut world = World::supervised(2, 1);
    world.all_ended(true);
    assert!(matches!(world.directives().last(), Some(Directive::End { is_success: true, .. })));

    let mut world = World::supervised(2, 1);
    world.join(0);
    world.child_ended(1, true);
    assert_eq!(world.directives()[1], kill(1, "process 1 ended: exit status: 0"));
}

#[test]
fn a_supervisor_that_gives_up_ends_the_job() {
    let mut world = World::supervised(2, 2);
    world.join_all();
    world.job.give_up(world.now, "the disk is full", 0);
    assert_eq!(world.directives(), [start(1), kill(1, "the disk is full")]);
    world.all_ended(false);
    let end = Directive::End { is_success: false, text: "the disk is full".into(), signal: 0 };
    assert_eq!(world.directives(), [end]);
    let ask = AskDirectives { num_known: 3, wait_ms: 0 };
    assert!(world.job.directives(100, ask.num_known as usize).is_empty());
}

/// The supervisors of the other hosts end as if they had got the signal.
#[test]
fn a_signal_before_the_first_generation_reaches_all() {
    let mut world = World::new(2, Some(2));
    assert_eq!(world.register(0), registered());
    world.job.give_up(world.now, "host a was stopped by a signal", 2);
    let text = "host a was stopped by a signal".into();
    assert_eq!(world.directives(), [Directive::End { is_success: false, text, signal: 2 }]);
}
