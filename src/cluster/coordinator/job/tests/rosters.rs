//! Tests of jobs whose hosts come and go, in simulated time.

use std::collections::BTreeMap;
use std::time::Instant;

use super::*;
use crate::cluster::members::SlowPeer;
use crate::cluster::report::SlowCause;
use crate::cluster::roster::HostPlace;

/// Supervisors of a job, each with some processes. Host `h` has the sessions `100_000 + h` and, in
/// generation g, `1_000_000 g + p` of process p.
struct Elastic {
    job: JobState,
    size: JobSize,
    now: Duration,
    /// Processes of each host that is alive, and how many directives it knows.
    hosts: BTreeMap<u64, (usize, usize)>,
    num_messages: usize,
}

const SESSION: u64 = 100_000;

impl Elastic {
    fn new(min_hosts: usize, max_hosts: usize, num_spares: usize, num_local: usize) -> Self {
        let full_processes = max_hosts * num_local;
        let size = JobSize { min_hosts, max_hosts, num_spares, full_processes, multiple_of: 1 };
        let job = JobState::new(JobOptions { size: Some(size), ..options(0, None) });
        Self { job, size, now: SECOND, hosts: BTreeMap::new(), num_messages: 0 }
    }

    fn come(&mut self, host: u64, num_local: usize) -> Reply {
        let ask = Register {
            supervisor: host + 1,
            size: Some(self.size.to_row()),
            host: format!("host{host}"),
            num_local: num_local as u32,
            ..Register::default()
        };
        let reply = self.job.register(self.now, SESSION + host, &ask);
        if reply == registered() {
            self.hosts.insert(host, (num_local, 0));
        }
        self.num_messages += 1;
        reply
    }

    fn worker(&self, process: usize) -> u64 {
        1_000_000 * self.job.generation + process as u64
    }

    fn place(&self, host: u64) -> Option<HostPlace> {
        self.job.supervision.as_ref()?.directed(SESSION + host)?.1
    }

    /// What all hosts of the generation do: processes join, or end.
    fn each_process(&mut self, mut act: impl FnMut(&mut Self, u64, usize, usize)) {
        for (host, num_local) in
            self.hosts.iter().map(|(host, (n, _))| (*host, *n)).collect::<Vec<_>>()
        {
            let Some(place) = self.place(host) else { continue };
            for process in place.first_process..place.first_process + num_local {
                act(self, host, process, place.num_processes);
                self.num_messages += 1;
            }
        }
    }

    fn join(&mut self) {
        self.each_process(|world, host, process, num_processes| {
            let ask = Join {
                generation: world.job.generation,
                process_index: process as u32,
                num_processes: num_processes as u32,
                host: format!("host{host}"),
                ..Join::default()
            };
            world.job.join(world.now, world.worker(process), &ask);
        });
        assert_eq!(self.job.stage, Stage::Running);
    }

    fn end_processes(&mut self, exit_code: Option<i32>) {
        let generation = self.job.generation;
        self.each_process(|world, host, process, _| {
            let process_index = process as u32;
            let status = "over".to_owned();
            let ended = ChildEnded { generation, process_index, status, exit_code };
            world.job.child_ended(world.now, SESSION + host, &ended);
        });
    }

    /// Processes stop for other hosts.
    fn regroup(&mut self) {
        let leave = |world: &mut Self, _, process: usize, _| {
            world.job.leave(world.now, process, REGROUP);
        };
        self.each_process(leave);
        self.end_processes(Some(75));
    }

    /// Time passes, in which hosts that are alive are heard of and take directives.
    fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now += SECOND / 4;
            for (host, (_, num_known)) in &mut self.hosts {
                let session = SESSION + host;
                self.job.supervisor(self.now, session);
                *num_known += self.job.directives(session, *num_known).len();
                self.job.knows_directives(session, *num_known);
                self.num_messages += 1;
            }
            if self.job.stage == Stage::Running {
                let num_processes = self.job.membership.peers().rows.len();
                for process in 0..num_processes {
                    let _ = self.job.worker(self.now, self.worker(process));
                }
            }
            self.job.tick(self.now);
        }
    }

    fn wish(&mut self) -> Option<Wish> {
        self.job.horizon.extend(0, 0).events.last().map(|event| event.wish)
    }

    fn places(&self) -> Vec<Option<(usize, usize)>> {
        let places = self.hosts.keys().map(|host| self.place(*host));
        places.map(|place| place.map(|it| (it.first_process, it.num_processes))).collect()
    }
}

#[test]
fn a_generation_forms_from_the_hosts_that_are_there_and_grows() {
    let mut world = Elastic::new(2, 4, 0, 2);
    world.come(0, 2);
    world.pass(10 * SECOND);
    assert_eq!(world.job.generation, 0, "one host is too few");
    world.come(1, 2);
    world.pass(SECOND);
    assert_eq!(world.job.generation, 0, "others may come");
    world.pass(2 * SECOND);
    assert_eq!(world.places(), [Some((0, 4)), Some((2, 4))]);
    world.join();
    world.come(2, 2);
    world.pass(SECOND);
    assert_eq!((world.wish(), world.places()[2]), (None, None));
    world.pass(2 * SECOND);
    assert_eq!(world.wish(), Some(Wish::Grow));
    world.regroup();
    assert_eq!(world.places(), [Some((0, 6)), Some((2, 6)), Some((4, 6))]);
    assert_eq!((world.job.generation, world.job.num_restarts), (2, 0), "no failure");
    assert!(world.job.history.is_empty());
    // The last one makes it whole: nobody else is waited for.
    world.join();
    world.come(3, 2);
    world.pass(3 * SECOND);
    world.regroup();
    assert_eq!(world.places().len(), 4);
    world.join();
    assert!(matches!(world.come(4, 2), Reply::Refused(_)), "it has all its hosts");
    world.pass(5 * SECOND);
    assert_eq!(world.wish(), None);
}

#[test]
fn the_others_go_on_without_a_host_that_is_lost() {
    let mut world = Elastic::new(2, 4, 0, 1);
    (0..3).for_each(|host| assert_eq!(world.come(host, 1), registered()));
    world.pass(3 * SECOND);
    world.join();
    world.hosts.remove(&0);
    let lost = failure(2, FailureKind::PeerLost, "process 0 closed the connection");
    world.job.fail(world.now, lost);
    world.pass(SECOND / 2);
    world.end_processes(Some(1));
    assert_eq!(world.job.generation, 1, "its processes may run");
    world.pass(2 * SECOND);
    assert_eq!(world.job.generation, 2);
    assert_eq!(world.places(), [Some((0, 2)), Some((1, 2))]);
    let end = &world.job.history[0];
    assert_eq!(end.processes, [0], "{}", end.reason);
    assert!(end.reason.starts_with("the supervisor on host0 (process 0) does not"), "{end:?}");
    // One more, and too few are left: they wait for another.
    world.join();
    world.hosts.remove(&1);
    world.job.fail(world.now, failure(0, FailureKind::FirstHand, "gone"));
    world.pass(SECOND / 2);
    world.end_processes(Some(1));
    world.pass(12 * SECOND);
    assert_eq!(world.job.generation, 2);
    world.come(7, 1);
    world.pass(3 * SECOND);
    assert_eq!(world.job.generation, 3);
    assert_eq!(world.places(), [Some((0, 2)), Some((1, 2))]);
}

#[test]
fn a_spare_takes_the_place_of_a_slow_host_where_that_is_wished_for() {
    let mut world = Elastic::new(2, 2, 1, 1);
    (0..3).for_each(|host| assert_eq!(world.come(host, 1), registered()));
    world.pass(3 * SECOND);
    assert_eq!(world.places(), [Some((0, 2)), Some((1, 2)), None]);
    world.join();
    let slow = |process_index: usize| SlowPeer {
        process_index,
        host: format!("host{process_index}"),
        factor: 1.5,
        since_step: 7,
        cause: SlowCause::Host,
        machine: String::new(),
        text: String::new(),
    };
    world.job.name_slow(world.now, &slow(0));
    world.pass(SECOND);
    assert_eq!(world.wish(), None, "it is only named");

    world.job.replaces_slow = true;
    world.job.name_slow(world.now, &slow(0));
    assert_eq!(world.wish(), Some(Wish::Regroup));
    world.regroup();
    assert_eq!(world.places(), [None, Some((0, 2)), Some((1, 2))]);
    assert_eq!((world.job.generation, world.job.num_restarts), (2, 0), "no failure");
    world.join();
    // The only spare was slow itself as often.
    world.job.name_slow(world.now, &slow(1));
    world.pass(SECOND);
    assert_eq!(world.wish(), None);
    // It comes back for one that is slow again.
    world.job.name_slow(world.now, &slow(1));
    assert_eq!(world.wish(), Some(Wish::Regroup));
    world.regroup();
    assert_eq!(world.places(), [Some((1, 2)), Some((0, 2)), None]);
}

#[test]
fn hosts_leave_in_good_order() {
    let mut world = Elastic::new(2, 3, 0, 1);
    (0..3).for_each(|host| assert_eq!(world.come(host, 1), registered()));
    world.join();
    world.job.host_leaves(world.now, SESSION + 1);
    assert_eq!(world.wish(), Some(Wish::Regroup));
    world.regroup();
    world.hosts.remove(&1);
    world.pass(2 * SECOND);
    assert_eq!(world.places(), [Some((0, 2)), Some((1, 2))]);
    world.join();
    world.job.host_leaves(world.now, SESSION);
    assert_eq!(world.wish(), Some(Wish::Stop), "one is too few");
    for process in 0..2 {
        world.job.leave(world.now, process, INTERRUPTED);
    }
    world.end_processes(Some(143));
    let end = Directive::End { is_success: true, text: INTERRUPTED.to_owned(), signal: 15 };
    assert_eq!(world.job.directives.last(), Some(&end));
}

#[test]
fn a_spare_waits_until_a_host_is_lost() {
    let mut world = Elastic::new(2, 2, 1, 1);
    (0..3).for_each(|host| assert_eq!(world.come(host, 1), registered()));
    assert_eq!(world.places(), [Some((0, 2)), Some((1, 2)), None]);
    world.join();
    world.pass(5 * SECOND);
    assert_eq!(world.wish(), None, "nobody needs it");
    world.hosts.remove(&1);
    world.job.fail(world.now, failure(1, FailureKind::FirstHand, "gone"));
    world.pass(SECOND / 4);
    world.end_processes(Some(1));
    world.pass(SECOND);
    assert_eq!(world.places(), [Some((0, 2)), Some((1, 2))]);
    assert_eq!(world.job.generation, 2);
}

#[test]
fn hosts_of_different_size_and_order() {
    let mut world = Elastic::new(1, 3, 0, 2);
    for (host, host_index, num_local) in [(0, 2, 1), (1, 0, 2), (2, 1, 3)] {
        let ask = Register {
            supervisor: host + 1,
            size: Some(world.size.to_row()),
            host: format!("host{host}"),
            num_local,
            host_index: Some(host_index),
            ..Register::default()
        };
        assert_eq!(world.job.register(world.now, SESSION + host, &ask), registered());
        world.hosts.insert(host, (num_local as usize, 0));
    }
    assert_eq!(world.places(), [Some((5, 6)), Some((0, 6)), Some((2, 6))]);
    world.join();
}

#[test]
fn a_new_host_that_cannot_take_part_ends_nothing() {
    /// What is wrong with its process.
    #[derive(Debug)]
    enum Wrong {
        Binary { joins_last: bool },
        EndsBeforeItJoins,
        HasAnotherDirectory,
    }
    for wrong in [
        Wrong::Binary { joins_last: true },
        Wrong::Binary { joins_last: false },
        Wrong::EndsBeforeItJoins,
        Wrong::HasAnotherDirectory,
    ] {
        let mut world = Elastic::new(2, 3, 0, 1);
        (0..2).for_each(|host| assert_eq!(world.come(host, 1), registered()));
        world.pass(3 * SECOND);
        world.join();
        world.job.heartbeat(0, &saved(7));
        world.come(2, 1);
        world.pass(3 * SECOND);
        world.regroup();
        assert_eq!(world.places().len(), 3);
        let join = |world: &mut Elastic, process: usize, binary: &str| {
            let ask = Join {
                generation: world.job.generation,
                process_index: process as u32,
                num_processes: 3,
                program: vec![Named { name: "binary".into(), value: binary.into() }],
                ..Join::default()
            };
            world.job.join(world.now, world.worker(process), &ask)
        };
        match wrong {
            Wrong::Binary { joins_last: true } => {
                join(&mut world, 0, "a");
                join(&mut world, 2, "b");
            }
            Wrong::Binary { joins_last: false } => {
                join(&mut world, 2, "b");
                join(&mut world, 0, "a");
            }
            Wrong::HasAnotherDirectory => {
                (0..3).for_each(|process| drop(join(&mut world, process, "a")));
                let reason = "another directory".to_owned();
                let failed = wire::Failed { reason, is_of_host: true, ..Default::default() };
                world.job.process_failed(world.now, 2, &failed);
            }
            Wrong::EndsBeforeItJoins => {
                join(&mut world, 0, "a");
                let ended = ChildEnded {
                    generation: world.job.generation,
                    process_index: 2,
                    status: "exit code 1".to_owned(),
                    exit_code: Some(1),
                };
                world.job.child_ended(world.now, SESSION + 2, &ended);
            }
        }
        assert!(world.job.history.last().is_some_and(|end| end.processes == [2]));
        let directives = world.job.directives(SESSION + 2, 0);
        let Some(Directive::End { text, is_success: false, .. }) = directives.last() else {
            panic!("{directives:?}")
        };
        assert!(text.contains("without this host: ") && text.contains("process 2 "), "{text}");
        world.end_processes(Some(1));
        world.hosts.remove(&2);
        world.pass(3 * SECOND);
        assert_eq!(world.places(), [Some((0, 2)), Some((1, 2))], "{wrong:?}");
        assert!(!world.job.has_ended());
    }
}

/// A tenth of 2,000 hosts are lost at once, and come back.
#[test]
fn thousands_of_hosts_form_again() {
    const NUM_HOSTS: u64 = 2000;
    let began = Instant::now();
    let mut world = Elastic::new(1000, NUM_HOSTS as usize, 0, 1);
    (0..NUM_HOSTS).for_each(|host| assert_eq!(world.come(host, 1), registered()));
    world.join();
    world.hosts.retain(|host, _| !host.is_multiple_of(10));
    world.job.fail(world.now, failure(10, FailureKind::FirstHand, "the power went out"));
    world.pass(SECOND / 4);
    world.end_processes(Some(1));
    world.pass(2 * SECOND);
    assert_eq!(world.job.generation, 2);
    world.join();
    (0..NUM_HOSTS / 10).for_each(|host| assert_eq!(world.come(10 * host, 1), registered()));
    world.pass(3 * SECOND);
    world.regroup();
    assert_eq!(world.job.generation, 3);
    world.join();
    assert!(world.places().iter().all(|place| place.is_some_and(|it| it.1 == 2000)));
    // About nine for each host and generation.
    assert!(world.num_messages < 60_000, "{}", world.num_messages);
    assert!(began.elapsed() < 60 * SECOND, "{:?}", began.elapsed());
}
