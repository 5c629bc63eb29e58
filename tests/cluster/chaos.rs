//! Events in a row, each during a run of two or four processes on one host or two: the run goes on,
//! and what it computes at the end is what an undisturbed run computes, bit for bit. Every kind of
//! event occurs once, in random order; `LOCKSTEP_NUM_EVENTS` is for more, random ones.

use std::path::Path;
use std::thread;
use std::time::Duration;

use hlo::random::threefry2x32;

use super::hosts::Hosts;
use super::{DIGITS, Running, alone, assert_same_run, launch, none_left, run, send, text, train};

/// What happens to a run.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A worker is killed.
    Kill,
    /// A worker is frozen for longer than it may be silent.
    Freeze,
    /// A worker is frozen for a moment.
    Pause,
    /// A worker has half the processor for a while.
    Slow,
    /// The supervisor of a host, the first with the coordinator, is killed and started again.
    KillSupervisor,
    /// The run is asked to stop, and is started again.
    Stop,
    /// One worker is asked to stop, and with it the run, which is started again.
    StopWorker,
    /// The run is asked for a checkpoint.
    Save,
    /// The network between the hosts is cut for a moment.
    Delay,
    /// The network is cut for longer than a process may be silent.
    Cut,
}

const EVENTS: [Event; 10] = [
    Event::Kill,
    Event::Freeze,
    Event::Pause,
    Event::Slow,
    Event::KillSupervisor,
    Event::Stop,
    Event::StopWorker,
    Event::Save,
    Event::Delay,
    Event::Cut,
];

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// Random numbers from a seed.
struct Random {
    seed: u64,
    count: u32,
}

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.count += 1;
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        threefry2x32(key, [self.count, 0])[0] as usize % limit
    }
}

/// Every kind of event, in random order, and then random ones.
fn events(random: &mut Random, num_events: usize) -> Vec<Event> {
    let mut events = EVENTS.to_vec();
    for last in (1..events.len()).rev() {
        events.swap(last, random.below(last + 1));
    }
    events.extend((events.len()..num_events).map(|_| EVENTS[random.below(EVENTS.len())]));
    events
}

/// A run under a supervisor, or under one on each of two hosts.
struct Job<'a> {
    dir: &'a Path,
    out: &'a Path,
    num_processes: usize,
    hosts: Option<&'a Hosts>,
    supervisors: Vec<Running>,
}

impl<'a> Job<'a> {
    fn start(dir: &'a Path, out: &'a Path, num_processes: usize, hosts: Option<&'a Hosts>) -> Self {
        let mut job = Self { dir, out, num_processes, hosts, supervisors: vec![] };
        job.start_all();
        job
    }

    fn start_all(&mut self) {
        let num_hosts = if self.hosts.is_some() { 2 } else { 1 };
        self.supervisors = (0..num_hosts).map(|host| self.start_host(host)).collect();
    }

    fn start_host(&self, host: usize) -> Running {
        let args = train(DIGITS, &sets(), &["--resume", "--out", text(self.out)]);
        match self.hosts {
            Some(hosts) => hosts.start(self.dir, host, self.num_processes, &args),
            None => {
                let options = ["--dead-after-secs", "2", "--max-restarts", "1000"];
                Running::start(self.dir, &launch(self.num_processes, &options, &args))
            }
        }
    }

    fn has_ended(&mut self) -> bool {
        self.supervisors[0].child.try_wait().unwrap().is_some()
    }

    /// Process ids of the workers of all hosts.
    fn workers(&self) -> Vec<u32> {
        let workers = self.supervisors.iter().flat_map(Running::workers);
        workers.map(|(_, pid)| pid).collect()
    }

    /// Kills the supervisor of a host, and starts it again.
    fn kill_supervisor(&mut self, host: usize) {
        let killed = &mut self.supervisors[host];
        let pid = killed.child.id();
        killed.signal("KILL");
        killed.child.wait().unwrap();
        none_left(pid);
        self.supervisors[host] = self.start_host(host);
    }

    /// Waits for the end, with one of these exit codes, on all hosts. Nothing is left over.
    #[track_caller]
    fn end(&mut self, codes: &[i32]) {
        for supervisor in self.supervisors.drain(..) {
            let pid = supervisor.child.id();
            let ended = supervisor.end();
            let code = ended.code.unwrap_or(-1);
            assert!(codes.contains(&code), "{code}: {}", ended.stderr);
            none_left(pid);
        }
    }
}

fn sets() -> [&'static str; 3] {
    ["train.epochs=250", "checkpoint.every_steps=40", "model.hidden=[64]"]
}

#[test]
fn a_run_survives_events_of_every_kind() {
    let _alone = alone();
    let (num_events, seed) = (setting("LOCKSTEP_NUM_EVENTS", 0), setting("LOCKSTEP_SEED", 1));
    let dir = tempfile::tempdir().unwrap();
    let (whole, disturbed) = (dir.path().join("whole"), dir.path().join("disturbed"));
    run(dir.path(), &launch(2, &[], &train(DIGITS, &sets(), &["--out", text(&whole)]))).succeeded();

    let mut random = Random { seed, count: 0 };
    let events = events(&mut random, num_events as usize);
    eprintln!("seed {seed}: {events:?}");
    let hosts = Hosts::new();
    // One host with two or four processes, or two hosts, as long as events of the network between
    // them are to come.
    let start = |random: &mut Random, rest: &[Event]| {
        let is_of_network = |event: &Event| matches!(event, Event::Delay | Event::Cut);
        let num_processes = 2 * (1 + random.below(2));
        let has_two = rest.iter().any(is_of_network) || random.below(2) == 1;
        Job::start(dir.path(), &disturbed, num_processes, has_two.then_some(&hosts))
    };
    let mut job = start(&mut random, &events);
    for (number, event) in events.iter().copied().enumerate() {
        let rest = &events[number..];
        let victim = loop {
            thread::sleep(Duration::from_millis(300 + random.below(1500) as u64));
            if job.has_ended() {
                // It was done: once more from the beginning.
                job.end(&[0]);
                assert_same_run(&whole, &disturbed);
                std::fs::remove_dir_all(&disturbed).unwrap();
                job = start(&mut random, rest);
                continue;
            }
            let workers = job.workers();
            if !workers.is_empty() {
                break workers[random.below(workers.len())];
            }
        };
        let num_hosts = job.supervisors.len();
        eprintln!("event {number}: {event:?} of {victim}, {num_hosts} hosts");
        match event {
            Event::Kill => send("KILL", victim),
            Event::Freeze => send("STOP", victim),
            Event::Pause => stop_for(victim, 200),
            Event::Slow => {
                for _ in 0..20 {
                    stop_for(victim, 25);
                    thread::sleep(Duration::from_millis(25));
                }
            }
            Event::KillSupervisor => job.kill_supervisor(random.below(num_hosts)),
            Event::Stop | Event::StopWorker => {
                match event {
                    Event::StopWorker => send("TERM", victim),
                    _ => job.supervisors.iter().for_each(|supervisor| supervisor.signal("TERM")),
                }
                // It may have been done just then.
                job.end(&[143, 0]);
                job = start(&mut random, &rest[1..]);
            }
            Event::Save => job.supervisors[0].signal("USR1"),
            Event::Delay | Event::Cut => {
                hosts.cut();
                let millis = if matches!(event, Event::Cut) { 3000 } else { 200 };
                thread::sleep(Duration::from_millis(millis));
                hosts.mend();
            }
        }
    }
    job.end(&[0]);
    assert_same_run(&whole, &disturbed);
}

/// Freezes a process for so many milliseconds.
fn stop_for(pid: u32, millis: u64) {
    send("STOP", pid);
    thread::sleep(Duration::from_millis(millis));
    send("CONT", pid);
}
