//! Tests of a coordinator that was started again, in simulated time.

use super::*;
use crate::cluster::messages::HeldGeneration;

/// A coordinator that was started again, in generation 3 of which these processes run.
fn started_again(num_processes: u32, running: &[u32], ended: &[EndedRow]) -> World {
    let options = JobOptions { is_standalone: true, ..options(0, None) };
    let (job, now) = (JobState::new(options), SECOND);
    let mut world =
        World { job, now, num_processes: num_processes as usize, num_hosts: 2, num_known: 0 };
    let num_local = num_processes / 2;
    for host in 0..2 {
        // A process asks before its supervisor does.
        assert!(matches!(world.resume(host as usize, 9, &[]), Reply::NotYet(_)));
        let own = |process: &u32| process / num_local == host;
        let ask = Register {
            supervisor: 100 + u64::from(host),
            size: Some(JobSize::fixed(2, num_processes as usize).to_row()),
            host: format!("host{host}"),
            host_index: None,
            num_local,
            held: Some(HeldGeneration {
                generation: 3,
                running: running.iter().copied().filter(own).collect(),
                ended: ended.iter().copied().filter(|end| own(&end.process_index)).collect(),
                first_process: host * num_local,
                num_processes,
            }),
            ..Register::default()
        };
        let reply = world.job.register(world.now, 100 + u64::from(host), &ask);
        assert_eq!(reply, registered());
    }
    world
}

impl World {
    /// A process of generation 3 tells that it was granted `horizon` and has wished.
    fn resume(&mut self, process: usize, horizon: u64, wishes: &[Wish]) -> Reply {
        self.tell(process, horizon, wishes, (0, 1))
    }

    /// As [`Self::resume`], in parts, of which this is the one of that number.
    fn tell(
        &mut self,
        process: usize,
        horizon: u64,
        wishes: &[Wish],
        (part, num_parts): (u32, u32),
    ) -> Reply {
        let join = Join {
            generation: 3,
            process_index: process as u32,
            num_processes: self.num_processes as u32,
            program: vec![Named { name: "binary".into(), value: "b".into() }],
            ..Join::default()
        };
        let event = wire::EventRow { step: 4, wish: Wish::Save.code() };
        let resume = wire::TellHeld {
            join: Some(join),
            horizon,
            events: vec![event; process],
            wishes: wishes.iter().map(|wish| wish.code()).collect(),
            part,
            num_parts,
            ..wire::TellHeld::default()
        };
        self.job.resume(self.now, 3000 + process as u64, &resume)
    }
}

#[test]
fn a_generation_goes_on_when_all_have_told_what_they_know() {
    let mut world = started_again(2, &[0, 1], &[]);
    assert!(matches!(world.resume(0, 12, &[Wish::Stop]), Reply::NotYet(_)));
    assert!(world.job.worker(world.now, 3001).is_err(), "it has not told anything yet");
    let Reply::Joined(joined) = world.resume(1, 9, &[]) else { panic!() };
    assert_eq!((joined.generation, joined.coordinator), (3, 1));
    let granted = world.job.horizon.extend(0, 0);
    let save = AgreedWish { step: 4, wish: Wish::Save };
    let stop = AgreedWish { step: 12, wish: Wish::Stop };
    assert_eq!((granted.horizon, granted.events), (12, vec![save, stop]));
    assert_eq!(world.directives(), [], "nothing is started");
    // What fails now is started again, in the next generation.
    world.all_ended(false);
    let directives = world.directives();
    assert!(matches!(directives[0], Directive::Kill { generation: 3, .. }));
    assert_eq!(directives[1], start(4));
}

#[test]
fn a_generation_that_is_not_whole_is_started_again() {
    let mut world = started_again(4, &[0, 1, 3], &[]);
    let reason = "the coordinator was started again, and process 2 has ended meanwhile";
    assert_eq!(world.directives(), [kill(3, reason)]);
    assert!(matches!(world.resume(0, 9, &[]), Reply::Ended(_)));
    [0, 1, 3].iter().for_each(|process| world.child_ended(*process, false));
    assert_eq!(world.directives(), [start(4)]);

    // All run, but one is frozen.
    let mut world = started_again(2, &[0, 1], &[]);
    world.resume(0, 9, &[]);
    world.pass(11 * SECOND, &[]);
    let reason = "the coordinator was started again, and process 1 has not come back within 10 s";
    assert_eq!(world.directives(), [kill(3, reason)]);
}

#[test]
fn processes_may_have_left_while_there_was_no_coordinator() {
    let ended = |process_index| EndedRow { process_index, exit_code: 143 };
    let mut world = started_again(4, &[0, 2, 3], &[ended(1)]);
    for process in [0, 2] {
        assert!(matches!(world.resume(process, 9, &[]), Reply::NotYet(_)));
    }
    let end =
        ChildEnded { generation: 3, process_index: 3, exit_code: Some(143), ..Default::default() };
    world.job.child_ended(world.now, 101, &end);
    assert!(matches!(world.resume(0, 9, &[]), Reply::Joined(_)));
    [0, 2].iter().for_each(|process| world.job.leave(world.now, *process, "interrupted"));
    world.child_ended(0, true);
    world.child_ended(2, true);
    let text = "interrupted".to_owned();
    assert_eq!(world.directives(), [Directive::End { is_success: true, text, signal: 15 }]);

    let mut world = started_again(2, &[], &[ended(0), ended(1)]);
    assert!(matches!(world.directives()[..], [Directive::End { is_success: true, .. }]));
    // All know: it is free for another job, with other numbers.
    for host in [100, 101] {
        world.job.knows_directives(host, 1);
    }
    world.pass(SECOND, &[]);
    (world.num_processes, world.num_hosts, world.num_known) = (3, 1, 0);
    assert_eq!(world.register(0), registered());
    assert_eq!(world.directives(), [start(1)]);
}

/// A process ends while its coordinator, which was started again, waits for other supervisors.
#[test]
fn a_process_may_end_before_its_generation_is_taken_over() {
    let options = JobOptions { is_standalone: true, ..options(0, None) };
    let (job, now) = (JobState::new(options), SECOND);
    let mut world = World { job, now, num_processes: 2, num_hosts: 2, num_known: 0 };
    let size = JobSize { min_hosts: 1, ..JobSize::fixed(2, 2) };
    let held =
        HeldGeneration { generation: 3, running: vec![0], num_processes: 2, ..Default::default() };
    let ask = Register {
        supervisor: 100,
        size: Some(size.to_row()),
        host: "host0".to_owned(),
        num_local: 1,
        held: Some(held),
        ..Register::default()
    };
    assert_eq!(world.job.register(world.now, 100, &ask), registered());
    let ended = ChildEnded { generation: 3, exit_code: Some(1), ..ChildEnded::default() };
    world.job.child_ended(world.now, 100, &ended);
    for _ in 0..60 {
        world.now += SECOND / 4;
        world.job.supervisor(world.now, 100);
        let new = world.directives();
        world.job.knows_directives(100, world.num_known);
        world.job.tick(world.now);
        if new.contains(&start(4)) {
            return;
        }
    }
    panic!("{:?}", world.job.directives);
}

/// A process of the generation ends in good order before any has told anything.
#[test]
fn the_first_to_be_heard_of_again_may_have_left() {
    let mut world = started_again(4, &[0, 1, 2, 3], &[]);
    let end =
        ChildEnded { generation: 3, process_index: 1, exit_code: Some(0), ..Default::default() };
    world.job.child_ended(world.now, 100, &end);
    for process in [0, 2] {
        assert!(matches!(world.resume(process, 9, &[]), Reply::NotYet(_)));
    }
    assert!(matches!(world.resume(3, 9, &[]), Reply::Joined(_)));
    assert_eq!(world.directives(), []);
}

#[test]
fn processes_of_which_none_comes_back_are_not_waited_for() {
    let mut world = started_again(2, &[0, 1], &[]);
    world.pass(11 * SECOND, &[]);
    let reason = "the coordinator was started again, and processes 0 and 1 have not come back \
                  within 10 s";
    assert_eq!(world.directives(), [kill(3, reason)]);
}

/// What is told in fewer parts than before is not whole because of parts that came before.
#[test]
fn a_process_may_have_less_to_tell_when_it_asks_again() {
    let mut world = started_again(2, &[0, 1], &[]);
    assert!(matches!(world.resume(1, 9, &[]), Reply::NotYet(_)));
    for (part, num_parts) in [(0, 3), (1, 3), (0, 2)] {
        let told = world.tell(0, 9, &[], (part, num_parts));
        assert!(matches!(told, Reply::Done(_)), "{part} of {num_parts}: {told:?}");
    }
    assert!(matches!(world.tell(0, 9, &[], (1, 2)), Reply::Joined(_)));
}

#[test]
fn a_process_of_a_job_that_was_started_anew_ends() {
    let mut world = World::supervised(2, 2);
    world.job.generation = 3;
    let Reply::Ended(ended) = world.resume(1, 9, &[]) else { panic!() };
    assert!(ended.reason.contains("started anew"), "{}", ended.reason);
}

#[test]
fn without_supervisors_nothing_goes_on() {
    let mut world = World::new(2, None);
    let Reply::Ended(ended) = world.resume(1, 9, &[]) else { panic!() };
    assert!(ended.reason.contains("with process 0"), "{}", ended.reason);
}
